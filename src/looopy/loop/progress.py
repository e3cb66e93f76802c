"""
One turn as it runs: what it was given, what it has done so far, and what waits to be told.

A turn speaks in single events, which may be shown at once (a delta, a report), and in `Group`s:
events that belong together, of which the durable ones are committed before any is shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from looopy.auth.redaction import Redactor
from looopy.auth.sealing import KeyRing
from looopy.errors import ContextOverflow, LimitExceeded, LooopyError, StoreError
from looopy.history.view import View
from looopy.llm.provider import Abilities, LLMProvider, abilities_of
from looopy.loop.guards import Guards, Verdict
from looopy.loop.incoming import Inbox, NoInbox, Queued
from looopy.loop.output import Wanted
from looopy.loop.scope import CancelScope
from looopy.tools.gather import ToolSource
from looopy.tools.provider import Tool
from looopy.types.config import LoopConfig
from looopy.types.context import TurnContext
from looopy.types.event import (
    AgentEvent,
    IterationEnd,
    IterationStart,
    MessageEnd,
    MessageStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnWarning,
    UsageReport,
    utc_now,
)
from looopy.types.maker import amended, maker, quick
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
from looopy.types.state import HeldCall, Outcome, PendingKind, PendingRequest, outcome_of

_makers: dict[Callable[..., AgentEvent], Callable[..., AgentEvent]] = {}


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


@dataclass(frozen=True, slots=True)
class Resumed:
    """
    What a call that an earlier turn left open brings along.

    Attributes:
        opened: By `request_id`, the credentials that were answered; they live one turn.
    """

    held: HeldCall | None = None
    answered: Sequence[tuple[PendingRequest, Any]] = ()
    opened: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def answers(self) -> dict[str, Any]:
        """By its tool's own keys, what was answered."""
        keys = self.held.keys if self.held is not None else {}
        given = {
            request.request_id: value
            for request, value in self.answered
            if request.kind is not PendingKind.AUTH
        }
        given.update(self.opened)
        return {keys[name]: value for name, value in given.items() if name in keys}

    def is_ours(self, request: PendingRequest) -> bool:
        """Whether *request* asks if the call may run, and is no question of its tool."""
        own = self.held is not None and request.request_id in self.held.keys
        return request.kind is PendingKind.APPROVAL and not own


NOTHING_ASKED = Resumed()


@quick
@dataclass(frozen=True, slots=True)
class Group:
    """
    Events to commit together and then show, in this order.

    Attributes:
        delivered: Inbox entries whose messages are among the events; they leave it with the commit.
        heard: For the group that ends a turn: commit it only if nothing came into the inbox after
            this entry. `None`: whatever came.
        asked: The calls that are left open so far, when that has changed or the turn ends.
        charged: What the turn's tools have used so far.
    """

    events: Sequence[AgentEvent]
    delivered: Sequence[int] = ()
    heard: int | None = None
    asked: Sequence[Asked] = ()
    charged: Usage = NO_USAGE


Out: TypeAlias = AgentEvent | Group
Relief: TypeAlias = "Callable[[Turn, ContextOverflow], Awaitable[bool]]"
"""
Makes room when a request does not fit the model's window, such as by compacting `turn.history`.

Asked at most once a turn, between two model calls. It may `turn.emit` events: they are committed
before the model is asked again. `True`: there is room, try again. `False`, or an error that it
raises and that is reported: the turn fails with the overflow.
"""


