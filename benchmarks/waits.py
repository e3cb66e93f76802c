"""
Measure the cost of waiting: the CPU of a tool turn on memory whose commits wait artificially.

    python -m benchmarks.waits

A turn that waits for a disk or a server four times finds its caches cold four times. The cost
depends on the machine. It is part of every figure that is measured with a store, for every library.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.subjects import Looopy
from benchmarks.workload import question

_TURNS = 300
_WAITS_S = (0.0, 0.0005, 0.002)


def waiting(work: Callable[[Any], Awaitable[Any]], seconds: float) -> Callable[[Any], Any]:
    """*work*, after waiting."""

    async def waited(given: Any) -> Any:
        await asyncio.sleep(seconds)
        return await work(given)

    return waited


async def measure(seconds: float) -> float:
    """Milliseconds of CPU a turn, if each commit waits so long."""
    subject = Looopy("memory:")
    await subject.open()
    subject.model.calls_tool = True
    stores = subject.stores
    if seconds:
        for store, name in ((stores.journal, "commit"), (stores.state, "claim")):
            setattr(store, name, waiting(getattr(store, name), seconds))
    for number in range(50):
        await subject.turn("waits", question(number))
    began = time.process_time()
    for number in range(_TURNS):
        await subject.turn("waits", question(number))
    spent = (time.process_time() - began) / _TURNS * 1e3
    await subject.close()
    return spent


async def bare(seconds: float) -> float:
    """Milliseconds of CPU of four waits that nobody works between."""
    began = time.process_time()
    for _ in range(_TURNS):
        for _ in range(4):
            await asyncio.sleep(seconds)
    return (time.process_time() - began) / _TURNS * 1e3


def main() -> None:
    """See the module."""
    print("each commit waits   CPU of a tool turn   of four bare waits")
    for seconds in _WAITS_S:
        turn, waits = asyncio.run(measure(seconds)), asyncio.run(bare(seconds))
        print(f"{seconds * 1e3:>12.1f} ms {turn:>17.2f} ms {waits:>17.2f} ms")


if __name__ == "__main__":
    main()
