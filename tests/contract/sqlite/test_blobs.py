"""Where the large parts of artifacts lie: shared, checked, removed, and never named by chance."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from looopy.errors import (
    ArtifactDamaged,
    ArtifactNotFound,
    ConfigurationError,
    Fenced,
    StorageFull,
    StoreUnavailable,
)
from looopy.stores import open_stores
from looopy.stores.artifacts.requests import to_save
from looopy.stores.records import ArtifactMoved, ArtifactPart, ArtifactWrite
from looopy.stores.sql.store import SQLStore
from looopy.testing.contracts.artifact import a_content
from looopy.testing.contracts.turns import CONTEXT, a_turn, begin, commit
from looopy.types.artifact import ArtifactKind
from looopy.types.event import ArtifactUpdate

_CONTENT = a_content(200_000)


@pytest.fixture
async def stores(sqlite_stores):
    """In a file, with the folder beside it."""
    return sqlite_stores


@pytest.fixture
def folder(sqlite_file):
    """Where large parts lie if nobody says anything else."""
    return Path(f"{sqlite_file}.blobs")


def _blobs(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


async def _age(folder, by_s):
    for path in _blobs(folder):
        told = path.stat()
        os.utime(path, (told.st_atime, told.st_mtime - by_s))


async def test_large_bytes_lie_in_a_private_folder_beside_the_file(stores, folder, sqlite_file):
    """Nobody else may look into it; small content makes no folder, and is in the file."""
    await stores.artifacts.save(CONTEXT, "small", _CONTENT[: 64 * 1024])
    assert not folder.exists()
    await stores.artifacts.save(CONTEXT, "large", _CONTENT)
    (blob,) = _blobs(folder)
    assert blob.read_bytes() == _CONTENT
    assert sqlite_file.stat().st_size < len(_CONTENT)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {0o700, 0o600}


async def test_a_hostile_id_is_no_path(stores, folder, tmp_path):
    """Every blob lies in the folder, under a name of ours."""
    before = set(tmp_path.rglob("*"))
    for name in ("../../escape", "/etc/passwd", ".", "..\\..\\x", "con"):
        await stores.artifacts.save(CONTEXT, name, _CONTENT + name.encode())
        assert await stores.artifacts.load(CONTEXT, name) == _CONTENT + name.encode()
    made = {path for path in set(tmp_path.rglob("*")) - before if path.is_file()}
    assert {path for path in made if ".db" not in path.name} == set(_blobs(folder))


async def test_new_folders_are_synced_before_an_artifact_is_acknowledged(
    stores, folder, monkeypatch
):
    """Each folder on the way, by the one that it lies in: a power cut takes none of them."""
    made, synced = [], []
    mkdir, fsync = os.mkdir, os.fsync

    def made_in(path, mode=0o777, *, dir_fd=None):
        mkdir(path, mode, dir_fd=dir_fd)
        above = Path(path).parent.stat() if dir_fd is None else os.fstat(dir_fd)
        made.append(above.st_ino)

    def sync(file):
        fsync(file)
        synced.append((len(made), os.fstat(file).st_ino))

    monkeypatch.setattr(os, "mkdir", made_in)
    monkeypatch.setattr(os, "fsync", sync)
    await stores.artifacts.save(CONTEXT, "large", _CONTENT)
    assert len(made) > 1
    for count, above in enumerate(made, 1):
        assert any(when >= count and inode == above for when, inode in synced)


async def test_equal_content_of_a_tenant_is_stored_once(stores, folder):
    """In any context and version; another tenant has a copy of its own."""
    await stores.artifacts.save(CONTEXT, "a", _CONTENT)
    await stores.artifacts.save(CONTEXT, "a", _CONTENT)
    await stores.artifacts.save("other", "b", _CONTENT)
    await stores.artifacts.open("other", "c")
    await stores.artifacts.append("other", "c", _CONTENT, last=True)
    assert len(_blobs(folder)) == 1
    await stores.for_tenant("acme").artifacts.save(CONTEXT, "a", _CONTENT)
    assert len(_blobs(folder)) == 2


async def test_a_blob_goes_with_the_last_one_that_names_it(stores, folder):
    """By a deletion of the artifact or of its context, or by a clear."""
    for context_id in ("one", "two", "three"):
        await stores.artifacts.save(context_id, "doc", _CONTENT)
    await stores.artifacts.delete("one", "doc")
    await stores.journal.clear("two")
    assert len(_blobs(folder)) == 1
    await stores.state.delete("three")
    assert _blobs(folder) == []


async def test_a_context_that_is_used_again_between_the_steps_of_an_erasure_stays(
    stores, folder, monkeypatch
):
    """The second step comes after the blobs are gone, and takes only the emptied context."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    end = stores.contexts.end_erasure

    async def late(context_id, epoch):
        await a_turn(stores, text="anew")
        await end(context_id, epoch)

    monkeypatch.setattr(stores.contexts, "end_erasure", late)
    await stores.contexts.erase(CONTEXT)
    assert _blobs(folder) == []
    assert [m.text for m in await stores.messages.list(CONTEXT)] == ["anew", "hi"]


