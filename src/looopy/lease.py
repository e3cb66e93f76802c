"""
Keep a claimed context while its turn runs.

A lease is renewed three times within its life, beside the commits, which renew it too. When a
renewal says that the context has moved on, the holder is told once; what it would still write is
refused by the fence in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from looopy.alarms import Alarm, after
from looopy.errors import StoreUnavailable
from looopy.stores.base import StateStore

_RENEWALS_PER_TTL = 3


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
        self._timer = self._soon()

    def let_go(self) -> None:
        """Renew no more."""
        self._timer.cancel()
        if self._renewing is not None:
            self._renewing.cancel()

    def _soon(self) -> Alarm:
        return after(self._ttl_s / _RENEWALS_PER_TTL, self._start)

    def _start(self) -> None:
        self._renewing = self._loop.create_task(self._renew(), name="looopy lease")

    async def _renew(self) -> None:
        held = True
        with contextlib.suppress(StoreUnavailable):  # the next commit will tell, if it lasts
            held = await self._state.renew(self._context_id, self._epoch, self._ttl_s)
        if held:
            self._timer = self._soon()
        else:
            self._lost()
