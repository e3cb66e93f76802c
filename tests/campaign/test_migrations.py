"""A share of the kills and double starts of migrations, by the command that runs all of them."""

import pytest


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_killed_migration_leaves_what_was_or_what_is_to_be(campaign):
    """On both engines, at any statement of any step; and two starters migrate once."""
    done = campaign("--share", "0.02", "--only", "migrations", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_migration_that_commits_each_statement_is_found_out(campaign):
    """The check can see what it looks for."""
    done = campaign("--wrong", "--runs", "6", "--only", "careless migration, sqlite", "--seed", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "neither as before nor as after" in done.stdout
