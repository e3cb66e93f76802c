"""The server: its tools, and the streams that it speaks over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from looopy.server.host import AgentHost
from looopy.server.protocols.mcp.calls import INPUT_SCHEMA, OUTPUT_SCHEMA, Call
from looopy.server.protocols.stdio import Lines
from looopy.types.context import AuthContext
from mcp import MCPError, types

DESCRIPTION = "Ask an agent, which may use tools of its own and remembers the conversation."
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Offer:
    """
    An agent that is offered as a tool.

    Attributes:
        description: For the model of the client.
    """

    host: AgentHost
    description: str


async def serve(
    offers: Mapping[str, Offer],
    reader: int,
    writer: int,
    *,
    name: str,
    auth_context: AuthContext | None = None,
) -> None:
    """
    Speak MCP over two file descriptors until the client closes its end.

    Turns that run then may end within some seconds; others are left as interrupted.

    Args:
        offers: By the name of the tool.
        name: How the server calls itself.
        auth_context: Actor of every turn.
    """
    lines = Lines(reader, writer)
    closing = False

    def is_closing() -> bool:
        return closing or lines.ended

    async def run() -> None:
        streams = stdio_server(cast("Any", _Input(lines)), cast("Any", _Output(lines)))
        async with streams as (read, write):
            await server.run(read, write, server.create_initialization_options())

    server = make_server(offers, name=name, auth_context=auth_context, is_closing=is_closing)
    running = asyncio.ensure_future(run())
    try:
        await asyncio.shield(running)
    finally:
        closing = True  # before the calls are cancelled: their turns may end
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        hosts = {id(offer.host): offer.host for offer in offers.values()}
        await asyncio.gather(*(host.drain(_LEAVE_S) for host in hosts.values()))
        lines.close()


def make_server(
    offers: Mapping[str, Offer],
    *,
    name: str,
    auth_context: AuthContext | None = None,
    is_closing: Any = lambda: False,
    call: Callable[[Offer, ServerRequestContext[Any, Any]], Call] | None = None,
) -> Server[Any]:
    """
    A server of the SDK that offers agents as tools.

    Args:
        call: Makes each call, in place of *auth_context* and *is_closing*.
    """

    async def list_tools(
        _context: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool,
                    description=offer.description,
                    input_schema=INPUT_SCHEMA,
                    output_schema=OUTPUT_SCHEMA,
                )
                for tool, offer in offers.items()
            ]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in offers:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}")
        offer = offers[params.name]
        if call is not None:
            return await call(offer, context).run(params)
        return await Call(offer.host, context, auth_context, is_closing).run(params)

    return Server(name, version=version("looopy"), on_list_tools=list_tools, on_call_tool=call_tool)


class _Input:
    """The part of a text file that the SDK reads from."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._lines.read()) is not None:
            if line.strip():
                yield line.decode("utf-8", "replace")


class _Output:
    """The part of a text file that the SDK writes to."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def write(self, text: str) -> None:
        """Write a line, with its end; a client that is gone reads nothing."""
        with contextlib.suppress(ConnectionError):
            await self._lines.write(text.encode())

    async def flush(self) -> None:
        """Do nothing: a line is written at once."""
