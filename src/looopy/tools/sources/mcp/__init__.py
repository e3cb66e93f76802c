"""
The tools of MCP servers (Model Context Protocol): `MCPTools` is a source of tools like any other.

Connections are separate for each set of credentials, which is held only while it is used. An
unreachable server costs its tools and a warning, never a turn. The room may import `tools`,
`tools.call`, `tools.sources.server`, `auth`, `types` and `errors`. Importing it does not load the
SDK; the first connection does.

- `source`: `MCPTools`. `target`: the server's address and limits. `tool`: one of its tools.
- `pool`: a connection for each set of credentials. `connection`: the life of one connection.
- `conversation`: one call. `dialogue`: the questions of that call, and their answers.
- `listing`: the server's list becomes tools. `results`: its answer becomes a tool result.
- `resources`: a server's resources and prompts. `credentials` and `sign_in`: headers and OAuth.
- `sdk` and `transports`: the official SDK in our words, and bytes before the SDK reads them.

Exports: `MCPTools`, `MCPPrompt`, `MCPResource`. Read `source`, `pool`, `connection`,
`conversation`, `sdk`.
"""

from __future__ import annotations

from looopy.tools.sources.mcp.resources import MCPPrompt, MCPResource
from looopy.tools.sources.mcp.source import MCPTools

__all__ = ["MCPPrompt", "MCPResource", "MCPTools"]
