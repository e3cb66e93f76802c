"""A new file is made from a text, which says what the migrations say."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys

import pytest
from tests.migrations.fresh import by_migrations, schema_of

from looopy.errors import StoreUnavailable
from looopy.stores.sql import migrate
from looopy.stores.sql.sqlite import schema as fresh


@pytest.fixture
def place(tmp_path):
    """Where a database may be made."""
    return tmp_path / "chat.db"


def test_a_new_file_equals_the_result_of_the_migrations(place):
    """Statement by statement, and at their head; else: `python -m tests.migrations.fresh`."""
    fresh.ensure_schema(place, migrate.bring_to_head)
    assert schema_of(place) == by_migrations()


def test_a_new_file_needs_no_migration_tool(place):
    """It is opened by a process that could not have loaded one."""
    code = (
        "import asyncio, sys\n"
        "from looopy import open_stores\n"
        "async def main():\n"
        f"    async with open_stores('sqlite:///{place}'): pass\n"
        "asyncio.run(main())\n"
        "print(*sorted({'alembic', 'sqlalchemy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert migrate.check(f"sqlite:///{place}") == (migrate.HEAD, migrate.HEAD)


def test_a_file_with_tables_is_left_to_the_migrations(place):
    """What another starter has made, or somebody's own tables: the migrations see to it."""
    with contextlib.closing(sqlite3.connect(place)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    assert not fresh.make(place, 1.0)
    with contextlib.closing(sqlite3.connect(place)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_a_schema_is_made_whole_or_not_at_all(place, monkeypatch):
    """A statement fails in the middle: the file is as empty as before."""
    monkeypatch.setattr(fresh, "statements", lambda: ["CREATE TABLE a (x)", "CREATE NOTHING"])
    with pytest.raises(StoreUnavailable):
        fresh.make(place, 1.0)
    monkeypatch.undo()
    assert fresh.make(place, 1.0)
    assert schema_of(place) == by_migrations()
