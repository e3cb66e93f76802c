"""Who goes first on a server, and by whose clock: what only shows when two meet at a row."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
from tests.postgres import as_driver, ask

from looopy.errors import AgentBusy, StoreConflict
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query
from looopy.stores.sql.engine import bind
from looopy.stores.sql.postgres import url as pg_url
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.testing.contracts.turns import CONTEXT, answer, begin, commit, said, user

_WAITING = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
_NOW_US = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
_HOUR_NS = 3600 * 10**9


@pytest.fixture(params=["asyncpg", "psycopg"])
async def opened(request, postgres):
    """A function that opens another driver, as another process has one."""
    drivers = []

    async def open_driver(**options):
        place = pg_url.parse(f"{as_driver(postgres, request.param)}&pool_size=2")
        driver = PostgresDriver(place, **options)
        await driver.open()
        drivers.append(driver)
        return bind(driver, "default")

    yield open_driver
    for driver in drivers:
        await driver.close()


@pytest.fixture
def row(postgres):
    """The row of the context, written by somebody else: `row(n)` waits until *n* wait for it."""
    with psycopg.connect(postgres) as holder:

        async def waited_for(count):
            while ask(postgres, _WAITING, holder.info.dbname) != [(count,)]:  # noqa: ASYNC110 - as in test_postgres_server
                await asyncio.sleep(0)

        waited_for.take = lambda: holder.execute("UPDATE looopy_contexts SET version = version")
        waited_for.let_go = holder.commit
        yield waited_for


async def test_one_of_two_simultaneous_claims_wins(opened, row):
    """Both wait for the row; whoever gets it second finds that the context has moved on."""
    one, other = await opened(), await opened()
    await one.messages.append(CONTEXT, [user("a")])
    row.take()
    claims = [asyncio.create_task(begin(stores, 1, holder="h")) for stores in (one, other)]
    await row(2)
    row.let_go()
    done = await asyncio.gather(*claims, return_exceptions=True)
    refused = [d for d in done if isinstance(d, (AgentBusy, StoreConflict))]
    assert len(refused) == 1, done


@pytest.mark.parametrize("off_by", [-_HOUR_NS, _HOUR_NS])
async def test_a_lease_ends_by_the_clock_of_the_server(opened, postgres, monkeypatch, off_by):
    """However wrong this host's clock is, a claim, a commit and a renewal last what they say."""
    stores = await opened()
    clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: clock() + off_by)
    monkeypatch.setattr(time, "time", lambda: (clock() + off_by) / 10**9)
    left = f"SELECT lease_until - {_NOW_US} FROM looopy_contexts"
    claimed = await begin(stores, ttl_s=100.0)
    assert 0 < ask(postgres, left)[0][0] <= 100_000_000
    await commit(stores, claimed, [said(answer("a"))], ttl_s=200.0)
    assert 100_000_000 < ask(postgres, left)[0][0] <= 200_000_000
    assert await stores.state.renew(CONTEXT, claimed.epoch, 300.0)
    assert 200_000_000 < ask(postgres, left)[0][0] <= 300_000_000


async def test_a_lease_that_was_waited_for_begins_when_it_is_given(opened, postgres, row):
    """The transaction is older: a lease from its beginning might be over when it is given."""
    stores = await opened()
    await stores.messages.append(CONTEXT, [user("a")])
    row.take()
    claiming = asyncio.create_task(begin(stores, 1, ttl_s=1.0))
    await row(1)
    [(before,)] = ask(postgres, f"SELECT {_NOW_US}")
    row.let_go()
    await claiming
    [(until,)] = ask(postgres, "SELECT lease_until FROM looopy_contexts")
    assert until >= before + 1_000_000


async def test_writes_of_one_context_wait_in_line_without_a_connection(opened, postgres, row):
    """A context whose row is held does not take the pool from the others."""
    stores = await opened()
    await stores.messages.append(CONTEXT, [user("a")])
    row.take()
    waiting = [asyncio.create_task(stores.messages.append(CONTEXT, [user("b")])) for _ in range(4)]
    await row(1)
    other = asyncio.create_task(stores.messages.append("other", [user("c")]))
    done, _ = await asyncio.wait({other, *waiting}, return_when="FIRST_COMPLETED")
    assert done == {other}
    row.let_go()
    assert await asyncio.gather(*waiting) == [2, 3, 4, 5]


async def test_a_write_that_waited_in_a_circle_is_made_again(opened, postgres, row):
    """The server gives one of the two up, perhaps when the time for trying again is over."""
    stores = await opened(patience_s=0.5)  # less than the server looks for circles
    for name in ("a", "b"):
        await stores.messages.append(name, [user("x")])
    lock = "SELECT * FROM looopy_contexts WHERE context_id = '{}' FOR UPDATE"

    def both():
        for name in ("a", "b"):
            yield Query(s.PEEK_LOCKED, {"tenant": "default", "context": name})
        return "written"

    with psycopg.connect(postgres) as other:
        other.execute("SET deadlock_timeout = '1h'")
        other.execute(lock.format("b"))
        writing = asyncio.create_task(stores.messages.backend.run(both, write=True))
        await row(1)
        await asyncio.to_thread(other.execute, lock.format("a"))
        other.rollback()
    assert await writing == "written"
