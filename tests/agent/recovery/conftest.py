"""Turns that a dead process left: in memory and in SQLite, and on Postgres in `nox -s long`."""

from __future__ import annotations

import pytest
from tests.shares import split


@pytest.fixture(params=split(["memory", "sqlite"], ["asyncpg", "psycopg"]))
def backend(request: pytest.FixtureRequest) -> str:
    """The store of a test."""
    return request.param
