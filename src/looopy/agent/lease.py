"""
Keep a claimed context while its turn runs, and tell when somebody else has left one.

A lease is renewed three times within its life, beside the commits, which renew it too. When a
renewal says that the context has moved on, the holder is told once; what it would still write is
refused by the fence in any case.

An expired lease says little by itself. The store may have stood still, so that nobody could renew
anything, or its clock may have jumped. Whoever finds one therefore looks again, and counts by a
clock of its own how long the store has taken writes while the same lease stayed as it is. After
half of a lease, in which a living owner renews at least once, the turn counts as left. An owner
that is seen to run on this host keeps its turn whatever any clock says; one that is seen to be dead
has none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from looopy.errors import StoreError
from looopy.loop.scope import after
from looopy.stores.base import StateStore
from looopy.stores.owner import provably_alive, provably_dead, ttl_of
from looopy.stores.records import ContextRecord

_RENEWALS_PER_TTL = 3
_TRIES_PER_TTL = 12  # after a renewal that failed
# Parts of a lease's life:
_LEFT_AFTER = 1 / 2  # a whole renewal, and room for a store that is slow
_COUNTED_AT_MOST = 1 / 5  # of what is between two looks: the store may have stood still
_LOOK_AFTER = 1 / 10
_MOST_SIGHTINGS = 1024


class Lease:
    """
    The lease of one claim.

    Args:
        lost: Called when another owner has taken the context.
    """

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
        """Renew no more."""
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
        except StoreError:  # soon again: once the store is back, others look at the lease
            self._timer = self._in(self._ttl_s / _TRIES_PER_TTL)
            return
        if held:
            self._timer = self._in(self._ttl_s / _RENEWALS_PER_TTL)
        else:
            self._lost()


class _Sighting:
    """How long a lease was seen expired while the store answered: `counted` seconds until `at`."""

    __slots__ = ("at", "counted")

    def __init__(self, at: float) -> None:
        self.at = at
        self.counted = 0.0


# By context, epoch, holder and expiry: an agent may live no longer than a look. The eldest goes.
_sightings: dict[tuple[str, int, str, float], _Sighting] = {}


async def left_in_s(
    state: StateStore,
    record: ContextRecord,
    ttl_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """
    When the open turn of *record*, which was read just now, counts as left by its owner.

    Args:
        ttl_s: How long a lease lasts if its holder does not say.

    Returns:
        0 if it is left: whoever finds it ends it. `None` while somebody runs it. Otherwise read the
        record again after so many seconds.

    Raises:
        StoreUnavailable: The store takes no writes, so nobody can have renewed anything.
    """
    holder = record.holder
    if holder is None or provably_dead(holder):
        return 0.0
    if record.lease_live or provably_alive(holder):
        return None
    life_s = ttl_of(holder) or ttl_s
    # A file that another program has locked is still read: a renewal of nobody's lease, which
    # changes nothing, tells whether its owner could have renewed this one.
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
    """Whether a single look finds no owner of the open turn; to be shown, never to be acted on."""
    holder = record.holder
    if holder is None or provably_dead(holder):
        return True
    return not record.lease_live and not provably_alive(holder)
