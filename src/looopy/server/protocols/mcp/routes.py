"""
The routes of MCP for an application: streamable HTTP at `/mcp`.

The SDK takes a second to import. So a thread imports it when the application starts.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from looopy.errors import LooopyError, missing_extra
from looopy.server.app_context import AppContext
from looopy.server.problems import problem_response

if TYPE_CHECKING:
    from looopy.server.protocols.mcp.streamable import Endpoint

_STREAMABLE: Final = "looopy.server.protocols.mcp.streamable"


def mcp_api(
    app_context: AppContext,
    *,
    name: str = "ask",
    description: str | None = None,
    path: str = "/mcp",
) -> Sequence[BaseRoute]:
    """
    The routes of MCP, for `create_app(protocols=[mcp_api])`: the agent as a tool of an MCP server.

    Args:
        name: The name of the tool.
        description: Shows a client's model when to use it. By default the docstring of the
            host's factory.
        path: Where the server is.

    Raises:
        MissingExtra: The SDK of MCP is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise missing_extra("serving MCP needs the mcp package", "mcp")
    app_context.preload(_STREAMABLE)
    endpoints = _Endpoints(
        app_context, name, description or inspect.getdoc(app_context.host.factory)
    )
    app_context.background.append(endpoints.running)
    return [Route(path, endpoints, methods=["GET", "POST", "DELETE"])]


class _Endpoints:
    """The endpoint, made at the first request: an ASGI application."""

    def __init__(self, app_context: AppContext, name: str, description: str | None) -> None:
        self._app_context = app_context
        self._name = name
        self._description = description
        self._endpoint: Endpoint | None = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: who is asking, then what they sent, then the SDK."""
        request = Request(scope, receive)
        try:
            auth = await self._app_context.identify(request)
            body = await self._app_context.read_json(request) if request.method == "POST" else None
        except LooopyError as error:
            await problem_response(error)(scope, receive, send)
            return
        endpoint = self._endpoint or await self._load()
        await endpoint.answer(request, auth, body, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Close the connections at the end of the application; turns are left to its host."""
        try:
            yield
        finally:
            if self._endpoint is not None:
                await self._endpoint.aclose()

    async def _load(self) -> Endpoint:
        async with self._loading:
            if self._endpoint is None:
                streamable = await asyncio.to_thread(importlib.import_module, _STREAMABLE)
                made: Endpoint = streamable.Endpoint(
                    self._app_context, self._name, self._description
                )
                await made.start()
                self._endpoint = made
            return self._endpoint
