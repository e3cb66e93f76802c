"""A store that does not answer: nobody who runs, cancels or shuts down an agent waits for ever."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import add
from tests.postgres import as_driver
from tests.shares import PSYCOPG

from looopy import Agent, Outcome
from looopy.errors import StoreUnavailable
from looopy.stores.sql.engine import bind
from looopy.stores.sql.postgres import pool as pg_pool
from looopy.stores.sql.postgres import url as pg_url
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.testing import ScriptedProvider, text

_BOUND_S = 45.0  # many times what any call here may take


@pytest.fixture(params=["asyncpg", PSYCOPG])
def name(request):
    """Which driver."""
    return request.param


@pytest.fixture
async def stores(cutter, name, monkeypatch):
    """Stores behind the proxy, where statements may run for 0.5 s."""
    monkeypatch.setattr(pg_pool, "SPARE_S", 0.5)
    limits = "&connect_timeout=2&options=-c%20statement_timeout%3D500"
    driver = PostgresDriver(pg_url.parse(as_driver(cutter.url, name) + limits), patience_s=0.5)
    await driver.open()
    yield bind(driver, "default")
    await driver.close()


@pytest.mark.parametrize("commit", [1, 2])
@pytest.mark.parametrize("how", ["cancel", "shutdown", "nothing"])
async def test_a_turn_in_a_silent_store_ends(stores, cutter, how, commit):
    """By itself, by a cancel and by a shutdown, while the silence lasts; a later agent goes on."""
    agent = Agent("ada", llm_provider=ScriptedProvider([text("a")]), tools=[add], stores=stores)
    await agent.start()
    frozen = asyncio.Event()
    cutter.on_cut = frozen.set
    cutter.cuts = ["never"] * (commit - 1) + ["freeze after"]
    turn = asyncio.ensure_future(agent.execute_turn("hello"))
    await frozen.wait()
    async with asyncio.timeout(_BOUND_S):
        if how == "cancel":
            await agent.cancel()
        elif how == "shutdown":
            await agent.shutdown(cancel=True)
        (ended,) = await asyncio.gather(turn, return_exceptions=True)
        await agent.shutdown(cancel=True)
    assert cutter.frozen
    assert isinstance(ended, StoreUnavailable) or ended.outcome is not Outcome.COMPLETED
    cutter.thaw()
    provider = ScriptedProvider([text("b"), text("b")])
    async with Agent("ada", llm_provider=provider, tools=[add], stores=stores) as later:
        assert (await later.execute_turn("again")).outcome is Outcome.COMPLETED
        said = [message.text for message in await later.get_messages()]
    assert said.count("hello") <= 1
    assert said[-2:] == ["again", "b"]
