"""
Tools of MCP servers (Model Context Protocol): `MCPTools` is a source of tools like any other.

`source.py` is what a user makes, `pool.py` keeps a connection for each set of credentials,
`connection.py` is one life of one connection, `sdk.py` alone knows the official SDK and is loaded
when a server is connected. `listing.py` and `results.py` turn what servers say into ours.
"""

from __future__ import annotations

from looopy.tools.sources.mcp.source import MCPTools

__all__ = ["MCPTools"]
