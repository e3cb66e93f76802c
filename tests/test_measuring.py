"""The run of all tests measures some of them, and no others."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import coverage
import pytest
from tests import measuring

from looopy.types.message import StopReason, UserMessage
from looopy.types.message_json import message_to_json
from looopy.types.state import outcome_of

ROOT = measuring.ROOT


@pytest.fixture
def passed(tmp_path):
    """A function that runs tests, each an id and its body, and returns the modules they took."""

    def run(*tests):
        plugin = measuring.Measuring(tmp_path, ["tests/unit", "tests/server"])
        for nodeid, body in tests:
            item = SimpleNamespace(nodeid=nodeid, path=ROOT / nodeid.partition("::")[0])
            protocol = plugin.pytest_runtest_protocol(item)
            next(protocol)
            body()
            with suppress(StopIteration):
                next(protocol)
        plugin.pytest_sessionfinish()
        taken = set()
        for file in tmp_path.glob("data.*"):
            taken |= set(measuring.modules(str(file)))
        return taken

    return run


def _outcome():
    outcome_of(StopReason.STOP)


def _json():
    message_to_json(UserMessage("hello"))


def _child():
    command = "import looopy.errors as e; e.ValueRefused('no', path='/a')"
    subprocess.run([sys.executable, "-c", command], check=True)


def test_only_the_tests_of_some_folders_are_measured(passed):
    """One before them and one after them is not, and neither is one that repeats its lines."""
    (repeats,) = measuring.REPEATING
    taken = passed(
        ("tests/agent/test_a.py::test_one", _json),
        ("tests/unit/test_b.py::test_two", _outcome),
        (f"{repeats}[<]", _json),
        ("tests/server/test_c.py::test_three", lambda: None),
        ("tests/agent/test_a.py::test_four", _json),
    )
    assert "looopy.types.state" in taken
    assert "looopy.types.message_json" not in taken


@pytest.mark.parametrize(("folder", "counts"), [("server", True), ("unit", False), ("cli", False)])
def test_the_processes_of_measured_tests_are_measured(folder, counts, passed):
    """Not those of unit tests, where they have nothing of looopy and would start slowly."""
    taken = passed((f"tests/{folder}/test_a.py::test_one", _child))
    assert ("looopy.errors" in taken) is counts


def test_the_tests_that_are_measured_exist():
    """A folder that moved would be measured no more, and the floor might still hold."""
    names = [*measuring.MEASURED, measuring.IN_ONE_PROCESS, *measuring.REPEATING]
    for name in names:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


def test_an_import_counts_for_modules_that_were_taken(tmp_path, passed):
    """Their own imports were over before the tests began; no module counts that no test took."""
    passed(("tests/unit/test_b.py::test_two", _outcome))
    (first,) = tmp_path.glob("data.*")
    first.rename(tmp_path / "data")
    command = [sys.executable, "-m", "tests.measuring", "--import", str(tmp_path / "data")]
    subprocess.run(command, cwd=ROOT, check=True)
    (second,) = tmp_path.glob("data.*")
    assert _lines(second, "types/state.py") > _lines(first.with_name("data"), "types/state.py") > 0
    assert _lines(second, "types/message.py") > 0  # state.py imports it
    assert _lines(second, "server/host.py") == 0


def _lines(data, name):
    found = coverage.CoverageData(str(data))
    found.read()
    return len(found.lines(str(ROOT / "src" / "looopy" / name)) or ())
