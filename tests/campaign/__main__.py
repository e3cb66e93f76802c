"""
The fault campaign as one command: break looopy in every way there is a trial for, and count.

    python -m tests.campaign                            everything, at full length
    python -m tests.campaign --budget 600               as much of everything as fits in ten minutes
    python -m tests.campaign --share 0.02 --only kills  a fiftieth of the trials of kills.py
    python -m tests.campaign --only "B9, sqlite" --seed 4711 --runs 1     one run again

A row is printed when its trial is over. Run *k* of a trial that began with seed *s* has the seed
*s + k*; a violation names the seed of its run. The status is 1 when something was violated, and
when a trial made no runs: one that cannot do what it is there for proves nothing. What has to be
found out (`--wrong`) needs a race to be lost, so a trial that found nothing is run again, a few
times.
"""

# ruff: noqa: T201 - a command: its output is its result

from __future__ import annotations

import argparse
import importlib
import logging
import math
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.trial import Tally, Trial

_FIRST = 200  # the first round of a budget makes one of so many runs
_TRIES = 8  # rounds of a trial that has to find something; all of them are needed by a blind one
_SHOWN = 5  # violations of a trial that are printed; the number of all is in its row
_WIDTH = 46


@dataclass(frozen=True)
class Entry:
    """A trial and the module it is from."""

    module: str
    trial: Trial


@dataclass
class Row:
    """What is known of a trial so far."""

    entry: Entry
    tally: Tally
    seconds: float
    broke: bool = False  # it raised, and so looked at nothing

    @property
    def pace(self) -> float:
        """Seconds a run."""
        return self.seconds / max(self.tally.runs, 1)


def modules() -> list[str]:
    """The modules of the campaign that may have trials."""
    names = (p.stem for p in Path(__file__).parent.glob("*.py"))
    return sorted(n for n in names if not n.startswith(("_", "test_")))


def entries(kind: str, only: Sequence[str]) -> list[Entry]:
    """
    The trials to run.

    Args:
        kind: `TRIALS`, or `WRONG`: those that have to find violations.
        only: Names of modules, parts of names of trials, or both, as `kills/kill at B9`; empty for
            all.
    """
    known = modules()
    wanted = [_wanted(name, known) for name in only]
    found = []
    for module in known:
        parts = [part for where, part in wanted if where in (None, module)]
        if only and not parts:
            continue  # loading it may take long, and may need what is not installed
        trials: Iterable[Trial] = getattr(
            importlib.import_module(f"tests.campaign.{module}"), kind, ()
        )
        found += [
            Entry(module, trial)
            for trial in trials
            if not only or any(part in trial.name for part in parts)
        ]
    return found


def _wanted(name: str, known: Sequence[str]) -> tuple[str | None, str]:
    """The module that is meant, if one is, and a part of the names of its trials."""
    module, _, part = name.partition("/")
    return (module, part) if module in known else (None, name)


def run(entry: Entry, count: int, seed: int) -> Row:
    """Make *count* runs of a trial; what it raises is a violation."""
    began = time.monotonic()
    broke = False
    try:
        tally = entry.trial.run(count, seed)
    except Exception as error:  # noqa: BLE001 - the other trials still have to be run
        tally = Tally(entry.trial.name, violations=[f"seed {seed}: the trial failed: {error!r}"])
        broke = True
    return Row(entry, tally, time.monotonic() - began, broke)


def until_found(entry: Entry, count: int, seed: int) -> Row:
    """Make rounds of *count* runs until one of them finds something."""
    row = run(entry, count, seed)
    for n in range(1, _TRIES):
        if row.tally.violations:
            break
        row = merge(row, run(entry, count, seed + n * max(count, entry.trial.full)))
    return row


def merge(first: Row, second: Row) -> Row:
    """Both rounds of a trial as one."""
    a, b = first.tally, second.tally
    tally = Tally(
        *(a.name, a.runs + b.runs, a.missed + b.missed),
        violations=a.violations + b.violations,
        notes=b.notes,  # of the longer round
    )
    return Row(first.entry, tally, first.seconds + second.seconds, first.broke or second.broke)


