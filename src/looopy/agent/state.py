"""
The state of a context between turns: the result of a turn, and the snapshot that callers see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, cast

from looopy import errors
from looopy.errors import LooopyError
from looopy.loop.guards import Spent
from looopy.loop.outgoing import Group
from looopy.loop.progress import Asked
from looopy.stores.bundle import Stores
from looopy.stores.records import ContextRecord, ContextState
from looopy.types.config import Budget
from looopy.types.event import InputRequired, TurnEnd, TurnError
from looopy.types.message import ToolResultMessage
from looopy.types.state import AgentState, AgentStatus, Outcome


def state_after(
    group: Group, begun: ContextState, started_at: datetime, *, sent: str | None = None
) -> ContextState:
    """
    The state for the next turn, once *group*, the last one of its turn, is stored.

    Args:
        begun: The state that the turn began with, with the usage of its tools.
        started_at: The time when it began.
        sent: The beginning of its last request.
    """
    end = cast("TurnEnd", group.events[-1])
    sums: dict[str, Any] = {
        "usage": begun.usage + end.usage,
        "charged": begun.charged,
        "run_us": run_us_after(begun, started_at, end.timestamp),
        "sent": sent,
        "trace": begun.trace,
    }
    if group.asked:
        state = ContextState(**sums, output=begun.output, summary=begun.summary)
        state = state_beside(state, group.asked)
        lacks = end.outcome is Outcome.AUTH_REQUIRED and not state.pending
        return replace(state, resumable=end.turn, needs_auth=True) if lacks else state
    waits = end.outcome in (Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED)
    if waits and (begun.pending or begun.resumable is not None):
        return replace(begun, **sums)
    if end.outcome is not Outcome.FAILED and not waits:
        return ContextState(**sums, summary=begun.summary)
    done = {m.tool_call_id for m in end.messages if isinstance(m, ToolResultMessage)}
    return ContextState(
        answered=[(r, value) for r, value in begun.answered if r.tool_call_id not in done],
        held=[held for held in begun.held if held.tool_call_id not in done],
        error=None if waits else _error_in(group),
        waits_for=_budget_in(group) if waits else None,
        resumable=end.turn,
        needs_auth=end.outcome is Outcome.AUTH_REQUIRED,
        concluding=begun.concluding,
        **sums,
        output=begun.output,
        summary=begun.summary,
    )


def _error_in(group: Group) -> tuple[str, str]:
    """The class and the text of the error that ended a turn."""
    event = next((e for e in reversed(group.events) if isinstance(e, TurnError)), None)
    error = event.error if event and event.error else LooopyError("the turn failed")
    return type(error).__name__, event.text if event else error.message


def _budget_in(group: Group) -> str | None:
    """The reason why the turn waits, if it has no request."""
    asked = (e for e in reversed(group.events) if isinstance(e, InputRequired))
    return next((e.reason for e in asked if e.reason), None)


def state_beside(begun: ContextState, asked: Sequence[Asked]) -> ContextState:
    """*begun* with the calls that a turn leaves open, so that a crash does not lose them."""
    new = {one.call.id for one in asked}
    return replace(
        begun,
        pending=tuple(request for one in asked for request in one.pending),
        answered=(
            *(answer for answer in begun.answered if answer[0].tool_call_id not in new),
            *(answer for one in asked for answer in one.answered),
        ),
        held=(
            *(held for held in begun.held if held.tool_call_id not in new),
            *(one.held for one in asked),
        ),
    )


def snapshot(status: AgentStatus, record: ContextRecord | None) -> AgentState:
    """The public state of an agent with *status*; *record* is `None` while there is no context."""
    if record is None:
        return AgentState(status=status)
    error = record.state.error
    return AgentState(
        status=status,
        turn_count=record.turn_count,
        created_at=record.created_at,
        last_activity=record.last_activity,
        error=None if error is None else error_of(*error),
        # While a turn runs, its requests can be answered only once it has ended.
        pending=tuple(record.state.pending) if record.open_turn is None else (),
        interrupted_turn=record.state.resumable if error is None else None,
        waits_for=record.state.waits_for,
        needs_auth=record.state.needs_auth,
        left_as=record.state.left_as,
        usage=record.state.usage,
        metadata=MappingProxyType(dict(record.metadata)),
        tags=tuple(record.tags),
    )


def error_of(name: str, text: str) -> LooopyError:
    """The error for a stored class name and sentence."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, LooopyError):
        return kind(text)
    return LooopyError(text)


_PAGE = 100
_US = timedelta(microseconds=1)


def spent_before(state: ContextState) -> Spent:
    """The use before a turn that begins with *state*, tools' own model calls included."""
    return Spent(state.usage + state.charged, (state.run_us or 0) / 1e6)


def run_us_after(state: ContextState, started_at: datetime, ended_at: datetime) -> int | None:
    """*state*'s sum of time, plus one more turn; `None` if it is not counted."""
    return None if state.run_us is None else state.run_us + (ended_at - started_at) // _US


async def counted(
    stores: Stores, context_id: str, turn: int, state: ContextState, budget: Budget
) -> ContextState:
    """
    *state* with the time that turns before *turn* have run.

    If it was never counted, as by a version without the sum, a budget for time makes looopy read
    all turns once. From then on the sum is kept.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    if state.run_us is not None or (turn > 1 and budget.context_s is None):
        return state
    run_us, after = 0, 0
    while after < turn - 1:
        turns = await stores.journal.turns(context_id, after=after, limit=_PAGE)
        if not turns:
            break
        over = [(one.ended_at, one.started_at) for one in turns if one.ended_at is not None]
        run_us += sum((end - start) // _US for end, start in over)
        after = turns[-1].turn
    return replace(state, run_us=run_us)
