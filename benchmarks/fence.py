"""
Measure the cost of the fence: a commit of a turn against the same rows written without it.

A step of a turn (an assistant message and a `tool_execution_start`, about 1 KB) is committed
through the journal, fenced: the row of its context is updated under the epoch of the claim, and
gives the numbers. The other way writes two rows of the same size, by the same driver and in as
many round trips. It counts the numbers itself and touches no other row, so it would not notice
another writer. The two ways alternate in one run, so that other work of the machine falls on both,
and the medians are compared. The promise is a ratio of at most 1.3 on each backend. The fastest
tenth shows how much of the time the machine spent on other things.

If Postgres is available, a commit and a read are also measured with row-level security.

    python -m benchmarks.fence [COMMITS] [--check] [sqlite] [asyncpg] [psycopg]

Postgres is a server of our own that syncs each commit, or that of `LOOOPY_TEST_PG`.
"""

import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.postgres import Server, as_driver, ask

from looopy.stores import open_stores
from looopy.stores.bundle import Stores
from looopy.stores.records import Commit
from looopy.stores.rows import events as rows
from looopy.stores.sql import migrate
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Steps
from looopy.testing.contracts.turns import LONG_S, answer, begin, said, starts
from looopy.types.message import ToolCall

LIMIT = 1.3
BACKENDS = ("sqlite", "asyncpg", "psycopg")
CALL = ToolCall(id="call-1", name="search", arguments={"query": "x" * 400})
APP = "looopy_bench"


def step() -> list:
    """The events of one commit."""
    return [said(answer("y" * 500, CALL)), starts(CALL)]


class Fenced:
    """Commits of a turn, as an agent makes them."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.claimed = None

    async def write(self) -> None:
        """Commit one step; the first one claims the context."""
        if self.claimed is None:
            self.claimed = await begin(self.stores, context_id="fenced", ttl_s=LONG_S)
        epoch, turn = self.claimed.epoch, self.claimed.turn
        given = Commit(context_id="fenced", epoch=epoch, turn=turn, events=step(), ttl_s=LONG_S)
        await self.stores.commit(given)

    async def read(self) -> None:
        """Load the row of the context."""
        await self.stores.state.load("fenced")


class Plain:
    """The same rows in a context of their own, whose row is not touched."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.number = 0
        # SQLite runs any number of statements in one hop, Postgres one in one round trip.
        self.in_one = "postgres" in type(stores.messages.backend).__module__

    async def write(self) -> None:
        """Insert one step; the first one makes the context."""
        if not self.number:
            await self.stores.state.save("plain", {}, version=0)
        self.number += 1
        encoded = rows.encode(step())
        # One statement is a transaction of its own on Postgres only when it is said to read.
        write = not self.in_one
        await self.stores.messages.backend.run(lambda: self._steps(encoded), write=write)

    def _steps(self, encoded: rows.Rows) -> Steps[None]:
        message, event = encoded.messages[0], encoded.events[0]
        common = {"tenant": self.stores.tenant, "context": "plain", "turn": 1, "iteration": 1}
        written = {
            "position": self.number,
            "seq": 2 * self.number - 1,
            "created_at": message.created_us,
            "role": message.role,
            "meta": message.meta,
            "body": message.body,
        }
        begun = {
            "position": self.number,
            "seq": 2 * self.number,
            "created_at": event.created_us,
            "type": event.type,
            "body": event.body,
        }
        if not self.in_one:
            yield Query(s.ADD_MESSAGE, common | written)
            yield Query(s.ADD_EVENT, common | begun)
            return
        parts = [(s.ADD_MESSAGE, common | written), (s.ADD_EVENT, common | begun)]
        texts = [re.sub(r":(\w+)", rf":\1_q{n}", sql) for n, (sql, _) in enumerate(parts)]
        params = {f"{k}_q{n}": v for n, (_, given) in enumerate(parts) for k, v in given.items()}
        whole = f"WITH q AS ({texts[0]}) {texts[1]} RETURNING 1"
        yield Query(whole, common | params, alone=True)


