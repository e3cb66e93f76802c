"""
Agents in editors and terminals, by the Agent Client Protocol: `looopy acp`.

A session is a context. The editor starts the process and speaks JSON-RPC over its standard input
and output. The room may import `server`, `agent`, `stores`, `tools`, `types` and `errors`, and the
official SDK, which is loaded with it.

- `agent`: `serve`, and the methods of the protocol.
- `session`: one session: its turns, its questions, and what its client sees.
- `updates`: messages and events as `session/update`s. `prompts`: content blocks as a message.
- `servers`: the editor's own MCP servers as tools.
- `wire`: one message a line, over two file descriptors. `errors`: ours in the protocol's form.

Exports nothing; `looopy.cli.acp` calls `agent.serve`. Read `agent`, `session`, `updates`.
"""
