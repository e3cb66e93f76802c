"""The long run goes on after a step that fails, and its report says how each step ended."""

from __future__ import annotations

import importlib.util

import pytest
from tests import long

STEPS = {
    "good": long.Step("good", ("timeit", "-n1", "-r1", "pass")),
    "bad": long.Step("bad", ("tests.no_such_module",), {"LOOOPY_EXAMPLES": "7"}),
    "last": long.Step("last", ("timeit", "-n1", "-r1", "print('a|b')")),
}


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A function that runs steps: the status, and the rows of the report by the step's name."""
    monkeypatch.setattr(long, "STEPS", STEPS)

    def run(*names):
        status = long.main([*names, "--to", str(tmp_path)])
        lines = (tmp_path / "report.md").read_text().splitlines()[4:]
        return status, {line.split(" | ")[0].strip("| "): line for line in lines}

    return run


def test_a_step_that_fails_is_reported_and_the_others_run(ran, tmp_path):
    """Each step has a row with its end, its last line and its command, and a log."""
    status, rows = ran()
    assert status == 1
    assert list(rows) == list(STEPS)
    assert "| passed |" in rows["good"]
    assert "| failed (1) |" in rows["bad"]
    assert "No module named tests.no_such_module" in rows["bad"]
    assert rows["bad"].endswith("| `LOOOPY_EXAMPLES=7 python -m tests.no_such_module` |")
    assert "| passed |" in rows["last"]
    assert sorted(one.name for one in tmp_path.glob("*.log")) == ["bad.log", "good.log", "last.log"]
    assert "a|b" in (tmp_path / "last.log").read_text()


def test_steps_are_chosen_by_name_and_pass(ran):
    """The others are neither run nor in the report."""
    status, rows = ran("good")
    assert (status, list(rows)) == (0, ["good"])


def test_the_modules_of_the_long_run_exist():
    """A step of a module that moved would fail after hours."""
    for step in long.STEPS.values():
        assert importlib.util.find_spec(step.command[0]), step
