"""
Agents as tools of an MCP server: `looopy mcp`.

One tool for each factory; its call is a turn. A `context_id` continues a conversation, in any
process. The room may import `server`, `agent`, `stores`, `tools`, `types` and `errors`, and the
official SDK, which is loaded with it.

- `serving`: the server over standard input and output. `calls`: a call as a turn.
- `forms`: questions as forms that a client shows, and their answers.

Exports nothing; `looopy.cli.mcp` calls `serving.serve`. Read `serving`, `calls`, `forms`.
"""
