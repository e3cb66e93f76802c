"""A key names a turn: sent again, it is watched and not run again, whatever happened between."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import Gate, add, assert_whole, collect

from looopy import AuthContext, LoopConfig, ToolContext, UserMessage, tool
from looopy.errors import (
    AgentBusy,
    AgentStateError,
    IdempotencyConflict,
    LLMUnavailable,
    StoreUnavailable,
    ValueRefused,
)
from looopy.stores.owner import Owner
from looopy.stores.records import Claim
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.event import MessageEnd, TurnEnd, TurnStart, is_durable
from looopy.types.state import AgentStatus, Outcome


def durable(events) -> list[tuple[str, int | None]]:
    """Type and number of the durable ones."""
    return [(e.type, e.seq) for e in events if is_durable(e)]


async def test_the_same_request_again_is_the_same_turn(make_agent, stores):
    """Not run again; its durable events are replayed and its result is the same."""
    provider = ScriptedProvider([tool_call("add", a=1, b=2), text("three")])
    agent = await make_agent(provider, stores=stores, tools=[add])
    first = agent.execute_turn("what is 1 + 2?", idempotency_key="k", metadata={"b": 1, "a": 2})
    shown = await collect(first)
    again = agent.execute_turn("what is 1 + 2?", idempotency_key="k", metadata={"a": 2, "b": 1})
    replayed = await collect(again)
    assert durable(replayed) == durable(shown)
    one, two = await first, await again
    assert (two.turn, two.text, two.outcome, two.stop_reason) == (1, "three", "completed", "stop")
    assert (two.messages, two.usage) == (one.messages, one.usage)
    assert [i.tool_results for i in two.iterations] == [i.tool_results for i in one.iterations]
    assert await again.accepted() == 1
    assert len(provider.requests) == 2
    assert agent.state.status is AgentStatus.READY
    assert agent.state.turn_count == 1
    await assert_whole(stores)


async def test_it_is_found_after_a_restart_in_another_process(make_agent, stores):
    """The key lives as long as the context."""
    first = await make_agent([text("one"), text("two")], stores=stores)
    await first.execute_turn("a", idempotency_key="k")
    await first.execute_turn("b")
    await first.shutdown()
    second = await make_agent(stores=stores)
    result = await second.execute_turn("a", idempotency_key="k")
    assert (result.turn, result.text) == (1, "one")
    assert [m.text for m in result.messages] == ["a", "one"]


@pytest.mark.parametrize(
    "other",
    [
        {"user_message": "other"},
        {"user_message": None},
        {"metadata": {"x": 1}},
        {"inputs": {"r": 1}},
    ],
)
@pytest.mark.parametrize("when", ["running", "over"])
async def test_another_input_is_refused_and_stores_nothing(make_agent, stores, other, when):
    """Message, inputs and metadata are the input; what is refused leaves no trace."""
    gate = Gate()
    agent = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores)
    first = agent.execute_turn("a", idempotency_key="k")
    await gate.entered.wait()
    if when == "over":
        gate.open.set()
        await first
    before = await stores.state.load("ada")
    request = {"user_message": "a", "idempotency_key": "k", **other}
    with pytest.raises(IdempotencyConflict):
        await agent.execute_turn(**request)
    after = await stores.state.load("ada")
    assert (after.last_seq, after.turn_count) == (before.last_seq, before.turn_count)
    gate.open.set()
    assert (await first).outcome is Outcome.COMPLETED


async def test_timestamp_and_credentials_are_no_part_of_the_input(make_agent, stores):
    """Another timestamp, and fresh credentials, make no other request."""
    agent = await make_agent([text("one")], stores=stores)
    await agent.execute_turn(
        UserMessage("a", timestamp=1),
        AuthContext("ada", credentials={"t": "1"}),
        idempotency_key="k",
    )
    result = await agent.execute_turn(
        UserMessage("a", timestamp=2),
        AuthContext("ada", credentials={"t": "2"}),
        idempotency_key="k",
    )
    assert result.turn == 1


@pytest.mark.parametrize("on_busy", ["reject", "wait"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_while_it_runs_the_same_request_attaches(make_agent, stores, on_busy, where):
    """Before `on_busy` is looked at; both views end together, with one result."""
    gate = Gate()
    first = await make_agent(
        [tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores, on_busy=on_busy
    )
    other = first if where == "here" else await make_agent(stores=stores, on_busy=on_busy)
    stream = first.execute_turn("a", idempotency_key="k")
    await gate.entered.wait()
    again = other.execute_turn("a", idempotency_key="k")
    assert await again.accepted() == 1
    if on_busy == "reject":
        with pytest.raises(AgentBusy):
            await other.execute_turn("a", idempotency_key="another")
    gate.open.set()
    one, two = await asyncio.gather(stream, again)
    assert (one.turn, one.text) == (two.turn, two.text) == (1, "ok")
    assert gate.runs == 1
    await assert_whole(stores)


async def test_many_clients_that_submit_the_same_make_one_turn(make_agent, stores):
    """A double click, from ten processes at once."""
    gate = Gate()
    agents = [
        await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores)
        for _ in range(10)
    ]
    streams = [a.execute_turn("buy", idempotency_key="order-1") for a in agents]
    await gate.entered.wait()
    gate.open.set()
    results = await asyncio.gather(*streams)
    assert {(r.turn, r.text) for r in results} == {(1, "ok")}
    assert gate.runs == 1
    assert (await stores.state.load("ada")).turn_count == 1
    await assert_whole(stores)


async def test_two_requests_that_race_for_the_claim_make_one_turn(make_agent, stores):
    """The one that loses the claim finds the key it had not found before."""
    spy = SpyStores(stores)
    late = await make_agent([text("never")], stores=spy.stores)
    early = await make_agent([text("one")], stores=stores)
    claims = []

    async def be_first(name, claim) -> None:
        if name == "claim" and not claims:
            claims.append(claim)
            await early.execute_turn("a", idempotency_key="k")

    spy.hook = be_first
    result = await late.execute_turn("a", idempotency_key="k")
    assert isinstance(claims[0], Claim)
    assert (result.turn, result.text) == (1, "one")
    await assert_whole(stores)


async def test_a_request_that_loses_the_claim_to_its_twin_attaches_to_it(make_agent, stores):
    """The twin runs still: it is busy with this very request, and nobody is refused."""
    gate, claims, streams = Gate(), [], []
    spy = SpyStores(stores)
    late = await make_agent([text("never")], stores=spy.stores)
    early = await make_agent([tool_call("gate"), text("one")], tools=[gate.tool], stores=stores)

    async def be_first(name, claim) -> None:
        if name == "claim" and not claims:
            claims.append(claim)
            streams.append(early.execute_turn("a", idempotency_key="k"))
            await streams[0].accepted()

    late._core.known.stale = True  # so that it has read, and looked for the key, just before
    spy.hook = be_first
    again = late.execute_turn("a", idempotency_key="k")
    assert await again.accepted() == 1
    gate.open.set()
    assert (await again).text == (await streams[0]).text == "one"
    await assert_whole(stores)


async def test_a_request_sent_again_ends_the_turn_of_a_dead_process(make_agent, stores):
    """The retry of a client whose server was killed: interrupted, and not begun a second time."""
    dead, said = Owner.new(), UserMessage("a")
    await stores.state.claim(
        Claim(
            context_id="ada",
            holder=dead.token(),
            ttl_s=60,
            expected_epoch=0,
            events=[
                TurnStart(context_id="ada", user_message=said),
                MessageEnd(context_id="ada", message=said),
            ],
            key="k",
            input_hash=await _hash_of(make_agent, "a"),
        )
    )
    dead.retire()
    agent = await make_agent(stores=stores)
    assert agent.state.interrupted_turn == 1
    result = await agent.execute_turn("a", idempotency_key="k")
    assert (result.turn, result.outcome) == (1, Outcome.INTERRUPTED)
    assert (await stores.state.load("ada")).turn_count == 1


async def _hash_of(make_agent, message: str) -> str:
    agent = await make_agent([text("x")], context_id="probe")
    await agent.execute_turn(message, idempotency_key="k")
    found = await agent._core.resources.stores.journal.turn_of_key("probe", "k")
    return found[1]


async def test_cancelling_an_attached_view_cancels_the_turn(make_agent, stores):
    """Wherever it runs."""
    gate = Gate()
    first = await make_agent([tool_call("gate")], tools=[gate.tool], stores=stores)
    other = await make_agent(stores=stores)
    stream = first.execute_turn("a", idempotency_key="k")
    await gate.entered.wait()
    again = other.execute_turn("a", idempotency_key="k")
    await again.accepted()
    again.cancel()
    results = await asyncio.gather(stream, again)
    assert [r.outcome for r in results] == [Outcome.CANCELLED] * 2


async def test_a_failed_turn_is_not_tried_again_by_its_key(make_agent, stores):
    """The stored answer, also when it is an error."""
    provider = ScriptedProvider([failure(LLMUnavailable("down", retryable=False)), text("up")])
    agent = await make_agent(provider, stores=stores)
    first = await agent.execute_turn("a", idempotency_key="k")
    again = await agent.execute_turn("a", idempotency_key="k")
    assert (first.outcome, again.outcome) == (Outcome.FAILED, Outcome.FAILED)
    assert (type(again.error), str(again.error)) == (type(first.error), str(first.error))
    assert len(provider.requests) == 1


async def test_after_clear_the_key_still_names_its_turn(make_agent, stores):
    """Its messages are hidden; that it was done, and how it ended, is known."""
    agent = await make_agent([text("one")], stores=stores)
    await agent.execute_turn("a", idempotency_key="k")
    await agent.clear()
    stream = agent.execute_turn("a", idempotency_key="k")
    assert await collect(stream) == []
    result = await stream
    assert (result.turn, result.outcome, list(result.messages)) == (1, Outcome.COMPLETED, [])
    assert (await stores.state.load("ada")).turn_count == 1


async def test_a_key_that_was_refused_is_free(make_agent, stores):
    """What was not accepted has no name."""
    spy = SpyStores(stores)
    agent = await make_agent([text("one")], stores=spy.stores)

    def fail(name, _) -> None:
        if name == "claim":
            raise StoreUnavailable("gone", outcome_known=True)

    spy.hook = fail
    with pytest.raises(StoreUnavailable):
        await agent.execute_turn("a", idempotency_key="k")
    spy.hook = None
    assert (await agent.execute_turn("b", idempotency_key="k")).turn == 1


async def test_a_waiting_request_attaches_at_once(make_agent, stores):
    """`on_busy="wait"`, a long turn, the same key behind it: it is not waited for twice."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("ok"), text("next")],
        tools=[gate.tool],
        stores=stores,
        on_busy="wait",
    )
    stream = agent.execute_turn("a", idempotency_key="k")
    await gate.entered.wait()
    behind = agent.execute_turn("b", idempotency_key="l")
    same = agent.execute_turn("b", idempotency_key="l")
    gate.open.set()
    results = await asyncio.gather(stream, behind, same)
    assert [r.turn for r in results] == [1, 2, 2]


