"""A context and its forks, written by two processes at once, in each order that can be."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import psycopg
import pytest
from tests.postgres import as_driver

from looopy.stores.sql import statements as s
from looopy.stores.sql.engine import bind
from looopy.stores.sql.postgres import url as pg_url
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.stores.sql.postgres.errors import Trouble
from looopy.stores.sql.postgres.pool import Session
from looopy.testing.contracts.turns import CONTEXT, a_turn, begin, commit, ends, user

_WAITING = (
    "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND datname = current_database()"
)
_COUNT = " UNION ALL ".join(f"SELECT '{name}', COUNT(*) FROM {name}" for name in sorted(s.TABLES))
_here: ContextVar[_Stop | None] = ContextVar("_here", default=None)


_HINGES = {
    *(s.PEEK_LOCKED, s.MAKE_GHOST, s.MOVE_MESSAGES, s.DELETE_CONTEXT, s.FORK, s.REDACTED),
    *(s.LAYER_VERSIONS, s.LIST_TURNS),
}


class _Stop:
    """Where a write stands still: before a statement that is about relatives, by number."""

    def __init__(self, number):
        self._left = number
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def passes(self, sql):
        self._left -= sql in _HINGES or "looopy_lineage" in sql
        if self._left == 0 and not self.reached.is_set():
            self.reached.set()
            await self.go.wait()


@pytest.fixture
def troubles(monkeypatch):
    """What the server refused, by SQLSTATE; the statements of a write may stop."""
    found = []
    ask = Session.ask

    async def watched(self, query, *, write):
        if (stop := _here.get()) is not None and write:
            await stop.passes(query.sql)
        try:
            return await ask(self, query, write=write)
        except Trouble as trouble:
            found.append(trouble.sqlstate)
            raise

    monkeypatch.setattr(Session, "ask", watched)
    return found


@pytest.fixture
async def two(postgres):
    """The stores of two processes."""
    drivers = []
    for _ in range(2):
        place = pg_url.parse(f"{as_driver(postgres, 'asyncpg')}&pool_size=2")
        drivers.append(PostgresDriver(place))
        await drivers[-1].open()
    yield [bind(driver, "default") for driver in drivers]
    for driver in drivers:
        await driver.close()


@pytest.fixture
def server(postgres):
    """A connection of the test's own."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection


async def _stopped(stop, work):
    _here.set(stop)
    return await work


async def _meetings(server, prepare, one, other, check):
    """Have *one* stand still before each such statement, while *other* does what it can."""
    number = 0
    while True:
        number += 1
        server.execute("DELETE FROM looopy_contexts")
        await prepare()
        stop = _Stop(number)
        first = asyncio.create_task(_stopped(stop, one()))
        reached = asyncio.create_task(stop.reached.wait())
        await asyncio.wait({first, reached}, return_when="FIRST_COMPLETED")
        reached.cancel()
        if not stop.reached.is_set():
            await first
            break
        second = asyncio.create_task(other())
        while not second.done():
            if server.execute(_WAITING).fetchall() == [(1,)]:
                break
            await asyncio.sleep(0.002)
        stop.go.set()
        await asyncio.gather(first, second)
        await check(number)
    assert number > 2


def _rows(server):
    return {name: n for name, n in server.execute(_COUNT).fetchall() if n}


def _goes(stores, name, how):
    return stores.state.delete(name) if how == "delete" else stores.contexts.erase(name)


@pytest.mark.parametrize(
    ("order", "how"),
    [("parent first", "delete"), ("fork first", "delete"), ("fork first", "erase")],
)
async def test_a_parent_and_its_fork_that_go_at_once_leave_no_row(
    two, server, troubles, order, how
):
    """Neither has seen that the other goes: what they share would stay for nobody."""
    one, other = two
    names = [CONTEXT, "fork"] if order == "parent first" else ["fork", CONTEXT]

    async def prepare():
        await one.messages.append(CONTEXT, [user("a"), user("b")])
        await one.artifacts.save(CONTEXT, "x", b"1")
        await one.journal.fork(CONTEXT, "fork")

    async def check(number):
        assert (_rows(server), number) == ({}, number)

    await _meetings(
        server,
        prepare,
        lambda: _goes(one, names[0], how),
        lambda: _goes(other, names[1], how),
        check,
    )
    assert troubles == []


