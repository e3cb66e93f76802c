"""Empty stores of each backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.postgres import as_driver

from looopy.stores import open_stores
from looopy.stores import rules as names
from looopy.testing.contracts.turns import Contract


@pytest.fixture(autouse=True)
def epochs_begin_at_one(request, monkeypatch):
    """So that a test can name them; `test_lives.py` undoes it, and what is shipped needs none."""
    if not issubclass(request.cls or object, Contract):
        monkeypatch.setattr(names, "first_epoch", lambda: 1)


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
