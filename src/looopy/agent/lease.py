"""
Keeps a claimed context while its turn runs, and finds turns that their owner has left.

A lease is renewed three times within its life, beside the commits, which renew it too. If a renewal
reports that the context has moved on, the holder is called once. The fence refuses its later writes
in any case.

An expired lease alone proves little. The store may have stood still, so that no owner could renew a
lease, or its clock may have jumped. A process that finds an expired lease therefore reads it again.
With its own clock it counts how long the store has taken writes while the same lease stayed
unchanged. After half of a lease, in which a living owner renews at least once, the turn counts as
left. This time counts for all leases of that process that were expired by then, so a dead process
with many turns is observed once. An owner that is seen to run on this host keeps its turn whatever
any clock shows. An owner that is seen to be dead has lost it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from looopy.errors import StoreError
from looopy.loop.timers import Timer, after
from looopy.stores.base import StateStore
from looopy.stores.owner import provably_alive, provably_dead, ttl_of
from looopy.stores.records import ContextRecord

_RENEWALS_PER_TTL = 3
_TRIES_PER_TTL = 12  # after a renewal that failed
# Parts of a lease's life:
_LEFT_AFTER = 1 / 2  # the time of one renewal, and room for a slow store
_COUNTED_AT_MOST = 1 / 5  # of the time between two reads: the store may have stood still
_LOOK_AFTER = 1 / 10
_WRITE_AFTER = 1 / 20  # since a look at another lease of the same process
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

    def _in(self, seconds: float) -> Timer:
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
    """
    Expired leases of one process: the store has taken writes for `counted` seconds, until `at`.

    Attributes:
        marks: The expiry of the newest lease that was seen, and what was counted by then, each time
            a newer one was seen. Expiries are by the store's clock. So an older lease was
            expired at that time, and was not renewed since: it need not have been seen itself.
    """

    at: float
    counted: float = 0.0
    marks: list[tuple[float, float]] = field(default_factory=list)

    def counted_for(self, expiry: float) -> float:
        """For how long the store has taken writes while no lease of this expiry was renewed."""
        if not self.marks or expiry > self.marks[-1][0]:
            self.marks.append((expiry, self.counted))
        return self.counted - next(began for newest, began in self.marks if expiry <= newest)


# By backend and by process, because an agent may live no longer than one read. At the limit, the
# oldest entry of a backend is dropped.
_sightings: WeakKeyDictionary[object, dict[str, _Sighting]] = WeakKeyDictionary()


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
    seen_here = _sightings.setdefault(getattr(state, "backend", state), {})
    process = holder.rpartition("/")[0] or holder
    if record.lease_live or provably_alive(holder):
        seen_here.pop(process, None)  # it may have been away
        return None
    life_s = ttl_of(holder) or ttl_s
    now = clock()
    seen = seen_here.get(process)
    last = None if seen is None else seen.at
    if seen is None:
        seen = seen_here[process] = _Sighting(now)
        if len(seen_here) > _MOST_SIGHTINGS:
            seen_here.pop(next(iter(seen_here)))
    if last is None or now - last >= life_s * _WRITE_AFTER:
        seen.at = now  # other looks at this process need no write of their own
        # A file that another program has locked can still be read. So this renews a lease that no
        # owner holds: it changes nothing, and shows if the owner could have renewed its own.
        try:
            await state.renew(record.context_id, 0, life_s)
        except BaseException:
            seen_here.pop(process, None)
            raise
        seen.at = clock()
        seen.counted += 0.0 if last is None else min(seen.at - last, life_s * _COUNTED_AT_MOST)
    left = life_s * _LEFT_AFTER - seen.counted_for(record.lease_until)
    return min(left, life_s * _LOOK_AFTER) if left > 0 else 0.0


def seems_left(record: ContextRecord) -> bool:
    """True if one read finds no owner of the open turn. Only for display, never for a decision."""
    holder = record.holder
    if holder is None or provably_dead(holder):
        return True
    return not record.lease_live and not provably_alive(holder)