async def measure(
    ways: dict[str, Callable[[], Awaitable[None]]], count: int
) -> dict[str, tuple[float, float]]:
    """Microseconds of each way, the median and the fastest tenth; they take turns, in any order."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(count + 20):
        names.append(names.pop(0))
        for name in names:
            began = time.perf_counter()
            await ways[name]()
            if number >= 20:  # the first ones make connections and prepare statements
                times[name].append(time.perf_counter() - began)
    return {
        name: (1e6 * statistics.median(taken), 1e6 * statistics.quantiles(taken, n=10)[0])
        for name, taken in times.items()
    }


async def compare(backend: str, url: str, secured: str | None, count: int) -> float:
    """Print what each way takes, and return the ratio of the fenced commit to the plain rows."""
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(url, tenant=backend))
        fenced = Fenced(stores)
        ways = {"fenced": fenced.write, "plain": Plain(stores).write}
        if secured is not None:
            theirs = open_stores(secured, tenant=f"{backend} secured")
            guarded = Fenced(await stack.enter_async_context(theirs))
            ways |= {"rls": guarded.write, "read": fenced.read, "rls read": guarded.read}
        found = await measure(ways, count)
    us = {name: median for name, (median, _) in found.items()}
    ratio = us["fenced"] / us["plain"]
    fast = [found[name][1] for name in ("fenced", "plain")]
    print(
        f"{backend:8} fenced {us['fenced']:6.0f} us, plain {us['plain']:6.0f} us: {ratio:.2f}"
        f" (median of {count}, the promise is {LIMIT}); fastest tenth"
        f" {fast[0]:.0f} us, {fast[1]:.0f} us: {fast[0] / fast[1]:.2f}"
    )
    if secured is not None:
        print(
            f"{'':8} with row-level security: commit {us['rls']:6.0f} us"
            f" ({us['rls'] / us['fenced']:.2f}), read {us['rls read']:.0f} us for {us['read']:.0f}"
        )
    return ratio


@contextmanager
def postgres() -> Iterator[tuple[str, str]]:
    """URLs of a database that is not secured, for its owner, and of one that is, for a user."""
    server = None
    if not (admin := os.environ.get("LOOOPY_TEST_PG")):
        server = Server("fsync=on", "full_page_writes=on", "synchronous_commit=on")
        server.start()
        admin = server.url("postgres")
    names = [f"looopy_bench_{os.getpid()}_{n}" for n in range(2)]
    open_url, secured = (urlsplit(admin)._replace(path=f"/{name}").geturl() for name in names)
    try:
        if not ask(admin, "SELECT 1 FROM pg_roles WHERE rolname = %s", APP):
            ask(admin, f"CREATE ROLE {APP} LOGIN PASSWORD '{APP}'")
        for name in names:
            ask(admin, f"CREATE DATABASE {name}")
        migrate.upgrade(open_url)
        migrate.upgrade(secured)
        migrate.secure(secured, APP)
        parts = urlsplit(secured)
        host = parts.netloc.rpartition("@")[2]
        yield open_url, parts._replace(netloc=f"{APP}:{APP}@{host}").geturl()
    finally:
        for name in names:
            ask(admin, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        if server is not None:
            server.remove()


def main() -> int:
    """Measure; with `--check` fail over the limit."""
    count = next((int(a) for a in sys.argv[1:] if a.isdecimal()), 500)
    chosen = [name for name in BACKENDS if name in sys.argv[1:]] or BACKENDS
    ratios = []
    if "sqlite" in chosen:
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder) / 'fence.db'}"
            ratios.append(asyncio.run(compare("sqlite", url, None, count)))
    drivers = [name for name in chosen if name != "sqlite"]
    if drivers:
        with postgres() as (url, secured):
            for name in drivers:
                urls = as_driver(url, name), as_driver(secured, name)
                ratios.append(asyncio.run(compare(name, *urls, count)))
    return int("--check" in sys.argv and max(ratios) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
