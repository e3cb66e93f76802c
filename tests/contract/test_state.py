"""The contract of state, on each backend."""

from __future__ import annotations

import pytest

from looopy.testing.contracts.state import StateStoreContract


class TestStateInMemory(StateStoreContract):
    """In dictionaries."""

    @pytest.fixture
    async def stores(self, memory_stores):
        """Open and empty."""
        return memory_stores


class TestStateOnSQLite(StateStoreContract):
    """In a file."""

    @pytest.fixture
    async def stores(self, sqlite_stores):
        """Open and empty."""
        return sqlite_stores


class TestStateOnAsyncpg(StateStoreContract):
    """On Postgres, over asyncpg."""

    @pytest.fixture
    async def stores(self, asyncpg_stores):
        """Open and empty."""
        return asyncpg_stores


class TestStateOnPsycopg(StateStoreContract):
    """On Postgres, over psycopg."""

    @pytest.fixture
    async def stores(self, psycopg_stores):
        """Open and empty."""
        return psycopg_stores
