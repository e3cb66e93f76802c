"""
Take the database away from a process that runs turns (T3).

The whole server, stopped at once and started again; single connections, ended by an administrator;
and the network, cut right before what commits reaches the server, right after the server has obeyed
it and before anybody hears of it, or in the middle, while it may be at it. Everything goes on by
itself afterwards, and at any moment the callers were told the truth.

Runs come in batches of one process with one set of connections. A violation names the seed of its
batch, and `--runs` with the size of a batch repeats it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import psycopg
from tests.campaign.databases import DRIVERS, postgres
from tests.campaign.traffic import Traffic, traffic
from tests.campaign.trial import Tally, Trial
from tests.cutting import Cutter
from tests.postgres import Server, as_driver, ask

from looopy.stores.sql import migrate
from looopy.stores.sql.postgres.driver import PATIENCE_S
from looopy.testing.children import run

_SHORT_PATIENCE_S = 0.25  # soon over, so that users are told of what went wrong
_BATCH_OF_STOPS = 5
_BATCH_OF_CUTS = 5
_BATCH_OF_ENDS = 100
_LOAD_S = 1.0  # between two stops, at most
_AWAY_S = 0.5  # how long server or network are gone, at most
_DARK = 0.2  # of the batches with cuts: the network is gone for a while after each
_CUT_WITHIN = 6  # commits
_LOOK_S = 0.001
_END_ONE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    " AND (state <> 'idle' OR random() < 0.1) ORDER BY random() LIMIT 1"
)

Batch = Callable[[int, int], Awaitable[tuple[int, Traffic]]]
"""From a seed and a number of runs to the runs that were made, and the users who saw them."""


def in_batches(name: str, batch: Batch, size: int, count: int, seed: int) -> Tally:
    """Make *count* runs, *size* at a time in an event loop of their own."""
    tally = Tally(name)
    told = {True: 0, False: 0}
    turns = 0
    for first in range(seed, seed + count, size):
        made, users = asyncio.run(_run(batch, first, min(size, seed + count - first)))
        tally.runs += made
        tally.violations += [f"seed {first}: {p}" for p in users.problems]
        turns += users.turns
        for known in told:
            told[known] += users.unavailable[known]
    tally.notes.append(
        f"{turns} turns; unavailable: {told[True]} with nothing written, {told[False]} unknown"
    )
    return tally


async def _run(batch: Batch, seed: int, count: int) -> tuple[int, Traffic]:
    return await batch(seed, count)


# --- the server ---


def _stops(count: int, seed: int) -> Tally:
    """Stop a server at once, as a crash would, and start it again, under load."""
    server = Server("synchronous_commit=on")
    try:
        server.start()
        ask(server.url("postgres"), "CREATE DATABASE app")
        with tempfile.TemporaryDirectory() as folder:
            run(partial(migrate.upgrade, server.url("app")), Path(folder) / "log")
        batch = partial(_stop_often, server)
        return in_batches("immediate stops of the server", batch, _BATCH_OF_STOPS, count, seed)
    finally:
        server.remove()


async def _stop_often(server: Server, seed: int, count: int) -> tuple[int, Traffic]:
    rng = random.Random(seed)
    url = as_driver(server.url("app"), rng.choice(DRIVERS))
    patience_s = rng.choice((_SHORT_PATIENCE_S, PATIENCE_S))
    async with traffic(
        url, seed, users=16, think_s=0.1, patience_s=patience_s, may_fail=True
    ) as users:
        for _ in range(count):
            await asyncio.sleep(rng.random() * _LOAD_S)
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            await asyncio.sleep(rng.random() * _AWAY_S)
            await asyncio.to_thread(server.start)
    return count, users


# --- one connection ---


async def _end_often(seed: int, count: int) -> tuple[int, Traffic]:
    rng = random.Random(seed)
    url = postgres(rng.choice(DRIVERS))
    ended = 0
    plain = postgres(DRIVERS[0]).replace(f"+{DRIVERS[0]}", "")
    async with (
        await psycopg.AsyncConnection.connect(plain, autocommit=True) as admin,
        traffic(url, seed, users=8, think_s=0.02) as users,
    ):
        while ended < count:
            await asyncio.sleep(rng.random() * 0.02)
            cursor = await admin.execute(_END_ONE)
            ended += len(await cursor.fetchall())
    return ended, users


# --- the network ---


async def _cut_often(where: str, driver: str, seed: int, count: int) -> tuple[int, Traffic]:
    rng = random.Random(seed)
    dark = rng.random() < _DARK
    async with Cutter(postgres(driver)) as cutter:
        url = as_driver(cutter.url, driver)
        patience_s = _SHORT_PATIENCE_S if dark else PATIENCE_S
        async with traffic(
            url, seed, users=4, think_s=0.01, patience_s=patience_s, may_fail=dark
        ) as users:
            if dark:
                cutter.on_cut = partial(_go_dark, cutter)
            for _ in range(count):
                cutter.cuts = ["never"] * rng.randrange(_CUT_WITHIN) + [where]
                while cutter.cuts:  # noqa: ASYNC110 - what is waited for is a commit of anybody
                    await asyncio.sleep(_LOOK_S)
                if dark:
                    await asyncio.sleep(rng.random() * _AWAY_S)
                    cutter.refusing = False
    return count, users


def _go_dark(cutter: Cutter) -> None:
    """Refuse connections, and cut all there are but the one whose commit is being cut."""
    cutter.refusing = True
    current = asyncio.current_task()
    cutter.sever(but=current)


_CUTS = {"before": "before", "after": "after", "in the middle of": "middle"}

TRIALS = [
    Trial("immediate stops of the server", 200, _stops),
    *(
        Trial(
            f"cuts {when} COMMIT, {driver}",
            500,
            partial(
                in_batches,
                f"cuts {when} COMMIT, {driver}",
                partial(_cut_often, where, driver),
                _BATCH_OF_CUTS,
            ),
        )
        for when, where in _CUTS.items()
        for driver in DRIVERS
    ),
    Trial(
        "connections that are ended",
        1000,
        partial(in_batches, "connections that are ended", _end_often, _BATCH_OF_ENDS),
    ),
]
