"""
The routes of A2A for an application: JSON-RPC at `/a2a/v1/`, REST at the root, and the card.

The SDK takes seconds to import. So a thread imports it when the application starts, and the
endpoints are made in a thread at the first request.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from looopy.errors import missing_extra
from looopy.server.app_context import AppContext
from looopy.server.protocols.a2a.push.options import PushNotifications

if TYPE_CHECKING:
    from looopy.server.protocols.a2a.push.delivery import Deliveries

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
_WIRES: Final = "looopy.server.protocols.a2a.wires"
_TASK: Final = "/tasks/{id}"
_PUSH: Final = f"{_TASK}/pushNotificationConfigs"
_OF_BOTH: Final = (
    ("POST", "/message:send"),
    ("POST", "/message:stream"),
    ("POST", f"{_TASK}:cancel"),
    ("GET", f"{_TASK}:subscribe"),
    ("POST", f"{_TASK}:subscribe"),
    ("GET", _TASK),
    ("GET", f"{_PUSH}/{{push_id}}"),
    ("POST", _PUSH),
    ("GET", _PUSH),
)
PATHS: Final = (
    ("GET", "/.well-known/agent-card.json"),
    ("POST", "/a2a/v1"),
    ("POST", "/a2a/v1/"),
    *_OF_BOTH,
    ("GET", "/tasks"),
    ("DELETE", f"{_PUSH}/{{push_id}}"),
    ("GET", "/extendedAgentCard"),
    *((method, f"/v1{path}") for method, path in _OF_BOTH),  # 0.3
    ("GET", "/v1/card"),
)
"""The paths that the SDK serves, without its mount for tenants: that would hide other paths."""


def a2a_api(
    app_context: AppContext,
    *,
    name: str = "looopy",
    description: str = "An agent whose conversations outlive its process.",
    version: str = "1.0.0",
    url: str | None = None,
    push: PushNotifications | None = None,
) -> Sequence[BaseRoute]:
    """
    The routes of A2A, for `create_app(protocols=[a2a_api])`.

    Args:
        name, description, version: Those of the agent, for its card.
        url: The address of the server as clients see it, such as `https://agents.example.org`.
            `None`: the request's address.
        push: Sends push notifications to allowed receivers that callers name.

    Raises:
        MissingExtra: The A2A SDK is not installed, or *push* needs another extra.
        ConfigurationError: The stores of the host cannot keep *push*, or its key is too short.
    """
    if importlib.util.find_spec("a2a") is None:
        raise missing_extra("serving A2A needs the a2a-sdk package", "a2a")
    deliveries: Deliveries | None = None
    if push is not None:
        from looopy.server.protocols.a2a.push.delivery import Deliveries

        deliveries = Deliveries(app_context.host, push)
        app_context.background.append(deliveries.running)
    app_context.links_artifacts = True
    facts = {"name": name, "description": description, "version": version}
    app_context.preload(_WIRES)
    endpoints = _Endpoints(app_context, facts, url, deliveries)
    return [
        Route(path, partial(endpoints.answer, (method, path)), methods=[method])
        for method, path in PATHS
    ]


class _Endpoints:
    """The endpoints, made at the first request."""

    def __init__(
        self,
        app_context: AppContext,
        facts: Mapping[str, str],
        url: str | None,
        deliveries: Deliveries | None,
    ) -> None:
        self._app_context = app_context
        self._deliveries = deliveries
        self._facts = facts
        self._url = url
        self._endpoints: Mapping[tuple[str, str], Endpoint] | None = None
        self._loading = asyncio.Lock()

    async def answer(self, place: tuple[str, str], request: Request) -> Response:
        """Answer a request to a path, by its method."""
        endpoints = self._endpoints or await self._load()
        return await endpoints[place](request)

    async def _load(self) -> Mapping[tuple[str, str], Endpoint]:
        async with self._loading:
            if self._endpoints is not None:
                return self._endpoints
            wires = await asyncio.to_thread(importlib.import_module, _WIRES)
            made: Mapping[tuple[str, str], Endpoint] = await asyncio.to_thread(
                wires.wired, self._app_context, self._facts, self._url, self._deliveries
            )
            self._endpoints = made
            return made
