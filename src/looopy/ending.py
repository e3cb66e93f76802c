"""What a turn came to, and the last events of one whose own loop could not make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from looopy.errors import LooopyError
from looopy.history.open_calls import unanswered
from looopy.llm.render import OUTCOME_UNKNOWN, synthetic_result
from looopy.loop.pending import state_beside
from looopy.loop.progress import Group
from looopy.spending import run_us_after
from looopy.stores.records import ContextState
from looopy.types.event import AgentEvent, MessageEnd, ToolExecutionEnd, TurnEnd, TurnError
from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    Usage,
    now_ms,
)
from looopy.types.state import Outcome
from looopy.types.storable import repair


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
    A result for each call that is open, why the turn failed, and its end.

    Args:
        before: What was stored before the turn, oldest first.
        added: What the turn has stored.
        resumed: Calls of an earlier turn that it went on with; a text may stand behind them.
    """
    common: dict[str, Any] = {"context_id": context_id, "turn": turn}
    events: list[AgentEvent] = []
    results: list[Message] = []
    done = {m.tool_call_id for m in added if isinstance(m, ToolResultMessage)}
    calls = {call.id: call for call in resumed if call.id not in done}
    calls |= {call.id: call for call in unanswered([*before, *added])}
    for call in calls.values():
        result = synthetic_result(call, OUTCOME_UNKNOWN, timestamp=now_ms())
        results.append(result)
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
    code = StopReason.ERROR
    return [
        *events,
        TurnError(**common, code=code.value, text=repair(error.message), error=error),
        TurnEnd(
            **common,
            outcome=Outcome.FAILED,
            stop_reason=code,
            messages=(*added, *results),
            usage=usage_of(added),
        ),
    ]


def state_after(
    end: TurnEnd, group: Group, begun: ContextState, started_at: datetime
) -> ContextState:
    """
    What the next turn has to know, once *group*, which *end* closes, is stored.

    Args:
        begun: What the turn began with, and what its tools have used.
        started_at: When it began.
    """
    sums: dict[str, Any] = {
        "usage": begun.usage + end.usage,
        "charged": begun.charged,
        "run_us": run_us_after(begun, started_at, end.timestamp),
    }
    if group.asked:
        state = ContextState(**sums, output=begun.output, summary=begun.summary)
        state = state_beside(state, group.asked)
        lacks = end.outcome is Outcome.AUTH_REQUIRED and not state.pending
        return replace(state, resumable=end.turn) if lacks else state
    if end.outcome in (Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED):
        return replace(begun, **sums)
    if end.outcome is not Outcome.FAILED:
        return ContextState(**sums, summary=begun.summary)
    event = next((e for e in reversed(group.events) if isinstance(e, TurnError)), None)
    error = event.error if event and event.error else LooopyError("the turn failed")
    done = {m.tool_call_id for m in end.messages if isinstance(m, ToolResultMessage)}
    return ContextState(
        answered=[(r, value) for r, value in begun.answered if r.tool_call_id not in done],
        held=[held for held in begun.held if held.tool_call_id not in done],
        error=(type(error).__name__, event.text if event else error.message),
        resumable=end.turn,
        **sums,
        output=begun.output,
        summary=begun.summary,
    )


def usage_of(messages: Sequence[Message]) -> Usage:
    """What the model calls behind *messages* used."""
    usage = Usage()
    for message in messages:
        if isinstance(message, AssistantMessage):
            usage += message.usage
    return usage
