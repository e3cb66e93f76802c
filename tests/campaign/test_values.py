"""A share of the hostile messages, by the command that runs all of the campaign."""

import pytest


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_message_is_kept_as_it_was_or_refused_whole(campaign):
    """On every store, whatever is in it, and whatever else was to be stored with it."""
    done = campaign("--share", "0.005", "--only", "values", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
