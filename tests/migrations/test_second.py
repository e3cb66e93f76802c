"""The way from one schema to the next, and back, with rows: on both engines, by a made-up step."""

from __future__ import annotations

import asyncio

import pytest
from tests.migrations import databases
from tests.migrations.second import SECOND, second_migration

from looopy import Agent
from looopy.errors import SchemaOutOfDate, StoreUnavailable
from looopy.stores import open_stores
from looopy.stores.sql import migrate
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.erasure import a_whole_context
from looopy.testing.contracts.turns import CONTEXT

FIRST = migrate.HEAD


@pytest.fixture
async def filled(empty):
    """The URL of a database at the first schema, with rows in every table."""
    async with open_stores(empty, migrate=True) as stores:
        await a_whole_context(stores)
    return empty


def _without_second(dump):
    rows = [{k: v for k, v in row.items() if k != "colour"} for row in dump["looopy_contexts"]]
    return dump | {"looopy_contexts": rows, "looopy_version": []}


async def test_upgrade_downgrade_and_upgrade_lose_no_row(filled, tmp_path):
    """Down is exactly what was, up again what it made; the check names both schemas."""
    below, how_below = databases.dump(filled), databases.described(filled)
    with second_migration(tmp_path):
        assert await asyncio.to_thread(migrate.check, filled) == (FIRST, SECOND)
        await asyncio.to_thread(migrate.upgrade, filled)
        assert await asyncio.to_thread(migrate.check, filled) == (SECOND, SECOND)
        above, how_above = databases.dump(filled), databases.described(filled)
        assert _without_second(above) == _without_second(below)
        assert {row["colour"] for row in above["looopy_contexts"]} == {CONTEXT}
        await asyncio.to_thread(migrate.downgrade, filled, FIRST)
        assert (databases.dump(filled), databases.described(filled)) == (below, how_below)
        await asyncio.to_thread(migrate.upgrade, filled)
        assert (databases.dump(filled), databases.described(filled)) == (above, how_above)


async def test_new_code_migrates_an_old_file_and_refuses_an_old_server(filled, tmp_path):
    """SQLite by opening it; Postgres with the command that its administrator runs."""
    with second_migration(tmp_path):
        if databases.engine_of(filled) == "postgres":
            with pytest.raises(SchemaOutOfDate, match=r"run `looopy db upgrade --db URL`") as old:
                async with open_stores(filled):
                    pass
            assert (old.value.found, old.value.expected) == (FIRST, SECOND)
            await asyncio.to_thread(migrate.upgrade, filled)
        async with open_stores(filled) as stores:
            model = ScriptedProvider([text("hi")])
            async with Agent(CONTEXT, llm_provider=model, stores=stores) as agent:
                await agent.start()
        assert await asyncio.to_thread(migrate.check, filled) == (SECOND, SECOND)


async def test_old_code_refuses_a_newer_database(filled, tmp_path):
    """It says that the program is too old, and does not advise what cannot help."""
    with second_migration(tmp_path):
        await asyncio.to_thread(migrate.upgrade, filled)
    before = databases.dump(filled)
    for options in ({}, {"migrate": False}, {"migrate": True}):
        with pytest.raises(SchemaOutOfDate, match="upgrade looopy") as refused:
            async with open_stores(filled, **options):
                pass
        assert "looopy db upgrade" not in str(refused.value)
        assert (refused.value.found, refused.value.expected) == (SECOND, FIRST)
    assert databases.dump(filled) == before


async def test_a_migration_that_would_lose_rows_is_not_committed(filled, tmp_path):
    """Rows without their context, such as a careless rebuild leaves, are found in a file."""
    if databases.engine_of(filled) == "postgres":
        pytest.skip("a server checks foreign keys at each statement")
    before = databases.dump(filled)
    with (
        second_migration(tmp_path, "op.execute('DELETE FROM looopy_contexts')"),
        pytest.raises(StoreUnavailable, match="lose rows of"),
    ):
        await asyncio.to_thread(migrate.upgrade, filled)
    assert databases.dump(filled) == before


async def test_base_drops_every_table_of_a_filled_database(filled):
    """The table of versions is left, and another upgrade makes all of them again."""
    await asyncio.to_thread(migrate.downgrade, filled, "base")
    assert databases.dump(filled) == {"looopy_version": []}
    assert await asyncio.to_thread(migrate.check, filled) == (None, migrate.HEAD)
    async with open_stores(filled, migrate=True) as stores:
        assert await stores.state.list() == []
        await a_whole_context(stores)
