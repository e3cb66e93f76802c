"""The contract of journal, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

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


class TestJournalInMemory(InMemory, JournalContract):
    """In dictionaries."""

    async def kept(self, stores):
        """Every context with all that hangs on it."""
        return repr(stores.journal.backend.contexts)


class TestJournalOnSQLite(OnSQLite, SQLJournalContract):
    """In a file."""


class TestJournalOnAsyncpg(OnAsyncpg, SQLJournalContract):
    """On Postgres, over asyncpg."""


class TestJournalOnPsycopg(OnPsycopg, SQLJournalContract):
    """On Postgres, over psycopg."""
