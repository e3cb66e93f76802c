"""The contract of erasing contexts, on each backend; and what is left of them in files and rows."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from tests import s3
from tests.contract.backends import on_every_store
from tests.postgres import as_driver

from looopy.errors import StorageFull, StoreUnavailable
from looopy.stores import open_stores
from looopy.stores.contexts import erasing
from looopy.stores.contexts.erasing import Retention
from looopy.stores.contexts.families import Families
from looopy.stores.memory.erasing import InMemoryErasures
from looopy.stores.sql import statements as s
from looopy.stores.sql.sqlite import backups
from looopy.stores.sql.sqlite.driver import SQLiteDriver
from looopy.stores.sql.tables import metadata
from looopy.testing.contracts.erasure import (
    ErasureContract,
    RedactionContract,
    RetentionContract,
    a_whole_context,
)
from looopy.testing.contracts.turns import (
    CONTEXT,
    LONG_S,
    a_turn,
    answer,
    begin,
    commit,
    ends,
    said,
)

CANARY = "canary-7f3a"

globals().update(on_every_store("Erasure", ErasureContract))


async def test_an_erasure_on_a_full_disk_names_the_way_out(memory_stores, monkeypatch):
    """For SQLite needs room to delete; the facts of the error stay."""
    claimed = await begin(memory_stores, actor_id="ann")
    await commit(memory_stores, claimed, [ends()], release=True)

    async def full(*_, **__):
        raise StorageFull("the disk is full", outcome_known=True, sqlstate="53100")

    monkeypatch.setattr(InMemoryErasures, "erase_rows", full)
    contexts = memory_stores.contexts
    for work in (
        contexts.erase(CONTEXT),
        contexts.erase_person("ann"),
        contexts.retain(older_than=timedelta(0)),
    ):
        with pytest.raises(StorageFull, match="looopy db backups --remove") as refused:
            await work
        assert refused.value.facts == {"outcome_known": True, "sqlstate": "53100"}


globals().update(on_every_store("Redaction", RedactionContract))

globals().update(on_every_store("Retention", RetentionContract))


@pytest.fixture(scope="module")
def server():
    """An S3 server for the tests of this file."""
    with s3.serving() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(server, monkeypatch, request):
    """An empty bucket."""
    for name, value in s3.KEYS.items():
        monkeypatch.setenv(name, value)
    return s3.new_bucket(server, f"erasure-{abs(hash(request.node.name))}")


class TestErasureOnS3(ErasureContract):
    """Rows in Postgres, large parts in a bucket."""

    @pytest.fixture
    async def stores(self, bucket, postgres):
        """Open and empty."""
        async with open_stores(as_driver(postgres, "asyncpg"), blobs=bucket) as stores:
            yield stores


# --- what is left in files and rows ---


def files_with(folder, text):
    """The files below *folder* that hold *text*, whatever their format."""
    return [p for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


async def _canary(stores, name=CONTEXT):
    await a_whole_context(stores, name, actor=f"{CANARY}-ann", words=CANARY)


async def test_a_file_and_all_beside_it_are_clean(tmp_path, sqlite_file):
    """The database, its log, its shared memory, the folder of blobs, and a migration's copy."""
    folder = sqlite_file.parent
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        await _canary(stores)
        await _canary(stores, "other")
        backups.back_up(sqlite_file, "0004")
        assert len(files_with(folder, CANARY)) >= 3
        found = await stores.contexts.erase_person(f"{CANARY}-ann")
        assert (found.contexts, found.blobs, found.backups) == (2, 1, 1)
        assert files_with(folder, CANARY) == []
    assert files_with(folder, CANARY) == []


