"""A database is shared with an application that has migrations and tables of its own."""

from __future__ import annotations

import asyncio

import pytest
from tests.migrations import databases
from tests.migrations.commands import run_alembic

from looopy.errors import SchemaOutOfDate
from looopy.stores import open_stores
from looopy.stores.sql import migrate
from looopy.testing.contracts.turns import CONTEXT, a_turn

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
    databases.change(empty, *_THEIRS)
    return empty


def _theirs(url):
    return {n: rows for n, rows in databases.dump(url).items() if not n.startswith("looopy_")}


def _migrating(url):
    return open_stores(url, migrate=True)


async def test_both_live_in_one_database(shared):
    """Ours are made beside theirs, used, and dropped again; theirs are as they were."""
    theirs = _theirs(shared)
    assert set(theirs) == {"alembic_version", "contexts", "events", "messages"}
    assert await asyncio.to_thread(migrate.check, shared) == (None, migrate.HEAD)
    if databases.engine_of(shared) == "postgres":
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
    assert set(databases.dump(shared)) - set(theirs) == {"looopy_version"}


def test_a_file_without_our_rows_is_not_copied(tmp_path):
    """What an application keeps there is not left lying about."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    databases.change(url, *_THEIRS)
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
engine.dispose()
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
    for words, wanted in ((["upgrade", "head"], ""), (["check"], "No new upgrade operations")):
        status, said = run_alembic("-c", str(ini), *words)
        assert (status, wanted in said) == (0, True), said
    assert migrate.check(shared) == (migrate.HEAD, migrate.HEAD)


def test_our_check_does_not_see_theirs(shared):
    """`alembic check` from our repository is about our tables."""
    migrate.upgrade(shared)
    _, said = run_alembic("-x", f"url={shared}", "check")
    assert "No new upgrade operations detected" in said
