"""A share of the failovers of a server, by the command that runs all of the campaign."""

import pytest


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_what_a_failover_loses_is_reported_once_and_nothing_else_is_lost(campaign):
    """With synchronous replication nothing is lost; without it, each agent reports its loss."""
    trials = [
        "failovers/without synchronous replication, asyncpg",
        "failovers/with synchronous replication, psycopg",
    ]
    done = campaign("--share", "0.01", "--seed", "1", "--only", *trials)
    assert done.returncode == 0, done.stdout + done.stderr