@pytest.mark.parametrize("how", ["clear", "delete"])
async def test_a_blob_of_a_version_that_came_in_between_goes_too(
    stores, folder, sqlite_file, monkeypatch, how
):
    """Another process saves it just before the commit of the clear, or of the deletion."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    write = SQLStore.write

    async def saved_before(self, work, context_id, **others):
        monkeypatch.undo()
        async with open_stores(f"sqlite:///{sqlite_file}") as theirs:
            await theirs.artifacts.save(CONTEXT, "doc", _CONTENT[::-1])
            await theirs.artifacts.save("other", "doc", _CONTENT)
        assert len(_blobs(folder)) == 2
        return await write(self, work, context_id, **others)

    monkeypatch.setattr(SQLStore, "write", saved_before)
    if how == "clear":
        await stores.journal.clear(CONTEXT)
    else:
        await stores.artifacts.delete(CONTEXT, "doc")
    assert len(_blobs(folder)) == 1
    assert await stores.artifacts.load("other", "doc") == _CONTENT


async def test_altered_bytes_are_named_and_never_returned(stores, folder):
    """Each way to read them raises an error with both hashes."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    (blob,) = _blobs(folder)
    blob.write_bytes(b"X" + _CONTENT[1:])
    for read in (
        stores.artifacts.load(CONTEXT, "doc"),
        stores.artifacts.read(CONTEXT, "doc", start=100_000, size=1),
        anext(stores.artifacts.stream(CONTEXT, "doc")),
    ):
        with pytest.raises(ArtifactDamaged) as damaged:
            await read
        assert (damaged.value.artifact_id, damaged.value.version) == ("doc", 1)
        assert damaged.value.expected != damaged.value.actual
        assert damaged.value.actual is not None


@pytest.mark.parametrize("how", ["removed", "link", "pipe", "folder"])
async def test_vanished_bytes_are_named(stores, folder, tmp_path, how):
    """So are bytes with a link, a pipe or a folder in their place: nothing is read through it."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    (blob,) = _blobs(folder)
    blob.unlink()
    (tmp_path / "elsewhere").write_bytes(_CONTENT)
    if how == "link":
        blob.symlink_to(tmp_path / "elsewhere")
    elif how == "pipe":
        os.mkfifo(blob)
    elif how == "folder":
        blob.mkdir()
    with pytest.raises(ArtifactDamaged) as damaged:
        await stores.artifacts.load(CONTEXT, "doc")
    assert damaged.value.actual is None


async def test_a_folder_that_was_replaced_by_a_link_leads_nowhere(stores, folder, tmp_path):
    """Neither for reading nor for writing."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    (room,) = folder.iterdir()
    room.rename(tmp_path / "moved")
    room.symlink_to(tmp_path / "moved", target_is_directory=True)
    with pytest.raises(ArtifactDamaged):
        await stores.artifacts.load(CONTEXT, "doc")
    with pytest.raises(StoreUnavailable):
        await stores.artifacts.save(CONTEXT, "doc", _CONTENT + b"more")
    assert (await stores.artifacts.get(CONTEXT, "doc")).version == 1


@pytest.mark.parametrize("damaged", [b"", b"?" + _CONTENT[1:]], ids=["empty", "of the same size"])
async def test_saving_again_repairs_a_damaged_blob(stores, folder, damaged):
    """A damaged blob is not shared with a new version of the same content."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    (blob,) = _blobs(folder)
    blob.write_bytes(damaged)
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    assert await stores.artifacts.load(CONTEXT, "doc") == _CONTENT
    with pytest.raises(ArtifactDamaged):
        await stores.artifacts.load(CONTEXT, "doc", 1)


async def test_orphans_are_removed_when_they_are_old(stores, folder):
    """Whole ones and half-written ones; what a row names and what is not ours stays."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    (blob,) = _blobs(folder)
    name = f"{blob.name[:-1]}{'0' if blob.name[-1] != '0' else '1'}"
    orphans = [blob.with_name(name), blob.with_name(f"{name}.tmp")]
    for path in (*orphans, foreign := blob.with_name("notes.txt")):
        path.write_bytes(b"x")
    assert await stores.artifacts.collect(60) == 0
    await _age(folder, 120)
    assert await stores.for_tenant("other").artifacts.collect(60) == 0
    assert await stores.artifacts.collect(60) == 2
    assert _blobs(folder) == sorted([blob, foreign])
    assert await stores.artifacts.load(CONTEXT, "doc") == _CONTENT


