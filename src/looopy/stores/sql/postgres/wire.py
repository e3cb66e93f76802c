"""
One connection of either Postgres driver, and our statements in that driver's form.

A statement is translated once and kept: `:name` becomes `$1::bigint` for asyncpg and
`%(name)s::bigint` for psycopg. Every parameter is cast, so that the type of a value does not depend
on where a statement uses it first; `now_us()` becomes the server's clock, which advances inside a
transaction, unlike `now()`.

A write also returns its `mark`: the number of its transaction and the life of the server that gave
it. If the connection breaks during the commit, the server can report the outcome of that number, as
long as it is in the same life: after a crash a server reuses numbers that had not reached the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import select
import socket
from collections.abc import Awaitable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from looopy.stores.sql.driver import Query, Rows
from looopy.stores.sql.postgres.errors import Trouble
from looopy.stores.sql.postgres.watch import Watch
from looopy.stores.sql.statements import BYTES, TEXTS

T = TypeVar("T")
_NAME = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_PART = re.compile(r"_q\d+$")
_TUPLES = 1000
_TAKEN = 16  # a row may be 16 MiB
_LEAVE_S = 2.0
SPARE_S = 5.0
"""How much longer than a statement its answer may take."""
ANSWER_S = 30.0 + SPARE_S
"""How long an answer may take where the server ends a statement after 30 s."""
_NOW_US = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
# A server that crashed without its main process ending has reset its statistics. Others may do that
# too, and then a number only counts as given out by another life.
LIFE = (
    "concat_ws(' ', EXTRACT(EPOCH FROM pg_postmaster_start_time()),"
    " EXTRACT(EPOCH FROM pg_stat_get_bgwriter_stat_reset_time()))"
)
MARK = ":mark:"
"""The place in a statement for its mark, if it has one of its own."""
_MARK = f"concat_ws(' ', pg_current_xact_id(), {LIFE})"


class Statement(NamedTuple):
    """A statement for a driver, and the names of its parameters in the order of their numbers."""

    text: str
    names: tuple[str, ...]


_LOCK = re.compile(r"/\* (FOR [A-Z ]+) \*/")


@cache
def numbered(sql: str, *, write: bool) -> Statement:
    """*sql* with `$1`, `$2`, ... as asyncpg and the server want it."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name = found[1]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}::{_type(name)}"

    return Statement(_NAME.sub(number, _dialect(sql, write)), tuple(names))


@cache
def named(sql: str, *, write: bool) -> str:
    """*sql* with `%(name)s`, as psycopg wants it."""
    text = _dialect(sql, write).replace("%", "%%")
    return _NAME.sub(lambda found: f"%({found[1]})s::{_type(found[1])}", text)


def _dialect(sql: str, write: bool) -> str:
    text = _LOCK.sub(r"\1", sql.replace("now_us()", _NOW_US))
    if MARK in text:
        return text.replace(MARK, _MARK)
    if write and is_marked(sql):
        text += f", {_MARK}" if " RETURNING " in text else f" RETURNING {_MARK}"
    return text


def is_marked(sql: str) -> bool:
    """True if *sql*, as a write, returns its mark after its own columns."""
    writes = sql.startswith(("INSERT", "UPDATE", "DELETE"))
    return (writes and not sql.endswith("/* MANY */")) or MARK in sql


def _type(numbered_name: str) -> str:
    name = _PART.sub("", numbered_name)
    if name in TEXTS:
        return "text"
    return "bytea" if name in BYTES else "bigint"


class Backend(NamedTuple):
    """The session that a connection has at the server: process id, and begin in microseconds."""

    pid: int
    since: int


