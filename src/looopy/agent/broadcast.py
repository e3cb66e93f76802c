"""
The events of one turn, kept and passed to any number of views.

A turn must not depend on its views. So it passes its events to a `Broadcast`, which keeps all but
deltas and reports, and never waits. Every view begins at `turn_start`, and gets deltas from the
moment of attachment; while nobody would see them, none are made. A view that raises or leaves
disturbs no other. A slow reader loses only
granularity: when many events wait for it, the deltas among them are merged, and only the newest
report of a tool is kept.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from looopy.errors import ConfigurationError
from looopy.types.event import AgentEvent, MessageUpdate, ToolExecutionUpdate
from looopy.types.result import TurnResult

_logger = logging.getLogger("looopy")
_PASSING = frozenset({MessageUpdate, ToolExecutionUpdate})
_FAILED = "a subscriber of a turn failed"
_MERGE_ABOVE = 1024  # waiting events of one reader above which deltas are merged


class Observer(Protocol):
    """A subscriber: an observer of reactivex, without importing it."""

    def on_next(self, value: AgentEvent, /) -> None:
        """Handle an event."""

    def on_error(self, error: Exception, /) -> None:
        """Handle an error that leaves the turn's outcome unknown."""

    def on_completed(self) -> None:
        """Handle the end of the turn."""


class _Deltas:
    """
    Neighbouring deltas of one block that wait as one.

    A piece is joined to the one before it once it is at least as long. So each character of n
    deltas is copied about log2(n) times, not once for each later delta.
    """

    __slots__ = ("_pieces", "newest")

    def __init__(self, first: MessageUpdate) -> None:
        self.newest = first
        self._pieces = [first.delta]

    def add(self, event: MessageUpdate) -> None:
        self.newest = event
        pieces = self._pieces
        pieces.append(event.delta)
        while len(pieces) > 1 and len(pieces[-1]) >= len(pieces[-2]):
            later = pieces.pop()
            pieces[-1] += later

    def event(self) -> MessageUpdate:
        # `partial` has the thinking and the arguments so far.
        return replace(self.newest, delta="".join(self._pieces), event=None)


class _Reader:
    """One `async for`: a queue that merges waiting deltas instead of growing without end."""

    def __init__(self, backlog: list[AgentEvent]) -> None:
        self.queue: deque[AgentEvent | _Deltas] = deque(backlog)
        self.news = asyncio.Event()  # set by each event, and by the end

    def push(self, event: AgentEvent) -> None:
        queue = self.queue
        if len(queue) < _MERGE_ABOVE or not self._merge(event):
            queue.append(event)
        self.news.set()

    def pop(self) -> AgentEvent:
        """The oldest waiting event."""
        event = self.queue.popleft()
        return event.event() if isinstance(event, _Deltas) else event

    def _merge(self, event: AgentEvent) -> bool:
        """Merge *event* into the newest waiting one; return true if that was possible."""
        queue = self.queue
        last = queue[-1]
        newest = last.newest if isinstance(last, _Deltas) else last
        if newest.context_id != event.context_id:  # another agent, which works for a call
            return False
        if isinstance(event, MessageUpdate) and isinstance(newest, MessageUpdate):
            one_block = newest.content_index == event.content_index
            if not one_block or bool(newest.delta) != bool(event.delta):
                return False
            deltas = queue[-1] = last if isinstance(last, _Deltas) else _Deltas(newest)
            deltas.add(event)
            return True
        if (
            isinstance(event, ToolExecutionUpdate)
            and isinstance(newest, ToolExecutionUpdate)
            and newest.tool_call_id == event.tool_call_id
        ):  # of the reports of a call, only the newest is kept
            queue[-1] = event
            return True
        return False


