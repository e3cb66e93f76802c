"""A share of the kills while a large artifact is written."""

import pytest


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_row_names_bytes_that_are_missing_after_a_kill(campaign):
    """At each boundary of a part and of its row, on both databases: no violation."""
    done = campaign("--share", "0.04", "--only", "artifacts", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
