"""A SQLite file comes to the head from anywhere, with its rows, whatever kills it on the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from tests.shares import split

from looopy.errors import ConfigurationError, SchemaOutOfDate
from looopy.stores import open_stores
from looopy.stores.sql import migrate, revision
from looopy.stores.sql.sqlite import migrate as sqlite_migrate
from looopy.stores.sql.sqlite.backups import backups_of
from looopy.stores.sql.tables import sqlite_metadata as metadata
from looopy.testing.contracts.turns import CONTEXT, a_turn, answer, user

ROOT = Path(__file__).parents[2]
STARTERS = 3


def _url(path):
    return f"sqlite:///{path}"


def _scripts():
    return ScriptDirectory.from_config(Config(ROOT / "alembic.ini"))


def _ask(path, statement):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def _tables(path):
    rows = _ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows if not name.startswith("sqlite_")}


def _parts_of(statement):
    """Columns and constraints of a table in any order, and what is said of the whole table."""
    head, _, rest = " ".join(statement.split()).partition("(")
    body, _, tail = rest.rpartition(")")
    # A column that was added later stands behind the constraints.
    parts = re.split(r",(?![^(]*\))", body)
    return head.strip(), sorted(part.strip() for part in parts), tail.strip()


@pytest.fixture
def fresh(tmp_path):
    """Where a database may be made."""
    return tmp_path / "chat.db"


# --- the scripts ---


def test_each_script_is_named_by_its_number():
    """Four digits and a short name, in one line without branches; the file has the same name."""
    scripts = list(reversed(list(_scripts().walk_revisions())))
    for number, script in enumerate(scripts, 1):
        assert re.fullmatch(rf"{number:04}_[a-z0-9_]{{1,27}}", script.revision)
        assert Path(script.path).stem == script.revision
        assert script.doc


def test_the_head_is_the_one_that_opening_looks_for():
    """Opening a file compares with a constant, so that it need not load alembic."""
    assert _scripts().get_heads() == [migrate.HEAD]


def test_the_head_equals_the_tables(fresh):
    """What the scripts build and what `tables.py` says differ in nothing."""
    migrate.upgrade(_url(fresh))
    engine = create_engine(f"sqlite:///{fresh}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=revision.options("sqlite"))
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_statements_equal_those_of_the_tables(fresh, tmp_path):
    """Constraints, clustering and their names too, which a comparison of metadata does not see."""
    migrate.upgrade(_url(fresh))
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    metadata.create_all(engine)
    engine.dispose()
    statements = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index')"

    def plain(path):
        rows = _ask(path, statements)
        return {
            name: _parts_of(sql or "")
            for name, sql in rows
            if not name.startswith("sqlite_") and name != "looopy_version"
        }

    assert plain(fresh) == plain(tmp_path / "other.db")


# --- up and down ---


async def test_a_new_file_is_brought_to_the_head_by_opening_it(fresh):
    """Nobody has to run a command for SQLite."""
    assert migrate.check(_url(fresh)) == (None, migrate.HEAD)
    assert not fresh.exists()
    async with open_stores(_url(fresh)) as stores:
        await a_turn(stores)
    assert migrate.check(_url(fresh)) == (migrate.HEAD, migrate.HEAD)
    assert [p.name for p in fresh.parent.iterdir()] == ["chat.db"]


def test_down_leaves_an_empty_file_and_up_again_the_head(fresh):
    """Each script has its way back."""
    migrate.upgrade(_url(fresh))
    at_head = _tables(fresh)
    assert at_head == {*metadata.tables, "looopy_version"}
    migrate.downgrade(_url(fresh), "base")
    assert _tables(fresh) == {"looopy_version"}
    assert migrate.check(_url(fresh)) == (None, migrate.HEAD)
    migrate.upgrade(_url(fresh))
    assert _tables(fresh) == at_head


async def test_a_file_with_rows_is_copied_before_it_is_changed(fresh):
    """The copy holds every row and opens by itself; going up again works beside it."""
    async with open_stores(_url(fresh)) as stores:
        await a_turn(stores)
        await stores.artifacts.save(CONTEXT, "doc", b"x" * 5000)
    copy = fresh.with_name(f"chat.db.before-leaving-{migrate.HEAD}")
    await _in_thread(migrate.downgrade, _url(fresh), "base")
    assert sorted(p.name for p in fresh.parent.iterdir()) == ["chat.db", copy.name]
    async with open_stores(_url(copy)) as stores:
        assert await stores.messages.list(CONTEXT) == [user("hello"), answer("hi")]
        assert await stores.artifacts.load(CONTEXT, "doc") == b"x" * 5000
    async with open_stores(_url(fresh)) as stores:
        assert await stores.state.list() == []


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
async def test_a_copy_may_be_read_by_those_who_may_read_the_file(fresh, mode):
    """Whatever the umask is: nobody else may while it is made, either."""
    async with open_stores(_url(fresh)) as stores:
        await a_turn(stores)
    fresh.chmod(mode)
    old = os.umask(0)
    try:
        await _in_thread(migrate.downgrade, _url(fresh), "base")
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in fresh.parent.iterdir()}
    assert modes == {"chat.db": mode, f"chat.db.before-leaving-{migrate.HEAD}": mode}


async def test_a_migration_leaves_no_byte_of_a_dropped_table(fresh):
    """The pages that it freed are zeros, and its log is gone; the copy is another file."""
    async with open_stores(_url(fresh)) as stores:
        await a_turn(stores, text="canary " * 900)
    await _in_thread(migrate.downgrade, _url(fresh), "base")
    copy = fresh.with_name(f"chat.db.before-leaving-{migrate.HEAD}")
    assert [p.name for p in sorted(fresh.parent.iterdir())] == ["chat.db", copy.name]
    assert b"canary" in copy.read_bytes()
    assert b"canary" not in fresh.read_bytes()
    assert backups_of(fresh) == [copy]


async def test_migrating_a_file_at_the_head_leaves_it_unchanged(fresh):
    """It may be run as often as one likes, and makes no copy."""
    async with open_stores(_url(fresh)) as stores:
        await a_turn(stores)
    for _ in range(2):
        await _in_thread(migrate.upgrade, _url(fresh))
    assert [p.name for p in fresh.parent.iterdir()] == ["chat.db"]
    async with open_stores(_url(fresh)) as stores:
        assert await stores.messages.count(CONTEXT) == 2


async def _in_thread(function, *args):
    await asyncio.to_thread(function, *args)


def test_the_statements_can_be_read_without_a_database(fresh):
    """For those who may not let a program change the schema."""
    text = migrate.sql(_url(fresh))
    assert not fresh.exists()
    with contextlib.closing(sqlite3.connect(fresh)) as connection:
        connection.executescript(text)
    assert migrate.check(_url(fresh)) == (migrate.HEAD, migrate.HEAD)
    assert _tables(fresh) == {*metadata.tables, "looopy_version"}


def test_an_unknown_revision_is_refused(fresh):
    """A slip in a command is no defect of the database."""
    migrate.upgrade(_url(fresh))
    with pytest.raises(ConfigurationError):
        migrate.downgrade(_url(fresh), "no-such-revision")
    assert migrate.check(_url(fresh)) == (migrate.HEAD, migrate.HEAD)


# --- what must not happen ---


async def test_a_file_of_a_newer_version_is_refused_untouched(fresh):
    """An older program must not write into what it does not understand."""
    await _in_thread(migrate.upgrade, _url(fresh))
    with contextlib.closing(sqlite3.connect(fresh)) as connection:
        connection.execute("UPDATE looopy_version SET version_num = '9999'")
        connection.commit()
    before = _ask(fresh, "SELECT * FROM sqlite_master")
    for options in ({}, {"migrate": False}, {"migrate": True}):
        with pytest.raises(SchemaOutOfDate) as refused:
            async with open_stores(_url(fresh), **options):
                pass
        assert (refused.value.found, refused.value.expected) == ("9999", migrate.HEAD)
    assert _ask(fresh, "SELECT * FROM sqlite_master") == before
    assert _ask(fresh, "SELECT * FROM looopy_version") == [("9999",)]


_STARTER = """
import asyncio, sys
from looopy.stores import open_stores
from looopy.testing.contracts.turns import user

