"""Words that were erased are in no byte of a file, whatever its pages went through."""

import pytest


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_erased_words_are_in_no_byte_of_a_file(campaign):
    """By each way to remove them, and after later writes; the rest stays whole."""
    done = campaign("--share", "0.017", "--only", "residue", "--seed", "28")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.long
def test_words_left_in_the_gaps_of_pages_are_found_out(campaign):
    """The check can see what it looks for."""
    done = campaign("--wrong", "--runs", "1", "--only", "residue", "--seed", "31")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "messages are still in the file" in done.stdout
