"""
Bring a database to the schema that this version needs, and say how far it is.

Opening a file whose schema is at the head reads one row and imports nothing, and a new file is made
from a text (`fresh.py`); only otherwise are alembic and SQLAlchemy loaded. A migration runs on a
connection of its own, in one transaction that keeps other writers out from before the version is
read: of two starters one migrates and the other finds the work done, and a migration that is killed
leaves the file as it was, to be run again.

Foreign keys are off meanwhile, because rebuilding a table that others refer to would delete their
rows; before the commit they are checked, and no table may have lost a row. A file that held data is
copied beside itself first. The database may be an application's as well, with migrations of its
own: ours have a table of versions of their own, and leave what is not ours alone. A Postgres
database is migrated by `pg_migrate.py`, and only on request: it is shared, backed up by others, and
changed when its administrator says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from looopy.errors import ConfigurationError, LooopyError, SchemaOutOfDate, StoreUnavailable
from looopy.stores.sql import connection as sqlite
from looopy.stores.sql.backups import back_up
from looopy.stores.sql.fresh import make
from looopy.stores.sql.pg_url import PostgresURL, is_postgres, parse
from looopy.stores.sql.statements import (
    HEAD,
    NOTHING,
    OLD_VERSION_TABLE,
    PREFIX,
    TABLES,
    VERSION_TABLE,
    Found,
)

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

_VERSION = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - a constant

Target: TypeAlias = Path | PostgresURL
"""A file, or a database on a server."""


def _target(url: str) -> Target:
    return parse(url) if is_postgres(url) else sqlite_path(url)


def sqlite_path(url: str) -> Path:
    """
    The file that a SQLite URL names: three slashes before a relative path, four before an absolute
    one.

    Raises:
        ConfigurationError: It names no file.
    """
    scheme, _, rest = url.partition(":")
    if scheme not in ("sqlite", "sqlite+aiosqlite"):
        raise ConfigurationError(
            f"a URL with the scheme {scheme!r} names no SQLite file: use sqlite:///path/to/file.db"
        )
    name = rest.removeprefix("///")
    if name == rest or not name or name.endswith("/"):
        raise ConfigurationError(
            f"{url!r} names no file: use sqlite:///chat.db, or sqlite:////var/lib/chat.db for an"
            " absolute path"
        )
    if name.startswith((":memory:", "file:")):
        raise ConfigurationError(
            "SQLite in memory is not offered: use memory: for stores without a file"
        )
    if urlsplit(url).query or urlsplit(url).fragment:
        raise ConfigurationError(
            f"{url!r} has options, which are not supported: name only the file"
        )
    _check_name(name)
    return Path(name)


# What file systems take. Behind the name of the file come those of its log and of its copies.
_LONGEST_FILE, _LONGEST_FOLDER, _LONGEST_PATH = 200, 255, 4000


def _check_name(name: str) -> None:
    """Refuse a path that no file can have, known without looking for it."""
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        size = 0
    if not size or "\0" in name:
        raise ConfigurationError(
            "the path of a SQLite file must be valid Unicode, without NUL: it cannot be opened"
        )
    *folders, file = Path(name).parts
    if (
        size > _LONGEST_PATH
        or len(os.fsencode(file)) > _LONGEST_FILE
        or any(len(os.fsencode(folder)) > _LONGEST_FOLDER for folder in folders)
    ):
        raise ConfigurationError(
            f"the path of the SQLite file {name[:40]!r}... is too long: its name may have"
            f" {_LONGEST_FILE} bytes, a folder {_LONGEST_FOLDER}, and all of it {_LONGEST_PATH}"
        )


# --- for the stores ---


def ensure_schema(
    path: Path,
    bring_to_head: Callable[[Path], object] | None,
    patience_s: float = sqlite.PATIENCE_S,
) -> None:
    """
    Have the database at *path* at the head, made or migrated where that is allowed.

    Args:
        path: It need not exist if *bring_to_head* is given.
        bring_to_head: Changes the schema of an older file; `None`: nothing may be made or changed.
        patience_s: How long other processes may keep the file locked.

    Raises:
        SchemaOutOfDate: The schema is newer than this version, or older and not to be changed.
        StoreUnavailable: The file cannot be used.
    """
    if bring_to_head is None and not path.exists():
        raise StoreUnavailable(f"there is no database at {path}")
    found = find_in_file(path, patience_s)
    if found.at_head:
        return
    if bring_to_head is None:
        raise out_of_date(found)
    if found.revision is None and make(path, patience_s):
        return
    bring_to_head(path)


def find_in_file(path: Path, patience_s: float = sqlite.PATIENCE_S) -> Found:
    """How far the file is."""
    with contextlib.closing(sqlite.connect(path, patience_s=patience_s)) as connection:

        def ask(sql: str) -> list[Any]:
            return sqlite.retry(lambda: connection.execute(sql).fetchall(), patience_s)

        try:
            rows = ask(_VERSION)
        except sqlite3.Error as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # no such table
                raise sqlite.translate(error, path) from None
        else:
            return Found(str(rows[0][0])) if rows else NOTHING
        from looopy.stores.sql import old_names

        try:
            return old_names.find_in_file(ask)
        except sqlite3.Error as error:
            raise sqlite.translate(error, path) from None


def out_of_date(found: Found) -> SchemaOutOfDate:
    """The refusal to open a database that is at *found*."""
    advice = "run `looopy db upgrade --db URL`"
    if is_newer(found.revision):
        advice = "it was written by a newer one; upgrade looopy"
    return SchemaOutOfDate(
        f"the database's schema is at {found}, this version needs {HEAD}: {advice}",
        found=found.revision,
        expected=HEAD,
    )


def is_newer(found: str | None) -> bool:
    """Whether a database at *found* was migrated by a newer version: revisions are numbered."""
    return found is not None and found[: len(HEAD)] > HEAD


# --- for the command line ---


def upgrade(url: str, revision: str = "head") -> None:
    """
    Migrate the database that *url* names up to *revision*. It blocks; not to be called in an event
    loop.

    Raises:
        SchemaOutOfDate: The database is newer than this version.
        StoreUnavailable: The database cannot be used, or the migration would lose rows.
    """
    _upgrade(_target(url), revision)


def bring_to_head(target: Target) -> None:
    """Migrate *target* as `upgrade` does, to the schema that this version needs."""
    _upgrade(target, HEAD)


def _upgrade(target: Target, revision: str) -> None:
    _run(target, "upgrade", revision)


def downgrade(url: str, revision: str) -> None:
    """
    Migrate down to *revision*, `base` for an empty schema; what only the newer schema holds is
    lost.

    Raises:
        SchemaOutOfDate: The database is newer than this version.
        StoreUnavailable: The database cannot be used.
    """
    _run(_target(url), "downgrade", revision)


def check(url: str) -> tuple[str | None, str]:
    """
    The revision that the database is at (`None`: none), and the one that this version needs.

    They are equal only if this version can use the database as it is.
    """
    target = _target(url)
    if isinstance(target, Path) and not target.exists():
        return None, HEAD
    found = _find(target)
    return None if found.revision is None else str(found), HEAD


def _find(target: Target) -> Found:
    if isinstance(target, Path):
        return find_in_file(target)
    from looopy.stores.sql import pg_migrate

    return pg_migrate.find(target)


def secure(url: str, role: str) -> None:
    """
    Turn row-level security on in the Postgres database that *url* names, for its owner.

    Args:
        role: Whom the application connects as; it is given what it needs.

    Raises:
        ConfigurationError: It is no Postgres database; or there is no such role, or it is a
            superuser or the owner of the tables, whom no policy holds.
        SchemaOutOfDate: The schema is not at the head.
        StoreUnavailable: The database cannot be used, or *url* is not its owner's.
    """
    target = _target(url)
    if isinstance(target, Path):
        raise ConfigurationError("row-level security is Postgres's: a SQLite file has no users")
    if not (found := _find(target)).at_head:
        raise out_of_date(found)
    from looopy.stores.sql import pg_migrate

    pg_migrate.secure(target, role)


def sql(url: str) -> str:
    """The statements that make the schema from nothing, as text; the database is not touched."""
    from alembic import command

    output = io.StringIO()
    config = _config(_target(url))
    config.output_buffer = output
    command.upgrade(config, "head", sql=True)
    return output.getvalue()


def _config(target: Target) -> Config:
    """Alembic's configuration: beside this file in a wheel, else at the repository's top."""
    from alembic.config import Config

    here = Path(__file__).parent
    places = (here / "alembic.ini", here.parents[3] / "alembic.ini")
    ini = next((place for place in places if place.is_file()), None)
    if ini is None:
        raise ConfigurationError(
            "the migrations are missing from this installation: install it again"
        )
    config = Config(ini)
    config.attributes["target"] = target
    return config


def _run(target: Target, action: str, revision: str) -> None:
    from alembic import command
    from alembic.util import CommandError
    from sqlalchemy.exc import DBAPIError

    config = _config(target)
    found = _find(target).revision  # also answers for a database that cannot be used
    if found is not None and found not in _known(config):
        place = target if isinstance(target, Path) else target.place
        raise SchemaOutOfDate(
            f"the database {place} is at {found}, which this version of looopy (schema {HEAD}) does"
            " not know: it was written by a newer one; upgrade looopy",
            found=found,
            expected=HEAD,
        )
    try:
        getattr(command, action)(config, revision)
    except DBAPIError as error:
        if isinstance(target, Path) and isinstance(error.orig, sqlite3.Error):
            raise sqlite.translate(error.orig, target) from None
        raise
    except CommandError as error:
        raise ConfigurationError(f"the migration cannot be run: {error}") from None


def _known(config: Config) -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}


# --- for migrations/env.py ---


def run_from_env() -> None:
    """
    Run what alembic was asked for: on the database, or as statements that are printed.

    Raises:
        CommandError: Alembic's own command line was used, and the database is not named or cannot
            be used.
    """
    from alembic import context
    from alembic.util import CommandError

    given = context.config.attributes.get("target")
    if given is not None:
        _run_on(given)
        return
    try:
        _run_on(_named())
    except LooopyError as error:
        raise CommandError(str(error)) from None


def _named() -> Target:
    """The database that alembic's own command line names."""
    from alembic import context

    url = context.get_x_argument(as_dictionary=True).get("url")
    url = url or context.config.get_main_option("sqlalchemy.url")
    if not url:
        raise ConfigurationError(
            "name the database: alembic -x url=sqlite:///chat.db ..., or sqlalchemy.url in"
            " alembic.ini"
        )
    return _target(url)


