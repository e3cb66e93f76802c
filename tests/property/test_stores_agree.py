"""Each database answers as the memory does, whatever is asked of it in whatever order."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.postgres import as_driver

from looopy.stores import open_stores
from looopy.testing.machines import StoresAgree

RUNS = int(os.environ.get("LOOOPY_MACHINE_RUNS", "40"))


def _agree(url: str, runs: int) -> None:
    with asyncio.Runner() as runner:
        stores = open_stores(url)
        runner.run(stores.__aenter__())

        class OnDatabase(StoresAgree):
            run = staticmethod(runner.run)

        OnDatabase.stores = stores
        try:
            run_state_machine_as_test(
                OnDatabase,
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
    _agree(f"sqlite:///{tmp_path / 'agree.db'}", RUNS)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_postgres_agrees_with_the_memory(postgres, driver):
    """Likewise on a server, which answers more slowly and so is asked less."""
    _agree(as_driver(postgres, driver), max(RUNS // 4, 1))
