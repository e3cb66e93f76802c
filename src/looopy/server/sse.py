"""
Server-sent events: one frame an event, made once for all readers, and the response that sends them.

`id:` is the `seq` of a durable event, so a client that lost its connection reports its place by
`Last-Event-ID`. A frame without an id repeats nothing after a reconnect: a delta, a report.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from looopy.errors import LooopyError
from looopy.server.app_context import AppContext
from looopy.server.problems import Problem, problem_json, problem_of
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, TurnEnd, event_to_json
from looopy.types.storable import MAX_INT

LONG = 1_000_000
"""Bytes of JSON after which the event loop runs before more of it is made: 2 ms of its time."""
_MOST_FRAMES = 512
_MOST_BYTES = 4 * 1024 * 1024  # of all frames that are kept; a larger one is not


def json_bytes(value: Any) -> bytes:
    """JSON on one line, whatever an event of the application holds: one must not end a stream."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "replace")


async def json_items(values: Iterable[Any], most: int | None = None) -> list[bytes]:
    """
    The items of a JSON list; the event loop runs while they are made.

    Args:
        most: Stop before they have more bytes than this; there is always one.
    """
    items: list[bytes] = []
    size = waited = 0
    for value in values:
        text = json_bytes(value)
        size += len(text)
        if items and most is not None and size > most:
            break
        items.append(text)
        if size - waited > LONG:
            waited = size
            await asyncio.sleep(0)
    return items


def frame(name: str, data: Any, seq: int | None = None) -> bytes:
    """One server-sent event."""
    return b"".join([_head(name, seq).encode(), json_bytes(data), b"\n\n"])


def _head(name: str, seq: int | None) -> str:
    place = "" if seq is None else f"id: {seq}\n"
    return f"{place}event: {name}\ndata: "


async def _frame_of_end(data: dict[str, Any], seq: int | None) -> bytes:
    """The frame of a turn's end, whose messages are written one by one: each may be long."""
    items = b",".join(await json_items(data.pop("messages")))
    head = _head(data["type"], seq).encode()
    return b"".join([head, json_bytes(data)[:-1], b',"messages":[', items, b"]}\n\n"])


class Frames:
    """
    The frames of events, of which the newest are kept: many readers get the same event at once.

    Args:
        write: Writes an event as JSON.
    """

    def __init__(self, write: Callable[[AgentEvent], dict[str, Any]] = event_to_json) -> None:
        self._write = write
        self._made: OrderedDict[int, tuple[AgentEvent, bytes]] = OrderedDict()
        self._bytes = 0

    async def of(self, event: AgentEvent) -> bytes:
        """The frame of *event*; the event loop runs while a long one is made."""
        kept = self._made.get(id(event))
        if kept is not None:  # it is that event: the entry keeps it, so its id is not used again
            return kept[1]
        data, seq = self._write(event), None if event.path else event.seq
        if isinstance(event, TurnEnd) and data.get("messages"):
            encoded = await _frame_of_end(data, seq)
        else:
            encoded = frame(event.type, data, seq)
        self._made[id(event)] = (event, encoded)
        self._bytes += len(encoded)
        while len(self._made) > _MOST_FRAMES or self._bytes > _MOST_BYTES:
            _, (_, oldest) = self._made.popitem(last=False)
            self._bytes -= len(oldest)
        return encoded


async def framed(
    events: AsyncGenerator[AgentEvent, None], frames: Frames
) -> AsyncGenerator[bytes, None]:
    """
    The frames of *events*; an error ends them with a frame `problem`, which has no id.

    The reader may come again after its last id, unless the problem is `context_not_found`.
    """
    try:
        async with aclosing(events):
            async for event in events:
                encoded = await frames.of(event)
                yield encoded
                if len(encoded) > LONG:
                    await asyncio.sleep(0)
    except LooopyError as error:
        yield frame("problem", problem_json(problem_of(error)))


class EventStream(EventSourceResponse):
    """
    A response that streams frames until they end, or its reader leaves.

    The application counts it while it runs. To leave it is to detach: it cancels no turn.
    """

    def __init__(
        self,
        app_context: AppContext,
        auth: AuthContext,
        frames: AsyncGenerator[bytes, None],
        **headers: str,
    ) -> None:
        limits = app_context.limits
        super().__init__(
            frames,
            headers=headers or None,
            ping=limits.heartbeat_s,
            sep="\n",
        )
        self._frames = frames
        self._counted: Callable[[], AbstractContextManager[None]] = partial(
            app_context.stream, auth
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream."""
        try:
            with self._counted():
                await super().__call__(scope, receive, send)
        finally:
            await self._frames.aclose()


def place_of(request: Request, head: int) -> int | None:
    """
    The `seq` after which a reader wants to begin: `Last-Event-ID`, else `?after=`; or `None`.

    Raises:
        Problem: 400; it is not a whole number from 0 to *head*, the newest `seq`.
    """
    said = request.headers.get("last-event-id") or request.query_params.get("after")
    if said is None:
        return None
    if not (said.isascii() and said.isdigit()) or len(said) > len(str(MAX_INT)):
        raise Problem("the place in a stream is a whole number from 0", code="invalid_place")
    if int(said) > head:
        text = f"this context has no event {said}: the newest is {head}"
        raise Problem(text, code="invalid_place")
    return int(said)
