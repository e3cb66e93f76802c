"""
The SQLite driver: one thread that writes and one that reads, each with a connection of its own.

SQLite has one writer and syncs the disk for each commit, so waiting commits are made together: the
thread takes all of them, runs each as one function inside a savepoint, and commits once. A failing
operation rolls back only itself. Answers are returned after the commit, so no caller sees a result
that is not durable.

An operation costs the event loop one hop to the thread and one back, whatever its number of
statements. Cancelling its caller neither interrupts a statement nor leaves a transaction open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from looopy._failpoints import reach
from looopy.errors import LooopyError, SchemaOutOfDate, StorageFull, StoreUnavailable
from looopy.stores.blobs.base import Blobs
from looopy.stores.notifier import Key, Notifier
from looopy.stores.shield import answer
from looopy.stores.sql.driver import (
    Query,
    Ring,
    Steps,
    elsewhere,
    may_have_written,
    refuse_strangers,
)
from looopy.stores.sql.sqlite import backups as copies
from looopy.stores.sql.sqlite import connection as sqlite
from looopy.stores.sql.sqlite import room
from looopy.stores.sql.sqlite.connection import Connection
from looopy.stores.sql.sqlite.room import Execute
from looopy.stores.sql.sqlite.schema import begin_write, ensure_schema
from looopy.stores.sql.sqlite.statements import IN_SQLITE
from looopy.stores.sql.statements import ERASING, NOTHING_MORE

T = TypeVar("T")
_LARGEST_BATCH = 64
_LOOK_S = 0.05
_EMPTY_S = 0.25  # between two tries to empty the log
_OTHERS_S = 0.01  # for other processes to write between two pieces of the file


class _Order(Enum):
    """Orders to a thread beside its jobs."""

    LOOK = auto()
    STOP = auto()


class SQLiteDriver:
    """
    A `Driver` on one SQLite file, for one event loop at a time.

    Args:
        path: The file; created when it is not there and *bring_to_head* is given.
        bring_to_head: Changes the schema of an older file while this opens, and blocks; `None`:
            opening may make or change nothing.
        patience_s: How long other processes may keep the file locked before an operation fails.
    """

    def __init__(
        self,
        path: Path,
        *,
        bring_to_head: Callable[[Path], object] | None = None,
        patience_s: float = sqlite.PATIENCE_S,
    ) -> None:
        self.notifier = Notifier()
        self.blobs: Blobs | None = None
        self._path = path
        self._bring_to_head = bring_to_head
        self._patience_s = patience_s
        self._writer: _Worker | None = None
        self._reader: _Worker | None = None
        self._pid = 0
        self._forgotten: weakref.finalize[..., SQLiteDriver] | None = None

    async def open(self) -> None:
        """
        Bring the schema up to date and start both threads; does nothing when open.

        Raises:
            SchemaOutOfDate: The schema is newer than this version, or older and not to be changed.
            StoreUnavailable: The file cannot be used.
        """
        if self._writer is not None and self._pid == os.getpid():
            if self._writer.loop is asyncio.get_running_loop():
                return
            if not self._writer.loop.is_closed():
                raise elsewhere(f"the stores of {self._path}")
            _stop((self._reader, self._writer), self._pid)
        # Not `self`: a driver that the threads refer to is never forgotten.
        path, patience_s, bring_to_head = self._path, self._patience_s, self._bring_to_head

        def connect_writer() -> Connection:
            ensure_schema(path, bring_to_head, patience_s)
            return sqlite.connect(path, create=False, patience_s=patience_s)

        def connect_reader() -> Connection:
            return sqlite.connect(path, create=False, query_only=True, patience_s=patience_s)

        writer = _Worker("looopy-writer", path, connect_writer, _write, patience_s, self.notifier)
        reader = _Worker("looopy-reader", path, connect_reader, _read, patience_s)
        try:
            await writer.start()  # first: it makes the file and its schema
            await reader.start()
        except BaseException:
            reader.stop()
            writer.stop()
            raise
        self._writer, self._reader, self._pid = writer, reader, os.getpid()
        # A forgotten close leaves no thread once the driver is gone.
        self._forgotten = weakref.finalize(self, _stop, (reader, writer), self._pid)
        self.notifier.noticed = writer.notice
        self.notifier.notify_all()  # for what came while this was closed
        writer.look()

    async def run(
        self,
        work: Callable[[], Steps[T]],
        *,
        write: bool,
        ring: Ring | None = None,
        removes: bool = False,
    ) -> T:
        """Run one operation on the thread that fits it; see `Driver.run`."""
        worker = self._writer if write else self._reader
        if worker is None:
            raise StoreUnavailable(f"the stores of {self._path} are closed: open them first")
        refuse_strangers(self._path, self._pid, worker.loop)
        return await worker.ask(work, ring, removes=removes)

    async def backups(self, *, remove: bool) -> Sequence[Path]:
        """The copies beside the file; see `Driver.backups`."""
        found = await asyncio.to_thread(copies.backups_of, self._path)
        if remove:
            await asyncio.to_thread(copies.remove, found)
        return found

    async def scrub(self) -> None:
        """Wait until neither the file nor its log holds deleted data; see `Driver.scrub`."""
        await self.run(_scrub, write=True, removes=True)
        seen, deadline = None, 0.0
        while self._writer is not None and (left := self._writer.left) is not None:
            if left != seen:
                seen, deadline = left, time.monotonic() + self._patience_s
            elif time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"all was erased, but another process uses {self._path} all the time, and so"
                    " the file or its log still holds a part of it: end that process and erase"
                    " again"
                )
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Carry out what was accepted, then close the file and join both threads."""
        writer, reader = self._writer, self._reader
        self._writer = self._reader = None
        self.notifier.noticed = None
        if writer is None or reader is None or self._pid != os.getpid():
            return
        if self._forgotten is not None:
            self._forgotten.detach()
        if writer.loop is not asyncio.get_running_loop():  # another event loop cannot await it
            _stop((reader, writer), self._pid)
            return
        try:
            await reader.stopped()
        finally:
            await writer.stopped()  # last: closing the last connection tidies the log away


