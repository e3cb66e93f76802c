"""The contract of the inbox, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.testing.contracts.inbox import InboxContract


class TestInboxInMemory(InMemory, InboxContract):
    """In dictionaries."""


class TestInboxOnSQLite(OnSQLite, InboxContract):
    """In a file."""


class TestInboxOnAsyncpg(OnAsyncpg, InboxContract):
    """On Postgres, over asyncpg."""


class TestInboxOnPsycopg(OnPsycopg, InboxContract):
    """On Postgres, over psycopg."""
