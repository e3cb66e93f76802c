"""What calls cost, from the counts on the wire to the agent's state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.wire.fake_anthropic import MODEL, started
from tests.wire.fake_openai import HOLD, Answer
from tests.wire.three import APIS, half, last_event, refuses, says, serving

from looopy import Agent, Budget, LoopConfig, RetryPolicy, open_stores, tool
from looopy.errors import ConfigurationError, how_to_install
from looopy.llm.prices import Prices
from looopy.stores.contexts.spending import NOTHING, Amount, account_of
from looopy.stores.usage import sum_usage
from looopy.types.message import StopReason, Usage
from looopy.types.state import Outcome

# Per million tokens: input, output, read from the cache, written to it.
SOLD = {
    "completions": ("gpt-5", "openai", (1.25, 10, 0.125, 0)),
    "responses": ("gpt-5", "openai", (1.25, 10, 0.125, 0)),
    "anthropic": (MODEL, "anthropic", (3, 15, 0.3, 3.75)),
}


def priced(api, usage):
    """What *usage* costs by the list."""
    per_token = [dollars / 1e6 for dollars in SOLD[api][2]]
    counts = (usage.input, usage.output, usage.cache_read, usage.cache_write)
    return [pytest.approx(n * each) for n, each in zip(counts, per_token, strict=True)]


def parts(cost):
    """The parts of a cost, in the list's order."""
    return [cost.input, cost.output, cost.cache_read, cost.cache_write]


@APIS
async def test_an_answer_is_priced_by_its_parts(api):
    """And so are the turn and the context."""
    model, sold_by, _ = SOLD[api]
    async with (
        serving(api, says(api, "ok"), says(api, "ok"), model=model, price_as=sold_by) as (_, made),
        Agent("ada", llm_provider=made) as agent,
    ):
        one = await agent.execute_turn("a")
        two = await agent.execute_turn("b")
        cost = agent.state.usage.cost
    message = one.messages[-1]
    assert parts(message.usage.cost) == priced(api, message.usage)
    assert one.usage == message.usage
    assert message.usage.cost.total == pytest.approx(sum(parts(message.usage.cost)))
    assert cost.total == pytest.approx(one.usage.cost.total + two.usage.cost.total)
    assert cost.total > 0


@APIS
async def test_the_cost_of_a_server_of_ones_own_is_not_known(api):
    """Its tokens are counted."""
    async with serving(api, says(api, "ok"), model=SOLD[api][0]) as (_, made):
        usage = (await last_event(made)).message.usage
    assert usage.total_tokens > 0
    assert usage.cost is None


@APIS
async def test_the_cost_of_an_unlisted_model_is_unknown(api):
    """Its tokens are counted, and the call goes as any other."""
    async with serving(api, says(api, "ok"), model="mine", price_as="openai") as (_, made):
        usage = (await last_event(made)).message.usage
    assert usage.total_tokens > 0
    assert usage.cost is None


@APIS
@pytest.mark.parametrize("limit", ["cost_usd", "context_cost_usd"])
@pytest.mark.parametrize("where", [{}, {"price_as": "openai", "model": "mine"}])
async def test_no_agent_starts_whose_budget_would_be_ignored(api, limit, where):
    """Its text names the ways out, and one of them is a word in the budget."""
    given = {"model": SOLD[api][0], **where}
    async with serving(api, says(api, "ok"), **given) as (server, made):
        config = LoopConfig(budget=Budget(**{limit: 1.0}))
        agent = Agent("ada", llm_provider=made, loop_config=config)
        with pytest.raises(ConfigurationError, match=r"price_as.*unknown_cost") as refused:
            await agent.start()
        assert how_to_install("prices") in str(refused.value)
        await agent.shutdown()
        assert server.received == []
        told = LoopConfig(budget=Budget(**{limit: 1.0}, unknown_cost="ignore"))
        async with Agent("ada", llm_provider=made, loop_config=told) as agent:
            result = await agent.execute_turn("hello")
            assert result.outcome is Outcome.COMPLETED
            assert result.usage.cost is agent.state.usage.cost is None


@APIS
async def test_the_window_is_known_from_the_list(api):
    """Where the model is; a window that is given stands."""
    model, sold_by, _ = SOLD[api]
    async with serving(api, model=model, price_as=sold_by) as (_, made):
        await made.prepare()
        assert made.window_tokens in (200_000, 400_000)
    async with serving(api, model=model, price_as=sold_by, window_tokens=7000) as (_, made):
        await made.prepare()
        assert made.window_tokens == 7000


