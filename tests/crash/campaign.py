"""
Kill a process that runs turns, again and again, and see what is left.

    python -m tests.crash.campaign --random 300 --boundary 20 --double 50

prints one row a test: kills, violations, the seed. A violation is printed with the seed of its
case, which replays it. Children are forked from this process, so a life costs no interpreter start;
and each opening after a kill happens in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from tests.crash.life import Life, begin, examine

import looopy.stores.sql.engine  # noqa: F401 - loaded once here, not in each child
from looopy import open_stores
from looopy._failpoints import NAMES

_TURN_NAMES = tuple(n for n in NAMES if n.startswith("B"))
_RECOVERY_NAMES = tuple(n for n in NAMES if n.startswith("R"))
_LIFE_S = 0.35  # about what a life's turns take: a random kill falls within it
_PATIENCE_S = 30.0


@dataclass
class Tally:
    """What one test found."""

    name: str
    kills: int = 0
    missed: int = 0  # lives that ended before their kill
    violations: list[str] = field(default_factory=list)


def fork(body: Callable[[], None], log: Path) -> int:
    """Run *body* in a child process; its output goes to *log*."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        body()
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, *, kill_after_s: float | None = None) -> int:
    """The exit status of a child, killed after a while if it has not ended."""
    deadline = time.monotonic() + (_PATIENCE_S if kill_after_s is None else kill_after_s)
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)


def run_life(life: Life, log: Path, kill_after_s: float | None, tally: Tally) -> list[str]:
    """Live and be killed; problems are lives that ended of themselves in a wrong way."""
    status = wait(fork(lambda: begin(life), log), kill_after_s=kill_after_s)
    if status == -signal.SIGKILL:
        tally.kills += 1
        return []
    tally.missed += 1
    return [] if status == 0 else [f"the process failed: {log.read_text()[-1500:]}"]


def look(life: Life, log: Path) -> list[str]:
    """Examine in a process of its own."""
    report = log.with_suffix(".json")

    def body() -> None:
        report.write_text(json.dumps(asyncio.run(examine(life))))

    status = wait(fork(body, log))
    if status != 0:
        return [f"it could not be opened: {log.read_text()[-1500:]}"]
    found: list[str] = json.loads(report.read_text())
    return found


@cache
def _template() -> Path:
    """A database without contexts, to copy: making the schema is not what is tested here."""
    folder = Path(tempfile.mkdtemp(prefix="looopy-crash-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    database = folder / "empty.db"

    async def make() -> None:
        async with open_stores(f"sqlite:///{database}"):
            pass

    if wait(fork(lambda: asyncio.run(make()), folder / "log")) != 0:
        raise RuntimeError((folder / "log").read_text())
    return database


def one_case(
    seed: int,
    lives: list[tuple[str | None, float | None]],
    tally: Tally,
    *,
    save_at_end: bool = False,
) -> None:
    """Live on one context several times, each time killed at its place or time, then examine it."""
    folder = Path(tempfile.mkdtemp(prefix="looopy-crash-"))
    try:
        problems: list[str] = []
        life = Life(folder / "c.db", folder / "ledger", seed, save_at_end=save_at_end)
        life.ledger.touch()
        shutil.copyfile(_template(), life.database)
        for n, (failpoint, kill_after_s) in enumerate(lives):
            this = replace(life, seed=seed * 10 + n, failpoint=failpoint)
            problems += run_life(this, folder / "log", kill_after_s, tally)
        problems += look(life, folder / "log")
        tally.violations += [f"seed {seed}, lives {lives}: {p}" for p in problems]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def random_kills(count: int, seed: int, *, save_at_end: bool = False) -> Tally:
    """*count* kills at random times, up to three lives a context."""
    tally = Tally("save at the end of the turn" if save_at_end else "random kills")
    rng = random.Random(seed)
    case = 0
    while tally.kills < count:
        case += 1
        lives = [(None, rng.random() * _LIFE_S) for _ in range(min(3, count - tally.kills))]
        one_case(seed * 100_000 + case, lives, tally, save_at_end=save_at_end)
    return tally


def boundary_kills(name: str, count: int, seed: int) -> Tally:
    """*count* kills at one boundary, each time at another pass of it."""
    tally = Tally(f"kill at {name}")
    case = 0
    while tally.kills < count and case < count * 8:
        case += 1
        one_case(seed * 100_000 + case, [(f"{name}:{1 + case % 7}", None)], tally)
    if tally.kills < count:
        tally.violations.append(f"{name} was passed only {tally.kills} times")
    return tally


def recovery_kills(name: str, count: int, seed: int) -> Tally:
    """*count* kills in the middle of a turn, each followed by one during its recovery."""
    tally = Tally(f"kill in a tool, then at {name}")
    for case in range(count):
        lives: list[tuple[str | None, float | None]] = [("B9:1", None), (f"{name}:1", None)]
        one_case(seed * 100_000 + case, lives, tally)
    return tally


def report(tallies: list[Tally], seed: int) -> int:
    """Print the table and the violations; the number of violations."""
    print(f"{'test':34} {'kills':>6} {'missed':>7} {'violations':>11}   seed {seed}")
    for tally in tallies:
        print(f"{tally.name:34} {tally.kills:6} {tally.missed:7} {len(tally.violations):11}")
    for tally in tallies:
        for violation in tally.violations[:5]:
            print(f"\n{tally.name}: {violation}")
    return sum(len(t.violations) for t in tallies)


def main() -> int:
    """Run the campaign as asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--random", type=int, default=300, help="kills at random times")
    parser.add_argument("--boundary", type=int, default=20, help="kills at each boundary")
    parser.add_argument("--double", type=int, default=20, help="kills at each step of a recovery")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument(
        "--wrong-order", type=int, default=0, metavar="N", help="kills of save-at-end: it must fail"
    )
    args = parser.parse_args()
    tallies = [random_kills(args.random, args.seed)] if args.random else []
    if args.boundary:
        tallies += [boundary_kills(name, args.boundary, args.seed) for name in _TURN_NAMES]
    if args.double:
        tallies += [recovery_kills(name, args.double, args.seed) for name in _RECOVERY_NAMES]
    found = report(tallies, args.seed)
    if args.wrong_order:
        wrong = random_kills(args.wrong_order, args.seed, save_at_end=True)
        if not report([wrong], args.seed):
            print("the wrong order was not found out: the campaign is blind")
            return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
