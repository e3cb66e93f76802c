"""
Makes the schema of an empty SQLite file, without alembic.

A first start should not wait a second for a migration tool to load. So `fresh.sql`, beside this
module, holds the statements that all migrations together run on an empty file. It is made from the
migrations (`python -m tests.migrations.fresh`), and a test compares the two: only the migrations
change the schema.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from looopy.errors import StoreUnavailable
from looopy.stores.sql.revision import FIND_BEFORE, out_of_date
from looopy.stores.sql.sqlite import connection as sqlite
from looopy.stores.sql.sqlite.connection import Connection
from looopy.stores.sql.statements import HEAD, VERSION_TABLE

_ANYTHING = "SELECT 1 FROM sqlite_master LIMIT 1"


def make(path: Path, patience_s: float) -> bool:
    """
    Make the schema in one transaction, if the file at *path* is empty.

    Args:
        path: Created if it does not exist.
        patience_s: How long other processes may keep the file locked.

    Returns:
        True if it was made; false if the file is not empty, for instance because another process
        has just made it.

    Raises:
        StoreUnavailable: The file cannot be used.
    """
    with contextlib.closing(sqlite.connect(path, patience_s=patience_s)) as connection:
        try:
            sqlite.retry(lambda: connection.execute("BEGIN EXCLUSIVE"), patience_s)
            if connection.execute(_ANYTHING).fetchall():
                connection.execute("ROLLBACK")
                return False
            for statement in statements():
                connection.execute(statement)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise sqlite.translate(error, path) from None
    return True


def statements() -> list[str]:
    """The statements, in order."""
    from importlib.resources import files  # a file that exists needs none of it

    text = files(__package__ or "").joinpath("fresh.sql").read_text(encoding="utf-8")
    return [statement for statement in text.split(";\n") if statement.strip()]


_VERSION = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - a constant


# --- for the stores ---


def ensure_schema(
    path: Path,
    bring_to_head: Callable[[Path], object] | None,
    patience_s: float = sqlite.PATIENCE_S,
) -> None:
    """
    Have the database at *path* at the head, made or migrated where that is allowed.

    Args:
        path: It need not exist if *bring_to_head* is given.
        bring_to_head: Changes the schema of an older file; `None`: nothing may be made or changed.
        patience_s: How long other processes may keep the file locked.

    Raises:
        SchemaOutOfDate: The schema is newer than this version, or older and not to be changed.
        StoreUnavailable: The file cannot be used.
    """
    if bring_to_head is None and not path.exists():
        raise StoreUnavailable(f"there is no database at {path}")
    found = find_in_file(path, patience_s)
    if found == HEAD:
        return
    if bring_to_head is None:
        raise out_of_date(found)
    if found is None and make(path, patience_s):
        return
    bring_to_head(path)


def find_in_file(path: Path, patience_s: float = sqlite.PATIENCE_S) -> str | None:
    """The revision of the file's schema; `None`: it has none."""
    with contextlib.closing(sqlite.connect(path, patience_s=patience_s)) as connection:
        try:
            return sqlite.retry(lambda: _find(connection), patience_s)
        except sqlite3.Error as error:
            raise sqlite.translate(error, path) from None


def _find(connection: sqlite3.Connection) -> str | None:
    for statement in (_VERSION, FIND_BEFORE):
        try:
            rows = connection.execute(statement).fetchall()
        except sqlite3.Error as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # no such table
                raise
        else:
            return str(rows[0][0]) if rows else None
    return None


def begin_write(connection: Connection, patience_s: float) -> None:
    """
    Begin a transaction that writes, in a schema that is still the one of this version.

    Other processes are kept out from here on. Only a commit of another connection can have migrated
    the file, so the schema is read after such a commit alone.

    Raises:
        SchemaOutOfDate: Another process has migrated the file since it was opened here.
        sqlite3.Error: The file cannot be written.
    """
    sqlite.retry(lambda: connection.execute("BEGIN IMMEDIATE"), patience_s)
    ((version,),) = connection.execute("PRAGMA data_version")
    if version != connection.checked_at:
        if (found := _find(connection)) != HEAD:
            raise out_of_date(found)
        connection.checked_at = version
