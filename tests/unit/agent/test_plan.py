"""What a dead turn needs, decided case by case without a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from looopy import AuthContext, tool
from looopy.agent.dead_turns import OpenCall, close_dead_turn
from looopy.agent.plan import DENIED, SUPERSEDED, Situation, plan_turn
from looopy.agent.request import TurnRequest
from looopy.errors import CannotContinue, InputNotFound, ValueRefused
from looopy.llm.render import NOT_STARTED, OUTCOME_UNKNOWN
from looopy.stores.records import ContextState, TurnRecord
from looopy.testing.contracts.turns import answer, user
from looopy.types.message import StopReason, ToolCall, Usage
from looopy.types.state import PendingKind, PendingRequest


def make(name, **options):
    """A tool of that name."""

    @tool(name=name, **options)
    def run() -> str:
        """Run."""
        return ""

    return run


TOOLS = {
    t.name: t
    for t in (
        make("rerun", effects="none"),
        make("ask", on_resume="ask"),
        make("fail"),
    )
}
USED = Usage(total_tokens=10)


def opened(name, *, started=True, turn=1):
    """A call that is open."""
    return OpenCall(ToolCall(id=f"id-{name}", name=name, arguments={}), turn, started)


def test_a_call_that_nobody_can_be_asked_about_is_answered():
    """Those that had not started, or may run again, stay open all the same."""
    calls = [opened("ask"), opened("ask", started=False), opened("rerun")]
    results, left = close_dead_turn(1, calls, TOOLS, ask=False)
    assert [(call.name, m.text) for call, m in results] == [("ask", OUTCOME_UNKNOWN)]
    assert left.pending == []


@pytest.mark.parametrize(
    ("name", "started", "answer_", "asks"),
    [
        ("rerun", True, None, False),
        ("rerun", False, None, False),
        ("ask", True, None, True),
        ("ask", False, None, False),
        ("fail", True, OUTCOME_UNKNOWN, False),
        ("fail", False, None, False),
        ("gone", True, OUTCOME_UNKNOWN, False),
        ("gone", False, NOT_STARTED, False),
    ],
)
def test_a_dead_turn_is_closed_as_its_tools_say(name, started, answer_, asks):
    """Answered, left open, or left open behind an approval."""
    results, left = close_dead_turn(3, [opened(name, started=started)], TOOLS)
    assert [r.text for _, r in results] == ([] if answer_ is None else [answer_])
    assert [p.tool_name for p in left.pending] == ([name] if asks else [])


def test_approvals_of_two_deaths_have_two_ids():
    """An approval is used once: the next one for the same call is another."""
    (first,), (second,) = (close_dead_turn(n, [opened("ask")], TOOLS)[1].pending for n in (3, 4))
    assert first.request_id != second.request_id
    assert first.tool_call_id == second.tool_call_id
    assert first.turn == second.turn == 1


def request(name, **options):
    """A pending approval."""
    return PendingRequest(
        request_id=f"r-{name}",
        kind=PendingKind.APPROVAL,
        tool_name=name,
        args={},
        tool_call_id=f"id-{name}",
        turn=1,
        **options,
    )


def waiting(*names, **options):
    """A situation in which these calls wait for approval."""
    state = ContextState(
        pending=tuple(request(n) for n in names), resumable=1, usage=USED, **options
    )
    calls = [opened(n, started=False) for n in names]  # since they were asked about
    history = [user("go"), answer("", *(c.call for c in calls))]
    return Situation(state, history, calls)


def test_text_on_an_idle_context_is_just_said():
    """Nothing is continued; usage is kept, a failure forgotten."""
    state = ContextState(error=("LLMError", "no"), resumable=4, usage=USED)
    said = user("hello")
    plan = plan_turn(Situation(state, [user("x"), answer("y")]), said, None)
    assert plan.prompts == (said,)
    assert plan.state == ContextState(usage=USED)
    assert (plan.continues, plan.ends, list(plan.run)) == (None, None, [])


def test_each_kind_of_answer_has_its_effect():
    """Approved runs, denied is answered, superseded by text is answered."""
    situation = waiting("a", "b")
    inputs = {"r-a": True, "r-b": False}
    plan = plan_turn(situation, None, inputs)
    assert [c.name for c in plan.run] == ["a"]
    assert [m.text for m in plan.prompts] == [DENIED]
    assert (plan.continues, plan.call_turn) == (1, 1)
    said = user("x")
    plan = plan_turn(situation, said, {"r-a": True})
    assert [m.text for m in plan.prompts] == [SUPERSEDED, "x"]
    assert [c.name for c in plan.run] == ["a"]
    plan = plan_turn(situation, said, None)
    assert [m.text for m in plan.prompts] == [SUPERSEDED, SUPERSEDED, "x"]
    assert list(plan.run) == []


def test_a_part_of_the_answers_is_kept_for_the_rest():
    """The turn ends at once, and what was answered is in the state."""
    plan = plan_turn(waiting("a", "b"), None, {"r-a": True})
    assert plan.ends is StopReason.INPUT_REQUIRED
    assert [p.request_id for p in plan.state.pending] == ["r-b"]
    assert [(p.request_id, v) for p, v in plan.state.answered] == [("r-a", True)]
    assert plan.state.resumable == 1
    rest = Situation(plan.state, waiting("a", "b").history, waiting("a", "b").open_calls)
    last = plan_turn(rest, None, {"r-b": True})
    assert [c.name for c in last.run] == ["a", "b"]


@pytest.mark.parametrize("inputs", [{"r-x": True}, {"r-a": True, "r-x": True}])
def test_an_unknown_answer_refuses_all(inputs):
    """`InputNotFound` names it."""
    with pytest.raises(InputNotFound) as caught:
        plan_turn(waiting("a"), None, inputs)
    assert caught.value.request_id == "r-x"


def test_an_expired_request_is_not_there():
    """As if nobody had asked."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    state = ContextState(pending=(request("a", expires_at=past),))
    with pytest.raises(InputNotFound):
        plan_turn(Situation(state, []), None, {"r-a": True})
    later = datetime.now(UTC) + timedelta(hours=1)
    state = ContextState(pending=(request("a", expires_at=later),))
    assert plan_turn(Situation(state, []), None, {"r-a": True}).ends is None


