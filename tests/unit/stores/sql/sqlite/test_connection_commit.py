"""What is known of a commit that SQLite could not make."""

from __future__ import annotations

import sqlite3

import pytest

from looopy.errors import StorageFull, StoreUnavailable
from looopy.stores import open_stores
from looopy.stores.sql.sqlite.connection import Connection
from looopy.testing.contracts.turns import CONTEXT, user


@pytest.mark.parametrize(
    ("code", "kind", "known"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, StoreUnavailable, False),
        (sqlite3.SQLITE_IOERR_WRITE, StorageFull, True),
        (sqlite3.SQLITE_FULL, StorageFull, True),
        (sqlite3.SQLITE_IOERR_READ, StoreUnavailable, True),
    ],
)
async def test_only_of_a_failed_sync_is_the_outcome_not_known(
    tmp_path, monkeypatch, code, kind, known
):
    """A crash may bring such a commit back; of every other failure nothing was written."""
    execute = Connection.execute

    def failing(connection, statement, *given):
        """Run it, but a COMMIT fails as the disk said."""
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error
        return execute(connection, statement, *given)

    async with open_stores(f"sqlite:///{tmp_path / 'test.db'}") as stores:
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "execute", failing)
            with pytest.raises(kind) as caught:
                await stores.messages.append(CONTEXT, [user("a")])
        assert type(caught.value) is kind
        assert caught.value.outcome_known is known
        assert await stores.messages.count(CONTEXT) == 0
        assert await stores.messages.append(CONTEXT, [user("b")]) == 1
