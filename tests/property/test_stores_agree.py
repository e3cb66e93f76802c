"""SQLite answers as the memory does, whatever is asked of it in whatever order."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from looopy.stores import open_stores
from looopy.testing.machines import StoresAgree

RUNS = int(os.environ.get("LOOOPY_MACHINE_RUNS", "40"))


@pytest.mark.timeout(0)
def test_sqlite_agrees_with_the_memory(tmp_path):
    """Every answer and every refusal of a random history is the same on both."""
    with asyncio.Runner() as runner:
        stores = open_stores(f"sqlite:///{tmp_path / 'agree.db'}")
        runner.run(stores.__aenter__())

        class OnSQLite(StoresAgree):
            run = staticmethod(runner.run)

        OnSQLite.stores = stores
        try:
            run_state_machine_as_test(
                OnSQLite,
                settings=settings(
                    max_examples=RUNS,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(stores.__aexit__(None, None, None))
