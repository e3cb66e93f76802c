"""
An agent whose store has lost what it had acknowledged: a failover, or a restored backup.

The agent raises `CommitsLost` once and continues from what the store has. Nothing that another
process has stored since is lost, and no history is in two versions.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import Gate, add, assert_whole
from tests.going_back import GoingBack
from tests.shares import PSYCOPG

from looopy.errors import (
    CommitsLost,
    ContextNotFound,
    LooopyError,
    StorageFull,
    StoreConflict,
)
from looopy.testing import ScriptedProvider, SpyStores, failure, text, tool_call
from looopy.types.event import Compaction
from looopy.types.message import UserMessage


@pytest.fixture(params=["sqlite", "asyncpg", PSYCOPG])
def backend(request) -> str:
    """Memory ends with its process and cannot go back."""
    return request.param


@pytest.fixture
def past(store_url) -> GoingBack:
    """The database of `stores`, to keep and to restore."""
    return GoingBack(store_url)


def echo() -> ScriptedProvider:
    """A model that answers what it has been told so far."""
    return ScriptedProvider(
        lambda request: text(
            " | ".join(m.text for m in request.messages if isinstance(m, UserMessage))
        ),
        repeat=True,
    )


async def told(stores, name: str = "ada") -> list[str]:
    """What users said, as the store has it."""
    return [m.text for m in await stores.messages.list(name) if isinstance(m, UserMessage)]


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_a_lost_turn_is_reported_once_and_later_turns_are_seen(
    make_agent, stores, past, others
):
    """The other history is shorter, has the same numbers, or is longer."""
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("one")
    past.keep()
    await agent.execute_turn("lost")
    past.go_back()
    other = await make_agent(echo(), stores=stores)
    for n in range(others):
        await other.execute_turn(f"other {n}")
    with pytest.raises(CommitsLost):
        await agent.execute_turn("again")
    between = [f"other {n}" for n in range(others)]
    result = await agent.execute_turn("again")
    assert result.text == " | ".join(["one", *between, "again"])
    assert await told(stores) == ["one", *between, "again"]
    assert (await other.execute_turn("on")).text == " | ".join(["one", *between, "again", "on"])
    await assert_whole(stores)


async def test_equal_texts_of_two_histories_are_distinguished(make_agent, stores, past):
    """The other turn has the same number, the same text and the same answer."""
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("one")
    past.keep()
    await agent.execute_turn("same")
    past.go_back()
    other = await make_agent(echo(), stores=stores)
    await other.execute_turn("same")
    with pytest.raises(CommitsLost):
        await agent.execute_turn("on")
    assert (await agent.execute_turn("on")).text == "one | same | on"


@pytest.mark.parametrize("claims", [1, 2])
async def test_claims_of_two_histories_have_two_epochs(make_agent, stores, past, claims):
    """So an owner in one of them writes nothing in the other."""
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("one")
    past.keep()
    for n in range(claims):
        await agent.execute_turn(f"lost {n}")
    lost = (await stores.state.load("ada")).epoch
    past.go_back()
    other = await make_agent(echo(), stores=stores)
    for n in range(claims):
        await other.execute_turn(f"other {n}")
    assert (await stores.state.load("ada")).epoch != lost
    assert not await stores.state.renew("ada", lost, 60)


async def test_a_turn_whose_end_is_lost_is_closed(make_agent, stores, past):
    """The store has its claim alone: it counts as interrupted, and can be continued."""
    agent = await make_agent([lambda _: _keep(past, text("lost")), text("found")], stores=stores)
    assert (await agent.execute_turn("one")).text == "lost"
    past.go_back()
    with pytest.raises(CommitsLost):
        await agent.execute_turn(None)
    assert agent.state.interrupted_turn == 1
    assert (await agent.execute_turn(None)).text == "found"
    await assert_whole(stores)


async def test_a_lost_failure_is_reported(make_agent, stores, past):
    """The end of the turn is all that the store lacks: it has the same messages and epoch."""
    steps = [lambda _: _keep(past, failure(RuntimeError("no"))), text("found")]
    agent = await make_agent(steps, stores=stores)
    await agent.execute_turn("one")
    past.go_back()
    with pytest.raises(CommitsLost):
        await agent.execute_turn("two")
    assert (await agent.execute_turn("two")).text == "found"


@pytest.mark.parametrize("ended", [True, False])
async def test_an_erasure_by_this_process_is_no_loss(make_agent, stores, ended):
    """Nor if the store refused the end of the turn before, so that nobody knows how it ended."""
    spy = SpyStores(stores)
    agent = await make_agent(echo(), stores=spy.stores)
    await agent.execute_turn("one")
    if not ended:
        spy.hook = _full
        with pytest.raises(StorageFull):
            await agent.execute_turn("two")
        spy.hook = None
    await stores.contexts.erase("ada", force=True)
    assert (await agent.execute_turn("again")).text == "again"
    assert agent.state.turn_count == 1


async def test_a_loss_after_an_erasure_is_reported(make_agent, stores, past):
    """The erasure excuses the context that it erased, and not the one that was begun since."""
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("one")
    await stores.contexts.erase("ada")
    past.keep()
    await agent.execute_turn("begun again")
    past.go_back()
    with pytest.raises(CommitsLost):
        await agent.execute_turn("two")
    assert (await agent.execute_turn("two")).text == "two"


def _full(name, _argument):
    if name == "commit":
        raise StorageFull("the disk is full")


def _keep(past, reply):
    past.keep()
    return reply


@pytest.mark.parametrize("has", ["nothing of it", "its claim", "its call"])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_running_turn_stops_writing(make_agent, stores, past, has, others):
    """It ends with an error; the store has no half of a step, and the next turn continues."""
    gate = Gate()
    kept_at = {"nothing of it": -1, "its claim": 0, "its call": 1}[has]

    def reply(request):
        said = sum(m.role == "toolResult" for m in request.messages)
        if said == kept_at:
            past.keep()
        return (tool_call("add", a=1, b=2), tool_call("gate"), text("done"))[said]

    agent = await make_agent(
        ScriptedProvider(reply, repeat=True), tools=[add, gate.tool], stores=stores
    )
    if has == "nothing of it":
        await (await make_agent(echo(), stores=stores)).execute_turn("before")
        past.keep()
    running = agent.execute_turn("go")
    await gate.entered.wait()
    past.go_back()
    other = await make_agent(echo(), stores=stores, tools=[add, gate.tool])
    if others and has == "nothing of it":
        await other.execute_turn("other")
    before = await stores.state.load("ada")
    gate.open.set()
    with pytest.raises(LooopyError) as failed:
        (await running).raise_for_outcome()
    assert await stores.state.load("ada") == before
    errors = [failed.value]
    try:
        result = await agent.execute_turn("on")
    except CommitsLost as error:
        errors.append(error)
        result = await agent.execute_turn("on")
    assert [type(error) for error in errors].count(CommitsLost) == 1
    assert result.raise_for_outcome().turn == before.turn_count + 1
    assert (await told(stores))[-1] == "on"
    await assert_whole(stores)


async def test_a_context_that_the_store_never_had_is_reported_once(make_agent, stores, past):
    """The next turn begins it anew."""
    past.keep()
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("lost")
    past.go_back()
    with pytest.raises(CommitsLost):
        await agent.execute_turn("hello")
    assert (await agent.execute_turn("hello")).text == "hello"
    assert agent.state.turn_count == 1


@pytest.mark.parametrize("others", [1, 2])
async def test_a_context_that_others_have_made_since_is_taken_for_another(
    make_agent, stores, past, others
):
    """Nothing of the lost one reaches the model."""
    past.keep()
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("lost")
    past.go_back()
    other = await make_agent(echo(), stores=stores)
    for n in range(others):
        await other.execute_turn(f"other {n}")
    with pytest.raises(CommitsLost):
        await agent.execute_turn("hello")
    assert (await agent.execute_turn("hello")).text.endswith(f"other {others - 1} | hello")


@pytest.mark.parametrize("change", ["clear", "rewind", "compact"])
async def test_a_lost_change_of_the_history_is_reported(make_agent, stores, past, change):
    """What it had hidden is there again."""
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("one")
    await agent.execute_turn("two")
    past.keep()
    match change:
        case "clear":
            await agent.clear()
        case "rewind":
            await agent.rewind(2)
        case "compact":
            assert isinstance(await agent.compact(), Compaction)
    past.go_back()
    with pytest.raises(CommitsLost):
        await agent.execute_turn("three")
    assert (await agent.execute_turn("three")).text == "one | two | three"


@pytest.mark.parametrize("change", ["clear", "rewind", "compact"])
async def test_no_change_is_made_to_a_history_that_its_caller_has_not_seen(
    make_agent, stores, past, change
):
    """`CommitsLost` comes first; called again, it is made."""
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("one")
    await agent.execute_turn("two")
    past.keep()
    await agent.execute_turn("lost")
    await agent.execute_turn("lost too")
    past.go_back()
    other = await make_agent(echo(), stores=stores)
    await other.execute_turn("other")
    before = await stores.state.load("ada")
    call = {"clear": agent.clear, "rewind": lambda: agent.rewind(3), "compact": agent.compact}
    with pytest.raises(CommitsLost):
        await call[change]()
    assert await stores.state.load("ada") == before
    await call[change]()
    assert (await stores.state.load("ada")).epoch > before.epoch


async def test_buffered_turns_of_a_lost_history_are_not_saved(make_agent, stores, past):
    """`StoreConflict`, as after the turn of any other process; the store stays as it is."""
    agent = await make_agent(echo(), stores=stores, auto_save=False)
    await agent.execute_turn("one")
    await agent.save_state()
    past.keep()
    await agent.execute_turn("lost")
    await agent.save_state()
    past.go_back()
    other = await make_agent(echo(), stores=stores)
    await other.execute_turn("other")
    await agent.execute_turn("buffered")
    with pytest.raises(StoreConflict):
        await agent.save_state()
    assert await told(stores) == ["one", "other"]
    with pytest.raises(StoreConflict):
        await agent.shutdown()


async def test_reading_the_state_leaves_the_report_to_the_next_turn(make_agent, stores, past):
    """`refresh()` shows what the store has; whoever asks next for a turn gets the error."""
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("one")
    past.keep()
    await agent.execute_turn("lost")
    past.go_back()
    assert (await agent.refresh()).turn_count == 1
    with pytest.raises(CommitsLost):
        await agent.execute_turn("on")
    assert (await agent.execute_turn("on")).text == "one | on"


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_a_reader_of_events_ends_with_an_error(make_agent, stores, past, others):
    """It waits for no number that others have given away, and skips no event."""
    agent = await make_agent(echo(), stores=stores)
    await agent.execute_turn("one")
    past.keep()
    await agent.execute_turn("lost")
    seen = []

    async def read():
        async for event in agent.events(after=0):
            seen.append(event)
            if event.seq == agent_seq:
                reached.set()

    reached = asyncio.Event()
    agent_seq = (await stores.state.load("ada")).last_seq
    reading = asyncio.create_task(read())
    await reached.wait()
    past.go_back()
    other = await make_agent(echo(), stores=stores)
    for n in range(others):
        await other.execute_turn(f"other {n}")
    with pytest.raises((CommitsLost, ContextNotFound)):
        await reading
    assert [event.seq for event in seen] == list(range(1, agent_seq + 1))
    log = [event async for event in _to_head(agent, stores)]
    assert [event.seq for event in log] == list(range(1, len(log) + 1))


async def _to_head(agent, stores):
    head = (await stores.state.load("ada")).last_seq
    async for event in agent.events(after=0):
        yield event
        if event.seq == head:
            return
