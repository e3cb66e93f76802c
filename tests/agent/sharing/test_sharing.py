"""Several agents on one context: one turn at a time, nothing lost, and the stale one stops."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.agent.kit import Gate, add, assert_whole, collect, types
from tests.loop_time import advance
from tests.shares import split

from looopy import Agent, LoopConfig, ToolContext, open_stores, tool
from looopy.errors import (
    AgentBusy,
    ContextNotFound,
    Fenced,
    StoreConflict,
    StoreUnavailable,
)
from looopy.stores.owner import Owner
from looopy.stores.records import ContextState
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.turns import begin
from looopy.testing.faults import SpyStores
from looopy.tools import ArtifactTools
from looopy.types.message import ToolResultMessage, Usage
from looopy.types.state import AgentStatus, Outcome


def echo():
    """A model that repeats what was said last."""
    return ScriptedProvider(lambda request: text(f"re {request.messages[-1].text}"))


async def test_a_second_agent_is_refused_while_the_first_runs_a_turn(make_agent, stores):
    """`AgentBusy` from the stream names the turn; nothing of it is stored; later it works."""
    gate = Gate()
    first = await make_agent([tool_call("gate"), text("one")], tools=[gate.tool], stores=stores)
    second = await make_agent([text("two")], stores=stores)
    stream = first.execute_turn("a")
    await gate.entered.wait()
    refused = second.execute_turn("b")
    for wait in (refused, refused.accepted()):
        with pytest.raises(AgentBusy) as caught:
            await wait
        assert caught.value.turn == 1
    gate.open.set()
    await stream
    assert (await second.execute_turn("b")).text == "two"
    assert [m.text for m in await first.get_messages()][-2:] == ["b", "two"]
    await assert_whole(stores)


async def test_starting_while_another_runs_a_turn_is_busy(make_agent, stores):
    """It succeeds; the status says so; the turn is left alone; afterwards the agent works."""
    gate = Gate()
    first = await make_agent([tool_call("gate"), text("one")], tools=[gate.tool], stores=stores)
    stream = first.execute_turn("a")
    await gate.entered.wait()
    second = await make_agent([text("two")], stores=stores)
    assert second.state.status is AgentStatus.BUSY
    with pytest.raises(AgentBusy) as caught:
        await second.execute_turn("b")
    assert caught.value.turn == 1
    assert second.state.status is AgentStatus.BUSY
    gate.open.set()
    assert (await stream).outcome is Outcome.COMPLETED
    assert (await second.execute_turn("b")).text == "two", "it looks again before it refuses"
    assert second.state.status is AgentStatus.READY
    await assert_whole(stores)


async def test_waiting_for_another_agent_runs_after_it(make_agent, stores):
    """`on_busy="wait"`: both turns are whole, and the second sees the first."""
    gate = Gate()
    first = await make_agent([tool_call("gate"), text("one")], tools=[gate.tool], stores=stores)
    provider = ScriptedProvider([text("two")])
    second = await make_agent(provider, stores=stores, on_busy="wait")
    stream = first.execute_turn("a")
    await gate.entered.wait()
    waiting = second.execute_turn("b")
    for _ in range(20):
        await asyncio.sleep(0)
    assert second.state.status is AgentStatus.BUSY
    gate.open.set()
    await stream
    assert (await waiting).turn == 2
    assert [m.text for m in provider.requests[0].messages] == ["a", "", "through", "one", "b"]
    await assert_whole(stores)


async def test_waiting_for_another_agent_gives_up_in_time(make_agent, memory_stores):
    """After `busy_timeout_s` the error is that of refusing."""
    gate = Gate()
    first = await make_agent([tool_call("gate")], tools=[gate.tool], stores=memory_stores)
    second = await make_agent(
        [text("two")],
        stores=memory_stores,
        on_busy="wait",
        loop_config=LoopConfig(busy_timeout_s=0.05),
    )
    first.execute_turn("a")
    await gate.entered.wait()
    with pytest.raises(AgentBusy) as caught:
        await second.execute_turn("b")
    assert caught.value.turn == 1


async def test_agents_see_the_turns_of_others(make_agent, stores):
    """A stale agent reads on before it speaks: no message is lost or doubled."""
    one, two = echo(), echo()
    first = await make_agent(one, stores=stores)
    second = await make_agent(two, stores=stores)
    for n in range(3):
        await first.execute_turn(f"a{n}")
        await second.execute_turn(f"b{n}")
    assert [m.text for m in two.requests[-1].messages] == [
        said for n in range(3) for said in (f"a{n}", f"re a{n}", f"b{n}", f"re b{n}")
    ][:-1]
    assert second.state.turn_count == 6
    await assert_whole(stores)


async def test_a_stale_agent_reads_only_new_messages(make_agent, stores):
    """And the newest message that it had: the store may have gone back meanwhile."""
    spy = SpyStores(stores)
    first = await make_agent(echo(), stores=spy.stores)
    second = await make_agent(echo(), stores=stores)
    await first.execute_turn("a")
    for others, after in (("b", 1), ("d", 5)):
        await second.execute_turn(others)
        spy.calls.clear()
        await first.execute_turn("c")
        assert spy.of("recent") == []
        [(_, options)] = spy.of("records")
        assert options["after"] == after


async def test_many_agents_on_one_context_take_turns(make_agent, stores):
    """Ten agents wait for each other: ten whole turns."""
    agents = [await make_agent(echo(), stores=stores, on_busy="wait") for _ in range(10)]
    results = await asyncio.gather(*(a.execute_turn(f"{i}") for i, a in enumerate(agents)))
    assert sorted(r.turn for r in results) == list(range(1, 11))
    assert [r.text for r in results] == [f"re {i}" for i in range(10)]
    await assert_whole(stores)


class NoRenewal(SpyStores):
    """
    Stores whose lease is never renewed, as by a process that is stopped.

    Args:
        here: Its owner is what it is, a turn of this process. Otherwise it is on another host.
    """

    def __init__(self, stores, *, here=False):
        super().__init__(stores)

        def hook(name, argument):
            if name == "claim" and not here:
                return self._claim_abroad(stores, argument)
            return True if name == "renew" else None

        self.hook = hook

    @staticmethod
    async def _claim_abroad(stores, claim):
        return await stores.state.claim(replace(claim, holder=abroad(claim.holder)))


def abroad(holder):
    """The same holder, on a host about whose processes nothing can be proved."""
    return f"abroad{holder}"


async def lease_is_over(stores):
    """Return when the lease of the context has expired by the store's clock."""
    while (await stores.state.load("ada")).lease_live:  # noqa: ASYNC110 - only the store knows
        await asyncio.sleep(0.01)