@pytest.mark.parametrize("value", ["yes", 1, 0, None, [], {}])
def test_an_approval_is_yes_or_no(value):
    """Nothing that merely looks like it."""
    with pytest.raises(ValueRefused) as caught:
        plan_turn(waiting("a"), None, {"r-a": value})
    assert caught.value.path == "/inputs/r-a"


def test_without_text_or_answers_there_must_be_something_open():
    """A waiting context needs its answers, an answered one needs a question."""
    for situation in (
        waiting("a"),
        Situation(ContextState(), []),
        Situation(ContextState(), [user("x"), answer("y")]),
    ):
        for inputs in (None, {}):
            with pytest.raises(CannotContinue):
                plan_turn(situation, None, inputs)


def record(*, had_auth):
    """The turn to go on from."""
    now = datetime.now(UTC)
    return TurnRecord(
        turn=1,
        had_auth=had_auth,
        start_seq=1,
        first_position=1,
        last_position=1,
        started_at=now,
    )


PAST = datetime.now(UTC) - timedelta(seconds=1)


@pytest.mark.parametrize(
    ("had_auth", "auth", "ends"),
    [
        (False, None, None),
        (True, None, StopReason.AUTH_REQUIRED),
        (True, AuthContext("u1", expires_at=PAST), StopReason.AUTH_REQUIRED),
        (True, AuthContext("u1"), None),
    ],
)
def test_what_had_credentials_needs_fresh_ones(had_auth, auth, ends):
    """For open calls, for an unanswered question, and for an approval."""
    turn = TurnRequest(
        user_message=None, inputs={}, auth_context=auth, metadata={}, on_busy="reject"
    )
    last = record(had_auth=had_auth)
    question = Situation(ContextState(resumable=1), [user("x")], (), last)
    calls = [opened("rerun")]
    called = Situation(ContextState(resumable=1), [user("x")], calls, last)
    approved = Situation(waiting("a").state, waiting("a").history, waiting("a").open_calls, last)
    for situation, inputs in ((question, None), (called, None), (approved, {"r-a": True})):
        plan = plan_turn(situation, None, inputs, has_auth=turn.has_auth)
        assert plan.ends is ends
        assert plan.continues == 1
        if ends is not None:
            assert list(plan.run) == []
            assert list(plan.prompts) == []
            assert plan.state.resumable == 1


@pytest.mark.parametrize("approved_before", [False, True])
@pytest.mark.parametrize("rerun", [False, True])
def test_a_call_that_may_have_had_its_effect_runs_only_as_its_tool_says(approved_before, rerun):
    """However it came to be open: it is answered as of unknown outcome, and nobody runs it."""
    one = OpenCall(ToolCall(id="id-a", name="a", arguments={}), 1, started=True, rerun=rerun)
    answered = ((request("a"), True),) if approved_before else ()
    state = ContextState(answered=answered, resumable=1)
    history = [user("go"), answer("", one.call)]
    plan = plan_turn(Situation(state, history, [one]), None, None)
    assert [c.id for c in plan.run] == (["id-a"] if rerun else [])
    assert [m.text for m in plan.prompts] == ([] if rerun else [OUTCOME_UNKNOWN])


def test_a_call_that_is_approved_after_its_death_runs():
    """The answer is to a question that was asked later than it had started."""
    state = ContextState(pending=(request("a"),), resumable=1)
    one = opened("a")
    plan = plan_turn(
        Situation(state, [user("x"), answer("", one.call)], [one]), None, {"r-a": True}
    )
    assert [c.id for c in plan.run] == ["id-a"]
