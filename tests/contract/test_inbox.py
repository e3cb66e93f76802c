"""The contract of the inbox, on each backend."""

from __future__ import annotations

import pytest

from looopy.testing.contracts.inbox import InboxContract


class TestInboxInMemory(InboxContract):
    """In dictionaries."""

    @pytest.fixture
    async def stores(self, memory_stores):
        """Open and empty."""
        return memory_stores


class TestInboxOnSQLite(InboxContract):
    """In a file."""

    @pytest.fixture
    async def stores(self, sqlite_stores):
        """Open and empty."""
        return sqlite_stores


class TestInboxOnAsyncpg(InboxContract):
    """On Postgres, over asyncpg."""

    @pytest.fixture
    async def stores(self, asyncpg_stores):
        """Open and empty."""
        return asyncpg_stores


class TestInboxOnPsycopg(InboxContract):
    """On Postgres, over psycopg."""

    @pytest.fixture
    async def stores(self, psycopg_stores):
        """Open and empty."""
        return psycopg_stores
