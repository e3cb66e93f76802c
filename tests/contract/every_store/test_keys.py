"""The contract of names of turns, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.testing.contracts.key import KeyContract


class TestKeysInMemory(InMemory, KeyContract):
    """In dictionaries."""


class TestKeysOnSQLite(OnSQLite, KeyContract):
    """In a file."""


class TestKeysOnAsyncpg(OnAsyncpg, KeyContract):
    """On Postgres, over asyncpg."""


class TestKeysOnPsycopg(OnPsycopg, KeyContract):
    """On Postgres, over psycopg."""
