"""Pages of a log: how much is asked for, and where it is decoded."""

import asyncio
import gc
import threading
from collections import Counter

import pytest

from looopy.stores import open_stores
from looopy.stores.contexts import log
from looopy.stores.contexts.log import is_little, off_loop
from looopy.stores.sql import artifacts, state
from looopy.stores.sql import journal as events
from looopy.stores.sql.engine import bind
from looopy.stores.sql.migrate import bring_to_head
from looopy.stores.sql.sqlite.driver import SQLiteDriver
from looopy.testing.contracts.turns import (
    CONTEXT,
    a_turn,
    answer,
    begin,
    commit,
    ends,
    finishes,
    said,
    starts,
    user,
)
from looopy.types.event import ToolExecutionStart
from looopy.types.message import AssistantMessage, ToolCall


async def test_a_long_list_is_decoded_in_another_thread_part_by_part():
    """The loop goes on between the parts: each waits here until the loop has had its turn."""
    loop, turns = asyncio.get_running_loop(), []

    def parts():
        for n in range(5):
            had = threading.Event()
            loop.call_soon_threadsafe(lambda had=had, n=n: (turns.append(n), had.set()))
            assert had.wait(300)
            yield [threading.current_thread().name]

    names = await off_loop(parts(), little=False)
    assert names == ["looopy-decoder"] * 5
    assert len(turns) == 5


async def test_a_short_list_needs_no_thread():
    """Opening a context costs no hop."""
    assert await off_loop(iter([[threading.current_thread()]]), little=True) == [
        threading.main_thread()
    ]
    assert is_little(64, ["x"] * 64)
    assert not is_little(65, ["x"] * 65)
    assert not is_little(1, ["x" * 100_001])


async def test_a_failure_in_the_thread_reaches_its_caller():
    """As if it had happened here."""

    def parts():
        yield [1]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await off_loop(parts(), little=False)


async def test_a_cancelled_read_decodes_no_further_part():
    """The thread ends at the next part."""
    reached, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def parts():
        try:
            reached.set()
            assert go_on.wait(300)
            yield [1]
            raise AssertionError("one part more was taken")
        finally:
            ended.set()

    task = asyncio.create_task(off_loop(parts(), little=False))
    assert await asyncio.to_thread(reached.wait, 300)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 300)


async def _many(stores, number):
    """Many messages in one context, and as many turns with calls as make a page of events."""
    await stores.messages.append(CONTEXT, [user(f"{n}") for n in range(number)])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_many_messages_are_decoded_in_small_parts_beside_the_loop(
    kind, tmp_path, monkeypatch
):
    """Never more than 256 rows at once, and never in the thread of the loop."""
    parts: list[int] = []
    threads = Counter()
    decode = log.decode_records

    def seen(found):
        parts.append(len(found))
        threads[threading.current_thread() is threading.main_thread()] += 1
        return decode(found)

    monkeypatch.setattr(log, "decode_records", seen)
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path / 'chat.db'}"
    async with open_stores(url) as stores:
        await _many(stores, 1000)
        found = await stores.messages.list(CONTEXT)
    assert [m.content for m in found] == [f"{n}" for n in range(1000)]
    assert parts == [256, 256, 256, 232]
    assert threads == {False: 4}


@pytest.mark.parametrize(
    ("module", "decoder"),
    [(events, "turn_record"), (state, "context_record"), (artifacts, "stored_artifact")],
)
async def test_long_lists_of_anything_else_are_decoded_beside_the_loop_too(
    module, decoder, tmp_path, monkeypatch
):
    """Turns, contexts and artifacts."""
    async with open_stores(f"sqlite:///{tmp_path / 'chat.db'}") as stores:
        await _many(stores, 1)
        for n in range(70):
            await a_turn(stores)
            await stores.messages.append(f"other-{n}", [user("hello")])
            await stores.artifacts.save(CONTEXT, f"{n}.txt", b"text")
        threads = Counter()
        decode = getattr(module, decoder)

        def seen(row):
            threads[threading.current_thread().name] += 1
            return decode(row)

        monkeypatch.setattr(module, decoder, seen)
        lists = {
            "turn_record": lambda: stores.journal.turns(CONTEXT, limit=70),
            "context_record": lambda: stores.state.list(limit=70),
            "stored_artifact": lambda: stores.artifacts.list(CONTEXT),
        }
        found = await lists[decoder]()
    assert len(found) == 70
    assert threads == {"looopy-decoder": 70}


async def test_a_page_of_events_costs_the_same_statements_whatever_it_holds(tmp_path):
    """A few for each thousand rows: no event asks for a message of its own."""
    asked: list[str] = []

    class Counting(SQLiteDriver):
        async def run(self, work, *, write, ring=None, removes=False):
            def counted():
                steps = work()
                answer = None
                while True:
                    try:
                        query = steps.send(answer)
                    except StopIteration as stop:
                        return stop.value
                    if not write:
                        asked.append(query.sql)
                    answer = yield query

            return await super().run(counted, write=write, ring=ring)

    driver = Counting(tmp_path / "chat.db", bring_to_head=bring_to_head)
    await driver.open()
    stores = bind(driver, "default")
    await _many(stores, 3)
    for n in range(60):
        call = ToolCall(f"call-{n}", "add", {"a": n})
        claimed = await begin(stores, text=f"turn {n}")
        await commit(stores, claimed, [said(answer("", call)), starts(call)])
        await commit(stores, claimed, finishes(call, "done"))
        await commit(stores, claimed, [said(answer("ok")), ends()], release=True)
    claimed = await begin(stores, text="a long turn")
    for n in range(20):
        await commit(stores, claimed, [said(answer(f"{n}"))])
    await commit(stores, claimed, [ends()], release=True)
    whole = await stores.journal.events(CONTEXT)
    assert len(whole) == 3 + 60 * 8 + 23
    end = len(whole) - 1
    for after, limit in ((0, 400), (5, 1), (100, 20), (107, 300), (200, None), (end, None)):
        asked.clear()
        page = await stores.journal.events(CONTEXT, after=after, limit=limit)
        assert page == whole[after:][:limit]
        assert len(asked) <= 9, asked
    await a_turn(stores)
    await driver.close()


