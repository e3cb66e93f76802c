"""Stores of an application's own that fail, lie or lose: a typed error names store and method."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from tests.own_stores import Contents, Documents, JsonLines, Table

from looopy import Agent
from looopy.errors import ConfigurationError, StoreUnavailable
from looopy.stores.bundle import Stores
from looopy.stores.plain.state import InProcess
from looopy.testing import ScriptedProvider, text
from looopy.types.message import UserMessage


class Lists:
    """Messages in lists, which a test may spoil."""

    def __init__(self):
        self.rows = {}

    async def append(self, context_id, messages):
        """Add them."""
        self.rows.setdefault(context_id, []).extend(messages)

    async def list(self, context_id):
        """All of them."""
        return list(self.rows.get(context_id, ()))


def agent_on(stores):
    """An agent whose model tells how many messages it was shown."""
    provider = ScriptedProvider(lambda request: text(f"{len(request.messages)} messages"))
    return Agent("c", llm_provider=provider, stores=stores)


async def talk(stores, *said):
    """The answers to what is said, by an agent of its own."""
    async with agent_on(stores) as agent:
        return [(await agent.execute_turn(one)).text for one in said]


async def test_a_store_that_raises_after_it_wrote_doubles_nothing():
    """The messages are looked for, and found."""

    class Raising(Lists):
        async def append(self, context_id, messages):
            await super().append(context_id, messages)
            raise ConnectionError("the answer was lost")

    async with Stores.of(messages := Raising()) as stores:
        assert await talk(stores, "a", "b") == ["1 messages", "3 messages"]
    assert len(messages.rows["c"]) == 4


async def test_messages_that_a_store_did_not_take_are_appended_later():
    """The turn fails and names the method; whoever comes next completes what counts."""

    class Full(Lists):
        is_full = False

        async def append(self, context_id, messages):
            if self.is_full:
                raise OSError("no space left")
            await super().append(context_id, messages)

    async with Stores.of(messages := Full()) as stores:
        async with agent_on(stores) as agent:
            await agent.execute_turn("a")
            messages.is_full = True
            with pytest.raises(StoreUnavailable, match=r"messages=Full: `append` raised OSError"):
                await agent.execute_turn("b")
            messages.is_full = False
        await talk(stores, "c")
        texts = [one.text for one in messages.rows["c"] if isinstance(one, UserMessage)]
        assert texts == ["a", "b", "c"]
        assert [m.text for m in await stores.messages.list("c")][:3] == ["a", "1 messages", "b"]


async def test_a_method_that_blocks_does_not_block_the_event_loop(tmp_path):
    """It runs in a thread, so the loop can let it go on."""
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Slow(JsonLines):
        def append(self, context_id, messages):
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(60)
            super().append(context_id, messages)

    async with Stores.of(Slow(tmp_path)) as stores:
        turn = asyncio.create_task(talk(stores, "a"))
        await begun.wait()
        go_on.set()
        assert await turn == ["1 messages"]


async def test_the_newest_message_is_appended_again_if_the_store_lost_it():
    """The head has it until the next step."""
    async with Stores.of(messages := Lists()) as stores, agent_on(stores) as agent:
        await agent.execute_turn("a")
        lost = messages.rows["c"].pop()
        assert (await agent.execute_turn("b")).text == "3 messages"
        assert messages.rows["c"][1] == lost


def swapped(rows):
    """In another order."""
    rows[0], rows[1] = rows[1], rows[0]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (swapped, "message 2 of context 'c' otherwise than it was appended, or in another order"),
        (lambda rows: rows.pop(1), "did not return message 2 of context 'c', which was appended"),
        (list.clear, "did not return message 1 of context 'c', which was appended: 0 messages"),
        (lambda rows: rows.append(object()), "item 4 is object, not a message"),
        (lambda rows: rows.append({"role": "user", "content": 5}), "item 4: "),
        (lambda rows: rows.append({"no": "role"}), "item 4: .*a message needs a role"),
    ],
)
@pytest.mark.parametrize("running", [True, False])
async def test_a_history_that_was_spoilt_is_refused(spoil, says, running):
    """At the next turn of a running agent, and at the start of another one; nothing is written."""
    async with Stores.of(messages := Lists()) as stores:
        async with agent_on(stores) as agent:
            await agent.execute_turn("a")
            await agent.execute_turn("b")
            if running:
                spoil(messages.rows["c"])
                left = list(messages.rows["c"])
                with pytest.raises(StoreUnavailable, match=f"messages=Lists: `list`.* {says}"):
                    await agent.execute_turn("c")
        if not running:
            spoil(messages.rows["c"])
            left = list(messages.rows["c"])
            with pytest.raises(StoreUnavailable, match=f"messages=Lists: `list`.* {says}"):
                await talk(Stores.of(messages, state=stores.state.backend.state.calls.store), "c")
        assert messages.rows["c"] == left


async def test_a_store_that_keeps_half_a_message_is_refused_at_its_first_append():
    """Not at the next start, when it is too late."""

    class Texts(Lists):
        async def list(self, context_id):
            found = await super().list(context_id)
            return [{"role": one.role, "content": one.content, "timestamp": 1} for one in found]

    async with Stores.of(Texts()) as stores:
        with pytest.raises(StoreUnavailable, match="keep the whole message, as `message_to_json`"):
            await talk(stores, "a")


async def test_what_a_store_lacks_is_refused_by_name(tmp_path):
    """When it is given, or when it is needed."""
    with pytest.raises(ConfigurationError, match="messages=dict has no method `append`"):
        Stores.of({})
    with pytest.raises(ConfigurationError, match="state=Lists has no method `load`"):
        Stores.of(Lists(), state=Lists())
    with pytest.raises(ConfigurationError, match="artifacts=object has no method `save`"):
        Stores.of(Lists(), object())
    async with Stores.of(Lists(), Contents(tmp_path), Documents(tmp_path / "s")) as stores:
        await talk(stores, "a")
        with pytest.raises(ConfigurationError, match=r"`clear`, which Lists lacks"):
            await stores.journal.clear("c")
        with pytest.raises(ConfigurationError, match="`clear`, which Lists lacks"):
            await stores.state.delete("c")
        with pytest.raises(ConfigurationError, match="`list`, which Documents lacks"):
            await stores.state.list()
        with pytest.raises(ConfigurationError, match="a fork needs stores with a journal"):
            await stores.journal.fork("c", "d")
        with pytest.raises(ConfigurationError, match="lists contexts by id alone"):
            _ = stores.contexts
        assert await talk(stores, "b") == ["3 messages"]


async def test_a_state_store_without_a_way_to_compare_warns_once(tmp_path, caplog):
    """And one with it does not."""
    with caplog.at_level(logging.WARNING, logger="looopy"):
        async with Stores.of(Lists(), state=Documents(tmp_path)) as stores:
            await talk(stores, "a", "b")
    (warning,) = [one.getMessage() for one in caplog.records]
    assert warning.startswith("Documents has no method `compare_and_set`: two processes")


async def test_stores_that_do_not_belong_together_are_refused(tmp_path):
    """One state store with two message stores: what one of them has is missing in the other."""
    state = Documents(tmp_path)
    await talk(Stores.of(Lists(), state=state), "a")
    with pytest.raises(StoreUnavailable, match="did not return message 1 of context 'c'"):
        await talk(Stores.of(Lists(), state=state), "b")


async def test_messages_that_were_there_before_are_the_past_of_a_context(tmp_path):
    """A table with a conversation that an application has had without looopy."""
    table = Table(f"sqlite:///{tmp_path}/own.db")
    table.append("c", [UserMessage("Before."), UserMessage("Again.")], 1)
    async with Stores.of(table, state=Documents(tmp_path / "state")) as stores:
        assert await talk(stores, "now") == ["3 messages"]
    assert len(table.list("c")) == 4


async def test_a_step_that_another_process_overtook_is_taken_again():
    """A message to the inbox, for instance, comes between the look of a commit and its write."""

    class Busy(InProcess):
        writes = 0

        async def compare_and_set(self, key, document, revision):
            self.writes += 1
            if self.writes == 2:
                head = await self.load(key)
                await self.save(key, {**head, "revision": revision + 1, "stamp": "another"})
            return await super().compare_and_set(key, document, revision)

    async with Stores.of(messages := Lists(), state=Busy()) as stores:
        assert await talk(stores, "a", "b") == ["1 messages", "3 messages"]
    assert len(messages.rows["c"]) == 4
