"""Nobody waits for ever: whoever waits for an agent can stop, and no turn stands behind its own."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import Gate, Sluggish, assert_whole, until
from tests.loop_time import advance

from looopy import Agent, ToolContext, tool
from looopy.errors import (
    AgentBusy,
    AgentStateError,
    StoreUnavailable,
    TurnIncomplete,
)
from looopy.stores.owner import Owner
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.state import Outcome


class Hold:
    """Keeps a store from answering calls of one name, until it is let go."""

    def __init__(self, spy: SpyStores, name: str, *, nth: int = 1) -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        left = nth

        async def hold(called: str, _argument: object) -> None:
            nonlocal left
            if called != name:
                return
            left -= 1
            if left == 0:
                self.asked.set()
                await self.open.wait()

        spy.hook = hold


async def standing(stores, count: int) -> bool:
    """Whether so many stand in line."""
    return len(await stores.state.wait_queue("ada")) == count


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("post", lambda agent: agent.steer("psst")),
        ("ask_cancel", lambda agent: agent.cancel()),
        ("clear", lambda agent: agent.clear()),
    ],
)
async def test_a_write_beside_a_turn_can_be_cancelled(make_agent, memory_stores, name, act):
    """The write is carried out, and then the cancellation is that of the caller again."""
    spy = SpyStores(memory_stores)
    agent = await make_agent([text("one"), text("two")], stores=spy.stores)
    await agent.execute_turn("a")
    hold = Hold(spy, name)
    acting = asyncio.create_task(act(agent))
    await hold.asked.wait()
    acting.cancel()
    hold.open.set()
    await asyncio.wait([acting])
    assert acting.cancelled()
    assert name in spy.done
    spy.hook = None
    assert (await agent.execute_turn("b")).outcome is Outcome.COMPLETED


async def test_a_tool_that_takes_too_long_to_save_ends_alone(make_agent, memory_stores):
    """Its timeout strikes within the commit of its artifact: the turn goes on all the same."""
    spy = SpyStores(memory_stores)
    hold = Hold(spy, "commit", nth=2)

    tasks = []

    @tool(timeout_s=60)
    async def save(context: ToolContext) -> str:
        """Save an artifact."""
        tasks.append(asyncio.current_task())
        await context.artifacts.save("a", "text")
        return "saved"

    agent = await make_agent([tool_call("save"), text("done")], tools=[save], stores=spy.stores)
    stream = agent.execute_turn("go")
    await hold.asked.wait()
    advance(61)

    async def struck() -> bool:
        return bool(tasks[0].cancelling())

    await until(struck)
    hold.open.set()
    result = await stream
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "done")
    assert [a.artifact_id for a in result.artifacts] == ["a"]
    await assert_whole(memory_stores)


@pytest.mark.parametrize("leave", ["shutdown", "pause", "wait_for_idle"])
async def test_leaving_does_not_wait_for_a_turn_that_is_only_watched(
    make_agent, memory_stores, leave
):
    """A request that is found to be accepted elsewhere while somebody waits for the last turn."""
    gate = Gate()
    there = await make_agent(
        [tool_call("gate"), text("done")], tools=[gate.tool], stores=memory_stores
    )
    running = there.execute_turn("go", idempotency_key="k")
    await gate.entered.wait()
    spy = SpyStores(memory_stores)
    here = await make_agent(stores=spy.stores)
    hold = Hold(spy, "turn_of_key")
    view = here.execute_turn("go", idempotency_key="k")
    await hold.asked.wait()
    leaving = asyncio.create_task(getattr(here, leave)())
    await asyncio.sleep(0)
    hold.open.set()
    await leaving
    gate.open.set()
    assert (await running).turn == 1
    if leave == "shutdown":
        with pytest.raises(AgentStateError):
            await view
    else:
        assert (await view).text == "done"


async def test_a_turn_that_waits_for_another_of_its_agent_can_be_cancelled(
    make_agent, memory_stores
):
    """However long that one takes to come to its place in line."""
    source = Sluggish()
    agent = await make_agent([text("one")], tools=[source], stores=memory_stores, on_busy="wait")
    agent._core.known.stale = True
    source.hangs = True
    first, second = agent.execute_turn("a"), agent.execute_turn("b")
    await source.asked.wait()
    second.cancel()
    with pytest.raises(TurnIncomplete):
        await second
    first.cancel()
    with pytest.raises(TurnIncomplete):
        await first


async def test_a_second_waiting_turn_of_an_agent_comes_before_later_agents(
    make_agent, memory_stores
):
    """A holds it; B's two turns wait, then C's: they run in that order."""
    gate = Gate()
    echo = ScriptedProvider(lambda _: text("re"), repeat=True)
    a = await make_agent([tool_call("gate"), text("x")], tools=[gate.tool], stores=memory_stores)
    b = await make_agent(echo, stores=memory_stores, on_busy="wait")
    c = await make_agent(echo, stores=memory_stores, on_busy="wait")
    first = a.execute_turn("a")
    await gate.entered.wait()
    waiting = [b.execute_turn("b1"), b.execute_turn("b2")]

    await until(lambda: standing(memory_stores, 2))
    waiting.append(c.execute_turn("c"))
    await until(lambda: standing(memory_stores, 3))
    gate.open.set()
    await first
    assert [r.turn for r in await asyncio.gather(*waiting)] == [2, 3, 4]


async def test_a_killed_waiter_does_not_make_the_context_busy(make_agent, memory_stores):
    """Its turn is over, its place is kept for a while yet: provably dead is dead at once."""
    dead = Owner.new()
    await memory_stores.state.join_wait_queue("ada", dead.token(), ttl_s=3600)
    dead.retire()
    agent = await make_agent([text("hello")], stores=memory_stores)
    assert (await agent.execute_turn("hi")).text == "hello"


async def test_a_refused_clear_keeps_buffered_turns(make_agent, memory_stores):
    """A turn runs elsewhere: nothing was cleared, so nothing is lost."""
    gate = Gate()
    here = await make_agent([text("mine")], stores=memory_stores, auto_save=False)
    await here.execute_turn("a")
    there = await make_agent(
        [tool_call("gate"), text("x")], tools=[gate.tool], stores=memory_stores
    )
    running = there.execute_turn("b")
    await gate.entered.wait()
    with pytest.raises(AgentBusy):
        await here.clear()
    assert [m.text for m in await here.get_messages(after=0)][-2:] == ["a", "mine"]
    gate.open.set()
    await running


@pytest.mark.parametrize("knew", ["made", "loaded"])
async def test_a_recreated_context_gets_no_event_of_the_deleted_one(
    make_agent, memory_stores, knew
):
    """An agent knew it, and it is made again by another: the model sees the new one alone."""
    seen = []

    def reply(request):
        seen.append([m.text for m in request.messages])
        return text("ok")

    old = await make_agent(ScriptedProvider(reply, repeat=True), stores=memory_stores)
    await old.execute_turn("secret")
    if knew == "loaded":
        await old.shutdown()
        await old.start()
    await memory_stores.state.delete("ada")
    new = await make_agent([text("fresh"), text("air")], stores=memory_stores)
    await new.execute_turn("hello")
    await new.execute_turn("more")
    await old.execute_turn("again")
    assert seen[-1] == ["hello", "fresh", "more", "air", "again"]
    await assert_whole(memory_stores)


async def test_turns_of_an_agent_that_lost_their_places_do_not_wait_for_each_other(
    make_agent, memory_stores
):
    """The line dissolves, and the later turn is the first to stand in it again."""
    gate = Gate()
    a = await make_agent([tool_call("gate"), text("x")], tools=[gate.tool], stores=memory_stores)
    echo = ScriptedProvider(lambda _: text("re"), repeat=True)
    b = await make_agent(echo, stores=memory_stores, on_busy="wait")
    first = a.execute_turn("a")
    await gate.entered.wait()
    waiting = [b.execute_turn("b1"), b.execute_turn("b2")]

    async def anew() -> bool:
        return [w.ticket for w in await memory_stores.state.wait_queue("ada")][-1:] > [2]

    earlier, later = (turn.claiming._queue_place for turn in b._core.turns._queue)

    async def placed() -> bool:
        return (earlier.ticket, later.ticket) == (1, 2) and later._kept_until > 0

    await until(placed)
    await memory_stores.state.leave_wait_queue("ada", 1)
    await memory_stores.state.leave_wait_queue("ada", 2)
    later._kept_until = 0.0
    later.ring()
    await until(anew)
    earlier._kept_until = 0.0
    gate.open.set()
    await first
    assert [r.turn for r in await asyncio.gather(*waiting)] == [2, 3]
    assert await memory_stores.state.wait_queue("ada") == []


async def test_a_turn_looks_again_after_an_end_that_was_refused(make_agent, memory_stores):
    """It was time to look while that end was on its way; nothing rings from then on."""
    gate = Gate()
    notifier = memory_stores.journal.notifier
    notifier.poll_s, notifier.notify = 0.01, lambda *_, **__: None
    spy = SpyStores(memory_stores)
    agent = await make_agent(
        [text("one"), tool_call("gate"), text("never")], tools=[gate.tool], stores=spy.stores
    )
    hold = Hold(spy, "commit")
    stream = agent.execute_turn("a")
    await hold.asked.wait()
    inbox = agent._core.turns.running._log.inbox
    await agent.follow_up("b")

    async def rang() -> bool:
        return inbox._timer.due < asyncio.get_running_loop().time()

    await until(rang)
    hold.open.set()
    await gate.entered.wait()
    await memory_stores.journal.ask_cancel("ada")
    assert (await stream).outcome is Outcome.CANCELLED
    await assert_whole(memory_stores)


async def test_a_bell_that_rings_while_a_turn_looks_makes_it_look_again(make_agent, memory_stores):
    """What it is reading is older than what rang."""
    gate = Gate()
    spy = SpyStores(memory_stores)
    agent = await make_agent([tool_call("gate"), text("x")], tools=[gate.tool], stores=spy.stores)
    stream = agent.execute_turn("a")
    await gate.entered.wait()
    read, go_on = asyncio.Event(), asyncio.Event()

    async def late(name, argument):
        if name == "inbox" and not read.is_set():
            found = await memory_stores.journal.inbox(*argument[0], **argument[1])
            read.set()
            await go_on.wait()
            return found
        return None

    spy.hook = late
    memory_stores.journal.notifier.poll_s = 3600
    memory_stores.journal.notifier.notify("default", "ada", inbox=True)
    await read.wait()
    await memory_stores.journal.ask_cancel("ada")
    go_on.set()
    assert (await stream).outcome is Outcome.CANCELLED


async def test_a_request_to_stop_that_fails_is_logged(make_agent, memory_stores, caplog):
    """Cancelling a view asks the turn elsewhere; the caller has nothing to be told by."""
    gate = Gate()
    there = await make_agent(
        [tool_call("gate"), text("done")], tools=[gate.tool], stores=memory_stores
    )
    running = there.execute_turn("go", idempotency_key="k")
    await gate.entered.wait()
    spy = SpyStores(memory_stores)
    here = await make_agent(stores=spy.stores)
    view = here.execute_turn("go", idempotency_key="k")
    await view.accepted()

    def away(name, _argument):
        if name == "ask_cancel":
            raise StoreUnavailable("away")

    spy.hook = away
    view.cancel()
    await here.wait_for_idle()
    assert "was not asked to stop: StoreUnavailable" in caplog.text
    gate.open.set()
    assert (await view).text == (await running).text == "done"


def test_an_agent_that_was_waited_for_works_in_another_event_loop(tmp_path):
    """What waits belongs to an event loop; the agent, shut down, does not."""
    echo = ScriptedProvider(lambda _: text("hi"), repeat=True)
    url = f"sqlite:///{tmp_path}/chat.db"
    agent = Agent("ada", llm_provider=echo, stores=url, on_busy="wait")

    async def live() -> list[int]:
        await asyncio.gather(agent.start(), agent.start())
        results = await asyncio.gather(agent.execute_turn("a"), agent.execute_turn("b"))
        await asyncio.gather(agent.shutdown(), agent.shutdown())
        return [result.turn for result in results]

    assert [asyncio.run(live()) for _ in range(2)] == [[1, 2], [3, 4]]
