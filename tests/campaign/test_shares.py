"""Shares of the trials, by the command that runs the whole campaign."""

from __future__ import annotations

import pytest
from tests.campaign import command
from tests.shares import split

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]

_BUDGET = "budgets/turns on one budget, sqlite"
_RESIDUE = "messages are still in the file"
_UNLIKE = "neither as before nor as after"
_KILLS = ("random kills", "kill at B9", "kill in a tool, then at R2")
_LOSSES = ("asyncpg", "stops", "ended")

# What no trial may find, each as arguments of the command.
_SHARES = {
    # Nothing acknowledged is lost, and no finished tool runs twice.
    "kills": (
        *("--share", "0.003", "--only", "kills/sqlite"),
        *(f"kills/{name}, postgresql" for name in _KILLS),
    ),
    # A kill between two stores of an application's own loses and doubles nothing.
    "own stores": (
        *("--runs", "1", "--only", "kills/kill at S1, table", "kills/kill at S3, files"),
        *(f"kills/kill at S2, then at S4, {store}" for store in ("files", "table")),
    ),
}
_LONG_SHARES = {
    # Processes on one budget, some killed: never more than the limit, exactly what was used.
    "budgets": ("--runs", "8", "--only", "budgets/kills on one budget, sqlite"),
    # Each agent reports the commits that it lost, once.
    "failovers": ("--runs", "1", "--only", "failovers/without synchronous replication, asyncpg"),
    # Erased words are in no byte of a file, after each way to remove them and after later writes.
    "residue": ("--share", "0.017", "--seed", "28", "--only", "residue"),
    # A server, a connection, a network: nothing lost or doubled, and callers are told the truth.
    "server_loss": ("--share", "0.005", "--only", *(f"server_loss/{name}" for name in _LOSSES)),
    # A stopped and displaced process writes nothing when it wakes up, and is told `Fenced`.
    "zombies": ("--runs", "1", "--only", "zombies/sqlite", "zombies/asyncpg"),
    # An approved tool runs exactly once, or its outcome is unknown, at each boundary of a kill.
    "answers": ("--share", "0.25", "--only", "answers"),
    # No row names bytes that are missing after a kill.
    "artifacts": ("--share", "0.04", "--only", "artifacts"),
    # The same of processes that all stay alive.
    "budgets without kills": ("--runs", "16", "--only", _BUDGET),
    # Turns may be taken over, and nothing else changes.
    "clock jumps": ("--runs", "8", "--only", "clock jumps"),
    # The next process gets in as if the clock had not been set back.
    "clock set back": ("--runs", "2", "--only", "clock set back"),
    # Many writers, many first openings: no caller is told of a locked database.
    "contention": ("--runs", "2", "--only", "contention"),
    # `StorageFull` while the disk is full, and every acknowledged turn afterwards.
    "disk": ("--runs", "2", "--only", "disk"),
    # With synchronous replication, a failover loses nothing.
    "synchronous failovers": (
        "--runs",
        "1",
        "--only",
        "failovers/with synchronous replication, psycopg",
    ),
    # An erasure takes every word of a person, and no other.
    "guests": ("--runs", "12", "--only", "guests"),
    # A killed migration leaves the old or the new schema; two starters migrate once.
    "migrations": ("--share", "0.02", "--only", "migrations"),
    # Two persons on one approval: one decision, and a call that runs at most once.
    "people": ("--runs", "4", "--only", "people"),
    # A steered turn that is killed loses no message and repeats none.
    "queued": ("--share", "0.34", "--only", "queued"),
    # One log of whole turns: none lost, none twice, none inside another.
    "race": ("--runs", "6", "--only", "race"),
    # Every call ends while the server is silent, and nothing is lost or doubled.
    "silence": ("--share", "0.01", "--only", "silence"),
    # A process dies in code of the application: a tool that had finished does not run again.
    "slow_code": ("--runs", "8", "--only", "slow_code"),
    # A locked or stopped store costs no living owner its turn.
    "standing": ("--runs", "2", "--only", "standing"),
    # A message is kept as it was, or refused whole.
    "values": ("--share", "0.005", "--only", "values"),
    # Files that were removed or replaced: a typed error, and nothing lost before.
    "vanished": ("--runs", "1", "--only", "vanished"),
}
# Code that is broken on purpose, and the words of which the command has to print one.
_WRONG = {
    "budgets": (("--runs", "16", "--only", f"{_BUDGET}:"), ()),
    "clock": (("--runs", "60", "--only", "clock"), ()),
    "contention": (("--runs", "200", "--only", "contention"), ()),
    "disk": (("--runs", "2", "--only", "disk"), ()),
    "kills": (
        ("--runs", "15", "--only", "save at the end of a turn, sqlite"),
        ("acknowledged message", "ran 2 times"),
    ),
    "migrations": (
        ("--runs", "6", "--seed", "5", "--only", "careless migration, sqlite"),
        (_UNLIKE,),
    ),
    "race": (("--runs", "60", "--only", "race"), ()),
    "residue": (("--runs", "1", "--seed", "31", "--only", "residue"), (_RESIDUE,)),
    "slow_code": (("--runs", "4", "--only", "slow_code"), ()),
    "standing": (("--runs", "4", "--only", "standing"), ()),
    "vanished": (("--runs", "1", "--only", "vanished"), ()),
    "zombies": (("--runs", "3", "--only", "zombies"), ()),
}


def _output(campaign, name, *arguments):
    """What the command prints; it fails the test if it fails."""
    if name == "disk":
        campaign = command.campaign  # on a server of its own
    done = campaign("--seed", "1", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", split(_SHARES, _LONG_SHARES))
def test_a_share_of_each_trial_finds_no_violation(campaign, name):
    """The comments of the tables say what each of them looks for."""
    _output(campaign, name, *{**_SHARES, **_LONG_SHARES}[name])


@pytest.mark.long
@pytest.mark.parametrize("name", _WRONG)
def test_trials_of_code_that_is_broken_on_purpose_find_violations(campaign, name):
    """So that a judge that finds nothing is not a judge that is blind."""
    arguments, words = _WRONG[name]
    printed = _output(campaign, name, "--wrong", *arguments)
    assert not words or any(one in printed for one in words)
