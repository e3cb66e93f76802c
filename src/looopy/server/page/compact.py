"""
The small client format of an event stream, `?format=compact`: what a chat UI shows, once.

The full format has every event as a subscriber sees it, so the result of a tool crosses the wire in
five of them. Here each message crosses once, in its `message_end`. Other events report what
happened, without the texts of their messages. Text that is being written is a frame without a name,
whose data is a JSON string. Neighbouring pieces are joined while they wait: until their frame takes
at most twice the bytes of their text, if the model does not take too long over it. Retries, reports
of tools and thinking come to clients that `include` them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any, Final, Literal, TypeAlias

from looopy.errors import LooopyError
from looopy.server.page.clip import clip
from looopy.server.problems import problem_json, problem_of
from looopy.server.sse import frame, json_bytes
from looopy.types.event import AgentEvent, MessageUpdate, event_to_json
from looopy.types.message import AssistantMessage

_LEFT_OUT: Final = frozenset(
    {"iteration_start", "iteration_end", "usage", "tool_execution_update", "status_change"}
    | {"rate_limit", "model_rerouted"}
)
Included: TypeAlias = Literal[
    "status_change", "thinking", "tool_execution_update", "rate_limit", "model_rerouted"
]
"""Names that `?include=` takes: events that are left out otherwise, and thinking as it grows."""
_UNSAID: Final = frozenset({"type", "context_id", "iteration", "timestamp", "seq"})
_REPEATED: Final[dict[str, frozenset[str]]] = {
    "turn_start": frozenset({"user_message"}),
    "turn_end": frozenset({"messages"}),
    "tool_execution_end": frozenset({"result"}),
    "message_start": frozenset({"message"}),
}
_ENOUGH = 200  # characters that are sent without waiting for more
_WAIT_S = 0.06  # how long fewer characters wait for more: no person reads faster
_DEAR_WAIT_S = 0.24  # how long they wait if their frame takes more than twice their own bytes
_FRAME_BYTES = len(b'data:""\n\n')


def compact_json(
    event: AgentEvent, include: Collection[str] = (), clip_to: int | None = None
) -> dict[str, Any] | None:
    """
    The event without contents of other events and empty fields; `None` to leave it out.

    Args:
        include: Types of events that come although clients mostly do without.
        clip_to: Cut longer texts; `clipped` has their whole lengths.
    """
    if event.type in _LEFT_OUT and event.type not in include:
        return None
    if event.type == "message_start" and not isinstance(event.message, AssistantMessage):
        return None
    dropped = _UNSAID | _REPEATED.get(event.type, frozenset())
    if event.type == "tool_execution_start" and not event.edited:
        dropped |= {"args"}  # those of the call
    said = {
        name: value
        for name, value in event_to_json(event).items()
        if name not in dropped and value not in (None, [], {}, "")
    }
    if clip_to is not None:
        said, cut = clip(said, clip_to)
        said |= {"clipped": cut} if cut else {}
    return said


class _Text:
    """Text of one agent that waits to be sent."""

    def __init__(self) -> None:
        self.path: tuple[str, ...] = ()
        self._thinking = False
        self._since = 0.0
        self._pieces: list[str] = []
        self._size = 0
        self._spare = 0  # bytes that its frame could take more to take twice those of the text

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def left_s(self) -> float:
        """How long it may wait for more."""
        if self._size >= _ENOUGH:
            return 0.0
        until = self._since + (_WAIT_S if self._spare >= 0 else _DEAR_WAIT_S)
        return max(0.0, until - asyncio.get_running_loop().time())

    def takes(self, event: MessageUpdate) -> bool:
        """True if *event* continues it."""
        same = self.path == tuple(event.path) and self._thinking == (not event.delta)
        return not self._pieces or same

    def add(self, event: MessageUpdate, text: str) -> None:
        """Add *text*, which is what *event* shows."""
        if not self._pieces:
            self._thinking = not event.delta
            self.path, self._since = tuple(event.path), asyncio.get_running_loop().time()
            self._spare = -_FRAME_BYTES
            if self.path:
                self._spare -= len(json_bytes([*self.path, ""])) - len('""')
        self._pieces.append(text)
        self._size += len(text)
        said = len(json_bytes(text)) - len('""')
        self._spare += 2 * len(text.encode("utf-8", "replace")) - said

    def frame(self) -> bytes:
        """All of it as a frame; it is empty then."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        said = [*self.path, text] if self.path else text  # the path of an agent at work for a call
        if self._thinking:
            return frame("thinking", said)
        return b"data:" + json_bytes(said) + b"\n\n"


def _piece(event: MessageUpdate, *, thinking: bool) -> str:
    """The text of a delta that is shown; empty for any other piece."""
    said = event.event
    if event.delta or not thinking or said is None or said.type != "thinking_delta":
        return event.delta
    return said.delta


async def compacted(
    events: AsyncGenerator[AgentEvent, None],
    include: Collection[str] = (),
    clip_to: int | None = None,
) -> AsyncGenerator[bytes, None]:
    """
    The frames of *events*; an error ends them with a frame `problem`, as in the full format.

    Args:
        include: Some of `Included`.
        clip_to: Cut longer texts of events.
    """
    text = _Text()
    try:
        async with aclosing(events):
            following = asyncio.ensure_future(anext(events, None))
            try:
                while True:
                    if text and not (await asyncio.wait([following], timeout=text.left_s))[0]:
                        yield text.frame()
                    event = await following
                    if event is None:
                        break
                    following = asyncio.ensure_future(anext(events, None))
                    if isinstance(event, MessageUpdate):
                        piece = _piece(event, thinking="thinking" in include)
                        if piece:
                            if text and not text.takes(event):
                                yield text.frame()
                            text.add(event, piece)
                        if text and not text.left_s:
                            yield text.frame()
                        continue
                    if (said := compact_json(event, include, clip_to)) is None:
                        continue
                    if text:
                        yield text.frame()
                    yield frame(event.type, said, None if event.path else event.seq)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        if text:
            yield text.frame()
    except LooopyError as error:
        yield frame("problem", problem_json(problem_of(error)))