async def test_an_owner_that_lost_its_lease_is_fenced(make_agent, stores):
    """Who took over goes on; the stale owner writes nothing more, and hears `Fenced`."""
    gate = Gate()
    spy = NoRenewal(stores)
    stale = await make_agent(
        [text("first"), tool_call("gate"), text("never")],
        tools=[gate.tool],
        stores=spy.stores,
        loop_config=LoopConfig(lease_ttl_s=0.05),
    )
    await stale.execute_turn("before")
    stream = stale.execute_turn("a")
    await gate.entered.wait()
    await lease_is_over(stores)
    other = await make_agent([text("two")], stores=stores)
    assert other.state.interrupted_turn == 2
    assert (await other.execute_turn("b")).turn == 3
    before = await stores.journal.events("ada")
    gate.open.set()
    with pytest.raises(Fenced):
        await stream
    assert await stores.journal.events("ada") == before
    await assert_whole(stores)
    seen = []

    def reply(request):
        seen.extend(request.messages)
        return text("back")

    stale._core.resources.provider = ScriptedProvider(reply)
    assert (await stale.execute_turn("c")).turn == 4
    assert [m.text for m in seen if not isinstance(m, ToolResultMessage)] == [
        "before",
        "first",
        "a",
        "",
        "b",
        "two",
        "c",
    ]
    await assert_whole(stores)