def _fork(stores):
    return stores.journal.fork("fork", "its-fork")


def _delete_artifact(stores):
    return stores.artifacts.delete("fork", "x")


def _save_artifact(stores):
    return stores.artifacts.save("fork", "x", b"2")


def _clear(stores):
    return stores.journal.clear("fork")


def _rewind(stores):
    return stores.journal.rewind("fork", 2)


_WRITES = {
    _fork: (["hello", "hi"] * 2, [b"1"]),
    _delete_artifact: (["hello", "hi"] * 2, []),
    _save_artifact: (["hello", "hi"] * 2, [b"1", b"2"]),
    _clear: ([], []),
    _rewind: (["hello", "hi"], [b"1"]),
}


async def _seen(stores, name):
    """What is left of the messages of a context, of its artifact, and of its turns."""
    messages = [message.text for message in await stores.messages.list(name)]
    found = await stores.artifacts.versions(name, "x") if await stores.artifacts.list(name) else []
    contents = [await stores.artifacts.load(name, "x", version=one.version) for one in found]
    return messages, contents, len(await stores.journal.turns(name))


@pytest.mark.parametrize(
    ("order", "goes", "write"),
    [
        *(("fork first", "parent", write) for write in _WRITES),
        *(("parent first", "parent", write) for write in (_fork, _delete_artifact)),
        *(("fork first", "its artifact", write) for write in (_fork, _delete_artifact)),
    ],
)
async def test_a_fork_keeps_its_past_whatever_it_does_while_its_parent_goes(
    two, server, troubles, order, write, goes
):
    """Its parent's rows move while it reads them, or makes a fork of its own on them."""
    one, other = two

    async def prepare():
        await a_turn(one)
        await a_turn(one)
        await one.artifacts.save(CONTEXT, "x", b"1")
        await one.journal.fork(CONTEXT, "fork")

    async def parent(stores):
        if goes == "parent":
            await stores.state.delete(CONTEXT)
        else:
            await stores.artifacts.delete(CONTEXT, "x")

    async def check(number):
        made = "its-fork" if write is _fork else "fork"
        assert (*await _seen(one, made), number) == (*_WRITES[write], 2, number)
        left = {CONTEXT, "fork", made} - ({CONTEXT} if goes == "parent" else set())
        for name in sorted(left):
            await one.state.delete(name)
        assert (_rows(server), number) == ({}, number)

    works = [lambda: parent(one), lambda: write(other)]
    await _meetings(server, prepare, *(works if order == "parent first" else works[::-1]), check)
    assert "40P01" not in troubles


@pytest.mark.parametrize("order", ["redaction first", "fork first"])
async def test_a_redaction_and_a_fork_that_goes_do_not_wait_in_a_circle(
    two, server, troubles, order
):
    """The one changes the shared past and then the fork, and the other does the reverse."""
    one, other = two

    async def prepare():
        for actor in ("owner", "guest"):
            epoch = (await one.state.load(CONTEXT)).epoch if actor == "guest" else 0
            await commit(one, await begin(one, epoch, actor_id=actor), [ends()], release=True)
        for name in ("fork", "other"):
            await one.journal.fork(CONTEXT, name)
        await one.state.delete(CONTEXT)

    async def check(number):
        turns = await one.journal.turns("other")
        assert ([turn.actor_id for turn in turns], number) == (["owner", None], number)
        await one.state.delete("other")
        assert (_rows(server), number) == ({}, number)

    works = [lambda: one.contexts.erase_person("guest"), lambda: other.state.delete("fork")]
    await _meetings(
        server, prepare, *(works if order == "redaction first" else works[::-1]), check
    )
    assert troubles == []
