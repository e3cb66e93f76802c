"""Writes of one statement whose connection is cut: made once or not at all, and told so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from tests.postgres import as_driver, ask

from looopy.errors import AgentBusy, Fenced, StoreConflict, StoreUnavailable
from looopy.stores.contexts.spending import Allowance, Amount, Place
from looopy.stores.shield import settle_write
from looopy.stores.sql import migrate
from looopy.stores.sql.driver import Query
from looopy.stores.sql.engine import bind
from looopy.stores.sql.postgres import driver as pg_driver
from looopy.stores.sql.postgres import outcome as pg_outcome
from looopy.stores.sql.postgres import pool as pg_pool
from looopy.stores.sql.postgres import url as pg_url
from looopy.stores.sql.postgres.driver import PATIENCE_S, PostgresDriver
from looopy.testing.contracts.turns import CONTEXT, WHEN, answer, begin, commit, ends, opening, said

_LATER = WHEN + timedelta(seconds=1)
_LOCKED = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def _driver(url, name, **options):
    return PostgresDriver(pg_url.parse(as_driver(url, name)), **options)


@pytest.fixture(params=["asyncpg", "psycopg"])
def name(request):
    """Which driver."""
    return request.param


@pytest.fixture
async def stores(cutter, name):
    """Stores that reach their database through the proxy."""
    opened = _driver(cutter.url, name)
    await opened.open()
    yield bind(opened, "default")
    await opened.close()


@pytest.fixture
async def others(postgres, name):
    """Another process, which is not cut."""
    opened = _driver(postgres, name)
    await opened.open()
    yield bind(opened, "default")
    await opened.close()


@pytest.fixture
def unaware(monkeypatch):
    """A server that does not see that its clients are gone, as before Postgres 14."""
    monkeypatch.setattr(pg_pool, "_SET_UP", pg_pool._SET_UP_BLIND)


async def _until(holds):
    """Wait until *holds* says so, letting everything else go on."""
    while not holds():  # noqa: ASYNC110 - what is waited for is in another process
        await asyncio.sleep(0)


def _at(moment, events):
    return [replace(event, timestamp=moment) for event in events]


async def _texts(stores):
    return [message.text for message in await stores.messages.list(CONTEXT)]


async def _dark(cutter, where, writing, meanwhile):
    """Cut *writing*, and let nobody look what became of it before *meanwhile* is over."""
    cut = asyncio.Event()

    def go_dark():
        cutter.refusing = True
        cutter.sever(but=asyncio.current_task())
        cut.set()

    cutter.on_cut, cutter.cuts = go_dark, [where]
    task = asyncio.create_task(writing)
    await cut.wait()
    if where == "after":  # it is applied only then
        await _until(lambda: not cutter.open)
    try:
        await meanwhile()
    finally:
        cutter.refusing = False
    return await task


# --- it is still on its way ---


async def test_a_write_that_waits_for_a_row_is_ended_before_it_is_made_again(
    unaware, cutter, stores, postgres
):
    """The server has it when the connection breaks, and would carry it out once it could."""
    claimed = await begin(stores)
    cutter.cuts = ["middle"]
    async with await psycopg.AsyncConnection.connect(postgres) as locker:
        await locker.execute("SELECT epoch FROM looopy_contexts FOR UPDATE")
        writing = asyncio.create_task(commit(stores, claimed, [said(answer("2"))]))
        await _until(lambda: not cutter.cuts)
        await _until(lambda: len(_waiting_for_locks(postgres)) == 1)
        (first,) = _waiting_for_locks(postgres)
        await _until(lambda: _waiting_for_locks(postgres) not in ([], [first]))
    done = await writing
    assert done.first_position == 2
    assert await _texts(stores) == ["hello", "2"]


def _waiting_for_locks(url):
    found = ask(url, "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return [pid for (pid,) in found]


async def test_a_write_that_comes_late_is_not_carried_out(cutter, stores):
    """It was on its way to the server when the same write was made again, and others after it."""
    claimed = await begin(stores)
    cutter.cuts = ["late"]
    done = await commit(stores, claimed, [said(answer("2"))])
    assert (done.first_position, cutter.cuts) == (2, [])
    await commit(stores, claimed, [said(answer("3"))])
    cutter.late.set()
    await _until(lambda: not cutter.delivering)
    assert await _texts(stores) == ["hello", "2", "3"]


# --- others have written since ---


@pytest.mark.parametrize("where", ["before", "after"])
async def test_an_end_that_was_cut_is_known_when_others_have_gone_on(cutter, stores, others, where):
    """The next turns are of another process by then, or a recovery has closed this one."""
    claimed = await begin(stores)

    async def meanwhile():
        if where == "before":
            await begin(others, claimed.epoch, displace="holder-1", recover=True)
            end = _at(_LATER, [ends()])
            await commit(others, replace(claimed, epoch=claimed.epoch + 1), end, release=True)
            return
        for n in (1, 2):
            taken = await begin(others, claimed.epoch + n - 1)
            await commit(others, taken, [said(answer("theirs")), ends()], release=True)

    writing = commit(stores, claimed, [said(answer("ours")), ends()], release=True)
    if where == "before":
        with pytest.raises(Fenced):
            await _dark(cutter, where, writing, meanwhile)
        assert await _texts(stores) == ["hello"]
        return
    done = await _dark(cutter, where, writing, meanwhile)
    assert (done.first_seq, done.first_position) == (3, 2)
    theirs = ["hello", "theirs"]
    assert await _texts(stores) == ["hello", "ours", *theirs, *theirs]


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("closed", [True, False])
async def test_a_claim_that_was_cut_is_known_when_others_were_first(
    cutter, stores, others, turns, closed
):
    """It never reached the server; how far the others have come makes no difference."""
    taken = await begin(stores)
    await commit(stores, taken, [said(answer("x")), ends()], release=True)
    epoch = taken.epoch

    async def meanwhile():
        for n in range(turns):
            theirs = _at(_LATER, opening("theirs"))
            taken = await begin(others, epoch + n, events=theirs)
            if closed or n < turns - 1:
                await commit(others, taken, [said(answer("x")), ends()], release=True)
        if not closed:
            await begin(others, taken.epoch, displace="holder-1", recover=True)

    with pytest.raises((StoreConflict, AgentBusy)):
        await _dark(cutter, "before", begin(stores, epoch), meanwhile)
    found = await stores.state.load(CONTEXT)
    assert (found.turn_count, found.epoch) == (1 + turns, epoch + turns + (not closed))


@pytest.mark.parametrize("epochs", [1, 2])
async def test_a_step_that_was_cut_and_then_fenced_is_of_unknown_outcome(
    cutter, stores, others, epochs
):
    """Its mark is gone with the epoch, and nothing else says whether it was made."""
    claimed = await begin(stores)

    async def meanwhile():
        for n in range(epochs):
            more = {"displace": "holder-1", "recover": True}
            await begin(others, claimed.epoch + n, **more)

    writing = commit(stores, claimed, [said(answer("secret"))])
    with pytest.raises(StoreUnavailable, match="not known") as refused:
        await _dark(cutter, "after", writing, meanwhile)
    assert not refused.value.outcome_known
    assert "secret" not in str(refused.value)


async def test_a_claim_that_was_cut_and_displaced_is_of_unknown_outcome(cutter, stores, others):
    """The turn it began is there, and may be another's that began at the same time."""
    taken = await begin(stores)
    await commit(stores, taken, [ends()], release=True)

    async def meanwhile():
        found = await others.state.load(CONTEXT)
        await begin(others, found.epoch, displace="holder-1", recover=True)

    with pytest.raises(StoreUnavailable, match="not known") as refused:
        await _dark(cutter, "after", begin(stores, taken.epoch), meanwhile)
    assert not refused.value.outcome_known


