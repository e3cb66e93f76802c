"""The contract of names of turns, on each backend."""

from __future__ import annotations

import pytest

from looopy.testing.contracts.key import KeyContract


class TestKeysInMemory(KeyContract):
    """In dictionaries."""

    @pytest.fixture
    async def stores(self, memory_stores):
        """Open and empty."""
        return memory_stores


class TestKeysOnSQLite(KeyContract):
    """In a file."""

    @pytest.fixture
    async def stores(self, sqlite_stores):
        """Open and empty."""
        return sqlite_stores


class TestKeysOnAsyncpg(KeyContract):
    """On Postgres, over asyncpg."""

    @pytest.fixture
    async def stores(self, asyncpg_stores):
        """Open and empty."""
        return asyncpg_stores


class TestKeysOnPsycopg(KeyContract):
    """On Postgres, over psycopg."""

    @pytest.fixture
    async def stores(self, psycopg_stores):
        """Open and empty."""
        return psycopg_stores
