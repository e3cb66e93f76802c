"""
Measure work that once grew with everything there is: a listing, a phrase, and an import.

    python -m benchmarks.cliffs [--turns N] [--messages N] [URL of an empty Postgres database]

A page of 20 contexts is listed beside N running turns, a phrase of common words that no message has
is looked for in N messages, and N messages are imported. Shown are the CPU time of this process for
each, with the threads of a file in it, and the longest time for which the event loop kept a task
waiting. That one is only as good as the machine is idle.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from looopy.stores import Stores, export_to_file, import_contexts, open_stores
from looopy.testing.contracts.turns import begin
from looopy.types.message import UserMessage

_LISTINGS = 10


async def _measure(name: str, work: Callable[[], Awaitable[object]], times: int = 1) -> None:
    longest, over = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal longest
        while not over.is_set():
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before)

    watching = asyncio.create_task(watch())
    began = time.process_time()
    for _ in range(times):
        await work()
    took = (time.process_time() - began) / times
    over.set()
    await watching
    print(f"{name:45} {took * 1e3:9.1f} ms of CPU, longest step {longest * 1e3:5.0f} ms")


async def _run(stores: Stores, turns: int, messages: int, folder: Path) -> None:
    for number in range(turns):
        await begin(stores, context_id=f"running-{number}", ttl_s=300.0)
    list_some = stores.contexts.list
    listed = f"list 20 beside {turns:,} running turns"
    await _measure(listed, lambda: list_some(limit=20), _LISTINGS)
    for start in range(0, messages, 500):
        texts = (f"the end of word{n} and of the rest" for n in range(start, start + 500))
        await stores.messages.append("big", [UserMessage(content=t, timestamp=0) for t in texts])
    search = stores.contexts.search
    await search("anything", context_id="big", limit=1)  # makes the index
    phrase = f"find an absent phrase in {messages:,} messages"
    await _measure(phrase, lambda: search('"rest the"', context_id="big"))
    archive = folder / "big.zip"
    await export_to_file(stores, "big", archive)
    imported = f"import {messages:,} messages"
    await _measure(imported, lambda: import_contexts(stores, archive, new_ids=True))


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=20_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        url = given.url or f"sqlite:///{name}/a.db"
        async with open_stores(url) as stores:
            await _run(stores, given.turns, given.messages, Path(name))


if __name__ == "__main__":
    asyncio.run(_main())
