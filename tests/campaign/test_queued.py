"""Restart at every point of a turn that is steered: nothing lost, nothing said twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from looopy._failpoints import NAMES

_ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_process_killed_at_any_point_of_a_steered_turn_loses_no_message():
    """What was acknowledged is said once, what was taken back is not; each boundary is hit."""
    command = [sys.executable, "-m", "tests.campaign.queued"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert {name for name, kills in found["kills"].items() if kills} == set(NAMES)
