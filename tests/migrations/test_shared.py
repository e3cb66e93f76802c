"""A database is shared with an application that has migrations and tables of its own."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import frozen

from looopy.errors import SchemaOutOfDate, StoreUnavailable
from looopy.stores import open_stores
from looopy.stores.sql import migrate, old_names, statements
from looopy.stores.sql.postgres import migrate as pg_migrate
from looopy.stores.sql.sqlite import migrate as sqlite_migrate
from looopy.testing.contracts.turns import CONTEXT, a_turn

ROOT = Path(__file__).parents[2]

# Names and revisions that ours had once, which others have as well.
_THEIRS = (
    "CREATE TABLE alembic_version (version_num TEXT CONSTRAINT alembic_version_pkc PRIMARY KEY)",
    "INSERT INTO alembic_version VALUES ('0003')",
    "CREATE TABLE messages (id INTEGER CONSTRAINT pk_messages PRIMARY KEY, context_id TEXT)",
    "INSERT INTO messages VALUES (1, 'x')",
    "CREATE TABLE events (id INTEGER CONSTRAINT pk_events PRIMARY KEY)",
    "CREATE TABLE contexts (id INTEGER CONSTRAINT pk_contexts PRIMARY KEY, tenant_id TEXT)",
)


@pytest.fixture
def shared(empty):
    """A database that an application uses."""
    with frozen.connected(empty) as connection:
        for statement in _THEIRS:
            connection.execute(statement)
        connection.commit()
    return empty


def _theirs(url):
    return {n: rows for n, rows in frozen.dump(url).items() if not n.startswith("looopy_")}


def _migrating(url):
    return open_stores(url, migrate=True)


async def test_both_live_in_one_database(shared):
    """Ours are made beside theirs, used, and dropped again; theirs are as they were."""
    theirs = _theirs(shared)
    assert set(theirs) == {"alembic_version", "contexts", "events", "messages"}
    assert await asyncio.to_thread(migrate.check, shared) == (None, migrate.HEAD)
    if frozen.engine_of(shared) == "postgres":
        with pytest.raises(SchemaOutOfDate, match="has no schema yet"):
            async with open_stores(shared):
                pass
    async with _migrating(shared) as stores:
        await a_turn(stores)
    assert await asyncio.to_thread(migrate.check, shared) == (migrate.HEAD, migrate.HEAD)
    async with open_stores(shared) as stores:
        assert await stores.messages.count(CONTEXT) == 2
    assert _theirs(shared) == theirs
    await asyncio.to_thread(migrate.downgrade, shared, "base")
    assert _theirs(shared) == theirs
    assert set(frozen.dump(shared)) - set(theirs) == {"looopy_version"}


def test_a_file_with_none_of_our_rows_is_not_copied(tmp_path):
    """What an application keeps there is not left lying about."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with frozen.connected(url) as connection:
        for statement in _THEIRS:
            connection.execute(statement)
        connection.commit()
    migrate.upgrade(url)
    assert [path.name for path in tmp_path.iterdir()] == ["chat.db"]


# An application's environment as `alembic init` makes it, with the filter of `docs/stores.md`.
_ENV = """
from alembic import context
from sqlalchemy import MetaData, create_engine

def not_looopys(name, type_, parent_names):
    return type_ != "table" or not name.startswith("looopy_")

engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    metadata = MetaData()
    metadata.reflect(connection, only=lambda name, _: not name.startswith("looopy_"))
    context.configure(
        connection=connection, target_metadata=metadata, include_name=not_looopys
    )
    with context.begin_transaction():
        context.run_migrations()
"""


def test_the_applications_alembic_does_not_see_ours(shared, tmp_path):
    """Its own upgrade and comparison work beside ours, with a filter of one line."""
    migrate.upgrade(shared)
    folder = tmp_path / "theirs"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(_ENV, encoding="utf-8")
    (folder / "versions" / "theirs.py").write_text(
        "revision = '0003'\ndown_revision = None\ndef upgrade(): pass\ndef downgrade(): pass\n",
        encoding="utf-8",
    )
    named = shared.replace("postgresql:", "postgresql+psycopg:")
    named = named.replace("%", "%%")
    ini = tmp_path / "alembic.ini"
    ini.write_text(
        f"[alembic]\nscript_location = {folder}\nsqlalchemy.url = {named}\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "alembic", "-c", str(ini)]
    for words, wanted in ((["upgrade", "head"], ""), (["check"], "No new upgrade operations")):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, wanted in done.stdout + done.stderr) == (0, True), done.stderr
    assert migrate.check(shared) == (migrate.HEAD, migrate.HEAD)


