"""
Ends of turns that cannot end themselves: a turn whose process died, and one whose store failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from looopy.agent.state import run_us_after
from looopy.auth.redaction import Redactor
from looopy.errors import LooopyError
from looopy.history.open_calls import unanswered
from looopy.llm.render import NOT_STARTED, OUTCOME_UNKNOWN, synthetic_result
from looopy.loop.approval import bound_to, edit_note, schema_to_edit
from looopy.stores.records import Commit, ContextState, TurnRecord
from looopy.tools.base import Tool
from looopy.tools.call.run import resolve_name
from looopy.types.event import (
    AgentEvent,
    InputRequired,
    MessageEnd,
    ToolExecutionEnd,
    TurnEnd,
    TurnError,
)
from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    Usage,
    now_ms,
)
from looopy.types.state import HeldCall, Outcome, PendingKind, PendingRequest
from looopy.types.storable import repair


@dataclass(frozen=True, slots=True)
class OpenCall:
    """
    A call without a result.

    `turn`: the turn that announced it. `started`: it may have had effects, and did not end with a
    question. `rerun`: it may run again without asking a person.
    """

    call: ToolCall
    turn: int
    started: bool
    rerun: bool = False

    @property
    def unknown(self) -> bool:
        """True if it must not run again, and its effects are unknown."""
        return self.started and not self.rerun


Results: TypeAlias = Sequence[tuple[ToolCall, ToolResultMessage]]


def close_dead_turn(
    turn: int,
    calls: Sequence[OpenCall],
    tools: Mapping[str, Tool],
    state: ContextState | None = None,
    *,
    ask: bool = True,
) -> tuple[Results, ContextState]:
    """
    The results for unanswered calls of a turn whose process died, and the state it leaves.

    Args:
        calls: In the order in which they were announced.
        tools: The current tools; a missing tool counts as `on_resume="fail"`.
        state: The state that the turn began with.
        ask: True if a person can be asked about calls; else they count as `on_resume="fail"`.
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
            waits = [_ask(open_call, turn, tool, kept)]
            kept = _asked_again(kept, open_call, turn, tool)
            own = [(r, v) for r, v in own if r.request_id in kept.keys]
        elif not waits and not rerun:
            text = _untold(open_call, kept)
            results.append((call, _result(call, text)))
            continue
        pending += waits
        answered += own
        held += [] if kept is None else [kept]
    # A turn that only stored an answer, or only waited, has not continued the turn before it.
    waited = state.resumable if state.waits else None
    left = replace(
        state,
        pending=pending,
        answered=answered,
        held=held,
        error=None,
        resumable=waited or turn,
    )
    return results, left


def runs_again(call: ToolCall, tools: Mapping[str, Tool]) -> bool:
    """True if *call*, which may have had effects, may run again without asking a person."""
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


def effective(call: ToolCall, held: HeldCall | None) -> ToolCall:
    """*call* as it would run: with the arguments that a person gave, if one did."""
    if held is None or held.args is None:
        return call
    return replace(call, arguments=dict(held.args), invalid_arguments=None)


def _ask(open_call: OpenCall, turn: int, tool: Tool, held: HeldCall | None) -> PendingRequest:
    call = open_call.call
    return PendingRequest(
        request_id=f"{turn}-{call.id}",
        kind=PendingKind.APPROVAL,
        tool_name=call.name,
        args=effective(call, held).arguments,
        tool_call_id=call.id,
        turn=open_call.turn,
        prompt=(
            f"{call.name} was running when its process ended, and may have had its effect."
            " Run it again?"
        ),
        schema=schema_to_edit(tool, Redactor()),
    )


def _untold(open_call: OpenCall, held: HeldCall | None) -> str:
    """The text for a call that has no result, and will get none."""
    died = held is not None and held.died
    return unknown(held) if open_call.started or died else NOT_STARTED


def unknown(held: HeldCall | None) -> str:
    """The text for a call that may have had its effect; it names arguments that a person gave."""
    if held is None or held.args is None:
        return OUTCOME_UNKNOWN
    return f"{edit_note(held.args)}\n{OUTCOME_UNKNOWN}"


def _result(call: ToolCall, text: str) -> ToolResultMessage:
    return synthetic_result(call, text, timestamp=now_ms())


def failed_end(
    context_id: str,
    turn: int,
    *,
    before: Sequence[Message],
    added: Sequence[Message],
    resumed: Sequence[ToolCall] = (),
    error: LooopyError,
) -> list[AgentEvent]:
    """
    The end of a turn whose store failed: a result for each open call, and the error.

    Args:
        before: The messages stored before the turn, oldest first.
        added: The messages that the turn has stored.
        resumed: Calls of an earlier turn that this one continued; a text may follow them.
    """
    done = {m.tool_call_id for m in added if isinstance(m, ToolResultMessage)}
    calls = {call.id: call for call in resumed if call.id not in done}
    calls |= {call.id: call for call in unanswered([*before, *added])}
    results = [(call, _result(call, OUTCOME_UNKNOWN)) for call in calls.values()]
    return _end(context_id, turn, added, results, error=error)[0]


def dead_end(
    context_id: str,
    turn: TurnRecord,
    epoch: int,
    added: Sequence[Message],
    results: Results,
    left: ContextState,
) -> Commit:
    """
    The commit that ends a turn whose process died.

    Args:
        epoch: The epoch of the claim that took the turn over.
        added: The messages that the turn has stored.
        results, left: From `close_dead_turn`.
    """
    events, end = _end(context_id, turn.turn, added, results, pending=left.pending)
    state = replace(
        left,
        usage=left.usage + end.usage,
        run_us=run_us_after(left, turn.started_at, end.timestamp),
    )
    return Commit(
        context_id=context_id,
        epoch=epoch,
        turn=turn.turn,
        events=events,
        state=state,
        release=True,
    )


def _end(
    context_id: str,
    turn: int,
    added: Sequence[Message],
    results: Results,
    *,
    pending: Sequence[PendingRequest] = (),
    error: LooopyError | None = None,
) -> tuple[list[AgentEvent], TurnEnd]:
    """The last events of a turn: failed with *error*, interrupted without one."""
    common: dict[str, Any] = {"context_id": context_id, "turn": turn}
    events: list[AgentEvent] = []
    for call, result in results:
        events += [
            ToolExecutionEnd(
                **common,
                tool_call_id=call.id,
                tool_name=call.name,
                result=result,
                is_error=True,
            ),
            MessageEnd(**common, message=result),
        ]
    if pending:
        events.append(InputRequired(**common, pending=pending))
    outcome, reason = Outcome.INTERRUPTED, StopReason.INTERRUPTED
    if error is not None:
        outcome, reason = Outcome.FAILED, StopReason.ERROR
        text = repair(error.message)
        events.append(TurnError(**common, code=reason.value, text=text, error=error))
    end = TurnEnd(
        **common,
        outcome=outcome,
        stop_reason=reason,
        messages=(*added, *(result for _, result in results)),
        usage=sum((m.usage for m in added if isinstance(m, AssistantMessage)), Usage()),
    )
    return [*events, end], end
