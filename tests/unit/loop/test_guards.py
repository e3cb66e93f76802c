"""The limits of a turn: counted at the limit, below it and above it."""

from __future__ import annotations

import pytest

from looopy.loop.guards import Guards, Spent
from looopy.types.config import Budget, LoopConfig
from looopy.types.message import Cost, StopReason, ToolCall, Usage


def call(name="look", **arguments):
    """A call of the model's."""
    return ToolCall(id="c", name=name, arguments=arguments)


def verdicts(guards, calls):
    """Which of *calls* were objected to, by index."""
    return [i for i, one in enumerate(calls) if guards.before_tool_call(one) is not None]


def test_so_many_model_calls_are_allowed():
    """The limit itself is allowed, one more is not."""
    guards = Guards(LoopConfig(max_iterations=2))
    assert guards.before_model_call() is None
    assert guards.before_model_call() is None
    verdict = guards.before_model_call()
    assert (verdict.reason, verdict.ends) == (StopReason.MAX_ITERATIONS, True)
    assert "max_iterations" in verdict.text


@pytest.mark.parametrize(
    ("budget", "usage", "stops"),
    [
        (Budget(tokens=10), Usage(total_tokens=9), False),
        (Budget(tokens=10), Usage(total_tokens=10), True),
        (Budget(tokens=10), Usage(input=3, output=4, cache_read=1, cache_write=1), False),
        (Budget(tokens=10), Usage(input=3, output=4, cache_read=1, cache_write=2), True),
        (Budget(cost_usd=1.0), Usage(cost=Cost(total=0.99)), False),
        (Budget(cost_usd=1.0), Usage(cost=Cost(total=1.0)), True),
        (Budget(), Usage(total_tokens=10**9, cost=Cost(total=1e9)), False),
        (Budget(tokens=0), Usage(), True),
    ],
)
def test_a_budget_is_used_up_when_it_is_reached(budget, usage, stops):
    """Tokens and dollars, each on its own; none is no limit."""
    guards = Guards(LoopConfig(budget=budget))
    guards.usage = usage
    verdict = guards.before_model_call()
    assert (verdict is not None) == stops
    if stops:
        assert (verdict.reason, verdict.ends) == (StopReason.BUDGET, True)
        assert guards.iterations == 0


@pytest.mark.parametrize(
    ("budget", "earlier", "now", "stops"),
    [
        (Budget(context_tokens=10), 4, 5, False),
        (Budget(context_tokens=10), 4, 6, True),
        (Budget(context_tokens=10), 10, 0, True),
        (Budget(context_cost_usd=10), 4, 5, False),
        (Budget(context_cost_usd=10), 4, 6, True),
        (Budget(context_s=10), 4, 5, False),
        (Budget(context_s=10), 4, 6, True),
        (Budget(tokens=10, cost_usd=10), 100, 9, False),
    ],
)
def test_a_budget_of_the_context_counts_earlier_turns(budget, earlier, now, stops):
    """Tokens, dollars and seconds together with this turn's; a turn's own budget counts that."""
    times = iter([100.0, 100.0 + now])
    spent = Spent(Usage(total_tokens=earlier, cost=Cost(total=earlier)), earlier)
    guards = Guards(LoopConfig(budget=budget), spent, lambda: next(times))
    guards.usage = Usage(total_tokens=now, cost=Cost(total=now))
    verdict = guards.before_model_call()
    assert (verdict is not None) == stops
    if stops:
        [name] = [
            n for n in ("context_tokens", "context_cost_usd", "context_s") if n in verdict.text
        ]
        assert getattr(budget, name) is not None


def test_names_of_one_tool_are_one_in_a_loop():
    """However the model writes it."""
    guards = Guards(LoopConfig())
    assert verdicts(guards, [call("look"), call("LOOK"), call(" look")]) == [2]


@pytest.mark.parametrize(("size", "stops"), [(0, False), (3, False), (4, True)])
def test_one_answer_asks_for_so_many_calls(size, stops):
    """At the limit all run, beyond it none."""
    verdict = Guards(LoopConfig(max_tool_calls_per_iteration=3)).on_batch(size)
    assert (verdict is not None) == stops
    if stops:
        assert (verdict.reason, verdict.ends) == (StopReason.MAX_TOOL_CALLS, True)


def test_a_turn_runs_so_many_tools():
    """Over all iterations."""
    guards = Guards(LoopConfig(max_tool_calls=3))
    assert verdicts(guards, [call(n=n) for n in range(5)]) == [3, 4]


def test_failures_count_in_a_row():
    """A success in between sets the count back."""
    guards = Guards(LoopConfig(max_tool_failures=2))
    ends = [
        guards.after_tool_call(call(), is_error=e) for e in (True, False, True, False, True, True)
    ]
    assert [e is not None for e in ends] == [False] * 5 + [True]
    assert ends[-1].reason is StopReason.MAX_TOOL_FAILURES


def test_the_third_identical_call_is_a_doom_loop():
    """Whatever the order of its arguments; said once, not at each further call."""
    guards = Guards(LoopConfig())
    same = [call(a=1, b=2), call(b=2, a=1)] * 3
    assert verdicts(guards, same) == [2]


def test_a_doom_loop_stops_the_turn_if_configured():
    """Each call that would go on is objected to."""
    guards = Guards(LoopConfig(on_doom_loop="stop", doom_loop_threshold=2))
    assert guards.before_tool_call(call()) is None
    verdict = guards.before_tool_call(call())
    assert (verdict.reason, verdict.ends) == (StopReason.DOOM_LOOP, True)
    assert "look" in verdict.text


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_short_cycle_is_a_doom_loop_too(length):
    """A few calls in turn, three times over."""
    guards = Guards(LoopConfig())
    cycle = [call(n=n) for n in range(length)] * 4
    assert verdicts(guards, cycle) == [length * 3 - 1]


def test_other_arguments_or_another_tool_are_no_loop():
    """Work that goes on is left alone."""
    guards = Guards(LoopConfig())
    calls = [call(n=n) for n in range(6)] + [call(f"tool{n}") for n in range(6)]
    assert verdicts(guards, calls) == []
    assert verdicts(Guards(LoopConfig()), [call(), call(), call(n=1), call(), call()]) == []


def test_a_new_loop_gets_its_own_warning():
    """A warning belongs to its circle."""
    guards = Guards(LoopConfig())
    calls = [call()] * 4 + [call(n=1), call(n=2)] + [call()] * 3
    assert verdicts(guards, calls) == [2, 8]


def test_arguments_that_are_no_json_count_as_they_are():
    """The raw text is compared."""
    guards = Guards(LoopConfig())
    raw = ToolCall(id="c", name="look", arguments={}, invalid_arguments="{oops")
    assert verdicts(guards, [raw, call(), raw, raw, raw]) == [4]
