"""What an agent says of itself, made from what is stored."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from looopy.agent.state import snapshot
from looopy.stores.records import ContextRecord, ContextState, TurnRecord
from looopy.types.state import AgentStatus, PendingKind, PendingRequest

ASKED = PendingRequest(
    request_id="r1",
    kind=PendingKind.INPUT,
    tool_name="ask",
    args={},
    tool_call_id="c1",
    turn=1,
    prompt="Which?",
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stored(**given):
    """A context that waits for an answer."""
    return ContextRecord(
        context_id="ada",
        epoch=1,
        turn_count=1,
        last_position=2,
        last_seq=4,
        created_at=NOW,
        last_activity=NOW,
        state=ContextState(pending=[ASKED]),
        **given,
    )


def test_pending_requests_are_shown_between_turns():
    """It can be answered now."""
    assert snapshot(AgentStatus.WAITING, stored()).pending == (ASKED,)


def test_no_request_is_pending_while_a_turn_runs():
    """Also what an earlier turn had asked: the one that runs may have the answer."""
    turn = TurnRecord(turn=2, start_seq=5, first_position=3, last_position=2, started_at=NOW)
    assert snapshot(AgentStatus.BUSY, stored(open_turn=turn)).pending == ()


@pytest.mark.parametrize("status", list(AgentStatus))
def test_a_missing_context_has_only_a_status(status):
    """Nothing was stored yet."""
    state = snapshot(status, None)
    assert (state.status, state.turn_count, state.pending) == (status, 0, ())