async def test_an_owner_that_lost_its_lease_deletes_no_artifact(make_agent, stores):
    """The artifact of who took over stays, and the tool of the stale owner hears `Fenced`."""
    entered, displaced = asyncio.Event(), asyncio.Event()
    refused = []

    @tool
    async def tidy(context: ToolContext) -> str:
        """Delete a report, late."""
        entered.set()
        await displaced.wait()
        try:
            await context.artifacts.delete("report")
        except Fenced as error:
            refused.append(error)
            raise
        return "deleted"

    stale = await make_agent(
        [tool_call("tidy"), text("never")],
        tools=[tidy],
        stores=NoRenewal(stores).stores,
        loop_config=LoopConfig(lease_ttl_s=0.05),
    )
    stream = stale.execute_turn("a")
    await entered.wait()
    await lease_is_over(stores)
    other = await make_agent(
        [tool_call("create_file_artifact", artifact_id="report", content="mine"), text("two")],
        tools=[ArtifactTools()],
        stores=stores,
    )
    await other.execute_turn("b")
    before = await stores.journal.events("ada")
    displaced.set()
    with pytest.raises(Fenced):
        await stream
    assert len(refused) == 1
    assert await stores.artifacts.load("ada", "report") == b"mine"
    assert await stores.journal.events("ada") == before
    await assert_whole(stores)


async def test_a_turn_that_died_counts_for_the_budgets(make_agent, stores):
    """With what its tools had charged, and with its time, as its record says."""
    gate = Gate()

    @tool
    async def research(context: ToolContext) -> str:
        """Call a model."""
        context.charge(Usage(input=10, total_tokens=10))
        return "found"

    stale = await make_agent(
        [tool_call("research"), tool_call("gate")],
        tools=[research, gate.tool],
        stores=NoRenewal(stores).stores,
        loop_config=LoopConfig(lease_ttl_s=0.05),
    )
    stream = stale.execute_turn("a")
    await gate.entered.wait()
    await lease_is_over(stores)
    other = await make_agent([], stores=stores)
    assert other.state.interrupted_turn == 1
    gate.open.set()
    with pytest.raises(Fenced):
        await stream
    state = (await stores.state.load("ada")).state
    [turn] = await stores.journal.turns("ada")
    assert state.charged.total_tokens == 10
    assert state.run_us == (turn.ended_at - turn.started_at) // timedelta(microseconds=1)


async def test_an_owner_that_comes_back_in_anothers_turn_is_fenced(make_agent, stores):
    """What it would still write does not land in the turn that runs now, whose lease is live."""
    old, new = Gate(), Gate()
    stale = await make_agent(
        [tool_call("gate"), text("never")],
        tools=[old.tool],
        stores=NoRenewal(stores).stores,
        loop_config=LoopConfig(lease_ttl_s=0.05),
    )
    stream = stale.execute_turn("a")
    await old.entered.wait()
    await lease_is_over(stores)
    other = await make_agent([tool_call("gate"), text("two")], tools=[new.tool], stores=stores)
    running = other.execute_turn("b")
    await new.entered.wait()
    before = await stores.journal.events("ada")
    old.open.set()
    with pytest.raises(Fenced):
        await stream
    assert await stores.journal.events("ada") == before
    new.open.set()
    assert (await running).text == "two"
    await assert_whole(stores)


async def test_an_owner_that_cannot_renew_stops_its_tool(make_agent, stores):
    """It notices at the next renewal, not only at the next commit."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate")],
        tools=[gate.tool],
        stores=stores,
        loop_config=LoopConfig(lease_ttl_s=0.05),
    )
    stream = agent.execute_turn("a")
    await gate.entered.wait()
    await stores.journal.clear("ada", force=True)
    with pytest.raises(Fenced):
        await stream
    assert agent.state.status is AgentStatus.READY


async def test_a_lease_is_renewed_while_a_turn_runs(make_agent, stores):
    """A turn longer than the lease keeps its context."""
    gate = Gate()
    spy = SpyStores(stores)
    renewed = asyncio.Event()
    agent = await make_agent(
        [tool_call("gate"), text("ok")],
        tools=[gate.tool],
        stores=spy.stores,
        loop_config=LoopConfig(lease_ttl_s=0.06),
    )
    spy.hook = lambda name, _: (
        renewed.set() if name == "renew" and len(spy.of("renew")) > 4 else None
    )
    stream = agent.execute_turn("a")
    await gate.entered.wait()
    await renewed.wait()
    other = await make_agent([], stores=stores)
    assert other.state.status is AgentStatus.BUSY
    gate.open.set()
    assert (await stream).outcome is Outcome.COMPLETED
    record = await stores.state.load("ada")
    assert record.holder is None
    assert not record.lease_live


async def test_after_a_turn_its_lease_is_renewed_no_more(make_agent, stores):
    """However long the agent then lives."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [text("ok")], stores=spy.stores, loop_config=LoopConfig(lease_ttl_s=60.0)
    )
    await agent.execute_turn("a")
    for _ in range(3):
        advance(61)
        for _ in range(10):
            await asyncio.sleep(0)
    assert spy.of("renew") == []