async def test_copies_can_be_kept(sqlite_file):
    """The report then names them: they hold what was erased, and all other contexts."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        await _canary(stores)
        backups.back_up(sqlite_file, "0004")
        found = await stores.contexts.erase(CONTEXT, keep_backups=True)
    (copy,) = backups.backups_of(sqlite_file)
    assert (found.backups, found.backups_left) == (0, (str(copy),))
    assert files_with(sqlite_file.parent, CANARY) == [copy]


async def test_it_is_not_done_while_the_log_holds_a_part(sqlite_file):
    """A reader of another process pins the log: an error, and the next erasure ends it."""
    driver = SQLiteDriver(sqlite_file, patience_s=0.05)
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        await _canary(stores)
        await driver.open()
        with closing(sqlite3.connect(sqlite_file)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM looopy_contexts").fetchall()
            await stores.contexts.tag(CONTEXT, add=[CANARY])
            stores.contexts.backend._patience_s = 0.05
            with pytest.raises(StoreUnavailable, match="erase again"):
                await stores.contexts.erase(CONTEXT)
            assert files_with(sqlite_file.parent, CANARY)
        await driver.close()
        assert (await stores.contexts.erase(CONTEXT)).contexts == 0
        assert files_with(sqlite_file.parent, CANARY) == []


def tables_with(url, text):
    """The tables of a Postgres database with a row that has *text*."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall()
        return [
            name
            for (name,) in tables
            if connection.execute(
                f"SELECT 1 FROM {name} t WHERE t::text LIKE %s"
                f" OR encode(convert_to(t::text, 'UTF8'), 'escape') LIKE %s"
                f" OR t::text LIKE %s LIMIT 1",
                (f"%{text}%", f"%{text}%", f"%{text.encode().hex()}%"),
            ).fetchall()
        ]


async def test_the_tables_of_a_server_are_clean(postgres):
    """Each of them, cast to text, bytes as their digits."""
    async with open_stores(postgres) as stores:
        await _canary(stores)
        found = set(tables_with(postgres, CANARY))
        assert found >= {"looopy_messages", "looopy_artifacts", "looopy_artifact_parts"}
        await stores.contexts.erase_person(f"{CANARY}-ann")
    assert tables_with(postgres, CANARY) == []


@pytest.fixture(params=["sqlite", "postgres"])
def place(request):
    """A URL, and a function that counts the rows of each table, whatever there is."""
    if request.param == "sqlite":
        path = request.getfixturevalue("sqlite_file")

        def ask(sql):
            with closing(sqlite3.connect(path)) as connection:
                return connection.execute(sql).fetchall()

        names = "SELECT name FROM sqlite_master WHERE type = 'table'"
        url = f"sqlite:///{path}"
    else:
        url = request.getfixturevalue("postgres")

        def ask(sql):
            with psycopg.connect(url) as connection:
                return connection.execute(sql).fetchall()

        names = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"

    def count():
        return {
            name: ask(f"SELECT COUNT(*) FROM {name}")[0][0]
            for (name,) in ask(names)
            if name != s.VERSION_TABLE
        }

    return url, count


# Ids of contexts, and no more: a mark that something changed, and the link of an inner context. The
# link goes with the row of the context, so that an erasure that was killed is ended.
NO_CONTENT = {"looopy_unindexed", "looopy_inner"}
# Sums of what a tenant and its owners have used, by digests: they outlive the contexts.
ACCOUNTS = {"looopy_spending", "looopy_reservations"}
# Names of bytes that a process is writing; the commit, or `collect`, takes them away.
UPLOADS = {"looopy_uploads"}


async def test_every_table_is_in_the_list_of_content(place):
    """A new table with content has to be added there, and to the context of this test."""
    url, count = place
    async with open_stores(url) as stores:
        await a_whole_context(stores)
        await stores.journal.fork(CONTEXT, "fork")
        await stores.artifacts.delete("fork", "plan")
        await stores.contexts.index()
        before = count()
        marks = (NO_CONTENT | ACCOUNTS | UPLOADS) & before.keys()
        assert {name for name, rows in before.items() if not rows} <= marks
        await stores.contexts.erase(CONTEXT)
        await stores.contexts.erase("fork")
        assert set(count().values()) == {0}
    known = {*s.CONTENT, *NO_CONTENT, *ACCOUNTS, *UPLOADS, "looopy_contexts"}
    assert set(metadata.tables) == known


async def test_a_context_that_became_active_since_it_was_chosen_is_kept(place, monkeypatch):
    """A retention chooses, then erases one after the other; this one has a turn in between."""
    url, _ = place
    async with open_stores(url) as stores:
        await a_turn(stores)
        erase_rows = stores.contexts.erase_rows

        async def late(context_id, terms):
            await a_turn(stores)
            return await erase_rows(context_id, terms)

        monkeypatch.setattr(stores.contexts, "erase_rows", late)
        assert (await stores.contexts.retain(older_than=timedelta(0))).contexts == 0
        assert (await stores.state.load(CONTEXT)).turn_count == 2


