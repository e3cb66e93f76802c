"""
Databases at the head for trials: a file to copy for SQLite, one server of our own for Postgres.

Making the schema is not what is tested, and takes longer than many a run. The Postgres server is
started when a trial first asks for it and removed when this process ends; a run takes a new
context there, not a new database.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

# Loaded once here, not in each child that is forked.
import asyncpg  # noqa: F401
import psycopg  # noqa: F401
from tests.postgres import Server, as_driver, ask

from looopy import open_stores
from looopy.stores.sql import migrate
from looopy.testing.children import run

DRIVERS = ("asyncpg", "psycopg")


def new_sqlite(folder: Path) -> str:
    """The URL of a new file in *folder*, without contexts."""
    path = folder / "c.db"
    shutil.copyfile(_empty_file(), path)
    return f"sqlite:///{path}"


def postgres(driver: str) -> str:
    """The URL of the one database at the head that all trials share, for one of `DRIVERS`."""
    return as_driver(_postgres(), driver)


@cache
def _empty_file() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="looopy-campaign-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    database = folder / "empty.db"

    async def make() -> None:
        async with open_stores(f"sqlite:///{database}"):
            pass

    run(lambda: asyncio.run(make()), folder / "log")
    return database


@cache
def _postgres() -> str:
    if given := os.environ.get("LOOOPY_TEST_PG"):
        name = f"looopy_{secrets.token_hex(6)}"
        ask(given, f"CREATE DATABASE {name}")
        atexit.register(ask, given, f"DROP DATABASE {name} WITH (FORCE)")
        url = urlunsplit(urlsplit(given)._replace(path=f"/{name}"))
    else:
        server = Server()
        atexit.register(server.remove)
        server.start()
        ask(server.url("postgres"), "CREATE DATABASE app")
        url = server.url("app")
    with tempfile.TemporaryDirectory() as folder:
        run(partial(migrate.upgrade, url), Path(folder) / "log")
    return url