async def test_a_cancelled_answer_costs_the_reported_usage():
    """Anthropic says at its beginning what the request took."""
    beginning = Answer(pieces=[started(), *half("anthropic")[1:], HOLD])
    async with (
        serving("anthropic", beginning, price_as="anthropic") as (server, made),
        Agent("ada", llm_provider=made) as agent,
    ):
        stream = agent.execute_turn("a")
        async for event in stream:
            if event.type == "message_update" and event.delta:
                stream.cancel()
        result = await stream
        await server.left.wait()
        assert result.stop_reason is StopReason.CANCELLED
        assert (result.usage.input, result.usage.cache_read) == (12, 400)
        assert parts(result.usage.cost) == priced("anthropic", result.usage)
        assert agent.state.usage == result.usage


async def test_a_budget_of_money_ends_a_turn():
    """The second call would be one too many."""
    from tests.wire.fake_responses import answers, calls

    @tool(effects="none")
    def look() -> str:
        """Look."""
        return "seen"

    asks = answers(calls(0, "c1", "look", "{}"))
    config = LoopConfig(budget=Budget(cost_usd=1e-6))
    async with (
        serving("responses", asks, model="gpt-5", price_as="openai") as (server, made),
        Agent("ada", llm_provider=made, tools=[look], loop_config=config) as agent,
    ):
        result = await agent.execute_turn("a")
    assert result.stop_reason is StopReason.BUDGET
    assert len(server.received) == 1


@APIS
async def test_a_day_is_charged_by_the_price_list(api):
    """To a billionth of a dollar, after more was reserved; a refused call is free."""
    model, sold_by, _ = SOLD[api]
    busy = refuses(api, 503, "busy")
    budget = Budget(owner_day_cost_usd=5.0)
    config = LoopConfig(budget=budget, max_tokens=1_000, retry=RetryPolicy(base_s=0))
    async with (
        open_stores("memory:") as stores,
        serving(api, busy, says(api, "ok"), model=model, price_as=sold_by) as (server, made),
        Agent("ada", llm_provider=made, stores=stores, loop_config=config) as agent,
    ):
        result = await agent.execute_turn("a")
        (day,) = await stores.spending.spent(account_of(None))
    assert len(server.received) == 2
    assert day.used == Amount(result.usage.total_tokens, round(result.usage.cost.total * 1e9))
    assert day.used.nanos > 0
    assert day.reserved == NOTHING


@APIS
async def test_the_dearest_price_is_reserved(api):
    """An input that is written to the cache may cost more than one that is not."""
    model, sold_by, per_million = SOLD[api]
    budget = Budget(owner_day_cost_usd=5.0)
    config = LoopConfig(budget=budget, max_tokens=1_000_000)
    async with (
        open_stores("memory:") as stores,
        serving(api, model=model, price_as=sold_by) as (server, made),
        Agent("ada", llm_provider=made, stores=stores, loop_config=config) as agent,
    ):
        result = await agent.execute_turn("a")
        cached = Usage(cache_write=100, output=1, total_tokens=101)
        assert made.cost_of(cached).cost.total > 0
        assert made.cost_of(Usage(input=1, output=1), "a model that nobody sells").cost is None
    assert per_million[1] > 5
    assert (result.stop_reason, server.received) == (StopReason.BUDGET, [])
    assert result.error.limit == "owner_day_cost_usd"


async def test_a_stored_call_keeps_the_price_of_its_time(monkeypatch):
    """It begins at a dear hour and ends at a cheap one; the sum of two calls is what was paid."""
    hours = iter([datetime(2026, 11, 24, 3, 59, tzinfo=UTC), datetime(2026, 11, 24, 4, tzinfo=UTC)])
    clock = next(hours)

    def an_hour_begins(_):
        nonlocal clock
        clock = next(hours, clock)
        return says("completions", "ok")

    monkeypatch.setattr("looopy.llm.accumulate.now_ms", lambda: int(clock.timestamp() * 1000))
    sold = {"model": "deepseek-v4-pro", "price_as": "deepseek"}
    async with open_stores("memory:") as stores:
        async with (
            serving("completions", an_hour_begins, an_hour_begins, **sold) as (_, made),
            Agent("ada", llm_provider=made, stores=stores) as agent,
        ):
            turns = [await agent.execute_turn("a") for _ in range(2)]
        (found,) = (await sum_usage(stores, by=[])).values()
    for turn, per_million in zip(turns, ((1.32, 3.96), (0.66, 1.98)), strict=True):
        message = turn.messages[-1]
        usage = message.usage
        costs = (usage.cost.input, usage.cost.output)
        counts = (usage.input, usage.output)
        assert costs == tuple(
            pytest.approx(n * each / 1e6) for n, each in zip(counts, per_million, strict=True)
        )
        again = Prices("deepseek-v4-pro", "deepseek")(replace(usage, cost=None), message.timestamp)
        assert again == usage  # whoever reads the log can check it
    assert found.usage.cost.total == pytest.approx(sum(one.usage.cost.total for one in turns))
