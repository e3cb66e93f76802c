"""Notifier on each backend: who is told of a commit, in this process and in others."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import sys
import weakref
from pathlib import Path

import psycopg
import pytest
from tests.postgres import as_driver, ask
from tests.shares import PSYCOPG

from looopy.stores import export_contexts, import_contexts, open_stores
from looopy.stores.notifier import Notifier
from looopy.stores.records import EntryKind
from looopy.stores.sql.driver import Ring
from looopy.stores.sql.migrate import bring_to_head
from looopy.stores.sql.postgres import notify as pg_notify
from looopy.stores.sql.postgres.notify import CHANNEL, News, name_of
from looopy.stores.sql.postgres.pool import Pool
from looopy.stores.sql.postgres.url import parse
from looopy.stores.sql.sqlite.driver import SQLiteDriver
from looopy.testing.contracts.turns import CONTEXT, answer, begin, commit, ends, said, user

_PATIENCE_S = 300
_DRIVERS = ["asyncpg", "psycopg"]
_LISTENERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN %'"
    " AND pid <> pg_backend_pid()"
)

# A process that appends to a context and is gone.
_WRITER = f"""
import asyncio, sys
from looopy.stores import export_contexts, import_contexts, open_stores
from looopy.testing.contracts.turns import user

async def main():
    async with open_stores(sys.argv[1]) as stores:
        await stores.messages.append({CONTEXT!r}, [user("a")])

