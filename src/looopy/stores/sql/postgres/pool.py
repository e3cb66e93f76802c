"""
Connections to a Postgres server: made, set up, kept, and closed when they break.

The pool is looopy's own and small, because each commit uses it. Taking a connection and giving it
back is two moves of a list; in an engine's pool that costs as much as the statement. The connection
itself is the driver's, see `wire.py`. The pool lends a connection without a test query: the first
command finds out at no extra cost if it is broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import re
import socket
from collections import deque
from collections.abc import Awaitable, Mapping
from importlib import import_module
from typing import Any, Self, TypeVar

from looopy.errors import ConfigurationError
from looopy.stores.sql.driver import Query, Rows
from looopy.stores.sql.postgres.errors import TOO_MANY, Trouble, sqlstate_in
from looopy.stores.sql.postgres.url import PostgresURL
from looopy.stores.sql.postgres.wire import (
    SPARE_S,
    Backend,
    Wire,
    is_marked,
    trouble_of,
    wire_of,
)

T = TypeVar("T")
# A stopped process, or a client that is gone, must not keep its locks for long.
TIMEOUTS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "30s",
}
# Every statement reads along a primary key, whatever its values are. By default the server plans
# worse: it reads and sorts a whole table if one context is most of it, which takes twice as long.
# It reads the whole table if the table was empty when it was analysed, for as long as the plan is
# kept. It plans each statement five times before it keeps a plan. And it would compile a plan that
# has to sort even with `enable_sort = off`, because that raises the plan's estimated cost.
_PLANS = {
    "enable_sort": "off",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
# A pooler refuses a setting of this name when a client connects, or drops it. So a session that has
# it is the client's own, and may be set up; see decision 0020.
_DIRECT = "looopy.direct"
_APPLICATION = "looopy"
_POOLER = (
    "is behind a pooler, such as PgBouncer: add the option pooler=transaction to the URL, or"
    " pooler=session if the pooler keeps a connection for each client. An option of your own has to"
    " be in its ignore_startup_parameters"
)
_POOLERS_SAY = ("unsupported startup parameter", "support command-line options")
_POOL_PATIENCE_S = 30.0
_UNLIMITED_S = 300.0  # for an answer, if an administrator has removed the limit on statements
_LEAST_S = 1.0  # for one answer if connecting has used up the time
_FULL_PAUSE_S = 0.5  # before the next request to a server without free connections
_random = random.SystemRandom()
_SOON_S = 0.02  # to make a connection takes about as long


def _set_up(settings: Mapping[str, str]) -> Query:
    """
    The statement that prepares a connection. It also reads the session's identity, and the limit on
    statements.

    An administrator's own settings stay, with two exceptions: a commit must be durable, and
    transactions of one statement must behave like transactions of several. A server that is set to
    read-only stays so, and refuses writes.

    If a pooler may give the session to other clients, the statement sets nothing, and its first
    column is NULL.
    """
    ours = f"(:ours = 1 OR current_setting('{_DIRECT}', true) = 'on')"
    values = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    sql = (
        f"SELECT CASE WHEN {ours}"  # noqa: S608 - made of constants
        " THEN set_config('default_transaction_isolation', 'read committed', false) END,"
        " (SELECT concat_ws(' ', max(s.setting) FILTER (WHERE s.name = 'statement_timeout'"
        f" AND s.source <> 'default'), '|', count(CASE WHEN {ours} AND (s.source = 'default'"
        " OR s.name = 'synchronous_commit' AND s.setting = 'off')"
        " THEN set_config(s.name, COALESCE(w.value, 'on'), false) END))"
        f" FROM pg_settings s LEFT JOIN (VALUES {values}) AS w (name, value) ON w.name = s.name"
        " WHERE w.name IS NOT NULL OR s.name = 'synchronous_commit'),"
        " (SELECT concat_ws(' ', pid, (EXTRACT(EPOCH FROM backend_start) * 1000000)::bigint)"
        " FROM pg_stat_get_activity(pg_backend_pid()) WHERE backend_start IS NOT NULL)"
    )
    return Query(sql, {"ours": 0})


_SET_UP_BLIND = _set_up({**TIMEOUTS, **_PLANS})  # some systems cannot see that a client is gone
_SET_UP = _set_up({**TIMEOUTS, **_PLANS, "client_connection_check_interval": "500ms"})


def connect_args(url: PostgresURL) -> dict[str, Any]:
    """Arguments for the driver of *url* when it connects."""
    if url.driver == "psycopg":
        given: dict[str, Any] = {
            "conninfo": url.dsn,
            "autocommit": True,
            "connect_timeout": url.connect_timeout_s,
            **url.tcp,
            "fallback_application_name": _APPLICATION,
        }
        if url.pooler is None:
            options = url.options or os.environ.get("PGOPTIONS", "")
            given["options"] = f"{options} -c {_DIRECT}=on".lstrip()
        return {**given, "prepare_threshold": None} if url.pooled else given
    given = {"dsn": url.dsn, "timeout": url.connect_timeout_s}
    settings: dict[str, str] = {}
    if not url.named and "application_name" not in url.options:
        settings["application_name"] = os.environ.get("PGAPPNAME", _APPLICATION)
    if url.pooler is None:
        settings[_DIRECT] = "on"
    given["server_settings"] = settings
    return {**given, "statement_cache_size": 0} if url.pooled else given


async def connect(url: PostgresURL) -> Any:
    """
    A new connection of the driver of *url*, not yet set up.

    Raises:
        Trouble: There is none.
        ConfigurationError: The driver or the server refuses an option of the URL, or the database
            keeps text in an encoding that lacks characters.
    """
    module = import_module(url.driver)
    make = module.connect if url.driver == "asyncpg" else module.AsyncConnection.connect
    try:
        connection = await make(**connect_args(url))
    except Exception as error:  # noqa: BLE001 - sorted out by the next functions
        _refuse_options(error, url)
        raise no_connection(error) from None
    if url.driver == "asyncpg":
        _keep_alive(connection, url.tcp)
        encoding = connection.get_settings().server_encoding
    else:
        encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", None):  # a proxy may not report it
        await connection.close()
        raise ConfigurationError(
            f"the database {url.place} keeps text as {encoding}, which lacks characters that people"
            " and models write, such as emoji: make one with CREATE DATABASE ... TEMPLATE template0"
            " ENCODING 'UTF8', and name it in the URL"
        )
    return connection


def _spelled(name: str) -> str:
    return re.escape(name).replace("_", "[_ ]")  # libpq writes "channel binding required"


# These are words of other sentences, too.
_USUAL = {"database", "dbname", "host", "hostaddr", "passfile", "password", "port", "user"}


def _refuse_options(error: Exception, url: PostgresURL) -> None:
    """Raise `ConfigurationError` if *error* of a driver or server names an option of *url*."""
    text = str(error)
    named = [
        name
        for name in dict.fromkeys(url.asked)
        if name not in _USUAL and re.search(rf"(?<![\w.]){_spelled(name)}(?!\w)", text)
    ]
    if "command-line argument" in text and "options" in url.asked:
        named = ["options"]
    if named:
        raise ConfigurationError(
            f"the database {url.place} cannot be opened with the option {' and '.join(named)} of"
            " the URL: check its spelling and its value, or remove it"
        ) from None


_TCP_NAMES = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}


def _keep_alive(connection: Any, options: Mapping[str, int]) -> None:
    """Set TCP options, as libpq does, on a connection of asyncpg, which cannot."""
    transport = getattr(connection, "_transport", None)
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, options["keepalives"])
    for name, constant in _TCP_NAMES.items():
        number = getattr(socket, constant, None)  # not every system has them all
        if number is not None and options[name]:
            found.setsockopt(socket.IPPROTO_TCP, number, options[name])


def _now() -> float:
    return asyncio.get_running_loop().time()


class Pool:
    """
    The connections of one driver to its server, for one event loop.

    A connection is made when one is needed, up to `pool_size` or the server's own limit. The pool
    lends the most recently used one first. So connections left over from a busy hour stay idle, and
    are closed after a while. A caller that finds no free connection waits in order of arrival.

    Args:
        patience_s: The longest wait for a connection.
    """

    def __init__(self, url: PostgresURL, *, patience_s: float = _POOL_PATIENCE_S) -> None:
        self._url = url
        self._patience_s = patience_s
        self._idle: list[Wire] = []
        self._made = 0  # idle, in use, or being made
        self._brief = 0  # of those in use, for no longer than a short command takes
        # Each gets a connection, or `None` for the right to make one.
        self._waiting: deque[asyncio.Future[Wire | None]] = deque()
        self._full: Trouble | None = None  # why the server gave no other connection
        self._full_until = 0.0  # the earliest time of the next request
        self._reaper: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._idle)

    @property
    def in_use(self) -> int:
        """The number of connections in use, or being made."""
        return self._made - len(self._idle)

    def session(self, *, brief: bool = False, until: float | None = None) -> Session:
        """
        A connection for a `with` block: given back if it is clean, and closed otherwise.

        Args:
            until: The time by which the answers must arrive, by the clock of the event loop. No
                single answer may take longer than usual.
            brief: For a short command. It waits a little before it makes another connection, and
                other callers wait a little for its connection. It takes the connection that has
                been idle longest: it needs none of the prepared statements, and leaves warmer
                connections to the others.

        Raises:
            Trouble: On entering: no connection is available.
        """
        return Session(self, brief=brief, until=until)

    async def take(self, *, brief: bool = False, until: float | None = None) -> tuple[Wire, bool]:
        """Return a connection, and true if it was used before; wait no longer than *until*."""
        over = _now() + self._patience_s
        if until is not None:
            over = min(over, until)
        wire = await self._find(over, brief=brief)
        reused = wire is not None
        while wire is None:
            try:
                wire = await self._make()
            except Trouble as trouble:
                if trouble.sqlstate != TOO_MANY:
                    self._free()
                    raise
                self._made -= 1
                self._full, self._full_until = trouble, _now() + _FULL_PAUSE_S
            except BaseException:
                self._free()
                raise
            else:
                self._full = None
                break
            # A caller in this process gives one back, or another process closes one.
            try:
                wire = await self._find(over, brief=False)
            except BaseException:
                self._invite()
                raise
            reused = wire is not None
        self._brief += brief
        return wire, reused

    def _invite(self) -> None:
        """Let the next waiter try to make another connection."""
        if self._made < self._url.pool_size and self._hand_on(None):
            self._made += 1

    async def _find(self, over: float, *, brief: bool) -> Wire | None:
        """An existing connection, or `None` for the right to make another, which counts already."""
        soon = self._made > 0 if brief else len(self._waiting) < self._brief
        while not self._idle:
            now = _now()
            vacant = self._made < self._url.pool_size
            room = vacant and now >= self._full_until
            if room and not soon:
                if self._full is not None:  # one caller tries for all
                    self._full_until = now + _FULL_PAUSE_S
                self._made += 1
                return None
            if now >= over:
                raise self._none_came(vacant=vacant)
            if room:
                at_most_s = _SOON_S
                soon = False
            else:
                at_most_s = min(over, self._full_until if vacant else over) - now
            with contextlib.suppress(TimeoutError):
                return await self._wait(at_most_s)
        return self._idle.pop(0 if brief else -1)

    def _none_came(self, *, vacant: bool) -> Trouble:
        if vacant and self._full is not None:
            return self._full
        words = f"has had no connection free for {self._patience_s:.0f} s: raise pool_size"
        return Trouble(None, words=words)

    def give(self, wire: Wire, *, brief: bool = False) -> None:
        """Take back a clean connection; a *brief* one is lent again last."""
        self._brief -= brief
        now = _now()
        if now >= wire.retire_at:
            self._retire(wire)
            self._free()
        elif not self._hand_on(wire):
            wire.idle_since = now
            self._idle.insert(0 if brief else len(self._idle), wire)
            self._watch(min(now + self._url.max_idle_s, wire.retire_at))

    def _watch(self, due: float) -> None:
        """Make sure that idle connections are checked at *due*, or before."""
        if due == math.inf:
            return
        if self._reaper is not None:
            if self._reaper.when() <= due:
                return
            self._reaper.cancel()
        self._reaper = asyncio.get_running_loop().call_at(due, self._reap)

    def _reap(self) -> None:
        """Close connections that have been idle for long, or are old."""
        self._reaper = None
        now = _now()
        idle, self._idle = self._idle, []
        for wire in idle:
            due = min(wire.idle_since + self._url.max_idle_s, wire.retire_at)
            if due > now:
                self._idle.append(wire)
                self._watch(due)
            else:
                self._made -= 1
                self._retire(wire)

    def _retire(self, wire: Wire) -> None:
        """Close a clean connection in the background."""
        task = asyncio.get_running_loop().create_task(wire.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def drop(self, wire: Wire, *, brief: bool = False) -> None:
        """Close a connection that is not clean, without waiting for the server."""
        self._brief -= brief
        silent = wire.was_silent()
        try:
            await wire.close(at_once=True)
        finally:
            self._free()
            if silent:
                await self._forget_idle()

    async def _forget_idle(self) -> None:
        """
        Close the idle connections: each may be as silent as the one cut, and cost a long wait.
        """
        idle, self._idle = self._idle, []
        self._made -= len(idle)
        for wire in idle:
            await wire.close(at_once=True)

    async def close(self) -> None:
        """Close the idle connections; one in use is closed when it is given back."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        idle, self._idle = self._idle, []
        self._made -= len(idle)
        await asyncio.gather(*(wire.close() for wire in idle), *self._leaving)

    @property
    def closed(self) -> bool:
        """True if a returned connection is to be dropped."""
        return self._closed

    async def _wait(self, patience_s: float) -> Wire | None:
        turn: asyncio.Future[Wire | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(patience_s):
                return await turn
        except BaseException:
            self._pass_on(turn)
            raise

    def _pass_on(self, turn: asyncio.Future[Wire | None]) -> None:
        """Pass a connection for a waiter that has given up to the next one."""
        if turn in self._waiting:
            self._waiting.remove(turn)
        elif turn.done() and not turn.cancelled():
            wire = turn.result()
            if wire is None:
                self._free()
            else:
                self.give(wire)

    def _free(self) -> None:
        """Count one connection less: let a waiter make another."""
        if not self._hand_on(None):
            self._made -= 1

    def _hand_on(self, wire: Wire | None) -> bool:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(wire)
                return True
        return False

    async def _make(self) -> Wire:
        wire = wire_of(await connect(self._url))
        # Connections that were made together are not all replaced at once.
        wire.retire_at = _now() + self._url.max_age_s * _random.uniform(0.9, 1.0)
        await set_up(wire, self._url)
        return wire


async def set_up(wire: Wire, url: PostgresURL) -> None:
    """Prepare a new connection, or close it; `Trouble` if it is lost, or behind a hidden pooler."""
    if url.pooled:
        return
    ours = {"ours": int(url.pooler is not None)}
    try:
        try:
            query = _SET_UP._replace(params=ours)
            rows = await wire.fetch(query, write=False, within_s=url.connect_timeout_s)
        except Trouble as trouble:
            if trouble.lost:
                raise
            query = _SET_UP_BLIND._replace(params=ours)
            rows = await wire.fetch(query, write=False, within_s=url.connect_timeout_s)
        _note(wire, *rows[0])
    except BaseException:
        await wire.close(at_once=True)
        raise


def _note(wire: Wire, own: str | None, limits: str, session: str) -> None:
    """Keep the answer to the set-up; some servers do not report the session's identity."""
    if own is None:
        raise Trouble(None, lost=True, words=_POOLER)
    wire.backend = Backend(*map(int, session.split())) if session else None
    # Longer than the limit on statements; 0 for one that was removed.
    limit_ms = limits.partition("|")[0]
    if limit_ms:
        wire.answer_s = float(limit_ms) / 1000 + SPARE_S if float(limit_ms) else _UNLIMITED_S


class Session:
    """
    One connection while an operation uses it.

    Attributes:
        mark: The mark of the transaction, once it has written something.
    """

    __slots__ = ("_between", "_brief", "_pool", "_reused", "_until", "_wire", "mark")
    _wire: Wire

    def __init__(self, pool: Pool, *, brief: bool = False, until: float | None = None) -> None:
        self._pool = pool
        self._brief = brief
        self._until = until
        self._reused = False
        self._between = True  # outside a transaction, with no answer outstanding
        self.mark: str | None = None

    async def __aenter__(self) -> Self:
        self._wire, self._reused = await self._pool.take(brief=self._brief, until=self._until)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._between and not self._pool.closed:
            self._pool.give(self._wire, brief=self._brief)
        else:
            await self._pool.drop(self._wire, brief=self._brief)

    async def begin(self, text: str) -> None:
        """Begin a transaction with *text*."""
        await self.command_alone(text)
        self._between = False

    async def end(self, text: str) -> str:
        """End the transaction with *text*; the tag shows if it was committed."""
        tag = await self._wire.command(text, within_s=self._within())
        self._between = True
        return tag

    async def ask(self, query: Query, *, write: bool) -> Rows:
        """Run one statement of the transaction."""
        rows = await self._wire.fetch(query, write=write, within_s=self._within())
        if not write or not is_marked(query.sql):
            return rows
        if rows:
            self.mark = rows[0][-1]
        return [row[:-1] for row in rows]

    async def ask_alone(self, query: Query) -> Rows:
        """Run one read as a transaction of its own."""
        return await self._alone(self._wire.fetch(query, write=False, within_s=self._within()))

    async def write_alone(self, query: Query) -> Rows:
        """
        Run one write as a transaction of its own, over when this returns.

        Raises:
            Trouble: The write failed. `sent` is true if it may still have been applied.
        """
        self._between = False
        if self._reused and self._wire.is_gone():
            raise self._found_out(Trouble(None, lost=True))
        try:
            rows = await self._wire.fetch(query, write=False, within_s=self._within())
        except Trouble as trouble:
            self._between = not trouble.lost  # refused, and so rolled back
            trouble.sent = trouble.lost
            raise self._found_out(trouble) from None
        self._between = True
        return rows

    async def command_alone(self, text: str) -> None:
        """Run statements without parameters or rows that leave no transaction open."""
        await self._alone(self._wire.command(text, within_s=self._within()))

    async def _alone(self, asking: Awaitable[T]) -> T:
        """Await the first answer since the connection was idle: it may have broken meanwhile."""
        self._between = False
        try:
            answer = await asking
        except Trouble as trouble:
            raise self._found_out(trouble) from None
        self._between = True
        return answer

    @property
    def backend(self) -> Backend | None:
        """The session at the server; `None` if it is unknown."""
        return self._wire.backend

    def _within(self) -> float | None:
        """The time limit for an answer; `None`: the usual one."""
        if self._until is None:
            return None
        left_s = self._until - _now()
        return min(max(left_s, _LEAST_S), self._wire.answer_s)

    def _found_out(self, trouble: Trouble) -> Trouble:
        """Mark *trouble* as stale if the connection may have broken while it was idle."""
        trouble.stale = trouble.lost and self._reused
        return trouble


def no_connection(error: Exception) -> Exception:
    """The reason why there is no connection, without the driver's own text."""
    if isinstance(error, Trouble):
        return error
    if any(phrase in str(error) for phrase in _POOLERS_SAY):
        return Trouble(None, lost=True, words=_POOLER)
    state = getattr(error, "sqlstate", None) or sqlstate_in(str(error))
    if state is not None:
        return Trouble(state, lost=True)
    found = trouble_of(error, lost=True)
    if isinstance(found, Trouble):
        return found
    if isinstance(error, ValueError):  # a driver could not read the URL
        words = "is named by a URL that the driver does not understand"
        return Trouble(None, lost=True, words=words)
    return error
