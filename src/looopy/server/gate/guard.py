"""
Refuses requests by their Host and Origin, before anything else sees them.

A page of another site can make a browser send requests to a server on loopback, and a name that an
attacker controls can resolve to 127.0.0.1. Both give themselves away by these headers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looopy.server.problems import Problem, problem_response

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
_PROBES: Final = frozenset({"/healthz", "/readyz"})  # probes name a machine, and learn nothing


class Guard:
    """
    ASGI middleware.

    Args:
        hosts: Names, or names with a port, that `Host` may have; `*` for any.
        origins: Origins besides the server's own, such as `https://app.example.org`.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Sequence[str] = LOOPBACK, origins: Collection[str] = ()
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # it may be mounted
        problem = None if path in _PROBES else self._problem(scope)
        if problem is not None:
            await problem_response(problem)(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                more = [pair for pair in _HEADERS if pair[0] not in there]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _problem(self, scope: Scope) -> Problem | None:
        host = _only(scope, b"host")
        if host is None or not self._knows(host):
            return Problem(
                f"this server does not serve the host {host or ''!r}",
                status=421,
                code="unknown_host",
            )
        if any(name == b"origin" for name, _ in scope["headers"]):
            origin = _only(scope, b"origin")
            if origin is None or not (origin in self._origins or _is_at(origin, host)):
                text = "this server takes no requests from pages of another origin"
                return Problem(text, status=403, code="unknown_origin")
        return None

    def _knows(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        bare = name if port.isdigit() else host
        return "*" in self._hosts or host in self._hosts or bare in self._hosts


def _only(scope: Scope, name: bytes) -> str | None:
    """The one value of a header, in lower case; `None` if there are none or several."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1").lower() if len(values) == 1 else None


def _is_at(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False
