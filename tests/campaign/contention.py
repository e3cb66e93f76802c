"""
T20: thirty-two writers on one SQLite file, and eight processes that open a fresh one at once.

SQLite has one writer. Whoever waits for it waits here and not in its C code, so nobody is told that
the database is locked, and a turn that is cancelled meanwhile ends as quickly as it would alone.
How long a write had to wait is noted, and a violation only beyond any doubt: the machine may be
slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.life import FileLedger
from tests.campaign.places import broken, lines_of, place, run_together, wrong
from tests.campaign.trial import Tally, Trial

from looopy import Agent, LoopConfig, Outcome, UserMessage, open_stores
from looopy.stores.sql.sqlite import connection
from looopy.testing import ScriptedProvider, text
from looopy.testing.children import run

_WRITERS = 32
_STARTERS = 8
_LONGEST_WAIT_S = 20.0  # of one write; under no load it is some milliseconds
_LONGEST_CANCEL_S = 5.0
_PATIENCE_S = 120.0


async def write(url: str, context_id: str, writes: int, ledger: FileLedger) -> None:
    """Append messages to a context of one's own, and note how long each took."""
    async with open_stores(url) as stores:
        for n in range(writes):
            began = time.monotonic()
            position = await stores.messages.append(context_id, [UserMessage(f"{context_id}-{n}")])
            ledger.write("wrote", position=position, s=time.monotonic() - began)


async def many_tasks(url: str, writes: int, seed: int, ledger: FileLedger) -> None:
    """Take turns on many contexts from one process, and cancel one now and then."""
    rng = random.Random(seed)

    async def take(agent: Agent, share: int) -> None:
        for n in range(share):
            said = f"{agent.context_id}-{n}"
            view = agent.execute_turn(said)
            began = time.monotonic()
            await view.accepted()
            ledger.write("accepted", s=time.monotonic() - began)
            asked = None
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.02)
                asked = time.monotonic()
                view.cancel()
            result = await view
            if asked is not None and result.outcome is Outcome.CANCELLED:
                ledger.write("cancelled", s=time.monotonic() - asked)
            elif result.outcome is not Outcome.COMPLETED:
                ledger.write("wrong", outcome=result.outcome.value, said=said)

    provider = ScriptedProvider(lambda _: text("an answer"), chunk_chars=2, delay_s=0.002)
    async with open_stores(url) as stores, asyncio.TaskGroup() as group:
        for n in range(_WRITERS):
            agent = Agent(
                f"t{n}",
                llm_provider=provider,
                stores=stores,
                loop_config=LoopConfig(max_messages=8),
            )
            await agent.start()
            group.create_task(take(agent, writes))


def _writers(number: int, seed: int) -> Tally:
    """Each of many processes, and one more with as many tasks, writes at the same time."""
    tally = Tally("32 processes and 32 tasks write, sqlite")
    each = max(1, number // (2 * _WRITERS))
    with place("sqlite") as url, tempfile.TemporaryDirectory(prefix="looopy-writers-") as kept:
        folder = Path(kept)
        ledgers = [folder / f"ledger-{n}" for n in range(_WRITERS + 1)]

        def begin(work: Callable[[FileLedger], Coroutine[Any, Any, None]], path: Path) -> None:
            asyncio.run(work(FileLedger(path)))

        bodies = [
            partial(begin, partial(write, url, f"p{n}", each), path)
            for n, path in enumerate(ledgers[1:])
        ]
        bodies.append(partial(begin, partial(many_tasks, url, each, seed), ledgers[0]))
        problems = run_together(bodies, folder, _PATIENCE_S + number)
        lines = [line for path in ledgers for line in lines_of(path)]
        for n in range(_WRITERS):
            positions = [line["position"] for line in lines_of(ledgers[n + 1])]
            if positions != list(range(1, each + 1)):
                problems.append(f"p{n} has the messages {positions}")
        problems += _missing(url, {f"p{n}": each for n in range(_WRITERS)}, folder)
    waits = [line["s"] for line in lines if line["kind"] in ("wrote", "accepted")]
    cancels = [line["s"] for line in lines if line["kind"] == "cancelled"]
    problems += [f"{line}" for line in lines if line["kind"] == "wrong"]
    tally.runs = len(waits)
    for what, times, limit in (
        ("a write", waits, _LONGEST_WAIT_S),
        ("a cancel", cancels, _LONGEST_CANCEL_S),
    ):
        if times:
            tally.notes.append(f"{what} took {_p99(times):.2f} s (p99), {max(times):.2f} s at most")
        problems += [f"{what} took {s:.1f} s" for s in times if s > limit]
    tally.violations = [f"seed {seed}, {number} runs: {problem}" for problem in problems]
    return tally


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98] if times[1:] else times[0]


def _missing(url: str, expected: dict[str, int], folder: Path) -> list[str]:
    """Contexts that do not have as many messages as were acknowledged, seen by another process."""
    ledger = FileLedger(folder / "counts")

    async def look() -> None:
        async with open_stores(url) as stores:
            for context_id in expected:
                found = await stores.messages.count(context_id)
                ledger.write("count", context=context_id, found=found)

    run(lambda: asyncio.run(look()), folder / "log-count")
    found = {line["context"]: line["found"] for line in lines_of(folder / "counts")}
    return [f"{c} has {found[c]} messages, not {n}" for c, n in expected.items() if found[c] != n]


def _first_open(number: int, seed: int) -> Tally:
    """Several processes open a file that is not there, in the same moment, and write to it."""
    tally = Tally("8 processes open a fresh file at once, sqlite")
    times: list[float] = []
    for n in range(number):
        with tempfile.TemporaryDirectory(prefix="looopy-storm-") as kept:
            folder = Path(kept)
            url = f"sqlite:///{folder / 'fresh.db'}"
            ledgers = [folder / f"ledger-{k}" for k in range(_STARTERS)]
            gate = mmap.mmap(-1, mmap.PAGESIZE)
            bodies = [partial(_start, k, url, path, gate) for k, path in enumerate(ledgers)]
            problems = run_together(bodies, folder, _PATIENCE_S)
            problems += _missing(url, {f"s{k}": 1 for k in range(_STARTERS)}, folder)
            times += [line["s"] for path in ledgers for line in lines_of(path)]
        tally.runs += 1
        tally.violations += [f"seed {seed + n}: {problem}" for problem in problems]
    if times:
        tally.notes.append(f"the first write took {_p99(times):.2f} s (p99)")
    return tally


def _start(number: int, url: str, path: Path, gate: mmap.mmap) -> None:
    gate[number] = 1
    while not all(gate[:_STARTERS]):  # until all of them are there
        time.sleep(0)
    asyncio.run(write(url, f"s{number}", 1, FileLedger(path)))


TRIALS = [
    Trial("32 processes and 32 tasks write, sqlite", 6400, _writers),
    Trial("8 processes open a fresh file at once, sqlite", 200, _first_open),
]


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Take the first refusal of SQLite for the last."""
    with (
        broken(connection, "is_busy", lambda _: lambda _error: False),
        broken(connection, "_BUSY_TIMEOUT_MS", lambda _: 0),
        broken(connection, "SETTINGS", lambda settings: {**settings, "busy_timeout": 0}),
    ):
        yield


WRONG = [wrong(TRIALS[0], "no second try", _impatient)]
