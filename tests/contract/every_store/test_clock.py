"""What a clock that is set back costs: not the time it was set back by."""

from __future__ import annotations

import asyncio

import pytest
from tests.campaign.clock import Clock, put_clock_before, set_clock
from tests.campaign.places import STORES
from tests.postgres import as_driver

from looopy import open_stores
from looopy.errors import AgentBusy, ConfigurationError
from looopy.stores.sql import migrate
from looopy.stores.sql.sqlite import connection
from looopy.testing.contracts.turns import begin
from looopy.types.config import LONGEST_LEASE_S, LoopConfig

HOUR_US = 3600 * 1_000_000


@pytest.fixture
async def shared(tmp_path, monkeypatch, request):
    """Open stores, and what sets their clock ahead of the true time by so many microseconds."""
    clock = Clock()
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'c.db'}"
        monkeypatch.setattr(connection, "_now_us", clock.now_us)
    else:
        database = request.getfixturevalue("fresh_postgres")
        await asyncio.to_thread(migrate.upgrade, database)
        url = as_driver(database, request.param)
        put_clock_before(url)
    async with open_stores(url) as stores:
        yield stores, lambda ahead_us: set_clock(url, clock, ahead_us)


everywhere = pytest.mark.parametrize("shared", STORES, indirect=True)


@everywhere
async def test_a_context_is_free_though_the_clock_was_set_back_after_its_lease_began(shared):
    """Its owner, on another host and dead, would else keep it for an hour, or for ten years."""
    stores, set_ahead = shared
    await begin(stores, holder="elsewhere", ttl_s=10.0)
    set_ahead(-HOUR_US)
    record = await stores.state.load("ada")
    assert not record.lease_live
    await begin(stores, holder="here", expected_epoch=record.epoch, recover=True)


@everywhere
async def test_a_lease_that_was_asked_for_a_day_lasts_as_long_as_the_longest(shared):
    """It is live from its beginning to then, and no longer."""
    stores, set_ahead = shared
    await begin(stores, holder="elsewhere", ttl_s=24 * 3600.0)
    with pytest.raises(AgentBusy):
        await begin(stores, holder="here", expected_epoch=1, recover=True)
    set_ahead(int(LONGEST_LEASE_S * 1_000_000) + 1)
    assert not (await stores.state.load("ada")).lease_live


@everywhere
async def test_a_place_in_the_queue_is_lost_when_the_clock_was_set_back(shared):
    """Whoever waits there in fact keeps it again a moment later."""
    stores, set_ahead = shared
    first = await stores.state.join_wait_queue("ada", "elsewhere", 3.0)
    set_ahead(-HOUR_US)
    assert [place.alive for place in await stores.state.wait_queue("ada")] == [False]
    assert await stores.state.keep_place("ada", first, 3.0)
    assert [place.alive for place in await stores.state.wait_queue("ada")] == [True]


def test_a_lease_cannot_be_asked_for_that_is_longer_than_any_lasts():
    """The refusal says that it is renewed anyway."""
    assert LoopConfig(lease_ttl_s=LONGEST_LEASE_S).lease_ttl_s == LONGEST_LEASE_S
    with pytest.raises(ConfigurationError, match="renewed while its turn runs"):
        LoopConfig(lease_ttl_s=LONGEST_LEASE_S + 1)
