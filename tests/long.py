"""
The searches that take too long for each change, one after another, with a report.

    python -m tests.long                     all of them: hours
    python -m tests.long tests campaign      some, by name
    python -m tests.long --list              their names, commands and purposes

A step that fails does not stop the others. The report, `report.md` beside a log of each step, is
written anew after each of them, so that a run that is stopped leaves what it has found. The status
is 1 if a step failed.
"""

# ruff: noqa: T201 - a command: its output is its result

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
_PYTEST = ("pytest", "-q")


@dataclass(frozen=True)
class Step:
    """A module to run with its arguments, and what the tests of every change lack without it."""

    why: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


STEPS = {
    "tests": Step(
        "the tests that are marked `long`",
        (*_PYTEST, "-m", "long and not big_model"),
    ),
    "properties": Step(
        "2,000 examples a property and 200 runs a state machine, new ones each time",
        (*_PYTEST, "--timeout=0", "-m", "not big_model", "tests/property"),
        {"LOOOPY_EXAMPLES": "2000", "LOOOPY_MACHINE_RUNS": "200"},
    ),
    "campaign": Step(
        "kills, cuts, races and full disks: as much of every trial as fits in an hour",
        ("tests.campaign", "--budget", "3600"),
    ),
    "wrong": Step(
        "the judges of the campaign, on deliberate mistakes that they have to find",
        ("tests.campaign", "--wrong"),
    ),
    "endurance": Step(
        "100,000 turns through a server in one process: nothing stays behind",
        ("tests.campaign.endurance",),
    ),
    "replays": Step(
        "each turn that the tests of agents store, replayed, unchanged and changed",
        ("tests.campaign.replays",),
    ),
    "mutants": Step(
        "each mistake of the list in a copy: the tests that are named for it fail",
        ("tests.mutants",),
    ),
}


@dataclass(frozen=True)
class Ended:
    """How a step ended."""

    status: int
    seconds: float
    summary: str


def run(name: str, step: Step, folder: Path) -> Ended:
    """Run a step; its output goes to the terminal and to its log."""
    began = time.monotonic()
    last = ""
    with (
        (folder / f"{name}.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, "-m", *step.command],
            cwd=ROOT,
            env=os.environ | step.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            log.write(line)
            last = line.strip(" =\n") or last
    return Ended(process.returncode, time.monotonic() - began, last)


def report(names: Sequence[str], ended: Mapping[str, Ended], began: datetime) -> str:
    """A page that says how each step ended, also of those that did not run."""
    lines = [
        f"# Long run of {began:%Y-%m-%d %H:%M} UTC",
        "",
        "| step | ended | minutes | last line | command |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in names:
        step, end = STEPS[name], ended.get(name)
        outcome = "not run" if end is None else f"failed ({end.status})" if end.status else "passed"
        minutes = "" if end is None else f"{end.seconds / 60:.1f}"
        summary = "" if end is None else end.summary.replace("|", "\\|")
        variables = "".join(f"{key}={value} " for key, value in step.environment.items())
        command = f"`{variables}python -m {' '.join(step.command)}`"
        lines.append(f"| {name} | {outcome} | {minutes} | {summary} | {command} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run the steps as asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="STEP", help="steps; all if there is none")
    parser.add_argument("--list", action="store_true", help="print the steps and run none")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "long", help="the folder")
    args = parser.parse_args(arguments)
    if unknown := set(args.names) - set(STEPS):
        parser.error(f"no step is named {', '.join(sorted(unknown))}: see --list")
    if args.list:
        for name, step in STEPS.items():
            print(f"{name:12} {step.why}")
        return 0
    names = [name for name in STEPS if not args.names or name in args.names]
    args.to.mkdir(parents=True, exist_ok=True)
    began, ended = datetime.now(UTC), {}
    for name in names:
        print(f"=== {name}: {STEPS[name].why}", flush=True)
        ended[name] = run(name, STEPS[name], args.to)
        (args.to / "report.md").write_text(report(names, ended, began), encoding="utf-8")
    print(f"\n{report(names, ended, began)}\nin {args.to / 'report.md'}")
    return int(any(end.status for end in ended.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