asyncio.run(main())
"""


class Heard:
    """A listener that keeps what it heard."""

    def __init__(self) -> None:
        self.rings: list[bool] = []
        self._news = asyncio.Event()

    def __call__(self, inbox: bool) -> None:
        self.rings.append(inbox)
        self._news.set()

    async def again(self) -> None:
        """Wait until it was rung since the last time."""
        async with asyncio.timeout(_PATIENCE_S):
            await self._news.wait()
        self._news.clear()


@contextlib.asynccontextmanager
async def _listening(stores, context_id=CONTEXT):
    """A listener that hears of other processes from now on."""
    heard = Heard()
    with stores.journal.notifier.listen(stores.tenant, context_id, heard):
        if not _is_sqlite(stores):
            await heard.again()  # the connection stands
        heard.rings.clear()
        yield heard


def _is_sqlite(stores):
    return isinstance(stores.journal.backend, SQLiteDriver)


async def _write_elsewhere(url):
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _WRITER, url], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr


async def _write_beside(url):
    """As another process would, by stores of their own."""
    async with open_stores(url) as stores:
        await stores.messages.append(CONTEXT, [user("a")])


async def _listeners(raw, count):
    """Wait until so many listen: a server sees a moment later that a connection was closed."""
    while ask(raw, f"SELECT COUNT(*) {_LISTENERS}") != [(count,)]:  # noqa: ASYNC110 - the server knows
        await asyncio.sleep(0)


@pytest.fixture(params=["sqlite", "asyncpg", PSYCOPG])
def url(request: pytest.FixtureRequest):
    """The URL of an empty database at the head."""
    if request.param == "sqlite":
        path: Path = request.getfixturevalue("sqlite_file")
        return f"sqlite:///{path}"
    return as_driver(request.getfixturevalue("postgres"), request.param)


@pytest.fixture(params=_DRIVERS)
def postgres_url(request: pytest.FixtureRequest, postgres: str):
    """The same, on Postgres."""
    return as_driver(postgres, request.param)


# --- in the process that writes ---


@pytest.fixture(params=["memory", "sqlite", "asyncpg", PSYCOPG])
def any_stores(request: pytest.FixtureRequest):
    """Open stores of each backend."""
    return request.getfixturevalue(f"{request.param}_stores")


async def test_each_write_rings_before_it_returns(any_stores):
    """With whether those should look who run a turn or wait for one."""
    stores = any_stores
    rings: list[bool] = []

    def rung():
        found, rings[:] = list(rings), []
        return found

    with stores.journal.notifier.listen("default", CONTEXT, rings.append):
        await stores.state.load("nobody")  # Postgres: by now the connection may be there, or not
    with stores.journal.notifier.listen("default", CONTEXT, rings.append):
        rung()
        await stores.messages.append(CONTEXT, [user("a")])
        assert False in rung()
        epoch = (await stores.state.load(CONTEXT)).epoch
        claimed = await begin(stores, epoch)
        assert False in rung()
        await commit(stores, claimed, [said(answer("x"))])
        assert False in rung()
        actor = (await stores.state.load(CONTEXT)).owner_actor
        await stores.journal.post(CONTEXT, EntryKind.STEER, user("b"), actor_id=actor)
        assert True in rung()
        await stores.journal.withdraw(CONTEXT, actor_id=actor)
        assert True in rung()
        await stores.journal.ask_cancel(CONTEXT)
        assert True in rung()
        ticket = await stores.state.join_wait_queue(CONTEXT, "somebody", 10)
        assert False in rung()
        await stores.state.leave_wait_queue(CONTEXT, ticket)
        assert True in rung()
        await commit(stores, claimed, [ends()])
        assert True in rung()
        await stores.state.release(CONTEXT, claimed.epoch)
        assert True in rung()
        await stores.journal.clear(CONTEXT)
        assert True in rung()
        await stores.state.delete(CONTEXT)
        assert True in rung()


async def test_a_redaction_rings_for_the_forks_that_share_the_turns(any_stores):
    """Whoever follows a fork shows it without them at once, not after `poll_s`."""
    for actor in ("ann", "bob"):
        claimed = await begin(any_stores, actor_id=actor, text=actor)
        await commit(any_stores, claimed, [said(answer("x")), ends()])
        await any_stores.state.release(CONTEXT, claimed.epoch)
    await any_stores.journal.fork(CONTEXT, "fork")
    rings: list[bool] = []
    notifier = any_stores.journal.notifier
    notifier.noticed = None  # no news from outside
    with notifier.listen("default", "fork", rings.append):
        assert (await any_stores.contexts.erase_person("bob")).redacted_ids == (CONTEXT, "fork")
        assert rings


async def test_a_refused_write_notifies_no_listener(any_stores):
    """Nothing has changed, and the tenant's other contexts are none of its business either."""
    await begin(any_stores)
    rings: list[bool] = []
    notifier = any_stores.journal.notifier
    before = notifier.noticed
    notifier.noticed = None  # no news from outside
    with (
        notifier.listen("default", CONTEXT, rings.append),
        notifier.listen("default", "another", rings.append),
        notifier.listen("another", CONTEXT, rings.append),
    ):
        with pytest.raises(Exception, match="turn"):
            await any_stores.messages.append(CONTEXT, [user("a")])
        assert rings == []
        await any_stores.messages.append("a-third", [user("a")])
        assert rings == []
    notifier.noticed = before


async def test_a_write_rings_although_its_caller_was_cancelled(url):
    """It is carried out, so those who wait for it hear of it."""
    async with open_stores(url) as stores, _listening(stores) as heard:
        writing = asyncio.create_task(stores.messages.append(CONTEXT, [user("a")]))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await heard.again()
        assert await stores.messages.count(CONTEXT) == 1


# --- in other processes ---


async def test_a_listener_is_notified_of_a_write_of_another_process(url):
    """One that has opened the same database."""
    async with open_stores(url) as stores, _listening(stores) as heard:
        await _write_elsewhere(url)
        await heard.again()
        assert await stores.messages.count(CONTEXT) == 1


async def test_two_stores_in_one_process_hear_each_other_and_not_themselves(url):
    """Each ring once: by who wrote itself at the commit, by the other soon after."""
    async with (
        open_stores(url) as first,
        open_stores(url) as second,
        _listening(first) as one,
        _listening(second) as two,
    ):
        if _is_sqlite(first):  # each sees that the other has opened the file
            one.rings.clear()
        for writer in (first, second, first):
            for heard in (one, two):
                heard.rings.clear()
                heard._news.clear()
            await writer.messages.append(CONTEXT, [user("a")])
            await one.again()
            await two.again()
        assert len(one.rings) == 1
        assert len(two.rings) == 1
        assert await first.messages.count(CONTEXT) == 3


