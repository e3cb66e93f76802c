"""The contract of messages, on each backend."""

from __future__ import annotations

import pytest

from looopy.testing.contracts.message import MessageStoreContract


class TestMessagesInMemory(MessageStoreContract):
    """In dictionaries."""

    @pytest.fixture
    async def stores(self, memory_stores):
        """Open and empty."""
        return memory_stores


class TestMessagesOnSQLite(MessageStoreContract):
    """In a file."""

    @pytest.fixture
    async def stores(self, sqlite_stores):
        """Open and empty."""
        return sqlite_stores


class TestMessagesOnAsyncpg(MessageStoreContract):
    """On Postgres, over asyncpg."""

    @pytest.fixture
    async def stores(self, asyncpg_stores):
        """Open and empty."""
        return asyncpg_stores


class TestMessagesOnPsycopg(MessageStoreContract):
    """On Postgres, over psycopg."""

    @pytest.fixture
    async def stores(self, psycopg_stores):
        """Open and empty."""
        return psycopg_stores
