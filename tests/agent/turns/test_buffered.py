"""`auto_save=False`: turns live in memory until they are saved, all of them or an error."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import add, assert_whole, collect, types

from looopy import AuthContext, tool
from looopy.errors import AgentNotStarted, LLMError, StoreConflict, StoreUnavailable
from looopy.stores.owner import Owner
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.state import AgentStatus, Outcome


def echo():
    """A model that repeats what was said last."""
    return ScriptedProvider(lambda request: text(f"re {request.messages[-1].text}"))


async def said(agent, **options):
    """The texts that the agent gives back."""
    return [m.text for m in await agent.get_messages(**options)]


async def test_a_buffered_turn_is_stored_only_when_saved(make_agent, stores):
    """Turns run, are remembered and readable; the store knows nothing of them."""
    provider = echo()
    agent = await make_agent(provider, stores=stores, auto_save=False)
    events = await collect(agent.execute_turn("a"))
    result = await agent.execute_turn("b")
    assert (result.turn, result.text) == (2, "re b")
    assert types(events)[0] == "turn_start"
    assert {e.seq for e in events} == {None}
    assert [m.text for m in provider.requests[1].messages] == ["a", "re a", "b"]
    assert agent.state.turn_count == 2
    assert await said(agent) == ["a", "re a", "b", "re b"]
    assert await said(agent, after=1, limit=2) == ["re a", "b"]
    assert await stores.state.load("ada") is None


@pytest.mark.parametrize("save", ["save_state", "pause", "shutdown"])
async def test_saving_stores_every_turn_in_order(make_agent, stores, save):
    """With the same numbers that turns saved at once would have."""
    agent = await make_agent(
        [text("1"), tool_call("add", a=1, b=2), text("3"), failure(LLMError("no"))],
        tools=[add],
        stores=stores,
        auto_save=False,
    )
    for user in ("a", "b", "c"):
        await agent.execute_turn(user)
    await getattr(agent, save)()
    await assert_whole(stores)
    outcomes = [t.outcome for t in await stores.journal.turns("ada")]
    assert outcomes == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED]
    events = await stores.journal.events("ada")
    assert [e.user_message.text for e in events if e.type == "turn_start"] == ["a", "b", "c"]
    assert (await stores.state.load("ada")).state.error is not None


async def test_saving_twice_stores_once(make_agent, stores):
    """What is saved has left the buffer; turns go on from there."""
    agent = await make_agent(echo(), stores=stores, auto_save=False)
    await agent.execute_turn("a")
    await agent.save_state()
    await agent.save_state({"title": "t"})
    await agent.execute_turn("b")
    assert await said(agent) == ["a", "re a", "b", "re b"]
    assert await said(agent, after=2) == ["b", "re b"]
    await agent.pause()
    await agent.resume()
    await agent.execute_turn("c")
    await agent.shutdown()
    await assert_whole(stores)
    assert len(await stores.messages.list("ada")) == 6
    assert (await stores.state.load("ada")).metadata == {"title": "t"}


@pytest.mark.parametrize("save", ["save_state", "pause"])
async def test_saving_an_overtaken_turn_is_a_conflict(make_agent, stores, save):
    """`StoreConflict`: nothing of it is stored, the buffer is kept and readable."""
    buffered = await make_agent(echo(), stores=stores, auto_save=False)
    other = await make_agent(echo(), stores=stores)
    await buffered.execute_turn("a")
    await other.execute_turn("b")
    for _ in range(2):
        with pytest.raises(StoreConflict):
            await getattr(buffered, save)()
        assert buffered.state.status is AgentStatus.READY
        assert [m.text for m in await stores.messages.list("ada")] == ["b", "re b"]
    assert (await said(buffered))[-2:] == ["a", "re a"]
    assert buffered.state.turn_count == 1


async def test_shutting_down_on_a_conflict_drops_the_buffer(make_agent, stores):
    """It says so once, and the agent can start again on what is stored."""
    buffered = await make_agent(echo(), stores=stores, auto_save=False)
    other = await make_agent(echo(), stores=stores)
    await buffered.execute_turn("a")
    await other.execute_turn("b")
    with pytest.raises(StoreConflict):
        await buffered.shutdown()
    assert buffered.state.status is AgentStatus.SHUTDOWN
    await buffered.shutdown()
    await buffered.start()
    assert await said(buffered) == ["b", "re b"]
    await buffered.execute_turn("c")
    await buffered.save_state()
    await assert_whole(stores)


async def test_a_turn_that_was_never_accepted_does_not_spoil_the_buffer(make_agent, stores):
    """Refused, cancelled before it began, its task cancelled: the others are saved."""
    agent = await make_agent(echo(), stores=stores, auto_save=False, on_busy="wait")
    await agent.execute_turn("a")
    with pytest.raises(Exception, match="nothing to continue"):
        await agent.execute_turn(None)
    agent.execute_turn("never").cancel()
    await agent.wait_for_idle()
    agent.execute_turn("nor this")
    for task in agent._core.turns._tasks:
        task.cancel()
    await agent.wait_for_idle()
    await agent.execute_turn("b")
    await agent.save_state()
    assert [m.text for m in await stores.messages.list("ada")] == ["a", "re a", "b", "re b"]
    await assert_whole(stores)


async def test_a_cancelled_turn_is_buffered_like_any_other(make_agent, stores):
    """It has its end, and is saved with it."""
    from tests.agent.kit import Gate

    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores, auto_save=False
    )
    stream = agent.execute_turn("a")
    await gate.entered.wait()
    stream.cancel()
    await stream
    await agent.execute_turn("b")
    await agent.pause()
    await assert_whole(stores)


async def test_saving_is_carried_on_where_it_stopped(make_agent, stores):
    """A store that fails in the middle: what was stored is not stored again."""
    spy = SpyStores(stores)
    agent = await make_agent(echo(), stores=spy.stores, auto_save=False)
    for user in ("a", "b", "c"):
        await agent.execute_turn(user)

    def second_claim(name, _argument):
        if name == "claim" and len(spy.of("claim")) == 2:
            raise StoreUnavailable("gone for a moment")

    spy.hook = second_claim
    with pytest.raises(StoreUnavailable):
        await agent.save_state()
    await agent.save_state()
    assert len(await stores.messages.list("ada")) == 6
    await assert_whole(stores)


async def test_clear_drops_the_buffer(make_agent, stores):
    """The model sees nothing of it any more, stored context or not."""
    provider = echo()
    agent = await make_agent(provider, stores=stores, auto_save=False)
    await agent.execute_turn("a")
    await agent.clear()
    assert await said(agent) == []
    await agent.execute_turn("b")
    assert [m.text for m in provider.requests[-1].messages] == ["b"]
    await agent.save_state()
    await agent.execute_turn("c")
    await agent.clear()
    await agent.execute_turn("d")
    assert [m.text for m in provider.requests[-1].messages] == ["d"]
    await agent.save_state()
    assert [m.text for m in await stores.messages.list("ada")] == ["d", "re d"]


async def test_text_after_open_calls_keeps_its_turn_start(make_agent, stores):
    """A buffered turn that begins with answers to open calls still says who spoke."""
    from looopy.stores.owner import Owner
    from looopy.stores.records import Commit
    from looopy.testing.contracts.turns import answer, begin
    from looopy.testing.contracts.turns import said as says
    from looopy.types.message import ToolCall

    owner = Owner.new()
    claimed = await begin(stores, holder=owner.token())
    call = ToolCall(id="c1", name="add", arguments={"a": 1, "b": 2})
    await stores.commit(
        Commit(context_id="ada", epoch=claimed.epoch, turn=1, events=[says(answer("", call))])
    )
    owner.retire()
    agent = await make_agent(echo(), tools=[add], stores=stores, auto_save=False)
    await agent.execute_turn("never mind")
    await agent.save_state()
    await assert_whole(stores)
    events = await stores.journal.events("ada")
    assert [e.user_message.text for e in events if e.type == "turn_start"][-1] == "never mind"


async def test_pausing_waits_for_the_turn_and_saves_it(make_agent, stores):
    """The turn that runs is saved with the others."""
    agent = await make_agent(echo(), stores=stores, auto_save=False)
    agent.execute_turn("a")
    await asyncio.gather(agent.pause(), agent.pause())
    await assert_whole(stores)
    assert len(await stores.messages.list("ada")) == 2


async def test_a_failed_turn_does_not_lose_the_buffer(make_agent, stores):
    """What is buffered is known here and nowhere else: it is not read from the store."""
    agent = await make_agent(
        [text("1"), failure(LLMError("no")), text("3"), text("4")], stores=stores, auto_save=False
    )
    await agent.execute_turn("a")
    await agent.execute_turn("b")
    assert agent.state.status is AgentStatus.FAILED
    assert (await agent.execute_turn(None)).turn == 3
    await agent.execute_turn("d")
    assert agent.state.turn_count == 4
    assert await said(agent) == ["a", "1", "b", "3", "d", "4"]
    await agent.save_state()
    await assert_whole(stores)
    assert [t.continues for t in await stores.journal.turns("ada")] == [None, None, 2, None]


async def test_a_buffered_turn_keeps_its_actor(make_agent, stores):
    """Actor, metadata and that there were credentials are saved like those of any turn."""
    agent = await make_agent([text("1")], stores=stores, auto_save=False)
    auth = AuthContext("u1", credentials={"token": "t"})
    await agent.execute_turn("a", auth, metadata={"n": 1})
    await agent.save_state()
    (turn,) = await stores.journal.turns("ada")
    assert (turn.actor_id, turn.had_auth, turn.metadata) == ("u1", True, {"n": 1})
    assert (await stores.state.load("ada")).owner_actor == "u1"


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_save_that_failed_half_way_is_carried_on(make_agent, stores, overtaken):
    """A turn whose claim was made is completed by the next save, unless another ended it."""
    spy = SpyStores(stores)
    agent = await make_agent([text("1"), text("2")], stores=spy.stores, auto_save=False)
    await agent.execute_turn("a")
    await agent.execute_turn("b")

    def gone(name, _):
        if name == "commit":
            raise StoreUnavailable("gone")

    spy.hook = gone
    with pytest.raises(StoreUnavailable):
        await agent.save_state()
    spy.hook = None
    if overtaken:
        await make_agent(stores=stores)  # finds an owner that runs no more
        with pytest.raises(StoreConflict):
            await agent.save_state()
    else:
        await agent.save_state()
        assert [m.text for m in await stores.messages.list("ada")] == ["a", "1", "b", "2"]
    await assert_whole(stores)


@pytest.mark.parametrize("many", [2, 3])
async def test_no_turn_comes_between_turns_that_are_saved_together(make_agent, memory_stores, many):
    """Somebody begins to wait while the first of them is stored: all of them are."""
    spy = SpyStores(memory_stores)
    agent = await make_agent(echo(), stores=spy.stores, auto_save=False)
    for user in ("a", "b", "c")[:many]:
        await agent.execute_turn(user)
    other = Owner.new()
    tickets = []

    async def join(name, _argument):
        if name == "commit" and not tickets:
            tickets.append(await memory_stores.state.join_wait_queue("ada", other.token(), 60))

    spy.hook = join
    await agent.save_state()
    await assert_whole(memory_stores)
    assert await memory_stores.messages.count("ada") == 2 * many
    assert [w.ticket for w in await memory_stores.state.wait_queue("ada")] == tickets
    other.retire()


@pytest.mark.parametrize("call", ["claim", "commit"])
async def test_a_cancelled_save_resumes_after_its_stored_turns(make_agent, memory_stores, call):
    """The write on its way is carried out; saving again stores the rest, and nothing twice."""
    spy = SpyStores(memory_stores)
    agent = await make_agent(echo(), stores=spy.stores, auto_save=False)
    for user in ("a", "b"):
        await agent.execute_turn(user)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(name, argument):
        if name != call or asked.is_set():
            return None
        write = memory_stores.state.claim if call == "claim" else memory_stores.commit
        made = await write(argument)
        asked.set()
        await go_on.wait()
        return made

    spy.hook = late
    saving = asyncio.create_task(agent.save_state())
    await asked.wait()
    saving.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([saving])
    assert saving.cancelled()
    assert await memory_stores.state.wait_queue("ada") == []
    await agent.save_state()
    await assert_whole(memory_stores)
    assert await memory_stores.messages.count("ada") == 4


async def test_each_turn_is_saved_with_what_it_left_behind(make_agent, stores):
    """What the second waits for is not there while only the first is saved."""
    spy = SpyStores(stores)

    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = await make_agent(
        [text("1"), tool_call("pay")], tools=[pay], stores=spy.stores, auto_save=False
    )
    first = await agent.execute_turn("a")
    second = await agent.execute_turn("b")
    claims = []

    def gone(name, _):
        claims.extend([name] * (name == "claim"))
        if name == "claim" and len(claims) == 2:
            raise StoreUnavailable("gone")

    spy.hook = gone
    with pytest.raises(StoreUnavailable):
        await agent.save_state()
    spy.hook = None
    state = (await stores.state.load("ada")).state
    assert (state.pending, state.held, state.usage) == ((), (), first.usage)
    await agent.save_state()
    state = (await stores.state.load("ada")).state
    assert (tuple(state.pending), state.usage) == (second.pending, first.usage + second.usage)


def stopped_at(spy, method):
    """Stop the next call of a *method* of the store: set once it is there, and to let it go on."""
    there, go_on = asyncio.Event(), asyncio.Event()

    async def hook(name, _):
        if name == method:
            spy.hook = None
            there.set()
            await go_on.wait()

    spy.hook = hook
    return there, go_on


@pytest.mark.parametrize("ending", ["shutdown", "pause", "save_state"])
async def test_a_save_beside_another_waits_for_it(make_agent, stores, ending):
    """Each turn is stored once, and neither of them loses one."""
    spy = SpyStores(stores)
    agent = await make_agent(echo(), stores=spy.stores, auto_save=False)
    for user in ("a", "b", "c"):
        await agent.execute_turn(user)
    saving, go_on = stopped_at(spy, "claim")
    first = asyncio.create_task(agent.save_state())
    await saving.wait()
    second = asyncio.create_task(getattr(agent, ending)())
    for _ in range(50):  # as far as it comes
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, second)
    outcomes = [turn.outcome for turn in await stores.journal.turns("ada")]
    assert outcomes == [Outcome.COMPLETED] * 3
    assert len(spy.of("claim")) == 3
    await assert_whole(stores)


async def test_a_save_during_shutdown_is_refused(make_agent, stores):
    """All is stored by then; there is nobody left whose metadata could be saved."""
    spy = SpyStores(stores)
    agent = await make_agent(echo(), stores=spy.stores, auto_save=False)
    await agent.execute_turn("a")
    saving, go_on = stopped_at(spy, "claim")
    leaving = asyncio.create_task(agent.shutdown())
    await saving.wait()
    late = asyncio.create_task(agent.save_state({"k": 1}))
    await asyncio.sleep(0)
    go_on.set()
    await leaving
    with pytest.raises(AgentNotStarted):
        await late
    assert [turn.outcome for turn in await stores.journal.turns("ada")] == [Outcome.COMPLETED]


async def test_clearing_waits_for_a_save(make_agent, stores):
    """What was being saved is stored whole, and then hidden."""
    spy = SpyStores(stores)
    agent = await make_agent(echo(), stores=spy.stores, auto_save=False)
    for user in ("a", "b"):
        await agent.execute_turn(user)
    saving, go_on = stopped_at(spy, "commit")
    first = asyncio.create_task(agent.save_state())
    await saving.wait()
    second = asyncio.create_task(agent.clear())
    for _ in range(50):  # as far as it comes
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, second)
    assert [turn.outcome for turn in await stores.journal.turns("ada")] == [Outcome.COMPLETED] * 2
    assert await agent.get_messages() == []
    assert (await agent.execute_turn("c")).turn == 3


@pytest.mark.parametrize("how", ["pause", "save_state"])
async def test_a_failure_that_was_forgiven_is_not_stored(make_agent, stores, how):
    """`start()` after the turn takes it as seen: whoever reads the context later finds no error."""
    agent = await make_agent([failure(LLMError("no"))], stores=stores, auto_save=False)
    await agent.execute_turn("a")
    assert agent.state.status is AgentStatus.FAILED
    await agent.start()
    assert agent.state.status is AgentStatus.READY
    await getattr(agent, how)()
    record = await stores.state.load("ada")
    assert record.state.error is None
    assert record.state.resumable == 1
    other = await make_agent([], stores=stores)
    assert other.state.status is AgentStatus.READY


async def test_a_failure_that_nobody_forgave_is_stored(make_agent, stores):
    """And told by the next agent until it is started again."""
    agent = await make_agent([failure(LLMError("no"))], stores=stores, auto_save=False)
    await agent.execute_turn("a")
    await agent.save_state()
    assert (await stores.state.load("ada")).state.error == ("LLMError", "no")
