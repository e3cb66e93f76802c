"""
MCP over streamable HTTP: the SDK's session manager in an application with authentication.

Clients of the 2026 protocol send requests that stand alone. Those of the 2025 protocol have a
session in this process, which belongs to its creator; the conversations are in the store, so
a session that is lost with its process costs a handshake. The SDK gets no credentials: each call
takes its `AuthContext` from the request that brought it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import MutableMapping
from contextlib import ExitStack, suppress
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from looopy.errors import LooopyError
from looopy.server.app_context import AppContext
from looopy.server.gate.expiry import valid_s
from looopy.server.problems import problem_response
from looopy.server.protocols.mcp.calls import ASKS_IN_RESULTS, Call
from looopy.server.protocols.mcp.serving import DESCRIPTION, Offer, make_server
from looopy.types.context import AuthContext

_AUTH: Final = "looopy.mcp.auth"
_LEFT: Final = "looopy.mcp.left"
_SESSION: Final = b"mcp-session-id"
_IDLE_S: Final = 600.0
_MOST_CALLERS: Final = 10_000
_KEPT: Final = frozenset(
    {b"accept", b"content-type", b"last-event-id", _SESSION, b"host", b"origin"}
)


class Endpoint:
    """
    Answers requests by the SDK.

    Args:
        name, description: Those of the tool.
    """

    def __init__(self, app_context: AppContext, name: str, description: str | None) -> None:
        self._app_context = app_context
        self._closing = False
        offer = Offer(app_context.host, description or DESCRIPTION)
        server = make_server({name: offer}, name="looopy", call=self._call)
        self._manager = StreamableHTTPSessionManager(
            server,
            session_idle_timeout=_IDLE_S,
            max_request_body_size=2
            * app_context.limits.body_bytes,  # it was measured; JSON may grow
            max_sessions=app_context.limits.streams,
        )
        self._sessions: dict[str, deque[str]] = {}
        self._running: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._stop = asyncio.Event()

    async def start(self) -> None:
        """Start the sessions' task, which outlives the request that starts it."""
        self._running = asyncio.create_task(self._run(), name="mcp sessions")
        await self._started.wait()

    async def _run(self) -> None:
        try:
            async with self._manager.run():
                self._started.set()
                await self._stop.wait()
        finally:
            self._started.set()  # a waiting caller gets the SDK's error

    async def aclose(self) -> None:
        """End the sessions. Their turns may end: the host decides how long they have."""
        self._closing = True
        self._stop.set()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    def _call(self, offer: Offer, context: ServerRequestContext[Any, Any]) -> Call:
        if not isinstance(context.request, Request):
            raise TypeError("the request did not come through the door")
        auth, left = context.request.scope[_AUTH], context.request.scope[_LEFT]
        alone = context.protocol_version >= ASKS_IN_RESULTS

        def is_closing() -> bool:
            """True if it is not the client who ends the call: by leaving, if it stands alone."""
            return self._closing or self._app_context.host.closed or (alone and not left)

        return Call(offer.host, context, auth, is_closing, app_context=self._app_context)

    async def answer(
        self, request: Request, auth: AuthContext, body: dict[str, Any] | None, send: Send
    ) -> None:
        """
        Answer a request.

        Args:
            body: The bytes that were read and checked.
        """
        tenant = auth.tenant_id or self._app_context.host.stores.tenant
        caller = json.dumps([tenant, auth.actor_id])
        scope = _scope(request, auth, caller)
        method = None if body is None else body.get("method")
        with ExitStack() as counted:
            if request.method == "GET" or method == "tools/call":
                try:
                    counted.enter_context(self._app_context.stream(auth))
                except LooopyError as error:
                    await problem_response(error)(scope, request.receive, send)
                    return
            opened: list[str] = []
            if method == "initialize":
                send = _noting(send, opened)
            receive = _replayed(request, body, scope[_LEFT])
            if request.method == "GET":
                await self._listen(scope, receive, send, auth)
            else:
                await self._manager.handle_request(scope, receive, send)
        for session in opened:
            await self._keep_few(caller, session, scope)

    async def _listen(self, scope: Scope, receive: Receive, send: Send, auth: AuthContext) -> None:
        """Stream what is not about a call, until the credentials of the caller expire."""
        is_open = False

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal is_open
            await send(message)
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)

        left = valid_s(auth)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if left == math.inf else left):
                await self._manager.handle_request(scope, receive, noting)
        if is_open:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_few(self, caller: str, session: str, scope: Scope) -> None:
        """Note a new session, and end the oldest of a caller who has too many."""
        mine = self._sessions.pop(caller, deque())
        mine.append(session)
        self._sessions[caller] = mine  # the last that came is the last
        while len(self._sessions) > _MOST_CALLERS:
            del self._sessions[next(iter(self._sessions))]
        if len(mine) > self._app_context.limits.streams_per_actor:
            headers = [pair for pair in scope["headers"] if pair[0] != _SESSION]
            oldest = [*headers, (_SESSION, mine.popleft().encode())]
            ending = {**scope, "method": "DELETE", "headers": oldest}
            await self._manager.handle_request(ending, _nothing, _nowhere)


def _scope(request: Request, auth: AuthContext, caller: str) -> Scope:
    """The request as the SDK sees it: a caller in place of credentials."""
    headers = [
        (name, value)
        for name, value in request.scope["headers"]
        if name in _KEPT or name.startswith(b"mcp-")
    ]
    user = AuthenticatedUser(AccessToken(token="", client_id=caller, scopes=[]))
    return {**request.scope, "headers": headers, "user": user, _AUTH: auth, _LEFT: []}


def _replayed(request: Request, body: dict[str, Any] | None, left: list[bool]) -> Receive:
    """The checked body; then the connection's messages, noting if the client has left."""
    unread = [] if body is None else [json.dumps(body, ensure_ascii=False).encode()]

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        message = await request.receive()
        if message["type"] == "http.disconnect":
            left.append(True)
        return message

    return receive


def _noting(send: Send, opened: list[str]) -> Send:
    """Sends on, and notes the session that a response opens."""

    async def sends(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] < 400:
            found = [value.decode() for name, value in message["headers"] if name == _SESSION]
            opened.extend(found)
        await send(message)

    return sends


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _nowhere(_message: Message) -> None:
    """Drop an answer without a waiting caller."""
