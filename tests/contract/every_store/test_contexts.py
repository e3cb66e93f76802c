"""The contract of the index of contexts, on each backend."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.stores.sql import statements as s
from looopy.stores.sql.sqlite.statements import IN_SQLITE
from looopy.testing.contracts.listing import ContextIndexContract
from looopy.testing.contracts.turns import begin, commit, ends


class TestListingInMemory(InMemory, ContextIndexContract):
    """In dictionaries."""


class TestListingOnSQLite(OnSQLite, ContextIndexContract):
    """In a file."""


class TestListingOnAsyncpg(OnAsyncpg, ContextIndexContract):
    """On Postgres, over asyncpg."""


class TestListingOnPsycopg(OnPsycopg, ContextIndexContract):
    """On Postgres, over psycopg."""


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


@pytest.mark.parametrize("kept", [True, False])
async def test_a_mark_is_read_once_no_turn_is_open(sqlite_stores, sqlite_file, kept):
    """A listing in the middle of a turn leaves it, so the end of the turn need not set it."""
    claimed = await begin(sqlite_stores)
    if not kept:
        await commit(sqlite_stores, claimed, [ends()], release=True)
    await sqlite_stores.contexts.list()
    with closing(sqlite3.connect(sqlite_file)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM looopy_unindexed").fetchall() == [(kept,)]
