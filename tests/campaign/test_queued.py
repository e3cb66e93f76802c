"""Restart at many a point of a turn that is steered: nothing lost, nothing said twice."""

import pytest


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_process_killed_at_any_point_of_a_steered_turn_loses_no_message(campaign):
    """What was acknowledged is said once, what was taken back is not; each boundary is hit."""
    done = campaign("--share", "0.34", "--only", "queued", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
