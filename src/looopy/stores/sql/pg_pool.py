"""
Connections to a Postgres server: made, set up, kept, and thrown away when they broke.

SQLAlchemy's async engine is the pool; what runs on a connection is the driver's own, see
`pg_wire.py`. A connection is handed out without asking the server whether it still works: the first
command on it finds that out, and costs nothing extra.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from looopy.stores.sql.driver import Query, Rows
from looopy.stores.sql.pg_errors import Trouble, sqlstate_in
from looopy.stores.sql.pg_url import PostgresURL
from looopy.stores.sql.pg_wire import Wire, is_marked, trouble_of, wire_of

# A process that is stopped, or a client that is gone, must not keep its locks for long.
TIMEOUTS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "30s",
}
_CHECK_INTERVAL = "SELECT set_config('client_connection_check_interval', '500ms', false)"
_POOL_PATIENCE_S = 30.0

# What an administrator set on purpose stays, but for a commit that would not be durable.
_SET_UP = (
    "SELECT set_config(s.name, w.value, false) FROM (VALUES "  # noqa: S608 - made of constants
    + ", ".join(f"('{name}', '{value}')" for name, value in TIMEOUTS.items())
    + ") AS w (name, value) JOIN pg_settings s ON s.name = w.name WHERE s.source = 'default'"
    " UNION ALL SELECT set_config(name, 'on', false) FROM pg_settings"
    " WHERE name = 'synchronous_commit' AND setting = 'off'"
)


def make_engine(url: PostgresURL, *, for_migrations: bool = False) -> AsyncEngine:
    """
    A pool of connections to *url*, none of them made yet.

    Args:
        for_migrations: One connection at a time, run by SQLAlchemy and not by us.
    """
    options: dict[str, Any] = {"poolclass": NullPool}
    if not for_migrations:
        options = {
            "poolclass": AsyncAdaptedQueuePool,
            "pool_size": url.pool_size,
            "max_overflow": 0,
            "pool_timeout": _POOL_PATIENCE_S,
            "pool_reset_on_return": None,  # a session returns a connection clean, or not at all
        }
    engine = create_async_engine(
        f"postgresql+{url.driver}://",
        connect_args=connect_args(url, autocommit=not for_migrations),
        hide_parameters=True,
        **options,
    )
    event.listen(engine.sync_engine, "do_connect", _use_dsn_alone)
    if not url.pooled and not for_migrations:
        event.listen(engine.sync_engine, "connect", _set_up)
    return engine


def connect_args(url: PostgresURL, *, autocommit: bool) -> dict[str, Any]:
    """What the driver of *url* is to be told when it connects."""
    if url.driver == "psycopg":
        given: dict[str, Any] = {
            "conninfo": url.dsn,
            "autocommit": autocommit,
            "connect_timeout": url.connect_timeout_s,
        }
        return {**given, "prepare_threshold": None} if url.pooled else given
    given = {"dsn": url.dsn, "timeout": url.connect_timeout_s}
    if url.pooled:
        given |= {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            # Another client of the proxy may have left a statement of the usual name behind.
            "prepared_statement_name_func": lambda: f"looopy_{secrets.token_hex(8)}",
        }
    return given


def _use_dsn_alone(_dialect: object, _record: object, args: list[Any], _named: object) -> None:
    args.clear()  # what SQLAlchemy made of its own URL, which says nothing


def _set_up(connection: Any, _record: object) -> None:
    connection.run_async(_set_up_session)


async def _set_up_session(connection: Any) -> None:
    wire = wire_of(connection)
    await wire.fetch(Query(_SET_UP, {}), write=False)
    # Old servers do not know it, and some systems cannot do it.
    with contextlib.suppress(Trouble):
        await wire.command(_CHECK_INTERVAL)


class Session:
    """
    One connection while an operation uses it.

    Attributes:
        mark: Of the transaction, once it has written something.
    """

    def __init__(self, wire: Wire, *, reused: bool) -> None:
        self._wire = wire
        self._reused = reused
        self._between = True  # outside a transaction, with no answer outstanding
        self.mark: str | None = None

    @property
    def clean(self) -> bool:
        """Whether the connection may serve another operation."""
        return self._between

    async def begin(self, text: str) -> None:
        """Begin a transaction with *text*."""
        self._between = False
        with self._finding_out():
            await self._wire.command(text)

    async def end(self, text: str) -> str:
        """End the transaction with *text*; the tag says whether it was committed."""
        tag = await self._wire.command(text)
        self._between = True
        return tag

    async def ask(self, query: Query, *, write: bool) -> Rows:
        """Run one statement of the transaction."""
        rows = await self._wire.fetch(query, write=write)
        if not write or not is_marked(query.sql):
            return rows
        if rows:
            self.mark = rows[0][-1]
        return [row[:-1] for row in rows]

    async def ask_alone(self, query: Query) -> Rows:
        """Run one statement that reads, as a transaction of its own."""
        self._between = False
        with self._finding_out():
            rows = await self._wire.fetch(query, write=False)
        self._between = True
        return rows

    async def command_alone(self, text: str) -> None:
        """Run statements without parameters or rows that leave no transaction behind."""
        self._between = False
        with self._finding_out():
            await self._wire.command(text)
        self._between = True

    @contextlib.contextmanager
    def _finding_out(self) -> Iterator[None]:
        """The first command on a connection: it may have broken while it was idle."""
        try:
            yield
        except Trouble as trouble:
            trouble.stale = trouble.lost and self._reused
            raise


@contextlib.asynccontextmanager
async def session(engine: AsyncEngine) -> AsyncIterator[Session]:
    """
    A connection of the pool, given back when it is clean and closed otherwise.

    Raises:
        Trouble: There is none to be had.
    """
    connection = engine.connect()
    try:
        await connection.start()
        pooled = await connection.get_raw_connection()
    except Exception as error:  # noqa: BLE001 - sorted out by the next function
        raise no_connection(error) from None
    opened = Session(wire_of(pooled.driver_connection), reused="used" in pooled.info)
    pooled.info["used"] = True
    try:
        yield opened
    finally:
        if not opened.clean:
            await connection.invalidate()
        await connection.close()


def no_connection(error: Exception) -> Exception:
    """Why there is no connection: what the driver said, without its words."""
    if isinstance(error, PoolTimeout):
        return Trouble(
            None, words=f"has had no connection free for {_POOL_PATIENCE_S:.0f} s: raise pool_size"
        )
    if isinstance(error, Trouble):
        return error
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None) or sqlstate_in(str(cause))
    if state is not None:
        return Trouble(state, lost=True)
    if isinstance(error, DBAPIError):
        return Trouble(None, lost=True)
    found = trouble_of(error, lost=True)
    if isinstance(found, Trouble):
        return found
    if isinstance(error, ValueError):  # a driver could not read the URL
        words = "is named by a URL that the driver does not understand"
        return Trouble(None, lost=True, words=words)
    return error
