"""A turn may be cancelled wherever it waits; the whole of it runs by `nox -s campaign`."""

from __future__ import annotations

from unittest import mock

import pytest
from tests.campaign import cancel
from tests.campaign.cancel import PLACES, SCENES, WAYS, strike
from tests.campaign.trial import Tally
from tests.campaign.worlds import Place, World

# Every suspension where a run costs next to nothing, else some of them; each scene has its turn.
_STEP = {"memory": 1, "sqlite": 7, "asyncpg": 21, "psycopg": 11}


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_may_be_cancelled_at_every_suspension(kind, url, way):
    """What was shown is stored, the turn ends or is ended by the next start, nothing is left."""
    struck = 0
    async with Place(url) as place:
        for scene in SCENES:
            await strike(World(place.stores()), scene, way, 0)
        place.settle()
        for n, at in enumerate(range(1, PLACES[kind] + 1, _STEP[kind])):
            watch = await strike(World(place.stores()), SCENES[n % len(SCENES)], way, at)
            struck += watch.struck
            assert await place.left_over() == []
    assert struck > 0


async def test_a_turn_may_be_cancelled_at_any_time(kind, url):
    """The same at moments that are no suspension's: a commit is on its way, a thread is at work."""
    tally = Tally("a share")
    await cancel.cancel_at_random_times(url, kind, 8, 1, tally)
    assert tally.violations == []
    assert tally.runs == 8


async def test_a_commit_that_is_given_up_is_found_out():
    """With a plain await in place of `settle`, the same check finds what it is there for."""
    found = []
    async with Place("memory:") as place:
        with mock.patch("looopy.agent.commit.settle_write", cancel.give_up):
            for at in range(1, PLACES["memory"] + 1):
                try:
                    await strike(World(place.stores()), SCENES[1], "task.cancel()", at)
                except AssertionError as error:
                    found.append(str(error))
    assert any("reported as" in problem for problem in found), found
