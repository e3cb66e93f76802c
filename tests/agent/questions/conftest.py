"""An answer reaches a turn by way of the store: by each of them."""

from __future__ import annotations

import pytest
from tests.shares import split


@pytest.fixture(params=split(["memory"], ["sqlite", "asyncpg", "psycopg"]))
def backend(request: pytest.FixtureRequest) -> str:
    """The store of a test."""
    return request.param
