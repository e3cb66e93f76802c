"""The contract of the index of contexts, on each backend."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from tests.contract.backends import on_every_store
from tests.postgres import ask

from looopy.stores.records import ContextState, EntryKind
from looopy.stores.sql import statements as s
from looopy.stores.sql.sqlite.statements import IN_SQLITE
from looopy.testing.contracts.listing import ContextIndexContract
from looopy.testing.contracts.turns import (
    WHEN,
    begin,
    commit,
    ends,
    record_of,
    user,
    waiting_for_approval,
)
from looopy.types.message import StopReason

globals().update(on_every_store("Listing", ContextIndexContract))


@pytest.mark.parametrize("walk", ["all", "due"])
def test_sqlite_lists_along_an_index(sqlite_stores, sqlite_file, walk):
    """Newest first without a sort, and every other row is looked up by its key."""
    sql = IN_SQLITE[getattr(s, f"FIND_{walk.upper()}")].replace("now_us()", "0")
    values = dict.fromkeys([name for name in s.TEXTS if f":{name}" in sql])
    values |= dict.fromkeys(["since", "until", "limit"], 0)
    with closing(sqlite3.connect(sqlite_file)) as connection:
        plan = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    assert f"USING INDEX ix_looopy_context_index_{walk} (tenant_id=? AND label=?" in plan[0], plan
    assert not [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step]


@pytest.mark.parametrize(
    "walk", ["NEWEST_MARKED", "LIST_MARKED", "MARKED_PLACES", "TO_BE_INDEXED", "TO_INDEX"]
)
def test_sqlite_reads_marked_contexts_by_their_keys(sqlite_stores, sqlite_file, walk):
    """Nothing is scanned but values of the statement itself, and what it has chosen."""
    sql = IN_SQLITE.get(getattr(s, walk), getattr(s, walk)).replace("now_us()", "0")
    values = dict.fromkeys(re.findall(r":([a-z_0-9]+)", sql), 0)
    with closing(sqlite3.connect(sqlite_file)) as connection:
        plan = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    scanned = {step for step in plan if step.startswith("SCAN") and "VIRTUAL TABLE" not in step}
    assert scanned <= {"SCAN u"}, plan
    assert any("(tenant_id=? AND context_id=?)" in step for step in plan), plan


@pytest.mark.parametrize("runs", [True, False])
async def test_a_mark_stays_while_a_turn_is_open(sqlite_stores, sqlite_file, runs):
    """Indexing in the middle of a turn leaves it, so the end of the turn need not set it."""
    claimed = await begin(sqlite_stores)
    if not runs:
        await commit(sqlite_stores, claimed, [ends()], release=True)
    await sqlite_stores.contexts.index()
    with closing(sqlite3.connect(sqlite_file)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM looopy_unindexed").fetchall() == [(runs,)]


async def _many(stores):
    """Contexts of each kind: ready, busy, dead, waiting, failed, with tags and messages."""
    for n in range(24):
        name = f"c{n:02}"
        ttl_s = 0.0 if n % 6 == 2 else 60.0
        claimed = await begin(stores, context_id=name, actor_id=f"p{n % 3}", ttl_s=ttl_s)
        if n % 2:
            await stores.contexts.tag(name, add=["odd", f"t{n % 5}"])
        if n % 6 > 2:
            reason, state = (
                (StopReason.INPUT_REQUIRED, waiting_for_approval(expires_at=WHEN)),
                (StopReason.ERROR, ContextState(error=("LLMError", "no"), resumable=1)),
                (StopReason.STOP, None),
            )[n % 6 - 3]
            end = ends(reason, context_id=name)
            await commit(stores, claimed, [end], context_id=name, state=state, release=True)
        if n % 4 == 3:
            version = (await record_of(stores, name)).version
            await stores.state.save(name, {"n": n % 8, "s": 'a "quoted" é😀'}, version=version)
        if n % 8 == 5:
            await stores.journal.post(name, EntryKind.FOLLOW_UP, user("more"), actor_id=f"p{n % 3}")


_CONDITIONS = (
    {},
    {"owner": "p1"},
    *({"status": status} for status in ("ready", "busy", "waiting", "failed")),
    {"due": True},
    {"due": True, "status": "ready", "owner": "p2"},
    {"tags": ["odd"]},
    {"tags": ["odd", "t3"], "status": "busy"},
    {"metadata": {"n": 3}},
    {"metadata": {"s": 'a "quoted" é😀'}, "owner": "p0"},
    {"active_before": datetime.now(UTC) + timedelta(days=1), "limit": 7},
)


async def _listed(stores):
    """What each of the listings has, all pages of it."""
    found = []
    for conditions in _CONDITIONS:
        after, pages = None, []
        while after is not None or not pages:
            page = await stores.contexts.list(after=after, **{"limit": 5, **conditions})
            pages.append([record.context_id for record in page.items])
            after = page.next
        found.append(pages)
    return found


@pytest.fixture(params=["sqlite_stores", "asyncpg_stores", "psycopg_stores"])
def stores(request):
    """On each database."""
    return request.getfixturevalue(request.param)


async def test_indexing_changes_no_listing(stores, memory_stores, monkeypatch):
    """Each is that of the store in memory: with no row in the index, with some, and with all."""
    monkeypatch.setattr(type(stores.contexts), "_index_soon", lambda _: None)
    await _many(memory_stores)
    await _many(stores)
    expected = await _listed(memory_stores)
    assert all(pages[0] for pages in expected)
    assert await _listed(stores) == expected
    await stores.contexts.index()
    assert await _listed(stores) == expected
    for one in (memory_stores, stores):
        for n in (4, 5, 9, 11, 17):
            await one.messages.append(f"c{n:02}", [user("hi")]) if n % 6 > 2 else None
            await one.contexts.tag(f"c{n:02}", add=["odd"], remove=["t3"])
    expected = await _listed(memory_stores)
    assert await _listed(stores) == expected
    await stores.contexts.index()
    assert await _listed(stores) == expected


async def test_a_listing_needs_no_lock_of_sqlite(sqlite_stores, sqlite_file):
    """While another process writes, it has every context; the index is made once that is over."""
    for name in ("a", "b"):
        await commit(
            sqlite_stores,
            await begin(sqlite_stores, context_id=name),
            [ends(context_id=name)],
            context_id=name,
            release=True,
        )
    await begin(sqlite_stores, context_id="c")
    with closing(sqlite3.connect(sqlite_file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        page = await sqlite_stores.contexts.list()
        assert [record.context_id for record in page.items] == ["c", "b", "a"]
        assert await sqlite_stores.contexts.running() == ["c"]
        page = await sqlite_stores.contexts.list(status="ready")
        assert [record.context_id for record in page.items] == ["b", "a"]
        other.execute("ROLLBACK")
    await sqlite_stores.contexts.index()
    page = await sqlite_stores.contexts.list()
    assert [record.context_id for record in page.items] == ["c", "b", "a"]


@pytest.mark.parametrize("stores", ["asyncpg_stores", "psycopg_stores"], indirect=True)
async def test_a_listing_waits_for_no_row_of_postgres(stores, postgres):
    """Neither does the index: it leaves out contexts that a write holds, and takes them later."""
    for name in ("a", "b"):
        claimed = await begin(stores, context_id=name)
        end = ends(context_id=name)
        await commit(stores, claimed, [end], context_id=name, release=True)
    await begin(stores, context_id="c")
    with closing(psycopg.connect(postgres)) as other:
        other.execute("SELECT 1 FROM looopy_contexts WHERE context_id <> 'b' FOR UPDATE")
        for _ in range(2):
            page = await stores.contexts.list()
            assert [record.context_id for record in page.items] == ["c", "b", "a"]
            await stores.contexts.index()
        assert _marked(postgres) == ["a", "c"]
        other.rollback()
    await stores.contexts.index()
    assert _marked(postgres) == ["c"]


def _marked(url):
    return [name for (name,) in ask(url, "SELECT context_id FROM looopy_unindexed ORDER BY 1")]