async def test_a_write_that_was_cut_in_a_context_that_is_gone_is_of_unknown_outcome(
    cutter, stores, others
):
    """Nothing is left that could tell."""
    claimed = await begin(stores)
    writing = commit(stores, claimed, [said(answer("x")), ends()], release=True)
    with pytest.raises(StoreUnavailable, match="not known"):
        await _dark(cutter, "after", writing, lambda: others.state.delete(CONTEXT))


# --- who can tell ---


async def test_a_server_that_cannot_know_is_not_believed(cutter, stores, monkeypatch):
    """A standby sees neither the sessions of its primary nor its last commits."""
    asked = pg_outcome._MAY_COME.replace("pg_is_in_recovery()", "TRUE")
    monkeypatch.setattr(pg_outcome, "_MAY_COME", asked)
    stores.state.backend._patience_s = 0.2
    claimed = await begin(stores)
    cutter.cuts = ["after"]
    with pytest.raises(StoreUnavailable, match="not known"):
        await commit(stores, claimed, [said(answer("x"))])


async def test_a_claim_over_connections_that_broke_while_idle_is_made(stores, postgres, cutter):
    """Some broke without a word, so that only the write finds out."""
    claims = [begin(stores, context_id=f"c{n}") for n in range(5)]
    await asyncio.gather(*claims)
    cutter.sever()
    again = [begin(stores, context_id=f"d{n}") for n in range(5)]
    assert [claimed.turn for claimed in await asyncio.gather(*again)] == [1] * 5
    assert ask(postgres, "SELECT COUNT(*) FROM looopy_turns") == [(10,)]


