"""A share of the trials with several processes, by the command that runs all of the campaign."""

import pytest
from tests.campaign import command

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]


def _found(campaign, module, runs, *more):
    done = campaign("--only", module, "--runs", str(runs), "--seed", "1", *more)
    return done.returncode, done.stdout + done.stderr


def test_processes_that_share_a_context_take_turns_one_after_another(campaign):
    """One line of whole turns: none lost, none twice, none inside another, nobody refused."""
    status, output = _found(campaign, "race", 6)
    assert status == 0, output


def test_a_process_that_is_stopped_and_displaced_writes_nothing_when_it_wakes_up(campaign):
    """No row of its context changes, and it is told `Fenced`."""
    status, output = _found(campaign, "zombies", 2)
    assert status == 0, output


def test_a_process_that_dies_in_slow_code_of_the_application_keeps_its_results(campaign):
    """A tool that had finished does not run again, wherever the process waited."""
    status, output = _found(campaign, "slow_code", 8)
    assert status == 0, output


def test_a_clock_that_jumps_decides_who_may_try_and_never_who_may_write(campaign):
    """Turns may be taken over; nothing else changes."""
    status, output = _found(campaign, "clock jumps", 8)
    assert status == 0, output


def test_a_store_that_stands_still_costs_no_living_owner_its_turn(campaign):
    """Locked, stopped, or with a clock that jumps: no result is lost, and no tool runs twice."""
    status, output = _found(campaign, "standing", 2)
    assert status == 0, output


def test_a_clock_that_is_set_back_keeps_no_context_shut(campaign):
    """The next process gets in as if it had not been, and the owner stays fenced."""
    status, output = _found(campaign, "clock set back", 2)
    assert status == 0, output


def test_nobody_is_told_that_the_database_is_locked(campaign):
    """Many writers, and many that open a fresh file in the same moment."""
    status, output = _found(campaign, "contention", 2)
    assert status == 0, output


def test_a_full_disk_loses_nothing_and_serving_goes_on_when_there_is_space():
    """`StorageFull` while there is none, and every acknowledged turn afterwards."""
    status, output = _found(command.campaign, "disk", 2)  # on a server of its own
    assert status == 0, output


def test_nothing_is_acknowledged_into_files_that_vanished(campaign):
    """Removed, renamed or replaced under two processes: a typed error, and nothing lost before."""
    status, output = _found(campaign, "vanished", 1)
    assert status == 0, output


@pytest.mark.parametrize(
    ("module", "runs"),
    [
        *(("race", 60), ("zombies", 3), ("clock", 60), ("contention", 200), ("disk", 2)),
        *(("vanished", 1), ("standing", 4), ("slow_code", 4)),
    ],
)
def test_each_trial_finds_what_it_looks_for(campaign, module, runs):
    """On code that is broken on purpose each of them finds violations."""
    status, output = _found(campaign, module, runs, "--wrong")
    assert status == 0, output


def test_of_two_people_on_one_approval_one_decides_and_the_asker_pays(campaign):
    """Killed or not: one decision, which all are told of, and a call that runs at most once."""
    status, output = _found(campaign, "people", 4)
    assert status == 0, output
