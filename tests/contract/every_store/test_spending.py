"""The contract of the accounts of owners and tenants, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.testing.contracts.spending import SpendingContract


class TestSpendingInMemory(InMemory, SpendingContract):
    """In dictionaries."""


class TestSpendingOnSQLite(OnSQLite, SpendingContract):
    """In a file."""


class TestSpendingOnAsyncpg(OnAsyncpg, SpendingContract):
    """On Postgres, over asyncpg."""


class TestSpendingOnPsycopg(OnPsycopg, SpendingContract):
    """On Postgres, over psycopg."""
