"""
Backends to run a contract on: `globals().update(on_every_store("WaitQueue", WaitQueueContract))`.

Both drivers of Postgres run the same statements, so the contracts run over psycopg in the long run
alone. Each change runs over it the tests whose values take many forms on the wire,
`every_store/test_values.py`, and `contract/postgres`, which is about drivers.
"""

from __future__ import annotations

import pytest


class InMemory:
    """In dictionaries."""

    @pytest.fixture
    async def stores(self, memory_stores):
        """Open and empty."""
        return memory_stores


class OnSQLite:
    """In a file."""

    @pytest.fixture
    async def stores(self, sqlite_stores):
        """Open and empty."""
        return sqlite_stores


class OnAsyncpg:
    """On Postgres, over asyncpg."""

    @pytest.fixture
    async def stores(self, asyncpg_stores):
        """Open and empty."""
        return asyncpg_stores


class OnPsycopg:
    """On Postgres, over psycopg."""

    @pytest.fixture
    async def stores(self, psycopg_stores):
        """Open and empty."""
        return psycopg_stores


class OnPsycopgSeldom(OnPsycopg):
    """The same in the long run."""

    pytestmark = pytest.mark.long


def on_every_store(name: str, *contracts: type, **attributes: object) -> dict[str, type]:
    """
    The classes of a contract, `TestNAMEInMemory` to `TestNAMEOnPsycopg`, by their names.

    Args:
        name: The subject of the contract.
        contracts: One or more, all in the same class.
        attributes: More attributes of each class.
    """
    backends = {
        "InMemory": InMemory,
        "OnSQLite": OnSQLite,
        "OnAsyncpg": OnAsyncpg,
        "OnPsycopg": OnPsycopgSeldom,
    }
    return {
        f"Test{name}{where}": type(f"Test{name}{where}", (backend, *contracts), attributes)
        for where, backend in backends.items()
    }