def test_our_check_does_not_see_theirs(shared):
    """`alembic check` from our repository is about our tables."""
    migrate.upgrade(shared)
    command = [sys.executable, "-m", "alembic", "-x", f"url={shared}", "check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "No new upgrade operations detected" in done.stdout + done.stderr, done.stderr


# --- ours from before ---


@pytest.mark.parametrize("revision", frozen.REVISIONS)
def test_ours_from_before_is_taken_over(empty, revision):
    """Nothing bears an old name afterwards, and the check says so only then."""
    frozen.load(revision, empty)
    before = frozen.dump(empty)
    assert migrate.check(empty) == (revision, migrate.HEAD)
    migrate.upgrade(empty, revision)
    found = frozen.dump(empty)
    assert set(found) == {frozen.now(name) for name in before}
    assert found["looopy_version"] == [{"version_num": revision}]
    assert frozen.kept(found, before) == frozen.kept(before, before)
    migrate.upgrade(empty)
    assert migrate.check(empty) == (migrate.HEAD, migrate.HEAD)


def test_one_at_the_head_with_old_names_is_not_taken_for_current():
    """It is renamed before it is used, whatever the head is."""
    found = statements.Found(migrate.HEAD, renamed=False)
    assert not found.at_head
    assert str(found) == f"{migrate.HEAD} with names of before"
    assert statements.Found(migrate.HEAD).at_head


async def test_the_last_one_with_old_names_is_renamed_on_its_way_up(empty):
    """As a version that was never released made it: it is renamed before it is used."""
    async with _migrating(empty) as stores:
        await a_turn(stores)
    how = frozen.described(empty)
    await asyncio.to_thread(migrate.downgrade, empty, "0003")
    _name_as_before(empty)
    assert await asyncio.to_thread(migrate.check, empty) == ("0003", migrate.HEAD)
    with pytest.raises(SchemaOutOfDate, match="looopy db upgrade"):
        async with open_stores(empty, migrate=False):
            pass
    async with _migrating(empty) as stores:
        assert await stores.messages.count(CONTEXT) == 2
    assert frozen.described(empty) == how


def _name_as_before(url):
    """Every name without ours, as the statements of that time said it."""
    with frozen.connected(url) as connection:
        if frozen.engine_of(url) == "postgres":
            for name in old_names.tables_of(statements.Found("0003", renamed=False)):
                new = frozen.now(name)
                asked = f"SELECT conname FROM pg_constraint WHERE conrelid = '{new}'::regclass"
                for (constraint,) in connection.execute(asked).fetchall():
                    old = constraint.replace(new, name).replace("looopy_", "")
                    connection.execute(
                        f'ALTER TABLE {new} RENAME CONSTRAINT "{constraint}" TO "{old}"'
                    )
                connection.execute(f"ALTER TABLE {new} RENAME TO {name}")
            return
        made = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
        ).fetchall()
        for kind, name, sql in made:
            connection.execute(_without(sql))
            if kind == "table":
                connection.execute(f"INSERT INTO {_without(name)} SELECT * FROM {name}")
        for kind, name, _ in reversed(made):
            connection.execute(f"DROP {kind} IF EXISTS {name}")
        connection.commit()


def _without(sql):
    return sql.replace("looopy_version", "alembic_version").replace("looopy_", "")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE alembic_version SET version_num = 'abc'",
        "INSERT INTO alembic_version VALUES ('abc')",
        "DELETE FROM alembic_version",
        "ALTER TABLE contexts RENAME COLUMN visible_from TO seen_from",
        "DROP TABLE waiters",
        "ALTER TABLE inbox RENAME COLUMN tenant_id TO tenant",
    ],
)
def test_only_a_database_that_is_surely_ours_is_taken_over(empty, change):
    """Another revision, a second one, no revision, or a table that is not as ours was."""
    frozen.load("0002", empty)
    with frozen.connected(empty) as connection:
        connection.execute(change)
        connection.commit()
    before = frozen.dump(empty)
    assert migrate.check(empty) == (None, migrate.HEAD)
    migrate.upgrade(empty)
    found = frozen.dump(empty)
    assert {name: found[name] for name in before} == before
    assert found["looopy_contexts"] == []


def test_a_takeover_that_fails_changes_nothing(empty, monkeypatch):
    """The names and the migration are one transaction."""
    frozen.load("0002", empty)
    before, how = frozen.dump(empty), frozen.described(empty)

    def fail(*_):
        raise StoreUnavailable("the disk is gone")

    place = pg_migrate if frozen.engine_of(empty) == "postgres" else sqlite_migrate
    name = "_take_tables" if place is pg_migrate else "_check_rows"
    with monkeypatch.context() as patched:
        patched.setattr(place, name, _after_the_first(getattr(place, name), fail))
        with contextlib.suppress(StoreUnavailable):
            migrate.upgrade(empty)
    assert (frozen.dump(empty), frozen.described(empty)) == (before, how)
    migrate.upgrade(empty)
    assert migrate.check(empty) == (migrate.HEAD, migrate.HEAD)


def _after_the_first(real, fail):
    """On a server tables are taken twice: before they are renamed, and before they are changed."""
    calls = []

    def run(*args):
        calls.append(args)
        return real(*args) if real.__name__ == "_take_tables" and len(calls) == 1 else fail()

    return run
