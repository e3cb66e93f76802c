"""A share of the trials of budgets of a day, by the command that runs all of the campaign."""

import pytest

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]

_ALIVE = "budgets/turns on one budget, sqlite"
_KILLED = "budgets/kills on one budget, sqlite"
_SEED = ("--runs", "16", "--seed", "1")


def test_processes_share_a_budget_and_overspend_it_neither_alive_nor_killed(campaign):
    """At no moment more than the limit, and in the end exactly what was used."""
    done = campaign("--only", _ALIVE, _KILLED, *_SEED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_budget_that_is_not_compared_or_refunds_twice_is_found_out(campaign):
    """The same turns on code that is broken on purpose: each of the two is noticed."""
    done = campaign("--wrong", "--only", f"{_ALIVE}:", *_SEED)
    assert done.returncode == 0, done.stdout + done.stderr
