"""One set of connections for each URL on an event loop, and no URL in the way of another."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from looopy.errors import StoreUnavailable
from looopy.stores import opening as module
from looopy.stores.opening import acquire_shared, release_shared


def _here():
    place = module._places.get(asyncio.get_running_loop())
    return set(place.entries) if place else set()


@pytest.fixture
async def silent():
    """The URL of a Postgres that takes connections and never answers, and when it has taken one."""
    taken, writers = asyncio.Event(), []

    async def take(_reader, writer):
        writers.append(writer)
        taken.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield f"postgresql://me@127.0.0.1:{port}/app?connect_timeout=20", taken
    server.close()
    for writer in writers:
        writer.close()
    await asyncio.gather(*(one.wait_closed() for one in writers), return_exceptions=True)


async def test_a_server_that_does_not_answer_keeps_no_other_url_waiting(silent, tmp_path):
    """An agent on a file starts and ends while an agent on a dead server waits for it."""
    url, taken = silent
    waiting = asyncio.create_task(acquire_shared(url))
    await taken.wait()
    other = f"sqlite:///{tmp_path / 'a.db'}"
    assert await (await acquire_shared(other)).state.list() == []
    await release_shared(other)
    assert not waiting.done()
    assert _here() == {url}
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert _here() == set()


async def test_agents_with_one_url_share_one_set_of_connections(tmp_path):
    """Those who come at the same time as well; the last one closes it, and the next opens anew."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    first, second = await asyncio.gather(acquire_shared(url), acquire_shared(url))
    assert first is second
    await release_shared(url)
    assert await first.state.list() == []
    await release_shared(url)
    assert _here() == set()
    with pytest.raises(StoreUnavailable):
        await first.state.list()
    assert await acquire_shared(url) is not first
    await release_shared(url)


async def test_a_url_that_could_not_be_opened_leaves_no_entry(tmp_path):
    """The next one tries again."""
    url = f"sqlite:///{tmp_path / 'none' / 'a.db'}"
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await acquire_shared(url)
        assert _here() == set()
