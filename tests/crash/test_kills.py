"""A share of the kill campaign; the whole of it runs by `nox -s campaign`."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


def _campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own: it forks, and a test runner has threads."""
    return subprocess.run(
        [sys.executable, "-m", "tests.crash.campaign", *arguments],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_and_no_finished_tool_runs_twice() -> None:
    """Random kills, kills at every boundary, and kills during recovery: no violation."""
    done = _campaign("--random", "24", "--boundary", "3", "--double", "3")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_saving_at_the_end_of_the_turn_is_found_out() -> None:
    """The same campaign on the wrong order fails: the check can see what it looks for."""
    done = _campaign("--random", "0", "--boundary", "0", "--double", "0", "--wrong-order", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "acknowledged message" in done.stdout
