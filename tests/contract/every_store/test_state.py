"""The contract of state, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.testing.contracts.state import StateStoreContract


class TestStateInMemory(InMemory, StateStoreContract):
    """In dictionaries."""


class TestStateOnSQLite(OnSQLite, StateStoreContract):
    """In a file."""


class TestStateOnAsyncpg(OnAsyncpg, StateStoreContract):
    """On Postgres, over asyncpg."""


class TestStateOnPsycopg(OnPsycopg, StateStoreContract):
    """On Postgres, over psycopg."""
