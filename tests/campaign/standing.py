"""
The store stands still for longer than a lease, or its clock jumps: living owners keep their turns.

One process is in an external tool while another wants its context, again and again. Then the file
of SQLite is locked from outside, or every process of the Postgres server is stopped, until the
lease has been over for a while; or the clock of the store is set a minute ahead. The tool ends
before, during or after that. Its turn has to end as completed, with its result, and the tool has
run once; the other process takes its own turn afterwards. Neither is told of anything.

An owner on this host is seen to live. So that the lease and nothing else decides, every second
owner says that it is on another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.clock import Clock, put_clock_before, set_clock
from tests.campaign.databases import DRIVERS
from tests.campaign.life import FileLedger
from tests.campaign.places import STORES, broken, file_of, lines_of, place, rows_of, wrong
from tests.campaign.trial import Tally, Trial
from tests.postgres import Server, as_driver, ask

from looopy import Agent, LoopConfig, UserMessage, tool
from looopy.agent import lease as leases
from looopy.errors import AgentBusy
from looopy.stores import owner as owners
from looopy.stores.sql import migrate
from looopy.stores.sql.sqlite import connection
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import Patience, fork, run, wait

_TTL_S = 1.5
_STANDS_S = 2 * _TTL_S
_JUMP_US = 60 * 1_000_000
_PATIENCE_S = 30.0
_CONTEXT = "ada"

Standstill = Callable[[], contextlib.AbstractContextManager[None]]
"""What happens to the store; inside of it, it has just begun."""

Scene = Callable[[int], Iterator[tuple[str, Standstill]]]
"""A generator for `contextmanager`: where the stores of a run are, and what happens to them."""


def _agent(url: str, provider: ScriptedProvider, *tools: Any) -> Agent:
    return Agent(
        _CONTEXT,
        llm_provider=provider,
        tools=tools,
        stores=url,
        loop_config=LoopConfig(lease_ttl_s=_TTL_S),
    )


async def own(url: str, folder: Path) -> None:
    """Take a turn that stays in a tool with an effect until it is let go on."""
    ledger = FileLedger(folder / "owner")
    gate = folder / "gate"

    @tool(effects="external")
    async def work() -> str:
        """Have an effect, after a while."""
        ledger.write("working")
        while not gate.exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.005)
        ledger.write("effect")
        return "worked"

    said = [tool_call("work"), lambda request: text(request.messages[-1].text)]
    agent = _agent(url, ScriptedProvider(said), work)
    await agent.start()
    result = await agent.execute_turn("work")
    ledger.write("done", outcome=result.outcome.value, text=result.text)
    await agent.shutdown()


async def want(url: str, folder: Path) -> None:
    """Come anew until the context is free, as requests do, and take a turn of its own."""
    ledger = FileLedger(folder / "other")

    def reply(request: Any) -> Any:
        asked = [m.text for m in request.messages if isinstance(m, UserMessage)]
        return text(" ".join(asked))

    patience = Patience(_PATIENCE_S)
    while not patience.is_over():
        async with _agent(url, ScriptedProvider(reply)) as agent:
            ledger.write("started", status=agent.state.status.value)
            with contextlib.suppress(AgentBusy):
                result = await agent.execute_turn("mine")
                told = {"text": result.text, "turn": result.turn}
                ledger.write("done", outcome=result.outcome.value, **told)
                return
        await asyncio.sleep(0.01)


def one(url: str, folder: Path, seed: int, standstill: Standstill) -> list[str]:
    """One owner, somebody who wants its context, and what happens to the store; what is wrong."""
    rng = random.Random(seed)
    log, gate = folder / "log", folder / "gate"
    when = rng.choice(("before", "during", "after"))
    abroad = seed % 2 == 0
    here = owners._host()
    away = broken(owners, "_host", lambda _: lambda: f"abroad-{here}")
    with away if abroad else contextlib.nullcontext():
        owner = fork(lambda: asyncio.run(own(url, folder)), log)
    other = 0
    try:
        _until(lambda: _has(folder / "owner", "working"), "the owner never came to its tool")
        other = fork(lambda: asyncio.run(want(url, folder)), log)
        _until(lambda: _has(folder / "other", "started"), "nobody else came")
        time.sleep(rng.random() * _TTL_S)
        if when == "before":
            gate.touch()
        with standstill():
            if when == "during":
                gate.touch()
        time.sleep(rng.random() * _TTL_S)
        gate.touch()
        ended = [wait(pid, kill_after_s=_PATIENCE_S) for pid in (owner, other)]
        owner = other = 0
    finally:
        for pid in filter(None, (owner, other)):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    problems = [f"a process ended with {status}" for status in ended if status]
    if problems:
        return [*problems, log.read_text()[-1500:]]
    found = [line for name in ("owner", "other") for line in lines_of(folder / name)]
    effects = sum(line["kind"] == "effect" for line in found)
    mine, theirs = (line for line in found if line["kind"] == "done")
    if effects != 1:
        problems.append(f"the tool ran {effects} times")
    if (mine["outcome"], mine["text"]) != ("completed", "worked"):
        problems.append(f"the owner's turn ended as {mine['outcome']}: {mine['text']!r}")
    if (theirs["outcome"], theirs["text"], theirs["turn"]) != ("completed", "work mine", 2):
        problems.append(f"the other's turn {theirs['turn']} is {theirs['text']!r}")
    stored = rows_of(url, "SELECT outcome FROM looopy_turns ORDER BY turn")
    if stored != [("completed",)] * 2:
        problems.append(f"stored are {stored}")
    return [f"(tool ends {when}, abroad: {abroad}) {problem}" for problem in problems]


def _has(ledger: Path, kind: str) -> bool:
    return any(line["kind"] == kind for line in lines_of(ledger))


def _until(condition: Callable[[], bool], complaint: str) -> None:
    patience = Patience(_PATIENCE_S)
    while not condition():
        if patience.is_over():
            raise TimeoutError(complaint)
        time.sleep(0.002)


# --- what happens to the store ---


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Another program keeps the file to itself."""
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        time.sleep(_STANDS_S)
        other.execute("ROLLBACK")


