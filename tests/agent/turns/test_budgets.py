"""Budgets of a context: what its turns may use together, whichever agents run them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.agent.kit import add, assert_whole, collect

from looopy import Budget, LoopConfig, ToolContext, tool
from looopy.errors import ConfigurationError, LimitExceeded
from looopy.llm import FallbackProvider
from looopy.testing import ScriptedProvider, SpyStores, text, tool_call
from looopy.testing.contracts.turns import begin, commit, ends
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


async def test_charges_of_tools_count_for_the_context(make_agent, stores):
    """Also in the turns after the one that charged it, whichever agent runs them."""

    @tool
    async def research(context: ToolContext) -> str:
        """Call a model."""
        context.charge(TEN)
        return "found"

    budget = LoopConfig(budget=Budget(context_tokens=25))
    first, second = [tool_call("research"), text("ok")], [text("never")]
    for script, outcome in ((first, Outcome.COMPLETED), (second, Outcome.FAILED)):
        agent = await make_agent(
            Priced(script), tools=[research], stores=stores, loop_config=budget
        )
        assert (await agent.execute_turn("go")).outcome is outcome
    record = await stores.state.load("ada")
    assert (record.state.usage.total_tokens, record.state.charged.total_tokens) == (20, 10)


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


async def test_no_turn_reads_those_before_it(make_agent, stores):
    """The time is a sum in the state; where an older version kept none, it is counted once."""
    spy = SpyStores(stores)
    limits = LoopConfig(budget=Budget(context_s=3600))
    agent = await make_agent(
        ScriptedProvider([text("hi")], repeat=True), stores=spy.stores, loop_config=limits
    )
    for _ in range(3):
        await agent.execute_turn("go")
    assert spy.of("turns") == []
    record = await stores.state.load("ada")
    claimed = await begin(stores, record.epoch, text="by an older version")
    old = replace(record.state, run_us=None)
    await commit(stores, claimed, [ends()], state=old, release=True)
    again = await make_agent(
        ScriptedProvider([text("hi")], repeat=True), stores=spy.stores, loop_config=limits
    )
    for _ in range(3):
        await again.execute_turn("go")
    assert len(spy.of("turns")) == 1
    turns = await stores.journal.turns("ada")
    ran = sum((one.ended_at - one.started_at for one in turns), timedelta())
    assert len(turns) == 7
    assert (await stores.state.load("ada")).state.run_us == ran // timedelta(microseconds=1)


def test_a_budget_without_a_limit_is_refused():
    """Each of its numbers."""
    for name in ("context_tokens", "context_cost_usd", "context_s"):
        with pytest.raises(ConfigurationError, match=name):
            Budget(**{name: -1})


class Changing(ScriptedProvider):
    """Each answer has the next of these costs."""

    def __init__(self, *costs, replies=None):
        super().__init__(replies or [text("hi")], repeat=True)
        self.costs = list(costs)
        self.tokens = 10

    async def stream(self, request, options=None):
        """As scripted, with a bill or without."""
        async for event in super().stream(request, options):
            if event.type == "done":
                usage = Usage(input=4, output=6, total_tokens=self.tokens, cost=self.costs.pop(0))
                yield replace(event, message=replace(event.message, usage=usage))
            else:
                yield event


@pytest.mark.parametrize("name", ["cost_usd", "context_cost_usd"])
async def test_a_call_without_a_known_price_is_the_last_of_its_turn(make_agent, stores, name):
    """A provider that did not say so before cannot go on unpaid for; a warning says why."""
    script = [tool_call("add", a=1, b=2)]
    provider = Changing(Cost(total=0.1), None, Cost(total=0.1), replies=script)
    limits = LoopConfig(budget=Budget(**{name: 5.0}))
    agent = await make_agent(provider, tools=[add], stores=stores, loop_config=limits)
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert (result.outcome, result.stop_reason) == (Outcome.FAILED, StopReason.BUDGET)
    assert f"Budget.{name}" in result.error.message
    assert "unknown_cost" in result.error.message
    assert [e.code for e in events if e.type == "warning"] == ["cost_unknown", "budget"]
    assert len(provider.requests) == 2


@pytest.mark.parametrize(
    "absurd",
    [
        *({"total": one} for one in (float("nan"), float("inf"), -5.0, 1e308)),
        *({"total": one} for one in (10**400, "much", None)),
        {"total": 0.1, "cache_read": -1.0},
    ],
    ids=["nan", "infinite", "negative", "huge", "beyond", "text", "none", "a part"],
)
async def test_an_absurd_cost_is_unknown_and_passes_no_budget(make_agent, stores, absurd):
    """A provider's nonsense is neither zero nor a refund; a warning names its place."""
    provider = Changing(Cost(**absurd), replies=[tool_call("add", a=1, b=2)])
    limits = LoopConfig(budget=Budget(context_cost_usd=5.0))
    agent = await make_agent(provider, tools=[add], stores=stores, loop_config=limits)
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert (result.stop_reason, len(provider.requests)) == (StopReason.BUDGET, 1)
    assert result.usage.cost is None
    assert (await stores.state.load("ada")).state.usage.cost is None
    place = "/usage/cost/cache_read" if "cache_read" in absurd else "/usage/cost/total"
    assert any(place in e.text for e in events if e.type == "warning")