async def test_a_listener_is_not_notified_after_its_block(url):
    """While another one of the same context does."""
    gone = Heard()
    async with (
        open_stores(url) as writer,
        open_stores(url) as stores,
        _listening(stores) as heard,
    ):
        with stores.journal.notifier.listen("default", CONTEXT, gone):
            pass
        gone.rings.clear()
        await writer.messages.append(CONTEXT, [user("a")])
        await heard.again()
    assert gone.rings == []


async def test_a_writing_process_is_notified_of_other_writes(url):
    """Also of a write that comes right after some of this process."""
    async with open_stores(url) as stores, _listening(stores) as heard:
        for _ in range(2):
            for _ in range(5):
                await stores.messages.append("mine", [user("a")])
            await _write_beside(url)
            await heard.again()


async def test_a_listener_stays_while_the_stores_are_closed_and_opened_again(url):
    """What came meanwhile is news, and so is what comes then."""
    stores = open_stores(url)
    heard = Heard()
    with stores.journal.notifier.listen("default", CONTEXT, heard):
        for _ in range(2):
            async with stores:
                await heard.again()
                await _write_beside(url)
                await heard.again()


async def test_listening_keeps_nothing_alive_after_closing(url):
    """No task, and on Postgres no connection; the stores may be closed while somebody listens."""
    before = asyncio.all_tasks()
    async with open_stores(url) as stores, _listening(stores) as heard:
        await stores.messages.append(CONTEXT, [user("a")])
        await heard.again()
    assert asyncio.all_tasks() == before
    with stores.journal.notifier.listen("default", CONTEXT, heard):
        async with stores:
            await heard.again()
        assert asyncio.all_tasks() == before
    assert asyncio.all_tasks() == before


# --- SQLite ---


def test_listening_keeps_no_loop_from_ending(sqlite_file):
    """Neither the loop nor its tasks complain when nobody closes anything."""
    stores = open_stores(f"sqlite:///{sqlite_file}")

    async def listen():
        await stores.__aenter__()
        async with _listening(stores) as heard:
            await stores.messages.append(CONTEXT, [user("a")])
            await heard.again()

    asyncio.run(listen())


async def test_a_listener_keeps_no_driver_alive(sqlite_file):
    """Its threads refer to the notifier, and the notifier not to it."""
    driver = SQLiteDriver(sqlite_file, bring_to_head=bring_to_head)
    await driver.open()
    notifier, seen = driver.notifier, weakref.ref(driver)
    with notifier.listen("default", CONTEXT, Heard()):
        del driver
        assert seen() is None


async def test_the_first_listener_wakes_a_thread_that_rests(sqlite_file):
    """While nobody listens it waits for work alone, however long."""
    url = f"sqlite:///{sqlite_file}"
    async with open_stores(url) as other, open_stores(url) as stores:
        await stores.messages.append(CONTEXT, [user("a")])
        for _ in range(50):  # by then it rests: each lets other threads go on
            assert await stores.messages.count(CONTEXT) == 1
        async with _listening(stores) as heard:
            await other.messages.append(CONTEXT, [user("b")])
            await heard.again()


async def test_a_busy_writer_looks_between_its_commits(sqlite_file):
    """News are not kept waiting by one who writes without a pause."""
    url = f"sqlite:///{sqlite_file}"
    async with open_stores(url) as other, open_stores(url) as stores:

        async def keep_writing():
            while True:
                await stores.messages.append("busy", [user("a")])

        async with _listening(stores) as heard, asyncio.TaskGroup() as group:
            writers = [group.create_task(keep_writing()) for _ in range(3)]
            await other.messages.append(CONTEXT, [user("a")])
            await heard.again()
            for writer in writers:
                writer.cancel()


# --- Postgres ---


def _told(connection, count):
    """The names in the next *count* payloads that the server sends."""
    payloads = [n.payload for n in connection.notifies(timeout=_PATIENCE_S, stop_after=count)]
    return payloads, [word for payload in payloads for word in payload.split(" ")[1:]]


