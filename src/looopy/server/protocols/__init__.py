"""
Protocols of others over one `AgentHost`, a package each.

- `a2a/`: A2A, by which agents call agents. `mcp/`: agents as tools of an MCP server.
- `acp/`: the Agent Client Protocol of editors.
- `ag_ui/`: AG-UI, the protocol of CopilotKit and others. `ai_sdk/`: the AI SDK's UI message stream.
- `responses/`: OpenAI's Responses API.
- Shared: `repeats` (the rule for identical requests), `deltas` (an answer as it grows), `call_ids`
  (ids of calls over several turns), `chains` (turns that write one answer), `forms` (questions as
  forms), `text_answers` (answers in words), `asides` (events about the model's server), `stdio`
  (protocols of one message a line).

Each package exports its entry through `looopy.server`.
"""
