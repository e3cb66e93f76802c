"""
Compare opening a long conversation, and a turn in it, with the same in a short one.

    python -m benchmarks.opening [URL of an empty Postgres database at the head]

Each round opens stores and an agent on a context of 100 messages, runs one turn and closes all of
it, then does the same on one of 100,000 and on a fork of that. The table
shows medians: milliseconds, CPU milliseconds of this process, statements, and the bytes that they
returned, beside those of the short conversation.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from looopy import Agent, LoopConfig, open_stores
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.stores.sql.sqlite.driver import SQLiteDriver
from looopy.testing import ScriptedProvider, text
from looopy.types.message import AssistantMessage, TextContent, UserMessage

_SHORT, _LONG = 100, 100_000
_AT_ONCE = 5_000
_ROUNDS = 9
_WINDOW = LoopConfig(max_messages=50)


class _Cost(NamedTuple):
    wall_ms: float
    cpu_ms: float
    statements: int
    read_bytes: int


class _Count:
    """Statements of the drivers, and the bytes of their rows."""

    def __init__(self) -> None:
        self.statements = 0
        self.read_bytes = 0

    def steps(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """*work* with each of its statements counted."""

        def counted() -> Any:
            steps = work()
            rows = None
            while True:
                try:
                    query = steps.send(rows)
                except StopIteration as stop:
                    return stop.value
                rows = yield query
                self.statements += 1
                self.read_bytes += sum(_size(value) for row in rows for value in row)

        return counted


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 8


@contextmanager
def _counting(count: _Count) -> Any:
    usual = {driver: driver.run for driver in (SQLiteDriver, PostgresDriver)}

    def instead(run: Any) -> Any:
        return lambda self, work, **options: run(self, count.steps(work), **options)

    for driver, run in usual.items():
        driver.run = instead(run)  # type: ignore[method-assign] # for the block
    try:
        yield
    finally:
        for driver, run in usual.items():
            driver.run = run  # type: ignore[method-assign] # as it was


async def _fill(url: str, context_id: str, number: int) -> None:
    words = "a message of ordinary length, as people and models write them " * 4
    async with open_stores(url) as stores:
        for start in range(0, number, _AT_ONCE):
            some = [
                UserMessage(f"{n} {words}")
                if n % 2 == 0
                else AssistantMessage([TextContent(f"{n} {words}")])
                for n in range(start, min(number, start + _AT_ONCE))
            ]
            await stores.messages.append(context_id, some)


async def _open_and_say(url: str, context_id: str) -> None:
    model = ScriptedProvider([text("yes")], repeat=True)
    async with Agent(context_id, llm_provider=model, stores=url, loop_config=_WINDOW) as agent:
        result = await agent.execute_turn("Do you remember?")
        result.raise_for_outcome()


def _measure(url: str, context_id: str) -> _Cost:
    count = _Count()
    with _counting(count):
        wall, cpu = time.perf_counter(), time.process_time()
        asyncio.run(_open_and_say(url, context_id))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return _Cost(wall * 1000, cpu * 1000, count.statements, count.read_bytes)


async def _prepare(url: str) -> list[str]:
    await _fill(url, "short", _SHORT)
    await _fill(url, "long", _LONG)
    async with Agent("long", llm_provider=ScriptedProvider([text("x")]), stores=url) as agent:
        await agent.execute_turn("One turn, whose end can be forked.")
        await agent.fork("fork")
    return ["short", "long", "fork"]


def _report(what: str, url: str) -> None:
    names = asyncio.run(_prepare(url))
    costs: dict[str, list[_Cost]] = {name: [] for name in names}
    for _ in range(_ROUNDS):
        for name in names:
            costs[name].append(_measure(url, name))
    print(f"{what:10}{'ms':>10}{'CPU ms':>10}{'statements':>12}{'bytes':>10}")
    short = _Cost(*map(statistics.median, zip(*costs["short"], strict=True)))
    for name in names:
        found = _Cost(*map(statistics.median, zip(*costs[name], strict=True)))
        ratios = " ".join(f"{a / b:.2f}" for a, b in zip(found, short, strict=True))
        row = f"{found.wall_ms:>10.1f}{found.cpu_ms:>10.1f}{found.statements:>12.0f}"
        print(f"{name:10}{row}{found.read_bytes:>10.0f}   x {ratios}")


def main() -> None:
    """Measure SQLite, and Postgres if there is a URL."""
    with tempfile.TemporaryDirectory() as folder:
        _report("SQLite", f"sqlite:///{Path(folder, 'long.db')}")
    for url in sys.argv[1:]:
        _report("Postgres", url)


if __name__ == "__main__":
    main()
