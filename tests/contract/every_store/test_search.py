"""Searching: the contract on each backend, and the index behind it."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import signal
import sqlite3
from contextlib import closing

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.backends import on_every_store
from tests.postgres import as_driver
from tests.shares import PSYCOPG

from looopy._failpoints import arm
from looopy.errors import StorageFull
from looopy.stores import open_stores
from looopy.stores.contexts.words import LONGEST_TEXT, LONGEST_WORD, index_words, units
from looopy.stores.sql.contexts import search
from looopy.testing.children import fork, wait
from looopy.testing.contracts.search import SearchContract
from looopy.testing.contracts.turns import CONTEXT, user
from looopy.types.message import UserMessage

globals().update(on_every_store("Search", SearchContract))


# --- where nothing can be written ---


@pytest.mark.parametrize("name", ["sqlite", "asyncpg", PSYCOPG])
@pytest.mark.parametrize("indexed", [0, 100, 250])
async def test_messages_that_the_index_lacks_are_found_without_writing(
    name, indexed, request, tmp_path, monkeypatch
):
    """On a standby or a full disk: the same hits and pages as where the index can be written."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    if name != "sqlite":
        url = as_driver(request.getfixturevalue("postgres"), name)
    said = [user(f"{'fox' if n % 3 else 'hen'} number {n}") for n in range(250)]
    async with open_stores(url) as stores:
        await stores.messages.append(CONTEXT, said[:indexed])
        await stores.contexts.search("fox", context_id=CONTEXT)
        await stores.messages.append(CONTEXT, said[indexed:])
        await stores.messages.append("other", [user("a fox alone")])
        tried = []
        run = stores.contexts.backend.run

        async def refuse(work, *, write, ring=None, removes=False):
            if write:
                tried.append(work)
                raise StorageFull("the disk is full")
            return await run(work, write=write, ring=ring)

        with monkeypatch.context() as patched:
            patched.setattr(stores.contexts.backend, "run", refuse)
            without = [await _all_pages(stores, context_id) for context_id in (CONTEXT, None)]
        assert tried
        assert [len(found) for found in without] == [166, 167]
        assert without == [await _all_pages(stores, context_id) for context_id in (CONTEXT, None)]


async def _all_pages(stores, context_id):
    found, after = [], None
    while True:
        page = await stores.contexts.search("fox", context_id=context_id, after=after, limit=30)
        found += [(hit.context_id, hit.position) for hit in page.items]
        if (after := page.next) is None:
            return found


# --- against a search that is as plain as can be ---

_WORDS = st.sampled_from(["a", "ab", "abc", "fox", "Fox", "FÖX", "東京", "京都", "x1"])
_BETWEEN = st.sampled_from([" ", "\n", "-", ", ", "_", " * "])
_TEXTS = st.lists(st.tuples(_WORDS, _BETWEEN), max_size=6).map(
    lambda parts: "".join(word + between for word, between in parts)
)
_PLAIN = str.maketrans("ÖÄ", "oa")


def _said(text):
    """The words of a text of those above, and each character that is a word by itself."""
    return re.findall("[a-z0-9]+|[東京都]", text.translate(_PLAIN).lower())


def _has(text, query, *, phrase, beginning):
    said, wanted = _said(text), _said(query)
    size = len(wanted)
    terms = [wanted] if phrase else [_said(word) for word in query.split()]

    def fits(place, term, last):
        whole = said[place : place + len(term)]
        if len(whole) < len(term) or whole[:-1] != term[:-1]:
            return False
        return whole[-1].startswith(term[-1]) if last else whole[-1] == term[-1]

    return bool(size) and all(
        any(fits(p, term, beginning and n == len(terms) - 1) for p in range(len(said)))
        for n, term in enumerate(terms)
    )


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    texts=st.lists(_TEXTS, min_size=1, max_size=6),
    query=st.lists(_WORDS, min_size=1, max_size=3).map(" ".join),
    phrase=st.booleans(),
    beginning=st.booleans(),
)
def test_a_search_equals_a_plain_scan(world_of_searches, texts, query, phrase, beginning):
    """On each store: the messages whose words, one after the other, are those of the query."""
    runner, places, names = world_of_searches
    name = f"c{next(names)}"
    expected = [
        position
        for position in range(len(texts), 0, -1)
        if _has(texts[position - 1], query, phrase=phrase, beginning=beginning)
    ]
    asked = query + "*" * beginning
    asked = f'"{asked}"' if phrase else asked

    async def found(stores):
        half = len(texts) // 2
        await stores.messages.append(name, [user(text) for text in texts[:half]])
        await stores.contexts.search("x", context_id=name)
        await stores.messages.append(name, [user(text) for text in texts[half:]])
        page = await stores.contexts.search(asked, context_id=name, limit=100)
        for hit in page.items:
            assert all(start < end <= len(hit.snippet) for start, end in hit.matches)
        return [hit.position for hit in page.items]

    for stores in places:
        assert runner.run(found(stores)) == expected


