"""Saves, deletions and `collect` in every order of their steps: what was acknowledged is read."""

from __future__ import annotations

import asyncio
from contextlib import closing
from contextvars import ContextVar
from itertools import permutations
from pathlib import Path

import psycopg
import pytest
from tests.postgres import as_driver

from looopy.errors import ArtifactNotFound
from looopy.stores import open_stores
from looopy.stores.artifacts import parts
from looopy.stores.blobs.folder import FolderBlobs
from looopy.stores.sql.artifacts import SQLArtifactRows
from looopy.testing.contracts.artifact import a_content

_CONTENT = a_content(80_000)
_OF_ROWS = ("hold_uploads", "blob_with", "unnamed", "end_uploads", "apply")
_OF_BLOBS = ("put", "get", "remove")
_actor: ContextVar[_Actor | None] = ContextVar("actor", default=None)


class _Actor:
    """A task that makes its steps, each one transaction or one operation on a blob, when told."""

    def __init__(self, work) -> None:
        self._waits = asyncio.Event()
        self._may = asyncio.Semaphore(0)
        _actor.set(self)
        self.task = asyncio.ensure_future(work)
        _actor.set(None)

    async def pause(self) -> None:
        self._waits.set()
        await self._may.acquire()

    async def _idle(self) -> bool:
        waits = asyncio.ensure_future(self._waits.wait())
        await asyncio.wait({self.task, waits}, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        return not self.task.done()

    async def step(self) -> None:
        if await self._idle():
            self._waits.clear()
            self._may.release()
            await self._idle()

    async def finish(self) -> None:
        while not self.task.done():
            await self.step()


def _paused(real):
    async def made(*args, **named):
        if (actor := _actor.get()) is not None:
            await actor.pause()
        return await real(*args, **named)

    return made


@pytest.fixture(params=["sqlite", "asyncpg"])
def url(request, sqlite_file):
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{sqlite_file}"
    return as_driver(request.getfixturevalue("postgres"), request.param)


@pytest.fixture
async def place(url, tmp_path):
    """Stores whose operations wait for their turn, if an actor makes them; and their folder."""
    folder = tmp_path / "blobs"
    with pytest.MonkeyPatch.context() as patch:
        for kind, names in ((SQLArtifactRows, _OF_ROWS), (FolderBlobs, _OF_BLOBS)):
            for name in names:
                patch.setattr(kind, name, _paused(getattr(kind, name)))
        async with open_stores(url, blobs=str(folder)) as stores:
            yield stores, folder


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


_SAVE = 3  # hold, put, commit: one more look for an equal blob comes first
_COLLECT = 3  # unnamed, end, remove
_ORDERS = sorted(set(permutations("s" * (_SAVE + 1) + "c" * _COLLECT)))


@pytest.mark.parametrize("lapsed", [False, True])
async def test_no_order_of_save_and_collect_loses_an_acknowledged_artifact(
    place, monkeypatch, lapsed
):
    """Whether the upload is held still, or its time was over when `collect` came by."""
    stores, folder = place
    assert len(_ORDERS) == 35
    if lapsed:
        monkeypatch.setattr(parts, "HELD_S", 0.0)
    for number, order in enumerate(_ORDERS):
        # Each content is new, and so is never shared.
        content = number.to_bytes(2, "big") + _CONTENT
        saver = _Actor(stores.artifacts.save(f"c{number}", "doc", content))
        await saver.step()
        collector = _Actor(stores.artifacts.collect(-60))
        for name in order:
            await (saver if name == "s" else collector).step()
        await collector.finish()
        await saver.finish()
        assert saver.task.result().size == len(content)
        assert await stores.artifacts.load(f"c{number}", "doc") == content
        if not lapsed:
            assert collector.task.result() == 0
    await stores.artifacts.collect(-60)
    assert len(_left(folder)) == len(_ORDERS)


@pytest.mark.parametrize("stops_after", range(_SAVE + 1))
async def test_a_save_that_stops_anywhere_leaves_no_blob_after_collect(
    place, monkeypatch, stops_after
):
    """Once its holder counts as dead, and not before; if it goes on after all, it writes anew."""
    stores, folder = place
    saver = _Actor(stores.artifacts.save("ada", "doc", _CONTENT))
    for _ in range(stops_after):
        await saver.step()
    assert await stores.artifacts.collect(-60) == 0
    with monkeypatch.context() as patch:
        patch.setattr("looopy.stores.sql.artifacts.provably_dead", lambda _: True)
        await stores.artifacts.collect(-60)
    assert _left(folder) == []
    with pytest.raises(ArtifactNotFound):
        await stores.artifacts.get("ada", "doc")
    await saver.finish()
    await saver.task
    assert await stores.artifacts.load("ada", "doc") == _CONTENT


@pytest.mark.parametrize("shares", [False, True])
async def test_no_order_of_a_save_and_a_deletion_loses_equal_content(place, shares):
    """The save finds the deleted blob, or has one of its own; the last deletion leaves none."""
    stores, folder = place
    steps = "s" * (4 if shares else 3) + "d" * 3
    for number, order in enumerate(sorted(set(permutations(steps)))):
        content = number.to_bytes(2, "big") + _CONTENT
        await stores.artifacts.save("old", f"a{number}", content)
        saver = _Actor(stores.artifacts.save("new", f"a{number}", content))
        if shares:
            await saver.step()  # it has found the blob
        deletion = _Actor(stores.artifacts.delete("old", f"a{number}"))
        for name in order:
            await (saver if name == "s" else deletion).step()
        await deletion.finish()
        await saver.finish()
        await saver.task
        await deletion.task
        assert await stores.artifacts.load("new", f"a{number}") == content
        await stores.artifacts.delete("new", f"a{number}")
        assert _left(folder) == []


async def test_collect_waits_for_a_commit_that_is_about_to_name_a_blob(postgres, tmp_path):
    """Its transaction has taken the upload away, and is not over: then the blob has a name."""
    async with open_stores(postgres, blobs=str(tmp_path / "blobs")) as stores:
        await stores.artifacts.save("ada", "doc", _CONTENT)
        rows = stores.artifacts._rows
        (part,) = await rows.parts("ada", "doc", 1, after=0, limit=1)
        await rows.hold_uploads([part.blob], 0.0, new=True)
        with closing(psycopg.connect(postgres)) as other:
            other.execute("UPDATE looopy_artifact_parts SET blob = NULL")
            other.commit()
            other.execute("DELETE FROM looopy_uploads")
            other.execute("UPDATE looopy_artifact_parts SET blob = %s", [part.blob])
            ending = asyncio.ensure_future(rows.end_uploads([part.blob], held=False))
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            with closing(psycopg.connect(postgres, autocommit=True)) as looks:
                while not looks.execute(waits).fetchall():  # noqa: ASYNC110 - the server says it
                    await asyncio.sleep(0)
            other.commit()
            assert await ending == []
