"""
Bring a Postgres database to another schema: one transaction, behind a lock of its own.

Changes of tables are transactional in Postgres, so a migration that is killed leaves the database
as it was. The lock is taken before the revision is read: of two starters one migrates, and the
other finds the work done. It belongs to the transaction, so no connection can keep it.

Row-level security, once it is on, stays on through every migration, new tables included.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from looopy.stores.sql import pg_rls
from looopy.stores.sql.pg_errors import Trouble, translate
from looopy.stores.sql.pg_pool import Pool, connect_args, no_connection
from looopy.stores.sql.pg_url import PostgresURL
from looopy.stores.sql.postgres import found_revision

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

# Any number of 64 bits will do, as long as nobody else on the server uses it.
_LOCK = 0x6C6F6F6F7079


def revision(url: PostgresURL) -> str | None:
    """
    The revision that the database is at; `None` for an empty one. It blocks.

    Raises:
        StoreUnavailable: The server cannot be reached, or refuses us.
    """
    return asyncio.run(_revision(url))


async def _revision(url: PostgresURL) -> str | None:
    pool = Pool(url)
    try:
        return await found_revision(pool, url)
    finally:
        await pool.close()


async def run_online(url: PostgresURL) -> None:
    """
    Carry out the migration that alembic was asked for.

    Raises:
        StoreUnavailable: The server refused it or was lost; nothing was changed.
    """
    await _on_one_connection(url, _run_in_one_transaction)


async def _on_one_connection(url: PostgresURL, work: Callable[[Connection], None]) -> None:
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
            # A statement that the server refused says nothing about reaching it.
            trouble.lost = (trouble.sqlstate or "08").startswith(("08", "57P"))
            raise translate(trouble, url.place) from None
        raise
    finally:
        await engine.dispose()


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
        # Another client of the proxy may have left a statement of the usual name behind.
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
    args.clear()  # what SQLAlchemy made of its own URL, which says nothing


def _run_in_one_transaction(connection: Connection) -> None:
    from alembic import context

    from looopy.stores.sql.tables import metadata

    with _alone(connection):
        roles = pg_rls.lift(connection)
        context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
        context.run_migrations()
        if roles is not None:
            pg_rls.secure(connection, roles)


@contextlib.contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """A transaction that no other migration runs beside."""
    with connection.begin():
        # Two starters may wait for each other longer than an administrator lets statements run.
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        yield


def secure(url: PostgresURL, role: str) -> None:
    """
    Turn row-level security on, and let *role* use the tables. It blocks.

    Raises:
        ConfigurationError: There is no such role, or the policies would not hold it.
        StoreUnavailable: The server refused it or was lost; nothing was changed.
    """

    def work(connection: Connection) -> None:
        with _alone(connection):
            roles = pg_rls.lift(connection) or []
            pg_rls.secure(connection, sorted({*roles, role}))

    asyncio.run(_on_one_connection(url, work))
