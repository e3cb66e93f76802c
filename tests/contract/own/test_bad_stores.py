"""Stores of an application's own that fail, lie or lose: a typed error names store and method."""

from __future__ import annotations

import asyncio
import logging
import threading
from operator import attrgetter

import pytest
from tests.own_stores import Contents, Documents, JsonLines, StateTable, Table

from looopy import Agent, LoopConfig
from looopy.errors import ConfigurationError, StoreUnavailable
from looopy.stores import export_contexts
from looopy.stores.bundle import Stores
from looopy.stores.plain.state import InProcess
from looopy.testing import ScriptedProvider, text
from looopy.types.message import UserMessage
from looopy.types.message_json import message_to_json


@pytest.fixture(autouse=True)
def epochs_begin_at_one():
    """Let them begin anywhere, as two processes here would otherwise share one."""


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


class Clearing(Lists):
    """Lists that can be cleared."""

    async def clear(self, context_id):
        """Remove all."""
        self.rows.pop(context_id, None)


def agent_on(stores, **options):
    """An agent whose model tells how many messages it was shown."""
    provider = ScriptedProvider(lambda request: text(f"{len(request.messages)} messages"))
    return Agent("c", llm_provider=provider, stores=stores, **options)


async def talk(stores, *said, **options):
    """The answers to what is said, by an agent of its own."""
    async with agent_on(stores, **options) as agent:
        return [(await agent.execute_turn(one)).text for one in said]


async def test_a_store_that_raises_after_a_write_doubles_no_message():
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


async def test_an_append_that_outlasts_the_lease_doubles_nothing(tmp_path):
    """Another process takes its turn meanwhile; both are in the store, one after the other."""
    url = f"sqlite:///{tmp_path}/own.db"

    class Slow(Table):
        def append(self, context_id, messages, position):
            threading.Event().wait(0.3)
            super().append(context_id, messages, position)

    config = LoopConfig(lease_ttl_s=0.1)
    async with (
        Stores.of(Slow(url), state=StateTable(url)) as slow,
        Stores.of(Table(url), state=StateTable(url)) as quick,
    ):
        answers = await asyncio.gather(
            talk(slow, "a", loop_config=config, on_busy="wait"),
            talk(quick, "b", loop_config=config, on_busy="wait"),
        )
        assert sorted(one for (one,) in answers) == ["1 messages", "3 messages"]
        said = [m["content"] for m in Table(url).list("c") if m["role"] == "user"]
        assert sorted(said) == ["a", "b"]
        assert len(await slow.messages.list("c")) == 4


async def test_a_store_that_takes_all_but_the_newest_message_is_refused_at_its_first_append():
    """The list that comes back is shorter than the one that was given."""

    class Short(Lists):
        async def append(self, context_id, messages):
            await super().append(context_id, messages[:-1])

    async with Stores.of(Short()) as stores:
        with pytest.raises(StoreUnavailable, match="`list` did not return message 1 of context"):
            await talk(stores, "a")


async def test_methods_of_a_store_that_looopy_does_not_need_are_not_called():
    """`get_recent` may return any objects."""

    class Odd(Lists):
        get_recent = count = compact = None

    async with Stores.of(Odd()) as stores:
        assert await talk(stores, "a", "b") == ["1 messages", "3 messages"]


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
        (lambda rows: rows.append({"role": "user", "content": 5, "timestamp": 1}), "item 4: "),
        (lambda rows: rows.append({"timestamp": 1}), "item 4: .*a message needs a role"),
        (lambda rows: rows.append({"role": "user", "content": "x"}), "item 4 has no `timestamp`"),
        (
            lambda rows: rows.append(UserMessage("x")),
            "item 4 is not of context 'c' as looopy knows",
        ),
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


async def test_an_object_that_the_store_changed_in_its_place_is_refused():
    """The store returns the same dictionary as before, with other words."""

    class Objects(Lists):
        async def append(self, context_id, messages):
            await super().append(context_id, [message_to_json(one) for one in messages])

    async with Stores.of(messages := Objects()) as stores, agent_on(stores) as agent:
        await agent.execute_turn("a")
        await agent.execute_turn("b")
        messages.rows["c"][0]["content"] = "other words"
        with pytest.raises(StoreUnavailable, match="message 1 of context 'c' otherwise"):
            await agent.execute_turn("c")


