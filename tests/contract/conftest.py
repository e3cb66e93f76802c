"""Empty stores of each backend."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.postgres import as_driver

from looopy.stores import open_stores
from looopy.stores import rules as names
from looopy.stores.sql import migrate


@pytest.fixture(autouse=True)
def epochs_begin_at_one(monkeypatch):
    """So that a test can name them; `test_lives.py` undoes it."""
    monkeypatch.setattr(names, "first_epoch", lambda: 1)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A SQLite file at the head, to be copied: migrating takes longer than a test."""
    path = tmp_path_factory.mktemp("sqlite") / "empty.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_file(empty_database: Path, tmp_path: Path) -> Path:
    """A SQLite file of the test's own, without rows."""
    return Path(shutil.copy(empty_database, tmp_path / "test.db"))


@pytest.fixture
async def sqlite_stores(sqlite_file: Path):
    """Open stores in a file."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        yield stores


@pytest.fixture
async def memory_stores():
    """Open stores in memory."""
    async with open_stores("memory:") as stores:
        yield stores


@pytest.fixture
async def asyncpg_stores(postgres: str):
    """Open stores on Postgres over asyncpg."""
    async with open_stores(as_driver(postgres, "asyncpg")) as stores:
        yield stores


@pytest.fixture
async def psycopg_stores(postgres: str):
    """Open stores on Postgres over psycopg."""
    async with open_stores(as_driver(postgres, "psycopg")) as stores:
        yield stores
