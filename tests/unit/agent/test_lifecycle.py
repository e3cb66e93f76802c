"""The table of statuses: complete, and the same as the one in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from looopy.agent.lifecycle import TRANSITIONS, after
from looopy.errors import AgentNotStarted, AgentStateError
from looopy.types.state import AgentStatus

PAGE = Path(__file__).parents[3] / "docs" / "lifecycle.md"
CALLS = ["start", "pause", "resume", "shutdown", "execute_turn", "clear"]
S = AgentStatus


def test_the_page_shows_the_same_table():
    """Row for row."""
    rows = re.findall(r"^\| `(\w+)` \| `([\w ]+)` \| `(\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert {(S(a), action): S(b) for a, action, b in rows} == TRANSITIONS
    assert len(rows) == len(TRANSITIONS)


def test_the_drawing_shows_the_same_changes():
    """Every arrow is a row, every row that changes the status an arrow."""
    arrows = re.findall(r"^    (\w+) --> (\w+): ([\w ]+)$", PAGE.read_text(), re.MULTILINE)
    drawn = {(S(a), action): S(b) for a, b, action in arrows}
    assert drawn == {k: v for k, v in TRANSITIONS.items() if k[0] is not v}


def test_every_status_can_be_reached_and_left():
    """No dead end, and none that nobody comes to."""
    assert set(TRANSITIONS.values()) == set(S)
    assert {status for status, _ in TRANSITIONS} == set(S)
    reached = {S.CREATED}
    while True:
        more = {b for (a, _), b in TRANSITIONS.items() if a in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(S)


@pytest.mark.parametrize("status", list(S))
@pytest.mark.parametrize("action", CALLS)
def test_a_transition_outside_the_table_is_refused(status, action):
    """Not started, or not now; the error carries both facts and says what to do."""
    if (status, action) in TRANSITIONS:
        assert after(status, action) is TRANSITIONS[status, action]
        return
    with pytest.raises(AgentStateError) as caught:
        after(status, action)
    assert (caught.value.status, caught.value.action) == (status.value, action)
    not_started = status in (S.CREATED, S.STARTING, S.SHUTDOWN)
    assert isinstance(caught.value, AgentNotStarted) == not_started
    assert "first" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        (S.CREATED, {"start", "shutdown"}),
        (S.STARTING, set()),
        (S.READY, set(CALLS)),
        (S.BUSY, set(CALLS)),
        (S.WAITING, set(CALLS)),
        (S.FAILED, set(CALLS)),
        (S.PAUSED, {"start", "resume", "pause", "shutdown", "clear"}),
        (S.SHUTDOWN, {"start", "shutdown"}),
    ],
)
def test_each_status_allows_these_calls(status, allowed):
    """Written out, so that a change of the table is a decision."""
    assert {action for s, action in TRANSITIONS if s is status and action in CALLS} == allowed
