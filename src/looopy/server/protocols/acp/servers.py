"""
The MCP servers that an editor has for its agents, as sources of tools.

An application that wants them has a factory with a parameter `tools`. The person approves each call
of their tools: the application has never seen them.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from typing import TypeAlias

from acp import schema

from looopy.tools import MCPTools

Server: TypeAlias = (
    schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio
)
_logger = logging.getLogger("looopy")
_PREFIX_CHARS = 24


def tools_of(servers: Sequence[Server], cwd: str) -> list[MCPTools]:
    """
    A source for each server that this process can reach; others are logged and left out.

    The tools of each have its name as a prefix, so that two servers may have the same tools.
    """
    found: dict[str, MCPTools] = {}
    for server in servers:
        prefix = re.sub(r"[^A-Za-z0-9_-]+", "_", server.name)[:_PREFIX_CHARS] + "_"
        while prefix in found:
            prefix += "_"
        if (source := _source(server, prefix, cwd)) is None:
            _logger.warning("the MCP server %r of the editor is left out", server.name)
        else:
            found[prefix] = source
    return list(found.values())


def _source(server: Server, prefix: str, cwd: str) -> MCPTools | None:
    if isinstance(server, schema.McpServerStdio):
        if shutil.which(server.command) is None:
            return None
        return MCPTools(
            name=server.name,
            command=server.command,
            args=server.args,
            env={one.name: one.value for one in server.env},
            cwd=cwd,
            prefix=prefix,
            needs_approval=True,
        )
    if isinstance(server, (schema.HttpMcpServer, schema.SseMcpServer)):
        return MCPTools(
            name=server.name,
            url=server.url,
            headers={one.name: one.value for one in server.headers},
            prefix=prefix,
            needs_approval=True,
            protocol="sse" if isinstance(server, schema.SseMcpServer) else "auto",
        )
    return None
