"""
Bring a SQLite file to another schema: one transaction that keeps other writers out from the start.

Foreign keys are off during a migration, because rebuilding a table that others refer to would
delete their rows; before the commit they are checked, and no table may have lost a row. A file with
data is copied first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from looopy.errors import StoreUnavailable
from looopy.stores.sql.revision import is_there, moves, options
from looopy.stores.sql.sqlite import connection as sqlite
from looopy.stores.sql.sqlite.backups import back_up
from looopy.stores.sql.statements import TABLES, VERSION_TABLE

if TYPE_CHECKING:
    from sqlalchemy import Connection


async def run_online(path: Path, name: str | None) -> None:
    """
    Carry out the migration that alembic was asked for.

    Args:
        path: The file.
        name: The file as the driver is to open it; `None`: a database in memory, where looking must
            make no file.
    """
    from sqlalchemy import URL, event
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=name),
        poolclass=NullPool,
        hide_parameters=True,
        connect_args={"timeout": sqlite.PATIENCE_S},
    )
    # Left to itself the driver would begin transactions late, and commit before each change of a
    # table.
    event.listen(engine.sync_engine, "connect", _begin_nothing)
    event.listen(engine.sync_engine, "begin", _begin_exclusive)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_run_in_one_transaction, path)
    finally:
        await engine.dispose()


def _begin_nothing(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA page_count")
    if not cursor.fetchone()[0]:  # as in `connection`
        cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = OFF")
    cursor.execute("PRAGMA secure_delete = ON")
    cursor.close()


def _begin_exclusive(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN EXCLUSIVE")


def _run_in_one_transaction(connection: Connection, path: Path) -> None:
    from alembic import context

    with connection.begin():
        context.configure(connection=connection, **options("sqlite"))
        if not moves():
            context.run_migrations()
            return
        before = _row_counts(connection)
        if not is_there() and any(before.get(name) for name in TABLES):
            back_up(path, context.get_context().get_current_revision())
        context.run_migrations()
        _check_rows(connection, before, path)


def _row_counts(connection: Connection) -> dict[str, int]:
    """The number of rows of each table, by the name that it has, or is to have."""
    # A former table may be a view of others by now.
    ours = ", ".join(f"'{name}'" for name in sorted(TABLES))
    names = connection.exec_driver_sql(
        "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"  # noqa: S608 - constants
        f" AND name <> '{VERSION_TABLE}'"
        f" AND (type = 'table' OR type = 'view' AND name IN ({ours}))"
    ).scalars()
    counts = {}
    for name in list(names):
        count = connection.exec_driver_sql(f'SELECT COUNT(*) FROM "{name}"')  # noqa: S608 - a table's
        counts[name] = int(count.scalar_one())
    return counts


def _check_rows(connection: Connection, before: dict[str, int], path: Path) -> None:
    """Refuse a migration that lost rows of a table it kept, or left rows without their context."""
    after = _row_counts(connection)
    lost = [name for name, count in before.items() if after.get(name, count) < count]
    lost += [row[0] for row in connection.exec_driver_sql("PRAGMA foreign_key_check")]
    if lost:
        raise StoreUnavailable(
            f"the migration of {path} would lose rows of {', '.join(sorted(set(lost)))}:"
            " nothing was changed"
        )
