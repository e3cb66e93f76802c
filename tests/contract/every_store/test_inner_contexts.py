"""The contract of contexts that work for others, on each backend; and what others do meanwhile."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.contract.backends import on_every_store

from looopy.stores import open_stores
from looopy.stores.contexts.erasing import Terms
from looopy.testing.contracts.inner import (
    INMOST,
    INNER,
    OTHER,
    OUTER,
    InnerContextContract,
    a_family,
    enclose,
    names,
    turn,
)

globals().update(on_every_store("InnerContexts", InnerContextContract))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request) -> str:
    """A store without contexts."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_file')}"
    return request.getfixturevalue("postgres") if request.param == "postgres" else "memory:"


@pytest.fixture
async def stores(url):
    """Open and empty."""
    async with open_stores(url) as opened:
        yield opened


async def test_a_call_that_begins_on_the_way_is_found(stores, monkeypatch):
    """The turn runs, and asks an agent behind the back of an erasure that is forced."""
    await a_family(stores)
    read = stores.contexts.candidate

    async def read_before(context_id):
        found = await read(context_id)
        await enclose(stores, "outer:late", OUTER, 5)
        await turn(stores, "outer:late", "bob")
        return found

    async def inner_of(_):
        return []

    monkeypatch.setattr(stores.contexts, "candidate", read_before)
    monkeypatch.setattr(stores.contexts, "inner_of", inner_of)
    gone = await stores.contexts.erase(OUTER, force=True)
    assert set(gone.context_ids) == {OUTER, INNER, INMOST, "outer:late"}
    assert gone.context_ids[-1] == OUTER
    assert await names(stores) == [OTHER]


async def test_a_context_that_took_the_name_meanwhile_stays(stores):
    """It was deleted and made by somebody else after the erasure had read the link."""
    await a_family(stores)
    await stores.state.delete(INNER)
    await turn(stores, INNER, "eve")
    assert await stores.contexts.erase_rows(INNER, Terms(force=True, outer=OUTER)) is None
    assert await names(stores) == [OUTER, INNER, OTHER]


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
async def test_they_are_deleted_however_deep_they_are(stores):
    """An archive may name more levels than agents make, and than Python calls functions."""
    deep = [f"c{n:04}" for n in range(1_000)]
    for outer, inner in pairwise(deep):
        await stores.contexts.enclose(inner, outer=outer, call="0" * 32)
    await stores.state.save(deep[0], {}, version=0)
    await stores.state.delete(deep[0])
    assert await names(stores) == []
