"""
How a URL becomes stores: one driver for the database, bound to any number of tenants.

A driver is imported when the first URL names it, because importing the other one would delay the
opening of a context.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from looopy.stores.bundle import Stores
from looopy.stores.sql.artifacts import SQLArtifactStore
from looopy.stores.sql.driver import Driver
from looopy.stores.sql.journal import SQLJournal
from looopy.stores.sql.messages import SQLMessageStore
from looopy.stores.sql.postgres.url import PostgresURL, check_driver, parse
from looopy.stores.sql.state import SQLStateStore


def sqlite_stores(url: str, *, tenant: str = "default", migrate: bool = True) -> Stores:
    """
    The stores in the file that *url* names; nothing is opened before they are entered.

    Args:
        url: `sqlite:///path/to/file.db`.
        tenant: The owner of these contexts.
        migrate: True if opening may make the file, or change its schema.

    Raises:
        ConfigurationError: The URL names no file.
    """
    from looopy.stores.sql.sqlite.connection import sqlite_path
    from looopy.stores.sql.sqlite.driver import SQLiteDriver

    bring_to_head = _bring_to_head if migrate else None
    return bind(SQLiteDriver(sqlite_path(url), bring_to_head=bring_to_head), tenant)


def postgres_stores(url: str, *, tenant: str = "default", migrate: bool = False) -> Stores:
    """
    The stores in the Postgres database that *url* names; nothing is opened before they are entered.

    Args:
        url: `postgresql://user:password@host/database`, see `postgres.url.parse`.
        tenant: The owner of these contexts.
        migrate: True if opening may make or change the schema.

    Raises:
        ConfigurationError: The URL is malformed.
        MissingExtra: Its driver is not installed.
    """
    place = parse(url)
    check_driver(place)
    from looopy.stores.sql.postgres.driver import PostgresDriver

    bring_to_head = _bring_to_head if migrate else None
    return bind(PostgresDriver(place, bring_to_head=bring_to_head), tenant)


def _bring_to_head(target: Path | PostgresURL) -> None:
    from looopy.stores.sql import migrate  # few databases need it

    migrate.bring_to_head(target)


def bind(driver: Driver, tenant: str) -> Stores:
    """The stores of *tenant* on *driver*."""
    return Stores(
        SQLMessageStore(driver, tenant),
        SQLArtifactStore(driver, tenant),
        SQLStateStore(driver, tenant),
        SQLJournal(driver, tenant),
        tenant=tenant,
        lifetime=driver,
        bind=partial(bind, driver),
    )
