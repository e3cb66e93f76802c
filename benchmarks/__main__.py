"""
Measure looopy beside the floor, and beside other libraries where they are installed.

    python -m benchmarks                        all scenarios, a few minutes
    python -m benchmarks S1 S5 late             some of them
    python -m benchmarks --backend sqlite       on one store
    python -m benchmarks --peers DIR            with the comparison harness in DIR
    python -m benchmarks --full                 10,000 turns, 10,000 agents, 1,000,000 contexts
    python -m benchmarks --plots docs/plots     draw pictures, and measure nothing else
    python -m benchmarks --full --page --plots docs/plots   all that docs/performance.md shows

Each scenario is a process of its own in an empty database; looopy and the floor alternate. Wall
time is that of this machine, so compare the ratios.
"""

import argparse
import datetime as dt
import json
import os
import platform
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import packaging, page, peers, report
from benchmarks.catalogue import SCENARIOS
from benchmarks.subjects import BACKENDS
from benchmarks.targets import Targets, targets

ROOT = Path(__file__).parent.parent


def child(subject: str, scenario: str, backend: str, url: str, number: int) -> dict[str, float]:
    """Return the figures of one process; print a failure, and return no figures for it."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker", subject, scenario, backend, url, str(number)],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"# {subject} {scenario} {backend} failed", file=sys.stderr)
        return {}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(
    place: Targets, scenario: str, backend: str, results: report.Results, sizes: list[int]
) -> None:
    """One repetition of a scenario on a backend: looopy, then the floor."""
    if scenario == "S7":
        results.add("looopy", scenario, backend, packaging.import_costs() | packaging.packages())
        return
    for subject in ("looopy", "floor") if SCENARIOS[scenario].floor else ("looopy",):
        for size in sizes:
            with place.fresh(backend) as url:
                if scenario in ("S3", "S3W"):
                    child(subject, "fill", backend, url, size)
                results.add(
                    subject, scenario, backend, child(subject, scenario, backend, url, size)
                )


def conditions() -> str:
    """Describe in a sentence what was measured, and where and when, without the machine's name."""
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("looopy", "aiosqlite", "asyncpg", "pydantic-core")
    )
    return (
        f"Measured {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}: {os.cpu_count()} cores"
        f" ({platform.machine()}), load {os.getloadavg()[0]:.1f}, Python"
        f" {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {packages}."
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", help=", ".join(SCENARIOS))
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="default: all")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="the harness of the comparison")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw PNGs there; measures them")
    parser.add_argument("--reps", type=int, default=2, help="repetitions, default 2")
    parser.add_argument("--full", action="store_true", help="the full sizes")
    parser.add_argument("--contexts", type=int, metavar="N", help="size of the full database")
    parser.add_argument("--page", action="store_true", help=f"write {page.PAGE.name} anew")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every figure")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    given = parser.parse_args()
    unknown = set(given.scenario) - SCENARIOS.keys()
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if given.peers and not (given.peers / "run.py").exists():
        parser.error(f"{given.peers} has no run.py")
    return given


def main() -> int:
    """Measure, print, and write the requested output."""
    given = parse()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # no process compiles at each start
    backends = given.backend or list(BACKENDS)
    chosen = given.scenario or ([] if given.plots and not given.page else list(SCENARIOS))
    results = report.Results()
    with targets(postgres="postgres" in backends) as place:
        for name in chosen:
            scenario = SCENARIOS[name]
            sizes = list(scenario.full if given.full and scenario.full else scenario.numbers)
            if name == "many" and given.contexts:
                sizes = [given.contexts]
            once = name in ("S4", "S7", "S8", "idle", "many", "late", "restart")
            for _ in range(1 if once else given.reps):
                for backend in scenario.backends:
                    if backend in backends or backend == "-":
                        print(f"# {name} {backend}", file=sys.stderr, flush=True)
                        measure(place, name, backend, results, sizes)
            if given.peers:
                results.peers[name] = peers.measure(given.peers, name)
        if given.plots:
            from benchmarks import plots

            plots.draw(place, given.plots, backends)
    lines = report.rows(results)
    if lines:
        print(report.text(lines))
    if any(line[6].endswith("*") for line in lines):
        print("* measured in an earlier run, see docs/performance.md")
    if given.json:
        kept = {" ".join(key): values for key, values in results.ours.items()}
        given.json.write_text(json.dumps({"looopy": kept, "peers": results.peers}), "utf-8")
    if given.page:
        page.write(report.markdown(lines, conditions()))
    return int(given.check and any(line[8] == "NO" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
