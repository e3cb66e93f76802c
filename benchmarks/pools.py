"""
Our pool of connections beside those of the drivers, under the same stores.

    pip install psycopg-pool
    python -m benchmarks.pools                some minutes
    python -m benchmarks.pools --pooler       through a PgBouncer in transaction mode
    python -m benchmarks.pools --first        the first turn of stores that were just opened
    LOOOPY_POOL=theirs python -m pytest -p benchmarks.pools tests/contract/postgres -k "not level"
                                              what our tests say of theirs; `alike`: see `AllAlike`

Only the pool differs. Statements, deadlines, the set-up of a connection and the fate of a cut
commit are ours each time. All of a driver's run in one process and take turns, so that whatever
else the machine does meets each of them. CPU is that of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, ClassVar

from benchmarks.subjects import Looopy
from benchmarks.targets import targets
from benchmarks.workload import question

from looopy.stores.sql.postgres import driver, migrate, pool
from looopy.stores.sql.postgres.errors import Trouble
from looopy.stores.sql.postgres.pool import (
    Pool,
    Session,
    connect,
    connect_args,
    no_connection,
    set_up,
)
from looopy.stores.sql.postgres.url import PostgresURL
from looopy.stores.sql.postgres.wire import Wire, wire_of

_SIZES = (1, 8, 32)  # contexts at once
_TURNS = 96  # of all contexts together, in each round
_ROUNDS = 12


class AllAlike(Pool):
    """Ours, where whoever says something in passing is treated like all others."""

    def session(self, *, brief: bool = False, until: float | None = None) -> Session:
        """See `Pool`."""
        del brief
        return super().session(until=until)


class _Theirs(Pool):
    """What the drivers' pools have in common here."""

    too_late: ClassVar[tuple[type[Exception], ...]] = (TimeoutError,)

    def __init__(self, url: PostgresURL, *, patience_s: float = 30.0) -> None:
        super().__init__(url, patience_s=patience_s)
        self._inner: Any = None
        self._opening = asyncio.Lock()
        self._wires: dict[int, Wire] = {}  # by the identity of a connection
        self._lent: dict[int, Any] = {}  # by that of a wire

    async def make(self) -> Any:
        """Make the driver's pool."""
        raise NotImplementedError

    async def lend(self, patience_s: float) -> tuple[Any, Any]:
        """What the driver's pool lends, and the connection in it."""
        raise NotImplementedError

    async def put_back(self, lent: Any) -> None:
        """Give it back."""
        raise NotImplementedError

    async def set_up(self, connection: Any) -> None:
        """Do with a new connection what ours does."""
        wire = self._wires[id(connection)] = wire_of(connection)
        await set_up(wire, self._url)

    async def forget_idle(self) -> None:
        """Have the idle ones made anew: they may be as silent as the one that was cut."""
        raise NotImplementedError

    @property
    def in_use(self) -> int:
        """See `Pool`."""
        return len(self._lent)

    def session(self, *, brief: bool = False, until: float | None = None) -> Session:
        """See `Pool`."""
        del brief
        return _Released(self, until=until)

    async def take(self, *, brief: bool = False, until: float | None = None) -> tuple[Wire, bool]:
        """See `Pool`."""
        del brief
        if self._inner is None:
            async with self._opening:
                self._inner = self._inner or await self.make()
        left_s = self._patience_s
        if until is not None:
            left_s = min(left_s, until - asyncio.get_running_loop().time())
        try:
            lent, connection = await self.lend(max(left_s, 0.001))
        except self.too_late:
            raise Trouble(None, words="has had no connection free: raise pool_size") from None
        except Exception as error:  # noqa: BLE001 - sorted out by the next function
            raise no_connection(error) from None
        wire = self._wires[id(connection)]
        reused, wire.idle_since = wire.idle_since == 0, 0
        self._lent[id(wire)] = lent
        return wire, reused

    async def give_back(self, wire: Wire) -> None:
        """Take back one that is clean."""
        await self.put_back(self._lent.pop(id(wire)))

    async def drop(self, wire: Wire, *, brief: bool = False) -> None:
        """See `Pool`."""
        del brief
        silent = wire.was_silent()
        await wire.close(at_once=True)
        await self.put_back(self._lent.pop(id(wire)))
        if silent:
            await self.forget_idle()

    async def close(self) -> None:
        """See `Pool`."""
        self._closed = True
        if self._inner is not None:
            await self._inner.close()


