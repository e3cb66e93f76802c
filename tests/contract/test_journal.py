"""The contract of journal, on each backend."""

from __future__ import annotations

import pytest

from looopy.stores.sql.driver import Query
from looopy.stores.sql.statements import TABLES
from looopy.testing.contracts.journal import JournalContract


class SQLJournalContract(JournalContract):
    """What is kept is looked for in the tables."""

    async def kept(self, stores):
        """Every row of every table."""

        def work():
            found = []
            for table in sorted(TABLES):
                found += yield Query(f"SELECT * FROM {table}", {})
            return found

        return repr(await stores.journal.backend.run(work, write=False))


class TestJournalInMemory(JournalContract):
    """In dictionaries."""

    async def kept(self, stores):
        """Every context with all that hangs on it."""
        return repr(stores.journal.backend.contexts)

    @pytest.fixture
    async def stores(self, memory_stores):
        """Open and empty."""
        return memory_stores


class TestJournalOnSQLite(SQLJournalContract):
    """In a file."""

    @pytest.fixture
    async def stores(self, sqlite_stores):
        """Open and empty."""
        return sqlite_stores


class TestJournalOnAsyncpg(SQLJournalContract):
    """On Postgres, over asyncpg."""

    @pytest.fixture
    async def stores(self, asyncpg_stores):
        """Open and empty."""
        return asyncpg_stores


class TestJournalOnPsycopg(SQLJournalContract):
    """On Postgres, over psycopg."""

    @pytest.fixture
    async def stores(self, psycopg_stores):
        """Open and empty."""
        return psycopg_stores
