"""The contract of the line of those who wait, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.testing.contracts.line import LineContract


class TestLineInMemory(InMemory, LineContract):
    """In dictionaries."""


class TestLineOnSQLite(OnSQLite, LineContract):
    """In a file."""


class TestLineOnAsyncpg(OnAsyncpg, LineContract):
    """On Postgres, over asyncpg."""


class TestLineOnPsycopg(OnPsycopg, LineContract):
    """On Postgres, over psycopg."""
