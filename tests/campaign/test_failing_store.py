"""A store may fail at any call; the whole of it runs by `nox -s campaign`."""

from __future__ import annotations

from tests.campaign.failing_store import HOWS, fail, fail_calls
from tests.campaign.trial import Tally
from tests.campaign.worlds import Place, World

_RUNS = {"memory": 80, "sqlite": 30, "asyncpg": 15, "psycopg": 25}


async def test_any_call_to_the_stores_may_fail(kind, url):
    """Nothing acknowledged is lost, nothing is known that is not stored, and all goes on."""
    tally = Tally("a share")
    await fail_calls(url, _RUNS[kind], 1, tally)
    assert tally.violations == []
    assert tally.runs == _RUNS[kind] > tally.missed


async def test_a_store_that_reports_success_without_a_write_is_detected():
    """The same check on a store that lies finds what it is there for."""
    found = []
    async with Place("memory:") as place:
        for at in range(1, 6):
            try:
                await fail(World(place.stores()), "tool_turn", "lie", at)
            except AssertionError as error:
                found.append(str(error))
    assert any("shown and not stored" in problem for problem in found), found
    assert "lie" not in HOWS