async def test_a_stale_owner_takes_its_bytes_back(stores, folder):
    """They were written before the commit, which was refused: the context may have been erased."""
    claimed = await begin(stores, ttl_s=0)
    await begin(stores, claimed.epoch, holder="h2", recover=True)

    async def late(change):
        told = ArtifactUpdate(
            context_id=CONTEXT, artifact_id="doc", kind=ArtifactKind.FILE, version=0
        )
        done = await commit(stores, claimed, [told], artifact=change)
        return done.artifact

    with pytest.raises(Fenced):
        await stores.artifacts.change(CONTEXT, to_save("doc", _CONTENT), late)
    with pytest.raises(ArtifactNotFound):
        await stores.artifacts.get(CONTEXT, "doc")
    assert _blobs(folder) == []


async def test_a_shared_name_that_is_gone_is_written_again(stores, folder, monkeypatch):
    """Somebody deletes the only row with the name after it was found, and before the commit."""
    await stores.artifacts.save("other", "doc", _CONTENT)
    rows = stores.artifacts._rows
    find = rows.blob_with

    async def find_and_lose(sha256, size):
        name = await find(sha256, size)
        if name is not None:
            await stores.for_tenant("default").artifacts.delete("other", "doc")
        return name

    (blob,) = _blobs(folder)
    kept = blob.read_bytes()
    blobs = stores.artifacts._parts.blobs

    async def get(path, real=blobs.get):
        return await real(path) or kept  # it was read just before the deletion

    monkeypatch.setattr(rows, "blob_with", find_and_lose)
    monkeypatch.setattr(blobs, "get", get)
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    monkeypatch.undo()
    assert await stores.artifacts.load(CONTEXT, "doc") == _CONTENT
    assert _blobs(folder) != [blob]


async def test_a_commit_whose_upload_is_not_held_is_refused(stores):
    """Its bytes may have been collected by then."""
    late = ArtifactPart(size=1, sha256="0" * 64, blob="0" * 64 + "-" + "0" * 16)
    write = ArtifactWrite(
        artifact_id="doc", kind=ArtifactKind.FILE, stored=b"", media_type="x/y", parts=[late]
    )
    with pytest.raises(ArtifactMoved):
        await stores.artifacts._rows.apply(CONTEXT, write)
    assert await stores.state.load(CONTEXT) is None


async def test_a_full_disk_leaves_no_partial_blob(stores, folder, monkeypatch):
    """The version is not there, nor a half-written file; the next save works."""
    real = os.write

    def full(file, data):
        if len(data) > 100_000:
            real(file, bytes(data[:1000]))
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageFull):
        await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    monkeypatch.undo()
    assert _blobs(folder) == []
    with pytest.raises(ArtifactNotFound):
        await stores.artifacts.get(CONTEXT, "doc")
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)


async def test_a_name_that_was_altered_in_the_database_opens_no_file(stores, tmp_path):
    """It is no name of ours, so no path is made of it."""
    await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
    rows = stores.artifacts._rows
    parts = await rows.parts(CONTEXT, "doc", 1, after=0, limit=1)
    (tmp_path / "secret").write_bytes(_CONTENT)

    async def altered(*_, **__):
        return [parts[0]._replace(blob="../../secret")]

    rows.parts = altered
    with pytest.raises(StoreUnavailable, match="altered"):
        await stores.artifacts.load(CONTEXT, "doc")


async def test_the_place_can_be_chosen(tmp_path):
    """A folder by its path; a database without a blob store keeps the parts itself."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    async with open_stores(url, blobs=str(tmp_path / "deep" / "place")) as stores:
        await stores.artifacts.save(CONTEXT, "doc", _CONTENT)
        assert len(_blobs(tmp_path / "deep" / "place")) == 1
    async with open_stores(url) as stores:
        with pytest.raises(ArtifactDamaged):
            await stores.artifacts.load(CONTEXT, "doc")
    for place in ("ftp://x/y", "https://x"):
        with pytest.raises(ConfigurationError):
            open_stores(url, blobs=place)
    with pytest.raises(ConfigurationError):
        open_stores("memory:", blobs=str(tmp_path))
