"""A share of the turns that may leave nothing behind; `tests.campaign.endurance` runs 100,000."""

from __future__ import annotations

import pytest
from tests.campaign.endurance import VISIT, endure
from tests.shares import split

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("store", split(["sqlite"], ["memory"]))
async def test_turns_on_a_server_leave_no_object(store, tmp_path):
    """Objects of each type are counted after each block of cancelled, failed and left turns."""
    url = "memory:" if store == "memory" else f"sqlite:///{tmp_path / 'endurance.db'}"
    run = await endure(url, turns=4 * VISIT, blocks=6)
    assert run.wrong == []


async def test_the_campaign_finds_an_object_left_by_each_agent():
    """One object for ten turns is enough."""

    class Forgotten:
        pass

    kept = []
    run = await endure(
        "memory:", turns=4 * VISIT, blocks=2, each=lambda _host: kept.append(Forgotten())
    )
    assert any("Forgotten" in one for one in run.wrong), run.wrong
