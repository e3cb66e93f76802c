"""Archives of contexts: the contract on each backend, and from one backend to another."""

from __future__ import annotations

import itertools

import pytest
from tests.contract.backends import on_every_store

from looopy.stores import open_stores
from looopy.testing.contracts.restore import RestoreContract, exported, fill, imported, told

globals().update(on_every_store("Restoring", RestoreContract))


@pytest.mark.long
class TestRestoringInPostgresAndAFolder(RestoreContract):
    """On Postgres, large parts in a folder."""

    @pytest.fixture
    async def stores(self, postgres, tmp_path):
        """Open and empty."""
        async with open_stores(postgres, blobs=str(tmp_path / "blobs")) as stores:
            yield stores


async def test_an_archive_is_the_same_wherever_it_was_made(
    sqlite_stores, memory_stores, asyncpg_stores
):
    """From SQLite to Postgres to memory to SQLite: byte for byte."""
    await fill(sqlite_stores)
    before = await told(sqlite_stores)
    archive = await exported(sqlite_stores)
    back = sqlite_stores.for_tenant("back")
    ways = itertools.pairwise([sqlite_stores, asyncpg_stores, memory_stores, back])
    for source, target in ways:
        assert await exported(source) == archive
        await imported(target, archive)
        assert await told(target) == before
