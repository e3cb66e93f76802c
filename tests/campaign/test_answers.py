"""Restart at every point of an approval and of a question: nothing lost, nothing doubled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from looopy._failpoints import NAMES

_ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_process_killed_at_any_point_of_an_approval_loses_and_doubles_nothing():
    """An approved external tool runs exactly once, or its outcome is unknown; each boundary hit."""
    command = [sys.executable, "-m", "tests.campaign.answers"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert {name for name, kills in found["kills"].items() if kills} == set(NAMES)