class Broadcast:
    """
    The events of one turn, for any number of views.

    All but deltas and reports are kept until the turn is forgotten; the turn's limits bound them.

    Attributes:
        subscribers: The agent's, who see each event before the views; `None` if another turn is
            shown.
    """

    def __init__(self) -> None:
        self.subscribers: Subscribers | None = None
        self._log: list[AgentEvent] = []
        self._readers: list[_Reader] = []
        self._observers: list[Observer] = []
        self._done = False
        self._error: Exception | None = None
        self._accepted: asyncio.Future[int] | None = None
        self._waiting: list[asyncio.Future[TurnResult]] = []
        self._turn: int | None = None
        self._result: TurnResult | None = None

    @property
    def done(self) -> bool:
        """True if the turn is over for its viewers."""
        return self._done

    def watched(self) -> bool:
        """True if a view sees the events that are not kept."""
        if self._readers or self._observers:
            return True
        return self.subscribers is not None and self.subscribers.present

    def accept(self, turn: int) -> None:
        """Announce that the turn's claim is committed."""
        self._turn = turn
        _resolve(self._accepted, turn)

    def show(self, events: Iterable[AgentEvent]) -> None:
        """Show events in order; see `push`."""
        if self.watched():
            for event in events:
                self.push(event)
        else:
            self._log += [event for event in events if event.__class__ not in _PASSING]

    def push(self, event: AgentEvent) -> None:
        """Show an event to the subscribers and to every view."""
        subscribers = self.subscribers
        if subscribers is not None and subscribers.present:
            subscribers.tell(event)
        if event.__class__ not in _PASSING:
            self._log.append(event)
        for reader in self._readers:
            reader.push(event)
        if self._observers:
            for observer in tuple(self._observers):
                self._tell(observer, event)

    def finish(self, result: TurnResult) -> None:
        """End every view; awaiting gives *result*."""
        self._result = result
        self._end()
        for future in self._waiting:
            _resolve(future, result)

    def fail(self, error: Exception) -> None:
        """End every view with an error."""
        self._error = error
        self._end()
        for future in (self._accepted, *self._waiting):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # it may have no waiter

    def _end(self) -> None:
        self._done = True
        observers, self._observers = self._observers, []
        for reader in self._readers:
            reader.news.set()
        for observer in observers:
            self._close(observer)

    def _close(self, observer: Observer) -> None:
        if self._error is not None:
            guarded(_FAILED, observer.on_error, self._error)
        else:
            guarded(_FAILED, observer.on_completed)

    def _tell(self, observer: Observer, event: AgentEvent) -> None:
        if guarded("a subscriber of a turn failed and was detached", observer.on_next, event):
            self._detach(observer)

    def _detach(self, observer: Observer) -> None:
        if observer in self._observers:
            self._observers.remove(observer)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Attach an observer, for the earlier and the new events; the result detaches it."""
        self._observers.append(observer)
        for event in list(self._log):
            if observer not in self._observers:
                break
            self._tell(observer, event)
        if self._done and observer in self._observers:
            self._detach(observer)
            self._close(observer)
        return partial(self._detach, observer)

    def read(self) -> AsyncIterator[AgentEvent]:
        """The earlier events, then the new ones, until the turn is over."""
        reader = _Reader(self._log)
        self._readers.append(reader)
        return self._read(reader)

    async def _read(self, reader: _Reader) -> AsyncIterator[AgentEvent]:
        waiting = reader.queue
        try:
            while True:
                while waiting:
                    yield reader.pop()
                if self._done:
                    break
                reader.news.clear()
                await reader.news.wait()
        finally:
            self._readers.remove(reader)
        if self._error is not None:
            raise self._error

    async def accepted(self) -> int:
        """The turn's number, once its claim is committed."""
        if self._turn is not None:
            return self._turn
        if self._error is not None:
            raise self._error
        if self._accepted is None:
            self._accepted = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._accepted)

    async def result(self) -> TurnResult:
        """The turn's result, once it is over."""
        if self._error is not None:
            raise self._error
        if self._result is not None:
            return self._result
        # One each: a waiter may be cancelled.
        future: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        finally:
            self._waiting.remove(future)


def _resolve(future: asyncio.Future[Any] | None, value: Any) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def guarded(text: str, call: Callable[..., Any], *args: Any) -> bool:
    """
    Call a subscriber; log any exception with *text*, and let no other subscriber notice it.

    A `KeyboardInterrupt` or `SystemExit` is left to the event loop. The loop stops as for any
    callback that raises one, and the turn ends in order.

    Returns:
        True if it failed.
    """
    try:
        call(*args)
    except BaseException as error:  # not a cancellation: nothing is awaited here
        _logger.exception(text)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            asyncio.get_running_loop().call_soon(_raise, error)
        return True
    return False


def _raise(error: BaseException) -> None:
    raise error


class Subscribers:
    """
    Callbacks, called in the order in which they were added.

    Args:
        name: The agent's name, for the log.

    Attributes:
        name: The agent's.
        present: True if there is one; otherwise no event need be made.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._failed = f"a subscriber of agent {name} failed"
        self._callbacks: dict[object, Callable[[AgentEvent], object]] = {}
        self.present = False

    def add(self, callback: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """
        Call *callback* from now on; the returned function ends that.

        Raises:
            ConfigurationError: *callback* is a coroutine function.
        """
        if inspect.iscoroutinefunction(callback):
            raise ConfigurationError(
                "subscribe() takes a plain function: it is called, not awaited;"
                " start a task in it, or read events() with `async for`"
            )
        key = object()
        self._callbacks[key] = callback
        self.present = True

        def remove() -> None:
            self._callbacks.pop(key, None)
            self.present = bool(self._callbacks)

        return remove

    def tell(self, event: AgentEvent) -> None:
        """Call the present callbacks; some may be added or removed during the calls."""
        for callback in tuple(self._callbacks.values()):
            guarded(self._failed, callback, event)
