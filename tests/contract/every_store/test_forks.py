"""The contract of forks and rewinds, on each backend."""

from __future__ import annotations

import contextlib
import sqlite3

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.stores import open_stores
from looopy.testing.contracts.fork import ForkContract
from looopy.testing.contracts.turns import CONTEXT, user


class TestForksInMemory(InMemory, ForkContract):
    """In dictionaries."""


class TestForksOnSQLite(OnSQLite, ForkContract):
    """In a file."""


class TestForksOnAsyncpg(OnAsyncpg, ForkContract):
    """On Postgres, over asyncpg."""


class TestForksOnPsycopg(OnPsycopg, ForkContract):
    """On Postgres, over psycopg."""


def _pages(path):
    """How many bytes a file holds without its log, and how many rows of each table."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        count = "SELECT COUNT(*) FROM {}"
        rows = {name: connection.execute(count.format(name)).fetchone()[0] for (name,) in names}
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
        return pages * size, {name: n for name, n in rows.items() if n}


async def test_forks_share_what_they_have_in_common(tmp_path):
    """A fork is a row and its layer, whatever it begins with: less than 512 bytes."""
    path = tmp_path / "chat.db"
    async with open_stores(f"sqlite:///{path}") as stores:
        await stores.messages.append(CONTEXT, [user(f"{n} {'x' * 100}") for n in range(5_000)])
        size, rows = _pages(path)
        for n in range(100):
            await stores.journal.fork(CONTEXT, f"fork-{n}", at=5_000 if n % 2 else None)
        now, rows_now = _pages(path)
        assert (now - size) / 100 < 512
        assert {name: n for name, n in rows_now.items() if n != rows.get(name)} == {
            "looopy_contexts": 101,
            "looopy_lineage": 100,
            "looopy_unindexed": 101,
        }


async def test_the_last_fork_takes_along_what_it_shares(tmp_path):
    """Rows of a deleted parent that no fork needs go at once, and the rest with the last fork."""
    path, large = tmp_path / "chat.db", b"canary" * 20_000
    async with open_stores(f"sqlite:///{path}") as stores:
        _, empty = _pages(path)
        messages = [user(f"canary {n}") for n in range(4)]
        await stores.messages.append(CONTEXT, messages)
        await stores.artifacts.save(CONTEXT, "a", large)
        for name, at in (("b", 2), ("c", 3)):
            await stores.journal.fork(CONTEXT, name, at=at)
        await stores.journal.fork("c", "d", at=1)
        await stores.state.delete(CONTEXT)
        assert _pages(path)[1]["looopy_message_rows"] == 3
        assert b"canary 3" not in path.read_bytes()
        await stores.state.delete("c")
        assert _pages(path)[1]["looopy_message_rows"] == 2
        assert b"canary 2" not in path.read_bytes()
        for name in ("b", "d"):
            assert await stores.artifacts.load(name, "a") == large
            await stores.state.delete(name)
        assert _pages(path)[1] == empty
    assert b"canary" not in path.read_bytes()
    assert not [one for one in path.with_name("chat.db.blobs").rglob("*") if one.is_file()]


async def test_a_deleted_artifact_goes_with_the_last_who_sees_it(tmp_path):
    """Wherever its versions lie by then."""
    path = tmp_path / "chat.db"
    async with open_stores(f"sqlite:///{path}") as stores:
        await stores.messages.append(CONTEXT, [user("one")])
        await stores.artifacts.save(CONTEXT, "a", b"canary" * 20_000)
        for name in ("b", "c"):
            await stores.journal.fork(CONTEXT, name)
        await stores.artifacts.delete(CONTEXT, "a")
        await stores.artifacts.delete("b", "a")
        assert _pages(path)[1]["looopy_artifact_parts"] == 1
        await stores.artifacts.delete("c", "a")
        assert "looopy_artifacts" not in _pages(path)[1]
        assert _pages(path)[1]["looopy_contexts"] == 3
    assert b"canary" not in path.read_bytes()
    assert not [one for one in path.with_name("chat.db.blobs").rglob("*") if one.is_file()]
