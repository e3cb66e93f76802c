"""
The contents of artifacts in an artifact store of an application's own, or in its state store.

Each version is kept under a name of its own, so a content that a step without effect has left is
overwritten or read by no context.
"""

from __future__ import annotations

from typing import Any

from looopy.stores.artifacts.parts import INLINE_BYTES, stored_parts
from looopy.stores.artifacts.rows import StoredPart, Version
from looopy.stores.memory.context import StoredContext
from looopy.stores.plain.calls import Calls
from looopy.stores.plain.documents import content_document, content_key
from looopy.stores.plain.state import OwnState
from looopy.types.artifact import ArtifactKind, ArtifactStatus


class OwnContents:
    """
    An artifact store of an application's own; without one, the state store has the contents.

    Raises:
        ConfigurationError: It lacks a method that it needs.
    """

    def __init__(self, store: object | None, state: OwnState) -> None:
        self.calls = None if store is None else Calls(store, "artifacts", "save", "load")
        self._state = state

    async def save(self, key: str, name: str, version: Version) -> None:
        """Keep the content of a version."""
        content = (
            version.text.encode()
            if version.text is not None
            else b"".join(part.data or b"" for part in version.parts) + version.tail
        )
        if self.calls is not None:
            await self.calls("save", key, name, content)
        else:
            document = {"content": content.decode("latin-1")}
            await self._state.calls("save", content_document(key, name), document)

    async def fill(self, key: str, name: str, version: Version) -> None:
        """
        Bring the content of a version into memory.

        Raises:
            StoreUnavailable: The store failed, or has less than was saved.
        """
        content = await self._load(key, name, version.artifact.size)
        kind = version.artifact.kind
        if kind is ArtifactKind.DATA and len(content) <= INLINE_BYTES:
            version.text = content.decode()
            return
        parts: list[StoredPart] = []
        for part, tail in stored_parts(iter([content]), is_rows=kind is ArtifactKind.DATASET):
            if part is None:
                version.tail = tail
            else:
                parts.append(part)
        version.parts = parts

    async def _load(self, key: str, name: str, size: int) -> bytes:
        content: Any
        if self.calls is None:
            calls = self._state.calls
            found = await self._state.document(content_document(key, name))
            content = None if found is None else found["content"].encode("latin-1")
        else:
            calls, content = self.calls, await self.calls("load", key, name)
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise calls.wrong("load", f"returned {type(content).__name__} for {name!r}, not bytes")
        if len(content) < size:
            raise calls.wrong("load", f"returned {len(content)} of the {size} bytes of {name!r}")
        return bytes(content[:size])  # a longer one was saved for a step that did not count

    async def remove(self, key: str, name: str) -> None:
        """Remove a content, if the store can."""
        if self.calls is None:
            await self._state.remove(content_document(key, name))
        elif self.calls.has("delete"):
            await self.calls("delete", key, name)


def contents_of(context: StoredContext) -> dict[str, tuple[int, ArtifactStatus]]:
    """The versions of a context by the names of their contents, as far as those may change."""
    return {
        content_key(artifact_id, one.artifact.version): (one.artifact.size, one.artifact.status)
        for artifact_id, versions in context.artifacts.items()
        for one in versions
    }
