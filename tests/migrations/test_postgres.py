"""A Postgres database comes to the head when it is asked to, with its rows, whatever kills it."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from urllib.parse import urlsplit

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from tests.migrations.second import SECOND, second_migration
from tests.postgres import as_driver, ask
from tests.shares import PSYCOPG

from looopy.cli.main import main
from looopy.errors import ConfigurationError, SchemaOutOfDate, StoreUnavailable
from looopy.stores import open_stores
from looopy.stores.sql import migrate, revision
from looopy.stores.sql.postgres import migrate as pg_migrate
from looopy.stores.sql.statements import HEAD
from looopy.stores.sql.tables import metadata
from looopy.testing.contracts.turns import CONTEXT, a_turn, answer, user

STARTERS = 3
_COLUMNS = (
    "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, collation_name"
    " FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 3"
)
_CONSTRAINTS = (
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2"
)
_ROOM = "SELECT reloptions FROM pg_class WHERE relname = 'looopy_contexts'"


def _tables(url):
    return {
        name for (name,) in ask(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    }


@pytest.fixture(params=["asyncpg", PSYCOPG])
def url(request, fresh_postgres):
    """An empty database, through each driver."""
    return as_driver(fresh_postgres, request.param)


def _plain(url):
    return urlsplit(url)._replace(scheme="postgresql").geturl()


def test_the_head_equals_the_tables_on_a_server(fresh_postgres, new_database):
    """Columns, types, constraints and their names, and what a table is made with."""
    migrate.upgrade(fresh_postgres)
    engine = create_engine(as_driver(fresh_postgres, "psycopg"))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=revision.options("postgresql"))
        assert compare_metadata(context, metadata) == []
    engine.dispose()
    other = new_database()
    engine = create_engine(as_driver(other, "psycopg"))
    metadata.create_all(engine)
    engine.dispose()
    ask(fresh_postgres, "DROP TABLE looopy_version")
    for question in (_COLUMNS, _CONSTRAINTS, _ROOM):
        assert ask(fresh_postgres, question) == ask(other, question)
    assert ask(other, _ROOM) == [(["fillfactor=50"],)]


def test_a_server_goes_up_and_down_and_up_again(url):
    """Each script has its way back, through both drivers; the check says how far it is."""
    assert migrate.check(url) == (None, migrate.HEAD)
    migrate.upgrade(url)
    assert migrate.check(url) == (migrate.HEAD, migrate.HEAD)
    assert _tables(_plain(url)) == {*metadata.tables, "looopy_version"}
    migrate.downgrade(url, "base")
    assert _tables(_plain(url)) == {"looopy_version"}
    assert migrate.check(url) == (None, migrate.HEAD)
    migrate.upgrade(url)
    assert migrate.check(url) == (migrate.HEAD, migrate.HEAD)


async def test_rows_survive_an_empty_migration(url):
    """It may be run as often as one likes."""
    async with open_stores(url, migrate=True) as stores:
        await a_turn(stores)
        await stores.artifacts.save(CONTEXT, "doc", b"\x00\xff")
    for _ in range(2):
        await asyncio.to_thread(migrate.upgrade, url)
    async with open_stores(url) as stores:
        assert await stores.messages.list(CONTEXT) == [user("hello"), answer("hi")]
        assert await stores.artifacts.load(CONTEXT, "doc") == b"\x00\xff"


def test_the_statements_for_a_server_can_be_read_without_one(fresh_postgres):
    """For those who may not let a program change the schema; no server is asked."""
    text = migrate.sql("postgresql://nobody.invalid/nothing")
    with psycopg.connect(fresh_postgres, autocommit=True) as connection:
        connection.execute(text)
    assert migrate.check(fresh_postgres) == (migrate.HEAD, migrate.HEAD)
    assert _tables(fresh_postgres) == {*metadata.tables, "looopy_version"}


def test_an_unknown_revision_of_a_server_is_refused(fresh_postgres):
    """A slip in a command is no defect of the database."""
    with pytest.raises(ConfigurationError):
        migrate.upgrade(fresh_postgres, "no-such-revision")
    assert migrate.check(fresh_postgres) == (None, migrate.HEAD)


async def test_a_server_with_a_newer_schema_is_refused_untouched(url):
    """An older program must not write into what it does not understand."""
    await asyncio.to_thread(migrate.upgrade, url)
    ask(_plain(url), "UPDATE looopy_version SET version_num = '9999'")
    for options in ({}, {"migrate": False}, {"migrate": True}):
        with pytest.raises(SchemaOutOfDate) as refused:
            async with open_stores(url, **options):
                pass
        assert (refused.value.found, refused.value.expected) == ("9999", migrate.HEAD)
    assert ask(_plain(url), "SELECT version_num FROM looopy_version") == [("9999",)]


async def test_a_foreign_table_is_refused_and_kept(url):
    """What the server refuses is a `StoreUnavailable` without its words."""
    ask(_plain(url), "CREATE TABLE looopy_messages (hunter2 TEXT)")
    with pytest.raises(StoreUnavailable) as refused:
        await asyncio.to_thread(migrate.upgrade, url)
    assert "hunter2" not in str(refused.value)
    assert "refused a statement" in str(refused.value)
    assert refused.value.sqlstate == "42P07"
    assert _tables(_plain(url)) == {"looopy_messages"}


_STARTER = """
import asyncio, sys
from looopy.stores import open_stores
from looopy.testing.contracts.turns import user

