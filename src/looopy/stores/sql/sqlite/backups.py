"""
The copies that migrations leave beside a SQLite file: make, find and remove them.

A copy holds everything that the file held, and later deletions do not reach it. So only users who
may read the file can read the copy, and `backups_of` lists all copies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

from looopy.errors import StoreUnavailable
from looopy.stores.sql.sqlite import connection as sqlite

_MARK = ".before-leaving-"


def back_up(path: Path, revision: str | None) -> None:
    """
    Copy the file at *path* beside itself, while other processes cannot write to it.

    Args:
        revision: The revision of its schema, for the name of the copy.

    Raises:
        StoreUnavailable: The copy cannot be made.
    """
    target = path.with_name(f"{path.name}{_MARK}{revision or 'nothing'}")
    unfinished = target.with_name(f"{target.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    sqlite.make_file(unfinished)  # for its owner alone, before there is anything in it
    try:
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(unfinished)) as copy,
        ):
            source.backup(copy)
    except sqlite3.Error as error:
        raise sqlite.translate(error, unfinished) from None
    shutil.copymode(path, unfinished)
    unfinished.replace(target)


def backups_of(path: Path) -> list[Path]:
    """The copies of the file at *path*, unfinished ones of a killed migration too, by name."""
    if not path.parent.is_dir():
        return []
    beginning = f"{path.name}{_MARK}"
    return sorted(p for p in path.parent.iterdir() if p.name.startswith(beginning))


def remove(copies: list[Path]) -> None:
    """Remove copies, with what was deleted since; `StoreUnavailable` names one that stays."""
    for copy in copies:
        try:
            copy.unlink(missing_ok=True)
        except OSError as error:
            why = error.strerror or os.strerror(error.errno or 0)
            raise StoreUnavailable(f"the backup {copy} cannot be removed: {why}") from None
