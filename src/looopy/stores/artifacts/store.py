"""`ArtifactStore` on the rows of a backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from looopy._failpoints import reach
from looopy.errors import Fenced, StoreConflict, StoreError, ValueRefused
from looopy.stores.artifacts.changes import Changes, Prepared
from looopy.stores.artifacts.parts import HELD_S, LARGE, Parts, drop
from looopy.stores.artifacts.requests import Described, to_delete, to_open, to_save
from looopy.stores.artifacts.rows import ArtifactRows, StoredVersion
from looopy.stores.base import ArtifactStore
from looopy.stores.blobs.base import Blobs
from looopy.stores.records import ArtifactChange, ArtifactDeletion, ArtifactMoved
from looopy.stores.requests import Append, Delete, Fail, Request, Save
from looopy.stores.rules import (
    artifact_filter,
    check_context_id,
    is_artifact_id,
    is_context_id,
    no_artifact,
)
from looopy.stores.shield import settle
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus, Chunk, Content, Loaded
from looopy.types.storable import (
    check_after_name,
    check_limit,
    check_number,
    check_text,
    check_turn,
    check_version,
)

if TYPE_CHECKING:
    from looopy.stores.artifacts.staged import StagedRows

_TRIES = 100
_SHARDS = 256
_TIDY_S = 60.0  # between two looks for orphans on the way


class Artifacts(ArtifactStore):
    """
    An `ArtifactStore` on the rows of a backend; see there for the contract.

    Args:
        rows: The rows.
        tenant: Whose they are.
        blobs: Takes the parts; `None`: the rows take them.
    """

    def __init__(self, rows: ArtifactRows, tenant: str, blobs: Blobs | None) -> None:
        self._rows = rows
        self._parts = Parts(rows, tenant, blobs)
        self._changes = Changes(self._parts)
        self._lines: dict[tuple[str, str], _Line] = {}
        self._tidied = time.monotonic()
        self._shard = os.urandom(1)[0]

    async def save(
        self,
        context_id: str,
        artifact_id: str,
        content: Content,
        *,
        kind: ArtifactKind | str | None = None,
        **described: Unpack[Described],
    ) -> Artifact:
        """Save the next version."""
        return await self.change(context_id, to_save(artifact_id, content, kind, **described))

    async def open(
        self,
        context_id: str,
        artifact_id: str,
        *,
        kind: ArtifactKind | str = ArtifactKind.FILE,
        **described: Unpack[Described],
    ) -> Artifact:
        """Begin the next version."""
        return await self.change(context_id, to_open(artifact_id, kind, **described))

    async def append(
        self,
        context_id: str,
        artifact_id: str,
        chunk: Chunk,
        *,
        version: int | None = None,
        last: bool = False,
    ) -> Artifact:
        """Append to the version that is being built."""
        request = Append(artifact_id=artifact_id, chunk=chunk, version=version, last=last)
        return await self.change(context_id, request)

    async def complete(
        self, context_id: str, artifact_id: str, *, version: int | None = None
    ) -> Artifact:
        """End the version that is being built."""
        return await self.append(context_id, artifact_id, b"", version=version, last=True)

    async def fail(
        self, context_id: str, artifact_id: str, *, version: int | None = None
    ) -> Artifact:
        """Give the version that is being built up."""
        return await self.change(context_id, Fail(artifact_id=artifact_id, version=version))

    async def delete(self, context_id: str, artifact_id: str) -> None:
        """Remove all versions."""
        await self.change(context_id, to_delete(artifact_id))

    async def change(
        self,
        context_id: str,
        request: Request,
        commit: Callable[[ArtifactChange], Awaitable[Artifact]] | None = None,
    ) -> Artifact:
        """
        Make a change, after all that were requested before it.

        A caller that is cancelled while parts are written leaves orphans. Once a commit has begun,
        its end is waited for.

        Args:
            commit: Makes the commit; by default it is one outside of turns.
        """
        if isinstance(request, Save):
            check_context_id(context_id)
        elif not (is_context_id(context_id) and is_artifact_id(request.artifact_id)):
            raise no_artifact(request.artifact_id)
        elif not isinstance(request, Delete):
            check_version(request.version)
        async with self._in_line(context_id, request.artifact_id):
            for attempt in range(_TRIES):
                prepared = await self._changes.prepare(context_id, request, share=attempt == 0)
                done = await settle(self._commit(context_id, prepared, commit))
                if done is not None:
                    return done
        raise StoreConflict("others keep changing this artifact: try again")

    async def _commit(
        self,
        context_id: str,
        prepared: Prepared,
        commit: Callable[[ArtifactChange], Awaitable[Artifact]] | None,
    ) -> Artifact | None:
        """Commit a change; `None` if it has to be prepared again."""
        try:
            if commit is None:
                done = await self._rows.apply(context_id, prepared.change)
            else:
                done = await commit(prepared.change)
        except (ArtifactMoved, Fenced) as refused:
            await self._take_back(prepared.change)
            if isinstance(refused, Fenced):
                raise
            return None
        reach("A4")
        await self._done(context_id, done, prepared)
        return done

    @contextlib.asynccontextmanager
    async def _in_line(self, context_id: str, artifact_id: str) -> AsyncIterator[None]:
        key = (context_id, artifact_id)
        line = self._lines.setdefault(key, _Line())
        line.users += 1
        try:
            async with line.lock:
                yield
        finally:
            line.users -= 1
            if not line.users:
                self._lines.pop(key, None)

    async def _take_back(self, change: ArtifactChange) -> None:
        """
        Remove the bytes of a change that was refused.

        The context may have been erased, and then they are not to stay for a day.
        """
        if self._parts.blobs is None or isinstance(change, ArtifactDeletion):
            return
        names = [part.blob for part in change.parts if part.blob is not None and not part.shared]
        with contextlib.suppress(StoreError):  # what is left is an orphan
            await drop(self._rows, self._parts.tenant, self._parts.blobs, names, held=True)

    async def _done(self, context_id: str, artifact: Artifact, prepared: Prepared) -> None:
        self._changes.done(context_id, artifact, prepared)
        with contextlib.suppress(StoreError):  # the commit is made; what is left is an orphan
            change = prepared.change
            if self._parts.blobs is not None and isinstance(change, ArtifactDeletion):
                await drop(self._rows, self._parts.tenant, self._parts.blobs, change.freed)
            if time.monotonic() - self._tidied > _TIDY_S:
                self._tidied = time.monotonic()
                self._shard = (self._shard + 1) % _SHARDS
                await self.collect(HELD_S, f"/{self._shard:02x}")

    # --- reading ---

    async def get(self, context_id: str, artifact_id: str, version: int | None = None) -> Artifact:
        """Describe a version."""
        check_version(version)
        found = None
        if is_artifact_id(artifact_id):
            found = await self._rows.peek(context_id, artifact_id, version)
        if found is None:
            raise no_artifact(artifact_id, version)
        return found.artifact

    async def load(self, context_id: str, artifact_id: str, version: int | None = None) -> Loaded:
        """The whole content."""
        found = await self._find(context_id, artifact_id, version)
        if found.text is not None:
            data: dict[str, Any] = json.loads(found.text)
            return data
        raw = b"".join([piece async for _, piece in self._parts.pieces(context_id, found)])
        if found.artifact.kind is ArtifactKind.FILE:
            return raw
        whole = partial(_content_of, raw, found.artifact.kind)
        return whole() if len(raw) < LARGE else await asyncio.to_thread(whole)

    async def stream(
        self, context_id: str, artifact_id: str, *, version: int | None = None
    ) -> AsyncIterator[bytes]:
        """The content in pieces."""
        found = await self._find(context_id, artifact_id, version)
        async for _, piece in self._parts.pieces(context_id, found):
            yield piece

    async def read(
        self,
        context_id: str,
        artifact_id: str,
        *,
        start: int = 0,
        size: int | None = None,
        version: int | None = None,
    ) -> bytes:
        """A range of bytes."""
        check_number(start, "/start", "pass the first byte to read, from 0", least=0)
        if size is not None:
            check_number(size, "/size", "pass how many bytes to read, or None for all", least=0)
        found = await self._find(context_id, artifact_id, version)
        end = found.artifact.size if size is None else min(start + size, found.artifact.size)
        wanted: list[bytes] = []
        if start < end:
            async for at, piece in self._parts.pieces(context_id, found, start=start):
                wanted.append(piece[max(0, start - at) : end - at])
                if at + len(piece) >= end:
                    break
        return b"".join(wanted)

    async def rows(
        self,
        context_id: str,
        artifact_id: str,
        *,
        after: int = 0,
        limit: int = 100,
        version: int | None = None,
    ) -> list[dict[str, Any]]:
        """Rows of a dataset."""
        check_number(after, "/after", "pass how many rows to leave out, from 0", least=0)
        check_limit(limit, optional=False)
        found = await self._find(context_id, artifact_id, version)
        if found.artifact.kind is not ArtifactKind.DATASET:
            raise ValueRefused(
                f"{artifact_id!r} is a {found.artifact.kind} artifact, not a dataset", path="/kind"
            )
        wanted: list[bytes] = []
        if limit and after < found.artifact.rows:
            async for first, piece in self._parts.pieces(context_id, found, row=after):
                lines = piece.split(b"\n")[:-1]
                wanted += lines[max(0, after - first) : after + limit - first]
                if len(wanted) >= limit:
                    break
        return [json.loads(line) for line in wanted]

    async def versions(self, context_id: str, artifact_id: str) -> list[Artifact]:
        """All versions, oldest first."""
        found: list[Artifact] = []
        if is_artifact_id(artifact_id):
            found = await self._rows.all_versions(context_id, artifact_id)
        if not found:
            raise no_artifact(artifact_id)
        return found

    async def list(
        self,
        context_id: str,
        *,
        turn: int | None = None,
        kind: ArtifactKind | str | None = None,
        status: ArtifactStatus | str | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[Artifact]:
        """The newest version of each."""
        check_turn(turn)
        check_after_name(after)
        check_text(after, "/after")
        check_limit(limit)
        return await self._rows.newest(
            context_id,
            turn=turn,
            kind=artifact_filter(ArtifactKind, kind, "/kind"),
            status=artifact_filter(ArtifactStatus, status, "/status"),
            after=after,
            limit=limit,
        )

    async def _find(self, context_id: str, artifact_id: str, version: int | None) -> StoredVersion:
        """A version to read, by default the newest complete one; or `ArtifactNotFound`."""
        check_version(version)
        found = None
        if is_artifact_id(artifact_id):
            if version is None:
                found = await self._rows.complete_one(context_id, artifact_id)
            else:
                found = await self._rows.peek(context_id, artifact_id, version)
        if found is None:
            raise no_artifact(artifact_id, version)
        return found

    def stage(self) -> StagedArtifacts:
        """The same store for changes that wait for a commit; see `Stores.stage_artifacts`."""
        from looopy.stores.artifacts.staged import StagedRows  # few turns need it

        return StagedArtifacts(StagedRows(self._rows), self._parts.tenant, self._parts.blobs)

    # --- orphans ---

    async def collect(self, grace_s: float, shard: str = "") -> int:
        """Remove orphans, and return how many; *shard*: only in this part of the tenant's room."""
        return await self._parts.collect(grace_s, shard)


class StagedArtifacts(Artifacts):
    """See `StagedArtifactStore`."""

    def __init__(self, rows: StagedRows, tenant: str, blobs: Blobs | None) -> None:
        super().__init__(rows, tenant, blobs)
        self._staged = rows

    async def hold(self, context_id: str, change: ArtifactChange, *, turn: int) -> Artifact:
        """Keep a change; reads see it from now on."""
        return await self._staged.hold(context_id, change, turn=turn)

    async def renew(self, changes: Sequence[ArtifactChange]) -> str | None:
        """Hold the parts of waiting changes for another day."""
        return await self._staged.renew(changes, HELD_S)


class _Line:
    """The changes of one artifact that wait for each other."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


def _content_of(raw: bytes, kind: ArtifactKind) -> Loaded:
    if kind is ArtifactKind.DATASET:
        return _lines(raw)
    data: dict[str, Any] = json.loads(raw)
    return data


def _lines(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in raw.split(b"\n") if line]
