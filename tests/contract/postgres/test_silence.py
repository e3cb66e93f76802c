"""A server whose reply never comes: each call ends, and tells the truth."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from tests.cutting import Cutter
from tests.postgres import as_driver, ask
from tests.shares import split

from looopy.errors import LooopyError, StoreUnavailable
from looopy.stores.notifier import Notifier
from looopy.stores.sql.driver import Query, Ring
from looopy.stores.sql.engine import bind
from looopy.stores.sql.postgres import pool as pg_pool
from looopy.stores.sql.postgres import url as pg_url
from looopy.stores.sql.postgres import wire as pg_wire
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.stores.sql.postgres.errors import Trouble
from looopy.stores.sql.postgres.notify import News
from looopy.stores.sql.postgres.pool import Pool
from looopy.testing.contracts.turns import CONTEXT, answer, begin, commit, ends, said, user

_BOUND_S = 30.0  # many times what any call here may take

_MOMENTS = ["before", "middle", "after"]
_ONE = Query("SELECT 1", {})


@pytest.fixture(params=["asyncpg", "psycopg"])
def name(request):
    """Which driver."""
    return request.param


@pytest.fixture
def url(cutter, name, monkeypatch):
    """The database through the proxy, where an administrator lets statements run for 0.5 s."""
    monkeypatch.setattr(pg_pool, "SPARE_S", 0.5)
    limits = "&connect_timeout=2&options=-c%20statement_timeout%3D500"
    return pg_url.parse(as_driver(cutter.url, name) + limits)


@pytest.fixture
async def driver(url):
    """An open driver behind the proxy."""
    opened = PostgresDriver(url, patience_s=1.0)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def stores(driver):
    """Its stores."""
    return bind(driver, "default")


async def _texts(stores):
    return [message.text for message in await stores.messages.list(CONTEXT)]


async def _texts_at_last(stores):
    """The same, once a connection could be made: on a busy machine that takes longer than here."""
    async with asyncio.timeout(_BOUND_S):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return await _texts(stores)


# --- one connection is silent, and the server is there ---


@pytest.mark.parametrize("where", _MOMENTS)
@pytest.mark.parametrize("alone", [True, False])
async def test_a_commit_without_a_reply_is_made_exactly_once(driver, stores, cutter, where, alone):
    """The connection is given up, and another one finds out what became of it."""
    driver._alone = alone
    claimed = await begin(stores)
    cutter.cuts = [f"hang {where}"]
    async with asyncio.timeout(_BOUND_S):
        done = await commit(stores, claimed, [said(answer("2"))])
        await commit(stores, claimed, [said(answer("3")), ends()], release=True)
    assert (done.first_position, cutter.cuts) == (2, [])
    cutter.thaw()
    assert await _texts_at_last(stores) == ["hello", "2", "3"]


@pytest.mark.parametrize("said_last", [b"SELECT", b"BEGIN"])
async def test_a_read_without_a_reply_is_repeated_on_another_connection(stores, cutter, said_last):
    """Also the first word of a transaction, on a connection that has served before."""
    await stores.messages.append(CONTEXT, [user("a")])
    cutter.hang_at = said_last
    async with asyncio.timeout(_BOUND_S):
        if said_last == b"BEGIN":
            await stores.messages.append(CONTEXT, [user("b")])
        else:
            await stores.messages.append("other", [user("b")])
        found = await _texts(stores)
    assert found == (["a", "b"] if said_last == b"BEGIN" else ["a"])


async def test_a_silent_connection_takes_the_idle_ones_with_it(url, cutter):
    """They would be found out one after the other, each by another wait."""
    pool = Pool(url)
    async with pool.session(), pool.session(), pool.session():
        pass
    assert pool.idle == 3
    cutter.hold()
    async with asyncio.timeout(_BOUND_S):
        with pytest.raises(Trouble) as lost:
            async with pool.session() as opened:
                await opened.ask_alone(_ONE)
        assert (lost.value.silent, lost.value.stale) == (True, True)
        assert (pool.idle, pool.in_use) == (0, 0)
        async with pool.session() as opened:
            assert await opened.ask_alone(_ONE) == [(1,)]
    await pool.close()


# --- everything is silent ---


@pytest.mark.parametrize("where", split(["middle"], ["before", "after"]))
async def test_a_commit_into_silence_ends_with_an_unknown_outcome(stores, cutter, where):
    """Nobody can say what became of it; it is not made twice when all is passed on at last."""
    claimed = await begin(stores)
    cutter.cuts = [f"freeze {where}"]
    async with asyncio.timeout(_BOUND_S):
        with pytest.raises(StoreUnavailable, match="not known") as refused:
            await commit(stores, claimed, [said(answer("secret"))])
    assert not refused.value.outcome_known
    assert "secret" not in str(refused.value)
    cutter.thaw()
    assert await _texts_at_last(stores) in (["hello"], ["hello", "secret"])


async def test_a_read_of_a_silent_server_ends(stores, cutter):
    """The error says that there was no answer, or that nobody can connect."""
    await stores.messages.append(CONTEXT, [user("a")])
    cutter.freeze()
    async with asyncio.timeout(_BOUND_S):
        with pytest.raises(StoreUnavailable):
            await _texts(stores)
    cutter.thaw()
    assert await _texts_at_last(stores) == ["a"]


async def test_a_driver_is_opened_and_closed_beside_a_silent_server(url, cutter):
    """With connections that are idle and one that listens, and with news that nobody takes."""
    driver = PostgresDriver(url, patience_s=1.0)
    await driver.open()
    stores = bind(driver, "default")
    await asyncio.gather(*(stores.messages.append(f"c{n}", [user("a")]) for n in range(4)))
    cutter.freeze()
    driver._news.tell(Ring("t", "c", inbox=False))
    async with asyncio.timeout(_BOUND_S):
        await driver.close()
        with pytest.raises(StoreUnavailable):
            await PostgresDriver(url).open()


async def test_a_connection_that_is_silent_when_it_begins_to_listen_is_replaced(url, cutter):
    """The next one hears."""
    pool, notifier, rung = Pool(url), Notifier(), asyncio.Event()
    cutter.hang_at = b"LISTEN"
    news = News(url, notifier, pool, answer_s=0.2)
    with notifier.listen("t", "c", lambda _: rung.set()):
        async with asyncio.timeout(_BOUND_S):
            await rung.wait()
        await news.close()
    assert cutter.hang_at is None
    await pool.close()


# --- limits ---


@pytest.mark.parametrize(
    ("setting", "limit_s"),
    [("60000", 65.0), ("250", 5.25), ("0", pg_pool._UNLIMITED_S), (None, pg_wire.ANSWER_S)],
)
async def test_an_answer_may_take_a_little_longer_than_a_statement(
    postgres, name, setting, limit_s
):
    """Whatever an administrator has set; without that, the limit that looopy sets."""
    options = f"&options=-c%20statement_timeout%3D{setting}" if setting else ""
    pool = Pool(pg_url.parse(as_driver(postgres, name) + options))
    async with pool.session() as opened:
        assert opened._wire.answer_s == limit_s
    await pool.close()


async def test_a_statement_that_the_server_ends_in_time_is_not_cut(driver):
    """Its connection serves on, and the error says that it was the statement."""
    pool = driver._pool

    def work():
        yield Query("SELECT pg_sleep(60)", {})

    with pytest.raises(StoreUnavailable, match="took too long for a statement"):
        await driver.run(work, write=True)
    assert (pool.idle, pool.in_use) == (1, 0)


async def test_an_answer_that_came_while_this_process_stood_still_counts(postgres, name):
    """A process that was stopped for longer than the limit does not blame the server."""
    pool = Pool(pg_url.parse(as_driver(postgres, name)))
    async with pool.session() as opened:
        wire = opened._wire
        slow = Query("SELECT 1 FROM pg_sleep(0.4)", {})
        asking = asyncio.create_task(wire.fetch(slow, write=False, within_s=0.8))
        while not _runs(postgres, slow.sql):  # noqa: ASYNC110 - it runs in another process
            await asyncio.sleep(0)
        ask(postgres, "SELECT pg_sleep(2.5)")  # nothing else happens here meanwhile
        assert await asking == [(1,)]
        assert not wire.was_silent()
    await pool.close()


def _runs(url, statement):
    text = "SELECT COUNT(*) FROM pg_stat_activity WHERE state = 'active' AND query = %s"
    return ask(url, text, statement) != [(0,)]


async def test_the_system_watches_over_idle_connections(postgres, name):
    """A peer that is gone without a word is noticed; the URL may say when."""
    async with Cutter(postgres, tcp=True) as cutter:
        for options, idle_s, most_ms in (
            ("", 30, 30_000),
            ("&keepalives_idle=7&tcp_user_timeout=900", 7, 900),
        ):
            pool = Pool(pg_url.parse(as_driver(cutter.url, name) + options))
            async with pool.session() as opened:
                connection = opened._wire._connection
                number = (
                    connection.fileno()
                    if name == "psycopg"
                    else connection._transport.get_extra_info("socket").fileno()
                )
                with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as found:
                    assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                    for constant, wanted in (
                        (socket.TCP_KEEPIDLE, idle_s),
                        (socket.TCP_KEEPINTVL, 10),
                        (socket.TCP_KEEPCNT, 3),
                        (socket.TCP_USER_TIMEOUT, most_ms),
                    ):
                        assert found.getsockopt(socket.IPPROTO_TCP, constant) == wanted
            await pool.close()


def test_a_limit_of_tcp_that_is_no_number_is_refused():
    """By the name of the option."""
    with pytest.raises(LooopyError, match="tcp_user_timeout"):
        pg_url.parse("postgresql://h/d?tcp_user_timeout=soon")
