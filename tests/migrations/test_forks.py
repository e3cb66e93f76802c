"""Going back from a schema that has forks."""

from __future__ import annotations

import asyncio

import pytest

from looopy.errors import ConfigurationError
from looopy.stores import open_stores
from looopy.stores.sql import migrate
from looopy.testing.contracts.turns import CONTEXT, a_turn


async def _back(url, revision):
    await asyncio.to_thread(migrate.downgrade, url, revision)


async def test_a_schema_without_forks_is_no_place_for_one(empty):
    """Going back is refused while a fork or a rewind needs the schema; all can still be removed."""
    async with open_stores(empty, migrate=True) as stores:
        await a_turn(stores)
        await stores.journal.fork(CONTEXT, "fork")
    with pytest.raises(ConfigurationError, match="forks"):
        await _back(empty, "0006")
    async with open_stores(empty) as stores:
        assert len(await stores.messages.list("fork")) == 2
        await stores.journal.clear("fork")
        await stores.journal.rewind(CONTEXT, 1)
    with pytest.raises(ConfigurationError, match="rewound"):
        await _back(empty, "0006")
    async with open_stores(empty) as stores:
        await stores.journal.undo_rewind(CONTEXT)
    await _back(empty, "0006")
    async with open_stores(empty, migrate=True) as stores:
        assert len(await stores.messages.list(CONTEXT)) == 2
        await stores.journal.fork(CONTEXT, "again")
    await _back(empty, "base")