async def main(url, name):
    async with open_stores(url) as stores:
        await stores.messages.append("c", [user(name)])

asyncio.run(main(*sys.argv[1:]))
"""

# For each file, a child that is killed before it carries out one statement of the migration: the
# first, the second, and so on, or each so many statements later. Forked, because alembic takes
# longer to load than the whole migration.
_KILLED = """
import os, sys
import aiosqlite, alembic.command, sqlalchemy.ext.asyncio
from sqlalchemy import Engine, event
from looopy.stores.sql import migrate, tables

def migrate_until(path, left):
    @event.listens_for(Engine, "before_cursor_execute")
    def count(*_):
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), 9)
        left -= 1

    if sys.argv[1] == "up":
        migrate.upgrade("sqlite:///" + path)
    else:
        migrate.downgrade("sqlite:///" + path, "base")

for n, path in enumerate(sys.argv[3:]):
    left = n * int(sys.argv[2])
    pid = os.fork()
    if pid == 0:
        migrate_until(path, left)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def _start(code, *args):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_others_are_kept_out_from_before_the_version_is_read(fresh, monkeypatch):
    """Or two would read the same version, and both migrate from it."""
    tried, count = [], sqlite_migrate._row_counts

    def try_to_write(connection):
        other = sqlite3.connect(fresh, timeout=0, isolation_level=None)
        with contextlib.closing(other):
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                tried.append(str(error))
        return count(connection)

    monkeypatch.setattr(sqlite_migrate, "_row_counts", try_to_write)
    migrate.upgrade(_url(fresh))
    assert tried == ["database is locked"] * 2


