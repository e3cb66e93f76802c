"""
Bring a Postgres database to another schema: one transaction, behind a lock of its own.

Changes of tables are transactional in Postgres, so a migration that is killed leaves the database
as it was. The lock is taken before the revision is read: of two starters one migrates, and the
other finds the work done. It belongs to the transaction, so no connection can keep it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from looopy.stores.sql.pg_errors import Trouble, translate
from looopy.stores.sql.pg_pool import make_engine, no_connection
from looopy.stores.sql.pg_url import PostgresURL
from looopy.stores.sql.postgres import found_revision

if TYPE_CHECKING:
    from sqlalchemy import Connection

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
    engine = make_engine(url)
    try:
        return await found_revision(engine, url)
    finally:
        await engine.dispose()


async def run_online(url: PostgresURL) -> None:
    """
    Carry out the migration that alembic was asked for.

    Raises:
        StoreUnavailable: The server refused it or was lost; nothing was changed.
    """
    from sqlalchemy.exc import DBAPIError

    engine = make_engine(url, for_migrations=True)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_run_in_one_transaction)
    except (DBAPIError, OSError) as error:
        trouble = no_connection(error)
        if isinstance(trouble, Trouble):
            raise translate(trouble, url.place) from None
        raise
    finally:
        await engine.dispose()


def _run_in_one_transaction(connection: Connection) -> None:
    from alembic import context

    from looopy.stores.sql.tables import metadata

    with connection.begin():
        # Two starters may wait for each other longer than an administrator lets statements run.
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
        context.run_migrations()
