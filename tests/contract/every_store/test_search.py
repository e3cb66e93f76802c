"""The contract of searching, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.testing.contracts.search import SearchContract


class TestSearchInMemory(InMemory, SearchContract):
    """In dictionaries."""


class TestSearchOnSQLite(OnSQLite, SearchContract):
    """In a file."""


class TestSearchOnAsyncpg(OnAsyncpg, SearchContract):
    """On Postgres, over asyncpg."""


class TestSearchOnPsycopg(OnPsycopg, SearchContract):
    """On Postgres, over psycopg."""
