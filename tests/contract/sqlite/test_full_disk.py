"""A removal makes room on a full disk: here a small one in memory, which only root may make."""

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from looopy import Agent, AuthContext, open_stores
from looopy.errors import StorageFull
from looopy.stores.sql.sqlite import connection as sqlite
from looopy.stores.sql.sqlite.reserve import Reserve
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import user

_SECRET = re.compile(rb"secretkanari\d+zq")
needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")


@pytest.fixture
def disk(tmp_path):
    """A disk of 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def _url(disk):
    return f"sqlite:///{disk / 'a.db'}"


def _fill(disk):
    """Leave no byte of the disk."""
    with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def _write_until_full(stores, disk):
    """Until neither the log of the database nor anything else can grow."""
    _fill(disk)
    await _append_until_full(stores, "other", 1500)
    _fill(disk)


async def _append_until_full(stores, context_id, size):
    with contextlib.suppress(StorageFull):
        for _ in range(20_000):
            await stores.messages.append(context_id, [user("x" * size)])
        pytest.fail("it is not full")


async def _messages(stores):
    """12,000 messages, which fill many pages."""
    for number in range(40):
        said = [user(f"secretkanari{number}zq " + f"{n} words " * 16) for n in range(300)]
        await stores.messages.append("c", said)


async def _short_ones(stores):
    """Contexts that fit into one commit together."""
    for name in ("c", "d", "e"):
        await stores.messages.append(name, [user("secretkanari1zq " * 600)] * 20)


async def _artifacts(stores):
    """12 MB of artifacts in the rows of the database, and one in a blob."""
    for number in range(250):
        await stores.artifacts.save("c", f"a{number}", b"secretkanari1zq " * 3000)
    await stores.artifacts.save("c", "large", b"secretkanari2zq " * 30_000)


async def _guest(stores):
    """Every second turn is a guest's."""
    model = ScriptedProvider(lambda _: text("fine"), repeat=True)
    agent = Agent("c", llm_provider=model, stores=stores)
    await agent.start()
    for number in range(40):
        words = f"secretkanari{number}zq " * 60 if number % 2 else "mine " * 60
        await agent.execute_turn(words, AuthContext("bob" if number % 2 else "olga"))
    await agent.shutdown()


def _left(disk):
    content = (p.read_bytes() for p in sorted(disk.glob("a.db*")) if p.is_file())
    blobs = (p.read_bytes() for p in sorted(disk.glob("a.db.blobs/**/*")) if p.is_file())
    return set(_SECRET.findall(b"".join((*content, *blobs))))


def _check(disk):
    with contextlib.closing(sqlite3.connect(disk / "a.db")) as opened:
        assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert opened.execute("PRAGMA foreign_key_check").fetchall() == []
        return opened.execute("SELECT tenant_id, context_id FROM looopy_contexts").fetchall()


def _free(disk):
    space = os.statvfs(disk)
    return space.f_bavail * space.f_frsize