def _scrub() -> Steps[None]:
    yield Query(NOTHING_MORE, {})


class _Job:
    """One operation, and what became of it."""

    __slots__ = ("erases", "error", "future", "removes", "result", "ring", "work")

    def __init__(
        self,
        work: Callable[[], Steps[Any]],
        future: asyncio.Future[Any],
        ring: Ring | None,
        *,
        removes: bool,
    ) -> None:
        self.work = work
        self.future = future
        self.ring = ring
        self.removes = removes  # true if it may use the space that is kept for a full disk
        self.result: Any = None
        self.error: BaseException | None = None
        self.erases = False  # true if it deleted data that must leave the log too


class _Worker:
    """
    A thread that owns one connection and carries out the jobs in its queue, in order.

    With *notifier*, it notifies of the contexts that a job names, and of all if another process has
    committed. While there is a listener, it checks for such commits between its jobs, and whenever
    it was idle for a while.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        connect: Callable[[], Connection],
        carry_out: Callable[[Connection, Sequence[_Job], Path, float], None],
        patience_s: float,
        notifier: Notifier | None = None,
    ) -> None:
        self._notifier = notifier
        self._seen = 0
        self._to_empty = False  # true if the log may still hold deleted data
        self._page: int | None = None  # pages from here on may still hold some in their gaps
        self._to_tidy = False  # true if free pages, or rows that were set aside, come first
        self._pieces = 0  # of the work on these
        self._hurries = False  # true if a caller waits until that is done
        self._next_look = 0.0
        self._soon: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        self._path = path
        self._connect = connect
        self._carry_out = carry_out
        self._patience_s = patience_s
        self._queue: SimpleQueue[_Job | _Order] = SimpleQueue()
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._closed: asyncio.Future[None] = self.loop.create_future()
        # A daemon: a program that forgets to close must still be able to end.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    async def start(self) -> None:
        """Start the thread and wait for its connection."""
        self._thread.start()
        try:
            await asyncio.shield(self._opened)
        except Exception:
            self._thread.join()  # it has nothing left to do
            raise

    def ask(
        self, work: Callable[[], Steps[T]], ring: Ring | None, *, removes: bool = False
    ) -> asyncio.Future[T]:
        """Have *work* carried out. Cancelled, it is carried out all the same."""
        future: asyncio.Future[T] = self.loop.create_future()
        self._queue.put(_Job(work, future, ring, removes=removes))
        return future

    def stop(self) -> None:
        """Let the thread end once it has done what was asked before."""
        self._queue.put(_Order.STOP)

    @property
    def left(self) -> int | None:
        """
        A number that changes as long as the thread removes deleted data; `None` if none is left.
        """
        return self._pieces if self._to_empty or self._page is not None else None

    def notice(self, _key: Key, here: bool) -> None:
        """
        Begin to check for commits of other processes at a listener; the thread stops by itself.

        Not at once: a new listener has just looked, and most turns commit before long.
        """
        if here and self._soon is None:
            self._soon = self.loop.call_later(_LOOK_S, self._look_if_heard)

    def _look_if_heard(self) -> None:
        self._soon = None
        if self._notifier is not None and self._notifier.has_listeners:
            self.look()

    def look(self) -> None:
        """Check at once for commits of other processes, if there is a listener."""
        self._queue.put(_Order.LOOK)

    async def stopped(self) -> None:
        """Stop, and wait until the connection is closed and the thread gone."""
        self.stop()
        await asyncio.shield(self._closed)
        self._thread.join()  # it has nothing left to do

    def _serve(self) -> None:
        try:
            connection = self._connect()
            self._seen = sqlite.data_version(connection)
            if self._notifier is not None:  # it writes
                self._to_tidy = room.is_untidy(connection)
                self._page = 0 if self._to_tidy else None
        except Exception as error:  # noqa: BLE001 - handed to the one who opens
            self._tell(self._opened, error)
            self._tell(self._closed)
            return
        self._tell(self._opened)
        try:
            going_on, rest_s = True, None
            while going_on:
                jobs, going_on = self._take(rest_s)
                if jobs:
                    self._carry_out(connection, jobs, self._path, self._patience_s)
                if connection.log_bytes > connection.reserve.serves:
                    connection.reserve.keep(connection.log_bytes)
                erased = any(job.erases for job in jobs)
                if erased:
                    self._to_tidy, self._page = True, 0
                if self._page is not None:
                    self._hurries |= any(job.work is _scrub for job in jobs)
                if erased or self._to_empty:
                    self._to_empty = not connection.empty_log(wait=erased or not going_on)
                if jobs:
                    self._call(_hand_out, jobs, self._notifier)
                cleaned = False
                if self._page is not None and (self._hurries or not jobs):
                    cleaned = self._clean(connection)
                    while cleaned and not going_on:
                        cleaned = self._clean(connection)
                jobs = []  # while waiting, keep nothing alive
                rest_s = self._compare(connection)
                if self._to_empty or self._page is not None:
                    soon_s = _OTHERS_S if cleaned else _EMPTY_S
                    rest_s = soon_s if rest_s is None else min(rest_s, soon_s)
        finally:
            connection.save_log()
            connection.close()
            self._tell(self._closed)

    def _clean(self, connection: Connection) -> bool:
        """Remove a piece of what deletions have left in the file; false if that is not possible."""
        if (page := self._page) is None:
            return False
        before = self._pieces
        with contextlib.suppress(sqlite3.Error, OSError, SchemaOutOfDate):
            if connection.check_files() is not None:
                return False
            if self._to_tidy:
                self._to_tidy, self._to_empty = self._tidy(connection), True
                self._pieces += 1
            elif connection.empty_log(wait=False):
                from looopy.stores.sql.sqlite.gaps import clear_some  # opening does not pay for it

                self._to_empty = False
                self._page = clear_some(connection, self._path, page)
                self._pieces += self._page != page
        if self._page is None:
            self._hurries = False
            if not connection.reserve.serves:
                connection.reserve.keep(connection.log_bytes)
        return self._pieces != before

    def _tidy(self, connection: Connection) -> bool:
        try:
            return room.tidy_some(connection, 0.0)
        except sqlite3.Error as error:
            if not isinstance(sqlite.translate(error, self._path), StorageFull):
                raise
        with room.made(connection):
            return room.tidy(connection, 0.0)

    def _take(self, rest_s: float | None) -> tuple[list[_Job], bool]:
        """
        All jobs that wait, none at an order to stop or to look; and whether to continue.

        Args:
            rest_s: How long to wait for the first one; `None`: until there is one.
        """
        queue = self._queue
        jobs: list[_Job] = []
        try:
            job = queue.get(timeout=rest_s)
        except Empty:
            return jobs, True
        while isinstance(job, _Job):
            jobs.append(job)
            if len(jobs) == _LARGEST_BATCH or queue.empty():
                return jobs, True
            job = queue.get_nowait()  # the queue has no other reader
        if job is _Order.LOOK:
            self._next_look = 0.0
        return jobs, job is not _Order.STOP

    def _compare(self, connection: sqlite3.Connection) -> float | None:
        """
        Notify all listeners if another process has committed; checks now and then.

        Returns:
            How long to wait for a job before looking again; `None`: until there is one.
        """
        notifier = self._notifier
        if notifier is None or not notifier.has_listeners:
            return None
        rest_s = self._next_look - time.monotonic()
        if rest_s > 0:
            return rest_s
        # Should it fail, the next look finds the same difference.
        with contextlib.suppress(sqlite3.Error):
            found = sqlite.data_version(connection)
            if found != self._seen:
                self._seen = found
                self._call(notifier.notify_all)
        self._next_look = time.monotonic() + _LOOK_S
        return _LOOK_S

    def _tell(self, future: asyncio.Future[None], error: BaseException | None = None) -> None:
        self._call(answer, future, None, error)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # The loop is closed: no caller waits. The commits stay committed.
            return


def _hand_out(jobs: Sequence[_Job], notifier: Notifier | None) -> None:
    for job in jobs:
        answer(job.future, job.result, job.error)
    for job in jobs:
        if notifier is not None and job.ring is not None and may_have_written(job.error):
            for context_id in (job.ring.context_id, *job.ring.others):
                notifier.notify(job.ring.tenant, context_id, inbox=job.ring.inbox)


def _stop(workers: Sequence[_Worker | None], pid: int) -> None:
    if pid == os.getpid():
        for worker in workers:
            if worker is not None:
                worker.stop()


# --- on the thread ---


def _drive(job: _Job, execute: Execute) -> Any:
    """Run the generator of a job to its end, statement by statement."""
    steps = job.work()
    own = IN_SQLITE.get
    try:
        query = next(steps)
        while True:
            sql = own(query.sql, query.sql)
            if query.sql in ERASING:
                job.erases = True
            query = steps.send(execute(sql, query.params).fetchall())
    except StopIteration as stop:
        return stop.value
    finally:
        steps.close()


def _read(connection: Connection, jobs: Sequence[_Job], path: Path, patience_s: float) -> None:
    """Run operations that only read, all of them on one snapshot."""
    try:
        connection.execute("BEGIN")
        for job in jobs:
            _read_one(connection, job, path, patience_s)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(connection)
        for job in jobs:
            job.error = job.error or sqlite.translate(error, path)
    # The content of a file that is gone belongs to no history.
    if (gone := connection.check_files()) is not None:
        for job in jobs:
            job.error = gone


def _read_one(connection: Connection, job: _Job, path: Path, patience_s: float) -> None:
    try:
        job.result = sqlite.retry(lambda: _drive(job, connection.execute), patience_s)
    except sqlite3.Error as error:
        job.error = sqlite.translate(error, path)
    except Exception as error:  # noqa: BLE001 - handed to the one who asked
        job.error = error


def _write(connection: Connection, jobs: Sequence[_Job], path: Path, patience_s: float) -> None:
    """Run writing operations: several in one transaction, else, or after trouble, one each."""
    if len(jobs) > 1 and _write_together(connection, jobs, path, patience_s):
        return
    for job in jobs:
        _write_alone(connection, job, path, patience_s)


def _write_together(
    connection: Connection, jobs: Sequence[_Job], path: Path, patience_s: float
) -> bool:
    """Commit all *jobs* at once; false when nothing was written and each is to be tried alone."""
    try:
        begin_write(connection, patience_s)
        for job in jobs:
            connection.execute("SAVEPOINT job")
            try:
                job.result = _drive(job, connection.execute)
            except sqlite3.Error:
                raise
            except Exception as error:  # noqa: BLE001 - handed to the one who asked
                job.error = error
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
    except (sqlite3.Error, SchemaOutOfDate):
        # One of them may be to blame, and SQLite may have rolled all of them back already.
        _roll_back(connection)
        return _undone(jobs)
    failed = _commit(connection, path, patience_s)
    if isinstance(failed, StorageFull):  # there may be space for one of them
        return _undone(jobs)
    for job in jobs:
        job.error = job.error or failed
    return True


def _undone(jobs: Sequence[_Job]) -> bool:
    for job in jobs:
        job.result = job.error = None
    return False


def _write_alone(connection: Connection, job: _Job, path: Path, patience_s: float) -> None:
    job.error = _try(connection, job, path, patience_s, connection.execute)
    if job.removes and isinstance(job.error, StorageFull):
        with room.made(connection):
            job.error = _try(connection, job, path, patience_s, room.sparing(connection))
            if job.error is None:
                room.tidy(connection, patience_s)


def _try(
    connection: Connection, job: _Job, path: Path, patience_s: float, execute: Execute
) -> BaseException | None:
    """Carry out and commit *job*; or take all of it back and report the error."""
    try:
        begin_write(connection, patience_s)
        job.result = _drive(job, execute)
    except Exception as error:  # noqa: BLE001 - handed to the one who asked
        _roll_back(connection)
        ours = sqlite.translate(error, path) if isinstance(error, sqlite3.Error) else error
        return connection.check_files() or ours
    return _commit(connection, path, patience_s)


def _commit(connection: Connection, path: Path, patience_s: float) -> LooopyError | None:
    """Commit; or take all of it back and report the error."""
    reach("B2")
    if (gone := connection.check_files()) is not None:
        _roll_back(connection)
        connection.save_log()
        return gone
    try:
        sqlite.retry(lambda: connection.execute("COMMIT"), patience_s)
    except sqlite3.Error as error:
        _roll_back(connection)
        # A failed sync may or may not have reached the disk: a crash now could bring the commit
        # back.
        unsure = error.sqlite_errorcode == sqlite3.SQLITE_IOERR_FSYNC
        return sqlite.translate(error, path, outcome_known=not unsure)
    # Once more: only what was there after the commit has it.
    if (gone := connection.check_files(outcome_known=False)) is not None:
        connection.save_log()
    return gone


def _roll_back(connection: Connection) -> None:
    """End the transaction, unless SQLite has done so itself, as it does when the disk is full."""
    if connection.in_transaction:
        # Were it still open after an error, the next BEGIN would fail.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