async def test_a_view_of_an_old_turn_shows_only_that_turn(make_agent, stores):
    """Not those before and after it."""
    agent = await make_agent([text("1"), text("2"), text("3")], stores=stores)
    for n in range(3):
        await agent.execute_turn(f"m{n}", idempotency_key=f"k{n}")
    events = await collect(agent.execute_turn("m1", idempotency_key="k1"))
    assert {e.turn for e in events} == {2}
    assert isinstance(events[0], TurnStart)
    assert isinstance(events[-1], TurnEnd)


@pytest.mark.parametrize("key", ["", "x" * 257, "a\x00b", "\ud800", 7])
async def test_a_key_that_cannot_be_one_is_refused_at_the_call(make_agent, memory_stores, key):
    """With its place."""
    agent = await make_agent(stores=memory_stores)
    with pytest.raises(ValueRefused) as refused:
        agent.execute_turn("a", idempotency_key=key)
    assert refused.value.path == "/idempotency_key"


async def test_a_turn_that_is_kept_in_memory_has_no_name(make_agent, memory_stores):
    """`auto_save=False`."""
    agent = await make_agent(stores=memory_stores, auto_save=False)
    with pytest.raises(AgentStateError):
        agent.execute_turn("a", idempotency_key="k")


async def test_keys_of_two_contexts_are_two(make_agent, stores):
    """The scope of a key is its context."""
    one = await make_agent([text("1")], stores=stores)
    two = await make_agent([text("2")], stores=stores, context_id="eve")
    assert (await one.execute_turn("a", idempotency_key="k")).text == "1"
    assert (await two.execute_turn("b", idempotency_key="k")).text == "2"


