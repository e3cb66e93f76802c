"""
T12: the store's clock jumps while processes race, and nobody who may not write does.

The clock is a page of memory that all processes of a trial share (SQLite: a function of each
connection asks it; Postgres: a function of the same name as the server's own stands before it).
A process beside the race sets it back by an hour, forward by ten years, stops it, lets it go on in
small steps, in the middle of any lease. Each process believes the first look at a lease, and sees
nothing of the others: a turn may be taken from its owner by that, and then ends as interrupted.
Everything else is as in the race.

A clock that is set back by an hour must not keep a context shut for an hour either.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.campaign.places import STORES, broken, place, plain, rows_of, wrong
from tests.campaign.race import race
from tests.campaign.trial import Tally, Trial
from tests.campaign.zombies import Grave, one_zombie, without_fence
from tests.postgres import ask

from looopy.agent import lease as leases
from looopy.stores import owner as owners
from looopy.stores.sql.sqlite import connection as sqlite

_HOUR_US = 3600 * 1_000_000
_TEN_YEARS_US = 10 * 365 * 24 * _HOUR_US
_STEPS_BACK = ((0, -_HOUR_US), (_TEN_YEARS_US, 0), (_TEN_YEARS_US, -_HOUR_US))
_TTL_S = 0.5
_PROCESSES = 4
_JUMPS_PER_TURN = 4

# Before the server's own where the search path says so.
_SHADOW = (
    "CREATE SCHEMA warp",
    "CREATE TABLE warp.clock (ahead bigint, standing bigint)",
    "INSERT INTO warp.clock VALUES (0, NULL)",
    """CREATE FUNCTION warp.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
        SELECT coalesce(to_timestamp(standing / 1e6),
            pg_catalog.clock_timestamp() + ahead * interval '1 microsecond') FROM warp.clock
    $$""",
)


class Clock:
    """A clock that can be wrong, shared with every process that is forked after it was made."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def set(self, *, ahead_us: int, standing: bool = False) -> None:
        """Be *ahead_us* ahead of the true time, from now on, or only now and then stand still."""
        frozen = _true_us() + ahead_us if standing else 0
        struct.pack_into("=qq", self._page, 0, ahead_us, frozen)

    def now_us(self) -> int:
        """What it shows."""
        ahead, frozen = struct.unpack_from("=qq", self._page, 0)
        return frozen or _true_us() + ahead

    def end_one(self) -> None:
        """Note that one of the racing processes is done."""
        ended = self._page[16]
        self._page[16] = ended + 1

    @property
    def ended(self) -> int:
        """How many are."""
        return self._page[16]

    def count_jump(self) -> None:
        """Note that it was set."""
        struct.pack_into("=q", self._page, 24, self.jumps + 1)

    @property
    def jumps(self) -> int:
        """How often it was set."""
        jumps: int = struct.unpack_from("=q", self._page, 24)[0]
        return jumps


def _true_us() -> int:
    return time.time_ns() // 1000


def jump(rng: random.Random) -> tuple[int, bool]:
    """How far ahead of the true time a clock is next, and whether it stands still there."""
    far = (0, 0, -_HOUR_US, _TEN_YEARS_US)
    near = (rng.randrange(-2_000_000, 2_000_000), rng.randrange(50_000))
    return rng.choice(far + near), rng.random() < 0.2


def _trial(store: str, full: int) -> Trial:
    name = f"clock jumps, {store}"

    def run(number: int, seed: int) -> Tally:
        tally = Tally(name)
        clock = Clock()
        with place(store) as url:
            if store != "sqlite":
                put_clock_before(url)

            def wrap(body: Callable[[], None]) -> Callable[[], None]:
                def at_wrong_time() -> None:
                    sqlite._now_us = clock.now_us
                    try:
                        with _impatient():
                            body()
                    finally:
                        clock.end_one()

                return at_wrong_time

            def warp() -> None:
                rng = random.Random(seed)
                while clock.ended < _PROCESSES:
                    ahead_us, standing = jump(rng)
                    set_clock(url, clock, ahead_us, standing=standing)
                    clock.count_jump()
                    time.sleep(rng.random() * 0.02)

            race(
                tally,
                url,
                processes=_PROCESSES,
                contexts=1,
                turns=max(number // _JUMPS_PER_TURN, 4),
                seed=seed,
                wrap=wrap,
                beside=warp,
                may_lose_turns=True,
                lease_ttl_s=_TTL_S,
                delay_s=0.015,
            )
            tally.notes.append(_lost(url))
        tally.runs = clock.jumps
        return tally

    return Trial(name, full, run)


def _set_back(store: str, full: int) -> Trial:
    name = f"clock set back under a zombie, {store}"

    def run(number: int, seed: int) -> Tally:
        """However far it is set back, somebody else gets in while the owner does not stir."""
        tally = Tally(name)
        clock = Clock()
        with (
            place(store) as url,
            tempfile.TemporaryDirectory(prefix="looopy-clock-") as kept,
            broken(sqlite, "_now_us", lambda _: clock.now_us),
        ):
            if store != "sqlite":
                put_clock_before(url)
            for n in range(seed, seed + number):
                before_us, after_us = random.Random(n).choice(_STEPS_BACK)
                set_clock(url, clock, before_us)
                grave = Grave(url, f"back-{n}", n, Path(kept))
                came_about, problems = one_zombie(grave, partial(set_clock, url, clock, after_us))
                tally.runs += came_about
                tally.missed += not came_about
                tally.violations += [f"seed {n}: {problem}" for problem in problems]
        return tally

    return Trial(name, full, run)


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Be on a host of its own, and end a turn at the first sight of an expired lease."""
    here = f"{owners._host()}-{os.getpid()}"
    with (
        broken(owners, "_host", lambda _: lambda: here),
        broken(leases, "_LEFT_AFTER", lambda _: 0.0),
    ):
        yield


def put_clock_before(url: str) -> None:
    """Let a function of ours be the clock of a Postgres database."""
    for statement in _SHADOW:
        ask(plain(url), statement)
    ((database,),) = ask(plain(url), "SELECT current_database()")
    ask(plain(url), f"ALTER DATABASE {database} SET search_path = warp, pg_catalog, public")


def set_clock(url: str, clock: Clock, ahead_us: int, *, standing: bool = False) -> None:
    """Set the store's clock."""
    clock.set(ahead_us=ahead_us, standing=standing)
    if not url.startswith("sqlite"):
        now = clock.now_us() if standing else None
        ask(plain(url), "UPDATE warp.clock SET ahead = %s, standing = %s", ahead_us, now)


def _lost(url: str) -> str:
    ((lost,),) = rows_of(url, "SELECT count(*) FROM looopy_turns WHERE outcome = ?", "interrupted")
    return f"{lost} turns taken over"


TRIALS = [
    *(_trial(store, 1000) for store in STORES),
    *(_set_back(store, 50) for store in STORES),
]
WRONG = [wrong(TRIALS[0], "no fence", without_fence)]
