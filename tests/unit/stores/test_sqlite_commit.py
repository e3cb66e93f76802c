"""What is known of a commit that SQLite could not make."""

from __future__ import annotations

import sqlite3

import pytest

from looopy.errors import StorageFull, StoreUnavailable
from looopy.stores.sql.sqlite import _commit


class Failing(sqlite3.Connection):
    """A connection whose next COMMIT fails as the disk said."""

    code = 0

    def execute(self, statement, *given):
        """Run it, but for that."""
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.code
            raise error
        return super().execute(statement, *given)


@pytest.fixture
def begun(tmp_path):
    """A connection with a row that is not committed yet, and its file."""
    path = tmp_path / "test.db"
    connection = sqlite3.connect(path, factory=Failing, isolation_level=None)
    connection.executescript("CREATE TABLE t (n)")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO t VALUES (1)")
    yield connection, path
    connection.close()


@pytest.mark.parametrize(
    ("code", "kind", "known"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, StoreUnavailable, False),
        (sqlite3.SQLITE_IOERR_WRITE, StorageFull, True),
        (sqlite3.SQLITE_FULL, StorageFull, True),
        (sqlite3.SQLITE_IOERR_READ, StoreUnavailable, True),
    ],
)
def test_only_of_a_failed_sync_is_the_outcome_not_known(begun, code, kind, known):
    """A crash may bring such a commit back; of every other failure nothing was written."""
    connection, path = begun
    connection.code = code
    error = _commit(connection, path, 0.1)
    assert type(error) is kind
    assert error.outcome_known is known
    assert not connection.in_transaction
    assert connection.execute("SELECT n FROM t").fetchall() == []