async def test_busy_here_and_now_still_refuses_a_new_key(make_agent, stores):
    """`on_busy="reject"` with a key: refused from the stream, and the key is free."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("ok"), text("later")],
        tools=[gate.tool],
        stores=stores,
        loop_config=LoopConfig(),
    )
    stream = agent.execute_turn("a")
    await gate.entered.wait()
    with pytest.raises(AgentBusy) as busy:
        await agent.execute_turn("b", idempotency_key="k")
    assert busy.value.turn == 1
    gate.open.set()
    await stream
    assert (await agent.execute_turn("b", idempotency_key="k")).text == "later"


async def test_a_view_holds_up_neither_idle_nor_shutdown(make_agent, stores):
    """It shows a turn that runs elsewhere: this agent may go, and the turn goes on."""
    gate = Gate()
    first = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores)
    other = await make_agent(stores=stores)
    stream = first.execute_turn("a", idempotency_key="k")
    await gate.entered.wait()
    view = other.execute_turn("a", idempotency_key="k")
    await view.accepted()
    await other.wait_for_idle()
    assert other.state.status is AgentStatus.READY
    await other.shutdown(cancel=True)
    with pytest.raises(AgentStateError):
        await view
    gate.open.set()
    assert (await stream).text == "ok"


async def test_the_result_of_an_old_turn_has_the_artifacts_of_that_turn(make_agent, stores):
    """What turns before and after it saved is theirs."""

    @tool
    async def save(name: str, context: ToolContext) -> str:
        """Save."""
        await context.artifacts.save(name, "text")
        return "saved"

    script = [reply for n in "abc" for reply in (tool_call("save", name=n), text(n))]
    agent = await make_agent(script, tools=[save], stores=stores)
    for n in "abc":
        await agent.execute_turn(n, idempotency_key=n)
    again = await make_agent([], stores=stores)
    for n in "abc":
        result = await again.execute_turn(n, idempotency_key=n)
        assert [a.artifact_id for a in result.artifacts] == [n]
