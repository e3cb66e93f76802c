"""The contract of an `ArtifactStore`; see `looopy.testing.stores`."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from looopy.errors import ArtifactNotFound, StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.testing import hostile
from looopy.testing.contracts.turns import (
    CONTEXT,
    Contract,
    a_turn,
    at_once,
    for_each,
    refuses,
    user,
)
from looopy.types.artifact import ArtifactKind, ArtifactStatus

_BYTES = bytes(range(256)) * 8
_COLUMNS = {"n": "integer", "name": "string", "score": "number", "ok": "boolean", "any": "any"}
_ROW = {"n": 1, "name": "grüezi\n", "score": 1.5, "ok": True, "any": {"x": [None]}}
_BROKEN_ROWS = [
    ({"m": 1}, "/1"),
    ({"n": "1"}, "/1/n"),
    ({"n": True}, "/1/n"),
    ({"n": 1.5}, "/1/n"),
    ({"name": 1}, "/1/name"),
    ({"ok": 1}, "/1/ok"),
    ({"any": "\0"}, "/1/any"),
    ([], "/1"),
]
_LARGE = 1_300_000  # more than one part in a database, and more than a tail anywhere


class ArtifactStoreContract(Contract):
    """Kinds, versions, and what comes back."""

    async def test_bytes_come_back_equal(self, stores: Stores) -> None:
        """A file is its bytes, with size and hash; the context is created on first use."""
        saved = await stores.artifacts.save(CONTEXT, "blob", _BYTES)
        assert (saved.kind, saved.version) == (ArtifactKind.FILE, 1)
        assert saved.status is ArtifactStatus.COMPLETE
        assert (saved.size, saved.media_type) == (len(_BYTES), "application/octet-stream")
        assert saved.sha256 == hashlib.sha256(_BYTES).hexdigest()
        assert await stores.artifacts.load(CONTEXT, "blob") == _BYTES
        assert await stores.state.load(CONTEXT) is not None

    async def test_text_is_a_file_of_its_bytes(self, stores: Stores) -> None:
        """`str` is kept as UTF-8 and read as bytes."""
        saved = await stores.artifacts.save(CONTEXT, "note", "grüezi")
        assert (saved.size, saved.media_type) == (7, "text/plain; charset=utf-8")
        assert await stores.artifacts.load(CONTEXT, "note") == "grüezi".encode()

    async def test_data_is_a_json_object(self, stores: Stores) -> None:
        """An object comes back as an object, its keys in order."""
        data = {"b": [1, 2.5, None], "a": {"x": "y"}}
        saved = await stores.artifacts.save(CONTEXT, "numbers", data)
        assert (saved.kind, saved.media_type) == (ArtifactKind.DATA, "application/json")
        found = await stores.artifacts.load(CONTEXT, "numbers")
        assert json.dumps(found) == json.dumps(data)

    async def test_empty_content_is_kept(self, stores: Stores) -> None:
        """Empty bytes, text and objects are kept."""
        await stores.artifacts.save(CONTEXT, "a", b"")
        await stores.artifacts.save(CONTEXT, "b", "")
        await stores.artifacts.save(CONTEXT, "c", {})
        assert await stores.artifacts.load(CONTEXT, "a") == b""
        assert await stores.artifacts.load(CONTEXT, "b") == b""
        assert await stores.artifacts.load(CONTEXT, "c") == {}

    async def test_each_save_makes_the_next_version(self, stores: Stores) -> None:
        """A version never changes; `load` returns the newest by default."""
        contents: list[Any] = [b"one", "two", {"three": 3}]
        for n, content in enumerate(contents, start=1):
            assert (await stores.artifacts.save(CONTEXT, "doc", content)).version == n
        assert await stores.artifacts.load(CONTEXT, "doc", 1) == b"one"
        assert await stores.artifacts.load(CONTEXT, "doc", version=2) == b"two"
        assert await stores.artifacts.load(CONTEXT, "doc") == {"three": 3}

    async def test_an_unknown_artifact_is_not_found(self, stores: Stores) -> None:
        """An unknown context, artifact or version raises `ArtifactNotFound`, a `KeyError`."""
        await stores.artifacts.save(CONTEXT, "doc", b"x")
        for context_id, artifact_id, version in (
            ("nobody", "doc", None),
            (CONTEXT, "other", None),
            (CONTEXT, "doc", 2),
            (CONTEXT, "doc", 0),
            (CONTEXT, "doc", -1),
            (CONTEXT, "doc", 2**70),
            (CONTEXT, "\ud800", None),
            ("not an id", "doc", None),
        ):
            with pytest.raises(ArtifactNotFound) as missing:
                await stores.artifacts.load(context_id, artifact_id, version)
            assert isinstance(missing.value, KeyError)

    async def test_the_list_holds_the_newest_of_each_by_id(self, stores: Stores) -> None:
        """Sorted by code point; empty for an unknown context."""
        assert await stores.artifacts.list(CONTEXT) == []
        saved: dict[str, Any] = {}
        for name in ("b", "a", "Z", "é", "b", "😀", "\uffff", "b"):
            saved[name] = await stores.artifacts.save(CONTEXT, name, name)
        assert await stores.artifacts.list(CONTEXT) == [saved[name] for name in sorted(saved)]

    async def test_deleting_removes_all_versions(self, stores: Stores) -> None:
        """Other artifacts stay; a later save begins again at version 1."""
        await stores.artifacts.save(CONTEXT, "doc", b"1")
        await stores.artifacts.save(CONTEXT, "doc", b"2")
        await stores.artifacts.save(CONTEXT, "other", b"3")
        await stores.artifacts.delete(CONTEXT, "doc")
        with pytest.raises(ArtifactNotFound):
            await stores.artifacts.load(CONTEXT, "doc", 1)
        assert [a.artifact_id for a in await stores.artifacts.list(CONTEXT)] == ["other"]
        assert (await stores.artifacts.save(CONTEXT, "doc", b"4")).version == 1

    async def test_deleting_what_is_not_there_is_not_found(self, stores: Stores) -> None:
        """An unknown context or artifact raises `ArtifactNotFound`."""
        await stores.artifacts.save(CONTEXT, "doc", b"1")
        for context_id, artifact_id in ((CONTEXT, "x"), ("nobody", "doc"), (CONTEXT, "\ud800")):
            with pytest.raises(ArtifactNotFound):
                await stores.artifacts.delete(context_id, artifact_id)

    async def test_an_id_is_data_and_never_a_path(self, stores: Stores) -> None:
        """Names that a file system or a query would read otherwise are just names."""
        names = ("../../etc/passwd", "a/b", "CON", ".", "%", "_", "x' OR '1'='1", "e\u0301", "é")
        for name in names:
            await stores.artifacts.save(CONTEXT, name, name)
        for name in names:
            assert await stores.artifacts.load(CONTEXT, name) == name.encode()

    @for_each(["", "x" * 257, "a\nb", "a\0", "\x9b", "\ud800"])
    async def test_an_artifact_needs_a_usable_id(self, stores: Stores, artifact_id: str) -> None:
        """1 to 256 characters, none of them a control character; nothing is written."""
        with refuses(ValueRefused, path="/artifact_id"):
            await stores.artifacts.save(CONTEXT, artifact_id, b"x")
        assert await stores.state.load(CONTEXT) is None

    async def test_a_kind_must_fit_its_content(self, stores: Stores) -> None:
        """A JSON object is refused as a file, bytes as data, and any unknown kind."""
        wrong: list[tuple[Any, str]] = [({"a": 1}, "file"), (b"x", "data"), (b"x", "picture")]
        for content, kind in wrong:
            with refuses(ValueRefused, path="/kind"):
                await stores.artifacts.save(CONTEXT, "doc", content, kind=kind)
        assert await stores.state.load(CONTEXT) is None
        right: list[tuple[Any, str]] = [({"a": 1}, "data"), (b"x", "file")]
        for content, kind in right:
            saved = await stores.artifacts.save(CONTEXT, kind, content, kind=kind, media_type="x/y")
            assert (saved.kind, saved.media_type) == (kind, "x/y")

    async def test_a_media_type_is_type_and_subtype(self, stores: Stores) -> None:
        """A server may send it as a header: no line break, at most 255 characters."""
        wrong: list[Any] = ["", "text", "a/b/c", "a\r\nX: y", "a/b\n", "a/\xe4"]
        wrong += ["a/" + "b" * 254, 1]
        for media_type in wrong:
            with refuses(ValueRefused, path="/media_type"):
                await stores.artifacts.save(CONTEXT, "doc", b"x", media_type=media_type)
            with refuses(ValueRefused, path="/media_type"):
                await stores.artifacts.open(CONTEXT, "doc", media_type=media_type)
        assert await stores.state.load(CONTEXT) is None
        for media_type in ("image/svg+xml", 'text/plain; charset=utf-8;x="a; \\"b"', "x/vnd.a-b"):
            saved = await stores.artifacts.save(CONTEXT, "doc", b"x", media_type=media_type)
            assert saved.media_type == media_type

    @for_each(hostile.REFUSED)
    async def test_data_that_cannot_be_kept_is_refused(self, stores: Stores, name: str) -> None:
        """The error has the value's path, and nothing is written."""
        with pytest.raises(ValueRefused) as refused:
            await stores.artifacts.save(CONTEXT, "doc", {"v": hostile.REFUSED[name]})
        assert (refused.value.path or "").startswith("/content/v")
        assert await stores.state.load(CONTEXT) is None

    @for_each(hostile.KEPT)
    async def test_odd_data_is_kept(self, stores: Stores, name: str) -> None:
        """Numbers, key order and depth survive."""
        value = {"v": hostile.KEPT[name]}
        await stores.artifacts.save(CONTEXT, "doc", value)
        assert json.dumps(await stores.artifacts.load(CONTEXT, "doc")) == json.dumps(value)

    async def test_an_artifact_names_the_turn_that_made_it(self, stores: Stores) -> None:
        """An artifact saved before the first turn has turn 0."""
        assert (await stores.artifacts.save(CONTEXT, "early", b"x")).turn == 0
        await a_turn(stores)
        await stores.artifacts.save(CONTEXT, "late", b"x")
        assert [a.turn for a in await stores.artifacts.list(CONTEXT)] == [0, 1]

    async def test_concurrent_saves_get_versions_of_their_own(self, stores: Stores) -> None:
        """No version number is used twice, and no number is skipped."""

        async def save(n: int) -> int:
            return (await stores.artifacts.save(CONTEXT, "doc", str(n))).version

        saved = await at_once(*(save(n) for n in range(16)))
        versions = {version: n for n, version in enumerate(saved)}
        assert sorted(versions) == list(range(1, 17))
        for version, n in versions.items():
            assert await stores.artifacts.load(CONTEXT, "doc", version) == str(n).encode()

    async def test_another_tenant_sees_nothing(self, stores: Stores) -> None:
        """Neither list nor load nor delete reaches another tenant's artifacts."""
        other = stores.for_tenant("other")
        await stores.artifacts.save(CONTEXT, "doc", b"mine")
        await other.messages.append(CONTEXT, [user("x")])
        assert await other.artifacts.list(CONTEXT) == []
        with pytest.raises(ArtifactNotFound):
            await other.artifacts.load(CONTEXT, "doc")
        with pytest.raises(ArtifactNotFound):
            await other.artifacts.delete(CONTEXT, "doc")
        assert await stores.artifacts.load(CONTEXT, "doc") == b"mine"

    async def test_an_id_of_two_contexts_is_two_artifacts(self, stores: Stores) -> None:
        """Each has its own versions, and is deleted alone."""
        await stores.artifacts.save(CONTEXT, "doc", b"one")
        await stores.artifacts.save(CONTEXT, "doc", b"two")
        assert (await stores.artifacts.save("another", "doc", b"other")).version == 1
        assert await stores.artifacts.load(CONTEXT, "doc") == b"two"
        await stores.artifacts.delete(CONTEXT, "doc")
        assert await stores.artifacts.load("another", "doc") == b"other"
        assert [a.artifact_id for a in await stores.artifacts.list("another")] == ["doc"]