async def test_no_lease_is_held_between_turns(make_agent, stores):
    """After each end, however it came."""
    agent = await make_agent([text("hi")], stores=stores)
    await agent.execute_turn("a")
    record = await stores.state.load("ada")
    assert (record.holder, record.lease_live, record.open_turn) == (None, False, None)


async def test_clear_hides_the_history_for_everyone(make_agent, stores):
    """Counts and numbers go on; the other agent's model sees nothing of before."""
    one, two = echo(), echo()
    first = await make_agent(one, stores=stores)
    second = await make_agent(two, stores=stores)
    await first.execute_turn("a")
    await second.execute_turn("b")
    seen = []
    second.subscribe(seen.append)
    await first.clear()
    assert await first.get_messages() == []
    assert first.state.status is AgentStatus.READY
    result = await second.execute_turn("c")
    assert result.turn == 3
    assert [m.text for m in two.requests[-1].messages] == ["c"]
    events = await stores.journal.events("ada")
    assert types(events) == [
        "history_cleared",
        "turn_start",
        "message_end",
        "message_end",
        "turn_end",
    ]
    assert events[0].seq == 9
    await first.clear()
    await first.execute_turn("d")
    assert [m.text for m in one.requests[-1].messages] == ["d"]


async def test_clear_is_refused_while_a_turn_runs(make_agent, stores):
    """Here and elsewhere; `force` fences it."""
    gate = Gate()
    first = await make_agent([tool_call("gate")], tools=[gate.tool], stores=stores)
    second = await make_agent([text("two")], stores=stores)
    stream = first.execute_turn("a")
    await gate.entered.wait()
    for agent in (first, second):
        with pytest.raises(AgentBusy) as caught:
            await agent.clear()
        assert caught.value.turn == 1
    await second.clear(force=True)
    assert second.state.status is AgentStatus.READY
    gate.open.set()
    with pytest.raises(Fenced):
        await stream
    assert await stores.messages.list("ada") == []
    result = await second.execute_turn("b")
    assert (result.turn, result.text) == (2, "two")


async def test_clear_with_force_stops_a_turn_of_this_agent(make_agent, stores):
    """It ends as cancelled, and is then hidden with everything else."""
    gate = Gate()
    agent = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores)
    stream = agent.execute_turn("a")
    await gate.entered.wait()
    await agent.clear(force=True)
    assert (await stream).outcome is Outcome.CANCELLED
    assert await agent.get_messages() == []
    assert (await agent.execute_turn("b")).turn == 2


async def test_clear_ends_the_turn_of_a_dead_owner(make_agent, stores):
    """A process that is gone runs nothing: there is no need for force."""
    agent = await make_agent([text("ok")], stores=stores)
    owner = Owner.new()
    await begin(stores, holder=owner.token())
    owner.retire()
    await agent.clear()
    assert await agent.get_messages() == []
    assert (await agent.execute_turn("b")).turn == 2


async def test_clearing_an_empty_context_succeeds(make_agent, stores):
    """An unknown context stays unknown."""
    agent = await make_agent([text("hi")], stores=stores)
    await agent.clear()
    await agent.clear()
    assert agent.state.status is AgentStatus.READY
    assert (await agent.execute_turn("a")).turn == 1


