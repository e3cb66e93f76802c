"""A share of the erasures of people, by the command that runs all of them."""

import pytest


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_erasure_takes_every_word_of_a_person_and_no_other(campaign):
    """On every store, over clears, forks, rewinds and summaries."""
    done = campaign("--runs", "12", "--only", "guests", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