class OfAsyncpg(_Theirs):
    """`asyncpg.create_pool`, whose `reset` asks the server nothing."""

    async def make(self) -> Any:
        """See `_Theirs`."""
        import asyncpg

        async def made(*_: Any, **__: Any) -> Any:
            return await connect(self._url)

        async def reset(_: Any) -> None:
            """Do nothing: one that is not clean is closed."""

        return await asyncpg.create_pool(
            connect=made,
            init=self.set_up,
            reset=reset,
            min_size=0,
            max_size=self._url.pool_size,
            max_queries=2**62,
            max_inactive_connection_lifetime=min(self._url.max_idle_s, 1e9),
        )

    async def lend(self, patience_s: float) -> tuple[Any, Any]:
        """See `_Theirs`."""
        lent = await self._inner.acquire(timeout=patience_s)
        return lent, lent._con  # noqa: SLF001 - what it lends is a face of that

    async def put_back(self, lent: Any) -> None:
        """See `_Theirs`."""
        await self._inner.release(lent)

    async def forget_idle(self) -> None:
        """See `_Theirs`."""
        await self._inner.expire_connections()

    @property
    def idle(self) -> int:
        """See `Pool`."""
        return 0 if self._inner is None else self._inner.get_idle_size()


class OfPsycopg(_Theirs):
    """`psycopg_pool.AsyncConnectionPool`, which looks at no connection before it lends it."""

    async def make(self) -> Any:
        """See `_Theirs`."""
        import psycopg_pool

        type(self).too_late = (psycopg_pool.PoolTimeout,)
        given = connect_args(self._url)
        inner = psycopg_pool.AsyncConnectionPool(
            given.pop("conninfo"),
            kwargs=given,
            min_size=0,
            max_size=self._url.pool_size,
            open=False,
            configure=self.set_up,
            timeout=self._patience_s,
            max_idle=min(self._url.max_idle_s, 1e9),
            max_lifetime=min(self._url.max_age_s, 1e9),
        )
        await inner.open()
        return inner

    async def lend(self, patience_s: float) -> tuple[Any, Any]:
        """See `_Theirs`."""
        lent = await self._inner.getconn(timeout=patience_s)
        return lent, lent

    async def put_back(self, lent: Any) -> None:
        """See `_Theirs`."""
        await self._inner.putconn(lent)

    async def forget_idle(self) -> None:
        """See `_Theirs`."""
        await self._inner.drain()

    @property
    def idle(self) -> int:
        """See `Pool`."""
        return 0 if self._inner is None else self._inner.get_stats()["pool_available"]


class _Released(Session):
    """A session of a pool that takes a connection back by a coroutine."""

    __slots__ = ()
    _pool: _Theirs

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._between and not self._pool.closed:
            await self._pool.give_back(self._wire)
        else:
            await self._pool.drop(self._wire)


def theirs(url: PostgresURL, **options: Any) -> Pool:
    """The pool of the driver of *url*."""
    return (OfAsyncpg if url.driver == "asyncpg" else OfPsycopg)(url, **options)


_POOLS: dict[str, Any] = {"ours": Pool, "alike": AllAlike, "theirs": theirs}


def _install(name: str) -> None:
    for module in (driver, migrate, pool):
        vars(module)["Pool"] = _POOLS[name]


if "LOOOPY_POOL" in os.environ:
    _install(os.environ["LOOOPY_POOL"])