def _size(disk):
    files = (disk / name for name in ("a.db", "a.db-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


_REMOVALS = {
    "clear": lambda stores: stores.journal.clear("c"),
    "delete": lambda stores: stores.state.delete("c"),
    "erase": lambda stores: stores.contexts.erase("c"),
    "retain": lambda stores: stores.contexts.retain(older_than=timedelta(0)),
    "erase_person": lambda stores: stores.contexts.erase_person("bob"),
    "artifact": lambda stores: stores.artifacts.delete("c", "a7"),
}


@needs_mount
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("content", "removal"),
    [
        *((_messages, way) for way in ("clear", "delete", "erase", "retain")),
        *((_artifacts, way) for way in ("clear", "erase", "artifact")),
        (_guest, "erase_person"),
        (_short_ones, "retain"),
    ],
)
async def test_a_removal_on_a_full_disk_makes_room(disk, content, removal):
    """For a next turn here and in another process that has the file open; no words are left."""
    async with open_stores(_url(disk)) as stores, open_stores(_url(disk)) as others:
        await content(stores)
        await stores.messages.append("kept", [user("stays")])
        await _write_until_full(stores, disk)
        size = _size(disk)
        assert _free(disk) == 0
        await _REMOVALS[removal](stores)
        assert _free(disk) > 200_000
        for one in (stores, others):
            await one.messages.append("next", [user("goes on")])
            assert await one.messages.count("next") > 0
        if removal != "retain":
            assert await stores.messages.count("kept") == 1
    if removal == "artifact":
        assert _check(disk)
    else:
        assert _left(disk) == set()
        names = {name for _, name in _check(disk)}
        assert ("c" in names) == (removal in ("clear", "erase_person"))
        assert {tenant for tenant, _ in _check(disk)} == {"default"}
    if content is _messages or (content, removal) == (_artifacts, "erase"):
        assert _size(disk) < size / 4


@needs_mount
async def test_a_cleared_context_continues_after_a_full_disk(disk):
    """Its turns and the event that says so are there, as where the disk has space."""
    model = ScriptedProvider(lambda _: text("fine"), repeat=True)
    async with open_stores(_url(disk)) as stores:
        agent = Agent("c", llm_provider=model, stores=stores)
        await agent.start()
        for number in range(60):
            await agent.execute_turn(f"secretkanari{number}zq " * 60)
        await agent.shutdown()
        await stores.journal.fork("c", "twin")
        await _write_until_full(stores, disk)
        for name in ("c", "twin"):
            await stores.journal.clear(name)
            if name == "c":  # the twin is cleared where there is space
                (disk / "filler").unlink()
        found = [
            (
                [one.turn for one in await stores.journal.turns(name)],
                [event.type for event in await stores.journal.events(name)],
                (await stores.contexts.search("secretkanari7zq")).items,
            )
            for name in ("c", "twin")
        ]
        assert found[0] == found[1]
        again = Agent("c", llm_provider=model, stores=stores)
        await again.start()
        assert (await again.execute_turn("once more")).turn == 61
        await again.shutdown()


_KILLED = """
import asyncio, sys
from looopy import open_stores
from looopy._failpoints import arm

async def main():
    async with open_stores(sys.argv[1]) as stores:
        arm(sys.argv[2])
        await stores.contexts.erase("c")

asyncio.run(main())
"""


@needs_mount
@pytest.mark.timeout(120)
@pytest.mark.parametrize("place", ["B2", "E4:1", "E4:20", "E3"])
async def test_a_process_that_is_killed_in_a_removal_leaves_it_to_the_next(disk, place):
    """The context is whole or gone; the next process removes what the killed one had set aside."""
    async with open_stores(_url(disk)) as stores:
        await _messages(stores)
        await stores.messages.append("other", [user("stays")])
        await _write_until_full(stores, disk)
        child = [sys.executable, "-c", _KILLED, _url(disk), place]
        done = await asyncio.to_thread(subprocess.run, child, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        assert await stores.messages.count("c") == (12_000 if place == "B2" else 0)
    async with open_stores(_url(disk)) as stores:
        await stores.contexts.erase("c")
        assert await stores.messages.count("other") > 0
    assert _left(disk) == set()
    assert [name for _, name in _check(disk)] == ["other"]


@needs_mount
async def test_rows_that_were_set_aside_go_when_the_file_is_next_opened(disk):
    """Without another removal; nobody reaches them before."""
    async with open_stores(_url(disk)) as stores:
        await _messages(stores)
        await stores.messages.append("other", [user("stays")])
        await _write_until_full(stores, disk)
        child = [sys.executable, "-c", _KILLED, _url(disk), "E4:1"]
        await asyncio.to_thread(subprocess.run, child, capture_output=True, check=False)
    assert len(_check(disk)) == 2
    async with open_stores(_url(disk)) as stores:
        assert [one.context_id for one in (await stores.contexts.list()).items] == ["other"]
    assert [name for _, name in _check(disk)] == ["other"]
    assert _left(disk) == set()


@needs_mount
async def test_a_full_disk_is_opened_in_the_space_of_the_reserve(disk):
    """The log and the shared memory of a file that nobody has open need some."""
    async with open_stores(_url(disk)) as stores:
        await stores.messages.append("c", [user("x" * 1500)])
    reserve = Reserve(disk / "a.db")
    reserve.keep(2**20)
    _fill(disk)
    async with open_stores(_url(disk)) as stores:
        assert await stores.messages.count("c") == 1
        await stores.contexts.erase("c")
        assert await stores.messages.append("c", [user("again")]) == 1


@needs_mount
async def test_a_reserve_is_as_large_as_the_log_and_leaves_half_of_the_space(disk):
    """Private as the file, and without content."""
    async with open_stores(_url(disk)) as stores:
        for _ in range(10):
            await stores.messages.append("c", [user("x" * 1500)])
        assert not Reserve(disk / "a.db").path.exists()
        while (disk / "a.db-wal").stat().st_size < 3 * 2**20:
            await stores.messages.append("c", [user("x" * 50_000)])
        told = Reserve(disk / "a.db").path.stat()
        assert told.st_size >= (disk / "a.db-wal").stat().st_size
        assert told.st_mode & 0o777 == 0o600
    small = Reserve(disk / "b.db")
    small.keep(100 * 2**20)
    assert 0 < small.path.stat().st_size <= _free(disk) + 4096


async def test_a_removal_passes_the_limit_of_pages(sqlite_file, monkeypatch):
    """`max_page_count`, as an application may set it: the event of a clear needs a page, too."""
    made = sqlite._make_settings

    def limited(connection, path):
        made(connection, path)
        connection.execute("PRAGMA max_page_count = 120")

    monkeypatch.setattr(sqlite, "_make_settings", limited)
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        for size in (900, 1):
            await _append_until_full(stores, "c", size)
        await stores.journal.clear("c")
        await stores.messages.append("c", [user("goes on")])
        await stores.contexts.erase("c")
        assert await stores.messages.append("c", [user("goes on")]) == 1
    assert Path(sqlite_file).stat().st_size <= 120 * 4096


_LIMITED = """
import asyncio, resource, signal, sys
from looopy.errors import StorageFull
from looopy.stores import open_stores
from looopy.testing.contracts.turns import user

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    async with open_stores(sys.argv[1]) as stores:
        for _ in range(100):
            await stores.messages.append("c", [user("x" * 2000)])
        limit = 600_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            for _ in range(10_000):
                await stores.messages.append("d", [user("x" * 200)])
        except StorageFull:
            pass
        await stores.contexts.erase("d")
        assert await stores.messages.append("d", [user("goes on")]) == 1

asyncio.run(main())
"""


async def test_a_removal_makes_room_in_a_log_of_limited_size(sqlite_file):
    """No file may grow: what the log holds is moved into the database, which has the space."""
    child = [sys.executable, "-c", _LIMITED, f"sqlite:///{sqlite_file}"]
    done = await asyncio.to_thread(subprocess.run, child, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
