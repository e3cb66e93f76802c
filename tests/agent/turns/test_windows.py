"""Budgets of a day and a month: what the contexts of an owner, or of a tenant, may use together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.agent.kit import add, assert_whole, collect

from looopy import Agent, AuthContext, Budget, LoopConfig, RetryPolicy, ToolContext, tool
from looopy.errors import (
    BudgetExceeded,
    ConfigurationError,
    LLMUnavailable,
    RateLimited,
    StoreUnavailable,
)
from looopy.stores.bundle import Stores
from looopy.stores.contexts.spending import (
    NOTHING,
    TENANT,
    Allowance,
    Amount,
    Place,
    account_of,
    allowances_of,
    check_room,
    nanos_of,
)
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.message import Cost, StopReason, Usage
from looopy.types.state import AgentStatus, Outcome

ADA, BOB = AuthContext(actor_id="ada"), AuthContext(actor_id="bob")
TEN = Usage(input=4, output=6, total_tokens=10, cost=Cost(total=0.01))
TEN_PAID = Amount(10, 10_000_000)
LONG = 1_000  # tokens of the longest answer
ADAS = account_of("ada")


class Paid(ScriptedProvider):
    """Each answer uses ten tokens, for a cent; a token costs a tenth of a cent at most."""

    async def stream(self, request, options=None):
        """As scripted, with a bill."""
        async for event in super().stream(request, options):
            done = event.type == "done"
            yield replace(event, message=replace(event.message, usage=TEN)) if done else event

    def cost_of(self, usage, model=""):
        """The price, of any model."""
        del model
        tokens = usage.input + usage.cache_write + usage.output
        return replace(usage, cost=Cost(total=tokens * 0.001))


def limits(*, patience_s=0.0, **options):
    """A configuration with a budget; the names of other options are those of `LoopConfig`."""
    named = ("on_budget", "max_iterations")
    others = {name: options.pop(name) for name in named if name in options}
    retry = RetryPolicy(base_s=0)
    budget = Budget(**options)
    return LoopConfig(
        budget=budget, max_tokens=LONG, busy_timeout_s=patience_s, retry=retry, **others
    )


@pytest.fixture
def agent_of(make_agent, request):
    """Make a started agent, by its model, its budget and, if not `ada`, its context."""

    async def make(provider, config, context_id="ada", *, stores, **options):
        options |= {"context_id": context_id, "loop_config": config, "stores": stores}
        return await make_agent(provider, **options)

    return make


async def sums(stores, account=ADAS):
    """The used and reserved amounts of an account, today and this month."""
    return [(one.used, one.reserved) for one in await stores.spending.spent(account)]


async def spend(stores, amount, owner="ada", **budget):
    """Use so much of an account beforehand."""
    await stores.spending.add(amount, allowances_of(Budget(**budget), owner))


class Held:
    """A reply of a model that comes when it is let go."""

    def __init__(self, said):
        self.said, self.asked, self.free = said, asyncio.Event(), asyncio.Event()

    async def __call__(self, _request):
        """Wait."""
        self.asked.set()
        await self.free.wait()
        return text(self.said)


@pytest.mark.parametrize("on_budget", ["stop", "ask"])
async def test_a_budget_of_a_day_holds_for_all_contexts_of_an_owner(agent_of, stores, on_budget):
    """The call that does not fit is not made; the text names the limit and the way out."""
    provider = Paid([text("hi")], repeat=True)
    config = limits(owner_day_tokens=2 * LONG, on_budget=on_budget)
    for n in range(3):
        agent = await agent_of(provider, config, f"c{n}", stores=stores)
        result = await agent.execute_turn("go", auth_context=ADA)
        assert result.outcome is Outcome.COMPLETED, result.error
    assert await sums(stores) == [(Amount(30, 30_000_000), NOTHING)]
    await spend(stores, Amount(LONG, 0), owner_day_tokens=0)
    before = await sums(stores)
    agent = await agent_of(provider, config, "c3", stores=stores)
    stream = agent.execute_turn("go", auth_context=ADA)
    events, result = await collect(stream), await stream
    (warning,) = [e for e in events if e.type == "warning"]
    assert warning.code == "budget"
    assert "Budget.owner_day_tokens" in warning.text
    assert "or continue after " in warning.text
    assert len(provider.requests) == 3
    assert await sums(stores) == before
    if on_budget == "stop":
        assert (result.outcome, result.stop_reason) == (Outcome.FAILED, StopReason.BUDGET)
        assert isinstance(result.error, BudgetExceeded)
        assert result.error.limit == "owner_day_tokens"
        assert agent.state.status is AgentStatus.FAILED
    else:
        assert (result.outcome, result.error) == (Outcome.INPUT_REQUIRED, None)
        assert result.stop_reason is StopReason.BUDGET
        assert agent.state.waits_for == warning.text
    other = await agent_of(provider, config, "c4", stores=stores)
    assert (await other.execute_turn("go", auth_context=BOB)).outcome is Outcome.COMPLETED
    await assert_whole(stores, "c3")


async def test_a_call_that_fits_no_period_is_not_put_off(agent_of, memory_stores):
    """The text names the ways out that there are: a new day would have no room for it either."""
    config = limits(owner_day_tokens=LONG, on_budget="ask")
    agent = await agent_of(Paid([]), config, stores=memory_stores)
    await agent.execute_turn("go", auth_context=ADA)
    assert "left (Budget.owner_day_tokens): raise it, or allow shorter answers with" in str(
        agent.state.waits_for
    )
    assert "continue after" not in str(agent.state.waits_for)


@pytest.mark.parametrize(
    ("tokens", "dollars", "fits"), [(99, None, False), (100, None, True), (100, 0.9, False)]
)
def test_a_call_that_fits_no_period_has_no_time_to_come_back(tokens, dollars, fits):
    """By any of its limits, also if another one refuses it first."""
    nanos = None if dollars is None else nanos_of(dollars)
    day = Allowance(account_of("ada"), "day", tokens, nanos, name="owner_day")
    most, used = Amount(100, nanos_of(1.0)), Amount(50, 0)
    with pytest.raises(BudgetExceeded, match=r"Budget\.owner_day_tokens") as refused:
        check_room(day, "d2026-11-28", most, used, NOTHING)
    until = datetime(2026, 11, 29, tzinfo=UTC) if fits else None
    assert refused.value.resets_at == until
    assert ("or continue after 2026-11-29 00:00 UTC" in str(refused.value)) is fits


async def test_a_paused_turn_continues_when_the_budget_is_raised(agent_of, stores):
    """Whoever opens the context finds it waiting, and nobody takes it for one to continue now."""
    script = [tool_call("add", a=1, b=2), text("three")]
    tight = limits(owner_day_tokens=LONG + 500, on_budget="ask")
    await spend(stores, Amount(LONG, 0), owner_day_tokens=0)
    provider = Paid(script)
    agent = await agent_of(provider, tight, tools=[add], stores=stores)
    for said in ("go", None):  # asked again, while nothing was raised
        result = await agent.execute_turn(said, auth_context=ADA)
        assert result.outcome is Outcome.INPUT_REQUIRED
        assert not result.pending
    state = (await stores.state.load("ada")).state
    assert (state.resumable, state.error) == (2, None)
    (waiting,) = (await stores.contexts.list(status="waiting")).items
    assert waiting.context_id == "ada"
    assert not (await stores.contexts.list(due=True)).items
    raised = limits(owner_day_tokens=3 * LONG, on_budget="ask")
    other = await agent_of(provider, raised, tools=[add], stores=stores)
    assert other.state.status is AgentStatus.WAITING
    assert "Budget.owner_day_tokens" in other.state.waits_for
    result = await other.execute_turn(None, auth_context=ADA)
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "three")
    assert other.state.waits_for is None
    assert other.state.status is AgentStatus.READY
    await assert_whole(stores)


@pytest.mark.parametrize("on_budget", ["stop", "ask"])
async def test_a_turn_is_stopped_between_its_calls_and_continued(agent_of, stores, on_budget):
    """The results of its tools stand; only the model is asked again."""
    ran = []

    @tool
    async def dear() -> str:
        """Use up the budget."""
        ran.append(1)
        await spend(stores, Amount(LONG, 0), owner_day_tokens=0)
        return "done"

    provider = Paid([tool_call("dear"), text("and that was it")])
    for said, limit in (("go", 2), (None, 3)):
        config = limits(owner_day_tokens=limit * LONG, on_budget=on_budget)
        agent = await agent_of(provider, config, tools=[dear], stores=stores)
        result = await agent.execute_turn(said, auth_context=ADA)
        if said is not None:
            waits = on_budget == "ask"
            assert result.outcome is (Outcome.INPUT_REQUIRED if waits else Outcome.FAILED)
            assert len(provider.requests) == 1
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "and that was it")
    assert ran == [1]
    await assert_whole(stores)


@pytest.mark.parametrize("budget", [{"tokens": 5}, {"context_tokens": 5}, {"context_s": 0.0}])
async def test_other_limits_ask_as_well(agent_of, memory_stores, budget):
    """The turn goes on under a higher limit."""
    provider = Paid([tool_call("add", a=1, b=2), text("three")])
    config = limits(**budget, on_budget="ask")
    agent = await agent_of(provider, config, tools=[add], stores=memory_stores)
    assert (await agent.execute_turn("go")).outcome is Outcome.INPUT_REQUIRED
    assert f"Budget.{next(iter(budget))}" in agent.state.waits_for
    raised = await agent_of(provider, limits(), tools=[add], stores=memory_stores)
    assert (await raised.execute_turn(None)).text == "three"


async def test_a_budget_of_the_tenant_holds_for_all_owners(agent_of, stores):
    """In dollars as in tokens, of a month as of a day; contexts without an owner count as well."""
    provider = Paid([text("hi")], repeat=True)
    config = limits(tenant_month_cost_usd=2.0, owner_day_tokens=10**6)
    for n, auth in enumerate((ADA, BOB, None)):
        agent = await agent_of(provider, config, f"c{n}", stores=stores)
        assert (await agent.execute_turn("go", auth_context=auth)).outcome is Outcome.COMPLETED
    assert await sums(stores, TENANT) == [(Amount(30, 30_000_000), NOTHING)]
    for owner in ("ada", "bob", None):
        assert await sums(stores, account_of(owner)) == [(TEN_PAID, NOTHING)]
    await spend(stores, Amount(0, nanos_of(1.0)), tenant_month_tokens=0)
    agent = await agent_of(provider, config, "c9", stores=stores)
    result = await agent.execute_turn("go", auth_context=BOB)
    assert result.error.limit == "tenant_month_cost_usd"
    assert "Budget.tenant_month_cost_usd" in result.error.message
    assert await sums(stores, account_of("bob")) == [(TEN_PAID, NOTHING)]


async def test_a_call_waits_while_calls_that_run_leave_no_room(agent_of, stores):
    """The first call gives back what it did not use, and the second begins."""
    held = Held("first")
    config = limits(owner_day_tokens=2 * LONG, patience_s=60.0)
    first = await agent_of(Paid([held]), config, "c1", stores=stores)
    provider = Paid([text("second")])
    second = await agent_of(provider, config, "c2", stores=stores)
    one = asyncio.ensure_future(_result(first.execute_turn("go", auth_context=ADA)))
    await held.asked.wait()
    two = asyncio.ensure_future(_result(second.execute_turn("go", auth_context=ADA)))
    impatient = await agent_of(Paid([]), limits(owner_day_tokens=2 * LONG), "c3", stores=stores)
    result = await impatient.execute_turn("go", auth_context=ADA)
    assert (result.stop_reason, result.error.waits) == (StopReason.BUDGET, True)
    assert provider.requests == []
    held.free.set()
    assert [(await turn).text for turn in (one, two)] == ["first", "second"]
    assert await sums(stores) == [(Amount(20, 20_000_000), NOTHING)]


async def _result(stream):
    return await stream


@pytest.mark.parametrize(
    ("replies", "is_free"),
    [
        ([failure(RateLimited), text("hi")], True),
        ([failure(LLMUnavailable("refused", unbilled=True)), text("hi")], True),
        ([failure(LLMUnavailable), text("hi")], False),
        ([(text("half"), failure(RateLimited)), text("hi")], False),
    ],
)
async def test_every_try_of_a_call_is_paid_for(agent_of, memory_stores, replies, is_free):
    """A refused one is free; one that broke off counts at its most."""
    config = limits(owner_day_tokens=10**6)
    agent = await agent_of(Paid(replies), config, stores=memory_stores)
    assert (await agent.execute_turn("go", auth_context=ADA)).text == "hi"
    ((used, reserved),) = await sums(memory_stores)
    assert reserved == NOTHING
    assert used == TEN_PAID if is_free else used.tokens > 10 + LONG


async def test_a_call_that_is_cut_off_counts_at_its_most(agent_of, stores):
    """When the turn is cancelled, nothing stays reserved, and nothing is free."""
    held = Held("never")
    config = limits(owner_day_tokens=10**6)
    agent = await agent_of(Paid([held]), config, stores=stores)
    stream = agent.execute_turn("go", auth_context=ADA)
    await held.asked.wait()
    stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED
    ((used, reserved),) = await sums(stores)
    assert used.tokens > LONG
    assert reserved == NOTHING


async def test_a_turn_cancelled_while_it_reserves_keeps_no_reservation(
    agent_of, stores, monkeypatch
):
    """The store has taken the reservation, and the turn has not heard of it."""
    reserve, taken = stores.spending.reserve, asyncio.Event()

    async def unheard(*args, **options):
        await reserve(*args, **options)
        taken.set()
        await asyncio.Event().wait()

    provider = Paid([text("never")])
    agent = await agent_of(provider, limits(owner_day_tokens=10**6), stores=stores)
    monkeypatch.setattr("looopy.agent.ledger.settle", lambda work: work)
    monkeypatch.setattr(stores.spending, "reserve", unheard)
    stream = agent.execute_turn("go", auth_context=ADA)
    await taken.wait()
    stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED
    assert provider.requests == []
    assert [reserved for _, reserved in await sums(stores)] == [NOTHING]


async def test_no_call_is_made_while_the_accounts_cannot_be_read(
    agent_of, memory_stores, monkeypatch
):
    """A store that is away does not make calls free; it is told what they used when it is back."""
    provider, spending = Paid([text("hi")]), memory_stores.spending
    agent = await agent_of(provider, limits(owner_day_tokens=10**6), stores=memory_stores)

    async def away(*_args, **_options):
        raise StoreUnavailable("away")

    with monkeypatch.context() as broken:
        broken.setattr(spending, "reserve", away)
        result = await agent.execute_turn("go", auth_context=ADA)
    assert (result.outcome, provider.requests) == (Outcome.FAILED, [])
    assert isinstance(result.error, StoreUnavailable)
    with monkeypatch.context() as broken:
        broken.setattr(spending, "settle", away)
        assert (await agent.execute_turn(None, auth_context=ADA)).text == "hi"
    ((used, reserved),) = await sums(memory_stores)
    assert used == NOTHING
    assert reserved.tokens > LONG
    other = await agent_of(
        Paid([text("later")]), limits(owner_day_tokens=10**6), "c2", stores=memory_stores
    )
    assert (await other.execute_turn("go", auth_context=ADA)).text == "later"
    assert await sums(memory_stores) == [(Amount(20, 20_000_000), NOTHING)]


class Slotted:
    """Accounts of somebody else, which take neither attributes nor weak references."""

    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def settle(self, reservation, used):
        """Nobody answers."""
        raise StoreUnavailable("away")


class SlottedState:
    """A state store of somebody else, with such accounts; its backend is itself."""

    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        if name == "backend":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def make_spending(self):
        """Those accounts."""
        return Slotted(self.inner.make_spending())


@pytest.mark.parametrize("is_slotted", [True, False])
async def test_a_late_settlement_counts_for_the_next_caller(
    agent_of, memory_stores, monkeypatch, is_slotted
):
    """Another agent, on another binding of the stores; accounts of somebody else may have slots."""
    config, one = limits(owner_day_tokens=10**6), memory_stores.for_tenant("t")
    if is_slotted:
        state = SlottedState(one.state)
        one = Stores(one.messages, one.artifacts, state, one.journal, tenant="t")
    else:
        one.spending.settle = Slotted(None).settle
    agent = await agent_of(Paid([text("hi")]), config, stores=one)
    assert (await agent.execute_turn("go", auth_context=ADA)).text == "hi"
    two = memory_stores.for_tenant("t")
    ((used, reserved),) = await sums(two)
    assert (used, reserved.tokens > LONG) == (NOTHING, True)
    if is_slotted:
        monkeypatch.setattr(Slotted, "settle", lambda self, *of: self.inner.settle(*of))
        two = one
    other = await agent_of(Paid([text("later")]), config, "c2", stores=two)
    assert (await other.execute_turn("go", auth_context=ADA)).text == "later"
    assert await sums(two) == [(Amount(20, 20_000_000), NOTHING)]


async def test_charges_of_tools_count_for_the_window(agent_of, stores):
    """With the next call of the model, or at the end of a turn that makes none."""

    @tool
    async def research(context: ToolContext) -> str:
        """Call a model."""
        context.charge(TEN)
        context.charge(TEN)
        return "found"

    for most, total in ((25, 40), (1, 70)):
        config = limits(owner_day_tokens=10**6, max_iterations=most)
        provider = Paid([tool_call("research"), text("ok")])
        agent = await agent_of(provider, config, f"c{most}", tools=[research], stores=stores)
        await agent.execute_turn("go", auth_context=ADA)
        ((used, reserved),) = await sums(stores)
        assert (used.tokens, reserved) == (total, NOTHING)


@pytest.mark.parametrize("own", [LoopConfig(), limits(owner_day_tokens=10**6)])
async def test_agents_that_are_tools_pay_from_the_same_accounts_once(agent_of, stores, own):
    """With a budget of their own or without; the limit of the outer turn stops them, too."""
    helper = Agent(
        "template", llm_provider=Paid([text("3")], repeat=True), agent_name="h", loop_config=own
    )
    tools = [helper.as_tool()]
    outer = Paid([tool_call("h", prompt="?"), text("ok")])
    agent = await agent_of(outer, limits(owner_day_tokens=10**5), tools=tools, stores=stores)
    assert (await agent.execute_turn("go", auth_context=ADA)).text == "ok"
    assert await sums(stores) == [(Amount(30, 30_000_000), NOTHING)]
    tight = limits(owner_day_tokens=2 * LONG)
    outer = Paid([tool_call("h", prompt="x" * 8 * LONG)])  # too long for what is left
    agent = await agent_of(outer, tight, "c2", tools=tools, stores=stores)
    result = await agent.execute_turn("go", auth_context=ADA)
    (said,) = result.messages[-1:]
    assert said.is_error
    assert "Budget.owner_day_tokens" in said.text
    assert result.stop_reason is StopReason.BUDGET


@pytest.mark.parametrize("word", ["ignore", "refuse"])
async def test_each_budget_decides_for_its_own_limits_about_calls_without_a_price(
    agent_of, memory_stores, word
):
    """An agent that is a tool follows the budget of the turn that it works for."""
    other = "refuse" if word == "ignore" else "ignore"
    own = LoopConfig(budget=Budget(unknown_cost=other))
    unpriced = ScriptedProvider([text("3")])
    helper = Agent("template", llm_provider=unpriced, agent_name="h", loop_config=own)
    outer = Paid([tool_call("h", prompt="?"), text("ok")])
    config = limits(owner_day_cost_usd=5.0, unknown_cost=word)
    agent = await agent_of(outer, config, tools=[helper.as_tool()], stores=memory_stores)
    result = await agent.execute_turn("go", auth_context=ADA)
    assert len(unpriced.requests) == (word == "ignore")
    (said,) = (message.text for message in result.messages if message.role == "toolResult")
    assert said == "3" if word == "ignore" else "no known price" in said


async def test_a_summary_is_paid_for(agent_of, memory_stores):
    """Between turns it raises if there is no room; nothing was stored then."""
    config = limits(owner_day_tokens=10**6)
    provider = Paid([text("one"), text("two"), text("a summary")])
    agent = await agent_of(provider, config, stores=memory_stores)
    for said in ("first", "second"):
        await agent.execute_turn(said, auth_context=ADA)
    other = await agent_of(Paid([]), limits(owner_day_tokens=30), stores=memory_stores)
    with pytest.raises(BudgetExceeded):
        await other.compact()
    assert await sums(memory_stores) == [(Amount(20, 20_000_000), NOTHING)]
    assert await agent.compact() is not None
    assert await sums(memory_stores) == [(Amount(30, 30_000_000), NOTHING)]


async def test_a_call_is_settled_in_the_day_in_which_it_was_reserved(memory_stores, monkeypatch):
    """The new day and the new month begin with nothing."""
    late = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)
    clock = [late]
    monkeypatch.setattr("looopy.stores.memory.spending.utc_now", lambda: clock[0])
    allowances = allowances_of(Budget(owner_day_tokens=100, owner_month_tokens=150), "ada")
    place = Place("here", 1)
    await memory_stores.spending.reserve("one", Amount(100, 0), allowances, place=place)
    clock[0] = late + timedelta(seconds=2)
    assert await sums(memory_stores) == []
    await memory_stores.spending.reserve("two", Amount(100, 0), allowances, place=place)
    await memory_stores.spending.settle("one", Amount(40, 0))
    assert await sums(memory_stores) == [(NOTHING, Amount(100, 0))] * 2
    clock[0] = late
    assert await sums(memory_stores) == [(Amount(40, 0), NOTHING)] * 2


async def test_a_budget_that_could_not_hold_is_refused_at_once(agent_of, memory_stores):
    """Without the longest answer, without a price, and in stores without accounts."""
    with pytest.raises(ConfigurationError, match=r"LoopConfig\.max_tokens"):
        LoopConfig(budget=Budget(tenant_day_tokens=5))
    for wrong in ({"owner_day_tokens": -1}, {"tenant_month_cost_usd": float("nan")}):
        with pytest.raises(ConfigurationError, match=f"Budget.{next(iter(wrong))}"):
            Budget(**wrong)
    with pytest.raises(ConfigurationError, match=r"LoopConfig\.on_budget"):
        LoopConfig(on_budget="shout")
    unpriced, config = ScriptedProvider([text("hi")]), limits(owner_day_cost_usd=5.0)
    agent = await agent_of(unpriced, config, stores=memory_stores)
    result = await agent.execute_turn("go", auth_context=ADA)
    assert (result.stop_reason, unpriced.requests) == (StopReason.BUDGET, [])
    assert "price" in result.error.message
    unpriced.knows_cost = False
    with pytest.raises(ConfigurationError, match="price"):
        await agent_of(unpriced, config, "c2", stores=memory_stores)
    state = memory_stores.state
    bare = type("State", (), {name: getattr(state, name) for name in ("load", "make_journal")})()
    stores = Stores(memory_stores.messages, memory_stores.artifacts, bare, memory_stores.journal)
    with pytest.raises(ConfigurationError, match="keeps no accounts"):
        await agent_of(unpriced, limits(owner_day_tokens=5), "c3", stores=stores)


async def test_calls_without_a_price_may_count_as_free(agent_of, memory_stores):
    """If the budget says so; their tokens count."""
    provider = ScriptedProvider([text("hi")])
    config = limits(owner_day_cost_usd=5.0, unknown_cost="ignore")
    agent = await agent_of(provider, config, stores=memory_stores)
    assert (await agent.execute_turn("go", auth_context=ADA)).text == "hi"
    ((used, reserved),) = await sums(memory_stores)
    assert (used.nanos, reserved) == (0, NOTHING)
    assert used.unpriced == used.tokens > 0
