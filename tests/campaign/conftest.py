"""Where trials are run within the tests: an empty database of each kind."""

from __future__ import annotations

import pytest
from tests.campaign.worlds import KINDS
from tests.postgres import as_driver


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    """Memory, SQLite, or Postgres by one of its drivers."""
    return request.param


@pytest.fixture
def url(kind: str, request, tmp_path) -> str:
    """A database of that kind."""
    if kind == "memory":
        return "memory:"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'trial.db'}"
    return as_driver(request.getfixturevalue("postgres"), kind)
