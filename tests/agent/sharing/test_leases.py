"""A lease that has run out is no death: an owner that lives keeps its turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.agent.kit import Gate, assert_whole
from tests.agent.sharing.test_sharing import NoRenewal, abroad, lease_is_over
from tests.shares import split

from looopy import LoopConfig, Outcome
from looopy.errors import AgentBusy, Fenced, TurnIncomplete
from looopy.stores.owner import Owner
from looopy.testing import SpyStores, text, tool_call
from looopy.testing.contracts.turns import CONTEXT, begin
from looopy.types.state import AgentStatus

# Who holds a context, and who is next, is agreed on in the store alone: on Postgres in every run.
pytestmark = pytest.mark.parametrize(
    "backend", split(["memory", "sqlite", "asyncpg"], ["psycopg"]), indirect=True
)

SOON = LoopConfig(lease_ttl_s=0.3)


class StandingStores(SpyStores):
    """
    Stores that stand still for an owner on another host, until `back` is set.

    Attributes:
        back: Its renewals are carried out from here on.
    """

    def __init__(self, stores):
        super().__init__(stores)
        self.back = asyncio.Event()

        async def hook(name, argument):
            if name == "claim":
                held = replace(argument, holder=abroad(argument.holder))
                return await stores.state.claim(held)
            if name == "renew":
                await self.back.wait()
            return None

        self.hook = hook


async def open_turn(make_agent, stores, gate, config=SOON):
    """A turn that stays in its tool until the gate opens."""
    owner = await make_agent(
        [tool_call("gate"), text("done")], tools=[gate.tool], stores=stores, loop_config=config
    )
    stream = owner.execute_turn("a")
    await gate.entered.wait()
    return stream


async def test_an_owner_keeps_its_turn_when_the_store_is_back(make_agent, stores):
    """Whoever found its lease expired looks again, and finds it renewed: no result is lost."""
    gate, standing = Gate(), StandingStores(stores)
    stream = await open_turn(make_agent, standing.stores, gate)
    await lease_is_over(stores)
    watching = SpyStores(stores)

    def hook(name, _):
        if name == "load" and len(watching.of("load")) == 2:
            standing.back.set()

    watching.hook = hook
    other = await make_agent([text("two")], stores=watching.stores, loop_config=SOON)
    assert other.state.status is AgentStatus.BUSY
    assert watching.of("claim") == []
    with pytest.raises(AgentBusy):
        await other.execute_turn("b")
    gate.open.set()
    assert (await stream).outcome is Outcome.COMPLETED
    assert (await other.execute_turn("b")).turn == 2
    await assert_whole(stores)


async def test_an_owner_that_renews_between_the_last_look_and_the_claim_keeps_its_turn(
    make_agent, stores
):
    """The claim of whoever takes over names no holder that is not proved dead."""
    gate = Gate()
    stream = await open_turn(make_agent, NoRenewal(stores).stores, gate)
    await lease_is_over(stores)
    watching = SpyStores(stores)

    async def hook(name, argument):
        if name == "claim" and argument.recover:
            watching.hook = None
            await stores.state.renew("ada", argument.expected_epoch, 60.0)

    watching.hook = hook
    other = await make_agent([], stores=watching.stores, loop_config=SOON)
    assert watching.hook is None
    assert other.state.status is AgentStatus.BUSY
    gate.open.set()
    assert (await stream).outcome is Outcome.COMPLETED


async def test_an_owner_that_is_seen_to_live_is_never_displaced_by_a_clock(make_agent, stores):
    """Its event loop may stand still for longer than any lease."""
    gate = Gate()
    stream = await open_turn(make_agent, NoRenewal(stores, here=True).stores, gate)
    await lease_is_over(stores)
    watching = SpyStores(stores)
    other = await make_agent([text("two")], stores=watching.stores, loop_config=SOON)
    assert other.state.status is AgentStatus.BUSY
    assert len(watching.of("load")) == 1  # one look is enough
    log = other.events()
    following = asyncio.ensure_future(anext(log))
    with pytest.raises(AgentBusy):
        await other.execute_turn("b")
    assert watching.of("claim") == []
    gate.open.set()
    assert (await stream).outcome is Outcome.COMPLETED
    await following
    await log.aclose()


async def test_an_owner_on_another_host_that_renews_no_more_loses_its_turn(make_agent, stores):
    """After half of a lease in which the store answered; by then it may write nothing."""
    gate = Gate()
    stream = await open_turn(make_agent, NoRenewal(stores).stores, gate)
    await lease_is_over(stores)
    watching = SpyStores(stores)
    other = await make_agent([text("two")], stores=watching.stores, loop_config=SOON)
    assert other.state.interrupted_turn == 1
    assert len(watching.of("load")) > 3
    gate.open.set()
    with pytest.raises(Fenced):
        await stream


async def test_a_follower_ends_the_turn_of_a_lost_owner(make_agent, stores):
    """It has looked at the lease all the while, each time with what it knew before."""
    reader = await make_agent([], stores=stores, loop_config=SOON)
    await begin(stores, holder="abroad/1/1/a;;0.3", ttl_s=0)
    async for event in reader.events(0):
        if event.type == "turn_end":
            break
    assert event.outcome is Outcome.INTERRUPTED


async def test_a_turn_is_cancelled_while_it_looks_at_an_expired_lease(make_agent, stores):
    """It need not wait until it knows; nothing was stored."""
    watching, looked = SpyStores(stores), asyncio.Event()
    agent = await make_agent([text("never")], stores=watching.stores)
    await begin(stores, holder="abroad/1/1/a;;300", ttl_s=0)
    watching.hook = lambda name, _: looked.set() if name == "load" else None
    stream = agent.execute_turn("b")
    await looked.wait()
    stream.cancel()
    with pytest.raises(TurnIncomplete):
        await stream
    assert (await stores.state.load(CONTEXT)).turn_count == 1


async def test_a_turn_released_by_its_owner_is_free_at_once(make_agent, stores):
    """It could not store its end, and it lives no more, though its process does."""
    owner = Owner.new()
    await begin(stores, holder=owner.token(60.0), ttl_s=60.0)
    owner.retire()
    agent = await make_agent([text("two")], stores=stores)
    assert agent.state.interrupted_turn == 1