async def test_clear_removes_pending_requests_and_the_failure(make_agent, stores):
    """Artifacts too; a paused agent stays paused."""
    agent = await make_agent([text("hi")], stores=stores)
    await agent.execute_turn("a")
    await stores.artifacts.save("ada", "note", "text")
    await agent.pause()
    await agent.clear()
    assert agent.state.status is AgentStatus.PAUSED
    assert await agent.get_artifacts() == []
    state = (await stores.state.load("ada")).state
    assert state == ContextState(**state.sums)
    assert state.usage == agent.state.usage
    await agent.resume()


async def test_metadata_is_saved_and_read_back(make_agent, stores):
    """By a version: the second of two writers is told, and reads the first one's after that."""
    first = await make_agent([text("hi")], stores=stores)
    second = await make_agent([], stores=stores)
    await first.save_state({"title": "one"})
    assert first.state.metadata == {"title": "one"}
    with pytest.raises(StoreConflict):
        await second.save_state({"title": "two"})
    assert second.state.metadata == {"title": "one"}
    await second.save_state({"title": "two"})
    await second.save_state()
    third = await make_agent([], stores=stores)
    assert third.state.metadata == {"title": "two"}
    assert first.state.metadata == {"title": "one"}
    await first.execute_turn("go")
    with pytest.raises(StoreConflict):
        await first.save_state({"title": "three"})
    assert first.state.metadata == {"title": "two"}


async def test_metadata_that_a_turn_finds_changed_is_shown(make_agent, stores):
    """What another agent saved is in the state after the next reading, and can be replaced."""
    first = await make_agent([text("1"), text("2")], stores=stores)
    second = await make_agent([text("b")], stores=stores)
    await first.execute_turn("a")
    await second.pause()
    await second.resume()
    await second.save_state({"title": "two"})
    await second.execute_turn("b")
    await first.execute_turn("c")
    assert first.state.metadata == {"title": "two"}
    await first.save_state({"title": "three"})
    assert first.state.metadata == {"title": "three"}


async def test_a_snapshot_of_the_state_does_not_change(make_agent, memory_stores):
    """It is a value: later turns and metadata are in later snapshots."""
    agent = await make_agent([text("hi")], stores=memory_stores)
    await agent.save_state({"title": "one"})
    before = agent.state
    await agent.save_state({"title": "two"})
    await agent.execute_turn("a")
    assert before.metadata == {"title": "one"}
    assert before.turn_count == 0
    with pytest.raises(TypeError):
        before.metadata["title"] = "three"
    assert agent.state.created_at is not None
    assert agent.state.last_activity >= agent.state.created_at


async def test_contexts_do_not_meet(make_agent, stores):
    """Two contexts run at the same time, and each has its own history."""
    gate = Gate()
    one = await make_agent(
        [tool_call("gate"), text("1")], tools=[gate.tool], stores=stores, context_id="one"
    )
    two = await make_agent([text("2")], stores=stores, context_id="two")
    stream = one.execute_turn("a")
    await gate.entered.wait()
    assert (await two.execute_turn("b")).text == "2"
    gate.open.set()
    await stream
    assert [m.text for m in await two.get_messages()] == ["b", "2"]
    await assert_whole(stores, "one")
    await assert_whole(stores, "two")


async def test_tenants_do_not_meet():
    """The same id in two tenants is two contexts."""
    async with open_stores("memory:") as stores:
        one = Agent("ada", llm_provider=ScriptedProvider([text("1")]), stores=stores)
        two = Agent(
            "ada", llm_provider=ScriptedProvider([text("2")]), stores=stores.for_tenant("other")
        )
        async with one, two:
            await one.execute_turn("a")
            await two.execute_turn("b")
            assert [m.text for m in await one.get_messages()] == ["a", "1"]
            assert [m.text for m in await two.get_messages()] == ["b", "2"]


async def test_a_follower_sees_the_events_of_another_agent(make_agent, stores):
    """Replay from the beginning, then live, gapless, from whoever commits."""
    worker = await make_agent(
        [text("1"), tool_call("add", a=1, b=2), text("3")], tools=[add], stores=stores
    )
    follower = await make_agent([], stores=stores)
    await worker.execute_turn("a")
    seen = []
    arrived = asyncio.Event()

    async def follow():
        async for event in follower.events(after=0):
            seen.append(event)
            if event.type == "turn_end" and event.turn == 2:
                arrived.set()
                return

    following = asyncio.create_task(follow())
    await worker.execute_turn("b")
    await arrived.wait()
    await following
    assert [e.seq for e in seen] == list(range(1, 13))
    assert seen == await stores.journal.events("ada")


