"""
Five hundred zombies: a process is stopped in the middle of a turn, displaced, and woken up.

A stopped process is not provably dead, so nothing but the expiry of its lease lets another one in.
That one ends the dead turn as interrupted and takes a turn of its own; then the first goes on where
it was, in its tool, in the model's stream, before a commit. It has to write nothing, and delete
nothing: every row of the context is compared before and after. And it has to say so, by `Fenced`.
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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from tests.campaign.life import FileLedger
from tests.campaign.places import (
    STORES,
    broken,
    file_of,
    lines_of,
    place,
    rows_of,
    run_together,
    wrong,
)
from tests.campaign.trial import Tally, Trial
from tests.campaign.verdict import answer, judge

from looopy import Agent, LoopConfig, ToolContext, UserMessage, tool
from looopy.errors import LooopyError
from looopy.stores.sql import statements
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import Patience, fork, wait
from looopy.types.request import LLMRequest

_TTL_S = 0.3
_PATIENCE_S = 30.0
_UNDER_WAY_S = 0.1  # what it had sent before it was stopped may still end its turn
_AT_ONCE = 6  # they mostly sleep
_TABLES = {
    "looopy_contexts": "context_id",
    "looopy_turns": "turn",
    "looopy_messages": "position",
    "looopy_events": "seq",
    "looopy_artifacts": "artifact_id, version",
}


@dataclass(frozen=True)
class Grave:
    """One context of the trial: a process is stopped in it, and another takes it over."""

    url: str
    context_id: str
    seed: int
    folder: Path

    @property
    def ledgers(self) -> tuple[Path, Path]:
        """Of the process that is stopped, and of the one that comes after it."""
        return self.folder / f"{self.context_id}-first", self.folder / f"{self.context_id}-next"

    @property
    def gate(self) -> Path:
        """Once it is there, the second process ends its turn."""
        return self.folder / f"{self.context_id}-gate"


def _agent(grave: Grave, provider: ScriptedProvider, *tools: Any) -> Agent:
    return Agent(
        grave.context_id,
        llm_provider=provider,
        tools=tools,
        stores=grave.url,
        on_busy="wait",
        loop_config=LoopConfig(lease_ttl_s=_TTL_S, busy_timeout_s=_PATIENCE_S),
    )


async def be_stopped(grave: Grave) -> None:
    """Take turns, and be in the middle of one nearly always, until refused."""
    rng = random.Random(grave.seed)
    ledger = FileLedger(grave.ledgers[0])

    @tool(effects="external")
    async def work(context: ToolContext) -> str:
        """Keep a plan for a while."""
        await context.artifacts.save("plan", "of the first")
        await asyncio.sleep(rng.random() * 0.03)
        await context.artifacts.delete("plan")
        return "worked"

    def reply(request: LLMRequest) -> Any:
        last = request.messages[-1]
        if isinstance(last, UserMessage):
            return (text("let me see"), tool_call("work"), tool_call("work"))
        return text(answer(request.messages))

    provider = ScriptedProvider(reply, chunk_chars=4, delay_s=0.002)
    agent = _agent(grave, provider, work)
    await agent.start()
    turns = 0
    while True:
        turns += 1
        said = f"{grave.context_id}-first-{turns}"
        told: dict[str, Any] = {"said": said, "context": grave.context_id}
        ledger.write("asked", **told)
        view = agent.execute_turn(said)
        try:
            turn = await view.accepted()
            ledger.write("ack", turn=turn, **told)
            result = await view
        except LooopyError as error:
            ledger.write("error", error=type(error).__name__, words=str(error), **told)
            return
        ledger.write("done", turn=result.turn, outcome=result.outcome.value, **told)


async def come_next(grave: Grave, *, in_turn: bool) -> None:
    """Wait until the context is free, take a turn; *in_turn*: stay in it until the gate opens."""
    ledger = FileLedger(grave.ledgers[1])

    @tool
    async def hold(context: ToolContext) -> str:
        """Keep a plan for good, and wait for the gate."""
        await context.artifacts.save("plan", "of the next")
        ledger.write("holding")
        while in_turn and not grave.gate.exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.005)
        return "held"

    said = f"{grave.context_id}-next"
    provider = ScriptedProvider([tool_call("hold"), lambda request: text(answer(request.messages))])
    agent = _agent(grave, provider, hold)
    await agent.start()
    told: dict[str, Any] = {"said": said, "context": grave.context_id}
    ledger.write("asked", **told)
    try:
        result = await agent.execute_turn(said)
    except LooopyError as error:
        ledger.write("error", error=type(error).__name__, words=str(error), **told)
    else:
        ledger.write("done", turn=result.turn, outcome=result.outcome.value, **told)
    await agent.shutdown()
    ledger.write("over")


def one_zombie(
    grave: Grave, meanwhile: Callable[[], None] = lambda: None
) -> tuple[bool, list[str]]:
    """
    Stop one, displace it, wake it up.

    Args:
        meanwhile: What happens to it besides, once it is stopped.

    Returns:
        Whether it came about, and what is wrong.
    """
    rng = random.Random(grave.seed)
    in_turn = rng.random() < 0.5
    first, following = grave.ledgers
    log = grave.folder / f"{grave.context_id}-log"
    zombie = fork(lambda: asyncio.run(be_stopped(grave)), log)
    after = 0
    problems: list[str] = []
    try:
        _until(lambda: _has(first, "done"), "the first turn never ended")
        if not _stop_in_turn(grave, zombie, rng):
            return False, []
        meanwhile()
        after = fork(lambda: asyncio.run(come_next(grave, in_turn=in_turn)), log)
        if in_turn:
            _until(lambda: _has(following, "holding"), "nobody came next")
        else:
            _until(lambda: _has(following, "over"), "who came next took no turn")
        before = _rows(grave)
        os.kill(zombie, signal.SIGCONT)
        status, zombie = wait(zombie, kill_after_s=_PATIENCE_S), 0
        if _rows(grave) != before:
            problems.append("it wrote after it was displaced")
        if status != 0:
            problems.append(f"it did not end by itself ({status}): {log.read_text()[-1500:]}")
        grave.gate.touch()
        status, after = wait(after), 0
        if status != 0:
            problems.append(f"who came next failed ({status}): {log.read_text()[-1500:]}")
    except TimeoutError as error:
        return True, [*problems, str(error)]
    finally:
        for pid in filter(None, (zombie, after)):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    problems += [f"who came next was told {e}" for e in lines_of(following) if e["kind"] == "error"]
    last = lines_of(first)[-1]
    if last["kind"] != "error" or last["error"] != "Fenced":
        problems.append(f"it was told {last} and not Fenced")
    ledgers = [first, following]
    problems += judge(grave.url, grave.context_id, ledgers, grave.folder, may_lose_turns=True)
    return True, problems


def _stop_in_turn(grave: Grave, pid: int, rng: random.Random) -> bool:
    """
    Stop the process at a random moment in which it holds a turn, and nothing of the database.

    A stopped process that holds the lock of the file keeps everybody out, and nothing can be done
    about that: it is let go on for a moment.
    """
    for _ in range(50):
        time.sleep(rng.random() * 0.08)
        os.kill(pid, signal.SIGSTOP)
        _until(lambda: _is_stopped(pid), "it cannot be stopped")
        if _holds_a_turn(grave):
            time.sleep(_UNDER_WAY_S)
            if _holds_a_turn(grave):
                return True
        os.kill(pid, signal.SIGCONT)
    return False


def _holds_a_turn(grave: Grave) -> bool:
    return not _is_locked(grave) and _open_turn(grave) is not None


def _is_stopped(pid: int) -> bool:
    """Whether every thread of the process stands still."""
    stats = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)


def _is_locked(grave: Grave) -> bool:
    if grave.url.startswith("sqlite"):
        return all(_is_file_locked(file_of(grave.url)) for _ in range(20))  # others write as well
    try:
        lock = "SELECT 1 FROM looopy_contexts WHERE context_id = ? FOR UPDATE NOWAIT"
        rows_of(grave.url, lock, grave.context_id)
    except psycopg.errors.LockNotAvailable:
        return True
    return False


def _is_file_locked(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path, timeout=0.02)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


def _open_turn(grave: Grave) -> object:
    ((found,),) = rows_of(
        grave.url, "SELECT open_turn FROM looopy_contexts WHERE context_id = ?", grave.context_id
    )
    return found


def _rows(grave: Grave) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the context, but for the expiry of its lease, which its owner moves."""
    found = {}
    for table, key in _TABLES.items():
        columns = "*"
        if table == "looopy_contexts":
            columns = "epoch, holder, open_turn, turn_count, last_position, last_seq, state"
        found[table] = rows_of(
            grave.url,
            f"SELECT {columns} FROM {table} WHERE context_id = ? ORDER BY {key}",
            grave.context_id,
        )
    return found


