"""
Keeps a claimed context while its turn runs, and finds turns that their owner has left.

A lease is renewed three times within its life, beside the commits, which renew it too. If a renewal
reports that the context has moved on, the holder is called once. The fence refuses its later writes
in any case.

An expired lease alone proves little. The store may have stood still, so that no owner could renew a
lease, or its clock may have jumped. A process that finds an expired lease therefore reads it again.
With its own clock it counts how long the store has taken writes while the same lease stayed
unchanged. After half of a lease, in which a living owner renews at least once, the turn counts as
left. An owner that is seen to run on this host keeps its turn whatever any clock says. An owner
that is seen to be dead has lost it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from looopy.errors import StoreError
from looopy.loop.interrupt import after
from looopy.stores.base import StateStore
from looopy.stores.owner import provably_alive, provably_dead, ttl_of
from looopy.stores.records import ContextRecord

_RENEWALS_PER_TTL = 3
_TRIES_PER_TTL = 12  # after a renewal that failed
# Parts of a lease's life:
_LEFT_AFTER = 1 / 2  # the time of one renewal, and room for a slow store
_COUNTED_AT_MOST = 1 / 5  # of the time between two reads: the store may have stood still
_LOOK_AFTER = 1 / 10
_MOST_SIGHTINGS = 1024


class Lease:
    """The lease of one claim; *lost* is called if another owner has taken the context."""

    def __init__(
        self,
        state: StateStore,
        context_id: str,
        epoch: int,
        ttl_s: float,
        lost: Callable[[], object],
    ) -> None:
        self._state = state
        self._context_id = context_id
        self._epoch = epoch
        self._ttl_s = ttl_s
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._renewing: asyncio.Task[None] | None = None
        self._timer = self._in(ttl_s / _RENEWALS_PER_TTL)

    def let_go(self) -> None:
        """Stop renewing."""
        self._timer.cancel()
        if self._renewing is not None:
            self._renewing.cancel()

    def _in(self, seconds: float) -> asyncio.TimerHandle:
        return after(seconds, self._start)

    def _start(self) -> None:
        self._renewing = self._loop.create_task(self._renew(), name="looopy lease")

    async def _renew(self) -> None:
        try:
            held = await self._state.renew(self._context_id, self._epoch, self._ttl_s)
        except StoreError:  # retry soon: once the store is back, others read the lease
            self._timer = self._in(self._ttl_s / _TRIES_PER_TTL)
            return
        if held:
            self._timer = self._in(self._ttl_s / _RENEWALS_PER_TTL)
        else:
            self._lost()


@dataclass(slots=True)
class _Sighting:
    """An expired lease: the store has answered for `counted` seconds, until `at`."""

    at: float
    counted: float = 0.0


# By context, epoch, holder and expiry, because an agent may live no longer than one read. At the
# limit, the oldest entry is dropped.
_sightings: dict[tuple[str, int, str, float], _Sighting] = {}


async def left_in_s(
    state: StateStore,
    record: ContextRecord,
    ttl_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """
    The time until the open turn of *record*, which was read just now, counts as left by its owner.

    Args:
        ttl_s: The life of a lease, if its holder does not name one.

    Returns:
        0 if it is left: the caller ends it. `None` while an owner runs it. Otherwise, read the
        record again after so many seconds.

    Raises:
        StoreUnavailable: The store takes no writes, so no owner can have renewed its lease.
    """
    holder = record.holder
    if holder is None or provably_dead(holder):
        return 0.0
    if record.lease_live or provably_alive(holder):
        return None
    life_s = ttl_of(holder) or ttl_s
    # A file that another program has locked can still be read. So this renews a lease that no owner
    # holds: it changes nothing, and shows if the owner could have renewed its own.
    await state.renew(record.context_id, 0, life_s)
    name = (record.context_id, record.epoch, holder, record.lease_until)
    now = clock()
    seen = _sightings.get(name)
    if seen is None:
        if len(_sightings) >= _MOST_SIGHTINGS:
            _sightings.pop(next(iter(_sightings)), None)
        seen = _sightings[name] = _Sighting(now)
    seen.counted += min(now - seen.at, life_s * _COUNTED_AT_MOST)
    seen.at = now
    left = life_s * _LEFT_AFTER - seen.counted
    return min(left, life_s * _LOOK_AFTER) if left > 0 else 0.0


def seems_left(record: ContextRecord) -> bool:
    """True if one read finds no owner of the open turn. Only for display, never for a decision."""
    holder = record.holder
    if holder is None or provably_dead(holder):
        return True
    return not record.lease_live and not provably_alive(holder)
