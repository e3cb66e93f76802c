"""
A file, as several processes use it and as killed ones leave it, and a store that proves nothing.

`tests/contract/postgres/test_row_level_security.py` runs the same suites on a server.
"""

from __future__ import annotations

import pytest

from looopy.testing.processes import Processes
from looopy.testing.stores import DurabilityContract, ProcessesContract

MODULES = tuple(f"looopy.testing.contracts.{name}" for name in ("durability", "processes"))


class OnSQLite:
    """In a file."""

    factory = "looopy.stores:open_stores"

    @pytest.fixture
    def place(self, sqlite_file):
        """A file at the head."""
        return f"sqlite:///{sqlite_file}"


class TestDurabilityOnSQLite(OnSQLite, DurabilityContract):
    """Kills."""


class TestProcessesOnSQLite(OnSQLite, ProcessesContract):
    """Races."""


class OnAPickle:
    """A store that passes every contract of one process, and is no store."""

    factory = "tests.contract.pickled:open_pickled"


class PickledDurability(OnAPickle, DurabilityContract):
    """Not collected: its tests fail, as they should."""


class PickledProcesses(OnAPickle, ProcessesContract):
    """As above."""


@pytest.fixture
def pickle(tmp_path):
    """Starts processes on a pickle store that writes after `each` change, or `late`."""

    def start(when):
        place = f"{'late:' if when == 'late' else ''}{tmp_path / 'store.pickle'}"
        return Processes(OnAPickle.factory, place, MODULES)

    return start


async def test_a_store_that_writes_when_it_closes_is_refused(pickle):
    """It loses what it had acknowledged, and the failure names it."""
    lost = r"kill -9 after messages\.append\(\).*acknowledged(.|\n)*lost of messages: .*by the way"
    with pickle("late") as processes, pytest.raises(pytest.fail.Exception, match=lost):
        await PickledDurability().test_an_acknowledged_step_survives_a_kill(processes)


async def test_a_store_that_forgets_a_turn_is_refused(pickle):
    """The turn of a killed process, and its lease, are as lost as its messages."""
    lost = "lost: the lease and the turn of the killed process"
    with pickle("late") as processes, pytest.raises(pytest.fail.Exception, match=lost):
        await PickledProcesses().test_the_turn_of_a_dead_process_is_taken_over(processes)


async def test_a_store_that_overwrites_its_file_is_refused(pickle):
    """It loses everything if it dies between truncating and writing."""
    lost = r"cannot be used after kill -9 within messages\.append\(\), right after .*open: .*EOF"
    with pickle("each") as processes, pytest.raises(pytest.fail.Exception, match=lost):
        await PickledDurability().test_a_step_is_whole_or_absent(processes, "messages.append()")


@pytest.mark.parametrize(
    ("test", "lost"),
    [
        ("another_process_reads_what_is_acknowledged", r"append\(\):\n(.|\n)*lost of messages"),
        ("one_of_two_processes_wins_a_claim", "2 of 2 processes won the claim"),
        ("the_turns_of_two_processes_are_one_log", "of 12 acknowledged turns are lost"),
        ("a_displaced_owner_writes_nothing", "cannot displace an owner"),
        ("a_message_of_another_process_is_delivered_once", "the turn ended over a message"),
    ],
)
async def test_a_store_of_one_process_is_refused(pickle, test, lost):
    """Each process has dictionaries of its own: two owners, lost turns, stale reads."""
    with pickle("each") as processes, pytest.raises(pytest.fail.Exception, match=lost):
        await getattr(PickledProcesses(), f"test_{test}")(processes)