async def test_negative_tokens_give_no_credit(make_agent, stores):
    """They count as none, and the parts tell the sum."""
    provider = Changing(Cost(total=0.1), replies=[text("hi")])
    provider.tokens = -1000
    agent = await make_agent(provider, stores=stores)
    assert (await agent.execute_turn("go")).usage.total_tokens == TEN.input + TEN.output


async def test_unknown_cost_ignore_continues_without_a_known_price(make_agent, stores):
    """The calls with a price still count, those without count as nothing."""
    script = [tool_call("add", a=1, b=2)]
    provider = Changing(Cost(total=0.1), None, None, Cost(total=0.1), replies=script)
    limits = LoopConfig(budget=Budget(cost_usd=0.2, unknown_cost="ignore"), doom_loop_threshold=9)
    agent = await make_agent(provider, tools=[add], stores=stores, loop_config=limits)
    result = await agent.execute_turn("go")
    assert result.stop_reason is StopReason.BUDGET
    assert "has cost 0.2000 of 0.2000" in result.error.message
    assert len(provider.requests) == 4
    assert result.usage.cost == Cost(total=0.2, complete=False)
    assert (await stores.state.load("ada")).state.usage == result.usage
    assert (await stores.journal.turns("ada"))[0].usage == result.usage


async def test_a_call_without_a_known_price_is_reported(make_agent, stores):
    """The turn is over with it, so there is nothing to end; but nobody believes it was counted."""
    limits = LoopConfig(budget=Budget(cost_usd=5.0))
    agent = await make_agent(Changing(None), stores=stores, loop_config=limits)
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert result.outcome is Outcome.COMPLETED
    assert [e.code for e in events if e.type == "warning"] == ["cost_unknown"]
    assert result.usage.cost is None


def test_a_fallback_knows_the_price_if_all_of_its_providers_do():
    """One that does not is enough to refuse; one that does not say is not."""

    def knowing(*known):
        providers = [ScriptedProvider([text("hi")]) for _ in known]
        for provider, knows in zip(providers, known, strict=True):
            provider.knows_cost = knows
        return FallbackProvider(providers).knows_cost

    expected = {(True, True): True, (True, False): False, (None, True): None, (None, False): False}
    assert {known: knowing(*known) for known in expected} == expected


@pytest.mark.parametrize("word", ["allow", None, True, 0])
def test_an_invalid_unknown_cost_is_refused(word):
    """Anything else is refused."""
    with pytest.raises(ConfigurationError, match=r"Budget\.unknown_cost must be one of 'refuse'"):
        Budget(unknown_cost=word)
