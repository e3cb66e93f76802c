"""
The progress of a turn: what has happened so far, and whether the turn goes on.

One method ends a turn, `Progress.end`, and one takes that back, `Progress.go_on`. Nobody else
writes `stop` and `error`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from looopy.errors import LooopyError
from looopy.llm.provider import Abilities
from looopy.loop.guards import Guards
from looopy.loop.incoming import Queued
from looopy.types.message import (
    NO_USAGE,
    AssistantMessage,
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    Usage,
)
from looopy.types.request import StreamOptions
from looopy.types.state import HeldCall, PendingRequest

NATURAL: Final = (StopReason.STOP, StopReason.LENGTH)
"""Why a turn ends whose answer stands: messages that came meanwhile keep it going."""


@dataclass(frozen=True, slots=True)
class Asked:
    """
    A call that is left open: what it waits for, and what is kept of it meanwhile.

    Attributes:
        pending: [] when it waits for fresh credentials of the turn.
        started: Whether it was announced as running.
    """

    call: ToolCall
    held: HeldCall
    pending: Sequence[PendingRequest]
    answered: Sequence[tuple[PendingRequest, Any]] = ()
    started: bool = True


@dataclass(slots=True)
class Progress:
    """
    What one turn has done so far.

    Attributes:
        history: What was said before and in this turn, oldest first.
        guards: Count what the turn does, and say when it is too much.
        abilities: Of the provider, read when the turn begins; and again after a model call while
            the window is unknown, as a provider that nobody prepared learns it in its first call.
        open_calls: Calls that an earlier turn left open, as long as they have not begun.
        call_turn: The earlier turn that announced the calls which run now; `None`: this one did.
        spoken: What there is to hear before the next model call has been said: the rest waits.
        iteration: Number of the newest one, from 1.
        added: Messages of this turn.
        results: Of this iteration.
        usage: Of all model calls so far, also of those that failed or were cut short.
        iteration_usage: The same of this iteration.
        queued: What is said before the model is asked again.
        asked: Calls of this iteration that are left open until somebody answers.
        answer: Of the newest model call.
        partial: What the model had said when its call was cut short.
        options: Of the newest model call.
        refused: How many answers did not have the form that was wanted.
        compacted: Whether a history that is too long was seen to: once a turn is enough.
        relieved: Whether room was asked for after a request did not fit: once, too.
        stop: Why the turn ends, unless something is said first that keeps it going.
        error: Why it failed.
    """

    history: list[Message]
    guards: Guards
    abilities: Abilities
    open_calls: Sequence[ToolCall] = ()
    call_turn: int | None = None
    spoken: bool = False
    iteration: int = 0
    in_iteration: bool = False
    added: list[Message] = field(default_factory=list)
    results: list[ToolResultMessage] = field(default_factory=list)
    usage: Usage = NO_USAGE
    iteration_usage: Usage = NO_USAGE
    queued: Sequence[Queued] = ()
    asked: list[Asked] = field(default_factory=list)
    answer: AssistantMessage | None = None
    partial: AssistantMessage | None = None
    options: StreamOptions = field(default_factory=StreamOptions)
    refused: int = 0
    compacted: bool = False
    relieved: bool = False
    stop: StopReason | None = None
    error: LooopyError | None = None
    _call_ids: dict[str, int] = field(default_factory=dict)  # and how often each was wanted

    def __post_init__(self) -> None:
        for call in self.open_calls:
            self._call_ids[call.id] = 1

    def end(self, reason: StopReason, error: LooopyError | None = None) -> None:
        """End the turn with *reason*; where it fails, *error* says why."""
        self.stop, self.error = reason, error

    def go_on(self) -> None:
        """Take the end back: there is more to do."""
        self.stop = self.error = None

    @property
    def put_off(self) -> bool:
        """Whether queued messages put off the end of a turn whose answer stands."""
        return bool(self.queued) and self.stop in NATURAL

    def begin_iteration(self) -> None:
        """Count the next iteration."""
        self.iteration += 1
        self.in_iteration = True
        self.results = []
        self.iteration_usage = NO_USAGE

    def take_back(self, said: Sequence[Queued], gone: Collection[int]) -> None:
        """Remove what was *said* last; the part that is not *gone* is queued again."""
        count = len(said)
        del self.history[-count:], self.added[-count:]
        self.queued = [one for one in said if one.number not in gone]

    def use(self, usage: Usage) -> None:
        """Count what a model call used."""
        self.iteration_usage += usage
        self.usage += usage
        self.guards.usage = self.usage

    def own_call_id(self, wanted: str) -> str:
        """*wanted*, or something like it that no call of this turn has; never blank."""
        wanted = wanted if wanted.strip() else "call"
        ids = self._call_ids
        call_id, n = wanted, ids.get(wanted, 1)
        while call_id in ids:
            n += 1
            call_id = f"{wanted}_{n}"
        ids[call_id] = 1
        ids[wanted] = n
        return call_id
