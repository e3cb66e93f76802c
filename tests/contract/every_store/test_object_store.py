"""Artifacts whose large parts lie in an object store that speaks S3."""

from __future__ import annotations

import asyncio
import builtins
import secrets

import obstore
import pytest
from obstore.store import S3Store
from tests import s3

from looopy.errors import ArtifactDamaged, ConfigurationError, MissingExtra, StoreUnavailable
from looopy.stores import open_stores
from looopy.stores.blobs.objects import ObjectBlobs
from looopy.testing.contracts.artifact import ArtifactContentContract, a_content
from looopy.testing.contracts.restore import RestoreContract
from looopy.testing.contracts.turns import CONTEXT, a_turn

_CONTENT = a_content(200_000)


@pytest.fixture(scope="module")
def server():
    """A server for the tests of this file."""
    with s3.serving() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(server, monkeypatch):
    """An empty bucket."""
    for name, value in s3.KEYS.items():
        monkeypatch.setenv(name, value)
    return s3.new_bucket(server, f"test-{secrets.token_hex(4)}")


@pytest.fixture
async def stores(bucket, sqlite_file):
    """Rows in a file, large parts in the bucket."""
    async with open_stores(f"sqlite:///{sqlite_file}", blobs=bucket) as stores:
        yield stores


class TestContentOnS3(ArtifactContentContract):
    """Rows in SQLite, large parts in S3."""

    @pytest.fixture
    async def stores(self, stores):
        """Open and empty."""
        return stores


class TestRestoringOnS3(RestoreContract):
    """Out of a bucket and into it again; rows in SQLite."""

    @pytest.fixture
    async def stores(self, stores):
        """Open and empty."""
        return stores


async def _objects(bucket):
    store = ObjectBlobs.from_url(bucket)._store
    found = [one["path"] async for page in obstore.list(store) for one in page]
    return store, found


async def test_large_bytes_lie_in_the_bucket_once(stores, bucket, sqlite_file):
    """Under the prefix, and not in a folder; they go with the last one that names them."""
    await stores.artifacts.save(CONTEXT, "a", _CONTENT)
    await stores.artifacts.save("other", "b", _CONTENT)
    _, found = await _objects(bucket)
    assert len(found) == 1
    assert not sqlite_file.with_name(f"{sqlite_file.name}.blobs").exists()
    await stores.artifacts.delete(CONTEXT, "a")
    await stores.state.delete("other")
    assert (await _objects(bucket))[1] == []


@pytest.mark.parametrize("how", ["altered", "gone"])
async def test_changed_bytes_are_reported_by_name(stores, bucket, how):
    """And never returned."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    store, (path,) = await _objects(bucket)
    if how == "gone":
        await obstore.delete_async(store, path)
    else:
        await obstore.put_async(store, path, b"X" + _CONTENT[1:])
    with pytest.raises(ArtifactDamaged) as damaged:
        await stores.artifacts.load(CONTEXT, "doc")
    assert (damaged.value.actual is None) == (how == "gone")


async def test_orphans_are_found_by_the_age_of_the_object(stores, bucket):
    """Those that are too young, or not ours, stay."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    store, (path,) = await _objects(bucket)
    orphan = f"{path[:-1]}{'0' if path[-1] != '0' else '1'}"
    foreign = f"{path.rpartition('/')[0]}/notes.txt"
    for name in (orphan, foreign):
        await obstore.put_async(store, name, b"x")
    assert await stores.artifacts.collect(3600) == 0
    assert await stores.artifacts.collect(-60) == 1  # the server counts whole seconds
    assert (await _objects(bucket))[1] == sorted([path, foreign])


async def test_forks_erasure_and_retention_reach_the_bucket(stores, bucket):
    """A fork reads what its parent has left; the last one who goes takes the bytes along."""
    claimed = await a_turn(stores)
    await stores.state.release(CONTEXT, claimed.epoch)
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    await stores.journal.fork(CONTEXT, "fork")
    await stores.state.delete(CONTEXT)
    assert await stores.artifacts.load("fork", "doc") == _CONTENT
    assert (await stores.contexts.erase("fork")).blobs == 1
    assert (await _objects(bucket))[1] == []
    await stores.artifacts.save("another", "doc", _CONTENT)
    assert (await stores.contexts.retain(larger_than=1)).blobs == 1
    assert (await _objects(bucket))[1] == []


@pytest.fixture(params=["down", "silent"])
async def unusable(request):
    """The endpoint of a store that nobody can use; the silent one takes requests all the same."""
    if request.param == "down":
        yield "http://127.0.0.1:9"
        return
    server = await asyncio.start_server(lambda _, to: held.append(to), "127.0.0.1", 0)
    held: list[asyncio.StreamWriter] = []
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await asyncio.sleep(0)  # a connection that was just taken is held then
    for writer in held:
        writer.close()
    await asyncio.gather(*(one.wait_closed() for one in held), return_exceptions=True)


async def test_a_silent_object_store_leaves_the_rows_unchanged(stores, unusable, monkeypatch):
    """The save raises, no version is there, and what lies in the database is still read."""
    await stores.artifacts.save(CONTEXT, "small", b"x")
    await stores.artifacts.open(CONTEXT, "big")
    await stores.artifacts.append(CONTEXT, "big", _CONTENT)
    gone = S3Store(
        "gone",
        endpoint=unusable,
        region="us-east-1",
        client_options={"allow_http": True, "timeout": "0.2s"},
        retry_config={"max_retries": 0},
    )
    monkeypatch.setattr(stores.artifacts._parts, "blobs", ObjectBlobs(gone))
    for late in (
        stores.artifacts.save(CONTEXT, "doc", _CONTENT + b"x"),
        stores.artifacts.append(CONTEXT, "big", _CONTENT[1:]),
        stores.artifacts.load(CONTEXT, "big", 1),
    ):
        with pytest.raises(StoreUnavailable):
            await late
    assert [one.artifact_id for one in await stores.artifacts.list(CONTEXT)] == ["big", "small"]
    assert await stores.artifacts.load(CONTEXT, "small") == b"x"
    monkeypatch.undo()
    await stores.artifacts.append(CONTEXT, "big", _CONTENT[1:], last=True)
    assert await stores.artifacts.load(CONTEXT, "big") == _CONTENT + _CONTENT[1:]


def test_without_the_library_the_error_has_the_command(monkeypatch):
    """At the call that names the bucket."""
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "obstore":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra) as missing:
        open_stores("sqlite:///chat.db", blobs="s3://bucket/prefix")
    assert missing.value.extras == ("blobs",)


def test_a_url_that_names_no_bucket_is_refused():
    """Without what it may hold of secrets."""
    with pytest.raises(ConfigurationError) as refused:
        open_stores("sqlite:///chat.db", blobs="s3://bucket/x?no_such_option=hidden-value")
    assert "hidden-value" not in str(refused.value)