async def test_an_operation_that_is_ended_before_it_begins_is_over(stores):
    """As at the end of a loop: whoever waits for it is told, though nothing else stops him."""
    driver = stores.state.backend
    told = []
    reading = asyncio.create_task(
        settle_write(stores.messages.count(CONTEXT), lambda: told.append(1), outlasts=True)
    )
    await asyncio.sleep(0)
    (task,) = driver._running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert driver._running == set()


async def test_a_statement_alone_is_a_transaction_like_any_other(fresh_postgres, name):
    """An administrator has made transactions stricter by default."""
    await asyncio.to_thread(migrate.upgrade, fresh_postgres)
    ((database,),) = ask(fresh_postgres, "SELECT current_database()")
    setting = "default_transaction_isolation = 'serializable'"
    ask(fresh_postgres, f"ALTER DATABASE {database} SET {setting}")
    opened = _driver(fresh_postgres, name)
    await opened.open()
    stores = bind(opened, "default")
    claimed = await begin(stores)
    await commit(stores, claimed, [said(answer("x"))])
    assert await _texts(stores) == ["hello", "x"]

    def level():
        return (yield Query("SELECT current_setting('transaction_isolation')", {}, alone=True))

    assert await opened.run(level, write=False) == [("read committed",)]
    await opened.close()


async def test_time_in_a_queue_is_no_time_without_a_server(cutter, postgres, name, monkeypatch):
    """A write that waited long for the one before it has a second try when it is cut."""
    later_s = 0.0
    monkeypatch.setattr(pg_driver, "_now", lambda: asyncio.get_running_loop().time() + later_s)
    opened = _driver(cutter.url, name)
    await opened.open()
    spending = bind(opened, "default").spending
    limits = [Allowance("account", "day", 100, None, "owner_day")]

    def reserve(reservation):
        return spending.reserve(reservation, Amount(1), limits, place=Place("place", 1))

    await reserve("opens the account")
    with psycopg.connect(postgres) as holding:
        holding.execute("SELECT FROM looopy_spending FOR UPDATE")
        first, second = (asyncio.create_task(reserve(one)) for one in ("first", "second"))
        await _until(lambda: ask(postgres, _LOCKED))
        later_s = 10 * PATIENCE_S
    await first
    cutter.sever()
    await second
    assert [spent.reserved for spent in await spending.spent("account")] == [Amount(3)]
    await opened.close()