def head() -> None:
    """Print what the columns are."""
    columns = f"{'runs':>6} {'missed':>6} {'violations':>10} {'seconds':>8}"
    print(f"{'trial':{_WIDTH}} {columns}  {'seed':>6}", flush=True)


def show(row: Row, seed: int) -> Row:
    """Print a row, what was measured on the way, and the first of its violations."""
    tally = row.tally
    facts = f"{tally.runs:6} {tally.missed:6} {len(tally.violations):10} {row.seconds:8.1f}"
    print(f"{row.entry.trial.name:{_WIDTH}} {facts}  {seed:6}", flush=True)
    for line in (*tally.notes, *tally.violations[:_SHOWN]):
        print(f"    {line}", flush=True)
    return row


def at_length(
    chosen: Sequence[Entry], count: Callable[[Trial], int], seed: int, *, wrong: bool
) -> list[Row]:
    """Run each trial with as many runs as *count* says; what has to be found, until it is."""
    make = until_found if wrong else run
    return [show(make(entry, count(entry.trial), seed), seed) for entry in chosen]


def within(chosen: Sequence[Entry], budget_s: float, seed: int) -> list[Row]:
    """Measure the pace of each trial by a small round, then spend what is left on all alike."""
    deadline = time.monotonic() + budget_s
    first = []
    for entry in chosen:
        row = run(entry, max(1, entry.trial.full // _FIRST), seed)
        if row.tally.violations:
            show(row, seed)  # nobody should wait for the second round to hear of it
        first.append(row)
    rows = []
    for n, row in enumerate(first):
        # Looked at anew each time: the first runs of a trial are slower than those that follow.
        ahead = sum(r.pace * (r.entry.trial.full - r.tally.runs) for r in first[n:])
        share = min(1.0, max(0.0, deadline - time.monotonic()) / max(ahead, 1e-9))
        more = math.floor(share * (row.entry.trial.full - row.tally.runs))
        both = row
        if more > 0:
            both = merge(row, run(row.entry, more, seed + row.entry.trial.full))
        rows.append(show(both, seed))
    return rows


def missing(entry: Entry, row: Row, *, wrong: bool) -> str | None:
    """Why the campaign fails because of this trial; `None` when it does not."""
    if wrong and row.broke:
        return f"{entry.trial.name} broke, and found nothing out"
    if not row.tally.runs:
        return f"{entry.trial.name} made no runs"
    if wrong and not row.tally.violations:
        return f"{entry.trial.name} found nothing: it is blind"
    if not wrong and row.tally.violations:
        return f"{entry.trial.name} found {len(row.tally.violations)} violations"
    return None


def main() -> int:
    """Run the campaign as asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--budget", type=float, metavar="SECONDS", help="about how long it may take"
    )
    length.add_argument("--share", type=float, default=1.0, help="of the runs of each trial")
    length.add_argument("--runs", type=int, metavar="N", help="runs of each trial")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="modules, or trials")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(100_000))
    parser.add_argument("--list", action="store_true", help="print the trials and run none")
    parser.add_argument(
        "--wrong", action="store_true", help="run what has to be found out, in place of the trials"
    )
    args = parser.parse_args()
    chosen = entries("WRONG" if args.wrong else "TRIALS", args.only)
    if not chosen:
        parser.error("no trial has such a name: see --list")
    if args.list:
        for entry in chosen:
            print(f"{entry.module:14} {entry.trial.name:{_WIDTH}} {entry.trial.full:6} runs")
        return 0
    # What goes wrong is what was wanted; the table says what should not have.
    logging.getLogger("looopy").addHandler(logging.NullHandler())
    head()
    if args.budget is not None:
        rows = within(chosen, args.budget, args.seed)
    else:
        fixed, share = args.runs, args.share
        rows = at_length(
            chosen,
            lambda trial: fixed or max(1, round(trial.full * share)),
            args.seed,
            wrong=args.wrong,
        )
    failures = [
        f for e, r in zip(chosen, rows, strict=True) if (f := missing(e, r, wrong=args.wrong))
    ]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    # What is taken for a run (a server, a folder) is given back at a regular end alone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
