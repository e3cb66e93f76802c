"""A context that was deleted and made anew is another one: nobody mistakes it for the old."""

from __future__ import annotations

import pytest
from tests.postgres import as_driver
from tests.shares import PSYCOPG

from looopy.errors import Fenced, StoreConflict
from looopy.stores import open_stores
from looopy.stores import rules as names
from looopy.testing.contracts.turns import CONTEXT, a_claim, begin, commit, ends, user


@pytest.fixture
def epochs_begin_at_one():
    """Not here."""


@pytest.fixture(params=["memory", "sqlite", "asyncpg", PSYCOPG])
def url(request) -> str:
    """Where the stores are."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_file')}"
    return as_driver(request.getfixturevalue("postgres"), request.param)


@pytest.fixture
async def stores(url: str):
    """Empty stores of each backend."""
    async with open_stores(url) as opened:
        yield opened


@pytest.mark.parametrize("again", ["claim", "append", "clear"])
async def test_an_owner_of_the_old_one_is_fenced_from_the_new(stores, again):
    """It was stopped while its context was deleted; whatever the new one begins with."""
    old = await begin(stores, ttl_s=0)
    await stores.state.delete(CONTEXT)
    if again == "claim":
        await begin(stores)
    elif again == "append":
        await stores.messages.append(CONTEXT, [user("new")])
    else:
        await stores.state.save(CONTEXT, {}, version=0)
        await stores.journal.clear(CONTEXT)
    before = await stores.state.load(CONTEXT)
    with pytest.raises(Fenced):
        await commit(stores, old, [ends()])
    assert not await stores.state.renew(CONTEXT, old.epoch, 60)
    await stores.state.release(CONTEXT, old.epoch)
    assert await stores.state.load(CONTEXT) == before


async def test_a_claim_of_an_earlier_life_is_refused(stores):
    """Its next turn reads the context again, as after any other change."""
    old = await begin(stores)
    await commit(stores, old, [ends()], release=True)
    await stores.state.delete(CONTEXT)
    new = await begin(stores)
    await commit(stores, new, [ends()], release=True)
    with pytest.raises(StoreConflict):
        await stores.state.claim(a_claim(old.epoch))


async def test_epochs_rise_from_where_they_begin(stores):
    """The newest is the greatest."""
    first = await begin(stores)
    await commit(stores, first, [ends()], release=True)
    second = await begin(stores, first.epoch)
    assert 0 < first.epoch < second.epoch < 2**53


def test_no_two_contexts_begin_alike():
    """For all that can be told."""
    assert len({names.first_epoch() for _ in range(1000)}) == 1000
