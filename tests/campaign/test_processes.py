"""A share of the trials with several processes, by the command that runs all of the campaign."""

import pytest
from tests.campaign import command

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]

_LONG = {
    "race": 6,  # one log of whole turns: none lost, none twice, none inside another
    "slow_code": 8,  # dies in code of the application: a tool that had finished does not run again
    "clock jumps": 8,  # turns may be taken over, and nothing else changes
    "standing": 2,  # a locked or stopped store costs no living owner its turn
    "clock set back": 2,  # the next process gets in as if it had not been
    "contention": 2,  # many writers, many first openings: no caller is told of a locked database
    "disk": 2,  # `StorageFull` while it is full, and every acknowledged turn afterwards
    "vanished": 1,  # files that were removed or replaced: a typed error, and nothing lost before
    "people": 4,  # two persons on one approval: one decision, and a call that runs at most once
}
_WRONG = {"race": 60, "zombies": 3, "clock": 60, "contention": 200, "disk": 2, "vanished": 1}
_WRONG |= {"standing": 4, "slow_code": 4}


def _found(campaign, module, runs, *more):
    if module == "disk":
        campaign = command.campaign  # on a server of its own
    done = campaign("--runs", str(runs), "--seed", "1", "--only", module, *more)
    return done.returncode, done.stdout + done.stderr


def test_a_process_that_is_stopped_and_displaced_writes_nothing_when_it_wakes_up(campaign):
    """No row of its context changes, and it is told `Fenced`."""
    status, output = _found(campaign, "zombies/sqlite", 2, "zombies/asyncpg")
    assert status == 0, output


@pytest.mark.long
@pytest.mark.parametrize("module", _LONG)
def test_no_trial_with_several_processes_finds_a_violation(campaign, module):
    """The comments of the table say what each of them looks for."""
    status, output = _found(campaign, module, _LONG[module])
    assert status == 0, output


@pytest.mark.long
@pytest.mark.parametrize("module", _WRONG)
def test_each_trial_finds_what_it_looks_for(campaign, module):
    """On code that is broken on purpose each of them finds violations."""
    status, output = _found(campaign, module, _WRONG[module], "--wrong")
    assert status == 0, output
