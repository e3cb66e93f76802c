"""
Limit the cost of a turn: fail if it grew by more than 15 % over the figures in `budgets.toml`.

The budgets limit steps (see `counting`), which do not depend on the machine or on its other work.
They also limit CPU time in loops, loosely, to notice costs that steps cannot see: work in functions
of C. Each figure is measured in a process of its own. It holds for the versions of Python and of
the packages that it was measured with; for another Python, somebody has to renew the figures.

    python -m benchmarks.budgets            compare; 1 where a budget is exceeded
    python -m benchmarks.budgets --renew    write new figures, after a change that is worth it
    python -m benchmarks.budgets WORD ...   only the budgets with such a word in their name
"""

import json
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FIGURES = Path(__file__).parent / "budgets.toml"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

WORK = (
    "import -",
    "text turn memory",
    "text turn sqlite",
    "jwt turn memory",
    "http turn memory",
    "tool turn memory",
    "tool turn sqlite",
    "late turn memory",
    "delta memory",
    "resume sqlite",
)
TIMED = (
    *("text turn memory", "jwt turn memory", "http turn memory"),
    *("late turn memory", "delta memory", "resume sqlite"),
)
GROWTH = {"steps": 1.15, "loops": 1.75}
TRIES = 3
"""
A figure that is exceeded is measured again. What disturbed loops the first time is over. The steps
of SQLite vary by one percent, because its thread takes jobs together when it is late.
"""

HEAD = """\
# What a piece of work may cost; `python -m benchmarks.budgets --renew` writes this file.
# Steps are byte codes and calls of C functions; loops are CPU time in units of a fixed loop. Both
# are for one turn, one delta, one context of 2,000 messages that is opened and takes a turn.
"""


def measure(name: str, kind: str) -> float:
    """One figure, from a process of its own."""
    return float(_run(name, kind))


def shares(name: str) -> dict[str, int]:
    """The steps of one figure by where they were taken, most first."""
    found: dict[str, int] = _run(name, "shares")
    return found


def _run(name: str, kind: str) -> Any:
    work, _, backend = name.rpartition(" ")
    env = os.environ | {"PYTHONHASHSEED": "0"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # no process compiles at each start
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.budget_work", work, backend, kind],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def read() -> dict[str, dict[str, dict[str, float]]]:
    """The figures that are kept: by version of Python, by kind, by name."""
    return tomllib.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}


def write(figures: dict[str, dict[str, dict[str, float]]]) -> None:
    """Keep figures."""
    parts = [HEAD]
    for version in sorted(figures):
        for kind, values in figures[version].items():
            lines = [f'"{name}" = {value:.5g}' for name, value in values.items()]
            parts.append("\n".join([f'["{version}".{kind}]', *lines, ""]))
    FIGURES.write_text("\n".join(parts), encoding="utf-8")


def check(figures: dict[str, dict[str, float]], name: str, kind: str, *, renew: bool) -> bool:
    """Measure, print, keep the figure to renew it, or say whether it is within the budget."""
    allowed = figures[kind].get(name)
    found = measure(name, kind)
    if renew:
        figures[kind][name] = found
        print(f"{name:18} {found:>12,.4g} {kind}", flush=True)
        return True
    if allowed is None:
        print(f"{name:18} {found:>12,.4g} {kind}  NO FIGURE: --renew writes it", flush=True)
        return False
    limit = allowed * GROWTH[kind]
    for _ in range(1, TRIES):
        if found > limit:
            found = min(found, measure(name, kind))
    verdict = "" if found <= limit else f"  EXCEEDED: at most {GROWTH[kind]:.2f}"
    ratio = f"{found / allowed:5.2f} of {allowed:,.4g}"
    print(f"{name:18} {found:>12,.4g} {kind}, {ratio}{verdict}", flush=True)
    return found <= limit


def main() -> int:
    """Compare or renew."""
    renew = "--renew" in sys.argv
    words = [word for word in sys.argv[1:] if word != "--renew"]
    chosen = [name for name in WORK if not words or any(word in name for word in words)]
    figures = read()
    if not renew and PYTHON not in figures:
        print(f"no figures for Python {PYTHON}, only for {', '.join(figures)}: nothing compared")
        return 0
    mine = figures.setdefault(PYTHON, {"steps": {}, "loops": {}})
    if renew and not words:
        mine.update(steps={}, loops={})
    measure("import -", "steps")  # compiles what is not compiled yet
    timed = [name for name in chosen if name in TIMED]
    with ThreadPoolExecutor(max_workers=2) as both:  # steps are the same on a busy machine
        counted = both.map(lambda name: check(mine, name, "steps", renew=renew), chosen)
        within = list(counted)
    within += [check(mine, name, "loops", renew=renew) for name in timed]
    if renew:
        write(figures)
    return int(not all(within))


if __name__ == "__main__":
    sys.exit(main())
