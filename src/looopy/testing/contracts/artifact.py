"""The contract of an `ArtifactStore`; see `looopy.testing.stores`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from looopy.errors import ArtifactNotFound, ValueRefused
from looopy.stores.bundle import Stores
from looopy.testing import hostile
from looopy.testing.contracts.turns import CONTEXT, Contract, a_turn, at_once, refuses, user
from looopy.types.artifact import ArtifactKind, ArtifactStatus

_BYTES = bytes(range(256)) * 8


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

    async def test_nothing_is_content_too(self, stores: Stores) -> None:
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

    async def test_what_is_not_there_is_not_found(self, stores: Stores) -> None:
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

    @pytest.mark.parametrize("artifact_id", ["", "x" * 257, "a\nb", "a\0", "\x9b", "\ud800"])
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

    @pytest.mark.parametrize("name", hostile.REFUSED)
    async def test_data_that_cannot_be_kept_is_refused(self, stores: Stores, name: str) -> None:
        """The error has the value's path, and nothing is written."""
        with pytest.raises(ValueRefused) as refused:
            await stores.artifacts.save(CONTEXT, "doc", {"v": hostile.REFUSED[name]})
        assert (refused.value.path or "").startswith("/content/v")
        assert await stores.state.load(CONTEXT) is None

    @pytest.mark.parametrize("name", hostile.KEPT)
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