class ArtifactContentContract(Contract):
    """Large content, content in pieces, datasets, ranges and lists."""

    @for_each([65_536, 65_537, _LARGE])
    async def test_a_file_of_any_size_comes_back_equal(self, stores: Stores, size: int) -> None:
        """Whole, as a stream, and as ranges across every boundary of its parts."""
        content = a_content(size)
        saved = await stores.artifacts.save(CONTEXT, "big", content)
        assert (saved.size, saved.sha256) == (size, hashlib.sha256(content).hexdigest())
        assert await stores.artifacts.load(CONTEXT, "big") == content
        pieces = [piece async for piece in stores.artifacts.stream(CONTEXT, "big")]
        assert b"".join(pieces) == content
        for start, length in ((0, 1), (65_535, 2), (size - 1, 5), (1_048_570, 12), (size, 1)):
            read = await stores.artifacts.read(CONTEXT, "big", start=start, size=length)
            assert read == content[start : start + length]
        assert await stores.artifacts.read(CONTEXT, "big", start=size - 3) == content[-3:]
        assert await stores.artifacts.read(CONTEXT, "big", size=0) == b""

    async def test_a_large_object_comes_back_equal(self, stores: Stores) -> None:
        """Its JSON is cut into parts like any bytes."""
        data = {"text": "é" * 100_000, "after": [1, 2.5]}
        saved = await stores.artifacts.save(CONTEXT, "data", data)
        assert (saved.kind, saved.size > 200_000) == (ArtifactKind.DATA, True)
        assert json.dumps(await stores.artifacts.load(CONTEXT, "data")) == json.dumps(data)

    @for_each(["start", "size"])
    async def test_a_range_is_counted_from_0(self, stores: Stores, field: str) -> None:
        """A negative number is refused by its name."""
        await stores.artifacts.save(CONTEXT, "doc", b"abc")
        wrong: dict[str, Any] = {field: -1}
        with refuses(ValueRefused, path=f"/{field}"):
            await stores.artifacts.read(CONTEXT, "doc", **wrong)

    async def test_a_file_is_written_piece_by_piece(self, stores: Stores) -> None:
        """It is being built until it is complete, keeps its version, and then has its hash."""
        opened = await stores.artifacts.open(CONTEXT, "log", media_type="text/plain")
        assert (opened.version, opened.status, opened.size, opened.sha256) == (1, "building", 0, "")
        grown = await stores.artifacts.append(CONTEXT, "log", "one ")
        assert (grown.version, grown.status, grown.size) == (1, "building", 4)
        assert await stores.artifacts.list(CONTEXT) == [grown]
        await stores.artifacts.append(CONTEXT, "log", b"two")
        done = await stores.artifacts.complete(CONTEXT, "log")
        assert (done.status, done.size, done.media_type) == ("complete", 7, "text/plain")
        assert done.sha256 == hashlib.sha256(b"one two").hexdigest()
        assert await stores.artifacts.load(CONTEXT, "log") == b"one two"

    async def test_pieces_of_any_size_become_one_content(self, stores: Stores) -> None:
        """The last one may complete it; an empty one adds nothing."""
        content = a_content(400_000)
        sizes = [0, 1, 65_535, 2, 65_536, 100_000, 7, 65_537]
        await stores.artifacts.open(CONTEXT, "big")
        start = 0
        for size in sizes:
            await stores.artifacts.append(CONTEXT, "big", content[start : start + size])
            start += size
        done = await stores.artifacts.append(CONTEXT, "big", content[start:], last=True)
        assert (done.size, done.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert await stores.artifacts.load(CONTEXT, "big") == content
        assert (
            await stores.artifacts.read(CONTEXT, "big", start=start - 2, size=5)
            == (content[start - 2 : start + 3])
        )

    async def test_another_process_may_complete_what_one_began(self, stores: Stores) -> None:
        """The hash covers the whole content, whichever turn wrote it."""
        content = a_content(150_000)
        other = stores.for_tenant(stores.tenant)
        await stores.artifacts.open(CONTEXT, "big")
        await stores.artifacts.append(CONTEXT, "big", content[:100_000])
        await other.artifacts.append(CONTEXT, "big", content[100_000:])
        done = await stores.artifacts.complete(CONTEXT, "big")
        assert done.sha256 == hashlib.sha256(content).hexdigest()
        assert await other.artifacts.load(CONTEXT, "big") == content

    async def test_a_version_that_is_not_complete_is_read_by_its_number(
        self, stores: Stores
    ) -> None:
        """Without a number, the newest complete version is read."""
        await stores.artifacts.open(CONTEXT, "doc")
        await stores.artifacts.append(CONTEXT, "doc", b"half")
        with pytest.raises(ArtifactNotFound):
            await stores.artifacts.load(CONTEXT, "doc")
        assert await stores.artifacts.load(CONTEXT, "doc", 1) == b"half"
        await stores.artifacts.complete(CONTEXT, "doc")
        await stores.artifacts.open(CONTEXT, "doc")
        assert await stores.artifacts.load(CONTEXT, "doc") == b"half"
        assert (await stores.artifacts.get(CONTEXT, "doc")).status == "building"
        assert (await stores.artifacts.get(CONTEXT, "doc", 1)).status == "complete"

    async def test_a_version_can_be_given_up(self, stores: Stores) -> None:
        """Its content stays readable by its number; the next version begins again."""
        await stores.artifacts.open(CONTEXT, "doc")
        await stores.artifacts.append(CONTEXT, "doc", b"half")
        failed = await stores.artifacts.fail(CONTEXT, "doc")
        assert (failed.status, failed.size, failed.sha256) == ("failed", 4, "")
        assert await stores.artifacts.load(CONTEXT, "doc", 1) == b"half"
        with pytest.raises(StoreConflict):
            await stores.artifacts.append(CONTEXT, "doc", b"more")
        assert (await stores.artifacts.open(CONTEXT, "doc")).version == 2

    async def test_a_new_version_fails_the_one_that_was_being_built(self, stores: Stores) -> None:
        """Its writer finds out with the next piece."""
        await stores.artifacts.open(CONTEXT, "doc")
        await stores.artifacts.append(CONTEXT, "doc", b"lost")
        await stores.artifacts.save(CONTEXT, "doc", b"new")
        for version in (None, 1):
            with pytest.raises(StoreConflict):
                await stores.artifacts.append(CONTEXT, "doc", b"more", version=version)
        versions = await stores.artifacts.versions(CONTEXT, "doc")
        told = [(one.version, one.status) for one in versions]
        assert told == [(1, ArtifactStatus.FAILED), (2, ArtifactStatus.COMPLETE)]
        assert (await stores.artifacts.get(CONTEXT, "doc", 1)).status == "failed"

    async def test_a_completed_version_takes_no_piece(self, stores: Stores) -> None:
        """Nor completed or given up again; the content stays."""
        await stores.artifacts.save(CONTEXT, "doc", b"whole")
        for late in (
            stores.artifacts.append(CONTEXT, "doc", b"more"),
            stores.artifacts.append(CONTEXT, "doc", b"", last=True),
            stores.artifacts.complete(CONTEXT, "doc"),
            stores.artifacts.fail(CONTEXT, "doc"),
        ):
            with pytest.raises(StoreConflict):
                await late
        assert await stores.artifacts.load(CONTEXT, "doc") == b"whole"

    async def test_pieces_of_the_wrong_kind_are_refused(self, stores: Stores) -> None:
        """A data artifact takes none, a file no rows, a dataset no text; nothing is written."""
        await stores.artifacts.save(CONTEXT, "data", {"a": 1})
        await stores.artifacts.open(CONTEXT, "file")
        await stores.artifacts.open(CONTEXT, "rows", kind="dataset", columns=_COLUMNS)
        wrong: list[tuple[str, Any, str]] = [
            ("data", b"x", "/kind"),
            ("file", [{"n": 1}], "/chunk"),
            ("rows", "text", "/chunk"),
        ]
        for name, chunk, path in wrong:
            with refuses(ValueRefused, path=path):
                await stores.artifacts.append(CONTEXT, name, chunk)
        with refuses(ValueRefused, path="/kind"):
            await stores.artifacts.open(CONTEXT, "more", kind="data")
        assert [one.size for one in await stores.artifacts.list(CONTEXT)] == [7, 0, 0]

    async def test_an_unknown_artifact_takes_no_piece(self, stores: Stores) -> None:
        """An unknown context, artifact or version."""
        await stores.artifacts.open(CONTEXT, "doc")
        for context_id, artifact_id, version in (
            ("nobody", "doc", None),
            (CONTEXT, "other", None),
            (CONTEXT, "doc", 2),
            (CONTEXT, "\ud800", None),
            ("not an id", "doc", None),
        ):
            with pytest.raises(ArtifactNotFound):
                await stores.artifacts.append(context_id, artifact_id, b"x", version=version)
        assert await stores.state.load("nobody") is None

    async def test_a_dataset_keeps_rows_and_columns(self, stores: Stores) -> None:
        """Equal rows come back in order; a value may be null or absent."""
        rows: list[dict[str, Any]] = [_ROW, {"n": None}, {}, {"score": 2}]
        saved = await stores.artifacts.save(CONTEXT, "t", rows, columns=_COLUMNS)
        assert (saved.kind, saved.rows, saved.columns) == (ArtifactKind.DATASET, 4, _COLUMNS)
        assert await stores.artifacts.load(CONTEXT, "t") == rows
        assert await stores.artifacts.rows(CONTEXT, "t", after=1, limit=2) == rows[1:3]
        assert await stores.artifacts.rows(CONTEXT, "t", after=9) == []
        assert (await stores.artifacts.get(CONTEXT, "t")) == saved

    async def test_a_dataset_grows_by_rows(self, stores: Stores) -> None:
        """Rows are found by their number, whichever part holds them."""
        rows = [{"n": n, "name": "x" * 997} for n in range(300)]
        await stores.artifacts.open(CONTEXT, "t", kind="dataset", columns=_COLUMNS)
        for start in range(0, 300, 50):
            grown = await stores.artifacts.append(CONTEXT, "t", rows[start : start + 50])
            assert grown.rows == start + 50
        done = await stores.artifacts.complete(CONTEXT, "t")
        assert (done.rows, done.status) == (300, "complete")
        assert await stores.artifacts.load(CONTEXT, "t") == rows
        for after, limit in ((0, 1), (60, 20), (99, 3), (298, 100), (300, 1)):
            found = await stores.artifacts.rows(CONTEXT, "t", after=after, limit=limit)
            assert found == rows[after : after + limit]

    @for_each(_BROKEN_ROWS)
    async def test_a_row_that_breaks_the_columns_is_refused(
        self, stores: Stores, row: Any, path: str
    ) -> None:
        """By its number and its column, with all rows beside it."""
        await stores.artifacts.open(CONTEXT, "t", kind="dataset", columns=_COLUMNS)
        with refuses(ValueRefused, path=f"/chunk{path}"):
            await stores.artifacts.append(CONTEXT, "t", [_ROW, row])
        assert (await stores.artifacts.get(CONTEXT, "t")).rows == 0

    @for_each([None, {}, {"a": "text"}, {"": "any"}, {"\0": "any"}])
    async def test_a_dataset_needs_columns(self, stores: Stores, columns: Any) -> None:
        """At least one, each of a type that is known."""
        with pytest.raises(ValueRefused) as refused:
            await stores.artifacts.open(CONTEXT, "t", kind="dataset", columns=columns)
        assert (refused.value.path or "").startswith("/columns")
        assert await stores.state.load(CONTEXT) is None

    async def test_an_artifact_can_be_described(self, stores: Stores) -> None:
        """A sentence and a JSON object, of each version its own."""
        metadata = {"source": {"page": 7}, "é": None}
        saved = await stores.artifacts.save(
            CONTEXT, "doc", b"x", description="Sales, 2026", metadata=metadata
        )
        assert (saved.description, saved.metadata) == ("Sales, 2026", metadata)
        assert await stores.artifacts.list(CONTEXT) == [saved]
        plain = await stores.artifacts.save(CONTEXT, "doc", b"y")
        assert (plain.description, plain.metadata) == (None, {})
        assert await stores.artifacts.versions(CONTEXT, "doc") == [saved, plain]
        for field, wrong in (("description", "\0"), ("metadata", {"a": float("nan")})):
            value: dict[str, Any] = {field: wrong}
            with pytest.raises(ValueRefused) as refused:
                await stores.artifacts.save(CONTEXT, "doc", b"z", **value)
            assert (refused.value.path or "").startswith(f"/{field}")

    async def test_the_list_is_filtered_and_paged(self, stores: Stores) -> None:
        """By turn, kind and status of the newest version; by id, from one on."""
        await stores.artifacts.save(CONTEXT, "a", b"x")
        await stores.artifacts.save(CONTEXT, "b", {"x": 1})
        await a_turn(stores)
        await stores.artifacts.open(CONTEXT, "c")
        await stores.artifacts.save(CONTEXT, "d", [], columns=_COLUMNS)

        async def names(**wanted: Any) -> list[str]:
            return [one.artifact_id for one in await stores.artifacts.list(CONTEXT, **wanted)]

        assert await names(turn=1) == ["c", "d"]
        assert await names(kind="data") == ["b"]
        assert await names(kind=ArtifactKind.FILE, status="complete") == ["a"]
        assert await names(status="building") == ["c"]
        assert await names(limit=2) == ["a", "b"]
        assert await names(after="b", limit=1) == ["c"]
        assert await names(after="d") == []
        for field in ("kind", "status"):
            with refuses(ValueRefused, path=f"/{field}"):
                await names(**{field: "odd"})

    async def test_pieces_that_are_appended_at_once_keep_their_order(self, stores: Stores) -> None:
        """Each artifact changes by itself, in the order in which changes were requested."""
        async with asyncio.TaskGroup() as group:
            for name in ("a", "b"):
                group.create_task(stores.artifacts.open(CONTEXT, name))
            for n in range(8):
                for name in ("a", "b"):
                    group.create_task(stores.artifacts.append(CONTEXT, name, f"{n} "))
            for name in ("a", "b"):
                group.create_task(stores.artifacts.complete(CONTEXT, name))
        for name in ("a", "b"):
            assert await stores.artifacts.load(CONTEXT, name) == b"0 1 2 3 4 5 6 7 "

    async def test_a_refused_piece_holds_up_no_other(self, stores: Stores) -> None:
        """Its error is its caller's."""
        await stores.artifacts.open(CONTEXT, "t", kind="dataset", columns=_COLUMNS)
        chunks: list[Any] = [[{"n": 1}], [{"n": "bad"}], [{"n": 2}]]
        appended = (stores.artifacts.append(CONTEXT, "t", chunk) for chunk in chunks)
        one, refused, other = await asyncio.gather(*appended, return_exceptions=True)
        assert isinstance(refused, ValueRefused)
        assert not isinstance(one, BaseException)
        assert not isinstance(other, BaseException)
        assert await stores.artifacts.load(CONTEXT, "t", 1) == [{"n": 1}, {"n": 2}]

    async def test_writers_that_share_no_object_lose_no_piece(self, stores: Stores) -> None:
        """As two processes do: each piece is there once."""
        others = [stores.for_tenant(stores.tenant) for _ in range(4)]
        await stores.artifacts.open(CONTEXT, "log")
        async with asyncio.TaskGroup() as group:
            for n, other in enumerate(others * 2):
                group.create_task(other.artifacts.append(CONTEXT, "log", f"{n};"))
        log = await stores.artifacts.load(CONTEXT, "log", 1)
        assert isinstance(log, bytes)
        assert sorted(log.decode().split(";")) == ["", *map(str, range(8))]

    async def test_equal_content_of_two_artifacts_outlives_either(self, stores: Stores) -> None:
        """However it is shared: deleting one leaves the other, also in another context."""
        content = a_content(200_000)
        for context_id, name in ((CONTEXT, "a"), (CONTEXT, "b"), ("other", "a")):
            await stores.artifacts.save(context_id, name, content)
        await stores.artifacts.delete(CONTEXT, "a")
        assert await stores.artifacts.load(CONTEXT, "b") == content
        await stores.state.delete(CONTEXT)
        assert await stores.artifacts.load("other", "a") == content
        await stores.journal.clear("other")
        with pytest.raises(ArtifactNotFound):
            await stores.artifacts.load("other", "a")

    async def test_a_deleted_large_artifact_begins_again_at_version_1(self, stores: Stores) -> None:
        """A later save begins again at version 1."""
        await stores.artifacts.save(CONTEXT, "doc", a_content(200_000))
        await stores.artifacts.delete(CONTEXT, "doc")
        assert (await stores.artifacts.save(CONTEXT, "doc", b"new")).version == 1
        assert await stores.artifacts.load(CONTEXT, "doc") == b"new"
        assert await stores.artifacts.collect(0) == 0

    async def test_another_tenant_reads_no_large_content(self, stores: Stores) -> None:
        """Equal content is its own, too."""
        content = a_content(200_000)
        other = stores.for_tenant("other")
        await stores.artifacts.save(CONTEXT, "doc", content)
        for read in (
            other.artifacts.read(CONTEXT, "doc"),
            other.artifacts.get(CONTEXT, "doc"),
            other.artifacts.versions(CONTEXT, "doc"),
            other.artifacts.complete(CONTEXT, "doc"),
        ):
            with pytest.raises(ArtifactNotFound):
                await read
        await other.artifacts.save(CONTEXT, "doc", content)
        await stores.artifacts.delete(CONTEXT, "doc")
        assert await other.artifacts.load(CONTEXT, "doc") == content


def a_content(size: int) -> bytes:
    """Bytes of which no two places are alike."""
    return b"".join(n.to_bytes(4, "big") for n in range(size // 4 + 1))[:size]
