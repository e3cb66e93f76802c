"""
Flow control between the application and its clients, for every response.

A response goes out in pieces. A reader that does not take a piece in time is disconnected, and the
bytes that wait for the readers of one actor are limited. So readers that stand still cost the
process little, whatever they asked for.

A request may be answered before its body has arrived: wrong credentials, a body that is too large.
Closing the connection then would reset it, and the client would never see the answer. So the answer
goes out first, and a bounded part of the body is read and dropped after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, MutableMapping
from http import HTTPStatus
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looopy.server.gate.body import has_body
from looopy.server.gate.quotas import limited
from looopy.server.problems import problem_response

CALLER: Final = "looopy.caller"
"""The key of an ASGI scope under which the tenant and the actor of a request are."""

ABORT: Final = "looopy.abort"
"""The ASGI extension that resets the connection of a request; only `looopy serve` has it."""

PIECE: Final = 64 * 1024
"""The most bytes of a response that are written at once."""

_DROPPED_BYTES: Final = 64 * 1024 * 1024  # of a body that is not used
_DROPPED_S: Final = 10.0
_OF_THE_BODY: Final = (b"content-", b"etag", b"accept-ranges")


class Unread:
    """
    The bytes of responses that wait for their readers, by caller.

    Args:
        most: Of one caller.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: Counter[object] = Counter()
        self._freed = asyncio.Event()

    def take(self, caller: object, size: int) -> bool:
        """Take room; false if the caller's other responses leave none."""
        held = self._held[caller]
        if held and held + size > self.most:
            return False
        self._held[caller] += size
        return True

    def give(self, caller: object, size: int) -> None:
        """Give room back."""
        self._held[caller] -= size
        if self._held[caller] <= 0:
            del self._held[caller]
        self._freed.set()

    @contextlib.asynccontextmanager
    async def room(self, caller: object, size: int) -> AsyncIterator[None]:
        """Have room within the block; wait until there is some."""
        while not self.take(caller, size):
            self._freed.clear()
            await self._freed.wait()
        try:
            yield
        finally:
            self.give(caller, size)


class Flow:
    """
    ASGI middleware.

    Args:
        send_s: Seconds in which a reader takes a piece.
        unread: Counts the bytes of responses that are sent at once.
    """

    def __init__(self, app: ASGIApp, *, send_s: float, unread: Unread) -> None:
        self._app = app
        self._send_s = send_s
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; a reader that stands still ends it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._send_s, self._unread)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            if not exchange.stalled:
                raise
        finally:
            exchange.close()


class _Stalled(Exception):
    """The reader did not take a piece in time."""


class _Exchange:
    """
    One request and its response.

    Attributes:
        stalled: The reader stood still; the connection is given up.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        send_s: float,
        unread: Unread,
    ) -> None:
        self.stalled = False
        self._scope = scope
        self._receive = receive
        self._send = send
        self._send_s = send_s
        self._unread = unread
        self._size = 0
        self._start: Message | None = None
        self._body_taken = False
        self._sending = asyncio.Lock()  # a heartbeat is not to be within a frame

    def close(self) -> None:
        """Give back the room that the response took."""
        if self._size:
            self._unread.give(self._scope[CALLER], self._size)

    async def receive(self) -> Message:
        """The next message of the request."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._body_taken = True
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the response, a large one in pieces."""
        if message["type"] == "http.response.start":
            if message["status"] == HTTPStatus.REQUEST_TIMEOUT:
                self._body_taken = True  # or as much of it as will come
            if _size_of(message) > PIECE:
                self._start = message  # it may be refused, once its body is known
            else:
                await self._sent(message)
            return
        async with self._sending:
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        start, self._start = self._start, None
        if start is not None:
            if not more and not self._admit(len(body)):
                start, body = self._refusal(start)
            await self._sent(start)
        at = 0
        while len(body) - at > PIECE:
            await self._sent(_piece(body[at : at + PIECE], more=True))
            at += PIECE
        rest = body[at:]
        if not more and self._has_rest():
            await self._sent(_piece(rest, more=True))
            await self._drop_rest()
            rest = b""
        await self._sent(_piece(rest, more=more))

    def _admit(self, size: int) -> bool:
        """Take room for a response; false if the caller's others leave none."""
        if size <= PIECE or CALLER not in self._scope:
            return True
        if not self._unread.take(self._scope[CALLER], size):
            return False
        self._size = size
        return True

    def _refusal(self, start: Message) -> tuple[Message, bytes]:
        """429, with the headers of the response that are not about its body."""
        text = f"{self._unread.most:,} bytes of responses that one actor has not read are the limit"
        response = problem_response(limited(429, text))
        kept = [pair for pair in start["headers"] if not pair[0].lower().startswith(_OF_THE_BODY)]
        headers = [*response.raw_headers, *kept]
        return {**start, "status": response.status_code, "headers": headers}, bytes(response.body)

    async def _sent(self, message: MutableMapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._send_s):
                await self._send(message)
        except TimeoutError:
            self.stalled = True
            abort = self._scope.get("extensions", {}).get(ABORT)
            if abort is not None:
                abort()
                await asyncio.sleep(0)  # the server notices
            raise _Stalled from None

    def _has_rest(self) -> bool:
        """True if more of the request's body may come; who waits to be asked sends none."""
        asks_first = b"expect" in dict(self._scope["headers"])
        return has_body(self._scope) and not asks_first and not self._body_taken

    async def _drop_rest(self) -> None:
        left = _DROPPED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DROPPED_S):
                while left > 0 and not self._body_taken:
                    left -= len((await self.receive()).get("body", b""))


def _piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _size_of(start: Message) -> int:
    """The length that a response declares; 0 if it declares none."""
    for name, value in start["headers"]:
        if name.lower() == b"content-length":
            return int(value)
    return 0
