"""
Measure costs that must not grow with the data: late turns, idle agents, full databases, restarts.

These scenarios measure looopy alone. The floor has no agents, and it finds a row by its key as fast
in a full database as in an empty one.
"""

import asyncio
import contextlib
import gc
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.scenarios import Figures, timed
from benchmarks.subjects import Looopy
from benchmarks.workload import question

ROOT = Path(__file__).parent.parent
ROWS = ("looopy_turn_rows", "looopy_message_rows", "looopy_event_rows")


async def late_turns(url: str, turn: int = 10_000) -> Figures:
    """CPU of turns around number 10,000, over that of turns around number 10; they alternate."""
    subject = Looopy(url)
    await subject.open()
    await subject.fill("late", 2 * turn)
    await timed(subject, "late", 3)
    early, late = [], []
    for number in range(5):
        await timed(subject, f"early-{number}", 8)
        for _ in range(5):
            early += (await timed(subject, f"early-{number}", 1))[1]
            late += (await timed(subject, "late", 1))[1]
    await subject.close()
    ratio = statistics.median(late) / statistics.median(early)
    return {
        "cpu_ms_turn_10": statistics.median(early) * 1e3,
        f"cpu_ms_turn_{turn}": statistics.median(late) * 1e3,
        "late_over_early": ratio,
    }


def _resident_kib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


async def idle_agents(url: str, count: int = 10_000) -> Figures:
    """Memory of agents that are started and do nothing, and of those that took a turn before."""
    subject = Looopy(url)
    await subject.open()
    for number in range(20):  # what the first ones load is not theirs
        await subject.turn(f"warm-{number}", question(0))
    before = _resident_kib()
    for number in range(count):
        await subject.agent(f"idle-{number}")
    started = (_resident_kib() - before) / count
    some = min(count, 2000)
    before = _resident_kib()
    for number in range(some):
        await subject.turn(f"idle-{number}", question(0))
    turned = (_resident_kib() - before) / some
    await subject.close()
    return {"kib_per_started_agent": started, "kib_added_by_a_turn": turned}


def multiply(path: str, count: int) -> None:
    """
    Copy the context `seed` of a SQLite file until there are *count* contexts.

    The copies equal what looopy writes, but for their name: each row is one that it wrote.
    """
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous=OFF")
        database.execute("PRAGMA foreign_keys=OFF")
        columns = _columns(database, "looopy_contexts", but="number")
        taken = ["printf('copy-%08d', n)" if name == "context_id" else name for name in columns]
        database.execute(
            "WITH RECURSIVE copies(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies"
            f" WHERE n < {count - 1}) INSERT INTO looopy_contexts ({', '.join(columns)})"
            f" SELECT {', '.join(taken)} FROM copies, looopy_contexts WHERE context_id = 'seed'"
        )
        for table in ROWS:
            columns = _columns(database, table, but="id")
            database.execute(
                f"INSERT INTO {table} (id, {', '.join(columns)})"
                f" SELECT (c.number << 32) | (r.id & 4294967295), r.{', r.'.join(columns)}"
                f" FROM looopy_contexts seed CROSS JOIN looopy_contexts c CROSS JOIN {table} r"
                " WHERE seed.context_id = 'seed' AND c.context_id LIKE 'copy-%'"
                " AND r.id BETWEEN seed.number << 32 AND (seed.number << 32) | 4294967295"
            )
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _columns(database: sqlite3.Connection, table: str, *, but: str) -> list[str]:
    names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    return [name for name in names if name != but]


async def many_contexts(folder: str, count: int, few: int = 1000, rounds: int = 150) -> Figures:
    """CPU and wall of opening a context and of a turn, in a full database over a small one."""
    subjects = {}
    for size in (few, count):
        path = str(Path(folder) / f"many-{size}.db")
        seeder = Looopy(f"sqlite:///{path}")
        await seeder.open()
        for number in range(3):
            await seeder.turn("seed", question(number))
        await seeder.close()
        multiply(path, size)
        subjects[size] = Looopy(f"sqlite:///{path}")
        await subjects[size].open()
        await timed(subjects[size], "copy-00000001", 5)
    chosen = random.Random(1)  # noqa: S311 - the same ones each time
    cpu: dict[int, list[float]] = {few: [], count: []}
    wall: dict[int, list[float]] = {few: [], count: []}
    for _ in range(rounds):
        for size, subject in subjects.items():
            name = f"copy-{chosen.randrange(2, size):08d}"
            taken, spent = await timed(subject, name, 2)
            cpu[size].append(sum(spent))
            wall[size].append(sum(taken))
            subject.forget(name)
    for subject in subjects.values():
        await subject.close()
    ratio: Callable[[dict[int, list[float]]], float] = lambda found: (  # noqa: E731 - twice below
        statistics.median(found[count]) / statistics.median(found[few])
    )
    return {
        "contexts": count,
        "cpu_full_over_small": ratio(cpu),
        "wall_full_over_small": ratio(wall),
    }


async def hang(url: str) -> None:
    """Take two turns, begin a third one that does not end, and wait to be killed."""
    subject = Looopy(url)
    await subject.open()
    await timed(subject, "chat", 2)
    subject.model.latency_s = 3600
    agent = await subject.agent("chat")
    view = agent.execute_turn(question(3))
    await view.accepted()
    print("hanging", flush=True)
    await asyncio.sleep(3600)


RESTART = """\
import asyncio, sys, time
from looopy import Agent
from looopy.testing import ScriptedProvider, text
async def main():
    agent = Agent("chat", llm_provider=ScriptedProvider([text("Yes.")]), stores=sys.argv[1])
    await agent.start()
    view = agent.execute_turn("Are you there?")
    await view.accepted()
    print("accepted", time.process_time(), flush=True)
    await view
    await agent.shutdown()
asyncio.run(main())
"""
"""What a program that was restarted does, from its first line."""


def restart(folder: str, times: int = 5) -> Figures:
    """Seconds from the start of a process to the next accepted turn, after `kill -9` in a turn."""
    taken, cpu = [], []
    for number in range(times):
        url = f"sqlite:///{Path(folder) / f'killed-{number}.db'}"
        command = [sys.executable, "-m", "benchmarks.worker", "hang", url]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "hanging\n"
            victim.send_signal(signal.SIGKILL)
        began = time.perf_counter()
        command = [sys.executable, "-c", RESTART, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as next_one:
            assert next_one.stdout is not None
            word, spent = next_one.stdout.readline().split()
            taken.append(time.perf_counter() - began)
            assert word == "accepted"
            cpu.append(float(spent))
        assert next_one.returncode == 0
    return {
        "restart_to_accepted_s": statistics.median(taken),
        "restart_to_accepted_cpu_s": statistics.median(cpu),
    }