@dataclass(slots=True)
class Turn:
    """
    One turn as it runs: what it was given, and what it has done so far.

    Attributes:
        history: What was said before and in this turn, oldest first.
        open_calls: Calls of the last assistant message that an earlier turn left open and that run
            now.
        call_turn: The turn that announced the open calls; their idempotency keys name it.
        resumed: What they bring along, by call id.
        keys: Makes the keys that credentials are encrypted to; `None`: none can be asked for.
        unsaved: A tool has ended since the last group: close one before code of the application is
            awaited, which may take any time.
        asked: Calls of this iteration that are left open until somebody answers.
        cut_call: The call that the model's answer broke off in.
        asks: Whether there are new ones among them since the last group.
        queued: What is said before the model is asked again.
        spoken: What there is to hear before the next model call has been said: the rest waits.
        answered: Why the turn would end if what is queued were withdrawn before it is said.
        added: Messages of this turn.
        wanted: What the answer has to be, if something was asked for.
        usage: Of all model calls so far, also of those that failed or were cut short.
        iteration_usage: The same of this iteration.
        relief: Makes room when a request does not fit; `None`: nobody does. Asked once.
        overflowed: It was told that a request did not fit.
        view: What the model was last shown of the history.
        auto_compact: Whether a history that is too long is summarised before it is shown.
        left_out: Whether the limits keep the model from being shown all of the history.
        compacted: Whether that was done, or tried: once a turn is enough.
        options: Of the newest model call.
        abilities: Of the provider, read when the turn begins; and again after a model call while
            the window is unknown, as a provider that nobody prepared learns it in its first call.
        stop: Set when the turn is over.
        error: Why, when it failed.
    """

    context: TurnContext
    provider: LLMProvider
    sources: Sequence[ToolSource]
    config: LoopConfig
    history: list[Message]
    scope: CancelScope
    guards: Guards
    open_calls: Sequence[ToolCall] = ()
    call_turn: int | None = None
    resumed: Mapping[str, Resumed] = field(default_factory=dict)
    keys: KeyRing | None = None
    unsaved: bool = False
    asked: list[Asked] = field(default_factory=list)
    cut_call: str | None = None
    asks: bool = False
    pending: Sequence[PendingRequest] = ()
    inbox: Inbox = field(default_factory=NoInbox)
    queued: Sequence[Queued] = ()
    spoken: bool = False
    answered: StopReason | None = None
    iteration: int = 0
    in_iteration: bool = False
    added: list[Message] = field(default_factory=list)
    results: list[ToolResultMessage] = field(default_factory=list)
    usage: Usage = NO_USAGE
    iteration_usage: Usage = NO_USAGE
    relief: Relief | None = None
    overflowed: bool = False
    stop: StopReason | None = None
    error: LooopyError | None = None
    partial: AssistantMessage | None = None
    answer_of_model: AssistantMessage | None = None
    call_ids: set[str] = field(default_factory=set)
    redactor: Redactor = field(default_factory=Redactor)
    view: View = field(default_factory=View)
    wanted: Wanted | None = None
    auto_compact: bool = False
    left_out: bool = False
    compacted: bool = False
    options: StreamOptions = field(default_factory=StreamOptions)
    abilities: Abilities = field(init=False)
    _same_ids: dict[str, int] = field(default_factory=dict)
    _waiting: list[AgentEvent] = field(default_factory=list)
    _warned: set[str] = field(default_factory=set)
    _delivered: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.abilities = abilities_of(self.provider)

    def emit(self, event: AgentEvent) -> None:
        """Add an event to the group that is open."""
        self._waiting.append(event)

    def close_group(self) -> Group:
        """Close the group that is open."""
        asked = tuple(self.asked) if self.asks else ()
        charged = self.guards.charged
        group = Group(tuple(self._waiting), tuple(self._delivered), asked=asked, charged=charged)
        self._waiting.clear()
        self._delivered.clear()
        self.asks = self.unsaved = False
        return group

    @property
    def says(self) -> bool:
        """Whether something is queued to be said, or said and not stored yet."""
        return bool(self.queued or self._delivered)

    async def steered(self) -> bool:
        """Whether something is queued to be said before the next model call; taken if it is."""
        if not self.queued and self.inbox.arrived:
            with contextlib.suppress(StoreError):  # the next commit will tell, if it lasts
                self.queued = await self.inbox.steering()
        return bool(self.queued)

    def say_queued(self) -> None:
        """Say what is queued."""
        for message, number in self.queued:
            self.emit(self.make(MessageStart, message=message))
            self.append(message)
            if number is not None:
                self._delivered.append(number)
        self.queued = ()

    def unsay(self, group: Group, said: Sequence[Queued], gone: Collection[int]) -> None:
        """Take back *group*, which ended with what was *said*; what is not *gone* is queued."""
        count = len(said)
        del self.history[-count:], self.added[-count:]
        self._waiting += group.events[: -2 * count]
        self.queued = [one for one in said if one.number not in gone]

    def close(self, end: AgentEvent, *, natural: bool) -> Group:
        """Close the last group; one that ends naturally gives way to what came in meanwhile."""
        self.emit(end)
        group = self.close_group()
        return amended(group, heard=self.inbox.heard if natural else None, asked=tuple(self.asked))

    def reopen(self, group: Group) -> None:
        """Take the last group back, without the end."""
        self._waiting += group.events[:-1]
        self._delivered += group.delivered

    def make(self, kind: Callable[..., AgentEvent], **fields: Any) -> AgentEvent:
        """An event of this turn and iteration."""
        context = self.context
        make = _makers.get(kind)
        if make is None:
            make = _makers[kind] = maker(kind)
        return make(
            context_id=context.context_id,
            turn=context.turn,
            iteration=self.iteration,
            **(fields if self.redactor.free else self.redactor.fields(fields)),
        )

    def own_call_id(self, wanted: str) -> str:
        """*wanted*, or something like it that no call of this turn has; never blank."""
        wanted = wanted if wanted.strip() else "call"
        call_id, n = wanted, self._same_ids.get(wanted, 1)
        while call_id in self.call_ids:
            n += 1
            call_id = f"{wanted}_{n}"
        self._same_ids[wanted] = n
        self.call_ids.add(call_id)
        return call_id

    def begin_iteration(self) -> None:
        """Count and announce the next iteration."""
        self.iteration += 1
        self.in_iteration = True
        self.results = []
        self.iteration_usage = NO_USAGE
        self.emit(self.make(IterationStart))

    def use(self, usage: Usage) -> None:
        """Count what a model call used."""
        self.iteration_usage += usage
        self.usage += usage
        self.guards.usage = self.usage

    def append(self, message: Message, **facts: Any) -> None:
        """Add a message to the history, with its `message_end`."""
        message = self.redactor.message(message)
        self.history.append(message)
        self.added.append(message)
        self.emit(self.make(MessageEnd, message=message, **facts))

    def answer(
        self,
        call: ToolCall,
        result: ToolResultMessage,
        *,
        started: datetime | None = None,
        announce: bool = False,
    ) -> None:
        """Add the one result of *call*; with *announce*, also the start it never had."""
        result = self.redactor.value(result)
        if announce:
            self.emit(self._start_of(call, has_effects=False))
        ended = utc_now()
        self.emit(
            self.make(
                ToolExecutionEnd,
                tool_call_id=call.id,
                tool_name=call.name,
                result=result,
                is_error=result.is_error,
                started=started,
                duration_s=0.0 if started is None else (ended - started).total_seconds(),
                timestamp=ended,
            )
        )
        self.emit(self.make(MessageStart, message=result))
        self.append(result)
        self.results.append(result)

    def _start_of(self, call: ToolCall, *, has_effects: bool) -> AgentEvent:
        return self.make(
            ToolExecutionStart,
            tool_call_id=call.id,
            tool_name=call.name,
            args=call.arguments,
            has_effects=has_effects,
        )

    def begin(self, call: ToolCall, tool: Tool | None) -> None:
        """Announce that *call* runs now; durable when it may have effects."""
        self.emit(self._start_of(call, has_effects=tool is not None and tool.effects != "none"))

    def warn_of_tools(self, text: str) -> None:
        """Say, once a turn, that tools are missing."""
        if text not in self._warned:
            self._warned.add(text)
            self.emit(self.make(TurnWarning, code="tools_unavailable", text=text))

    def warn_of_cost(self) -> None:
        """Say, once a turn, that a budget of money cannot be kept."""
        text = self.guards.unpriced()
        if text is not None and text not in self._warned:
            self._warned.add(text)
            self.emit(self.make(TurnWarning, code="cost_unknown", text=text))

    def warn_of_hook(self, name: str, error: Exception) -> None:
        """Say that a function of the application failed; its text is for the log alone."""
        text = f"{name}: {type(error).__name__}"
        self.emit(self.make(TurnWarning, code="hook_failed", text=text))

    def give_up(self, verdict: Verdict) -> None:
        """End the turn as a guard says."""
        self.stop = verdict.stop
        self.emit(self.make(TurnWarning, code=verdict.code, text=verdict.text))
        if verdict.stop is not None and outcome_of(verdict.stop) is Outcome.FAILED:
            self.error = LimitExceeded(verdict.text, limit=verdict.code)


def end_iteration(turn: Turn, assistant: AssistantMessage | None) -> None:
    """Report what the iteration used and close it."""
    turn.in_iteration = False
    usage = turn.iteration_usage
    turn.emit(turn.make(UsageReport, usage=usage, turn_usage=turn.usage))
    turn.emit(
        turn.make(IterationEnd, message=assistant, tool_results=tuple(turn.results), usage=usage)
    )
