"""The contract of the line of those who wait, on each backend."""

from __future__ import annotations

import pytest

from looopy.testing.contracts.line import LineContract


class TestLineInMemory(LineContract):
    """In dictionaries."""

    @pytest.fixture
    async def stores(self, memory_stores):
        """Open and empty."""
        return memory_stores


class TestLineOnSQLite(LineContract):
    """In a file."""

    @pytest.fixture
    async def stores(self, sqlite_stores):
        """Open and empty."""
        return sqlite_stores


class TestLineOnAsyncpg(LineContract):
    """On Postgres, over asyncpg."""

    @pytest.fixture
    async def stores(self, asyncpg_stores):
        """Open and empty."""
        return asyncpg_stores


class TestLineOnPsycopg(LineContract):
    """On Postgres, over psycopg."""

    @pytest.fixture
    async def stores(self, psycopg_stores):
        """Open and empty."""
        return psycopg_stores
