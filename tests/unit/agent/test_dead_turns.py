"""What a turn leaves for the next one, and the end of one that could not make its own."""

from __future__ import annotations

import pytest

from looopy.agent.dead_turns import failed_end
from looopy.agent.state import state_after
from looopy.errors import LooopyError
from looopy.loop.outgoing import Group
from looopy.stores.records import ContextState
from looopy.testing.contracts.turns import answer, result
from looopy.types.event import ToolExecutionEnd, TurnEnd, TurnError
from looopy.types.message import StopReason, ToolCall, Usage
from looopy.types.state import Outcome, PendingKind, PendingRequest

ONE, TWO = ToolCall("c1", "act"), ToolCall("c2", "act")
USED = Usage(input=7, output=3, total_tokens=10)


def asked(call):
    """What a person was asked of *call*."""
    return PendingRequest(
        request_id=f"ask-{call.id}",
        kind=PendingKind.APPROVAL,
        tool_call_id=call.id,
        tool_name=call.name,
        args={},
        turn=1,
    )


def ended(outcome, *messages, error=None):
    """The end of a turn as its group has it."""
    common = {"context_id": "ada", "turn": 2}
    stop = StopReason.ERROR if outcome is Outcome.FAILED else StopReason.STOP
    end = TurnEnd(**common, outcome=outcome, stop_reason=stop, messages=messages, usage=USED)
    if error is None:
        return Group([end])
    return Group([TurnError(**common, code="error", text=str(error), error=error), end])


def test_an_answer_whose_call_did_not_run_outlives_a_failure():
    """The person is not asked again; what had its result is over."""
    begun = ContextState(answered=[(asked(ONE), True), (asked(TWO), False)], usage=USED)
    group = ended(Outcome.FAILED, result(ONE, "done"), error=LooopyError("broke"))
    state = state_after(group, begun, group.events[-1].timestamp)
    assert state.answered == [(asked(TWO), False)]
    assert state.error == ("LooopyError", "broke")
    assert state.resumable == 2
    assert state.usage == USED + USED


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.CANCELLED])
def test_an_end_without_a_failure_adds_only_its_usage(outcome):
    """There is nothing to go on with."""
    begun = ContextState(answered=[(asked(ONE), True)], summary=4, usage=USED)
    group = ended(outcome)
    state = state_after(group, begun, group.events[-1].timestamp)
    assert state == ContextState(usage=USED + USED, summary=4)


def test_a_turn_whose_store_failed_reports_what_its_calls_used():
    """Each stored answer is counted, and each call that is open has a result."""
    added = [answer("a", ONE), result(ONE, "done"), answer("b", TWO)]
    used = sum((m.usage for m in added if hasattr(m, "usage")), Usage())
    assert used.total_tokens > 0
    events = failed_end("ada", 2, before=[], added=added, error=LooopyError("broke"))
    assert [e.tool_call_id for e in events if isinstance(e, ToolExecutionEnd)] == ["c2"]
    end = events[-1]
    assert isinstance(end, TurnEnd)
    assert end.usage == used
    assert list(end.messages[:3]) == added
