"""A share of the losses of a server, by the command that runs all of the campaign."""

import pytest


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_a_server_a_connection_and_a_network_may_go_at_any_moment(campaign):
    """Nothing is lost, nothing is doubled, callers are told the truth, and serving goes on."""
    trials = [f"server_loss/{name}" for name in ("asyncpg", "stops", "ended")]
    done = campaign("--share", "0.01", "--seed", "1", "--only", *trials)
    assert done.returncode == 0, done.stdout + done.stderr
