"""How a URL becomes stores, and how agents of one event loop share what was opened by URL."""

from __future__ import annotations

import asyncio
import contextlib
import re
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from looopy.errors import ConfigurationError, LooopyError
from looopy.stores.bundle import Stores, _logger, check_tenant

if TYPE_CHECKING:
    from looopy.stores.blobs.base import Blobs


def open_stores(
    url: str,
    *,
    tenant: str = "default",
    migrate: bool | None = None,
    blobs: str | Blobs | None = None,
) -> Stores:
    """
    Make the stores that *url* names; enter the result with `async with` before use.

    Args:
        url: `memory:` (each call a fresh one), `sqlite:///path/to/file.db` (three slashes for a
            relative path, four for an absolute one) or `postgresql://user:password@host/database`
            (`postgresql+psycopg://` for the other driver).
        tenant: The owner of these contexts.
        migrate: True if opening may change the schema. `None`: yes for SQLite, no for Postgres.
        blobs: The place for artifacts over 64 KiB: the path of a folder, or a URL such as
            `s3://bucket/prefix` (extra `blobs`). `None`: for SQLite the folder `file.db.blobs`
            beside the file, for Postgres the database. Every process that opens this database needs
            the same place.

    Raises:
        ConfigurationError: The URL names no known store; at the call.
        MissingExtra: Its driver is not installed; at the call.
        SchemaOutOfDate: On entering: the database needs migrating, or is newer than this version.
        StoreUnavailable: On entering: the database cannot be opened.
    """
    check_tenant(tenant)
    scheme = url.partition(":")[0] if isinstance(url, str) else ""
    if scheme == "memory":
        if blobs is not None:
            raise ConfigurationError("memory: keeps artifacts in memory: leave out `blobs`")
        from looopy.stores.memory_backend import MemoryBackend

        return MemoryBackend().stores(tenant)
    if scheme in ("sqlite", "sqlite+aiosqlite"):
        from looopy.stores.sql.engine import sqlite_stores

        return sqlite_stores(url, tenant=tenant, migrate=migrate is not False, blobs=blobs)
    if scheme in ("postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg"):
        from looopy.stores.sql.engine import postgres_stores

        return postgres_stores(url, tenant=tenant, migrate=migrate is True, blobs=blobs)
    raise ConfigurationError(
        f"{mask(url)!r} names no store: use memory:, sqlite:///path/to/file.db or"
        " postgresql://user:password@host/database"
    )


# A URL may be malformed in any way: the password ends no later than at the last @.
_LOGIN = r"(://[^:/?#]*:).*@"
_OPTION = r"(?i)((?:password|passwd|secret|token)=)[^&#]*"


def mask(url: object) -> str:
    """A URL fit for showing: without its password, which may also be an option."""
    return re.sub(_OPTION, r"\1***", re.sub(_LOGIN, r"\1***@", str(url)))


class _Shared:
    """Stores that the agents with one URL share on one event loop."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # of this URL alone: opening may wait long for a server
        self.visitors = 0
        self.stores: Stores | None = None
        self.users = 0

    async def close(self) -> None:
        """Close what is open."""
        stores, self.stores = self.stores, None
        if stores is not None:
            await stores.__aexit__(None, None, None)


class _Place:
    """All that is shared on one event loop, by URL."""

    def __init__(self) -> None:
        self.entries: dict[str, _Shared] = {}
        self.end: AsyncGenerator[None, None] | None = None


# An open store refers to its loop, so the weak key alone would never release it.
_places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = weakref.WeakKeyDictionary()


async def _place_here() -> _Place:
    """The stores shared on the running loop, until that loop ends."""
    for loop in [loop for loop in _places if loop.is_closed()]:  # it ended without `_until_end`
        del _places[loop]
    here = asyncio.get_running_loop()
    place = _places.get(here)
    if place is None:
        place = _places[here] = _Place()
        place.end = _until_end(here, place)
        await anext(place.end)
    return place


async def _until_end(loop: asyncio.AbstractEventLoop, place: _Place) -> AsyncGenerator[None, None]:
    """
    Close the remaining stores when the event loop ends.

    `asyncio.run()` closes the asynchronous generators of its loop once all tasks are over. Only at
    that moment is an agent known to be forgotten, and it can still be closed.
    """
    try:
        yield
    finally:
        _places.pop(loop, None)
        for url, shared in place.entries.items():
            try:
                await shared.close()
            except LooopyError as error:  # it has no waiters
                _logger.warning("stores at %s were not closed: %s", mask(url), error)


@contextlib.asynccontextmanager
async def _shared_here(url: str) -> AsyncIterator[_Shared]:
    """The entry of *url* on the running loop, for one caller at a time."""
    entries = (await _place_here()).entries
    shared = entries.setdefault(url, _Shared())
    shared.visitors += 1
    try:
        async with shared.lock:
            yield shared
    finally:
        shared.visitors -= 1
        if not shared.visitors and shared.stores is None:
            del entries[url]


async def acquire_shared(url: str) -> Stores:
    """
    The stores that all agents with *url* on this event loop share; opened for the first of them.
    When the event loop ends, they are closed even if they were not released.

    Raises:
        ConfigurationError: The URL names no known store.
        SchemaOutOfDate: See `open_stores`.
        StoreUnavailable: See `open_stores`.
    """
    async with _shared_here(url) as shared:
        stores = shared.stores
        if stores is None:
            stores = open_stores(url)
            await stores.__aenter__()
            shared.stores = stores
        shared.users += 1
        return stores


async def release_shared(url: str) -> None:
    """
    Release the stores of `acquire_shared`; the last user closes them. Memory stays until the loop
    ends.
    """
    async with _shared_here(url) as shared:
        shared.users -= 1
        if not shared.users and urlsplit(url).scheme != "memory":
            await shared.close()