def _has(ledger: Path, kind: str) -> bool:
    return any(line["kind"] == kind for line in lines_of(ledger))


def _until(condition: Callable[[], bool], complaint: str) -> None:
    patience = Patience(_PATIENCE_S)
    while not condition():
        if patience.is_over():
            raise TimeoutError(complaint)
        time.sleep(0.002)


def _bury(url: str, seeds: list[int], folder: Path, report: Path) -> None:
    """One after the other, in a process that does nothing else."""
    ledger = FileLedger(report)
    for seed in seeds:
        came_about, problems = one_zombie(Grave(url, f"z{seed}", seed, folder))
        ledger.write("zombie", seed=seed, came_about=came_about, problems=problems)


def _trial(store: str, full: int) -> Trial:
    name = f"zombies, {store}"

    def run(number: int, seed: int) -> Tally:
        tally = Tally(name)
        seeds = [seed + n for n in range(number)]
        with place(store) as url, tempfile.TemporaryDirectory(prefix="looopy-zombies-") as kept:
            folder = Path(kept)
            reports = [folder / f"report-{n}" for n in range(min(_AT_ONCE, number))]
            bodies = [
                partial(_bury, url, seeds[n :: len(reports)], folder, report)
                for n, report in enumerate(reports)
            ]
            patience_s = 2 * _PATIENCE_S * (1 + number / len(bodies))
            tally.violations += run_together(bodies, folder, patience_s)
            for line in (line for report in reports for line in lines_of(report)):
                tally.runs += line["came_about"]
                tally.missed += not line["came_about"]
                tally.violations += [f"seed {line['seed']}: {p}" for p in line["problems"]]
        return tally

    return Trial(name, full, run)


def without_fence() -> contextlib.AbstractContextManager[None]:
    """Let any owner commit, whatever its epoch."""
    return broken(statements, "COMMIT", lambda commit: commit.replace("epoch = :epoch", "1 = 1"))


TRIALS = [_trial(store, 500) for store in STORES]
WRONG = [wrong(TRIALS[0], "no fence", without_fence)]