async def test_the_calls_of_a_message_are_looked_through_once_for_all_of_them(monkeypatch):
    """A message may ask for thousands, and each has an event that names the call."""
    calls = [ToolCall(f"call-{n % 90}", "add", {"a": n}) for n in range(100)]
    looked = 0

    def tool_calls(message):
        nonlocal looked
        looked += 1
        return [block for block in message.content if isinstance(block, ToolCall)]

    async with open_stores("memory:") as stores:
        claimed = await begin(stores)
        await commit(stores, claimed, [said(answer("", *calls)), *map(starts, calls)])
        monkeypatch.setattr(AssistantMessage, "tool_calls", property(tool_calls))
        found = await stores.journal.events(CONTEXT)
    begun = [e for e in found if isinstance(e, ToolExecutionStart)]
    assert [e.args["a"] for e in begun] == [n % 90 for n in range(100)]  # of equal ids the first
    assert looked == 1


async def test_a_log_of_many_pages_is_one_reading(tmp_path, monkeypatch):
    """Page after page of one snapshot, as if it were one."""
    async with open_stores(f"sqlite:///{tmp_path / 'chat.db'}") as stores:
        await _many(stores, 40)
        for _ in range(9):
            await a_turn(stores)
        whole = await stores.journal.events(CONTEXT)
        assert [e.seq for e in whole] == list(range(1, 40 + 9 * 4 + 1))
        monkeypatch.setattr(events, "PAGE", 7)
        for after in range(0, len(whole), 5):
            for limit in (None, 1, 7, 8, 20):
                found = await stores.journal.events(CONTEXT, after=after, limit=limit)
                assert found == whole[after:][:limit]


class _Full:
    """Counts full collections of garbage, and how many objects had been taken at each."""

    def __init__(self):
        self.at, self.taken = [], 0

    def __call__(self, phase, info):
        if phase == "start" and info["generation"] == 2:
            self.at.append(self.taken)

    def many(self):
        """So many objects that a collector looks at them all, unless it is kept from that."""
        return max(20 * log._MANY, 2 * len(gc.get_objects()))

    def parts(self, count):
        """So many objects that a collector looks at, in parts."""
        for _ in range(0, count, 256):
            yield [[] for _ in range(256)]
            self.taken += 256


@pytest.fixture
def full(monkeypatch):
    """The count of full collections; the thresholds make them frequent."""
    counted = _Full()
    before = gc.get_threshold()
    # tests/conftest.py has frozen the tests themselves: those are no application's.
    monkeypatch.setattr(log, "_FROZEN_AT_START", gc.get_freeze_count() + log._FROZEN_AT_START)
    gc.set_threshold(100, 2, 2)
    gc.collect()
    gc.callbacks.append(counted)
    try:
        yield counted
    finally:
        gc.callbacks.remove(counted)
        gc.set_threshold(*before)
        gc.freeze()  # again: to read a long list has thawed them


async def test_a_long_list_is_read_without_full_collections(full):
    """Each would look at all that was read, while every thread stands still."""
    found = await off_loop(full.parts(full.many()), little=False)
    assert len(found) > 10 * log._MANY
    assert [at for at in full.at if at > log._MANY] == []
    del found
    gc.collect()
    assert full.at, "they are only put off"


async def test_full_collections_are_not_put_off_for_ever(full, monkeypatch):
    """A process that only reads would keep all cycles."""
    monkeypatch.setattr(log, "_PUT_OFF_AT_MOST", 2 * log._MANY)
    found = await off_loop(full.parts(full.many()), little=False)
    assert [at for at in full.at if at > 3 * log._MANY], len(found)
    del found
    gc.collect()
    freezes, freeze = [], gc.freeze
    monkeypatch.setattr(gc, "freeze", lambda: (freezes.append(full.taken), freeze()))
    full.taken = 0
    await off_loop(full.parts(2 * log._MANY), little=False)
    assert freezes, "after one, the next is put off again"


async def test_objects_frozen_by_an_application_stay_frozen(full):
    """Before it forks, for example."""
    theirs = [[] for _ in range(20_000)]
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        found = await off_loop(full.parts(100_000), little=False)
        assert gc.get_freeze_count() > frozen // 2, len(found) + len(theirs)
    finally:
        gc.unfreeze()


async def test_a_collector_that_is_switched_off_is_left_alone(full, monkeypatch):
    """Its application collects when it likes."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    gc.disable()
    try:
        await off_loop(full.parts(100_000), little=False)
    finally:
        gc.enable()
    assert not frozen
