"""
Measure how long a read of 200,000 messages, of their events, or their first search stops the loop.

    python -m benchmarks.stalls [--messages N] [URL of an empty Postgres database at the head]

Each row begins with the longest stall of an idle loop, which is the machine's. looopy decodes
messages in a thread, but a garbage collection stops every thread while it inspects everything that
was read. The longest stall is therefore also shown without the time of collections. The last three
columns are CPU time, which hardly depends on what else the machine does: the longest collection,
the most that the loop's thread used without a break, and all that it used.
"""

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from looopy.stores import open_stores
from looopy.types.message import (
    AssistantMessage,
    Cost,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)

_AT_ONCE = 5_000


class _Watch:
    """Notes how long the event loop kept a task waiting, and when garbage was collected."""

    def __init__(self) -> None:
        self.stalls: list[tuple[float, float]] = []
        self._collections: list[tuple[float, float]] = []
        self._began = 0.0
        self._began_cpu = 0.0
        self.longest_collection = 0.0
        self._cpu: list[float] = []

    def collected(self, phase: str, _: dict[str, Any]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began, self._began_cpu = now, time.thread_time()
        else:
            self._collections.append((self._began, now))
            took = time.thread_time() - self._began_cpu
            self.longest_collection = max(self.longest_collection, took)

    async def run(self) -> None:
        before, cpu_before = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now, cpu_now = time.perf_counter(), time.thread_time()
            self.stalls.append((before, now))
            self._cpu.append(cpu_now - cpu_before)
            before, cpu_before = now, cpu_now

    def figures_ms(self) -> tuple[float, ...]:
        """The columns of a row, without that of the idle loop."""
        whole = max(end - start for start, end in self.stalls)
        without = max(end - start - self._within(start, end) for start, end in self.stalls)
        cpu = self.longest_collection, max(self._cpu), sum(self._cpu)
        return tuple(one * 1e3 for one in (whole, without, *cpu))

    def _within(self, start: float, end: float) -> float:
        return sum(max(0.0, min(end, b) - max(start, a)) for a, b in self._collections)


async def watched(asked: Awaitable[Any]) -> tuple[float, ...]:
    """The columns of a row, while *asked* runs."""
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
    return watch.figures_ms()


def conversation(start: int, count: int) -> list[Message]:
    """Messages as turns with one call of a tool leave them."""
    made: list[Message] = []
    for n in range(start, start + count, 4):
        usage = Usage(input=n, output=30, total_tokens=n + 30, cost=Cost(input=n / 10))
        call = ToolCall(f"call-{n}", "search", {"query": f"what is {n}", "limit": n})
        made += [
            UserMessage(f"message {n} of a conversation"),
            AssistantMessage([TextContent("I look"), call], model="one", usage=usage),
            ToolResultMessage(
                tool_call_id=call.id, tool_name="search", content=[TextContent(f"found {n}")]
            ),
            AssistantMessage([TextContent(f"It is {n}.")], model="one", usage=usage),
        ]
    return made


async def measure(url: str, messages: int) -> None:
    """Print the rows of one store."""
    async with open_stores(url) as stores:
        for start in range(0, messages, _AT_ONCE):
            await stores.messages.append("stalls", conversation(start, _AT_ONCE))
        reads: dict[str, Callable[[], Awaitable[Any]]] = {
            "messages": lambda: stores.messages.list("stalls"),
            "events": lambda: stores.journal.events("stalls"),
            "first search": lambda: stores.contexts.search("nowhere", context_id="stalls"),
        }
        for what, read in reads.items():
            gc.collect()
            idle, *_ = await watched(asyncio.sleep(2))
            figures = (idle, *await watched(read()))
            name = f"{url.partition(':')[0]} {what}"
            print(f"{name:<30}", *(f"{figure:>10.1f} ms" for figure in figures), flush=True)
        await stores.state.delete("stalls")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("urls", nargs="*")
    given = parser.parse_args()
    heads = ("idle loop", "longest", "no collect.", "collect. CPU", "loop CPU", "all loop CPU")
    print(" " * 30, *(f"{head:>13}" for head in heads))
    with tempfile.TemporaryDirectory() as folder:
        for url in ("memory:", f"sqlite:///{Path(folder) / 'stalls.db'}", *given.urls):
            asyncio.run(measure(url, given.messages))


if __name__ == "__main__":
    main()
