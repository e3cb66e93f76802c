"""Where trials are run within the tests: an empty database of each kind."""

from __future__ import annotations

from functools import partial

import pytest
from tests.campaign.command import campaign as command
from tests.campaign.worlds import KINDS
from tests.postgres import as_driver
from tests.shares import PSYCOPG


@pytest.fixture(params=[PSYCOPG if kind == "psycopg" else kind for kind in KINDS])
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


@pytest.fixture
def campaign(postgres_server):
    """The command of the campaign, on the server of this run."""
    return partial(command, server=postgres_server("postgres"))
