"""
Make mistakes in a copy of looopy, one at a time, and see that the tests notice.

    python -m tests.mutants                      all of them
    python -m tests.mutants blind-retry          some, by name
    python -m tests.mutants --list               their names, and why each matters

The tests that have to kill a mutant are first run on the unchanged copy, where they pass. A row is
printed for each mutant: its name, how many tests failed because of it, and seconds. The status is 1
when one of the tests that are named for it did not fail, when what it changes is not found exactly
once, or when it could not be run at all.
"""

# ruff: noqa: T201 - a command: its output is its result

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.listed import MUTANTS
from tests.mutants.mutant import Edit, Mutant
from tests.postgres import Server

ROOT = Path(__file__).parents[2]
_COPIED = ("src", "tests", "migrations", "pyproject.toml", "alembic.ini")
_PASSED, _FAILED, _HUNG = 0, 1, -1
_PATIENCE_S = 600
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_WIDTH = 36
_TAIL = 2000


@contextmanager
def copied() -> Iterator[Path]:
    """A folder with all that the tests need."""
    with tempfile.TemporaryDirectory(prefix="looopy-mutants-") as folder:
        for name in _COPIED:
            source, target = ROOT / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, target)
        yield Path(folder)


@contextmanager
def edited(folder: Path, edits: Sequence[Edit]) -> Iterator[None]:
    """
    The copy in *folder* with *edits* made.

    Raises:
        LookupError: What one of them changes is not there exactly once.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in (e.file(folder) for e in edits)}
    try:
        for edit in edits:
            path = edit.file(folder)
            path.write_text(edit.made_in(path.read_text(encoding="utf-8")), encoding="utf-8")
        yield
    finally:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")


def tested(folder: Path, node_ids: Sequence[str], server: str) -> tuple[int, list[str], str]:
    """Run tests on the copy: pytest's status, the tests that failed, and what it said."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder / "src"), str(folder))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LOOOPY_TEST_PG": server,
    }
    command = [  # -m: also those of the long run
        *(sys.executable, "-m", "pytest", "-n0", "-q", "--tb=no", "-rfE", "-o", "timeout=60"),
        *("-m", "not big_model", "-p", "tests.mutants.here", "-p", "no:cacheprovider", *node_ids),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return _HUNG, [], f"the tests did not end within {_PATIENCE_S} seconds"
    said = done.stdout + done.stderr
    return done.returncode, _FAILURE.findall(said), said


def is_under(failed: str, node_id: str) -> bool:
    """Whether *failed* is the test, one of the parameters, or in the file that *node_id* names."""
    return failed == node_id or failed.startswith((f"{node_id}[", f"{node_id}::"))


def kill(folder: Path, mutant: Mutant, server: str) -> bool:
    """Run one mutant and print its row; whether every test that is named for it failed."""
    began = time.monotonic()
    try:
        with edited(folder, mutant.edits):
            status, failed, said = tested(folder, mutant.killed_by, server)
    except LookupError as error:
        print(f"{mutant.name:{_WIDTH}} not made: {error}", flush=True)
        return False
    survived = [n for n in mutant.killed_by if not any(is_under(f, n) for f in failed)]
    seconds = time.monotonic() - began
    killed = status == _FAILED and not survived
    what = f"killed by {len(failed):3}" if killed else "SURVIVED"
    print(f"{mutant.name:{_WIDTH}} {what:14} {seconds:6.1f}", flush=True)
    for node_id in survived if status in (_PASSED, _FAILED) else ():
        print(f"    not noticed by {node_id}", flush=True)
    if status not in (_PASSED, _FAILED):
        print(said[-_TAIL:], flush=True)
    return killed


def run(mutants: Sequence[Mutant], server: str) -> int:
    """Run the tests as they are, then each mutant; how many were not killed."""
    node_ids = sorted({n for mutant in mutants for n in mutant.killed_by})
    with copied() as folder:
        status, _, said = tested(folder, node_ids, server)
        if status != _PASSED:
            print(f"the tests do not pass on the unchanged copy:\n{said[-_TAIL:]}")
            return len(mutants)
        print(f"{'mutant':{_WIDTH}} {'tests':14} {'seconds':>7}", flush=True)
        return sum(not kill(folder, mutant, server) for mutant in mutants)


def main() -> int:
    """Run the mutants as asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; all if there is none")
    parser.add_argument("--list", action="store_true", help="print them and run none")
    args = parser.parse_args()
    unknown = set(args.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no mutant is named {', '.join(sorted(unknown))}: see --list")
    chosen = [m for m in MUTANTS if not args.names or m.name in args.names]
    if args.list:
        for mutant in chosen:
            print(f"{mutant.name:{_WIDTH}} {mutant.why}")
        return 0
    if given := os.environ.get("LOOOPY_TEST_PG"):
        left = run(chosen, given)
    else:
        server = Server()
        try:
            server.start()
            left = run(chosen, server.url("postgres"))
        finally:
            server.remove()
    print(f"{len(chosen) - left} of {len(chosen)} killed")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
