"""The pool of connections to a Postgres server: how many there are, and who gets the next one."""

from __future__ import annotations

import asyncio

import pytest
from tests.postgres import as_driver

from looopy.stores.sql import pg_pool
from looopy.stores.sql.driver import Query
from looopy.stores.sql.pg_errors import Trouble
from looopy.stores.sql.pg_pool import Pool
from looopy.stores.sql.pg_url import parse

_PID = Query("SELECT pg_backend_pid()", {})


@pytest.fixture(params=["asyncpg", "psycopg"])
def url(postgres, request):
    """A URL that allows two connections."""
    return f"{as_driver(postgres, request.param)}&pool_size=2"


@pytest.fixture
async def pool(url):
    """A pool of at most two connections, nobody of which is in use at the end."""
    made = Pool(parse(url))
    yield made
    assert made.in_use == 0
    await made.close()


async def _pid(pool, *, brief=False):
    async with pool.session(brief=brief) as opened:
        return (await opened.ask_alone(_PID))[0][0]


async def _settled():
    """Let every task go on as far as it can without the server."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_connection_that_was_given_back_is_the_next_one(pool):
    """One after the other needs one, and two at a time need two."""
    first = await _pid(pool)
    assert {await _pid(pool) for _ in range(3)} == {first}
    async with pool.session() as one, pool.session() as other:
        pids = [(await opened.ask_alone(_PID))[0][0] for opened in (one, other)]
    assert pids[0] == first
    assert pids[1] != first
    assert (pool.idle, pool.in_use) == (2, 0)


async def test_news_take_the_connection_that_nobody_will_want(pool):
    """And go on doing so: the others keep to those that know their statements."""
    async with pool.session() as one, pool.session() as other:
        pids = [(await opened.ask_alone(_PID))[0][0] for opened in (one, other)]
    for _ in range(2):
        async with pool.session(brief=True) as opened:
            (rare,) = (await opened.ask_alone(_PID))[0]
        often = await _pid(pool)
        assert (rare, often) == (pids[1], pids[0])


@pytest.mark.parametrize("brief", [True, False])
async def test_what_is_said_in_passing_takes_no_connection_of_its_own(pool, brief):
    """It waits for one that is in use, and who needs that one waits for it."""
    async with pool.session(brief=not brief) as opened:
        (used,) = (await opened.ask_alone(_PID))[0]
        waiting = asyncio.create_task(_pid(pool, brief=brief))
        await _settled()
        assert (pool.idle, pool.in_use) == (0, 1)
    assert await waiting == used
    assert pool.idle == 1


@pytest.mark.parametrize("brief", [True, False])
async def test_what_is_said_in_passing_holds_nobody_up_for_long(pool, brief, monkeypatch):
    """Nor is it kept from being said by an operation that takes its time."""
    monkeypatch.setattr(pg_pool, "_SOON_S", 0)
    async with pool.session(brief=not brief) as opened:
        (used,) = (await opened.ask_alone(_PID))[0]
        assert await _pid(pool, brief=brief) != used
        assert pool.in_use == 1
    assert pool.idle == 2


async def test_one_who_says_something_holds_up_one_and_not_many(pool, monkeypatch):
    """The others make the connections that they need."""
    monkeypatch.setattr(pg_pool, "_SOON_S", 60)
    async with pool.session(brief=True) as opened:
        (used,) = (await opened.ask_alone(_PID))[0]
        patient = asyncio.create_task(_pid(pool))
        await _settled()
        assert await _pid(pool) != used
        await patient


async def test_those_who_find_none_are_served_in_the_order_they_came(pool):
    """Nobody passes who came later, and no third connection is made."""
    served = []

    async def use(number):
        async with pool.session() as opened:
            served.append(number)
            await opened.ask_alone(_PID)

    async with pool.session(), pool.session():
        users = []
        for number in range(6):
            users.append(asyncio.create_task(use(number)))
            await _settled()
        assert served == []
        assert pool.in_use == 2
    await asyncio.gather(*users)
    assert served == list(range(6))
    assert pool.idle == 2


async def test_one_that_is_not_clean_is_closed_and_its_place_is_the_next_ones(pool):
    """Who waits meanwhile makes a new one."""
    async with pool.session() as other:
        old = (await other.ask_alone(_PID))[0][0]

        async def leave_open():
            async with pool.session() as opened:
                await opened.begin("BEGIN")
                await asyncio.sleep(0)
                raise ZeroDivisionError

        broken, after = asyncio.create_task(leave_open()), asyncio.create_task(_pid(pool))
        with pytest.raises(ZeroDivisionError):
            await broken
        assert await after != old
    assert pool.idle == 2


@pytest.mark.parametrize("clean", [True, False])
async def test_who_is_cancelled_while_waiting_takes_nothing_with_him(pool, clean):
    """Also when his turn had come in the same moment: the next one gets it."""
    async with pool.session() as other:
        await other.ask_alone(_PID)
        opened = pool.session()
        await opened.__aenter__()
        if not clean:
            await opened.begin("BEGIN")
        early, late = asyncio.create_task(_pid(pool)), asyncio.create_task(_pid(pool))
        await _settled()
        await opened.__aexit__(None, None, None)
        early.cancel()
        assert await late
        with pytest.raises(asyncio.CancelledError):
            await early
        gone = asyncio.create_task(_pid(pool))
        async with pool.session():
            await _settled()
            gone.cancel()  # nothing had come for this one
        with pytest.raises(asyncio.CancelledError):
            await gone


async def test_waiting_for_a_connection_ends_with_a_sentence_that_helps(url):
    """The setting is named; what comes free afterwards is for the others."""
    pool = Pool(parse(url), patience_s=0.01)
    async with pool.session(), pool.session():
        with pytest.raises(Trouble) as refused:
            await _pid(pool)
    assert "pool_size" in (refused.value.words or "")
    assert not refused.value.passing
    assert await _pid(pool)
    assert pool.idle == 2
    await pool.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_connection_that_cannot_be_made_leaves_its_place(driver):
    """As often as it is tried, and a waiter tries too."""
    absent = Pool(parse(f"postgresql+{driver}://127.0.0.1:1/none?pool_size=1"))
    refusals = await asyncio.gather(*(_pid(absent) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(refusal, Trouble) for refusal in refusals), refusals
    assert (absent.idle, absent.in_use) == (0, 0)


async def test_what_is_given_back_to_a_closed_pool_is_closed(url):
    """Nothing stays behind."""
    pool = Pool(parse(url))
    async with pool.session() as opened:
        await opened.ask_alone(_PID)
        await pool.close()
    assert (pool.idle, pool.in_use) == (0, 0)