async def main(url, name):
    async with open_stores(url, migrate=True) as stores:
        await stores.messages.append("c", [user(name)])

asyncio.run(main(*sys.argv[1:]))
"""


def _start(code, *args):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
async def test_starters_on_one_empty_server_all_succeed(fresh_postgres):
    """One of them migrates; the others wait and find the work done."""
    drivers = ["asyncpg", "psycopg", "asyncpg"]
    starters = [
        _start(_STARTER, as_driver(fresh_postgres, driver), str(n))
        for n, driver in enumerate(drivers)
    ]
    for starter in starters:
        _, errors = await asyncio.to_thread(starter.communicate)
        assert (errors, starter.returncode) == ("", 0)
    async with open_stores(fresh_postgres) as stores:
        assert await stores.messages.count("c") == STARTERS


async def test_a_migration_waits_for_the_one_that_runs(url):
    """It changes nothing before it has the lock, and then does what is left to do."""
    waiting = (
        "SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database"
        " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
    )
    with psycopg.connect(_plain(url)) as running:
        running.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (pg_migrate._LOCK,))
        second = asyncio.create_task(asyncio.to_thread(migrate.upgrade, url))
        while not (second.done() or ask(_plain(url), waiting)):  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0)
        assert not second.done()
        assert _tables(_plain(url)) == set()
    await second
    assert "looopy_contexts" in _tables(_plain(url))


# A lock of a table that somebody waits for, behind those who use it.
_QUEUED = (
    "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    " WHERE datname = current_database() AND locktype = 'relation' AND NOT granted"
)


async def test_a_migration_waiting_for_a_reader_blocks_no_other(url, tmp_path):
    """It waits in front of them for two seconds and comes again, until the reader is done."""
    plain = _plain(url)
    await asyncio.to_thread(migrate.upgrade, url)
    with second_migration(tmp_path), psycopg.connect(plain) as reader:
        reader.execute("SELECT count(*) FROM looopy_contexts")
        migrating = asyncio.create_task(asyncio.to_thread(migrate.upgrade, url))
        while not (migrating.done() or ask(plain, _QUEUED)):  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0)
        # As patient as the stores are, and as long as they have to be.
        with psycopg.connect(plain, options="-c lock_timeout=10s", autocommit=True) as other:
            assert await asyncio.to_thread(_count, other) == 0
        assert not migrating.done()
        reader.rollback()
        await migrating
        assert await asyncio.to_thread(migrate.check, url) == (SECOND, SECOND)


def _count(connection):
    ((count,),) = connection.execute("SELECT count(*) FROM looopy_contexts").fetchall()
    return count


def test_a_migration_gives_up_if_a_transaction_never_ends(url, monkeypatch, tmp_path):
    """It says who stands in the way, and nothing is changed; `secure` does the same."""
    monkeypatch.setattr(pg_migrate, "PATIENCE_S", 0.1)
    monkeypatch.setattr(pg_migrate, "STANDSTILL_S", 0.05)
    migrate.upgrade(url)
    with second_migration(tmp_path), psycopg.connect(_plain(url)) as reader:
        reader.execute("SELECT count(*) FROM looopy_messages")
        with pytest.raises(StoreUnavailable, match="nothing was changed") as refused:
            migrate.upgrade(url)
        assert f"server processes {reader.info.backend_pid})" in str(refused.value)
        assert migrate.check(url) == (HEAD, SECOND)
    role = f"looopy_{secrets.token_hex(6)}"
    ask(_plain(url), f"CREATE ROLE {role}")
    with psycopg.connect(_plain(url)) as reader:
        reader.execute("SELECT count(*) FROM looopy_messages")
        with pytest.raises(StoreUnavailable, match=f"{reader.info.backend_pid}"):
            migrate.secure(url, role)
    migrate.secure(url, role)
    ask(_plain(url), f"DROP OWNED BY {role}")
    ask(_plain(url), f"DROP ROLE {role}")


def test_a_migration_does_not_wait_forever_for_another(url, monkeypatch):
    """It says which lock is held, and nothing is changed."""
    monkeypatch.setattr(pg_migrate, "_BEHIND_ANOTHER_S", 0.05)
    with psycopg.connect(_plain(url)) as running:
        running.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (pg_migrate._LOCK,))
        with pytest.raises(StoreUnavailable, match="migrated by another process"):
            migrate.upgrade(url)
    assert migrate.check(url) == (None, migrate.HEAD)


async def test_an_upgrade_at_the_head_does_not_wait(url):
    """It may be run at each deployment, whatever reads meanwhile."""
    await asyncio.to_thread(migrate.upgrade, url)
    with psycopg.connect(_plain(url)) as reader:
        reader.execute("LOCK TABLE looopy_contexts IN ACCESS EXCLUSIVE MODE")
        await asyncio.to_thread(migrate.upgrade, url)
        assert ask(_plain(url), _QUEUED) == []


# Children that are killed before one statement of the migration: the first, the second, and so on,
# or each so many statements later.
# Forked, because alembic takes longer to load than the whole migration.
_KILLED = """
import os, sys
import asyncpg, alembic.command, sqlalchemy.ext.asyncio
from sqlalchemy import Engine, event
from looopy.stores.sql import migrate, tables
from looopy.stores.sql.postgres import migrate as pg_migrate
from looopy.stores.sql.statements import HEAD

