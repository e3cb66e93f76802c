"""A database of a clone from before the first release is named, and left as it is."""

from __future__ import annotations

import asyncio

import pytest
from tests.migrations import databases

from looopy.cli.main import main
from looopy.errors import SchemaOutOfDate
from looopy.stores import open_stores
from looopy.stores.sql import migrate
from looopy.testing.contracts.turns import a_turn

_WAY_OUT = r"before the first release \(schema {}\) .*contexts export.*contexts import"
# As its first three schemas named their tables, with the columns by which these are known.
_WITHOUT_PREFIX = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)",
    "CREATE TABLE contexts (tenant_id TEXT, context_id TEXT, visible_from BIGINT)",
    "CREATE TABLE messages (tenant_id TEXT, context_id TEXT, position BIGINT)",
    "INSERT INTO contexts VALUES ('default', 'ada', 0)",
    "INSERT INTO messages VALUES ('default', 'ada', 1)",
)


def _unprefixed(url, revision):
    said = f"INSERT INTO alembic_version VALUES ('{revision}')"
    databases.change(url, *_WITHOUT_PREFIX, said)


async def _is_refused(url, revision):
    before, how = databases.dump(url), databases.described(url)
    for options in ({}, {"migrate": False}, {"migrate": True}):
        with pytest.raises(SchemaOutOfDate, match=_WAY_OUT.format(revision)) as refused:
            async with open_stores(url, **options):
                pass
        assert (refused.value.found, refused.value.expected) == (revision, migrate.HEAD)
        assert "db upgrade" not in str(refused.value)
    for action in (migrate.upgrade, migrate.downgrade):
        with pytest.raises(SchemaOutOfDate, match=_WAY_OUT.format(revision)):
            await asyncio.to_thread(action, url, "base" if action is migrate.downgrade else "head")
    assert (databases.dump(url), databases.described(url)) == (before, how)


async def test_each_schema_of_a_clone_is_refused_with_the_way_out(empty):
    """Opened or migrated: one sentence, and nothing is changed."""
    async with open_stores(empty, migrate=True) as stores:
        await a_turn(stores)
    for number in range(1, 12):
        databases.change(empty, f"UPDATE looopy_version SET version_num = '{number:04}'")
        await _is_refused(empty, f"{number:04}")


@pytest.mark.parametrize("revision", ["0001", "0002", "0003"])
async def test_tables_without_prefix_are_known_as_ours(empty, revision):
    """The first schemas kept their revision where an application keeps its own."""
    _unprefixed(empty, revision)
    await _is_refused(empty, revision)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE alembic_version SET version_num = 'abc'",
        "DELETE FROM alembic_version",
        "ALTER TABLE contexts RENAME COLUMN visible_from TO seen_from",
        "ALTER TABLE messages RENAME COLUMN tenant_id TO tenant",
        "DROP TABLE messages",
    ],
)
def test_tables_that_differ_are_an_applications(empty, change):
    """Another revision, or a table that is not as ours was: ours are made beside it."""
    _unprefixed(empty, "0002")
    databases.change(empty, change)
    before = databases.dump(empty)
    assert migrate.check(empty) == (None, migrate.HEAD)
    migrate.upgrade(empty)
    found = databases.dump(empty)
    assert {name: found[name] for name in before} == before
    assert found["looopy_contexts"] == []


def test_the_command_line_prints_the_way_out(tmp_path, capsys):
    """`looopy db check` and `upgrade` end with status 2, because no upgrade can help."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    migrate.upgrade(url)
    databases.change(url, "UPDATE looopy_version SET version_num = '0011'")
    for action in ("check", "upgrade"):
        assert main(["db", action, "--db", url]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert "contexts import FILE" in said