class _Run:
    """One pool under one store, and what its rounds took."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.subject = Looopy(url)
        self.rates: list[float] = []
        self.costs: list[float] = []
        self._turn = 0

    async def open(self) -> None:
        """Open the stores on the pool."""
        _install(self.name)
        await self.subject.open()
        _install("ours")

    async def round(self, contexts: int) -> None:
        """Take turns on so many contexts at once."""
        began, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(self._chat(number, contexts) for number in range(contexts)))
        spent, wall = time.process_time() - spent, time.perf_counter() - began
        await asyncio.sleep(0.05)  # the last news are told
        self.rates.append(_TURNS / wall)
        self.costs.append(spent / _TURNS * 1e3)

    async def _chat(self, number: int, contexts: int) -> None:
        for _ in range(_TURNS // contexts):
            self._turn += 1
            await self.subject.turn(f"{self.name}-{number}", question(self._turn))


async def _measure(url: str, contexts: int, rounds: int) -> None:
    runs = [_Run(name, url) for name in _POOLS]
    async with contextlib.AsyncExitStack() as stack:
        for run in runs:
            await run.open()
            stack.push_async_callback(run.subject.close)
            await run.round(contexts)
            run.rates.clear()
            run.costs.clear()
        for number in range(rounds):
            for run in (*runs[number % 3 :], *runs[: number % 3]):
                await run.round(contexts)
    for run in runs:
        rate, cost = statistics.median(run.rates), statistics.median(run.costs)
        print(
            f"{url.partition(':')[0]:<22} {contexts:>3} contexts  {run.name:<7}"
            f" {rate:>7.1f} turns/s {cost:>7.3f} ms CPU a turn, at least {min(run.costs):.3f}",
            flush=True,
        )


async def _first(url: str, bare: str, rounds: int) -> None:
    from tests.postgres import ask

    found: dict[str, list[tuple[float, int]]] = {name: [] for name in _POOLS}
    for number in range(rounds):
        names = list(_POOLS)
        for name in (*names[number % 3 :], *names[: number % 3]):
            run = _Run(name, f"{url}&application_name=pools")
            run.subject.model.calls_tool = True
            spent = time.process_time()
            await run.open()
            await run.subject.turn(f"first-{name}-{number}", question(number))
            await asyncio.sleep(0.1)  # the last news are told
            spent = time.process_time() - spent
            counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pools'"
            ((sessions,),) = ask(bare, counted)
            found[name].append((spent * 1e3, int(str(sessions))))
            await run.subject.close()
    for name, figures in found.items():
        costs, sessions_of = zip(*figures, strict=True)
        print(
            f"{url.partition(':')[0]:<22} first turn   {name:<7} {statistics.median(costs):>7.2f}"
            f" ms CPU, {statistics.mean(sessions_of):.1f} connections",
            flush=True,
        )


@contextlib.contextmanager
def _through(url: str, *, pooler: bool) -> Iterator[str]:
    if not pooler:
        yield url
        return
    from tests.pgbouncer import Bouncer

    with Bouncer(url, "transaction", default_pool_size=10) as bouncer:
        yield f"{bouncer.url}&pooler=transaction"


def main() -> None:
    """See the module."""
    from tests.postgres import as_driver

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--pooler", action="store_true", help="through PgBouncer")
    parser.add_argument("--first", action="store_true", help="the first turn alone")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    given = parser.parse_args()
    with targets(postgres=True) as place:
        for driver in ("asyncpg", "psycopg"):
            if given.first:
                with place.fresh("postgres") as bare:
                    asyncio.run(_made(bare))
                    asyncio.run(_first(as_driver(bare, driver), bare, given.rounds))
                continue
            for contexts in _SIZES:
                with place.fresh("postgres") as bare:
                    asyncio.run(_made(bare))
                    with _through(bare, pooler=given.pooler) as url:
                        asyncio.run(_measure(as_driver(url, driver), contexts, given.rounds))


async def _made(url: str) -> None:
    subject = Looopy(url)
    await subject.open()
    await subject.close()


if __name__ == "__main__":
    main()
