"""The artifacts of a turn's tools: the `ArtifactWriter` of a stored turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeVar, Unpack, cast

from looopy.auth.redaction import Redactor
from looopy.stores.artifacts.requests import Described, to_delete, to_open, to_save
from looopy.stores.base import ArtifactStore
from looopy.stores.records import ArtifactChange
from looopy.stores.requests import Append, Fail, Request, Save
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus, Chunk, Content, Loaded
from looopy.types.storable import repair, repair_piece

C = TypeVar("C", bound=Content | Chunk)
_logger = logging.getLogger("looopy")


class TurnArtifacts:
    """
    The artifacts of a context, as one turn's tools see them.

    A tool that times out or is cancelled first waits for the end of a commit that it has begun, but
    for no upload.

    Args:
        commit: Commits a change together with its event, as a step of the turn, or keeps both until
            the turn is saved (`auto_save=False`). `None`: the artifact alone is changed, at once
            and without an owner.
        redactor: Knows the secrets that no artifact may hold.
        seen: Takes the names of the artifacts that the tools read: a later version of one may
            repeat what they read.
    """

    def __init__(
        self,
        artifacts: ArtifactStore,
        context_id: str,
        commit: Callable[[ArtifactChange], Awaitable[Artifact]] | None,
        *,
        redactor: Redactor,
        seen: set[str],
    ) -> None:
        self._seen = seen
        self._halves: dict[str, str] = {}  # of a character, at the end of what was appended
        self._artifacts = artifacts
        self._context_id = context_id
        self._commit = commit
        self._redactor = redactor

    async def save(
        self,
        artifact_id: str,
        content: Content,
        *,
        kind: ArtifactKind | str | None = None,
        **described: Unpack[Described],
    ) -> Artifact:
        """Save a new version."""
        if isinstance(content, str):
            content = self._whole(artifact_id, content, last=True)
        self._redactor.refuse(artifact_id=artifact_id, content=content, **described)
        return await self._change(to_save(artifact_id, content, kind, **described))

    def open(
        self,
        artifact_id: str,
        *,
        kind: ArtifactKind | str = ArtifactKind.FILE,
        **described: Unpack[Described],
    ) -> OpenVersion:
        """Write a new version piece by piece; the end of the block completes it."""
        self._redactor.refuse(artifact_id=artifact_id, **described)
        return OpenVersion(self, to_open(artifact_id, kind, **described))

    async def append(
        self, artifact_id: str, chunk: Chunk, *, version: int | None = None, last: bool = False
    ) -> Artifact:
        """Append to the version that is being built."""
        chunk = self._whole(artifact_id, chunk, last=last)
        self._redactor.refuse(artifact_id=artifact_id, chunk=chunk)
        return await self._change(
            Append(artifact_id=artifact_id, chunk=chunk, version=version, last=last)
        )

    async def complete(self, artifact_id: str, *, version: int | None = None) -> Artifact:
        """End the version that is being built."""
        return await self.append(artifact_id, b"", version=version, last=True)

    async def fail(self, artifact_id: str, *, version: int | None = None) -> Artifact:
        """Give the version that is being built up."""
        self._halves.pop(artifact_id, None)
        return await self._change(Fail(artifact_id=artifact_id, version=version))

    async def load(self, artifact_id: str, version: int | None = None) -> Loaded:
        """Load a version, the newest complete one by default."""
        self._seen.add(artifact_id)
        return await self._artifacts.load(self._context_id, artifact_id, version)

    async def read(
        self,
        artifact_id: str,
        *,
        start: int = 0,
        size: int | None = None,
        version: int | None = None,
    ) -> bytes:
        """Read a range of bytes."""
        self._seen.add(artifact_id)
        return await self._artifacts.read(
            self._context_id, artifact_id, start=start, size=size, version=version
        )

    def stream(self, artifact_id: str, *, version: int | None = None) -> AsyncIterator[bytes]:
        """Read the content in pieces."""
        self._seen.add(artifact_id)
        return self._artifacts.stream(self._context_id, artifact_id, version=version)

    async def rows(
        self, artifact_id: str, *, after: int = 0, limit: int = 100, version: int | None = None
    ) -> list[dict[str, Any]]:
        """Rows of a dataset."""
        self._seen.add(artifact_id)
        return await self._artifacts.rows(
            self._context_id, artifact_id, after=after, limit=limit, version=version
        )

    async def get(self, artifact_id: str, version: int | None = None) -> Artifact:
        """Describe a version, the newest by default."""
        return await self._artifacts.get(self._context_id, artifact_id, version)

    async def versions(self, artifact_id: str) -> list[Artifact]:
        """All versions, oldest first."""
        return await self._artifacts.versions(self._context_id, artifact_id)

    async def list(
        self,
        *,
        turn: int | None = None,
        kind: ArtifactKind | str | None = None,
        status: ArtifactStatus | str | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[Artifact]:
        """The newest version of each artifact."""
        return await self._artifacts.list(
            self._context_id, turn=turn, kind=kind, status=status, after=after, limit=limit
        )

    async def delete(self, artifact_id: str) -> None:
        """Remove all versions of an artifact."""
        self._redactor.refuse(artifact_id=artifact_id)
        await self._change(to_delete(artifact_id))

    def _whole(self, artifact_id: str, chunk: C, *, last: bool) -> C:
        """*chunk* as valid Unicode; half a character at its end waits for the next chunk."""
        half = self._halves.pop(artifact_id, "")
        if isinstance(chunk, str):
            text, half = repair_piece(half + chunk)
            if half and not last:
                self._halves[artifact_id] = half
            elif half:
                text += repair(half)
            return cast("C", text)
        return cast("C", repair(half).encode() + chunk) if isinstance(chunk, bytes) else chunk

    async def _change(self, request: Request) -> Artifact:
        return await self._artifacts.change(self._context_id, request, self._commit)

    async def begin(self, request: Save) -> Artifact:
        """Begin the version that `open` was called for."""
        return await self._change(request)


class OpenVersion:
    """
    A version that a tool is writing, `artifact` as the last call left it; see `TurnArtifacts.open`.
    """

    artifact: Artifact

    def __init__(self, writer: TurnArtifacts, request: Save) -> None:
        self._writer = writer
        self._request = request

    async def __aenter__(self) -> Self:
        self.artifact = await self._writer.begin(self._request)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        one = self.artifact
        if one.status is not ArtifactStatus.BUILDING:
            return
        if exc_type is None:
            self.artifact = await self._writer.complete(one.artifact_id, version=one.version)
            return
        try:
            self.artifact = await self._writer.fail(one.artifact_id, version=one.version)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - less than the first
            _logger.warning("an artifact could not be given up: %s", type(error).__name__)

    async def append(self, chunk: Chunk) -> Artifact:
        """Append a chunk; durable when this returns."""
        one = self.artifact
        self.artifact = await self._writer.append(one.artifact_id, chunk, version=one.version)
        return self.artifact
