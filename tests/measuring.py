"""
The share of branches that some tests take, measured in the run of all tests.

    python -m tests.measuring                     run those tests, and report
    python -m tests.measuring tests/unit/tools    run others, and report theirs

If `LOOOPY_COVERAGE` names a folder, a run of tests leaves there what those of `MEASURED` took, and
this command reports that without a run. Only these tests are slower for it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coverage import Coverage

ROOT = Path(__file__).parent.parent
FOLDER = "LOOOPY_COVERAGE"

# Tests that should take every branch; those that start and kill processes are slow to trace.
MEASURED = (
    *("tests/unit", "tests/wire", "tests/server", "tests/replay"),
    "tests/agent/turns/test_turns.py",
)
# They take the same lines 60,000 times, which other tests take once.
REPEATING = ("tests/unit/llm/test_thoughts.py::test_no_run_of_characters_is_read_again_and_again",)
IN_ONE_PROCESS = "tests/unit"  # a child there has nothing of ours, and would be slow to start

_ALL = "LOOOPY_COVERAGE_OF_ALL"
_CONFIG = str(ROOT / "pyproject.toml")


def plugin() -> Measuring | None:
    """The plugin of pytest, if the environment asks for it."""
    if FOLDER not in os.environ:
        return None
    return Measuring(Path(os.environ[FOLDER]), ("tests",) if _ALL in os.environ else MEASURED)


class Measuring:
    """Traces the tests below some *paths*, with the processes that they start."""

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        self._paths = [ROOT / one for one in paths]
        self._data = str(folder / "data")
        self._coverage: Coverage | None = None
        self._traces = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace this test, or not; it seldom differs from the test before."""
        for name in (FOLDER, _ALL):  # a run of tests that a test starts is not measured
            os.environ.pop(name, None)
        wanted = any(item.path.is_relative_to(one) for one in self._paths)
        wanted = wanted and not item.nodeid.startswith(REPEATING)
        self._trace(wanted=wanted)
        alone = item.path.is_relative_to(ROOT / IN_ONE_PROCESS)
        self._trace_children(wanted=wanted and not alone)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        """Write what this process has seen."""
        self._trace(wanted=False)
        if self._coverage is not None:
            self._coverage.save()

    def _trace(self, *, wanted: bool) -> None:
        if wanted == self._traces:
            return
        self._traces = wanted
        self._coverage = self._coverage or _measurement(self._data)
        if wanted:
            self._coverage.start()
        else:
            self._coverage.stop()

    def _trace_children(self, *, wanted: bool) -> None:
        for name, value in (("COVERAGE_PROCESS_START", _CONFIG), ("COVERAGE_FILE", self._data)):
            if wanted:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)


def _measurement(data: str) -> Coverage:
    import coverage

    made = coverage.Coverage(data_file=data, config_file=_CONFIG)
    # It begins late on purpose, see `import_again`, and a process may get no test that is measured.
    made.set_option("run:disable_warnings", ["module-not-measured", "no-data-collected"])
    return made


def report(folder: Path) -> int:
    """Show what a run left in *folder*; the status is not 0 if it is below the floor."""
    data = str(folder / "data")
    environment = os.environ | {"COVERAGE_FILE": data}

    def run(*arguments: str) -> int:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode

    return (
        run("coverage", "combine", "--quiet")
        or run("tests.measuring", "--import", data)
        or run("coverage", "combine", "--quiet", "--append")
        or run("coverage", "report")
    )


def import_again(data: str) -> None:
    """
    Import the modules that the tests took, and measure that.

    Their own imports are not: most are over before the first test, and which test is the first to
    import the others differs from run to run.
    """
    names = modules(data)
    measurement = _measurement(data)
    measurement.start()
    for name in names:
        importlib.import_module(name)
    measurement.stop()
    measurement.save()


def modules(data: str) -> list[str]:
    """The names of the modules with a line that was taken, in the file *data*."""
    import coverage

    found = coverage.CoverageData(data)
    found.read()
    taken = sorted(one for one in found.measured_files() if found.lines(one))
    places = [Path(one).relative_to(ROOT / "src").with_suffix("") for one in taken]
    return [".".join(one.parts) for one in places if one.name != "__main__"]


def main(arguments: list[str]) -> int:
    """Run the tests, unless a run of all of them has left its data, and report."""
    if arguments[:1] == ["--import"]:
        import_again(arguments[1])
        return 0
    if FOLDER in os.environ:
        return report(Path(os.environ[FOLDER]))
    folder = tempfile.mkdtemp()
    try:
        asked = {FOLDER: folder, **({_ALL: "1"} if arguments else {})}
        tests = [sys.executable, "-m", "pytest", "-q", *(arguments or MEASURED)]
        ran = subprocess.run(tests, cwd=ROOT, env=os.environ | asked, check=False).returncode
        return report(Path(folder)) or ran
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
