"""
Bring a Postgres database to another schema: one transaction, under a lock of its own.

Changes of tables are transactional in Postgres, so a migration that is killed leaves the database
as it was. The lock is taken before the revision is read: of two starters one migrates, and the
other finds the work done. It belongs to the transaction, so no connection can keep it.

A change of a table waits for every transaction that has read it, and later transactions wait for
the change. So a migration locks all tables before it changes any, and gives up after two seconds:
the others run again, and it retries a little later. It waits patiently only for the lock that keeps
two migrations apart, because no other transaction needs that lock.

Row-level security, once it is on, stays on through every migration, new tables included.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from looopy.stores.sql import revision
from looopy.stores.sql.driver import Query
from looopy.stores.sql.postgres import rls as pg_rls
from looopy.stores.sql.postgres.driver import ask_once, look
from looopy.stores.sql.postgres.errors import Trouble, translate
from looopy.stores.sql.postgres.pool import Pool, connect_args, no_connection
from looopy.stores.sql.postgres.url import PostgresURL
from looopy.stores.sql.statements import TABLES, VERSION_TABLE

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

# Any number of 64 bits will do, if no other program on the server uses it.
_LOCK = 0x6C6F6F6F7079
STANDSTILL_S = 2.0
"""How long one attempt may keep others waiting: their statements wait for 10 s."""
PATIENCE_S = 60.0
"""How long to try again while other sessions use the tables."""
_PAUSE_S = (0.5, 2.0)  # lets the waiting sessions continue
_BEHIND_ANOTHER_S = 600.0
_IN_USE = "55P03"  # lock_not_available
_COLLIDED = (_IN_USE, "40P01")  # deadlock_detected: ours is the transaction that was given up
_random = random.SystemRandom()
_NAMES = ", ".join(f"'{name}'" for name in sorted(TABLES))
# The longest transactions first.
_USERS = Query(
    "SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"  # noqa: S608 - constants
    " LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.granted AND l.pid <> pg_backend_pid()"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    f" AND c.relname IN ({_NAMES}) AND pg_table_is_visible(c.oid)"
    " GROUP BY l.pid, a.xact_start ORDER BY a.xact_start LIMIT 3",
    {},
    alone=True,
)


def find(url: PostgresURL) -> str | None:
    """The revision of the database's schema, or `StoreUnavailable`. It blocks."""
    return asyncio.run(_find(url))


async def _find(url: PostgresURL) -> str | None:
    pool = Pool(url)
    try:
        return (await look(pool, url))[0]
    finally:
        await pool.close()


async def run_online(url: PostgresURL) -> None:
    """
    Carry out the migration that alembic was asked for.

    Raises:
        StoreUnavailable: The server refused it or was lost, or somebody used the tables all the
            time; nothing was changed.
    """
    await _carry_out(url, _run_in_one_transaction)


