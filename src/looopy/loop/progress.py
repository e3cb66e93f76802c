"""
The progress of a turn: its state so far, and the reason for its end.

One method ends a turn, `Progress.end`, and one takes that back, `Progress.go_on`. No other code
writes `stop` and `error`.
"""

from collections.abc import Sequence
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
"""The reasons of a natural end: the answer is complete, and queued messages continue the turn."""
_NO_OPTIONS: Final = StreamOptions()


@dataclass(frozen=True, slots=True)
class Asked:
    """
    A call that is left open, with its requests and its stored record.

    Attributes:
        pending: [] if it waits for fresh credentials of the turn.
        started: True if it was announced as running.
    """

    call: ToolCall
    held: HeldCall
    pending: Sequence[PendingRequest]
    answered: Sequence[tuple[PendingRequest, Any]] = ()
    started: bool = True


@dataclass(slots=True)
class Progress:
    """
    The state of one turn so far.

    Attributes:
        guards: Count the turn's actions, and end it at a limit.
        abilities: The provider's, read when the turn begins. While the window is unknown, they are
            read again after each model call, because a provider that can prepare itself may have
            done so in its first call.
        open_calls: Calls that an earlier turn left open and that have not begun.
        call_turn: The earlier turn that announced the running calls; `None`: this turn did.
        spoken: True if the messages for the next model call have been added: later ones wait.
        iteration: The number of the newest one, from 1.
        added: The messages of this turn.
        results: The tool results of this iteration.
        usage: The usage of all model calls so far, also of calls that failed or were cut short.
        iteration_usage: The same for this iteration.
        queued: The messages to add before the next model call.
        locked: Beginnings of the names of unlisted tools, whose user is not signed in.
        asked: The calls of this iteration that wait for an answer.
        answer: The answer of the newest model call.
        partial: The model's output so far when its call was cut short.
        options: The options of the newest model call.
        refused: The number of answers that did not fit the output type.
        compacted: True once a too long history was handled, which happens at most once a turn.
        relieved: True once room was requested because a request did not fit; also at most once.
        stop: The reason for the end of the turn, unless a queued message continues it.
        error: The error of a failed turn.
        waits_for: A sentence about the budget without room, if the turn ends to ask for more.
    """

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
    locked: Sequence[str] = ()
    asked: list[Asked] = field(default_factory=list)
    answer: AssistantMessage | None = None
    partial: AssistantMessage | None = None
    options: StreamOptions = _NO_OPTIONS
    refused: int = 0
    compacted: bool = False
    relieved: bool = False
    stop: StopReason | None = None
    error: LooopyError | None = None
    waits_for: str = ""
    _call_ids: dict[str, int] = field(default_factory=dict)  # and how often each was wanted

    def __post_init__(self) -> None:
        for call in self.open_calls:
            self._call_ids[call.id] = 1

    def end(self, reason: StopReason, error: LooopyError | None = None) -> None:
        """End the turn with *reason*, and with *error* if it fails."""
        self.stop, self.error = reason, error

    def go_on(self) -> None:
        """Take the end back: the turn continues."""
        self.stop = self.error = None

    @property
    def waits_for_room(self) -> bool:
        """True if the turn ends to ask for more of a budget."""
        return self.stop is StopReason.BUDGET and bool(self.waits_for)

    @property
    def put_off(self) -> bool:
        """True if queued messages continue a turn that would end naturally."""
        return bool(self.queued) and self.stop in NATURAL

    def begin_iteration(self) -> None:
        """Count the next iteration."""
        self.iteration += 1
        self.in_iteration = True
        self.results = []
        self.iteration_usage = NO_USAGE

    def use(self, usage: Usage) -> None:
        """Count the usage of a model call."""
        self.iteration_usage += usage
        self.usage += usage
        self.guards.usage = self.usage

    def own_call_id(self, wanted: str) -> str:
        """*wanted*, or a similar id that no other call of this turn has; never blank."""
        wanted = wanted if wanted.strip() else "call"
        ids = self._call_ids
        call_id, n = wanted, ids.get(wanted, 1)
        while call_id in ids:
            n += 1
            call_id = f"{wanted}_{n}"
        ids[call_id] = 1
        ids[wanted] = n
        return call_id