@pytest.fixture
def ear(postgres):
    """A connection that hears all that is told."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield connection


async def test_many_commits_are_sent_in_few_payloads(postgres_url, ear):
    """A thousand contexts come to three payloads the server takes, with no name in clear."""
    url = parse(postgres_url)
    pool = Pool(url)
    news = News(url, Notifier(), pool)
    for inbox in (False, True, False):  # once is enough
        for number in range(1000):
            news.tell(Ring("some-tenant", f"some-context-{number}", inbox and number == 500))
    await news.close()
    await pool.close()
    payloads, names = _told(ear, 3)
    assert max(len(payload) for payload in payloads) < 8000
    assert len(names) == len(set(names)) == 1000
    assert [name for name in names if name.endswith("+")] == [
        f"{name_of('some-tenant', 'some-context-500')}+"
    ]
    assert not any("some" in payload for payload in payloads)
    ask(postgres_url.replace("+asyncpg", "").replace("+psycopg", ""), f"NOTIFY {CHANNEL}, 'x end'")
    assert _told(ear, 1)[1] == ["end"]  # and that was all


async def test_a_short_listener_makes_no_connection(postgres_url, monkeypatch):
    """A turn that answers at once is over before anybody could have told it anything."""
    monkeypatch.setattr(pg_notify, "_EAR_LEAD_S", 0)
    notifier, url = Notifier(), parse(postgres_url)
    pool = Pool(url)
    news = News(url, notifier, pool)
    before = asyncio.all_tasks()
    for _ in range(2):  # the next one may last
        with notifier.listen("t", "c", Heard()):
            pass
        await _turns_of_the_loop()
        assert asyncio.all_tasks() == before
    with notifier.listen("t", "c", heard := Heard()):
        await heard.again()
        with notifier.listen("t", "another", Heard()):
            await _turns_of_the_loop()
            assert len(asyncio.all_tasks() - before) == 1
    await news.close()
    await pool.close()


async def test_closing_while_listening_makes_no_connection(postgres_url):
    """However short his listening was."""
    notifier, url = Notifier(), parse(postgres_url)
    pool = Pool(url)
    news = News(url, notifier, pool)
    with notifier.listen("t", "c", Heard()):
        await news.close()
        assert news._soon is not None
        assert news._soon.cancelled()
    await pool.close()


async def _turns_of_the_loop():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_commits_in_a_row_are_one_notification(postgres_url, ear, monkeypatch):
    """A claim and the answer to it are one piece of news, and take one connection once."""
    monkeypatch.setattr(pg_notify, "_LEAD_S", 60.0)
    url = parse(postgres_url)
    pool = Pool(url)
    news = News(url, Notifier(), pool)
    for name in ("first", "second"):
        news.tell(Ring("t", name, inbox=False))
        for _ in range(5):
            await asyncio.sleep(0)
    assert pool.in_use == 0
    await news.close()
    await pool.close()
    assert _told(ear, 1)[1] == [name_of("t", "first"), name_of("t", "second")]


async def test_closing_sends_pending_notifications(postgres_url, ear):
    """Also what is rung for while others are being told."""
    async with open_stores(postgres_url) as stores:
        names = [f"context-{number}" for number in range(20)]
        for name in names:
            await stores.messages.append(name, [user("a")])
    heard: set[str] = set()
    while len(heard) < len(names):
        found = _told(ear, 1)[1]
        assert found, "nothing more is told"
        heard.update(found)
    assert heard == {name_of("default", name) for name in names}


@pytest.mark.parametrize("driver", _DRIVERS)
async def test_a_failed_notification_is_sent_with_the_next(fresh_postgres, driver):
    """A server that is away harms nobody; closing is another chance."""
    admin = fresh_postgres.rpartition("/")[0] + "/postgres?" + fresh_postgres.rpartition("?")[2]
    database = parse(fresh_postgres).place.rpartition("/")[2]
    url = parse(as_driver(fresh_postgres, driver))
    pool = Pool(url)
    news = News(url, Notifier(), pool)
    before = asyncio.all_tasks()
    with psycopg.connect(fresh_postgres, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        for name in ("first", "second"):
            ask(admin, f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
            news.tell(Ring("t", name, inbox=False))
            await asyncio.wait(asyncio.all_tasks() - before)
        ask(admin, f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
        await news.close()
        await pool.close()
        assert _told(connection, 1)[1] == [name_of("t", "first"), name_of("t", "second")]


async def test_a_cut_connection_is_reopened_and_missed_writes_are_notified(postgres_url):
    """Whoever listens is told to look, and hears of what comes then."""
    raw = postgres_url.replace("+asyncpg", "").replace("+psycopg", "")
    async with open_stores(postgres_url) as stores, _listening(stores) as heard:
        for _ in range(2):
            ended = ask(raw, f"SELECT pg_terminate_backend(pid, 5000) {_LISTENERS}")
            assert ended == [(True,)]
            await heard.again()
            heard.rings.clear()
            await _write_beside(postgres_url)
            await heard.again()
    await _listeners(raw, 0)


async def test_only_the_contexts_that_were_written_are_rung_for(postgres_url):
    """Names are told in the order of the commits, so silence before the other is silence."""
    async with (
        open_stores(postgres_url) as writer,
        open_stores(postgres_url) as stores,
        _listening(stores, "quiet") as quiet,
    ):
        heard = Heard()
        with stores.journal.notifier.listen("default", CONTEXT, heard):
            quiet.rings.clear()
            await writer.messages.append("not-listened-to", [user("a")])
            claimed = await begin(writer)
            await commit(writer, claimed, [ends()])
            while True not in heard.rings:
                await heard.again()
        assert quiet.rings == []


async def test_strange_words_on_the_channel_are_passed_over(postgres_url):
    """Anybody who may connect may say anything there."""
    raw = postgres_url.replace("+asyncpg", "").replace("+psycopg", "")
    async with (
        open_stores(postgres_url) as writer,
        open_stores(postgres_url) as stores,
        _listening(stores) as heard,
    ):
        for words in ("", " ", "x", "x +", "{}", "é " * 500):
            ask(raw, "SELECT pg_notify(%s, %s)", CHANNEL, words)
        await writer.messages.append(CONTEXT, [user("a")])
        await heard.again()
        assert len(heard.rings) == 1


async def test_writes_are_notified_through_a_transaction_pooler(postgres_url):
    """Listening belongs to a connection, which is another's after each transaction."""
    raw = postgres_url.replace("+asyncpg", "").replace("+psycopg", "")
    async with (
        open_stores(f"{postgres_url}&pooler=transaction") as pooled,
        open_stores(postgres_url) as direct,
    ):
        assert pooled.journal.notifier.poll_s < direct.journal.notifier.poll_s
        with pooled.journal.notifier.listen("default", CONTEXT, Heard()):
            async with _listening(direct) as heard:
                await _listeners(raw, 1)
                await pooled.messages.append(CONTEXT, [user("a")])
                await heard.again()


async def test_an_import_rings_for_each_of_its_contexts(url):
    """Here and in other processes, though all of them are one write."""
    names = ["a", "b", "c"]
    async with open_stores("memory:") as source:
        for name in names:
            await source.messages.append(name, [user("x")])
        archive = b"".join([piece async for piece in export_contexts(source, names)])
    async with open_stores(url) as writer, open_stores(url) as other:
        with contextlib.ExitStack() as here:
            rung = {name: Heard() for name in names}
            for name in names:
                listening = writer.journal.notifier.listen(writer.tenant, name, rung[name])
                here.enter_context(listening)
            async with contextlib.AsyncExitStack() as there:
                heard = [await there.enter_async_context(_listening(other, n)) for n in names[:1]]
                for name in names[1:]:
                    heard.append(Heard())
                    listening = other.journal.notifier.listen(other.tenant, name, heard[-1])
                    there.enter_context(listening)
                await import_contexts(writer, io.BytesIO(archive))
                assert all(False in rung[name].rings for name in names)
                for one in heard:
                    await one.again()