async def _carry_out(url: PostgresURL, work: Callable[[Connection], None]) -> None:
    """Do *work*, again while other sessions use the tables."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await _try(url, work)
        except Trouble as trouble:
            if trouble.sqlstate not in _COLLIDED:
                raise translate(trouble, url.place) from None
            if time.monotonic() >= deadline:
                raise translate(await _in_use(url), url.place) from None
        await asyncio.sleep(_random.uniform(*_PAUSE_S))


async def _try(url: PostgresURL, work: Callable[[Connection], None]) -> None:
    """Do *work* on a connection of its own; `Trouble` if that failed, and nothing was changed."""
    from sqlalchemy.exc import DBAPIError

    engine = _make_engine(url)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(work)
    except (DBAPIError, OSError) as error:
        trouble = no_connection(getattr(error, "orig", None) or error)
        if isinstance(error, DBAPIError) and not isinstance(trouble, Trouble):
            trouble = Trouble(None, lost=True)
        if isinstance(trouble, Trouble):
            # A statement that the server refused proves that the server was reached.
            trouble.lost = (trouble.sqlstate or "08").startswith(("08", "57P"))
            raise trouble from None
        raise
    finally:
        await engine.dispose()


async def _in_use(url: PostgresURL) -> Trouble:
    """The refusal to wait longer for the tables, with the sessions that use them."""
    pool = Pool(url)
    try:
        pids = [str(pid) for (pid,) in await ask_once(pool, _USERS, url)]
    finally:
        await pool.close()
    users = f" (such as the server processes {', '.join(pids)})" if pids else ""
    return Trouble(
        _IN_USE,
        words=f"has had transactions{users} that use our tables for {PATIENCE_S:.0f} s, and nothing"
        " was changed: end them (pg_stat_activity shows them), then try again",
    )


def _make_engine(url: PostgresURL) -> AsyncEngine:
    """One connection at a time, run by SQLAlchemy and not by us."""
    from sqlalchemy import event
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    arguments = connect_args(url)
    if url.driver == "psycopg":
        arguments["autocommit"] = False
    elif url.pooled:
        arguments["prepared_statement_cache_size"] = 0
        # Another client of the proxy may have left a statement of the usual name.
        arguments["prepared_statement_name_func"] = lambda: f"looopy_{secrets.token_hex(8)}"
    engine = create_async_engine(
        f"postgresql+{url.driver}://",
        connect_args=arguments,
        hide_parameters=True,
        poolclass=NullPool,
    )
    event.listen(engine.sync_engine, "do_connect", _use_dsn_alone)
    return engine


def _use_dsn_alone(_dialect: object, _record: object, args: list[Any], _named: object) -> None:
    args.clear()  # SQLAlchemy's own URL here is a placeholder


def _run_in_one_transaction(connection: Connection) -> None:
    from alembic import context

    given = revision.options("postgresql")
    if not revision.moves():
        with connection.begin():
            context.configure(connection=connection, **given)
            context.run_migrations()
        return
    with _alone(connection):
        context.configure(connection=connection, **given)
        if not revision.is_there() or pg_rls.is_on(connection):
            # A transaction that has looked at the schema ends first; a later one sees the new one.
            there = context.get_context().get_current_revision() is not None
            names = pg_rls.present(connection)
            _take_tables(connection, [VERSION_TABLE, *names] if there else names)
        roles = pg_rls.lift(connection)
        context.run_migrations()
        if roles is not None:
            pg_rls.secure(connection, roles)


@contextlib.contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """A transaction that no other migration runs beside."""
    from sqlalchemy.exc import DBAPIError

    with connection.begin():
        # Two starters may wait for each other longer than an administrator lets statements run.
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        _wait_for_locks(connection, _BEHIND_ANOTHER_S)
        try:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _IN_USE:
                raise
            raise Trouble(
                None,
                words=f"has been migrated by another process for {_BEHIND_ANOTHER_S:.0f} s: see who"
                " holds an advisory lock in pg_locks, then try again",
            ) from None
        _wait_for_locks(connection, STANDSTILL_S)
        yield


def _take_tables(connection: Connection, names: Iterable[str]) -> None:
    """Keep all others out of these tables until the transaction ends, soon or not at all."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    until = time.monotonic() + STANDSTILL_S
    for name in names:
        _wait_for_locks(connection, until - time.monotonic())
        connection.exec_driver_sql(f"LOCK TABLE {quote(name)} IN ACCESS EXCLUSIVE MODE")
    _wait_for_locks(connection, STANDSTILL_S)


def _wait_for_locks(connection: Connection, longest_s: float) -> None:
    """Let each statement wait so long for a lock; after the deadline each still gets a moment."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(int(longest_s * 1000), 1)}")


def secure(url: PostgresURL, role: str) -> None:
    """
    Turn row-level security on, and let *role* use the tables. It blocks.

    Raises:
        ConfigurationError: There is no such role, or the policies would not hold it.
        StoreUnavailable: The server refused it or was lost, or somebody used the tables all the
            time; nothing was changed.
    """

    def work(connection: Connection) -> None:
        with _alone(connection):
            _take_tables(connection, pg_rls.present(connection))
            roles = pg_rls.lift(connection) or []
            pg_rls.secure(connection, sorted({*roles, role}))

    asyncio.run(_carry_out(url, work))