def migrate_until(left):
    @event.listens_for(Engine, "before_cursor_execute")
    def count(_connection, _cursor, statement, *_):
        nonlocal left
        if "pg_catalog.version" in statement or "transaction isolation" in statement:
            return
        if left == 0:
            os.kill(os.getpid(), 9)
        left -= 1

    migrate.upgrade(sys.argv[1])

for left in range(0, 100, int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        migrate_until(left)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(code, flush=True)
    if code == 0:
        break
"""


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.long)])
async def test_a_migration_of_a_server_that_is_killed_can_be_run_again(fresh_postgres, step):
    """Killed before any of its statements, it left nothing; the last one is left to finish."""
    child = _start(_KILLED, fresh_postgres, str(step))
    out, errors = await asyncio.to_thread(child.communicate)
    assert errors == ""
    codes = [int(line) for line in out.split()]
    assert len(codes) * step > 10
    assert codes == [-9] * (len(codes) - 1) + [0]
    async with open_stores(fresh_postgres) as stores:
        await a_turn(stores)


def test_the_command_line_migrates_a_server(url, capsys):
    """`looopy db`: check, upgrade, check; the password is never shown."""
    named = url.replace("postgres@", "postgres:hunter2@")

    def run(*args):
        code = main(["db", *args, "--db", named])
        said = "".join(capsys.readouterr())
        assert "hunter2" not in said
        return code, said

    code, said = run("check")
    assert (code, "no schema yet" in said) == (1, True), said
    code, said = run("upgrade")
    assert (code, migrate.HEAD in said) == (0, True), said
    code, said = run("check")
    assert (code, "up to date" in said) == (0, True), said