async def test_parts_of_the_log_that_do_not_change_are_loaded_once():
    """Two processes take turns of several events, over more than three parts of the log."""
    loads, seen = [], []

    class Watched(Lists):
        async def append(self, context_id, messages):
            await super().append(context_id, messages)
            seen.append(await third.messages.count("c"))  # in the middle of a turn

    class Counting(InProcess):
        async def load(self, key):
            loads.append(key)
            return await super().load(key)

    messages, state = Watched(), Counting()
    one, other, third = (Stores.of(messages, state=state) for _ in range(3))
    async with one, other, third:
        async with agent_on(one) as first, agent_on(other) as second:
            for n in range(30):
                await first.execute_turn(f"a{n}")
                await second.execute_turn(f"b{n}")
            assert seen == list(range(1, 121))
            loads.clear()
            await first.execute_turn("x")
        assert len({key.partition("-")[0] for key in await state.list()}) == 5  # a head, four parts
        assert len({key for key in loads if "#" in key}) <= 2
        async with Stores.of(messages, state=state) as fresh:
            for stores in (one, other, third):
                for read in ("journal.events", "journal.turns", "messages.records"):
                    found = [await attrgetter(read)(of)("c", limit=1000) for of in (stores, fresh)]
                    assert found[0] == found[1] != []


async def test_a_store_that_keeps_half_a_message_is_refused_at_its_first_append():
    """Not at the next start, when it is too late."""

    class Texts(Lists):
        async def list(self, context_id):
            found = await super().list(context_id)
            return [{"role": one.role, "content": one.content, "timestamp": 1} for one in found]

    async with Stores.of(Texts()) as stores:
        with pytest.raises(StoreUnavailable, match="keep the whole message, as `message_to_json`"):
            await talk(stores, "a")


async def test_a_missing_method_of_a_store_is_named(tmp_path):
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
        with pytest.raises(ConfigurationError, match="`list`, which Documents lacks"):
            await stores.contexts.list()
        assert await talk(stores, "b") == ["3 messages"]


async def test_features_of_many_contexts_are_refused_by_name():
    """The refusal names the feature and a store that has it; listing and searching work."""
    async with Stores.of(Lists(), state=InProcess()) as stores, agent_on(stores) as agent:
        await agent.execute_turn("Hello!")
        for what, call in (
            ("a fork", agent.fork("d")),
            ("tagging a context", agent.tag(add=["x"])),
            ("erasing", stores.contexts.erase("c")),
            ("erasing", stores.contexts.erase_person("ada")),
            ("removing contexts by age or size", stores.contexts.retain()),
            ("counting the bytes of contexts", stores.contexts.sizes()),
            ("exporting a context", anext(export_contexts(stores, "c"))),
            ("importing a context", stores.contexts.restore([])),
        ):
            with pytest.raises(ConfigurationError, match=f"{what}.* needs a store with a journal"):
                await call
        with pytest.raises(ConfigurationError, match="a budget of a day or month needs a store"):
            _ = stores.spending
        assert [one.context_id for one in (await stores.contexts.list()).items] == ["c"]
        assert [hit.position for hit in (await agent.search("hello")).items] == [1]


async def test_a_state_store_without_a_way_to_compare_warns_once(tmp_path, caplog):
    """And one with it does not."""
    state = Documents(tmp_path)
    with caplog.at_level(logging.WARNING, logger="looopy"):
        for _ in range(2):
            async with Stores.of(Lists(), state=state) as stores:
                await talk(stores)
        async with Stores.of(Lists()) as stores:
            await talk(stores, "a", "b")
    (warning,) = [one.getMessage() for one in caplog.records]
    assert warning.startswith("Documents has no method `compare_and_set`: two processes")


async def test_stores_that_do_not_belong_together_are_refused(tmp_path):
    """One state store with two message stores: what one of them has is missing in the other."""
    state = Documents(tmp_path)
    await talk(Stores.of(Lists(), state=state), "a")
    with pytest.raises(StoreUnavailable, match="did not return message 1 of context 'c'"):
        await talk(Stores.of(Lists(), state=state), "b")


async def test_two_state_stores_over_one_message_store_are_refused():
    """One agent has a past that the other one does not know."""
    messages = Lists()
    async with Stores.of(messages) as one, Stores.of(messages) as other, agent_on(one) as agent:
        await agent.execute_turn("a")
        assert await talk(other, "b") == ["3 messages"]
        with pytest.raises(StoreUnavailable, match="another agent with another state store"):
            await agent.execute_turn("c")
        assert len(messages.rows["c"]) == 4


async def test_foreign_messages_without_compare_and_set_are_left_out_with_a_warning(
    tmp_path, caplog
):
    """Without a way to compare, the messages of a turn that failed later may be there."""
    async with Stores.of(messages := Lists(), state=Documents(tmp_path)) as stores:
        await talk(stores, "a")
        messages.rows["c"].append(UserMessage("of a turn that failed"))
        caplog.clear()
        assert await talk(stores, "b") == ["3 messages"]
    assert "messages=Lists: `list` item 2 is not of context 'c'" in caplog.text


