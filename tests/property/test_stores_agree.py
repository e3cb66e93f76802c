"""Each database answers as the memory does, whatever is asked of it in whatever order."""

from __future__ import annotations

import asyncio
import os
from unittest import mock

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.postgres import as_driver
from tests.shares import PSYCOPG

from looopy.stores import open_stores
from looopy.stores import rules as names
from looopy.testing.machines import StoresAgree

RUNS = int(os.environ.get("LOOOPY_MACHINE_RUNS", "6"))


def agree(url: str, runs: int, seed: int | None = None) -> None:
    """Do the same at random in memory and at *url*, *runs* times, and compare what they answer."""
    with asyncio.Runner() as runner, mock.patch.object(names, "first_epoch", return_value=1):
        stores = open_stores(url)
        runner.run(stores.__aenter__())

        class OnDatabase(StoresAgree):
            run = staticmethod(runner.run)

        OnDatabase.stores = stores
        searched = OnDatabase if seed is None else hypothesis.seed(seed)(OnDatabase)
        try:
            run_state_machine_as_test(
                searched,
                settings=settings(
                    max_examples=runs,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(stores.__aexit__(None, None, None))


@pytest.mark.timeout(0)
def test_sqlite_agrees_with_the_memory(tmp_path):
    """Every answer and every refusal of a random history is the same on both."""
    agree(f"sqlite:///{tmp_path / 'agree.db'}", RUNS)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("driver", ["asyncpg", PSYCOPG])
def test_postgres_agrees_with_the_memory(postgres, driver):
    """Likewise on a server, which answers more slowly and so is asked less."""
    agree(as_driver(postgres, driver), max(RUNS // 4, 1))
