"""
Write `fresh.sql`: what the migrations come to on an empty SQLite file.

    python -m tests.migrations.fresh
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from importlib.resources import files
from pathlib import Path

from looopy.stores.sql import migrate


def schema_of(path: Path) -> str:
    """The statements that make a file like the one at *path*, its revision included."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        ((version,),) = connection.execute("SELECT version_num FROM looopy_version").fetchall()
    wanted = [*(sql for (sql,) in made), f"INSERT INTO looopy_version VALUES ('{version}')"]
    return "".join(f"{statement};\n" for statement in wanted)


def by_migrations() -> str:
    """The same of an empty file that the migrations have brought to the head."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat.db"
        migrate.upgrade(f"sqlite:///{path}")
        return schema_of(path)


if __name__ == "__main__":
    place = files("looopy.stores.sql.sqlite").joinpath("fresh.sql")
    Path(str(place)).write_text(by_migrations(), encoding="utf-8")