@pytest.fixture
def world_of_searches(tmp_path, postgres):
    """A runner of coroutines, a store of each kind that stays open, and names for contexts."""
    with asyncio.Runner() as runner:
        urls = ("memory:", f"sqlite:///{tmp_path / 'words.db'}", postgres)
        places = [open_stores(url) for url in urls]
        for stores in places:
            runner.run(stores.__aenter__())
        yield runner, places, iter(range(1_000_000))
        for stores in places:
            runner.run(stores.__aexit__(None, None, None))


# --- the index ---


@pytest.fixture(params=["sqlite", "asyncpg"])
def place(request):
    """The URL of an empty database, and a function that reads its index."""
    if request.param == "sqlite":
        path = request.getfixturevalue("sqlite_file")

        def index():
            with closing(sqlite3.connect(path)) as opened:
                rows = opened.execute("SELECT word, block, places FROM looopy_words").fetchall()
                upto = opened.execute("SELECT upto FROM looopy_searched").fetchall()
            places = [(w, b << 10 | p) for w, b, all_ in rows for p in json.loads(f"[{all_}]")]
            return sorted(places), upto

        return f"sqlite:///{path}", index
    url = request.getfixturevalue("postgres")

    def index():
        with psycopg.connect(url) as opened:
            words = "SELECT unnest(tsvector_to_array(words)), position FROM looopy_words"
            rows = opened.execute(words).fetchall()
            return sorted(rows), opened.execute("SELECT upto FROM looopy_searched").fetchall()

    return url, index


def _expected(messages):
    return sorted((word, n) for n, text in enumerate(messages, 1) for word in index_words(text))


@pytest.mark.timeout(120)
def test_a_search_that_is_killed_leaves_whole_batches(place, tmp_path):
    """Wherever that was, the next one adds what is missing, and nothing twice."""
    url, index = place
    texts = [f"fox number {n}" for n in range(600)]

    async def fill():
        async with open_stores(url) as stores:
            await stores.messages.append(CONTEXT, [user(text) for text in texts])

    async def die(write):
        async with open_stores(url) as stores:
            arm(f"B2:{write}")
            await stores.contexts.search("fox", context_id=CONTEXT)

    asyncio.run(fill())
    # Its first write is the first batch; the last child is killed in the last one of three.
    for write, upto in ((1, None), (2, 256), (1, 256), (2, 512)):
        status = wait(fork(lambda w=write: asyncio.run(die(w)), tmp_path / "log"))
        assert status == -signal.SIGKILL
        found, marks = index()
        assert marks == ([] if upto is None else [(upto,)])
        assert found == _expected(texts[: upto or 0])

    async def look():
        async with open_stores(url) as stores:
            page = await stores.contexts.search("fox", context_id=CONTEXT, limit=1000)
            assert [hit.position for hit in page.items] == [*range(600, 0, -1)]

    asyncio.run(look())
    assert index() == (_expected(texts), [(600,)])


@pytest.mark.timeout(120)
def test_two_processes_that_search_at_once_add_each_message_once(place, tmp_path):
    """A third one adds messages in the meantime."""
    url, index = place
    texts = [f"fox number {n}" for n in range(700)]

    async def add(some):
        async with open_stores(url) as stores:
            for start in range(0, len(some), 100):
                await stores.messages.append(CONTEXT, [user(t) for t in some[start : start + 100]])

    async def look():
        async with open_stores(url) as stores:
            for _ in range(3):
                page = await stores.contexts.search("fox", context_id=CONTEXT, limit=1000)
                found = [hit.position for hit in page.items]
                assert len(found) >= 400
                assert found == [*range(len(found), 0, -1)]

    asyncio.run(add(texts[:400]))
    works = (look, look, lambda: add(texts[400:]))
    log = tmp_path / "log"
    children = [fork(lambda work=work: asyncio.run(work()), log) for work in works]
    assert [wait(child) for child in children] == [0, 0, 0], log.read_text()
    asyncio.run(look())
    assert index() == (_expected(texts), [(700,)])