async def test_words_of_a_guest_leave_the_index_at_once(postgres):
    """The words of the owner come back with the next search; SQLite has no index of words."""
    async with open_stores(postgres) as stores:
        for actor, thing in (("ann", "violins"), ("ben", "xylophones")):
            claimed = await begin(stores, text=f"about {thing}", actor_id=actor)
            await commit(stores, claimed, [said(answer(thing)), ends()], release=True)
        assert (await stores.contexts.search("xylophones", context_id=CONTEXT)).items
        assert "looopy_words" in tables_with(postgres, "xylophon")
        await stores.contexts.erase_person("ben")
        assert tables_with(postgres, "xylophon") == []
        assert (await stores.contexts.search("violins", context_id=CONTEXT)).items


async def test_an_erasure_that_stops_half_way_leaves_no_bytes_in_a_row(
    postgres, tmp_path, monkeypatch
):
    """Artifacts from before there was a place for blobs lie in rows, beside names of blobs."""
    content = bytes(range(256)) * 800
    async with open_stores(postgres) as stores:
        await stores.artifacts.save(CONTEXT, "old", content)
    async with open_stores(postgres, blobs=str(tmp_path / "blobs")) as stores:
        await stores.artifacts.save(CONTEXT, "new", content[::-1])

        async def killed(context_id, epoch):
            raise StoreUnavailable("killed")

        monkeypatch.setattr(stores.contexts, "end_erasure", killed)
        with pytest.raises(StoreUnavailable):
            await stores.contexts.erase(CONTEXT)
        with psycopg.connect(postgres) as connection:
            rows = connection.execute("SELECT bytes FROM looopy_artifact_parts").fetchall()
        assert rows
        assert {data for (data,) in rows} == {None}


@pytest.mark.parametrize("first", ["parent", "person"])
async def test_forks_of_a_person_leave_no_row(place, first):
    """Neither they nor what they shared with a parent that was deleted before."""
    url, count = place
    async with open_stores(url) as stores:
        await a_whole_context(stores)
        for parent, name in ((CONTEXT, "a-fork"), (CONTEXT, "z-fork"), ("a-fork", "b-fork")):
            await stores.journal.fork(parent, name)
        if first == "parent":
            await stores.state.delete(CONTEXT)
        await stores.contexts.erase_person("ann")
    assert {name: rows for name, rows in count().items() if rows} == {}


async def test_each_statement_of_the_list_empties_its_table(place, monkeypatch):
    """As an erasure does that waits for blobs: the context's own row alone stays till then."""
    url, count = place
    monkeypatch.setattr(s, "LIST_BLOBS", "SELECT 'x' WHERE :tenant <> :context")

    async def ended(self, context_id, epoch):
        """Never."""

    async def removed(self, names):
        return 0

    async with open_stores(url) as stores:
        await a_whole_context(stores)
        stores.contexts.backend.blobs = stores.contexts.backend.blobs or object()
        monkeypatch.setattr(type(stores.contexts), "end_erasure", ended)
        monkeypatch.setattr(type(stores.contexts), "remove_blobs", removed)
        await stores.contexts.erase(CONTEXT)
        left = {name for name, rows in count().items() if rows}
        assert left <= {"looopy_contexts", "looopy_unindexed", "looopy_artifact_parts"}
        record = await stores.state.load(CONTEXT)
        assert (record.turn_count, record.last_position, record.last_seq) == (0, 0, 0)
        assert (record.metadata, record.tags, record.inbox.waiting) == ({}, (), 0)
        assert await stores.artifacts.list(CONTEXT) == []
        assert (await begin(stores, record.epoch, ttl_s=LONG_S)).turn == 1


async def test_contexts_to_erase_are_chosen_off_the_event_loop(memory_stores, monkeypatch):
    """By age or size, and of a person: that looks at every context of the tenant."""
    threads = set()

    def told(kind, name):
        real = getattr(kind, name)

        def method(*args, **named):
            threads.add(threading.current_thread())
            return real(*args, **named)

        monkeypatch.setattr(kind, name, method)

    told(Retention, "choose")
    told(Families, "with_inner")
    monkeypatch.setattr(erasing, "_PAGE", 2)
    for n in range(3):
        claimed = await begin(memory_stores, context_id=f"c{n}", actor_id="ann")
        end = ends(context_id=f"c{n}")
        await commit(memory_stores, claimed, [end], context_id=f"c{n}", release=True)
    await memory_stores.contexts.retain(older_than=timedelta(days=1), larger_than=10**9)
    await memory_stores.contexts.erase_person("ann")
    assert len(threads) == 2
    assert threading.main_thread() not in threads