def _run_on(target: Target) -> None:
    from alembic import context

    if context.is_offline_mode():
        dialect = "sqlite" if isinstance(target, Path) else "postgresql"
        context.configure(dialect_name=dialect, literal_binds=True, **options(dialect))
        with context.begin_transaction():
            context.run_migrations()
    elif isinstance(target, Path):
        # To look at a file that is not there makes none.
        is_needed = target.exists() or moves()
        asyncio.run(run_online(target, str(target) if is_needed else None))
    else:
        from looopy.stores.sql import pg_migrate

        asyncio.run(pg_migrate.run_online(target))


def options(dialect: str) -> dict[str, Any]:
    """What alembic is to know of our schema on either engine."""
    from looopy.stores.sql import tables

    return {
        "target_metadata": tables.sqlite_metadata if dialect == "sqlite" else tables.metadata,
        "version_table": VERSION_TABLE,
        "include_name": _is_ours,
        "compare_server_default": True,
        "render_as_batch": dialect == "sqlite",
        "transactional_ddl": True,
    }


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Whether a comparison looks at it: not at the tables of an application."""
    return kind != "table" or (name is not None and name.startswith(PREFIX))


def moves() -> bool:
    """Whether alembic was asked to go somewhere, and not only to look."""
    from alembic import context

    try:
        context.get_revision_argument()
    except KeyError:
        return False
    return True


def is_there() -> bool:
    """Whether the database is where alembic is to go."""
    from alembic import context

    return context.get_context().get_current_revision() == context.get_revision_argument()


async def run_online(path: Path, name: str | None) -> None:
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
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = OFF")
    cursor.execute("PRAGMA secure_delete = ON")
    cursor.close()


def _begin_exclusive(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN EXCLUSIVE")


def _run_in_one_transaction(connection: Connection, path: Path) -> None:
    from alembic import context

    from looopy.stores.sql import old_names

    with connection.begin():
        found = old_names.find_in_file(lambda sql: connection.exec_driver_sql(sql).all())
        if not moves():
            _configure(connection, found)
            context.run_migrations()
            return
        before = _row_counts(connection)
        if not found.renamed:
            before = {old_names.renamed(name): count for name, count in before.items()}
            back_up(path, found.revision)
            old_names.rename_in_file(connection)
        _configure(connection)
        if found.renamed and not is_there() and any(before.get(name) for name in TABLES):
            back_up(path, found.revision)
        context.run_migrations()
        _check_rows(connection, before, path)


def _configure(connection: Connection, found: Found = NOTHING) -> None:
    from alembic import context

    given = options("sqlite")
    if not found.renamed:
        given["version_table"] = OLD_VERSION_TABLE
    context.configure(connection=connection, **given)


def _row_counts(connection: Connection) -> dict[str, int]:
    """The number of rows of each table, by the name that it has, or is to have."""
    # What was a table may be a view of others by now.
    ours = ", ".join(f"'{name}'" for name in sorted(TABLES))
    names = connection.exec_driver_sql(
        "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"  # noqa: S608 - constants
        f" AND name NOT IN ('{VERSION_TABLE}', '{OLD_VERSION_TABLE}')"
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