async def test_events_begin_where_they_are_asked_to(make_agent, stores):
    """Behind a number, at the beginning, or at the head."""
    agent = await make_agent([text("1"), text("2")], stores=stores)
    await agent.execute_turn("a")

    async def first(after):
        events = agent.events(after)
        try:
            return await anext(events)
        finally:
            await events.aclose()

    assert (await first(0)).seq == 1
    assert (await first(2)).seq == 3
    events = agent.events()
    await agent.execute_turn("b")
    assert (await anext(events)).seq == 5
    await events.aclose()


@pytest.mark.parametrize("what", ["turn", "turn that runs", "clear", "compact", "saved turn"])
async def test_the_head_is_that_of_the_call_however_late_it_is_read(
    make_agent, stores, monkeypatch, what
):
    """An event that the agent makes after `events()` is shown, though the store is slow to read."""
    gate = Gate()
    third = [text("3")] if what == "compact" else [tool_call("gate"), text("3")]
    agent = await make_agent(
        [text("1"), text("2"), *third],
        stores=stores,
        tools=[gate.tool],
        auto_save=what != "saved turn",
    )
    await agent.execute_turn("a")
    await agent.execute_turn("b")
    if what == "turn that runs":
        stream = agent.execute_turn("c")
        await gate.entered.wait()
    head = 0 if what == "saved turn" else (await stores.state.load("ada")).last_seq
    load = stores.state.load
    read = asyncio.Event()
    late = asyncio.Event()

    async def slow(context_id):
        if not read.is_set():
            read.set()
            await late.wait()
        return await load(context_id)

    monkeypatch.setattr(stores.state, "load", slow)
    events = agent.events()
    await read.wait()  # nobody else may be the first
    asyncio.get_running_loop().call_later(0.2, late.set)  # a commit that does not wait is earlier
    if what == "clear":
        await agent.clear()
    elif what == "compact":
        await agent.compact()
    elif what == "saved turn":
        await agent.save_state()
    else:
        gate.open.set()
        await (stream if what == "turn that runs" else agent.execute_turn("c"))
    assert (await anext(events)).seq == head + 1
    await events.aclose()


@pytest.mark.usefixtures("set_aside")
async def test_a_follower_that_is_not_iterated_logs_no_failure(
    make_agent, stores, monkeypatch, caplog
):
    """Its reading of the head ends before the stores are let go, and its failure is nobody's."""
    agent = await make_agent([text("1")], stores=stores)

    async def gone(context_id):
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(stores.state, "load", gone)
        agent.events()
        await agent.execute_turn("a")
    agent.events()
    await agent.shutdown()
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_follower_made_in_a_thread_begins_when_it_is_iterated(
    make_agent, stores, monkeypatch
):
    """Web frameworks call a blocking endpoint in a thread, and iterate on the loop."""
    agent = await make_agent([text("1"), text("2")], stores=stores)
    events = await asyncio.to_thread(agent.events)
    await agent.execute_turn("a")
    load, read = stores.state.load, asyncio.Event()

    async def seen(context_id):
        record = await load(context_id)
        read.set()
        return record

    with monkeypatch.context() as patched:
        patched.setattr(stores.state, "load", seen)
        waiting = asyncio.create_task(anext(events))
        await read.wait()
    await agent.execute_turn("b")
    assert (await waiting).seq == 5
    await events.aclose()


async def test_following_from_an_unknown_position_is_an_error(make_agent, stores):
    """Nothing would ever come: a number beyond the head, or a context that was deleted."""
    agent = await make_agent([text("1")], stores=stores, loop_config=LoopConfig(lease_ttl_s=0.02))
    await agent.execute_turn("a")
    with pytest.raises(ContextNotFound):
        await anext(agent.events(after=5))
    events = agent.events(after=0)
    for seq in range(1, 5):
        assert (await anext(events)).seq == seq
    waiting = asyncio.create_task(anext(events))
    await stores.state.delete("ada")
    with pytest.raises(ContextNotFound):
        await waiting


