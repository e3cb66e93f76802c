"""A share of the silences of a database, by the command that runs all of the campaign."""

import pytest


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_may_fall_silent_at_any_moment(campaign):
    """Every call ends, nothing is lost, nothing is doubled, and callers are told the truth."""
    done = campaign("--share", "0.01", "--only", "silence", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
