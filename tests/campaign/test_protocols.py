"""A share of the stories in which several faces of a server show one turn."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.campaign, pytest.mark.long, pytest.mark.timeout(600)]


def test_every_face_shows_the_same_turn_after_cuts_and_kills():
    """Each is cut ten times, and the server is killed twice."""
    command = [sys.executable, "-m", "tests.campaign.protocols", "--cuts", "10", "--pace", "0.01"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every face shows the same\n")
    assert "killed 2 times" in done.stdout
