"""`Agent.refresh()`: a live agent shows what other processes have done to its context."""

import asyncio

import pytest

from looopy import tool
from looopy.errors import AgentNotStarted
from looopy.stores.owner import Owner
from looopy.testing import failure, text, tool_call
from looopy.testing.contracts.turns import begin
from looopy.types.state import AgentStatus


async def test_it_shows_turns_metadata_and_failure_of_others(make_agent, stores):
    """Counts, metadata, usage and the status are those of the store; without it, the old ones."""
    agent = await make_agent([], stores=stores)
    other = await make_agent([text("a"), failure(RuntimeError("no"))], stores=stores)
    await other.execute_turn("hi")
    await other.save_state({"title": "sums"})
    assert await other.tag(add=["x", "old"], remove=["old"]) == ("x",)
    assert (agent.state.turn_count, agent.state.metadata) == (0, {})
    state = await agent.refresh()
    assert state == agent.state
    assert (state.turn_count, state.metadata) == (1, {"title": "sums"})
    assert state.usage == other.state.usage
    assert state.tags == other.state.tags == ("x",)
    await other.execute_turn("and?")
    assert (await agent.refresh()).status is AgentStatus.FAILED
    assert agent.state.interrupted_turn is None
    assert agent.state.error is not None
    await other.clear()
    assert (await agent.refresh()).status is AgentStatus.READY


async def test_a_running_turn_elsewhere_makes_it_busy_and_its_end_ready(make_agent, stores):
    """A turn of another process is seen from its claim to its end; here no turn is taken for it."""
    agent = await make_agent([text("b")], stores=stores)
    owner = Owner.new()
    claimed = await begin(stores, holder=owner.token(60.0))
    assert (await agent.refresh()).status is AgentStatus.BUSY
    assert (await stores.state.load("ada")).epoch == claimed.epoch
    owner.retire()  # its process is provably gone
    state = await agent.refresh()
    assert (state.status, state.interrupted_turn) == (AgentStatus.READY, 1)
    assert (await agent.execute_turn(None)).text == "b"


async def test_a_tool_of_the_running_turn_may_call_it(make_agent, stores):
    """The turn owns the context: the call reads nothing, and waits for nobody."""
    seen = []

    @tool
    async def look() -> str:
        """Look."""
        seen.append((await agent.refresh()).status)
        return "done"

    agent = await make_agent([tool_call("look"), text("ok")], tools=[look], stores=stores)
    assert (await agent.execute_turn("look")).text == "ok"
    assert seen == [AgentStatus.BUSY]


async def test_a_paused_agent_stays_paused_and_a_stopped_one_refuses(make_agent, stores):
    """Its counts are those of the store; before `start()` and after `shutdown()` it raises."""
    agent = await make_agent([], stores=stores)
    other = await make_agent([text("a")], stores=stores)
    await agent.pause()
    await other.execute_turn("hi")
    state = await agent.refresh()
    assert (state.status, state.turn_count) == (AgentStatus.PAUSED, 1)
    await agent.shutdown()
    with pytest.raises(AgentNotStarted):
        await agent.refresh()


async def test_many_at_once_with_a_turn_among_them(make_agent, stores):
    """Reading and running do not disturb each other, whatever their order."""
    agent = await make_agent([text("a"), text("b")], stores=stores)
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(agent.refresh())
        turn = agent.execute_turn("hi")
        for _ in range(5):
            group.create_task(agent.refresh())
    assert (await turn).text == "a"
    await agent.refresh()
    assert (agent.state.status, agent.state.turn_count) == (AgentStatus.READY, 1)
    assert (await agent.execute_turn("more")).text == "b"


async def test_a_tag_may_come_before_the_first_turn_and_in_the_middle_of_one(make_agent, stores):
    """The tags are there at once, a turn keeps them, and the listing finds the context by them."""

    @tool
    async def note() -> str:
        """Note."""
        await agent.tag(add=["b"])
        return "done"

    agent = await make_agent([tool_call("note"), text("ok")], tools=[note], stores=stores)
    assert await agent.tag(add=["a"]) == ("a",)
    assert agent.state.tags == ("a",)
    assert (await agent.execute_turn("note it")).text == "ok"
    assert agent.state.tags == (await agent.refresh()).tags == ("a", "b")
    page = await stores.contexts.list(tags=["a", "b"])
    assert [record.context_id for record in page.items] == ["ada"]
    await agent.clear()
    assert agent.state.tags == ("a", "b")
