"""
Makes the schema of a SQLite file that has none, without alembic.

A first start should not wait a second for a migration tool to load, so the statements that the
migrations come to on an empty file are kept beside this module, in `fresh.sql`. They are made from
the migrations (`python -m tests.migrations.fresh`), and a test compares the two: the migrations
stay the only place where the schema is changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from looopy.stores.sql import connection as sqlite

_ANYTHING = "SELECT 1 FROM sqlite_master LIMIT 1"


def make(path: Path, patience_s: float) -> bool:
    """
    Make the schema in one transaction, if the file at *path* is empty.

    Args:
        path: Created if it is not there.
        patience_s: How long other processes may keep the file locked.

    Returns:
        Whether it was made; `False` when there is something in the file, such as what another
        starter made meanwhile.

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