class Wire:
    """
    One connection, outside a transaction unless a command began one.

    Every answer has a limit. After that the connection is cut, and the command fails as on any
    connection that is lost.

    Attributes:
        backend: Its session, once that is known.
        answer_s: How many seconds an answer may take, unless a call passes its own limit.
        retire_at: When it is old enough to be replaced, by the clock of the event loop.
        idle_since: When it was last given back to its pool, by the same clock.
    """

    def __init__(self, connection: Any) -> None:
        self.backend: Backend | None = None
        self.answer_s = ANSWER_S
        self.retire_at = self.idle_since = math.inf
        self._connection = connection
        self._watch = Watch(self._cut)

    def is_gone(self) -> bool:
        """True if it was seen to break while idle; one that shows no break may be broken too."""
        raise NotImplementedError

    def was_silent(self) -> bool:
        """True if it was cut because an answer did not arrive."""
        return self._watch.expired

    async def fetch(self, query: Query, *, write: bool, within_s: float | None = None) -> Rows:
        """
        Run one statement and return its rows, each with its mark after the columns when it writes.

        Raises:
            Trouble: It failed.
        """
        return await self.within(self._rows(query, write=write), within_s or self.answer_s)

    async def command(self, text: str, *, within_s: float | None = None) -> str:
        """
        Run statements without parameters or rows; return the tag of the last, such as `COMMIT`.

        Raises:
            Trouble: They failed.
        """
        running = self._connection.execute(text)
        return self._tag(await self.within(running, within_s or self.answer_s))

    async def within(self, asking: Awaitable[T], within_s: float) -> T:
        """
        Await something else that the driver asks the server on this connection.

        Raises:
            Trouble: It failed.
        """
        self._watch.begin(within_s)
        try:
            return await asking
        except Exception as error:  # noqa: BLE001 - sorted out here
            found = trouble_of(error, lost=self._is_closed())
            if self._watch.expired and isinstance(found, Trouble):
                found = Trouble(None, lost=True, silent=True)
            raise found from None
        finally:
            self._watch.end()

    async def close(self, *, at_once: bool = False) -> None:
        """Close the connection, broken or not; *at_once*: without taking leave of the server."""
        raise NotImplementedError

    async def _rows(self, query: Query, *, write: bool) -> Rows:
        raise NotImplementedError

    def _tag(self, executed: Any) -> str:
        raise NotImplementedError

    def _cut(self) -> None:
        raise NotImplementedError

    def _is_closed(self) -> bool:
        raise NotImplementedError


def wire_of(connection: Any) -> Wire:
    """The wire that a connection of either driver is."""
    made: Wire = _WIRES[type(connection).__module__.partition(".")[0]](connection)
    return made


async def _tuples(found: Sequence[Any]) -> Rows:
    """The rows of asyncpg as tuples, with turns of the event loop between them if they are many."""
    rows: Rows = []
    for start in range(0, len(found), _TUPLES):
        if start:
            await asyncio.sleep(0)
        rows += map(tuple, found[start : start + _TUPLES])
    return rows


async def _taken(cursor: Any) -> Rows:
    """The rows of psycopg, which converts them as they are taken, a few at a time."""
    rows: Rows = []
    while len(more := await cursor.fetchmany(_TAKEN)) == _TAKEN:
        rows += more
        await asyncio.sleep(0)
    rows += more
    return rows


class _Asyncpg(Wire):
    def is_gone(self) -> bool:
        return self._is_closed()

    def _is_closed(self) -> bool:
        return bool(self._connection.is_closed())

    async def _rows(self, query: Query, *, write: bool) -> Rows:
        text, names = numbered(query.sql, write=write)
        values = [query.params[name] for name in names]
        return await _tuples(await self._connection.fetch(text, *values))

    def _tag(self, executed: Any) -> str:
        return str(executed)

    async def close(self, *, at_once: bool = False) -> None:
        self._watch.close()
        if not at_once:
            with contextlib.suppress(Exception):  # whatever it was, the connection is closed next
                await self._connection.close(timeout=_LEAVE_S)
        self._connection.terminate()

    def _cut(self) -> None:
        self._connection.terminate()


class _Psycopg(Wire):
    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(connection.fileno(), select.POLLIN)

    def is_gone(self) -> bool:
        # No command reads from it while it is idle: anything that a server sends then is a goodbye.
        return self._poll is not None and bool(self._poll.poll(0))

    def _is_closed(self) -> bool:
        return bool(self._connection.closed)

    async def _rows(self, query: Query, *, write: bool) -> Rows:
        text = named(query.sql, write=write)
        cursor = await self._connection.execute(text, query.params)
        return await _taken(cursor) if cursor.description else []

    def _tag(self, executed: Any) -> str:
        return str(executed.statusmessage)

    async def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - it never waits
        self._watch.close()
        await self._connection.close()

    def _cut(self) -> None:
        # Not closed: the next connection would get the number of the file, while a waiter here is
        # still registered under it.
        with contextlib.suppress(Exception):  # it is closed
            number = self._connection.fileno()
            with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as same:
                same.shutdown(socket.SHUT_RDWR)


_WIRES: dict[str, type[_Asyncpg | _Psycopg]] = {"asyncpg": _Asyncpg, "psycopg": _Psycopg}


def trouble_of(error: Exception, *, lost: bool) -> Exception:
    """
    The `Trouble` that a driver means by *error*; *error* itself if no driver or socket raised it.
    """
    module = type(error).__module__.partition(".")[0]
    if module in _WIRES or isinstance(error, OSError):  # a TimeoutError is an OSError
        state = getattr(error, "sqlstate", None)
        gone = isinstance(error, OSError) or (state or "").startswith(("08", "57P"))
        return Trouble(state, lost=lost or gone)
    return error
