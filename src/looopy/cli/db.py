"""`looopy db`: bring a database's schema up or down, show its state, or secure it."""

from __future__ import annotations

from looopy.cli.data_folder import default_url, make_data_folder, shown_place
from looopy.cli.erasure import agrees
from looopy.cli.terminal import Terminal
from looopy.errors import ConfigurationError
from looopy.stores.sql import migrate
from looopy.stores.sql.postgres.url import is_postgres
from looopy.stores.sql.revision import BEFORE, is_newer, out_of_date
from looopy.stores.sql.sqlite import backups as copies
from looopy.stores.sql.sqlite.connection import sqlite_path

BEHIND = 1
NEWER = 3


def upgrade(url: str | None, revision: str) -> int:
    """Migrate up to *revision*; a database that is not there is made."""
    if url is None:
        make_data_folder()
    target = url or default_url()
    migrate.upgrade(target, revision)
    return _say_where(target)


def downgrade(url: str | None, revision: str, *, agreed: bool) -> int:
    """
    Migrate down to *revision*, `base` for no tables at all, if the user agrees to the loss.

    Raises:
        ConfigurationError: There is no person to agree to it.
    """
    target = url or default_url()
    place = shown_place(target)
    question = f"Migrate {place} down to {revision}, and lose what only newer schemas hold?"
    if revision == "base":
        question = f"Drop all tables of looopy in {place}, with all conversations?"
    if not (agreed or agrees(Terminal(), question)):
        return 1
    migrate.downgrade(target, revision)
    return _say_where(target)


def check(url: str | None) -> int:
    """
    Show which schema the database has, and change nothing.

    Returns:
        0 when it is the one this version needs, `BEHIND` when it has to be migrated first (or has
        none), `NEWER` when this version is too old for it.
    """
    target = url or default_url()
    found, expected = migrate.check(target)
    if found in BEFORE:
        raise out_of_date(found)
    if found == expected:
        Terminal().line(f"{shown_place(target)} is up to date: its schema is {expected}.")
        return 0
    newer = is_newer(found)
    where = "" if url is None else " --db URL"
    advice = "upgrade looopy" if newer else f"run `looopy db upgrade{where}`"
    has = f"the schema of {shown_place(target)} is {found}" if found else "there is no schema yet"
    Terminal().error(f"{has}, this version needs {expected}: {advice}")
    return NEWER if newer else BEHIND


def secure(url: str | None, role: str) -> int:
    """Turn row-level security on, and let *role* use the tables."""
    target = url or default_url()
    migrate.secure(target, role)
    Terminal().line(
        f"Row-level security is on in {shown_place(target)}: have the application connect as"
        f" {role}, with ?row_level_security=required."
    )
    return 0


def backups(url: str | None, *, remove: bool) -> int:
    """List the copies that migrations left beside a SQLite file, or remove them."""
    target = url or default_url()
    if is_postgres(target):
        raise ConfigurationError("looopy makes no backups of a Postgres database: it is yours")
    path = sqlite_path(target)
    found = copies.backups_of(path)
    terminal = Terminal()
    if not found:
        terminal.line(f"There are no backups of {shown_place(target)}.")
        return 0
    if remove:
        copies.remove(found)
    for copy in found:
        terminal.line(f"removed {copy}" if remove else f"{copy}  {copy.stat().st_size:,} bytes")
    return 0


def sql(url: str | None) -> int:
    """Print the statements that make the schema from nothing."""
    Terminal().write(migrate.sql(url or default_url()))
    return 0


def _say_where(url: str) -> int:
    found, _ = migrate.check(url)
    Terminal().line(f"The schema of {shown_place(url)} is now {found or 'nothing'}.")
    return 0
