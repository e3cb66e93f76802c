"""Restart at many a point of an approval and of a question: nothing lost, nothing doubled."""

import pytest


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_process_killed_at_any_point_of_an_approval_loses_and_doubles_nothing(campaign):
    """An approved external tool runs exactly once, or its outcome is unknown; each boundary hit."""
    done = campaign("--share", "0.25", "--only", "answers", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