@pytest.mark.parametrize("how", ["clear", "delete", "delete and make again", "erase"])
async def test_no_word_is_added_of_a_message_that_has_just_gone(place, monkeypatch, how):
    """Whoever clears or deletes while a search makes words leaves no word of them behind."""
    url, index = place
    making = search._words

    async with open_stores(url) as stores, open_stores(url) as other:
        await stores.messages.append(CONTEXT, [user("secret")] * 3)
        loop = asyncio.get_running_loop()

        def words(rows):
            async def forget():
                if how == "clear":
                    await other.journal.clear(CONTEXT)
                elif how == "erase":
                    await other.contexts.erase(CONTEXT)
                else:
                    await other.state.delete(CONTEXT)
                if how == "delete and make again":
                    await other.messages.append(CONTEXT, [user("other")] * 3)

            monkeypatch.setattr(search, "_words", making)
            asyncio.run_coroutine_threadsafe(forget(), loop).result(20)
            return making(rows)

        monkeypatch.setattr(search, "_words", words)
        monkeypatch.setattr(search, "is_little", lambda *_: False)  # make them in a thread

        def making_in_thread(rows):
            yield from words(rows)

        monkeypatch.setattr(search, "_words", making_in_thread)
        page = await stores.contexts.search("secret", context_id=CONTEXT)
        assert page.items == []
        made_again = how == "delete and make again"
        assert index()[0] == [("other", 1), ("other", 2), ("other", 3)] * made_again
        page = await stores.contexts.search("other")
        assert len(page.items) == 3 * made_again


@pytest.mark.parametrize("how", ["clear", "delete", "erase"])
async def test_deleted_words_are_in_none_of_the_files(sqlite_file, how):
    """None of thousands, though the rows of others lie between them and pages were split."""
    draw = random.Random(34)
    batches = {
        name: [
            [["".join(draw.choices("bcdfghjklmnp", k=12)) for _ in range(40)] for _ in range(30)]
            for _ in range(4)
        ]
        for name in ("gone", "kept")
    }
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        for n in range(4):
            for name, texts in batches.items():
                said = [UserMessage(" ".join(words)) for words in texts[n]]
                await stores.messages.append(name, said)
                await stores.contexts.search("b*")
        written = {
            name: {word for texts in batches[name] for words in texts for word in words}
            for name in batches
        }
        assert _left(sqlite_file, written["gone"]) == written["gone"]
        forget = {
            "clear": stores.journal.clear,
            "delete": stores.state.delete,
            "erase": stores.contexts.erase,
        }
        await forget[how]("gone")
        assert _left(sqlite_file, written["gone"]) == set()
        assert _left(sqlite_file, written["kept"]) == written["kept"]


def _left(path, words):
    """Those of which the most is in a file, in whatever row or hole."""
    held = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    runs = set(re.findall(rb"[b-p]{10,}", held))
    parts = {run[n : n + 10] for run in runs for n in range(len(run) - 9)}
    return {word for word in words if word[2:].encode() in parts}


# --- the steps of the index ---


class _Steps:
    """The steps that make words: the rows of each, and the most that ran at once."""

    def __init__(self, making):
        self.rows, self.now, self.most = [], 0, 0
        self._making = making

    def watch(self, number):
        """Is called before each part of a step, by the thread that makes it."""

    def words(self, rows):
        self.rows.append(rows)
        self.now += 1
        self.most = max(self.most, self.now)
        for number, part in enumerate(self._making(rows)):
            self.watch(number)
            yield part
        self.now -= 1


@pytest.fixture
def steps(monkeypatch):
    """The steps of the searches of this test."""
    seen = _Steps(search._words)
    monkeypatch.setattr(search, "_words", seen.words)
    return seen


async def test_a_step_is_bounded_by_messages_and_by_bytes(place, steps):
    """A long history, or a few long messages: no transaction holds the writer for long."""
    url, index = place
    long = "word " * 20_000
    texts = ["fox"] * 300 + [long] * 6 + ["dog"] * 10
    async with open_stores(url) as stores:
        await stores.messages.append(CONTEXT, [user(text) for text in texts])
        await stores.contexts.search("fox", context_id=CONTEXT, limit=0)
        assert [len(rows) for rows in steps.rows] == [256, 47, 3, 10]
        assert [row[0] for rows in steps.rows for row in rows] == [*range(1, len(texts) + 1)]
        await stores.messages.append(CONTEXT, [user("y" * 1_000_000), user("end")])
        await stores.contexts.search("end", context_id=CONTEXT)
        assert [len(rows) for rows in steps.rows[4:]] == [1, 1]
    assert index() == (_expected([*texts, "y" * LONGEST_TEXT, "end"]), [(len(texts) + 2,)])


