"""
Waits for a context that another process or agent uses, in order of arrival, across processes.

An agent that finds the context busy takes a ticket in its store and claims with it. The store
refuses a claim while a waiter with a lower ticket is alive. A waiter keeps its place by renewing
it. So a killed waiter holds up the queue only briefly, and a provably dead one not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from looopy.stores.bundle import Stores
from looopy.stores.owner import provably_dead
from looopy.stores.shield import settle
from looopy.types.context import CancelToken

_TTL_S = 3.0
_TICK_S = _TTL_S / 3
_SOON_S = 0.004  # the first wait is short, because the running turn may be nearly over


class QueuePlace:
    """
    A place in the queue for one context; taken by `join`, and always to be given up by `leave`.

    Args:
        holder: `Owner.token()` of the waiter.
        token: Once it is cancelled, waiting ends at once.
    """

    def __init__(self, stores: Stores, context_id: str, holder: str, token: CancelToken) -> None:
        self.ticket: int | None = None
        self._stores = stores
        self._context_id = context_id
        self._holder = holder
        self._token = token
        self._kept_until = 0.0
        self._watch = Watch(_TICK_S)
        self._pause_s = _SOON_S
        self._held: ExitStack | None = None
        self._next: QueuePlace | None = None
        self._overtakes = False

    def lead(self, later: QueuePlace) -> None:
        """Keep the place before *later*, the queue of the same agent's next turn."""
        self._next = later

    def ring(self) -> None:
        """Wake the waiter, so that it reads the queue again."""
        self._watch.ring()

    async def join(self) -> None:
        """Take a place at the end, if this one has none."""
        if self.ticket is not None:
            return
        if self._held is None:
            self._held = ExitStack()
            self._held.enter_context(watching(self._stores, self._context_id, self._watch))
            self._held.callback(self._token.on_cancel(self._watch.ring))
        state = self._stores.state
        self.ticket = await settle(
            state.join_wait_queue(self._context_id, self._holder, _TTL_S), self._token.cancel
        )
        self._kept_until = _now() + _TTL_S

    async def wait(self, deadline: float) -> bool:
        """
        Wait until this waiter may be first; a claim will confirm it.

        Returns:
            `False` if *deadline* (of the loop's clock) has passed first.
        """
        while not self._token.cancelled:
            left = deadline - _now()
            if left <= 0:
                return False
            await self.tick(left)
            if await self.drop_the_dead():
                break
        return True

    async def tick(self, at_most_s: float) -> None:
        """Wait for news or a while, at first a short one, and keep the place, if there is one."""
        await self._watch.news(min(at_most_s, self._pause_s))
        self._pause_s = min(1.5 * self._pause_s, _TICK_S)
        if self.ticket is None:
            return
        kept = not self._overtakes
        if not kept:
            await self._leave_place()
        elif _now() >= self._kept_until - 2 * _TICK_S:
            kept = await self._stores.state.keep_place(self._context_id, self.ticket, _TTL_S)
            self._kept_until = _now() + _TTL_S
        if not kept:  # the place has lapsed
            self.ticket, self._overtakes = None, False
            await self.join()
            if self._next is not None:  # or each would wait for the other
                self._next.fall_back()

    def fall_back(self) -> None:
        """Take another place: an earlier turn of the agent is now behind this one."""
        self._overtakes = True
        self.ring()

    async def drop_the_dead(self) -> bool:
        """Remove the dead waiters, up to a living one; return true if no waiter is ahead."""
        for other in await self._stores.state.wait_queue(self._context_id):
            if self.ticket is not None and other.ticket >= self.ticket:
                break
            if provably_dead(other.holder):
                await self._stores.state.leave_wait_queue(self._context_id, other.ticket)
            elif other.alive:
                return False
        return True

    def used(self) -> None:
        """Note that the claim has used the ticket."""
        self.ticket = None

    async def leave(self) -> None:
        """Give the place up, if there is one."""
        if self._held is not None:
            self._held.close()
        await self._leave_place()

    async def _leave_place(self) -> None:
        if self.ticket is not None:
            ticket, self.ticket = self.ticket, None
            await settle(self._stores.state.leave_wait_queue(self._context_id, ticket))


def _now() -> float:
    return asyncio.get_running_loop().time()


class Watch:
    """Remembers a notification until the next `news()`."""

    def __init__(self, poll_s: float) -> None:
        self.poll_s = poll_s
        self._rung = asyncio.Event()

    def ring(self, *_: object) -> None:
        """Note that there is news."""
        self._rung.set()

    async def news(self, at_most_s: float | None = None) -> None:
        """Wait for a notification since the last time, or for the next regular poll."""
        longest = self.poll_s if at_most_s is None else min(at_most_s, self.poll_s)
        try:
            async with asyncio.timeout(longest):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()


@contextmanager
def watching(stores: Stores, context_id: str, watch: Watch | None = None) -> Iterator[Watch]:
    """Let *watch*, or a new one, listen for the news of a context within the block."""
    notifier = stores.journal.notifier
    watch = watch or Watch(notifier.poll_s)
    with notifier.listen(stores.tenant, context_id, watch.ring):
        yield watch
