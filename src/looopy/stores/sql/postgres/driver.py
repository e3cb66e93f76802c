"""
The Postgres driver: an operation is one transaction on one connection of a pool, never abandoned.

Each operation runs in a task of its own, so cancelling its caller neither interrupts a statement
nor leaves a transaction open. Writes run at READ COMMITTED and begin by locking the row of their
context; reads of more than one statement see one snapshot.

A claim, or a commit of a turn, is one statement if possible, and then a transaction of its own: one
round trip. Other writes run between BEGIN and COMMIT.

A connection may break at any moment; one that falls silent is cut after a limit (`watch.py`).
Before the one statement, or COMMIT, was sent, nothing is written, so the operation runs again on
another connection. After that the outcome is unknown here: the driver asks the server on a fresh
connection (`outcome.py`). The error has an unknown outcome only if the server does not
answer in time, or cannot know.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from looopy._failpoints import reach
from looopy.errors import LooopyError, StoreUnavailable
from looopy.stores.blobs.base import Blobs
from looopy.stores.notifier import Notifier
from looopy.stores.sql.driver import (
    Query,
    Ring,
    Rows,
    Steps,
    elsewhere,
    may_have_written,
    refuse_strangers,
)
from looopy.stores.sql.postgres import rls as pg_rls
from looopy.stores.sql.postgres.errors import Trouble, translate
from looopy.stores.sql.postgres.notify import News
from looopy.stores.sql.postgres.one_statement import NOT_CLOSED, answer_of, fold
from looopy.stores.sql.postgres.outcome import fate_of_statement, fate_of_transaction
from looopy.stores.sql.postgres.pool import TIMEOUTS, Pool, Session
from looopy.stores.sql.postgres.url import PostgresURL
from looopy.stores.sql.revision import FIND_BEFORE, out_of_date
from looopy.stores.sql.statements import HEAD, TABLES, VERSION_TABLE, at_head

T = TypeVar("T")
PATIENCE_S = 5.0
_POLL_POOLED_S = 0.25  # where no news can be received
_LONGEST_PAUSE_S = 0.2
_COLLISIONS = 20
_COLLISION_PAUSE_S = 0.02
_random = random.SystemRandom()
_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# Through a proxy no setting may outlive its transaction.
_LOCALLY = "".join(f"; SET LOCAL {name} = '{value}'" for name, value in TIMEOUTS.items())
_DURABLY = "; SET LOCAL synchronous_commit = on"
_NO_TABLE = "42P01"  # undefined_table
_REFUSED = "42"  # the class of that: the statement does not fit the tables, or may not read them


class _Line(asyncio.Lock):
    """
    A queue of writes.

    Attributes:
        away: True if the server was not there for the last one that had its turn.
    """

    away = False


class PostgresDriver:
    """
    A `Driver` on one Postgres database, for one event loop at a time.

    Args:
        url: Where the database is.
        bring_to_head: Makes or changes the schema while this opens, and blocks; `None`: opening may
            change nothing.
        patience_s: How long to try again while the server is away, and to find out what became of a
            commit.
    """

    def __init__(
        self,
        url: PostgresURL,
        *,
        bring_to_head: Callable[[PostgresURL], object] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.notifier = Notifier(_POLL_POOLED_S) if url.pooled else Notifier()
        self.blobs: Blobs | None = None
        self._url = url
        self._bring_to_head = bring_to_head
        self._patience_s = patience_s
        self._pool: Pool | None = None
        self._news: News | None = None
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._lines: weakref.WeakValueDictionary[tuple[Any, Any], _Line] = (
            weakref.WeakValueDictionary()
        )
        local = _LOCALLY if url.pooled else ""
        durably = _DURABLY if url.pooled else ""
        # Fails with the SQLSTATE `NOT_CLOSED` if the schema is another by now.
        fence = f"; SELECT 1 / COUNT(*) FROM {VERSION_TABLE} WHERE {at_head()}"  # noqa: S608 - constants
        self._begin_write = _BEGIN_WRITE + local + durably + fence
        self._begin_read = _BEGIN_READ + local
        self._secured = False  # true if each transaction has to name its tenant
        self._alone = not url.pooled  # true if one statement may be a transaction

    async def open(self) -> None:
        """
        Connect and look at the schema; does nothing when open.

        Raises:
            SchemaOutOfDate: The schema is newer than this version, or older and not to be changed.
            ConfigurationError: The URL requires row-level security, and it is off.
            StoreUnavailable: The server cannot be reached, or refuses us.
        """
        here = asyncio.get_running_loop()
        if self._pool is not None and self._pid == os.getpid():
            if self._loop is here:
                return
            if self._loop is not None and not self._loop.is_closed():
                raise elsewhere(f"the stores of {self._url.place}")
            self._running.clear()  # they ended with their event loop
        pool = Pool(self._url)
        try:
            found, hiding = await look(pool, self._url)
            if await self._was_migrated(found):
                _, hiding = await look(pool, self._url)
            await self._check_security(pool, hiding)
        except BaseException:
            await pool.close()
            raise
        self._pool, self._pid, self._loop = pool, os.getpid(), here
        self._news = News(self._url, self.notifier, pool)

    async def _was_migrated(self, found: str | None) -> bool:
        """True if a schema at *found* had to be made or changed first."""
        if found == HEAD:
            return False
        if self._bring_to_head is None:
            raise out_of_date(found)
        await asyncio.to_thread(self._bring_to_head, self._url)
        return True

    async def _check_security(self, pool: Pool, hiding: set[str]) -> None:
        if self._url.row_level_security and not hiding >= TABLES:
            ((above,),) = await ask_once(pool, pg_rls.ABOVE, self._url)
            raise pg_rls.unsafe(self._url.place, above=above)
        self._secured = bool(hiding)
        self._alone = not (self._secured or self._url.pooled)

    async def run(
        self,
        work: Callable[[], Steps[T]],
        *,
        write: bool,
        ring: Ring | None = None,
        removes: bool = False,  # noqa: ARG002 - the room of a server is its owner's
    ) -> T:
        """Run one operation; see `Driver.run`."""
        pool = self._pool
        if pool is None:
            raise StoreUnavailable(f"the stores of {self._url.place} are closed: open them first")
        refuse_strangers(self._url.place, self._pid, self._loop)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._answer(answer, pool, work, write=write, ring=ring))
        self._running.add(task)
        task.add_done_callback(functools.partial(self._over, answer))
        return await answer

    def _over(self, answer: asyncio.Future[Any], task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not answer.done():  # it was cancelled before it began
            answer.set_exception(asyncio.CancelledError())

    async def _answer(
        self,
        answer: asyncio.Future[T],
        pool: Pool,
        work: Callable[[], Steps[T]],
        *,
        write: bool,
        ring: Ring | None,
    ) -> None:
        """Carry it out and report its outcome, unless its caller no longer waits."""
        # Not when the task is done: that would take another round of the event loop.
        try:
            found = await self._carry_out(pool, work, write=write, ring=ring)
        except BaseException as error:
            if not answer.done():
                answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            if not answer.done():
                answer.set_result(found)

    async def close(self) -> None:
        """Carry out what was accepted, then close every connection."""
        pool, self._pool = self._pool, None
        if pool is None or self._pid != os.getpid():
            return
        if self._loop is not asyncio.get_running_loop():  # it cannot wait for these connections
            return
        try:
            if self._running:
                await asyncio.wait(self._running)
            if self._news is not None:
                await self._news.close()
        finally:
            await pool.close()

    async def backups(self, *, remove: bool) -> Sequence[Path]:  # noqa: ARG002 - there are none
        """None: a server's backups belong to its owner."""
        return ()

    async def scrub(self) -> None:
        """Nothing: deleted rows are the server's to vacuum, and its log is its own."""

    # --- one operation ---

    async def _carry_out(
        self, pool: Pool, work: Callable[[], Steps[T]], *, write: bool, ring: Ring | None
    ) -> T:
        """Run it in its turn, and ring."""
        deadline = _now() + self._patience_s
        if not write:
            return await self._try(pool, work, deadline, write=False)
        line = self._line(work, ring)
        waits = line.locked()
        try:
            async with line:
                away, line.away = waits and line.away, False
                try:
                    answer = await self._try(pool, work, deadline, write=True, away=away)
                except StoreUnavailable:
                    line.away = True
                    raise
        except LooopyError as error:
            if may_have_written(error):
                self._ring(ring)
            raise
        self._ring(ring)
        return answer

    def _ring(self, ring: Ring | None) -> None:
        if ring is not None:
            if self._news is not None:
                self._news.tell(ring)
            for context_id in (ring.context_id, *ring.others):
                self.notifier.notify(ring.tenant, context_id, inbox=ring.inbox)

    def _line(self, work: Callable[[], Steps[Any]], ring: Ring | None) -> _Line:
        """
        The queue for the writes of one context, in order of arrival.

        The lock of its row would also let only one pass at a time. But it keeps no order, and each
        waiting write would keep a connection from other contexts.
        """
        if ring is not None:  # it names them too, and nothing has to be run to know
            key: tuple[Any, Any] = (ring.tenant, ring.context_id)
        else:
            params = _first(work)
            key = (params.get("tenant"), params.get("context"))
        return self._lines.setdefault(key, _Line())

    def _begin(self, text: str, params: Callable[[], Mapping[str, Any]]) -> str:
        """A BEGIN that also names the tenant of the transaction, if the database requires it."""
        return text + pg_rls.as_tenant(params().get("tenant")) if self._secured else text

    async def _try(
        self,
        pool: Pool,
        work: Callable[[], Steps[T]],
        deadline: float,
        *,
        write: bool,
        away: bool = False,
    ) -> T:
        """
        Try until it is done, refused, or patience is at its end.

        Args:
            away: True if the server is known to have been away until now.
        """
        collisions = 0
        waited = False
        while True:
            said = self._secured
            try:
                if not write:
                    return await self._read(pool, work)
                committed, answer = await self._write(pool, work, deadline)
                if committed:
                    return answer
            except Trouble as trouble:
                if trouble.sqlstate == pg_rls.UNSAID and not said:
                    # Row-level security was turned on while this was open; nothing was written.
                    self._secured, self._alone = True, False
                    continue
                if trouble.sqlstate == NOT_CLOSED:  # the fence at the beginning of a transaction
                    found, _ = await look(pool, self._url)
                    if found != HEAD:
                        raise out_of_date(found) from None
                    continue
                collisions += trouble.collided
                again = trouble.passing or (trouble.collided and collisions < _COLLISIONS)
                answers = trouble.silent or trouble.undone or trouble.collided
                if (answers or (trouble.passing and not away)) and not waited:
                    # The deadline is for an unreachable server. This server did answer: the time
                    # may have passed in a queue, or only a connection or a row was lost. Allow
                    # one more period.
                    waited = True
                    deadline = max(deadline, _now() + self._patience_s)
                if not again or _now() >= deadline:
                    raise translate(trouble, self._url.place) from None
                if trouble.stale:  # the next one may be fresh
                    continue
                await _pause(_COLLISION_PAUSE_S if trouble.collided else _LONGEST_PAUSE_S)

    async def _read(self, pool: Pool, work: Callable[[], Steps[T]]) -> T:
        async with pool.session() as opened:
            steps = work()
            with contextlib.closing(steps):
                try:
                    query = next(steps)
                except StopIteration as stop:
                    answer: T = stop.value
                    return answer
                if query.alone and not self._secured:
                    return _last(steps, await opened.ask_alone(query))
                await opened.begin(self._begin(self._begin_read, lambda: query.params))
                answer = await _drive(opened, steps, query, write=False)
            await opened.end("COMMIT")
            return answer

    async def _write(
        self, pool: Pool, work: Callable[[], Steps[T]], deadline: float
    ) -> tuple[bool, T]:
        """
        Run a write once; whether it was committed, and its answer.

        Raises:
            Trouble: Nothing was written.
            StoreUnavailable: It may have been, and the server does not know.
        """
        if self._alone:
            written = await self._write_alone(pool, work, deadline)
            if written is not None:
                return True, written[0]
        return await self._write_in_transaction(pool, work, deadline)

    async def _write_alone(
        self, pool: Pool, work: Callable[[], Steps[T]], deadline: float
    ) -> tuple[T] | None:
        """Run a write as one statement and no more: its answer, or `None` when it takes more."""
        write = fold(work, _new_mark())
        if write is None:
            return None
        async with pool.session() as opened:
            backend = opened.backend
            if backend is None:
                self._alone = False
                return None
            reach("B2")  # as near to it as one comes
            try:
                rows = await opened.write_alone(write.query)
            except Trouble as trouble:
                if trouble.sqlstate == NOT_CLOSED:
                    return None
                if not trouble.sent:
                    raise
                lost = trouble
            else:
                return (answer_of(work, rows),) if rows else None
        until = self._later(deadline)
        found = await fate_of_statement(pool, self._url.place, write, backend, until)
        if found is None:
            raise _undone(lost)
        return (answer_of(work, found),)

    async def _write_in_transaction(
        self, pool: Pool, work: Callable[[], Steps[T]], deadline: float
    ) -> tuple[bool, T]:
        begin = self._begin(self._begin_write, lambda: _first(work))
        async with pool.session() as opened:
            await opened.begin(begin)
            try:
                folded = await self._write_folded(opened, work, begin)
                if folded is not None:
                    (answer,) = folded
                else:
                    steps = work()
                    with contextlib.closing(steps):
                        answer = await _drive(opened, steps, next(steps), write=True)
                reach("B2")
            except BaseException:
                with contextlib.suppress(Trouble):  # broken: the server rolls back by itself
                    await opened.end("ROLLBACK")
                raise
            try:
                tag = await opened.end("COMMIT")
            except Trouble as trouble:
                if not trouble.lost:
                    raise  # refused, and so rolled back
                lost = trouble
            else:
                return tag == "COMMIT", answer
            mark = opened.mark
        if mark is None:  # there was nothing to commit
            return True, answer
        until = self._later(deadline)
        if not await fate_of_transaction(pool, self._url.place, mark, until):
            raise _undone(lost)
        return True, answer

    async def _write_folded(
        self, opened: Session, work: Callable[[], Steps[T]], begin: str
    ) -> tuple[T] | None:
        """Run a write as one statement: its answer, or `None` when it has to be run by steps."""
        write = None if self._alone else fold(work)  # else it was tried already
        if write is not None:
            try:
                rows = await opened.ask(write.query, write=True)
            except Trouble as trouble:
                if trouble.sqlstate != NOT_CLOSED:
                    raise
                await opened.end("ROLLBACK")
                await opened.begin(begin)
                rows = []
            if rows:
                return (answer_of(work, rows),)
        return None

    def _later(self, deadline: float) -> float:
        """Until when to find out what became of a write: longer than it was tried."""
        return max(deadline, _now() + self._patience_s)


