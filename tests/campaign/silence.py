"""
Let a database fall silent under a process that runs turns: the network stands still.

A proxy stops passing on one connection, or all of them, at the moment of a commit: before it
reaches the server, when half of it has, or when only the reply is outstanding. Everything that was
said is passed on at last, long after it was given up. Each call ends while the silence lasts,
callers are told the truth, and nothing is lost or doubled.

The limits are those of a database whose statements may run for 0.3 s, so that a run is short.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from tests.campaign.databases import DRIVERS, postgres
from tests.campaign.server_loss import in_batches
from tests.campaign.traffic import Traffic, traffic
from tests.campaign.trial import Trial
from tests.cutting import Cutter
from tests.postgres import as_driver

from looopy.stores.sql.postgres import pool as pg_pool

_BATCH = 5
_STATEMENT_MS = 300
_SPARE_S = 0.3
_PATIENCE_S = 0.5
_CONNECT_S = 2
_BOUND_S = 60.0  # many times what a turn may take that fails at each step
_SILENT_WITHIN = 6  # commits
_LONGEST_S = 1.5  # of a silence that ends by itself
_LASTING = 0.4  # of the silences: they last until every call that they met has ended
_LOOK_S = 0.001
_MOMENTS = ("before", "middle", "after")


async def _hang_often(how: str, driver: str, seed: int, count: int) -> tuple[int, Traffic]:
    rng = random.Random(seed)
    options = f"&connect_timeout={_CONNECT_S}&options=-c%20statement_timeout%3D{_STATEMENT_MS}"
    usual, pg_pool.SPARE_S = pg_pool.SPARE_S, _SPARE_S
    try:
        async with Cutter(postgres(driver)) as cutter:
            url = as_driver(cutter.url, driver) + options
            async with traffic(
                url, seed, users=4, think_s=0.01, patience_s=_PATIENCE_S, may_fail=True
            ) as users:
                for _ in range(count):
                    where = f"{how} {rng.choice(_MOMENTS)}"
                    cutter.cuts = ["never"] * rng.randrange(_SILENT_WITHIN) + [where]
                    while cutter.cuts:  # noqa: ASYNC110 - what is waited for is anybody's commit
                        await asyncio.sleep(_LOOK_S)
                    if rng.random() < _LASTING:
                        await _all_end(users)
                    else:
                        await asyncio.sleep(rng.random() * _LONGEST_S)
                    cutter.thaw()
    finally:
        pg_pool.SPARE_S = usual
    return count, users


async def _all_end(users: Traffic) -> None:
    """Wait for the end of each call that is being made now."""
    now = dict(users.at_work)
    try:
        async with asyncio.timeout(_BOUND_S):
            while now.items() & users.at_work.items():  # noqa: ASYNC110 - anybody's end counts
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        users.problems.append(f"a call did not end within {_BOUND_S:.0f} s of silence")


TRIALS = [
    Trial(
        f"hung statements, {what}, {driver}",
        500,
        partial(
            in_batches,
            f"hung statements, {what}, {driver}",
            partial(_hang_often, how, driver),
            _BATCH,
        ),
    )
    for what, how in (("one connection", "hang"), ("all connections", "freeze"))
    for driver in DRIVERS
]
