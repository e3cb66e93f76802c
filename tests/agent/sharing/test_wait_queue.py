"""`on_busy="wait"`: served in order of arrival, whoever runs the turns and whoever dies."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import Gate, assert_whole, until
from tests.shares import split

from looopy import LoopConfig
from looopy.agent import claim as claiming
from looopy.agent import wait_queue
from looopy.errors import AgentBusy, TurnIncomplete
from looopy.stores.owner import Owner
from looopy.stores.records import Claim
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.event import TurnStart

# Who holds a context, and who is next, is agreed on in the store alone: on Postgres in every run.
pytestmark = pytest.mark.parametrize(
    "backend", split(["memory", "sqlite", "asyncpg"], ["psycopg"]), indirect=True
)


def echo() -> ScriptedProvider:
    """A model that repeats what was said last."""
    return ScriptedProvider(lambda r: text(f"re {r.messages[-1].text}"), repeat=True)


async def standing(stores, count: int) -> None:
    """Wait until a waiter is queued who was at least the *count*-th to come."""

    async def came() -> bool:
        return any(waiter.ticket >= count for waiter in await stores.state.wait_queue("ada"))

    await until(came)


@pytest.fixture
async def held(make_agent, stores):
    """An agent whose turn holds the context until its gate is opened."""
    gate = Gate()
    agent = await make_agent(
        ScriptedProvider([tool_call("gate"), *[text("done")] * 5]),
        tools=[gate.tool],
        stores=stores,
        on_busy="wait",
    )
    stream = agent.execute_turn("first")
    await gate.entered.wait()
    return agent, gate, stream


async def test_agents_are_served_in_order_of_arrival(make_agent, stores, held):
    """Ten of them, each its own process as far as the store can tell."""
    _, gate, stream = held
    waiting = []
    for n in range(10):
        agent = await make_agent(echo(), stores=stores, on_busy="wait")
        waiting.append(agent.execute_turn(f"{n}"))
        await standing(stores, n + 1)
    gate.open.set()
    await stream
    results = await asyncio.gather(*waiting)
    assert [r.turn for r in results] == list(range(2, 12))
    assert await stores.state.wait_queue("ada") == []
    await assert_whole(stores)


async def test_a_turn_queued_after_its_own_agent_keeps_its_place_among_others(
    make_agent, stores, held
):
    """B waits, then a second turn of the first agent, then C: they run in that order."""
    agent, gate, stream = held
    b = await make_agent(echo(), stores=stores, on_busy="wait")
    c = await make_agent(echo(), stores=stores, on_busy="wait")
    waiting = [b.execute_turn("b")]
    await standing(stores, 1)
    waiting.append(agent.execute_turn("again"))
    await standing(stores, 2)
    waiting.append(c.execute_turn("c"))
    await standing(stores, 3)
    gate.open.set()
    await stream
    results = await asyncio.gather(*waiting)
    assert [r.turn for r in results] == [2, 3, 4]
    await assert_whole(stores)


async def test_turns_of_one_agent_do_not_block_each_other(held, stores):
    """Five in a row behind a running one, all with tickets: no turn waits for one behind it."""
    agent, gate, stream = held
    waiting = [agent.execute_turn(f"{n}") for n in range(4)]
    await standing(stores, 4)
    gate.open.set()
    await stream
    results = await asyncio.gather(*waiting)
    assert [r.turn for r in results] == [2, 3, 4, 5]
    assert await stores.state.wait_queue("ada") == []


async def test_tickets_rise_as_turns_arrived(make_agent, stores):
    """One that is slow to take its place is not overtaken by the agent's next turn."""
    spy, gate, slow = SpyStores(stores), Gate(), []
    agent = await make_agent(
        ScriptedProvider([tool_call("gate"), *[text("done")] * 3]),
        tools=[gate.tool],
        stores=spy.stores,
        on_busy="wait",
        loop_config=LoopConfig(busy_timeout_s=5),
    )
    stream = agent.execute_turn("first")
    await gate.entered.wait()

    async def dawdle(name, _) -> None:
        if name == "turn_of_key" and not slow:
            slow.append(1)
            for _ in range(500):
                await asyncio.sleep(0)

    spy.hook = dawdle
    second = agent.execute_turn("second", idempotency_key="k")
    third = agent.execute_turn("third")
    await standing(stores, 2)
    gate.open.set()
    results = await asyncio.gather(stream, second, third)
    assert [r.turn for r in results] == [1, 2, 3]


