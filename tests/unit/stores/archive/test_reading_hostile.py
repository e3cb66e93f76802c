"""An archive may come from anybody: each fault has a place, and nothing is imported."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import zipfile

import pytest

from looopy.errors import ArchiveRefused, StoreConflict, ValueRefused
from looopy.stores import MemoryBackend, import_contexts
from looopy.stores.archive.reading import Archive
from looopy.testing.contracts.restore import exported, fill, imported

FOLDER = "contexts/1/"
MANIFEST = "manifest.json"


_MADE = []  # the archive of `good`, once it is there: nothing changes bytes


@pytest.fixture
async def good():
    """An archive of a context with something of everything."""
    if not _MADE:
        stores = MemoryBackend().stores()
        await fill(stores)
        _MADE.append(await exported(stores))
    return _MADE[0]


@pytest.fixture
def target():
    """Empty stores."""
    return MemoryBackend().stores()


def members_of(archive):
    """The members of an archive, by name."""
    with zipfile.ZipFile(io.BytesIO(archive)) as found:
        return {info.filename: found.read(info) for info in found.infolist()}


def archive_of(members, *, honest=True):
    """An archive of *members*; *honest*: its manifest has their sizes and hashes."""
    members = dict(members)
    if honest:
        manifest = json.loads(members.pop(MANIFEST))
        manifest["members"] = {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in members.items()
        }
        members[MANIFEST] = json.dumps(manifest).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        for name, data in members.items():
            out.writestr(name, data)
    return made.getvalue()


async def _refused(target, archive, **others):
    with pytest.raises(ArchiveRefused) as refused:
        await imported(target, archive, **others)
    assert await target.state.list() == []
    assert "nothing was imported" in str(refused.value)
    return refused.value.member, refused.value.line, refused.value.path


async def test_an_archive_of_another_zip_writer_is_read(good, target):
    """Only the members count, not who put them together."""
    await imported(target, archive_of(members_of(good)))
    assert await exported(target) == good


# --- lines: who changes one honestly, hashes included, is found by what it says ---


def _edit(member, line, path, value):
    """A change of one value, by the pointer to it; `...` removes it."""
    return member, line, path, value


NOT_JSON = {"k": float("nan")}
EDITS = (
    _edit("context.json", None, "/context_id", "../etc"),
    _edit("context.json", None, "/context_id", "other"),
    _edit("context.json", None, "/owner", "x" * 513),
    _edit("context.json", None, "/turn_count", -1),
    _edit("context.json", None, "/turn_count", 1.0),
    _edit("context.json", None, "/last_seq", 2**32),
    _edit("context.json", None, "/version", ...),
    _edit("context.json", None, "/tags", ["b", "a"]),
    _edit("context.json", None, "/tags", ["a\u0000"]),
    _edit("context.json", None, "/created_at", "yesterday"),
    _edit("context.json", None, "/created_at", "2026-11-23T02:00:00"),
    _edit("context.json", None, "/state", {"run_us": "x"}),
    _edit("context.json", None, "/state", {"summary": 99}),
    _edit("context.json", None, "/state", {"unknown": 1}),
    _edit("context.json", None, "/metadata", {"k": "lone \ud800"}),
    _edit("context.json", None, "/metadata", NOT_JSON),
    _edit("context.json", None, "/tenant", "theirs"),
    _edit("turns.jsonl", 1, "/turn", 2),
    _edit("turns.jsonl", 1, "/outcome", "fine"),
    _edit("turns.jsonl", 1, "/end_seq", None),
    _edit("turns.jsonl", 1, "/end_seq", 99),
    _edit("turns.jsonl", 1, "/start_seq", 0),
    _edit("turns.jsonl", 1, "/continues", 7),
    _edit("turns.jsonl", 1, "/user_position", 3000),
    _edit("turns.jsonl", 1, "/usage", {"input": "many"}),
    _edit("turns.jsonl", 1, "/last_position", 2**31),
    _edit("events.jsonl", 1, "/seq", 2),
    _edit("events.jsonl", 2, "/seq", 1),
    _edit("events.jsonl", 2, "/turn", 9),
    _edit("events.jsonl", 2, "/type", "no_such_event"),
    _edit("events.jsonl", 2, "/position", 5),
    _edit("events.jsonl", 2, "/message", {"role": "user"}),
    _edit("events.jsonl", 2, "/message/content", "nul \u0000"),
    _edit("events.jsonl", 2, "/message/content", "lone \udfff"),
    _edit("events.jsonl", 2, "/timestamp", 1),
    _edit("events.jsonl", 2, "/extra", 1),
    _edit("events.jsonl", 4, "/position", 1),
    _edit("events.jsonl", 5, "/duration_s", -1),
    _edit("inbox.jsonl", 1, "/number", 0),
    _edit("inbox.jsonl", 2, "/number", 1),
    _edit("inbox.jsonl", 2, "/number", 3),
    _edit("inbox.jsonl", 1, "/kind", "shout"),
    _edit("inbox.jsonl", 1, "/message/role", "assistant"),
    _edit("artifacts.jsonl", 1, "/artifact_id", "a\u0001"),
    _edit("artifacts.jsonl", 1, "/member", "../../etc/passwd"),
    _edit("artifacts.jsonl", 1, "/member", "/etc/passwd"),
    _edit("artifacts.jsonl", 1, "/version", 2),
    _edit("artifacts.jsonl", 1, "/kind", "program"),
    _edit("artifacts.jsonl", 1, "/turn", 2),
    _edit("artifacts.jsonl", 1, "/sha256", ""),
    _edit("artifacts.jsonl", 3, "/version", 1),
    _edit("artifacts.jsonl", 2, "/artifact_id", "a"),
    _edit("artifacts.jsonl", 6, "/columns", {"n": "text"}),
)


def _edited(raw, path, value):
    data = json.loads(raw)
    *steps, last = path.split("/")[1:]
    inner = data
    for step in steps:
        inner = inner[step]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: f"{e[0]}{e[2]}={str(e[3])[:20]!a}")
async def test_a_value_out_of_place_is_named(good, target, edit):
    """By member, line and pointer, even if every hash is right."""
    member, line, path, value = edit
    members = members_of(good)
    lines = members[FOLDER + member].split(b"\n")
    if line is None:
        members[FOLDER + member] = _edited(members[FOLDER + member], path, value)
    else:
        lines[line - 1] = _edited(lines[line - 1], path, value)
        members[FOLDER + member] = b"\n".join(lines)
    found, at, pointer = await _refused(target, archive_of(members))
    assert (found, at) == (FOLDER + member, line)
    assert pointer.startswith(path) or (path.startswith(pointer) and (pointer or value is NOT_JSON))


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 200_000,
        b'{"seq": NaN}',
        b'{"seq": 1',
        b"\xff\xfe",
        b"[]",
        b'{"a":' * 100_000,
        b'"' + b"x" * 100,
    ],
)
@pytest.mark.parametrize("member", ["context.json", "events.jsonl", "artifacts.jsonl"])
async def test_a_line_that_is_not_json_is_named(good, target, raw, member):
    """Too deep, not a number, cut, not UTF-8, another type."""
    members = {**members_of(good), FOLDER + member: raw + b"\n"}
    found, line, _ = await _refused(target, archive_of(members))
    assert (found, line) == (FOLDER + member, None if member == "context.json" else 1)


async def test_metadata_that_is_too_deep_is_refused(good, target):
    """65 levels, where 64 are kept."""
    deep = json.loads("[" * 65 + "]" * 65)
    members = members_of(good)
    context = json.loads(members[f"{FOLDER}context.json"])
    members[f"{FOLDER}context.json"] = json.dumps({**context, "metadata": {"k": deep}}).encode()
    found, _, path = await _refused(target, archive_of(members))
    assert found == f"{FOLDER}context.json"
    assert path.startswith("/metadata/k/0")


# --- lines that are missing, or too many ---


@pytest.mark.parametrize(
    "member", ["turns.jsonl", "events.jsonl", "inbox.jsonl", "artifacts.jsonl"]
)
@pytest.mark.parametrize("how", ["without the last", "twice the last", "none", "no end"])
async def test_lines_that_are_missing_or_too_many_are_noticed(good, target, member, how):
    """The numbers of the context say how many there are."""
    members = members_of(good)
    lines = members[FOLDER + member].splitlines(keepends=True)
    members[FOLDER + member] = {
        "without the last": b"".join(lines[:-1]),
        "twice the last": b"".join([*lines, lines[-1]]),
        "none": b"",
        "no end": b"".join(lines)[:-1],
    }[how]
    await _refused(target, archive_of(members))


# --- bytes: whoever changes some is found by the hash ---


@pytest.mark.parametrize("member", ["context.json", "events.jsonl", "artifacts/3", "artifacts/6"])
async def test_an_altered_byte_is_found_by_its_hash(good, target, member):
    """In a line and in an artifact alike; the error names the member."""
    members = members_of(good)
    data = bytearray(members[FOLDER + member])
    data[len(data) // 2] ^= 1
    members[FOLDER + member] = bytes(data)
    found, _, _ = await _refused(target, archive_of(members, honest=False))
    assert found == FOLDER + member


async def test_an_altered_text_is_found_by_its_hash(good, target):
    """Even where nothing but the hash can tell."""
    members = members_of(good)
    name = f"{FOLDER}events.jsonl"
    members[name] = members[name].replace(b"from outside", b"from outsidf")
    assert members[name] != members_of(good)[name]
    found, line, _ = await _refused(target, archive_of(members, honest=False))
    assert (found, line) == (name, None)


@pytest.mark.parametrize("number", [1, 3, 6])
async def test_bytes_of_another_artifact_are_refused(good, target, number):
    """A manifest may be honest about the wrong bytes; the artifact knows its own hash."""
    members = members_of(good)
    members[f"{FOLDER}artifacts/{number}"] = bytes(len(members[f"{FOLDER}artifacts/{number}"]))
    found, _, _ = await _refused(target, archive_of(members))
    assert found == f"{FOLDER}artifacts/{number}"


async def test_every_cut_is_noticed(good, target):
    """Wherever the file ends, and whatever is added to it."""
    for end in (0, 1, 21, 22, 100, len(good) // 2, len(good) - 22, len(good) - 1):
        await _refused(target, good[:end])
    await _refused(target, good + b"\0")
    await _refused(target, b"PK\5\6" + b"\0" * 18)


# --- the manifest ---


def _manifest(good, **changes):
    members = members_of(good)
    manifest = {**json.loads(members[MANIFEST]), **changes}
    return archive_of({**members, MANIFEST: json.dumps(manifest).encode()}, honest=False)


async def test_an_archive_of_a_newer_version_is_refused_with_the_way_out(good, target):
    """No guessing at what it may mean."""
    with pytest.raises(ArchiveRefused, match="upgrade looopy") as refused:
        await imported(target, _manifest(good, version=2))
    assert (refused.value.member, refused.value.path) == (MANIFEST, "/version")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"format": "other"}, "/format"),
        ({"version": "1"}, "/version"),
        ({"version": 0}, "/version"),
        ({"version": True}, "/version"),
        ({"version": 1.0}, "/version"),
        ({"contexts": {}}, "/contexts"),
        ({"contexts": [7]}, "/contexts/0"),
        ({"members": []}, "/members"),
        ({"more": 1}, "/more"),
    ],
)
async def test_another_manifest_is_refused(good, target, changes, path):
    """By the field."""
    assert await _refused(target, _manifest(good, **changes)) == (MANIFEST, None, path)


@pytest.mark.parametrize(
    "name", ["context_id", "folder", "turns", "messages", "events", "versions"]
)
async def test_a_manifest_with_a_wrong_context_is_refused(good, target, name):
    """Its counts are those of the lines."""
    manifest = json.loads(members_of(good)[MANIFEST])
    before = manifest["contexts"][0][name]
    manifest["contexts"][0][name] = before + 1 if isinstance(before, int) else "contexts/9"
    await _refused(target, _manifest(good, contexts=manifest["contexts"]))


async def test_a_manifest_that_claims_billions_is_refused_at_once(good, target):
    """Before anybody makes a list of the names that it would take."""
    manifest = json.loads(members_of(good)[MANIFEST])
    manifest["contexts"][0]["versions"] = 100_000
    with pytest.raises(ArchiveRefused, match="more than 100,000 members"):
        await imported(target, _manifest(good, contexts=manifest["contexts"]))


async def test_a_context_is_in_an_archive_once(good, target):
    """Two with one id would be one."""
    members = members_of(good)
    manifest = json.loads(members[MANIFEST])
    again = {**manifest["contexts"][0], "folder": "contexts/2"}
    manifest["contexts"].append(again)
    for name in list(members):
        if name.startswith(FOLDER):
            members[name.replace(FOLDER, "contexts/2/")] = members[name]
    members[MANIFEST] = json.dumps(manifest).encode()
    assert (await _refused(target, archive_of(members)))[2] == "/contexts/1/context_id"


# --- the container ---


def _zip(members, **attributes):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            if name != MANIFEST:
                for attribute, value in attributes.items():
                    setattr(info, attribute, value)
            out.writestr(info, data)
    return made.getvalue()


@pytest.mark.parametrize(
    "attributes",
    [
        {"compress_type": zipfile.ZIP_DEFLATED},
        {"compress_type": zipfile.ZIP_LZMA},
        {"external_attr": (stat.S_IFLNK | 0o777) << 16},
        {"external_attr": stat.S_IFDIR << 16},
        {"external_attr": stat.S_IFIFO << 16},
    ],
)
async def test_members_are_plain_files_as_they_are(good, target, attributes):
    """Neither compressed, which a bomb would be, nor links, nor folders."""
    assert (await _refused(target, _zip(members_of(good), **attributes)))[0].startswith(FOLDER)


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/passwd", "contexts/1/../2", "C:\\x", "a" * 300, "\u202e", "contexts/1/"],
)
async def test_an_unexpected_member_is_refused(good, target, name):
    """Its name is shown, and never used as a path."""
    await _refused(target, _zip({**members_of(good), name: b""}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
async def test_a_member_is_there_once(good, target):
    """Of two, somebody else would have checked the other one."""
    made = io.BytesIO(good)
    with zipfile.ZipFile(made, "a") as out:
        out.writestr(f"{FOLDER}inbox.jsonl", b"")
    assert (await _refused(target, made.getvalue()))[0] == f"{FOLDER}inbox.jsonl"


@pytest.mark.parametrize("missing", ["context.json", "inbox.jsonl", "artifacts/2"])
async def test_a_member_that_is_missing_is_named(good, target, missing):
    """Whether the manifest knows it or not."""
    members = members_of(good)
    del members[FOLDER + missing]
    for honest in (True, False):
        found, _, _ = await _refused(target, archive_of(members, honest=honest))
        assert found == FOLDER + missing


def _directory(archive):
    """Where the entries of the directory begin."""
    at, found = archive.index(b"PK\1\2"), []
    while archive[at : at + 4] == b"PK\1\2":
        lengths = struct.unpack("<3H", archive[at + 28 : at + 34])
        found.append(at)
        at += 46 + sum(lengths)
    return found


async def test_members_that_share_bytes_are_refused(good, target):
    """Many large members in a small file: a bomb without compression."""
    members = members_of(good)
    plain = archive_of(members)
    name = f"{FOLDER}inbox.jsonl"
    inner = plain[plain.index(name.encode()) - 30 :][: 30 + len(name) + len(members[name])]
    made = bytearray(archive_of({"outer": inner, **members}))
    entry = next(at for at in _directory(made) if made[at + 46 :].startswith(name.encode()))
    made[entry + 42 : entry + 46] = struct.pack("<L", made.index(inner))
    with pytest.raises(ArchiveRefused, match="overlaps another member"):
        await imported(target, bytes(made))


async def test_a_wrong_size_is_refused(good, target):
    """Beyond the end of the file, or into the next member."""
    for size in (2**31, 600):
        raw = bytearray(_zip(members_of(good)))
        at = _directory(raw)[0]
        raw[at + 20 : at + 28] = struct.pack("<2L", size, size)
        await _refused(target, bytes(raw))


async def test_a_directory_of_millions_is_not_read(target):
    """The number is looked at first."""
    many = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 65535, 65535, 2**31, 0, 0)
    found = await _refused(target, many)
    assert found == (None, None, None)


async def test_a_second_end_is_not_believed(good, target):
    """Its size is that of the end which the locator names, and the other one is read."""
    end = good.rindex(b"PK\5\6")
    count, size, start = struct.unpack("<H2L", good[end + 10 : end + 20])
    version = struct.pack("<4sQ2H2L", b"PK\6\6", 44, 45, 45, 0, 0)
    small = version + struct.pack("<4Q", 1, 1, 1, start)
    true = version + struct.pack("<4Q", count, count, size, start + len(small))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)
    made = small + good[:end] + true + locator + good[end:]
    assert len(zipfile.ZipFile(io.BytesIO(made)).namelist()) == count
    with pytest.raises(ArchiveRefused, match="its directory is not there"):
        await imported(target, made)


async def test_a_directory_with_a_wrong_offset_is_refused(good, target):
    """Its members would begin before the file does."""
    made = bytearray(_zip(members_of(good)))
    at = _directory(made)[0]
    made[-6:-2] = struct.pack("<L", struct.unpack("<L", made[-6:-2])[0] + 100)
    made[at + 42 : at + 46] = struct.pack("<L", 0)
    await _refused(target, bytes(made))


async def test_no_zip_file_at_all_is_refused(target):
    """Such as a picture, or an archive that was compressed."""
    await _refused(target, b"\x89PNG" + b"\0" * 1000)


# --- who and what it becomes ---


async def test_owners_are_kept_only_with_keep_owners(good, target):
    """Anybody can write any name into a file."""
    found, line, path = await _refused(target, good, keep_owners=False)
    assert (found, line, path) == (f"{FOLDER}context.json", None, "/owner")
    await _refused(target, good, keep_owners=False, owner="u2")
    await imported(target, good, keep_owners=False, owner="u1")
    assert (await target.state.load("ada")).owner_actor == "u1"


async def test_a_turn_of_another_actor_counts_as_a_claim(good, target):
    """Each place where an actor is named counts."""
    members = members_of(good)
    context = json.loads(members[f"{FOLDER}context.json"])
    members[f"{FOLDER}context.json"] = json.dumps({**context, "owner": None}).encode()
    found = await _refused(target, archive_of(members), keep_owners=False)
    assert found == (f"{FOLDER}inbox.jsonl", 1, "/actor_id")
    members[f"{FOLDER}inbox.jsonl"] = members[f"{FOLDER}inbox.jsonl"].replace(b'"u1"', b"null")
    found = await _refused(target, archive_of(members), keep_owners=False)
    assert found == (f"{FOLDER}turns.jsonl", 1, "/actor_id")


async def test_no_more_actors_are_kept_than_tell_of_a_stranger(good):
    """An archive may name millions."""
    checked = Archive(io.BytesIO(good)).read(0)
    for n in range(9):
        checked._notice(f"u{n}", "turns.jsonl", n, "/actor_id")
    assert list(checked.actors) == ["u1", "u0"]


async def test_a_context_gets_another_id(good, target):
    """A new one, or the one that is given; the old one stays free."""
    first = await imported(target, good, new_ids=True)
    second = await imported(target, good, new_ids={"ada": "eve"})
    names = {one.context_id for one in await target.state.list()}
    assert names == {first.contexts[0].context_id, "eve"}
    assert [one.archived_as for one in second.contexts] == ["ada"]
    events = await target.journal.events("eve")
    assert {event.context_id for event in events} == {"eve"}
    with pytest.raises(StoreConflict, match="eve"):
        await imported(target, good, new_ids={"ada": "eve"})
    for wrong in ({"bob": "x"}, {"ada": "no id!"}):
        with pytest.raises(ValueRefused):
            await imported(target, good, new_ids=wrong)


async def test_a_file_that_is_not_there_is_the_systems_error(target, tmp_path):
    """As `open` says it."""
    with pytest.raises(FileNotFoundError):
        await import_contexts(target, tmp_path / "none.zip")