def _first(work: Callable[[], Steps[Any]]) -> Mapping[str, Any]:
    """The parameters of the first statement of *work*: they name its tenant and its context."""
    with contextlib.closing(work()) as steps:
        return next(steps).params


def _undone(lost: Trouble) -> Trouble:
    """*lost*, of a write that did not happen, as the server has answered since."""
    lost.undone = lost.stale = True  # a server that has just answered needs no pause
    return lost


def _new_mark() -> int:
    return int.from_bytes(os.urandom(8), "big") >> 1


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _pause(longest_s: float) -> None:
    await asyncio.sleep(_random.uniform(0.0, longest_s))


async def _drive(
    opened: Session, steps: Generator[Query, Rows, T], query: Query, *, write: bool
) -> T:
    """Run a generator from its first statement to its end."""
    try:
        while True:
            query = steps.send(await opened.ask(query, write=write))
    except StopIteration as stop:
        answer: T = stop.value
        return answer


def _last(steps: Generator[Query, Rows, T], rows: Rows) -> T:
    """Send the rows of the only statement."""
    try:
        steps.send(rows)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    raise RuntimeError("an operation of one statement has a second one")


async def look(pool: Pool, url: PostgresURL) -> tuple[str | None, set[str]]:
    """The revision of the schema, and our tables that keep tenants apart; or `StoreUnavailable`."""
    try:
        rows = await ask_once(pool, pg_rls.LOOK, url)
    except StoreUnavailable as error:
        if error.facts.get("sqlstate") != _NO_TABLE:
            raise
        return await _find_before(pool, url), set()
    return rows[0][0], {name for _, name in rows if name is not None}


async def _find_before(pool: Pool, url: PostgresURL) -> str | None:
    """The revision of a database without our table of versions."""
    try:
        rows = await ask_once(pool, Query(FIND_BEFORE, {}, alone=True), url)
    except StoreUnavailable as error:
        if not str(error.facts.get("sqlstate")).startswith(_REFUSED):
            raise
        return None
    return str(rows[0][0]) if rows else None


async def ask_once(pool: Pool, query: Query, url: PostgresURL) -> Rows:
    """The rows of one statement that reads, beside all operations; or `StoreUnavailable`."""
    try:
        async with pool.session() as opened:
            return await opened.ask_alone(query)
    except Trouble as trouble:
        raise translate(trouble, url.place) from None
