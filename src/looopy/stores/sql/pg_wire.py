"""
Our statements in the words of a Postgres driver, and one connection of either driver.

A statement is translated once and kept: `:name` becomes `$1::bigint` for asyncpg and
`%(name)s::bigint` for psycopg. Every parameter is cast, so that the type of a value does not depend
on where a statement uses it first; `now_us()` becomes the server's clock, which goes on inside a
transaction, unlike `now()`.

A write also returns its `mark`: the number of its transaction and the life of the server that gave
it. Should the connection break while that is committed, the server can be asked what became of the
number, as long as it is in the same life: one that crashed gives numbers out again that had not
reached the disk.
"""

from __future__ import annotations

import contextlib
import re
import select
from functools import cache
from typing import Any, NamedTuple, Protocol

from looopy.stores.sql.driver import Query, Rows
from looopy.stores.sql.pg_errors import Trouble
from looopy.stores.sql.statements import BYTES, TEXTS

_NAME = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_PART = re.compile(r"_q\d+$")
_LEAVE_S = 2.0
_NOW_US = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"

# A server that crashed without its main process ending has reset its statistics. Others may do that
# too, and then a number only counts as given out by another life.
LIFE = (
    "concat_ws(' ', EXTRACT(EPOCH FROM pg_postmaster_start_time()),"
    " EXTRACT(EPOCH FROM pg_stat_get_bgwriter_stat_reset_time()))"
)
MARK = ":mark:"
"""Where a statement wants its mark, if it has a place of its own for it."""

_MARK = f"concat_ws(' ', pg_current_xact_id(), {LIFE})"


class Statement(NamedTuple):
    """A statement for a driver, and the names of its parameters in the order of their numbers."""

    text: str
    names: tuple[str, ...]


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
    text = sql.replace("now_us()", _NOW_US).replace("/* FOR UPDATE */", "FOR UPDATE")
    if MARK in text:
        return text.replace(MARK, _MARK)
    if write and is_marked(sql):
        text += f", {_MARK}" if " RETURNING " in text else f" RETURNING {_MARK}"
    return text


def is_marked(sql: str) -> bool:
    """Whether *sql*, in a write, returns its mark behind its own columns."""
    return sql.startswith(("INSERT", "UPDATE", "DELETE")) or MARK in sql


def _type(numbered_name: str) -> str:
    name = _PART.sub("", numbered_name)
    if name in TEXTS:
        return "text"
    return "bytea" if name in BYTES else "bigint"


class Backend(NamedTuple):
    """The session that a connection has at the server: process id, and begin in microseconds."""

    pid: int
    since: int


class Wire(Protocol):
    """
    One connection, outside a transaction unless a command began one.

    Attributes:
        backend: Its session, once that is known.
    """

    backend: Backend | None

    def is_gone(self) -> bool:
        """Whether it was seen to break while it was idle; one that does not say so may be too."""
        ...

    async def fetch(self, query: Query, *, write: bool) -> Rows:
        """
        Run one statement and return its rows, each with its mark behind the columns when it writes.

        Raises:
            Trouble: It failed.
        """
        ...

    async def command(self, text: str) -> str:
        """
        Run statements without parameters or rows; return the tag of the last, such as `COMMIT`.

        Raises:
            Trouble: They failed.
        """
        ...

    async def close(self, *, at_once: bool = False) -> None:
        """Close the connection, broken or not; *at_once*: without taking leave of the server."""
        ...


def wire_of(connection: Any) -> Wire:
    """The wire that a connection of either driver is."""
    made: Wire = _WIRES[type(connection).__module__.partition(".")[0]](connection)
    return made


class _Asyncpg:
    def __init__(self, connection: Any) -> None:
        self.backend: Backend | None = None
        self._connection = connection

    def is_gone(self) -> bool:
        return bool(self._connection.is_closed())

    async def fetch(self, query: Query, *, write: bool) -> Rows:
        text, names = numbered(query.sql, write=write)
        values = [query.params[name] for name in names]
        try:
            return list(map(tuple, await self._connection.fetch(text, *values)))
        except Exception as error:  # noqa: BLE001 - sorted out by the next function
            raise self._trouble(error) from None

    async def command(self, text: str) -> str:
        try:
            tag: str = await self._connection.execute(text)
        except Exception as error:  # noqa: BLE001 - sorted out by the next function
            raise self._trouble(error) from None
        return tag

    async def close(self, *, at_once: bool = False) -> None:
        if not at_once:
            with contextlib.suppress(Exception):  # whatever it was, it is let go next
                await self._connection.close(timeout=_LEAVE_S)
        self._connection.terminate()

    def _trouble(self, error: Exception) -> Exception:
        return trouble_of(error, lost=self._connection.is_closed())


class _Psycopg:
    def __init__(self, connection: Any) -> None:
        self.backend: Backend | None = None
        self._connection = connection
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(connection.fileno(), select.POLLIN)

    def is_gone(self) -> bool:
        # Nobody reads from it while it is idle: what a server then says is nothing but farewell.
        return self._poll is not None and bool(self._poll.poll(0))

    async def fetch(self, query: Query, *, write: bool) -> Rows:
        text = named(query.sql, write=write)
        try:
            cursor = await self._connection.execute(text, query.params)
            rows: Rows = await cursor.fetchall() if cursor.description else []
        except Exception as error:  # noqa: BLE001 - sorted out by the next function
            raise self._trouble(error) from None
        return rows

    async def command(self, text: str) -> str:
        try:
            cursor = await self._connection.execute(text)
        except Exception as error:  # noqa: BLE001 - sorted out by the next function
            raise self._trouble(error) from None
        return str(cursor.statusmessage)

    async def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - it never waits
        await self._connection.close()

    def _trouble(self, error: Exception) -> Exception:
        return trouble_of(error, lost=self._connection.closed)


_WIRES: dict[str, type[_Asyncpg | _Psycopg]] = {"asyncpg": _Asyncpg, "psycopg": _Psycopg}


def trouble_of(error: Exception, *, lost: bool) -> Exception:
    """
    What both drivers mean by *error*; itself when it comes from neither of them, nor from a socket.
    """
    module = type(error).__module__.partition(".")[0]
    if module in _WIRES or isinstance(error, OSError):  # a TimeoutError is an OSError
        state = getattr(error, "sqlstate", None)
        gone = isinstance(error, OSError) or (state or "").startswith(("08", "57P"))
        return Trouble(state, lost=lost or gone)
    return error
