"""The pool of connections to a Postgres server: how many there are, and who gets the next one."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from tests.cutting import Cutter
from tests.postgres import Server, as_driver, ask

from looopy.stores.sql.driver import Query
from looopy.stores.sql.postgres import pool as pg_pool
from looopy.stores.sql.postgres.errors import Trouble
from looopy.stores.sql.postgres.pool import Pool
from looopy.stores.sql.postgres.url import parse

_BOUND_S = 30.0  # many times what is waited for
_LONG_S = 600.0  # nobody is to give up because the machine is busy
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


async def test_notifications_use_the_least_wanted_connection(pool):
    """And go on doing so: the others keep to those that know their statements."""
    async with pool.session() as one, pool.session() as other:
        pids = [(await opened.ask_alone(_PID))[0][0] for opened in (one, other)]
    for _ in range(2):
        async with pool.session(brief=True) as opened:
            (rare,) = (await opened.ask_alone(_PID))[0]
        often = await _pid(pool)
        assert (rare, often) == (pids[1], pids[0])


@pytest.mark.parametrize("brief", [True, False])
async def test_a_short_statement_takes_no_connection_of_its_own(pool, brief):
    """It waits for one that is in use, and who needs that one waits for it."""
    async with pool.session(brief=not brief) as opened:
        (used,) = (await opened.ask_alone(_PID))[0]
        waiting = asyncio.create_task(_pid(pool, brief=brief))
        await _settled()
        assert (pool.idle, pool.in_use) == (0, 1)
    assert await waiting == used
    assert pool.idle == 1


@pytest.mark.parametrize("brief", [True, False])
async def test_a_short_statement_does_not_wait_for_long_operations(pool, brief, monkeypatch):
    """Nor is it kept from being said by an operation that takes its time."""
    monkeypatch.setattr(pg_pool, "_SOON_S", 0)
    async with pool.session(brief=not brief) as opened:
        (used,) = (await opened.ask_alone(_PID))[0]
        assert await _pid(pool, brief=brief) != used
        assert pool.in_use == 1
    assert pool.idle == 2


async def test_a_short_statement_delays_one_operation_at_most(pool, monkeypatch):
    """The others make the connections that they need."""
    monkeypatch.setattr(pg_pool, "_SOON_S", 60)
    async with pool.session(brief=True) as opened:
        (used,) = (await opened.ask_alone(_PID))[0]
        patient = asyncio.create_task(_pid(pool))
        await _settled()
        assert await _pid(pool) != used
        await patient


async def test_waiting_operations_are_served_in_order_of_arrival(pool):
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


async def test_an_unclean_connection_is_closed_and_its_slot_is_free(pool):
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
async def test_a_cancelled_wait_takes_no_connection(pool, clean):
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


async def test_a_connection_given_back_to_a_closed_pool_is_closed(url):
    """Nothing stays behind."""
    pool = Pool(parse(url))
    async with pool.session() as opened:
        await opened.ask_alone(_PID)
        await pool.close()
    assert (pool.idle, pool.in_use) == (0, 0)


# --- a server that has no connection left ---


@pytest.fixture(scope="module")
def small_server():
    """A server that takes three connections, and another from an administrator."""
    server = Server("max_connections=4", "superuser_reserved_connections=1")
    server.start()
    ask(server.url("postgres"), "CREATE USER app")
    yield server.url("postgres")
    server.remove()


@pytest.fixture(params=["asyncpg", "psycopg"])
def small(small_server, request):
    """Its URL for one of the drivers, as a user who is no administrator."""
    url = small_server.replace("//postgres@", "//app@")
    return f"{as_driver(url, request.param)}&pool_size=5"


async def test_at_the_limit_of_the_server_one_waits_for_those_of_the_pool(small):
    """Ten users share the three connections that there are."""
    pool = Pool(parse(small), patience_s=_LONG_S)
    pids = await asyncio.gather(*(_pid(pool) for _ in range(10)))
    assert len(set(pids)) <= 3
    assert pool.in_use == 0
    await pool.close()


async def test_a_session_at_the_limit_of_the_server_waits_for_a_released_connection(
    small, monkeypatch
):
    """Also where this pool has none yet; one who is cancelled leaves his place to the next."""
    monkeypatch.setattr(pg_pool, "_FULL_PAUSE_S", 0.1)
    others, pool = (Pool(parse(small), patience_s=_LONG_S) for _ in range(2))
    held = [others.session() for _ in range(3)]
    for session in held:
        await session.__aenter__()
    users = [asyncio.create_task(_pid(pool)) for _ in range(8)]
    while pool._full is None:  # noqa: ASYNC110 - the server says it
        await asyncio.sleep(0)
    for user in users[:4]:
        user.cancel()
    await asyncio.gather(*users[:4], return_exceptions=True)
    assert not any(user.done() for user in users[4:])
    for session in held:
        await session.__aexit__(None, None, None)
    await others.close()
    assert all(await asyncio.gather(*users[4:]))
    assert pool.in_use == 0
    await pool.close()


async def test_waiting_at_the_limit_of_the_server_ends_with_its_reason(small, monkeypatch):
    """What helps is there, and not in this process."""
    monkeypatch.setattr(pg_pool, "_FULL_PAUSE_S", 0.1)
    others, pool = Pool(parse(small), patience_s=_LONG_S), Pool(parse(small), patience_s=0.05)
    async with others.session(), others.session(), others.session():
        refusals = await asyncio.gather(*(_pid(pool) for _ in range(3)), return_exceptions=True)
    assert [getattr(refusal, "sqlstate", None) for refusal in refusals] == ["53300"] * 3
    assert (pool.idle, pool.in_use) == (0, 0)
    await others.close()


# --- growing old ---


def _sessions(url, name):
    text = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = %s"
    return ask(url, text, name)[0][0]


async def test_idle_connections_are_closed(url, postgres):
    """All of them, after a while; the next one is made when it is asked for."""
    pool = Pool(parse(f"{url}&pool_max_idle=1&application_name=idle"))
    async with pool.session(), pool.session():
        pass
    assert (pool.idle, _sessions(postgres, "idle")) == (2, 2)
    async with asyncio.timeout(_BOUND_S):
        while pool.idle:  # noqa: ASYNC110 - time has to pass
            await asyncio.sleep(0)
        while _sessions(postgres, "idle"):  # noqa: ASYNC110 - the server needs a moment
            await asyncio.sleep(0)
    assert pool.in_use == 0
    assert await _pid(pool)
    await pool.close()


async def test_a_connection_that_is_always_in_use_is_replaced_when_it_is_old(url):
    """When it is given back, and those who wait get a new one."""
    pool = Pool(parse(f"{url}&pool_size=1&pool_max_age=1"))
    first = await _pid(pool)
    async with asyncio.timeout(_BOUND_S):
        while await _pid(pool) == first:
            pass
    pids = await asyncio.gather(*(_pid(pool) for _ in range(5)))
    assert first not in pids
    assert pool.in_use == 0
    await pool.close()


async def test_an_idle_connection_that_is_old_is_closed(url):
    """It may have been idle for a short time only."""
    pool = Pool(parse(f"{url}&pool_max_age=1"))
    await _pid(pool)
    async with asyncio.timeout(_BOUND_S):
        while pool.idle:  # noqa: ASYNC110 - time has to pass
            await asyncio.sleep(0)
    await pool.close()
    assert pool.in_use == 0


async def test_a_pool_may_keep_its_connections_for_ever(url):
    """Zero is no limit."""
    pool = Pool(parse(f"{url}&pool_max_age=0&pool_max_idle=0"))
    first = await _pid(pool)
    assert pool._reaper is None
    assert await _pid(pool) == first
    await pool.close()


# --- what it is called, and where it is ---


async def test_the_server_knows_the_application_by_a_name(url, monkeypatch):
    """Ours, unless the environment or the URL says another; a + is a space, as in any form."""
    for options, environment, wanted in (
        ("", None, "looopy"),
        ("", "from outside", "from outside"),
        ("&application_name=my+chat%20app", "from outside", "my chat app"),
    ):
        monkeypatch.delenv("PGAPPNAME", raising=False)
        if environment is not None:
            monkeypatch.setenv("PGAPPNAME", environment)
        pool = Pool(parse(url + options))
        async with pool.session() as opened:
            shown = await opened.ask_alone(Query("SHOW application_name", {}))
        assert shown == [(wanted,)]
        await pool.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_the_first_of_several_hosts_that_answers_is_used(postgres, driver):
    """As libpq writes them, each with its port; the one that is tried first is not there."""
    async with Cutter(postgres, tcp=True) as cutter:
        there = cutter.url.partition("?")[2]
        port = there.rpartition("=")[2]
        database = urlsplit(postgres).path
        hosts = f"postgres@127.0.0.1:1,127.0.0.1:{port}"
        pool = Pool(parse(f"postgresql+{driver}://{hosts}{database}?options=-c+work_mem%3D5MB"))
        async with pool.session() as opened:
            shown = await opened.ask_alone(Query("SHOW work_mem", {}))
        assert shown == [("5MB",)]
        await pool.close()
