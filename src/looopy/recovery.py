"""
What a turn that did not finish needs before its context may go on: decided here, without I/O.

`close_dead_turn` says how a turn whose process died ends: each call that it announced and did not
answer is answered, left open to run again, or left open behind an approval, as its tool's
`on_resume` says. `plan_turn` says what the next turn begins with, given what was left open and what
the caller brings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from looopy.answers import Answered, Answers, hear, refuse_in_part
from looopy.auth.sealing import KeyRing
from looopy.errors import CannotContinue
from looopy.history.open_calls import can_continue
from looopy.llm.render import NOT_STARTED, OUTCOME_UNKNOWN, synthetic_result
from looopy.loop.approval import bound_to
from looopy.loop.pending import waits_for
from looopy.loop.progress import Resumed
from looopy.stores.records import ContextState, Entry, EntryKind, TurnRecord
from looopy.tools.executor import resolve_name
from looopy.tools.provider import Tool
from looopy.types.context import AuthContext
from looopy.types.maker import quick
from looopy.types.message import (
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    now_ms,
)
from looopy.types.state import HeldCall, PendingKind, PendingRequest

SUPERSEDED = (
    "Cancelled: the user said something else instead of answering. The call was not run again."
    " The first run may have had its effect."
)
UNANSWERED = "Cancelled: the user said something else instead of answering."
DENIED = "The user denied this call. It was not run."
NOT_AGAIN = (
    "The user did not allow running this call again. The first run may have had its effect: check"
    " what it did."
)


@dataclass(frozen=True, slots=True)
class OpenCall:
    """
    A call without a result. `turn`: the one that announced it; `started`: it may have had effects,
    and did not end by asking; `rerun`: it may run again without anybody being asked.
    """

    call: ToolCall
    turn: int
    started: bool
    rerun: bool = False

    @property
    def unknown(self) -> bool:
        """Whether it must not run again, and nobody knows what it has done."""
        return self.started and not self.rerun


@dataclass(frozen=True, slots=True)
class Closing:
    """How a dead turn ends: results to append, and what stays behind for its open calls."""

    results: Sequence[tuple[ToolCall, ToolResultMessage]] = ()
    pending: Sequence[PendingRequest] = ()
    answered: Sequence[tuple[PendingRequest, Any]] = ()
    held: Sequence[HeldCall] = ()


def close_dead_turn(
    turn: int,
    calls: Sequence[OpenCall],
    tools: Mapping[str, Tool],
    state: ContextState | None = None,
    *,
    ask: bool = True,
) -> Closing:
    """
    Decide about the unanswered calls of a turn whose process died.

    Args:
        calls: In the order they were announced.
        tools: What is registered now; a tool that is gone counts as `on_resume="fail"`.
        state: What the turn began with.
        ask: Whether a person can be asked about calls; else they count as `on_resume="fail"`.
    """
    state = state or ContextState()
    results: list[tuple[ToolCall, ToolResultMessage]] = []
    pending: list[PendingRequest] = []
    answered: list[tuple[PendingRequest, Any]] = []
    held: list[HeldCall] = []
    for open_call in calls:
        call = open_call.call
        waits = _of(call, state.pending)
        name = resolve_name(call.name, tools)
        tool = None if name is None else tools[name]
        rerun = tool is not None and (not open_call.started or tool.on_resume == "rerun")
        kept = next((one for one in state.held if one.tool_call_id == call.id), None)
        own = [(r, v) for r, v in state.answered if r.tool_call_id == call.id]
        if ask and not waits and not rerun and tool is not None and tool.on_resume == "ask":
            waits = [_ask(open_call, turn)]
            kept = _asked_again(kept, open_call, turn, tool)
            own = [(r, v) for r, v in own if r.request_id in kept.keys]
        elif not waits and not rerun:
            text = _untold(open_call, kept)
            results.append((call, _result(call, text)))
            continue
        pending += waits
        answered += own
        held += [] if kept is None else [kept]
    return Closing(results, pending, answered, held)


def runs_again(call: ToolCall, tools: Mapping[str, Tool]) -> bool:
    """Whether *call*, which may have had effects, may run again without anybody being asked."""
    name = resolve_name(call.name, tools)
    return name is not None and tools[name].on_resume == "rerun"


def _of(call: ToolCall, pending: Sequence[PendingRequest]) -> list[PendingRequest]:
    return [request for request in pending if request.tool_call_id == call.id]


def _asked_again(kept: HeldCall | None, open_call: OpenCall, turn: int, tool: Tool) -> HeldCall:
    """*kept*, of a call about which a person is asked once more."""
    call = open_call.call
    if kept is None:
        kept = HeldCall(tool_call_id=call.id, origin=open_call.turn, asked_in=turn)
    bound = kept.bound or bound_to(tool, call.arguments)
    return replace(kept, asked_in=turn, bound=bound, died=True)


def _ask(open_call: OpenCall, turn: int) -> PendingRequest:
    call = open_call.call
    return PendingRequest(
        request_id=f"{turn}-{call.id}",
        kind=PendingKind.APPROVAL,
        tool_name=call.name,
        args=call.arguments,
        tool_call_id=call.id,
        turn=open_call.turn,
        prompt=(
            f"{call.name} was running when its process ended, and may have had its effect."
            " Run it again?"
        ),
    )


@quick
@dataclass(frozen=True, slots=True)
class Plan:
    """
    What a turn begins with.

    Attributes:
        prompts: Messages to store with the claim: results, then what the user says.
        run: Calls to run before the model is asked.
        call_turn: The turn that announced them.
        resumed: What was asked and answered about them, by call id.
        delivered: Inbox entries that are among `prompts`.
        ends: Set when the turn ends at once, with this reason and `state.pending`.
        state: What the claim stores.
    """

    state: ContextState
    prompts: Sequence[Message] = ()
    user_message: UserMessage | None = None
    run: Sequence[ToolCall] = ()
    call_turn: int | None = None
    resumed: Mapping[str, Resumed] = field(default_factory=dict)
    continues: int | None = None
    delivered: Sequence[int] = ()
    ends: StopReason | None = None


@quick
@dataclass(frozen=True, slots=True)
class Situation:
    """
    What is known of a context between turns. `last`: the turn that `state.resumable` names;
    `queued`: what the actor of the next one has in the inbox.
    """

    state: ContextState
    history: Sequence[Message]
    open_calls: Sequence[OpenCall] = ()
    last: TurnRecord | None = None
    queued: Sequence[Entry] = ()
    context_id: str | None = None


def plan_turn(
    situation: Situation,
    user_message: UserMessage | None,
    inputs: Mapping[str, Any] | None,
    auth_context: AuthContext | None,
    keys: KeyRing | None = None,
) -> Plan:
    """
    Decide what a turn begins with.

    Args:
        keys: Opens the credentials among *inputs*.

    Raises:
        CannotContinue: There is neither text nor input, and nothing to go on from.
        InputNotFound: An id in *inputs* is not pending, or has expired.
        ValueRefused: A value is no answer to its request.
    """
    state, inputs = situation.state, inputs or {}
    before = _still(situation, state.answered)
    answers = hear(
        state.pending, inputs, before, state.held, keys or KeyRing(), situation.context_id
    )
    fresh = ContextState(**state.sums, summary=state.summary)
    if inputs or (user_message is None and before and not state.pending):
        remaining = tuple(p for p in state.pending if p.request_id not in inputs)
        kept = replace(state, pending=remaining, answered=tuple(answers.stored), error=None)
        if remaining and user_message is None:
            refuse_in_part(answers)
            return Plan(kept, continues=remaining[0].turn, ends=waits_for(remaining))
        plan = _answer(situation, fresh, user_message, answers, remaining)
        if plan.run and user_message is None and _needs_auth(situation, auth_context):
            kept = replace(kept, resumable=_resumable(situation))
            return Plan(kept, continues=plan.continues, ends=StopReason.AUTH_REQUIRED)
        return plan
    if user_message is not None:
        results = [_superseded(situation, c) for c in situation.open_calls]
        return Plan(fresh, (*results, user_message), user_message)
    if state.pending:
        raise CannotContinue(
            "this context is waiting for input: pass inputs={request_id: value}, or say something"
            " else",
            status="waiting",
            action="continue",
        )
    return _continue(situation, fresh, auth_context)


def _still(situation: Situation, answered: Answered) -> Answered:
    """Those of *answered* whose calls are still open."""
    still = {one.call.id for one in situation.open_calls}
    return [(request, value) for request, value in answered if request.tool_call_id in still]


def _resumable(situation: Situation) -> int | None:
    last = situation.last.turn if situation.last is not None else None
    return situation.state.resumable or last


def _answer(
    situation: Situation,
    fresh: ContextState,
    user_message: UserMessage | None,
    answers: Answers,
    superseded: Sequence[PendingRequest],
) -> Plan:
    answered = answers.given
    held = {one.tool_call_id: one for one in situation.state.held}
    denied = {
        request.tool_call_id
        for request, value in answered
        if value is False and Resumed(held.get(request.tool_call_id)).is_ours(request)
    }
    told = {request.tool_call_id for request, _ in answered}
    dropped = {request.tool_call_id for request in superseded}
    # Of what is pending: asked about after whatever had started.
    now = {r.tool_call_id for r in situation.state.pending} - dropped
    prompts: list[Message] = []
    run: list[ToolCall] = []
    for open_call in situation.open_calls:
        call = open_call.call
        if call.id in denied:
            kept = held.get(call.id)
            prompts.append(_result(call, NOT_AGAIN if kept and kept.died else DENIED))
        elif call.id in dropped:
            prompts.append(_superseded(situation, open_call))
        elif open_call.unknown and call.id not in now:
            prompts.append(_result(call, OUTCOME_UNKNOWN))
        elif call.id in told or user_message is None:
            run.append(call)
        else:
            prompts.append(_superseded(situation, open_call))
    if user_message is not None:
        prompts.append(user_message)
    origin = next((c.turn for c in situation.open_calls), None)
    resumed, begun = _resume(situation, fresh, run, answers)
    continues = situation.state.resumable or answered[0][0].turn
    return Plan(begun, prompts, user_message, run, origin, resumed, continues)


def _resume(
    situation: Situation, fresh: ContextState, run: Sequence[ToolCall], answers: Answers
) -> tuple[dict[str, Resumed], ContextState]:
    """What the calls that *run* bring along, and *fresh* with what a crash must not lose of it."""
    held = {one.tool_call_id: one for one in situation.state.held}
    told = {request.tool_call_id for request, _ in answers.given}
    resumed = {
        call.id: Resumed(
            held.get(call.id),
            [(r, value) for r, value in answers.stored if r.tool_call_id == call.id],
            {
                r.request_id: answers.opened[r.request_id]
                for r, _ in answers.given
                if r.tool_call_id == call.id and r.request_id in answers.opened
            },
        )
        for call in run
        if call.id in told or call.id in held
    }
    begun = replace(
        fresh,
        answered=tuple(answer for one in resumed.values() for answer in one.answered),
        held=tuple(one.held for one in resumed.values() if one.held is not None),
    )
    return resumed, begun


def _continue(situation: Situation, fresh: ContextState, auth_context: AuthContext | None) -> Plan:
    resumable = situation.state.resumable
    open_calls = situation.open_calls
    first: Entry | None = None
    if not open_calls and not can_continue(situation.history):
        # As in a turn: steering before follow-ups, each in order of arrival.
        order = sorted(situation.queued, key=lambda e: (e.kind is not EntryKind.STEER, e.number))
        first = next(iter(order), None)
    if first is None and not open_calls and not can_continue(situation.history):
        raise CannotContinue(
            "there is nothing to continue: the last turn was answered; say something instead",
            status="ready",
            action="continue",
        )
    if _needs_auth(situation, auth_context):
        kept = replace(situation.state, error=None, resumable=_resumable(situation))
        return Plan(kept, continues=resumable, ends=StopReason.AUTH_REQUIRED)
    if first is not None:
        message = first.message
        return Plan(fresh, (message,), message, continues=resumable, delivered=(first.number,))
    run = [c.call for c in open_calls if not c.unknown]
    resumed, begun = _resume(situation, fresh, run, Answers(()))
    return Plan(
        begun,
        [_result(c.call, OUTCOME_UNKNOWN) for c in open_calls if c.unknown],
        run=run,
        call_turn=next((c.turn for c in open_calls), None),
        resumed=resumed,
        continues=resumable,
    )


def _needs_auth(situation: Situation, auth_context: AuthContext | None) -> bool:
    """Whether the turn to go on from had credentials, and fresh ones are missing."""
    had_auth = situation.last is not None and situation.last.had_auth
    return had_auth and (auth_context is None or auth_context.expired())


def _superseded(situation: Situation, open_call: OpenCall) -> ToolResultMessage:
    call = open_call.call
    held = next((h for h in situation.state.held if h.tool_call_id == call.id), None)
    if _of(call, situation.state.pending):
        died = held is None or held.died  # what was stored before there were others has none
        return _result(call, SUPERSEDED if died else UNANSWERED)
    return _result(call, _untold(open_call, held))


def _untold(open_call: OpenCall, held: HeldCall | None) -> str:
    """What is known of a call that has no result, and will have none."""
    died = held is not None and held.died
    return OUTCOME_UNKNOWN if open_call.started or died else NOT_STARTED


def _result(call: ToolCall, text: str) -> ToolResultMessage:
    return synthetic_result(call, text, timestamp=now_ms())
