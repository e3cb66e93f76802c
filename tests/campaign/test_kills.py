"""A share of the kills, by the command that runs all of the campaign."""

import pytest

_ON_POSTGRES = ("random kills", "kill at B9", "kill in a tool, then at R2")
_WRONG = "save at the end of a turn, sqlite"


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_and_no_finished_tool_runs_twice(campaign):
    """Random kills, at every boundary in SQLite and at two on a server: no violation."""
    trials = ["kills/sqlite", *(f"kills/{name}, postgresql" for name in _ON_POSTGRES)]
    done = campaign("--share", "0.006", "--seed", "1", "--only", *trials)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.long
def test_saving_at_the_end_of_the_turn_is_found_out(campaign):
    """The same kills on the wrong order: the check can see either thing that it looks for."""
    done = campaign("--wrong", "--runs", "15", "--only", _WRONG, "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "acknowledged message" in done.stdout or "ran 2 times" in done.stdout
