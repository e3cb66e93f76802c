"""
Agents in stores, shut down after each test, with nothing left running.

Every test runs in memory. An agent behaves alike in each store that keeps the contract, so SQLite
is left to `nox -s long`. `sharing/` and `recovery/`, where the store is what processes have in
common, take SQLite at once and leave Postgres.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import as_driver
from tests.shares import split

from looopy import Agent, RetryPolicy, open_stores
from looopy.errors import LooopyError
from looopy.testing import ScriptedProvider
from looopy.types.config import LoopConfig

FAST = RetryPolicy(base_s=0)


@pytest.fixture
def sqlite_url(sqlite_file: Path) -> str:
    """The URL of that file."""
    return f"sqlite:///{sqlite_file}"


@pytest.fixture
def store_url(request, backend) -> str:
    """Where `stores` are."""
    if backend == "memory":
        return "memory:"
    if backend == "sqlite":
        return request.getfixturevalue("sqlite_url")
    return as_driver(request.getfixturevalue("postgres"), backend)


@pytest.fixture(params=split(["memory"], ["sqlite"]))
def backend(request) -> str:
    """The store of a test; a folder about many processes adds Postgres, by its drivers."""
    return request.param


@pytest.fixture
async def stores(store_url):
    """Open stores, empty."""
    async with open_stores(store_url) as opened:
        yield opened


@pytest.fixture
async def memory_stores():
    """Open stores in memory, for what has nothing to do with durability."""
    async with open_stores("memory:") as opened:
        yield opened


@pytest.fixture
async def make_agent():
    """
    Make started agents of a script.

    `await make_agent(replies, stores=..., **options)`; *start* may be false. After the test every
    agent is shut down, and no task may be left over.
    """
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:

        async def make(replies: Any = (), *, start: bool = True, **options: Any) -> Agent:
            provider = replies if hasattr(replies, "stream") else ScriptedProvider(replies)
            options.setdefault("loop_config", LoopConfig(retry=FAST))
            agent = Agent(
                options.pop("context_id", "ada"),
                llm_provider=options.pop("llm_provider", provider),
                **options,
            )
            stack.push_async_callback(_shut_down, agent)
            if start:
                await agent.start()
            return agent

        yield make
    await asyncio.sleep(0)  # what was cancelled may take one round of the loop to end
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert [task for task in left if not task.done()] == []


async def _shut_down(agent: Agent) -> None:
    try:
        await agent.shutdown(cancel=True)
    except LooopyError:
        await agent.shutdown(cancel=True)
