"""The contract of forks and rewinds, on each backend."""

from __future__ import annotations

import contextlib
import sqlite3

from tests.contract.backends import on_every_store

from looopy.stores import open_stores
from looopy.testing.contracts.fork import ForkContract
from looopy.testing.contracts.turns import CONTEXT, user

globals().update(on_every_store("Forks", ForkContract))


def _blobs(path):
    return [one for one in path.with_name("chat.db.blobs").rglob("*") if one.is_file()]


def _rows(path):
    """How many rows each table of a file has, which holds its log as well."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        count = "SELECT COUNT(*) FROM {}"
        rows = {name: connection.execute(count.format(name)).fetchone()[0] for (name,) in names}
        return {name: n for name, n in rows.items() if n}


async def test_forks_share_only_bytes(tmp_path):
    """The rows of a context go with it, from the file as well, and a blob with the last fork."""
    path, large = tmp_path / "chat.db", b"canary" * 20_000
    async with open_stores(f"sqlite:///{path}") as stores:
        empty = _rows(path)
        await stores.messages.append(CONTEXT, [user(f"canary {n}") for n in range(4)])
        await stores.artifacts.save(CONTEXT, "a", large)
        for name, at in (("b", 2), ("c", 3)):
            await stores.journal.fork(CONTEXT, name, at=at)
        await stores.journal.fork("c", "d", at=1)
        rows = _rows(path)
        assert (rows["looopy_message_rows"], rows["looopy_lineage"]) == (4 + 2 + 3 + 1, 3)
        (_,) = _blobs(path)
        await stores.state.delete(CONTEXT)
        assert b"canary 3" not in path.read_bytes()
        await stores.state.delete("c")
        rows = _rows(path)
        assert rows["looopy_message_rows"] == 2 + 1
        assert b"canary 2" not in path.read_bytes()
        for name in ("b", "d"):
            assert await stores.artifacts.load(name, "a") == large
            await stores.state.delete(name)
        assert _rows(path) == empty
    assert b"canary" not in path.read_bytes()
    assert _blobs(path) == []


async def test_the_bytes_of_a_deleted_artifact_go_with_its_last_fork(tmp_path):
    """Wherever its versions lie by then."""
    path = tmp_path / "chat.db"
    async with open_stores(f"sqlite:///{path}") as stores:
        await stores.messages.append(CONTEXT, [user("one")])
        await stores.artifacts.save(CONTEXT, "a", b"canary" * 20_000)
        for name in ("b", "c"):
            await stores.journal.fork(CONTEXT, name)
        await stores.artifacts.delete(CONTEXT, "a")
        await stores.artifacts.delete("b", "a")
        assert _rows(path)["looopy_artifact_parts"] == len(_blobs(path)) == 1
        await stores.artifacts.delete("c", "a")
        assert "looopy_artifacts" not in _rows(path)
        assert _rows(path)["looopy_contexts"] == 3
    assert b"canary" not in path.read_bytes()
    assert _blobs(path) == []
