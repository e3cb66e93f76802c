"""A fork that is made while another process changes its parent, in each order that can be."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar

import psycopg
import pytest
from tests.postgres import as_driver
from tests.shares import split

from looopy.errors import ContextNotFound
from looopy.stores.records import ArtifactDeletion
from looopy.stores.requests import Append
from looopy.stores.sql import statements as s
from looopy.stores.sql.engine import bind
from looopy.stores.sql.postgres import url as pg_url
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.stores.sql.postgres.errors import Trouble
from looopy.stores.sql.postgres.pool import Session
from looopy.testing.contracts.turns import CONTEXT, a_turn, begin, commit, ends

_WAITING = (
    "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND datname = current_database()"
)
_COUNT = " UNION ALL ".join(f"SELECT '{name}', COUNT(*) FROM {name}" for name in sorted(s.TABLES))
_here: ContextVar[_Stop | None] = ContextVar("_here", default=None)


_HINGES = {
    *(s.PEEK_HELD, s.PEEK_LOCKED, s.FORK, s.COPY_TURNS, s.COPY_MESSAGES, s.COPY_EVENTS),
    *(s.COPY_ARTIFACTS, s.COPY_PARTS, s.FORGET_MESSAGES, s.DELETE_ARTIFACT, s.DELETE_PARTS),
    *(s.DELETE_CONTEXT, s.UNLINK_FORKS, s.REDACTED, s.GROW_ARTIFACT, s.ADD_PART),
}


class _Stop:
    """Where a write stands still: before one of these statements, by number."""

    def __init__(self, number):
        self._left = number
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def passes(self, sql):
        self._left -= sql in _HINGES
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


_LARGE = b"large" * 20_000  # has a part of its own


async def _delete(stores):
    await stores.state.delete(CONTEXT)


async def _erase(stores):
    await stores.contexts.erase(CONTEXT)


async def _clear(stores):
    await stores.journal.clear(CONTEXT)


async def _redact(stores):
    await stores.contexts.erase_person("guest")


async def _delete_artifact(stores):
    await stores.artifacts.delete(CONTEXT, "x")


async def _delete_in_a_turn(stores):
    claimed = await begin(stores, actor_id="owner")
    await commit(stores, claimed, [], artifact=ArtifactDeletion(artifact_id="x"))


async def _append(stores):
    await stores.artifacts.append(CONTEXT, "growing", _LARGE)


async def _append_in_a_turn(stores):
    claimed = await begin(stores, actor_id="owner")

    async def made(change):
        done = await commit(stores, claimed, [], artifact=change)
        return done.artifact

    await stores.artifacts.change(CONTEXT, Append(artifact_id="growing", chunk=_LARGE), made)


_BEFORE = (["hello", "hello"], ["owner", "guest"], [_LARGE], len(_LARGE))
_GONE = None
_AFTER = {
    _delete: _GONE,
    _erase: _GONE,
    _clear: ([], ["owner", "guest"], [], 0),
    _redact: (["hello", "[erased]"], ["owner", None], [_LARGE], len(_LARGE)),
    _delete_artifact: (["hello", "hello"], ["owner", "guest"], [], len(_LARGE)),
    _delete_in_a_turn: (["hello", "hello"], ["owner", "guest"], [], len(_LARGE)),
    _append: (["hello", "hello"], ["owner", "guest"], [_LARGE], 2 * len(_LARGE)),
    _append_in_a_turn: (["hello", "hello"], ["owner", "guest"], [_LARGE], 2 * len(_LARGE)),
}


async def _seen(stores, name):
    """The messages of a context, who said them, its artifact, and the size of the growing one."""
    if await stores.state.load(name) is None:
        return _GONE
    messages = [message.text for message in await stores.messages.list(name)]
    actors = [turn.actor_id for turn in await stores.journal.turns(name)]
    found = {one.artifact_id: one for one in await stores.artifacts.list(name)}
    contents = [await stores.artifacts.load(name, "x")] if "x" in found else []
    growing = await stores.artifacts.load(name, "growing", 1) if "growing" in found else b""
    return messages, actors, contents, len(growing)


@pytest.mark.parametrize("order", split(["fork first"], ["parent first"]))
@pytest.mark.parametrize("change", _AFTER)
async def test_a_fork_is_its_parent_before_or_after_a_change(two, server, troubles, order, change):
    """Nothing of it is half there, and no row is left once all contexts are deleted."""
    one, other = two

    async def prepare():
        for actor in ("owner", "guest"):
            await commit(one, await begin(one, actor_id=actor), [ends()], release=True)
        await one.artifacts.save(CONTEXT, "x", _LARGE)
        await one.artifacts.open(CONTEXT, "growing")
        await one.artifacts.append(CONTEXT, "growing", _LARGE)

    async def fork(stores):
        with contextlib.suppress(ContextNotFound):
            await stores.journal.fork(CONTEXT, "fork")

    async def check(number):
        assert await _seen(one, "fork") in (_BEFORE, _AFTER[change]), number
        for name in (CONTEXT, "fork"):
            await one.contexts.erase(name, force=True)
        rows = {name: n for name, n in server.execute(_COUNT).fetchall() if n}
        assert rows.keys() <= {"looopy_unindexed"}, number

    works = [lambda: fork(one), lambda: change(other)]
    await _meetings(server, prepare, *(works if order == "fork first" else works[::-1]), check)
    assert "40P01" not in troubles


async def test_turns_of_the_parent_go_on_while_it_is_forked(two, troubles):
    """The fork stands still between two copies, and has no part of the turn."""
    one, other = two
    await a_turn(one)
    stop = _Stop(3)
    forking = asyncio.create_task(_stopped(stop, one.journal.fork(CONTEXT, "fork")))
    await stop.reached.wait()
    await a_turn(other)
    stop.go.set()
    await forking
    assert len(await one.messages.list(CONTEXT)) == 4
    assert len(await one.messages.list("fork")) == 2
    assert troubles == []
