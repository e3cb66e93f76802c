"""
Agents as tools of an MCP server: `looopy mcp`, and `/mcp` of `looopy serve`.

One tool for each factory; its call is a turn. A `context_id` continues a conversation, in any
process. The room may import `server`, `agent`, `stores`, `tools`, `types` and `errors`, and the
official SDK, which is loaded with it.

- `serving`: the server over standard input and output. `calls`: a call as a turn.
- `routes`: the path; `looopy.server` exports its `mcp_api`. `streamable`: the server over HTTP.
- `forms`: questions as forms that a client shows, and their answers.

`looopy.cli.mcp` calls `serving.serve`. Read `serving`, `calls`, `forms`, `streamable`.
"""
