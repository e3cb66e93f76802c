"""
Kill a process that runs turns, again and again, and see what is left (T1).

At random moments, at every named boundary of a turn, and a second time while the first kill is
being recovered from. Each opening after a kill happens in a process of its own. On Postgres a
killed process leaves a backend behind that may still be committing what it was sent.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.campaign.databases import DRIVERS, new_sqlite, postgres
from tests.campaign.life import Life, begin, examine, warm_up
from tests.campaign.trial import Tally, Trial
from tests.own_stores import NAMES as NAMES_OF_OWN

from looopy._failpoints import NAMES
from looopy.testing.children import fork, run, wait

_TURN_NAMES = tuple(n for n in NAMES if n.startswith("B"))
_RECOVERY_NAMES = tuple(n for n in NAMES if n.startswith("R"))
_STORES = ("sqlite", "postgresql")
_LIFE_S = 0.25  # about what a life takes where nothing else is done
_LIFE_BYTES = 65_000  # about what a life writes down, however long that takes
_STEP_S = 0.004  # about what lies between two lines
_LIVES = 3  # of a context, each ended by a random kill
_LAST_TURNS = 3  # of the life that goes on with what the killed ones left
_TAIL = 800  # characters of what a child said at its end
_TRIES = 8  # lives for each kill that is wanted at a boundary: not every one passes it


@dataclass(frozen=True)
class End:
    """
    How a life ends.

    Attributes:
        failpoint: Where it kills itself, or `None`.
        after_s: When it is killed from outside, or `None`.
        after_bytes: What it writes down before `after_s` is counted.
    """

    failpoint: str | None = None
    after_s: float | None = None
    after_bytes: int = 0


def _random_end(rng: random.Random, *, by_time: bool) -> End:
    """Mostly by what was done, as time says little on a busy machine; but also while it starts."""
    if by_time:  # but not while it starts, which takes all of that time on a busy machine
        return End(after_s=rng.random() * _LIFE_S, after_bytes=1)
    if rng.random() < 0.25:
        return End(after_s=rng.random() * _LIFE_S)
    return End(after_s=rng.random() * _STEP_S, after_bytes=rng.randrange(_LIFE_BYTES))


def _live(life: Life, log: Path, end: End) -> tuple[bool, list[str]]:
    """Whether a life was killed; problems are lives that ended of themselves in a wrong way."""
    written = life.ledger.stat().st_size + end.after_bytes
    try:
        status = wait(
            fork(lambda: begin(life), log),
            kill_after_s=end.after_s,
            once=lambda: life.ledger.stat().st_size >= written,
        )
    except TimeoutError as error:
        return False, [f"{error}: {log.read_text()[-_TAIL:]}"]
    if status == -signal.SIGKILL:
        return True, []
    return False, [] if status == 0 else [f"the process failed: {log.read_text()[-_TAIL:]}"]


def _look(life: Life, log: Path) -> list[str]:
    """Examine in a process of its own."""
    report = log.with_suffix(".json")

    def body() -> None:
        report.write_text(json.dumps(asyncio.run(examine(life))))

    try:
        run(body, log)
    except (RuntimeError, TimeoutError) as error:
        return [f"it could not be opened: {str(error)[-_TAIL:]}"]
    found: list[str] = json.loads(report.read_text())
    return found


def _place(store: str, folder: Path, seed: int) -> str:
    if store == "sqlite":
        return new_sqlite(folder)
    if store == "postgresql":
        return postgres(DRIVERS[seed % len(DRIVERS)])
    theirs = postgres("psycopg") if store == "mixed" else ""
    return f"own:{store}:{folder}:{theirs}"


def _case(
    store: str, seed: int, ends: Sequence[End], tally: Tally, *, save_at_end: bool = False
) -> int:
    """
    Live on one context several times, each time to its end, once more in peace, then examine it.

    Returns:
        How many of the lives were killed.
    """
    warm_up()
    folder = Path(tempfile.mkdtemp(prefix="looopy-kills-"))
    try:
        life = Life(
            _place(store, folder, seed),
            f"life-{secrets.token_hex(6)}",
            folder / "ledger",
            seed,
            save_at_end=save_at_end,
        )
        life.ledger.touch()
        kills = 0
        problems: list[str] = []
        for n, end in enumerate(ends):
            this = replace(life, seed=seed * 10 + n, failpoint=end.failpoint)
            killed, wrong = _live(this, folder / "log", end)
            kills += killed
            problems += wrong
        last = replace(life, seed=seed * 10 + len(ends), turns=_LAST_TURNS)
        problems += _live(last, folder / "log", End())[1]
        problems += _look(life, folder / "log")
        tally.violations += [f"seed {seed}, ends {list(ends)}: {p}" for p in problems]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return kills


def _random(store: str, count: int, seed: int, *, save_at_end: bool = False) -> Tally:
    """Kills at random times, several a context."""
    tally = Tally(f"random kills, {store}")
    case = seed
    while tally.runs < count:
        rng = random.Random(case)
        ends = [_random_end(rng, by_time=save_at_end) for _ in range(_LIVES)]
        kills = _case(store, case, ends, tally, save_at_end=save_at_end)
        tally.runs += kills
        tally.missed += _LIVES - kills
        case += 1
    return tally


def _at(name: str, store: str, count: int, seed: int) -> Tally:
    """Kills at one boundary, each time at another pass of it."""
    tally = Tally(f"kill at {name}, {store}")
    for case in range(seed, seed + count * _TRIES):
        kills = _case(store, case, [End(f"{name}:{1 + case % 7}")], tally)
        tally.runs += kills
        tally.missed += 1 - kills
        if tally.runs == count:
            return tally
    tally.violations.append(f"seed {seed}: {name} was passed only {tally.runs} times")
    return tally


def _twice(name: str, store: str, count: int, seed: int, first: str = "B9") -> Tally:
    """Kills in the middle of a tool or at *first*, each followed by one during the recovery."""
    begins = "in a tool" if first == "B9" else f"at {first}"
    tally = Tally(f"kill {begins}, then at {name}, {store}")
    for case in range(seed, seed + count * _TRIES):
        kills = _case(store, case, [End(f"{first}:1"), End(f"{name}:1")], tally)
        tally.runs += kills == 2
        tally.missed += kills != 2
        if tally.runs == count:
            return tally
    tally.violations.append(f"seed {seed}: only {tally.runs} recoveries were killed")
    return tally


def _trial(name: str, full: int, run: Callable[[str, int, int], Tally], store: str) -> Trial:
    return Trial(f"{name}, {store}", full, partial(run, store))


TRIALS = [
    trial
    for store in _STORES
    for trial in (
        _trial("random kills", 1000, _random, store),
        *(_trial(f"kill at {n}", 50, partial(_at, n), store) for n in _TURN_NAMES),
        *(
            _trial(f"kill in a tool, then at {n}", 200, partial(_twice, n), store)
            for n in _RECOVERY_NAMES
        ),
    )
]

TRIALS += [
    trial
    for store in NAMES_OF_OWN
    for trial in (
        _trial("random kills", 300, _random, store),
        *(_trial(f"kill at {n}", 100, partial(_at, n), store) for n in ("S1", "S2", "S3")),
        _trial("kill at S2, then at S4", 100, partial(_twice, "S4", first="S2"), store),
        *(_trial(f"kill at {n}", 20, partial(_at, n), store) for n in ("B4", "B9", "B13")),
        _trial("kill in a tool, then at S2", 50, partial(_twice, "S2"), store),
    )
]

WRONG = [
    Trial(f"save at the end of a turn, {store}", 60, partial(_random, store, save_at_end=True))
    for store in _STORES
]
