"""The contract of messages, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopgAlways, OnSQLite

from looopy.testing.contracts.message import MessageStoreContract


class TestMessagesInMemory(InMemory, MessageStoreContract):
    """In dictionaries."""


class TestMessagesOnSQLite(OnSQLite, MessageStoreContract):
    """In a file."""


class TestMessagesOnAsyncpg(OnAsyncpg, MessageStoreContract):
    """On Postgres, over asyncpg."""


class TestMessagesOnPsycopg(OnPsycopgAlways, MessageStoreContract):
    """On Postgres, over psycopg."""
