"""Wait for news of a context: a bell of its stores, made into something to await."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from looopy.stores.stores import Stores


class Watch:
    """Keeps in mind that a bell has rung until somebody asks."""

    def __init__(self, poll_s: float) -> None:
        self.poll_s = poll_s
        self._rung = asyncio.Event()

    def ring(self, *_: object) -> None:
        """There is news."""
        self._rung.set()

    async def news(self, at_most_s: float | None = None) -> None:
        """Wait until the bell has rung since the last time, or it is time to look in any case."""
        longest = self.poll_s if at_most_s is None else min(at_most_s, self.poll_s)
        try:
            async with asyncio.timeout(longest):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()


@contextmanager
def watching(stores: Stores, context_id: str, watch: Watch | None = None) -> Iterator[Watch]:
    """*watch*, or one that looks as often as the stores ask, on a context while in the block."""
    bells = stores.journal.bells
    watch = watch or Watch(bells.poll_s)
    with bells.listen(stores.tenant, context_id, watch.ring):
        yield watch
