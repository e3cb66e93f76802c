"""
How a URL becomes stores: one driver for the database, bound to any number of tenants.

A driver is imported when the first URL names it, because importing the other one would delay the
opening of a context.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from looopy.stores.blobs.base import Blobs
from looopy.stores.blobs.opening import open_blobs
from looopy.stores.bundle import Stores
from looopy.stores.sql.artifacts import SQLArtifactStore
from looopy.stores.sql.contexts.listing import SQLContextIndex
from looopy.stores.sql.driver import Driver
from looopy.stores.sql.journal import SQLJournal
from looopy.stores.sql.messages import SQLMessageStore
from looopy.stores.sql.postgres.url import PostgresURL, check_driver, parse
from looopy.stores.sql.state import SQLStateStore


def sqlite_stores(
    url: str, *, tenant: str = "default", migrate: bool = True, blobs: str | Blobs | None = None
) -> Stores:
    """The stores in the file that *url* names, opened when they are entered; see `open_stores`."""
    from looopy.stores.sql.sqlite.connection import sqlite_path
    from looopy.stores.sql.sqlite.driver import SQLiteDriver

    bring_to_head = _bring_to_head if migrate else None
    path = sqlite_path(url)
    driver = SQLiteDriver(path, bring_to_head=bring_to_head)
    driver.blobs = open_blobs(f"{path}.blobs" if blobs is None else blobs)
    return bind(driver, tenant)


def postgres_stores(
    url: str, *, tenant: str = "default", migrate: bool = False, blobs: str | Blobs | None = None
) -> Stores:
    """The stores in the database that *url* names, opened when entered; see `open_stores`."""
    place = parse(url)
    check_driver(place)
    from looopy.stores.sql.postgres.driver import PostgresDriver

    bring_to_head = _bring_to_head if migrate else None
    driver = PostgresDriver(place, bring_to_head=bring_to_head)
    driver.blobs = None if blobs is None else open_blobs(blobs)
    return bind(driver, tenant)


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
        contexts=SQLContextIndex(driver, tenant),
        tenant=tenant,
        lifetime=driver,
        bind=partial(bind, driver),
    )