@contextlib.contextmanager
def _stopped(server: Server) -> Iterator[None]:
    """Every process of the server stands still."""
    with server.stopped():
        yield
        time.sleep(_STANDS_S)


@contextlib.contextmanager
def _ahead(url: str, clock: Clock) -> Iterator[None]:
    """The store's clock is a minute ahead from now on."""
    set_clock(url, clock, _JUMP_US)
    yield


def _of(name: str, full: int, scene: Scene) -> Trial:
    """A trial, of runs in *scene*."""

    def run_all(number: int, seed: int) -> Tally:
        tally = Tally(name)
        around = contextlib.contextmanager(scene)
        for n in range(seed, seed + number):
            with tempfile.TemporaryDirectory(prefix="looopy-standing-") as kept:
                folder = Path(kept)
                with around(n) as (url, standstill):
                    problems = one(url, folder, n, standstill)
            tally.runs += 1
            tally.violations += [f"seed {n}: {problem}" for problem in problems]
        return tally

    return Trial(name, full, run_all)


def _locked_file(_seed: int) -> Iterator[tuple[str, Standstill]]:
    with place("sqlite") as url:
        yield url, partial(_locked, file_of(url))


def _stopped_server(driver: str, seed: int) -> Iterator[tuple[str, Standstill]]:
    server = Server()
    try:
        server.start()
        name = f"app{seed}"
        ask(server.url("postgres"), f"CREATE DATABASE {name}")
        with tempfile.TemporaryDirectory() as kept:
            run(partial(migrate.upgrade, server.url(name)), Path(kept) / "log")
        yield as_driver(server.url(name), driver), partial(_stopped, server)
    finally:
        server.remove()


def _clock_ahead(store: str, _seed: int) -> Iterator[tuple[str, Standstill]]:
    clock = Clock()
    with place(store) as url, broken(connection, "_now_us", lambda _: clock.now_us):
        if store != "sqlite":
            put_clock_before(url)
        yield url, partial(_ahead, url, clock)


TRIALS = [
    _of("locked file, sqlite", 50, _locked_file),
    *(_of(f"stopped server, {d}", 50, partial(_stopped_server, d)) for d in DRIVERS),
    *(_of(f"clock a minute ahead, {store}", 50, partial(_clock_ahead, store)) for store in STORES),
]


def _left_at_once() -> contextlib.AbstractContextManager[None]:
    """Take a lease that is over for the end of its owner, as if nothing could stand still."""
    return broken(leases, "_LEFT_AFTER", lambda _: 0.0)


WRONG = [wrong(trial, "one look", _left_at_once) for trial in (TRIALS[0], TRIALS[3])]
