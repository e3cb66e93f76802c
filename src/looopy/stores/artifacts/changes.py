"""A request becomes a change: the parts are stored, the row is known, the commit is left to do."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import Any, NamedTuple

from looopy.errors import StoreConflict, ValueRefused
from looopy.stores.artifacts.parts import INLINE_BYTES, Parts, digest_of, update
from looopy.stores.artifacts.rows import StoredVersion
from looopy.stores.records import (
    ArtifactChange,
    ArtifactDeletion,
    ArtifactGrowth,
    ArtifactPart,
    ArtifactWrite,
)
from looopy.stores.requests import Append, Delete, Fail, Request, Save
from looopy.stores.rules import checked_chunk, checked_rows, is_artifact_id, no_artifact
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus

_MOST_HASHES = 256


class Prepared(NamedTuple):
    """A change, with the hash of the content after it."""

    change: ArtifactChange
    hashed: Any = None


class Changes:
    """Makes changes of requests; *parts* stores and reads the parts of a content."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rows = parts.rows
        # Unfinished versions: how many bytes were hashed, and the hash so far.
        self._hashes: OrderedDict[tuple[str, str, int], tuple[int, Any]] = OrderedDict()

    async def prepare(self, context_id: str, request: Request, *, share: bool) -> Prepared:
        """
        The change that *request* asks for, as the artifact is now; new parts are stored already.

        Args:
            share: Let a new part take over the name of an equal one.
        """
        if isinstance(request, Save):
            return await self._save(request, share=share)
        if isinstance(request, Delete):
            return Prepared(ArtifactDeletion(artifact_id=request.artifact_id))
        found = await self._building(context_id, request.artifact_id, request.version)
        if isinstance(request, Fail):
            grown = _grown(found, status=ArtifactStatus.FAILED)
            return Prepared(grown)
        return await self._append(context_id, found, request, share=share)

    async def _save(self, request: Save, *, share: bool) -> Prepared:
        content = request.content
        raw = content.encode() if isinstance(content, str) else content
        parts: list[ArtifactPart] = []
        stored: str | bytes = content
        if len(raw) > INLINE_BYTES:
            is_rows = request.kind is ArtifactKind.DATASET
            parts, stored = await self._parts.cut(raw, is_rows=is_rows, share=share)
        is_open = request.status is ArtifactStatus.BUILDING
        write = ArtifactWrite(
            artifact_id=request.artifact_id,
            kind=request.kind,
            stored=stored,
            media_type=request.media_type,
            parts=parts,
            status=request.status,
            size=len(raw),
            sha256="" if is_open else await digest_of(raw),
            rows=request.rows,
            description=request.description,
            metadata=request.metadata,
            columns=request.columns,
        )
        return Prepared(write, hashed=hashlib.sha256() if is_open else None)

    async def _append(
        self, context_id: str, found: StoredVersion, request: Append, *, share: bool
    ) -> Prepared:
        old = found.artifact
        if old.columns is None:
            new, rows = checked_chunk(request.chunk), 0
        else:
            new, rows = checked_rows(request.chunk, old.columns, "/chunk")
        tail = found.tail + new if found.tail else new
        parts: list[ArtifactPart] = []
        if len(tail) > INLINE_BYTES:
            parts, tail = await self._parts.cut(tail, is_rows=old.columns is not None, share=share)
        hashed = self._hash_so_far(context_id, old)
        if hashed is None and request.last:
            hashed = await self._hash_again(context_id, found)
        if hashed is not None:
            await update(hashed, new)
        grown = _grown(
            found,
            parts=tuple(parts),
            tail=bytes(tail),
            size=old.size + len(new),
            rows=old.rows + rows,
            part_count=found.part_count + len(parts),
        )
        if request.last and hashed is not None:
            digest = hashed.hexdigest()
            grown = replace(grown, status=ArtifactStatus.COMPLETE, sha256=digest)
        return Prepared(grown, hashed=hashed)

    async def _building(
        self, context_id: str, artifact_id: str, version: int | None
    ) -> StoredVersion:
        """The version that is being built; errors as `ArtifactStore.append`."""
        found = None
        if is_artifact_id(artifact_id):
            found = await self._rows.peek(context_id, artifact_id, version)
        if found is None:
            raise no_artifact(artifact_id, version)
        one = found.artifact
        if one.kind is ArtifactKind.DATA:
            raise ValueRefused(
                f"{artifact_id!r} is a data artifact, which is saved whole", path="/kind"
            )
        if one.status is not ArtifactStatus.BUILDING:
            state = "complete" if one.status is ArtifactStatus.COMPLETE else "given up"
            raise StoreConflict(
                f"version {one.version} of artifact {artifact_id!r} is {state}:"
                " open the next version"
            )
        return found

    def done(self, context_id: str, artifact: Artifact, prepared: Prepared) -> None:
        """Keep the hash of a version that is still being built."""
        key = (context_id, artifact.artifact_id, artifact.version)
        self._hashes.pop(key, None)
        if prepared.hashed is not None and artifact.status is ArtifactStatus.BUILDING:
            self._hashes[key] = (artifact.size, prepared.hashed)
            while len(self._hashes) > _MOST_HASHES:
                self._hashes.popitem(last=False)

    def _hash_so_far(self, context_id: str, artifact: Artifact) -> Any:
        """The hash of what is there, if this process has written all of it."""
        key = (context_id, artifact.artifact_id, artifact.version)
        size, hashed = self._hashes.get(key, (-1, None))
        return hashed.copy() if hashed is not None and size == artifact.size else None

    async def _hash_again(self, context_id: str, found: StoredVersion) -> Any:
        hashed = hashlib.sha256()
        async for _, piece in self._parts.pieces(context_id, found):
            await update(hashed, piece)
        return hashed


def _grown(found: StoredVersion, **changes: Any) -> ArtifactGrowth:
    one = found.artifact
    same = ArtifactGrowth(
        artifact_id=one.artifact_id,
        version=one.version,
        size_before=one.size,
        tail=found.tail,
        size=one.size,
        rows=one.rows,
        part_count=found.part_count,
    )
    return replace(same, **changes)