async def test_artifacts_in_another_store_are_reported(tmp_path):
    """The state store says that they are there."""
    state = InProcess()
    async with (
        Stores.of(Lists(), Contents(tmp_path / "a"), state) as one,
        Stores.of(Lists(), Contents(tmp_path / "b"), state) as other,
    ):
        await one.artifacts.save("c", "report", b"words")
        with pytest.raises(
            StoreUnavailable, match="artifacts=Contents: `load` raised FileNotFound"
        ):
            await other.artifacts.load("c", "report")


@pytest.mark.parametrize(
    ("key", "spoilt", "says"),
    [
        ("c", {"created_at": "one"}, "returned a part of 'c' otherwise than it was saved"),
        ("c#log/0", {"turns": None}, "returned a part of 'c' otherwise than it was saved"),
        ("c", {"format": 0}, "returned 'c' in the format 0, but this version reads format 1"),
    ],
)
async def test_a_document_that_was_spoilt_is_refused(key, spoilt, says):
    """A number, a part of the log, the format."""
    state = InProcess()
    async with Stores.of(messages := Lists(), state=state) as stores:
        await talk(stores, "a")
    (key,) = [one for one in await state.list() if one.partition("-")[0] == key]
    await state.save(key, {**await state.load(key), **spoilt})
    async with Stores.of(messages, state=state) as stores:
        with pytest.raises(StoreUnavailable, match=f"state=InProcess: `load` {says}"):
            await talk(stores, "b")


@pytest.mark.parametrize("raises", [True, False])
async def test_a_state_store_whose_answer_was_lost_doubles_nothing(raises):
    """The document is looked for, and found."""

    class Lossy(InProcess):
        writes = 0

        async def compare_and_set(self, key, document, revision):
            written = await super().compare_and_set(key, document, revision)
            self.writes += 1
            if raises and self.writes % 2:
                raise ConnectionError("the answer was lost")
            return written and not self.writes % 2

    async with Stores.of(messages := Lists(), state=Lossy()) as stores:
        assert await talk(stores, "a", "b") == ["1 messages", "3 messages"]
    assert len(messages.rows["c"]) == 4


async def test_a_state_store_that_writes_nothing_is_given_up():
    """The error names the method, after some tries."""

    class Stuck(InProcess):
        async def compare_and_set(self, key, document, revision):
            return False

    async with Stores.of(Lists(), state=Stuck()) as stores:
        with pytest.raises(StoreUnavailable, match="state=Stuck: `compare_and_set` wrote nothing"):
            await talk(stores, "a")


async def test_messages_of_a_later_head_are_read_with_that():
    """Another process takes a turn between the look at a document and the look at messages."""
    messages, state = Lists(), InProcess()

    class Late(Lists):
        others = 1

        async def list(self, context_id):
            if messages.rows and self.others:
                self.others = 0
                await talk(Stores.of(messages, state=state), "b")
            return await messages.list(context_id)

        async def append(self, context_id, given):
            await messages.append(context_id, given)

    await talk(Stores.of(messages, state=state), "a")
    assert await talk(Stores.of(Late(), state=state), "c") == ["5 messages"]


async def test_messages_after_a_clear_survive_a_process_that_saw_only_the_clear():
    """It looks again before it clears what the process that cleared may have left."""
    rows = Clearing()

    class Late(InProcess):
        delete = None
        is_late = False

        async def load(self, key):
            found = await super().load(key)
            if self.is_late and key == "c":
                self.is_late = False
                await talk(Stores.of(rows, state=self), "b")
            return found

    state = Late()
    async with agent_on(Stores.of(rows, state=state)) as agent:
        await agent.execute_turn("a")
        await agent.clear()
    state.is_late = True
    assert await talk(Stores.of(rows, state=state), "c") == ["3 messages"]
    assert len(rows.rows["c"]) == 4


async def test_a_deletion_that_another_process_overtook_is_made_again():
    """A message to the inbox comes between."""

    class Busy(InProcess):
        is_busy = False

        async def compare_and_set(self, key, document, revision):
            if self.is_busy:
                self.is_busy = False
                head = await self.load(key)
                await self.save(key, {**head, "revision": revision + 1, "stamp": "another"})
            return await super().compare_and_set(key, document, revision)

    async with Stores.of(messages := Clearing(), state=(state := Busy())) as stores:
        await talk(stores, "a")
        state.is_busy = True
        await stores.state.delete("c")
        assert (messages.rows, await state.list()) == ({}, [])


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
