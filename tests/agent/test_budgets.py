"""Budgets of a context: what its turns may use together, whichever agents run them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.agent.kit import assert_whole, collect

from looopy import Budget, LoopConfig
from looopy.errors import ConfigurationError, LimitExceeded
from looopy.testing import ScriptedProvider, text
from looopy.types.message import Cost, StopReason, Usage
from looopy.types.state import AgentStatus, Outcome

TEN = Usage(input=4, output=6, total_tokens=10, cost=Cost(total=0.1))


class Priced(ScriptedProvider):
    """Each answer costs the same."""

    async def stream(self, request, options=None):
        """As scripted, with a bill."""
        async for event in super().stream(request, options):
            done = event.type == "done"
            yield replace(event, message=replace(event.message, usage=TEN)) if done else event


@pytest.mark.parametrize(
    ("budget", "calls"),
    [
        ({"context_tokens": 21}, 3),
        ({"context_cost_usd": 0.11}, 2),
        ({"context_s": 0.0}, 0),
    ],
)
async def test_a_budget_of_the_context_outlives_its_agents(make_agent, stores, budget, calls):
    """What earlier turns used counts in any agent; the turn that may not begin says why."""
    provider = Priced([text("hi")], repeat=True)
    limits = LoopConfig(budget=Budget(**budget))
    for _ in range(calls):
        agent = await make_agent(provider, stores=stores, loop_config=limits)
        assert (await agent.execute_turn("go")).outcome is Outcome.COMPLETED
    agent = await make_agent(provider, stores=stores, loop_config=limits)
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert (result.outcome, result.stop_reason) == (Outcome.FAILED, StopReason.BUDGET)
    assert isinstance(result.error, LimitExceeded)
    assert f"Budget.{next(iter(budget))}" in result.error.message
    assert [e.code for e in events if e.type in ("warning", "error")] == ["budget", "budget"]
    assert len(provider.requests) == calls
    assert agent.state.status is AgentStatus.FAILED
    more = await make_agent(Priced([text("more")]), stores=stores)
    assert (await more.execute_turn("and now?")).text == "more"
    await assert_whole(stores)


async def test_seconds_are_those_of_all_turns(make_agent, stores):
    """Read from the turns themselves, however many pages they fill."""
    agent = await make_agent(ScriptedProvider([text("hi")], repeat=True), stores=stores)
    for _ in range(120):
        await agent.execute_turn("go")
    turns = [t for after in (0, 100) for t in await stores.journal.turns("ada", after=after)]
    spent = sum((t.ended_at - t.started_at).total_seconds() for t in turns)
    assert len(turns) == 120
    for seconds, outcome in ((spent, Outcome.FAILED), (spent + 3600, Outcome.COMPLETED)):
        limited = await make_agent(
            ScriptedProvider([text("hi")], repeat=True),
            stores=stores,
            loop_config=LoopConfig(budget=Budget(context_s=seconds)),
        )
        assert (await limited.execute_turn("go")).outcome is outcome


def test_a_budget_that_limits_nothing_is_refused():
    """Each of its numbers."""
    for name in ("context_tokens", "context_cost_usd", "context_s"):
        with pytest.raises(ConfigurationError, match=name):
            Budget(**{name: -1})
