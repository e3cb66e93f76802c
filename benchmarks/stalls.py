"""
Measure how long a read of 200,000 messages stops the event loop, beside an idle loop.

    python -m benchmarks.stalls [URL of an empty Postgres database at the head]

looopy decodes messages in a thread, but a garbage collection stops every thread while it inspects
everything that was read. The longest stall is therefore also shown without the time of collections.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

from looopy.stores import open_stores
from looopy.types.message import UserMessage

_MESSAGES = 200_000
_AT_ONCE = 5_000


class _Watch:
    """Notes how long the event loop kept a task waiting, and when garbage was collected."""

    def __init__(self) -> None:
        self.stalls: list[tuple[float, float]] = []
        self._collections: list[tuple[float, float]] = []
        self._began = 0.0

    def collected(self, phase: str, _: dict[str, Any]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
        else:
            self._collections.append((self._began, now))

    async def run(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.stalls.append((before, now))
            before = now

    def longest_ms(self) -> tuple[float, float]:
        """The longest stall, and the longest once collections are taken out of each."""
        whole = max(end - start for start, end in self.stalls)
        without = max(end - start - self._within(start, end) for start, end in self.stalls)
        return whole * 1e3, without * 1e3

    def _within(self, start: float, end: float) -> float:
        return sum(max(0.0, min(end, b) - max(start, a)) for a, b in self._collections)


async def watched(asked: Awaitable[Any]) -> tuple[float, float]:
    """The longest stalls while *asked* runs."""
    watch = _Watch()
    gc.callbacks.append(watch.collected)
    task = asyncio.create_task(watch.run())
    try:
        await asyncio.sleep(0.01)
        found = await asked
        await asyncio.sleep(0.01)
    finally:
        gc.callbacks.remove(watch.collected)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    del found
    return watch.longest_ms()


async def measure(url: str) -> None:
    """Print the row of one store."""
    async with open_stores(url) as stores:
        for start in range(0, _MESSAGES, _AT_ONCE):
            texts = (f"message {n} of a conversation" for n in range(start, start + _AT_ONCE))
            await stores.messages.append("stalls", [UserMessage(text) for text in texts])
        idle, _ = await watched(asyncio.sleep(2))
        longest, without = await watched(stores.messages.list("stalls"))
        await stores.state.delete("stalls")
    name = url.partition(":")[0]
    print(f"{name:<20} {idle:>9.1f} ms {longest:>9.1f} ms {without:>15.1f} ms", flush=True)


def main() -> None:
    """See the module."""
    print("store                   idle loop      longest   without collections")
    with tempfile.TemporaryDirectory() as folder:
        for url in ("memory:", f"sqlite:///{Path(folder) / 'stalls.db'}", *sys.argv[1:]):
            asyncio.run(measure(url))


if __name__ == "__main__":
    main()
