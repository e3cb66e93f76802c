"""The command of the campaign: how long it runs, what it says, when it fails."""

import pytest
from tests.campaign import __main__ as command
from tests.campaign.__main__ import Entry, entries, main, modules
from tests.campaign.trial import Tally, Trial


class Tried:
    """A trial that notes what it was asked for."""

    def __init__(self, name="a trial", *, full=1000, finds=(), idle=False):
        self.asked = []
        self._finds = finds
        self._idle = idle
        self.finds_at = 0  # in which round it finds what it could not before
        self.entry = Entry("fake", Trial(name, full, self._run))

    def _run(self, count, seed):
        self.asked.append((count, seed))
        runs = 0 if self._idle else count
        finds = ["lost"] if len(self.asked) == self.finds_at else self._finds
        return Tally("a trial", runs=runs, violations=[f"seed {seed}: {f}" for f in finds])


@pytest.fixture
def run(monkeypatch):
    """A function that runs the command on trials of our own; its status."""

    def run_with(trials, *arguments):
        monkeypatch.setattr(command, "entries", lambda _kind, _only: [t.entry for t in trials])
        monkeypatch.setattr("sys.argv", ["campaign", "--seed", "7", *arguments])
        return main()

    return run_with


def test_a_share_is_at_least_one_run(run):
    """Also of a trial that is short at full length."""
    long, short = Tried(full=1000), Tried(full=3)
    assert run([long, short], "--share", "0.02") == 0
    assert (long.asked, short.asked) == ([(20, 7)], [(1, 7)])


def test_a_run_is_repeated_by_its_seed(run):
    """One run, from the seed that a violation names."""
    tried = Tried()
    assert run([tried], "--runs", "1") == 0
    assert tried.asked == [(1, 7)]


def test_a_violation_fails_the_command_and_names_its_seed(run, capsys):
    """The other trials are run all the same."""
    bad, good = Tried(finds=["lost"]), Tried()
    assert run([bad, good], "--runs", "2") == 1
    assert "seed 7: lost" in capsys.readouterr().out
    assert good.asked


def test_a_trial_without_runs_fails_the_command(run, capsys):
    """It proves nothing."""
    assert run([Tried(idle=True)], "--runs", "2") == 1
    assert "made no runs" in capsys.readouterr().out


def test_a_trial_that_breaks_is_a_violation_and_stops_no_other(run, capsys):
    """Its error is shown."""
    broken, good = Tried(), Tried()
    broken.entry = Entry("fake", Trial("broken", 1, lambda _count, _seed: 1 / 0))
    assert run([broken, good], "--runs", "2") == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert good.asked


def test_a_blind_judge_fails_the_command(run, capsys):
    """A check that sees nothing wrong with a wrong order is blind."""
    assert run([Tried(finds=["lost"])], "--wrong", "--runs", "2") == 0
    blind = Tried()
    assert run([blind], "--wrong", "--runs", "2") == 1
    assert "blind" in capsys.readouterr().out
    assert len(blind.asked) == len({seed for _, seed in blind.asked}) > 1


def test_a_judge_may_need_a_second_round(run):
    """A race is not lost in every round; no round follows the one that found it."""
    late = Tried()
    late.finds_at = 3
    assert run([late], "--wrong", "--runs", "2") == 0
    assert len(late.asked) == 3


def test_a_broken_trial_finds_no_violation(run, capsys):
    """An error of the trial is no violation that it saw."""
    broken = Tried()
    broken.entry = Entry("fake", Trial("broken", 1, lambda _count, _seed: 1 / 0))
    assert run([broken], "--wrong", "--runs", "2") == 1
    assert "broken broke" in capsys.readouterr().out


def test_a_large_budget_runs_everything_whole(run):
    """In two rounds, of which the first measures; no seed is used twice."""
    tried = Tried(full=1000)
    assert run([tried], "--budget", "3600") == 0
    (first, _), (second, seed) = tried.asked
    assert first + second == 1000
    assert seed >= 7 + first


def test_a_budget_that_is_spent_leaves_the_first_round(run):
    """Each trial has been run, however little."""
    tried = Tried(full=1000)
    assert run([tried], "--budget", "0") == 0
    assert tried.asked == [(5, 7)]


def test_no_trial_has_the_name_of_another():
    """A name is what a trial is called by."""
    names = [entry.trial.name for entry in entries("TRIALS", [])]
    assert len(names) == len(set(names))
    assert {entry.module for entry in entries("TRIALS", ["kills"])} == {"kills"}
    assert "kills" in modules()
