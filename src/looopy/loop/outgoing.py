"""
The output of a turn: single events, which may be shown at once (a delta, a report), and groups.

A `Group` is events that belong together; the durable ones are committed before any is shown. A turn
collects the events of the next group (`Outgoing.emit`) and closes it when that commit is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from looopy.loop.given import Given
from looopy.loop.progress import Asked, Progress
from looopy.types.constructors import maker, quick
from looopy.types.event import (
    AgentEvent,
    IterationEnd,
    IterationStart,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ToolExecutionEnd,
    TurnEnd,
    TurnStart,
    TurnWarning,
    UsageReport,
)
from looopy.types.message import NO_USAGE, Usage
from looopy.types.request import StreamEvent
from looopy.types.storable import repair

# Events of messages, which were searched and repaired before the turn added them, and of numbers.
_SEARCHED = frozenset(
    {
        IterationEnd,
        IterationStart,
        MessageEnd,
        MessageStart,
        ToolExecutionEnd,
        TurnEnd,
        TurnStart,
        UsageReport,
    }
)


@cache
def _maker(kind: Callable[..., AgentEvent]) -> Callable[..., AgentEvent]:
    """The quick constructor of a kind of event."""
    return maker(kind)


_made_update = maker(MessageUpdate)


@quick
@dataclass(frozen=True, slots=True)
class Group:
    """
    Events to commit together and then show, in this order.

    Attributes:
        delivered: Inbox entries whose messages are among the events; the commit removes them from
            the inbox.
        heard: For the group that ends a turn: commit it only if this is still the newest inbox
            entry. `None`: commit it in any case.
        asked: The calls left open so far, if that has changed or the turn ends.
        charged: The usage of the turn's tools so far.
        concluding: The turn may only answer: see `Guards`.
    """

    events: Sequence[AgentEvent]
    delivered: Sequence[int] = ()
    heard: int | None = None
    asked: Sequence[Asked] = ()
    charged: Usage = NO_USAGE
    concluding: bool = False


Out: TypeAlias = AgentEvent | Group


class Outgoing:
    """
    The events of one turn, and its open group.

    Attributes:
        delivered: Inbox entries that the open group removes from the inbox.
        unsaved: A tool has ended since the last group. Close a group before awaiting code of the
            application, which may take any time.
        asks: True if more calls were left open since the last group.
    """

    __slots__ = (
        "_facts",
        "_progress",
        "_redactor",
        "_told",
        "_waiting",
        "asks",
        "delivered",
        "unsaved",
    )

    def __init__(self, given: Given, progress: Progress) -> None:
        context = given.context
        self._facts: dict[str, Any] = {"context_id": context.context_id, "turn": context.turn}
        self._redactor = given.redactor
        self._progress = progress
        self._waiting: list[AgentEvent] = []
        self.delivered: list[int] = []
        self._told: dict[object, object] = {}
        self.unsaved = self.asks = False

    def make(self, kind: Callable[..., AgentEvent], **fields: Any) -> AgentEvent:
        """An event of this turn and iteration, for the caller to yield."""
        if kind not in _SEARCHED:
            if not self._redactor.free:
                fields = {name: self._redactor.value(value) for name, value in fields.items()}
            for name, value in fields.items():
                if type(value) is str and not value.isascii():  # it may quote anything
                    fields[name] = repair(value)
        return _maker(kind)(iteration=self._progress.iteration, **self._facts, **fields)

    def delta(self, event: StreamEvent) -> MessageUpdate:
        """The event that shows a piece of the model's answer."""
        return _made_update(
            iteration=self._progress.iteration,
            delta=event.delta if event.type == "text_delta" else "",
            event=event,
            content_index=event.content_index,
            partial=event.partial,
            **self._facts,
        )

    @property
    def waits(self) -> bool:
        """True if the open group has something to commit or show."""
        return bool(self._waiting) or self.asks

    def emit(self, kind: Callable[..., AgentEvent], **fields: Any) -> None:
        """Add an event to the open group."""
        self._waiting.append(self.make(kind, **fields))

    def warn(self, code: str, text: str, *, once: str | None = None) -> None:
        """Add a warning; of those with the same *once*, the turn emits only the first."""
        if once is None or self.is_news(once):
            self.emit(TurnWarning, code=code, text=text)

    def is_news(self, about: object, state: object = True) -> bool:
        """True if this turn has not been told this *state* of *about*, or another one since."""
        if self._told.get(about) == state:
            return False
        self._told[about] = state
        return True

    def close_group(self, *, last: bool = False, heard: int | None = None) -> Group:
        """Close the open group; the *last* one names every call that is left open."""
        progress = self._progress
        asked = tuple(progress.asked) if self.asks or last else ()
        guards = progress.guards
        group = Group(
            tuple(self._waiting),
            tuple(self.delivered),
            heard,
            asked,
            guards.charged,
            guards.concluding,
        )
        self._waiting.clear()
        self.delivered.clear()
        self.asks = self.unsaved = False
        return group

    def reopen(self, group: Group) -> None:
        """Reopen the last group, without the end."""
        self._waiting += group.events[:-1]
        self.delivered += group.delivered

    def take_back(self, group: Group, messages: int) -> None:
        """Reopen *group*, without the last *messages* and their delivery."""
        self._waiting += group.events[: -2 * messages]