async def test_the_event_loop_runs_between_two_parts_of_a_step(place, steps):
    """A part is some messages, or some of a long one; other writers come in between."""
    url, _ = place
    dense = "".join(map(chr, range(0x4E00, 0x4E00 + 6_000)))
    texts = [f"fox {n} " + "lorem ipsum " * 200 for n in range(300)] + [dense]
    ran, seen, written = 0, [], []

    async def run():
        nonlocal ran
        while True:
            ran += 1
            await asyncio.sleep(0)

    async with open_stores(url) as stores, open_stores(url) as other:
        await stores.messages.append(CONTEXT, [user(text) for text in texts])
        loop = asyncio.get_running_loop()

        def watch(number):
            seen.append((number, ran))
            if number == 1:
                work = other.messages.append("other", [user("meanwhile")])
                written.append(asyncio.run_coroutine_threadsafe(work, loop).result(60))

        steps.watch = watch
        running = asyncio.create_task(run())
        page = await stores.contexts.search(dense[:2], context_id=CONTEXT)
        running.cancel()
        assert [hit.position for hit in page.items] == [301]
        assert len(written) == len(steps.rows) == 3
    for (_, before), (later, after) in itertools.pairwise(seen):
        assert later == 0 or before < after
    assert sum(number > 0 for number, _ in seen) > 12


async def test_searches_of_one_loop_make_words_one_after_the_other(place, steps):
    """Each thread more would take the interpreter from the loop."""
    url, index = place
    texts = [f"fox number {n}" for n in range(100)]
    async with open_stores(url) as stores:
        names = [f"c{n}" for n in range(4)]
        for name in names:
            await stores.messages.append(name, [user(text) for text in texts])
        await asyncio.gather(*(stores.contexts.search("fox", context_id=n) for n in names))
    assert (len(steps.rows), steps.most) == (4, 1)
    assert len(index()[1]) == 4


async def test_a_cancelled_search_keeps_the_steps_that_it_made(place, steps):
    """The next one makes only the others."""
    url, index = place
    texts = [f"fox number {n}" for n in range(900)]
    async with open_stores(url) as stores:
        await stores.messages.append(CONTEXT, [user(text) for text in texts])
        loop = asyncio.get_running_loop()

        def watch(number):
            if len(steps.rows) == 3 and number == 0:
                loop.call_soon_threadsafe(asked.cancel)

        steps.watch = watch
        asked = asyncio.create_task(stores.contexts.search("fox", context_id=CONTEXT))
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert index() == (_expected(texts[:512]), [(512,)])
        steps.rows.clear()
        page = await stores.contexts.search("fox", context_id=CONTEXT, limit=1000)
        assert len(page.items) == 900
        assert [rows[0][0] for rows in steps.rows] == [513, 769]
    assert index() == (_expected(texts), [(900,)])


# --- words ---


def test_words_are_cut_and_few_enough_for_a_row():
    """A word of an index has 64 characters at most, and a message no more words than fit a row."""
    assert index_words("x" * 100) == {"x" * LONGEST_WORD}
    assert index_words("é" * 100) == {"e" * LONGEST_WORD}
    many = " ".join(f"{chr(0x4E00 + n % 20_000)}{chr(0x20000 + n)}" for n in range(40_000))
    assert sum(len(word.encode()) for word in index_words(many)) < 2**20 - 1


@pytest.mark.parametrize("text", ["a İ ß ﬁ ½ ﷺ x\u0301y \u0301", "ガギ ｶﾞ ก็ នៃ", "한국어 हिन्दी"])
def test_a_unit_is_where_it_was_written(text):
    """In order, apart from each other, and never empty."""
    end = 0
    for unit in units(text):
        assert end <= unit.start < unit.end
        assert unit.word
        assert units_of(text[unit.start : unit.end]) == [unit.word]
        end = unit.end


def units_of(text):
    """The words of its units."""
    return [unit.word for unit in units(text)]


async def test_a_message_with_more_words_than_fit_a_row_stops_no_search(place):
    """It is found by some of its words, and its neighbours by all."""
    url, _ = place
    many = "".join(map(chr, range(0x20000, 0x20000 + 42_000)))
    async with open_stores(url) as stores:
        await stores.messages.append(CONTEXT, [user("first"), user(many + many[::2]), user("last")])
        for query, position in (("first", 1), ("last", 3), (many[:2], 2)):
            page = await stores.contexts.search(query, context_id=CONTEXT)
            assert [hit.position for hit in page.items] == [position]