async def test_two_followers_each_see_everything(make_agent, stores):
    """Following is reading: nobody takes an event away."""
    agent = await make_agent([text(f"{n}") for n in range(5)], stores=stores)

    async def follow():
        seen = []
        async for event in agent.events(after=0):
            seen.append(event.seq)
            if event.seq == 20:
                break
        return seen

    followers = [asyncio.create_task(follow()) for _ in range(3)]
    for n in range(5):
        await agent.execute_turn(f"{n}")
    assert await asyncio.gather(*followers) == [list(range(1, 21))] * 3


async def test_following_ends_the_turn_of_a_dead_owner(make_agent, stores):
    """A follower finds it, and sees its end."""
    agent = await make_agent([], stores=stores)
    owner = Owner.new()
    await begin(stores, holder=owner.token())
    owner.retire()
    seen = []
    async for event in agent.events(after=0):
        seen.append(event)
        if event.type == "turn_end":
            break
    assert seen[-1].outcome is Outcome.INTERRUPTED


async def test_messages_are_read_from_a_position(make_agent, stores):
    """`after` and `limit` page through the history."""
    agent = await make_agent(echo(), stores=stores)
    for n in range(3):
        await agent.execute_turn(f"{n}")
    every = await agent.get_messages()
    assert len(every) == 6
    assert await agent.get_messages(after=2, limit=3) == every[2:5]
    assert await agent.get_messages(after=6) == []
    assert await agent.get_messages(limit=0) == []


async def test_collecting_a_stream_after_shutdown_still_works(make_agent, stores):
    """The view keeps what the turn said."""
    agent = await make_agent([text("hi")], stores=stores)
    stream = agent.execute_turn("a")
    await agent.shutdown()
    assert types(await collect(stream))[-1] == "turn_end"


@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
async def test_metadata_can_be_saved_after_a_conflict(make_agent, stores, known):
    """A conflict shows what the other one saved, and saving again replaces that."""
    one = await make_agent(stores=stores)
    if known:
        await one.save_state({"n": 0})
    other = await make_agent(stores=stores)
    await one.save_state({"n": 1})
    with pytest.raises(StoreConflict):
        await other.save_state({"n": 2})
    assert other.state.metadata == {"n": 1}
    await other.save_state({"n": 2})
    assert (await stores.state.load("ada")).metadata == {"n": 2}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("later", split([0, 1, 2, 4, 8], [3, 5, 6, 7, *range(9, 16)]))
async def test_a_turn_that_comes_during_clear_runs_after_it(make_agent, stores, force, later):
    """Whenever it comes, it sees the whole history or none, and nothing twice."""
    provider = ScriptedProvider([text("hi"), text("yes"), text("end")])
    agent = await make_agent(provider, stores=stores)
    await agent.execute_turn("hello")
    clearing = asyncio.create_task(agent.clear(force=force))
    await asyncio.sleep(0)
    for _ in range(later):
        await asyncio.sleep(0)
    assert (await agent.execute_turn("now")).text == "yes"
    await clearing
    assert [m.text for m in provider.requests[1].messages] == ["now"]
    await agent.execute_turn("and then")
    assert [m.text for m in provider.requests[2].messages] == ["now", "yes", "and then"]
    assert agent.state.status is AgentStatus.READY


@pytest.mark.parametrize("by_another", [False, True])
async def test_a_cleared_history_is_dropped_though_reading_failed(make_agent, stores, by_another):
    """Whoever cleared: a store that fails right after it brings nothing back to the model."""
    spy = SpyStores(stores)
    provider = ScriptedProvider([text("one"), text("two")])
    agent = await make_agent(provider, stores=spy.stores)
    await agent.execute_turn("forget me")

    def gone(name, _):
        if name == "recent" and (by_another or "clear" in spy.done):
            raise StoreUnavailable("gone")

    if by_another:
        await stores.journal.clear("ada")
    spy.hook = gone
    with pytest.raises(StoreUnavailable):
        await (agent.execute_turn("now") if by_another else agent.clear())
    spy.hook = None
    await agent.execute_turn("now")
    assert [m.text for m in provider.requests[-1].messages] == ["now"]
