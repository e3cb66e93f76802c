"""The memory that an export and an import take: that of a page, however long the conversation."""

from __future__ import annotations

import sqlite3
import tracemalloc
from contextlib import closing

from looopy.stores import export_to_file, import_contexts
from looopy.stores.sql.contexts import restore
from looopy.testing.contracts.turns import user

_BODY = "a message of words " * 16_000  # 300 kB
_FEW, _MANY = 12, 48  # messages: both are more than a page of an export


async def _peak_of(work) -> int:
    tracemalloc.start()
    try:
        await work
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_a_long_conversation_is_exported_and_imported_in_the_same_memory(
    sqlite_stores, tmp_path
):
    """Four times as many messages take no more, and nowhere near what they have together."""
    stores, out, into = sqlite_stores, [], []
    for count in (_FEW, _MANY):
        path = tmp_path / f"{count}.zip"
        for number in range(count):
            await stores.messages.append(str(count), [user(f"{number} {_BODY}")])
        out.append(await _peak_of(export_to_file(stores, str(count), path)))
        into.append(await _peak_of(import_contexts(stores, path, new_ids=True)))
    for few, many in (out, into):
        assert many < few * 1.3
        assert many < _MANY * len(_BODY)


async def test_others_may_write_while_the_log_of_an_import_is_read(
    sqlite_stores, sqlite_file, tmp_path, monkeypatch
):
    """The file is locked for as long as it takes to store the rows, and not to check them."""
    path = tmp_path / "a.zip"
    await sqlite_stores.messages.append("ada", [user(f"message {n}") for n in range(600)])
    await export_to_file(sqlite_stores, "ada", path)
    read = []

    def read_and_written(one, real=restore._row):
        with closing(sqlite3.connect(sqlite_file, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
        read.append(one)
        return real(one)

    monkeypatch.setattr(restore, "_row", read_and_written)
    await import_contexts(sqlite_stores, path, new_ids={"ada": "again"})
    assert len(read) >= 600
    before = [r.message for r in await sqlite_stores.messages.records("ada")]
    assert [r.message for r in await sqlite_stores.messages.records("again")] == before