async def test_processes_that_open_a_new_file_at_once_all_succeed(fresh):
    """One of them makes the schema, the others find it made."""
    starters = [_start(_STARTER, _url(fresh), n) for n in range(STARTERS)]
    for starter in starters:
        _, errors = starter.communicate(timeout=390)
        assert (errors, starter.returncode) == ("", 0)
    async with open_stores(_url(fresh)) as stores:
        assert await stores.messages.count("c") == STARTERS


@pytest.mark.parametrize(
    ("direction", "step"), split([("up", 9)], [("down", 9), ("up", 1), ("down", 1)])
)
async def test_a_migration_that_was_killed_can_simply_be_run_again(tmp_path, direction, step):
    """At whichever statement it died: the file is as before, or done, and opens."""
    start = tmp_path / "start.db"
    if direction == "down":
        async with open_stores(_url(start)) as stores:
            await a_turn(stores)
    paths = [tmp_path / f"killed-at-{n}.db" for n in range(0, 70, step)]
    if start.exists():
        for path in paths:
            shutil.copy(start, path)
    out, errors = _start(_KILLED, direction, step, *paths).communicate(timeout=390)
    assert errors == ""
    codes = [int(line) for line in out.split()]
    died = codes.count(-9)
    assert died * step > 10
    assert codes == [-9] * died + [0] * (len(paths) - died)  # the last ones had statements to spare
    whole = {*metadata.tables, "looopy_version"}
    for path, code in list(zip(paths, codes, strict=True))[: died + 1]:
        if direction == "up":
            assert _tables(path) == (whole if code == 0 else set())
        else:
            assert _tables(path) == ({"looopy_version"} if code == 0 else whole)
        async with open_stores(_url(path)) as stores:
            kept = direction == "down" and code != 0
            assert await stores.messages.count(CONTEXT) == (2 if kept else 0)
            await stores.messages.append("new", [user("works")])
