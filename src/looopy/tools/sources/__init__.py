"""
Tools that come from elsewhere: other agents, servers, clients, skills and plugins.

A source is listed for each turn, and a source that fails costs its own tools and a warning. The
room may import `tools`, `tools.call`, `tools.function`, `auth`, `types` and `errors`; `agents`
knows its inner agent by a protocol.

- `agents`: a looopy agent as another's tool. `a2a/`: an agent elsewhere that speaks A2A.
- `mcp/`: the tools of an MCP server. `server`: what both have in common. `headers`: keys and
  secrets of the HTTP headers that a turn sends to them. `escapes`: half characters in their JSON.
- `client`: tools whose result the user's side supplies.
- `artifact`: tools that keep files, objects and tables. `skills`: instructions loaded on demand;
  `skill_folder`: those in the Agent Skills format, and their files.
- `plugin`: tools and prompt parts, switched on and off together.

Exports: the sources, through `looopy.tools`; `Plugin`, through `looopy`. Read `client`, `skills`,
`agents`, `mcp/source`.
"""