async def test_a_turn_that_does_not_wait_is_refused_while_others_wait(make_agent, stores):
    """The context is free, and somebody who came earlier has not noticed yet."""
    other = Owner.new()
    ticket = await stores.state.join_wait_queue("ada", other.token(), ttl_s=60)
    hasty = await make_agent([text("one"), text("two")], stores=stores)
    with pytest.raises(AgentBusy):
        await hasty.execute_turn("let me")
    await stores.state.leave_wait_queue("ada", ticket)
    assert (await hasty.execute_turn("now")).text == "one"
    other.retire()


async def test_a_dead_waiter_is_passed_over_at_once(make_agent, stores, held):
    """Provably dead, on the same host: passed over at once, however long its place is kept."""
    _, gate, stream = held
    dead = Owner.new()
    await stores.state.join_wait_queue("ada", dead.token(), ttl_s=3600)
    agent = await make_agent(echo(), stores=stores, on_busy="wait")
    waiting = agent.execute_turn("next")
    await standing(stores, 2)
    dead.retire()
    gate.open.set()
    await stream
    assert (await waiting).turn == 2
    assert await stores.state.wait_queue("ada") == []


async def test_a_waiter_that_does_not_renew_loses_its_place(make_agent, stores, held):
    """Alive, or on another host, but stopped: after the time it had asked for."""
    _, gate, stream = held
    stopped = Owner.new()
    await stores.state.join_wait_queue("ada", stopped.token(), ttl_s=0.05)
    agent = await make_agent(echo(), stores=stores, on_busy="wait")
    waiting = agent.execute_turn("next")
    await standing(stores, 2)
    gate.open.set()
    await stream
    assert (await waiting).turn == 2
    stopped.retire()


async def test_a_waiter_that_gives_up_leaves_the_queue(make_agent, stores, held):
    """In time, or cancelled: the next in line is not held up."""
    _, gate, stream = held
    hasty = await make_agent(
        echo(), stores=stores, on_busy="wait", loop_config=LoopConfig(busy_timeout_s=0.1)
    )
    with pytest.raises(AgentBusy) as caught:
        await hasty.execute_turn("soon?")
    assert caught.value.turn == 1
    agent = await make_agent(echo(), stores=stores, on_busy="wait")
    waiting = agent.execute_turn("never mind")
    await standing(stores, 1)
    await agent.cancel()
    with pytest.raises(TurnIncomplete):
        await waiting
    assert await stores.state.wait_queue("ada") == []
    gate.open.set()
    await stream


async def test_a_waiter_that_slept_reads_the_store_again(make_agent, stores, monkeypatch):
    """The machine stood still until its time was over: what it had seen before counts no more."""
    spy = SpyStores(stores)
    agent = await make_agent(echo(), stores=spy.stores, on_busy="wait")
    stopped = Owner.new()
    await stores.state.claim(
        Claim(
            context_id="ada",
            holder=stopped.token(),
            ttl_s=60,
            expected_epoch=0,
            events=[TurnStart(context_id="ada", user_message=None)],
            actor_id=None,
            had_auth=False,
        )
    )
    seen = []
    clock = asyncio.get_running_loop().time
    for module in (claiming, wait_queue):
        monkeypatch.setattr(module, "_now", lambda: clock() + 3600 * len(seen))

    async def sleep(name, argument):
        if name != "load" or seen or not spy.of("join_wait_queue"):
            return None
        seen.append(await stores.state.load(argument))
        await stores.journal.clear("ada", force=True)
        return seen[0]

    spy.hook = sleep
    assert (await agent.execute_turn("next")).turn == 2
    assert seen[0].lease_live
    stopped.retire()


async def test_waiting_for_no_time_at_all_is_refusing(make_agent, stores, held):
    """`busy_timeout_s=0`."""
    _, gate, stream = held
    agent = await make_agent(
        echo(), stores=stores, on_busy="wait", loop_config=LoopConfig(busy_timeout_s=0)
    )
    with pytest.raises(AgentBusy):
        await agent.execute_turn("now")
    gate.open.set()
    await stream


async def test_a_free_context_costs_no_ticket(make_agent, stores):
    """Waiting is paid for by those who wait."""
    agent = await make_agent(echo(), stores=stores, on_busy="wait")
    for n in range(3):
        await agent.execute_turn(f"{n}")
    ticket = await stores.state.join_wait_queue("ada", "x", ttl_s=1)
    assert ticket == 1


async def test_a_line_that_is_dissolved_is_joined_again(make_agent, stores, held):
    """The place was taken away under one who waits: it gets another, and its turn comes."""
    _, gate, stream = held
    agent = await make_agent(echo(), stores=stores, on_busy="wait")
    waiting = agent.execute_turn("next")
    await standing(stores, 1)
    [place] = await stores.state.wait_queue("ada")
    await stores.state.leave_wait_queue("ada", place.ticket)
    gate.open.set()
    await stream
    assert (await waiting).turn == 2
    await assert_whole(stores)
