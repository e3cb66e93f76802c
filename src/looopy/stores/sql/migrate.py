"""
Bring a database to the schema that this version needs, and compare the two.

Opening a file whose schema is at the head reads one row and imports nothing, and a new file is made
from a text (`sqlite/schema.py`); only otherwise are alembic and SQLAlchemy loaded. A migration runs
on a connection of its own, in one transaction that keeps other writers out from before the version
is read. Of two starters one migrates and the other finds the work done. A killed migration leaves
the file as it was, to be run again.

The database may belong to an application with migrations of its own: ours have a table of versions
of their own, and change only our tables. A Postgres database is migrated only on request: it is
shared, backed up by others, and changed at the time that its administrator chooses. See
`sqlite/migrate.py` and `postgres/migrate.py` for the migration itself.
"""

from __future__ import annotations

import asyncio
import io
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from looopy.errors import ConfigurationError, LooopyError, SchemaOutOfDate
from looopy.stores.sql.postgres.url import PostgresURL, is_postgres, parse
from looopy.stores.sql.revision import BEFORE, moves, options, out_of_date
from looopy.stores.sql.sqlite import connection as sqlite
from looopy.stores.sql.sqlite.connection import sqlite_path
from looopy.stores.sql.sqlite.migrate import run_online
from looopy.stores.sql.sqlite.schema import find_in_file
from looopy.stores.sql.statements import HEAD

if TYPE_CHECKING:
    from alembic.config import Config

Target: TypeAlias = Path | PostgresURL
"""A file, or a database on a server."""


def _target(url: str) -> Target:
    return parse(url) if is_postgres(url) else sqlite_path(url)


# --- for the command line ---


def upgrade(url: str, revision: str = "head") -> None:
    """
    Migrate the database that *url* names up to *revision*. It blocks; not to be called in an event
    loop.

    Raises:
        SchemaOutOfDate: The database is newer than this version.
        StoreUnavailable: The database cannot be used, or the migration would lose rows.
    """
    _run(_target(url), "upgrade", revision)


def bring_to_head(target: Target) -> None:
    """Migrate *target* as `upgrade` does, to the schema that this version needs."""
    _run(target, "upgrade", HEAD)


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
    return _look(_target(url)), HEAD


def _look(target: Target) -> str | None:
    """Like `_find`, without making a file."""
    return None if isinstance(target, Path) and not target.exists() else _find(target)


def _find(target: Target) -> str | None:
    if isinstance(target, Path):
        return find_in_file(target)
    from looopy.stores.sql.postgres import migrate as pg_migrate

    return pg_migrate.find(target)


def secure(url: str, role: str) -> None:
    """
    Turn row-level security on in the Postgres database that *url* names, for its owner.

    Args:
        role: Whom the application connects as; it is given what it needs.

    Raises:
        ConfigurationError: It is not a Postgres database; or there is no such role, or it is a
            superuser or the owner of the tables, whom no policy holds.
        SchemaOutOfDate: The schema is not at the head.
        StoreUnavailable: The database cannot be used, or *url* is not its owner's.
    """
    target = _target(url)
    if isinstance(target, Path):
        raise ConfigurationError("row-level security is Postgres's: a SQLite file has no users")
    if (found := _find(target)) != HEAD:
        raise out_of_date(found)
    from looopy.stores.sql.postgres import migrate as pg_migrate

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
    from alembic.config import Config

    config = Config(_ini())
    config.attributes["target"] = target
    return config


def _ini() -> Path:
    """Alembic's configuration: beside this file in a wheel, else at the repository's top."""
    here = Path(__file__).parent
    places = (here / "alembic.ini", here.parents[3] / "alembic.ini")
    ini = next((place for place in places if place.is_file()), None)
    if ini is None:
        raise ConfigurationError(
            "the migrations are missing from this installation: install it again"
        )
    return ini


def _run(target: Target, action: str, revision: str) -> None:
    from alembic import command
    from alembic.util import CommandError
    from sqlalchemy.exc import DBAPIError

    config = _config(target)
    found = _find(target)  # also answers for a database that cannot be used
    if found is not None and found not in _known(config) | BEFORE:  # `_run_on` refuses the latter
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

    if not context.is_offline_mode() and (found := _look(target)) in BEFORE:
        raise out_of_date(found)
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
        from looopy.stores.sql.postgres import migrate as pg_migrate

        asyncio.run(pg_migrate.run_online(target))
