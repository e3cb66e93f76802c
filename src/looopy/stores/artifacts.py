"""
Artifacts above the rows: how content is checked, cut into parts, hashed and read again.

The content of a version is its parts, in order, followed by its tail. The tail is at most 64 KiB
and lies in the version's row; a part is at most 8 MiB and lies in the blob store, or in the
database if that has no blob store. So an append costs what it adds, and no step holds more than a
part of a large artifact in memory. A part is written before the commit with the row that names it.
Each part is read whole and compared with its hash before a byte of it is returned.

Equal parts of a tenant are stored once. A part may take over the name in another row only if the
commit still finds that row and locks it, so a deletion on the way cannot remove the bytes. A part
that no row names is an orphan: of a write that was cut short, or refused. It is removed after a
grace time, and a commit that comes later than half of that time is refused.

All changes of one artifact wait in one line, in order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from looopy._failpoints import reach
from looopy.errors import ArtifactDamaged, StoreConflict, StoreError, ValueRefused
from looopy.stores.blobs.base import Blobs, name_of, new_name, path_of, room_of
from looopy.stores.records import (
    ArtifactChange,
    ArtifactDeletion,
    ArtifactGrowth,
    ArtifactMoved,
    ArtifactPart,
    ArtifactWrite,
)
from looopy.stores.rules import (
    artifact_filter,
    check_artifact_id,
    check_columns,
    check_context_id,
    checked_chunk,
    checked_content,
    checked_rows,
    is_artifact_id,
    no_artifact,
)
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus, Chunk, Content, Loaded
from looopy.types.storable import check_limit, check_text, dump

INLINE_BYTES = 64 * 1024
PART_BYTES = 8 * 1024 * 1024
DATABASE_PART_BYTES = 1024 * 1024
"""The largest tail; the largest part in a blob store, and in a database."""

GRACE_S = 24 * 3600.0
"""The age at which an orphan may be removed."""

_TRIES = 100
_SHARDS = 256
_TIDY_S = 60.0  # between two looks for orphans on the way
_PARTS_AT_ONCE = 256
_MOST_HASHES = 256
_LARGE = 1024 * 1024
_OPENED = {
    ArtifactKind.FILE: "application/octet-stream",
    ArtifactKind.DATASET: "application/x-ndjson",
}
_EMPTY = hashlib.sha256(b"").hexdigest()


class StoredVersion(NamedTuple):
    """
    The row of a version.

    `text` is the JSON of a small data artifact, or `None`: then the content is `part_count` parts
    of together `part_bytes` bytes, followed by `tail`.
    """

    artifact: Artifact
    text: str | None
    tail: bytes
    part_count: int


class StoredPart(NamedTuple):
    """The row of a part: its number from 1, and its place in the content, in bytes and rows."""

    part: int
    start: int
    size: int
    sha256: str
    first_row: int
    rows: int
    blob: str | None
    data: bytes | None


def placed_parts(change: ArtifactWrite | ArtifactGrowth) -> list[StoredPart]:
    """The rows of the new parts of *change*."""
    if isinstance(change, ArtifactWrite):
        part, start, first_row = 1, 0, 0
    else:
        part = change.part_count - len(change.parts) + 1
        start = change.size - len(change.tail) - sum(p.size for p in change.parts)
        tail_rows = change.tail.count(b"\n") if change.rows else 0
        first_row = change.rows - tail_rows - sum(p.rows for p in change.parts)
    placed = []
    for one in change.parts:
        placed.append(
            StoredPart(part, start, one.size, one.sha256, first_row, one.rows, one.blob, one.data)
        )
        part, start, first_row = part + 1, start + one.size, first_row + one.rows
    return placed


# --- requests ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A version to save whole; `content` is JSON text of a data artifact, else bytes."""

    artifact_id: str
    kind: ArtifactKind
    content: str | bytes
    media_type: str
    rows: int = 0
    description: str | None = None
    metadata: str | None = None
    columns: str | None = None
    status: ArtifactStatus = ArtifactStatus.COMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A chunk for the version that is being built; `version`: only if it is this one."""

    artifact_id: str
    chunk: Chunk
    version: int | None = None
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Give up the version that is being built."""

    artifact_id: str
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove all versions."""

    artifact_id: str


Request = Save | Append | Fail | Delete


def to_save(
    artifact_id: str,
    content: Content,
    kind: ArtifactKind | str | None = None,
    media_type: str | None = None,
    *,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Save:
    """
    Check and serialise a version that is saved whole.

    Raises:
        ValueRefused: See `ArtifactStore.save`.
    """
    check_artifact_id(artifact_id)
    actual, stored, media, rows = checked_content(content, kind, media_type, columns)
    return Save(
        artifact_id=artifact_id,
        kind=actual,
        content=stored,
        media_type=media,
        rows=rows,
        columns=_columns(columns, actual),
        description=_description(description),
        metadata=_metadata(metadata),
    )


def to_open(
    artifact_id: str,
    kind: ArtifactKind | str = ArtifactKind.FILE,
    media_type: str | None = None,
    *,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Save:
    """
    Check a version that is to be written piece by piece.

    Raises:
        ValueRefused: See `ArtifactStore.open`.
    """
    check_artifact_id(artifact_id)
    wanted = artifact_filter(ArtifactKind, kind, "/kind")
    if wanted is None or wanted is ArtifactKind.DATA:
        raise ValueRefused("a data artifact is saved whole: open a file or a dataset", path="/kind")
    _, _, media, _ = checked_content(
        b"" if wanted is ArtifactKind.FILE else (), wanted, media_type, columns
    )
    return Save(
        artifact_id=artifact_id,
        kind=wanted,
        content=b"",
        media_type=media,
        columns=_columns(columns, wanted),
        status=ArtifactStatus.BUILDING,
        description=_description(description),
        metadata=_metadata(metadata),
    )


def to_delete(artifact_id: str) -> Delete:
    """
    The deletion of an artifact.

    Raises:
        ArtifactNotFound: No artifact can have that id.
    """
    if not is_artifact_id(artifact_id):
        raise no_artifact(artifact_id)
    return Delete(artifact_id=artifact_id)


def _columns(columns: Mapping[str, str] | None, kind: ArtifactKind) -> str | None:
    if kind is ArtifactKind.DATASET:
        return dump(dict(check_columns(columns)), "/columns")
    if columns is not None:
        raise ValueRefused(f"a {kind} artifact has no columns", path="/columns")
    return None


def _description(description: object) -> str | None:
    if description is None:
        return None
    if not isinstance(description, str):
        raise ValueRefused("a description is text", path="/description")
    check_text(description, "/description")
    return description


def _metadata(metadata: object) -> str | None:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ValueRefused("metadata is a JSON object", path="/metadata")
    return dump(dict(metadata), "/metadata") if metadata else None


# --- changes and reads ---


class ArtifactRows(Protocol):
    """The rows of one tenant's artifacts, which a backend supplies."""

    async def peek(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> StoredVersion | None:
        """
        The row of a version, the newest by default.

        A version that is being built and has a successor has failed.
        """
        ...

    async def complete_one(self, context_id: str, artifact_id: str) -> StoredVersion | None:
        """The row of the newest complete version."""
        ...

    async def parts(
        self, context_id: str, artifact_id: str, version: int, *, after: int, limit: int
    ) -> list[StoredPart]:
        """The parts of a version with a number over *after*, in order."""
        ...

    async def part_at(
        self, context_id: str, artifact_id: str, version: int, *, start: int = 0, row: int = 0
    ) -> int:
        """The number of the last part that begins at *start* and *row*, or before; 1 if none."""
        ...

    async def all_versions(self, context_id: str, artifact_id: str) -> list[Artifact]:
        """The versions, oldest first."""
        ...

    async def newest(
        self,
        context_id: str,
        *,
        turn: int | None,
        kind: ArtifactKind | None,
        status: ArtifactStatus | None,
        after: str,
        limit: int | None,
    ) -> list[Artifact]:
        """The newest version of each artifact, by id."""
        ...

    async def apply(self, context_id: str, change: ArtifactChange) -> Artifact:
        """
        Make a change outside of turns, in one commit. The context is created for a write.

        Raises:
            ArtifactMoved: It was made for another state; nothing was written.
            ArtifactNotFound: There is nothing to delete.
        """
        ...

    async def blobs_of(self, context_id: str, artifact_id: str | None = None) -> list[str]:
        """The names of all blobs of an artifact, or of a context."""
        ...

    async def blob_with(self, sha256: str, size: int) -> str | None:
        """The name of a blob of the tenant with this content."""
        ...

    async def unnamed(self, names: Sequence[str]) -> list[str]:
        """Those of *names* that no row of the tenant has."""
        ...


class Artifacts:
    """
    An `ArtifactStore` on the rows of a backend; see there for the contract.

    Args:
        rows: The rows.
        tenant: Whose they are.
        blobs: Takes the parts; `None`: the rows take them.
    """

    def __init__(self, rows: ArtifactRows, tenant: str, blobs: Blobs | None) -> None:
        self._rows = rows
        self._owner = tenant
        self._blobs = blobs
        self._part_bytes = DATABASE_PART_BYTES if blobs is None else PART_BYTES
        self._lines: dict[tuple[str, str], _Line] = {}
        # Of versions that are being built: how many bytes were hashed, and the hash so far.
        self._hashes: OrderedDict[tuple[str, str, int], tuple[int, Any]] = OrderedDict()
        self._tidied = time.monotonic()
        self._shard = os.urandom(1)[0]

    async def save(
        self,
        context_id: str,
        artifact_id: str,
        content: Content,
        *,
        kind: ArtifactKind | str | None = None,
        media_type: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Artifact:
        """Save the next version."""
        request = to_save(
            artifact_id,
            content,
            kind,
            media_type,
            description=description,
            metadata=metadata,
            columns=columns,
        )
        return await self.change(context_id, request)

    async def open(
        self,
        context_id: str,
        artifact_id: str,
        *,
        kind: ArtifactKind | str = ArtifactKind.FILE,
        media_type: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Artifact:
        """Begin the next version."""
        request = to_open(
            artifact_id,
            kind,
            media_type,
            description=description,
            metadata=metadata,
            columns=columns,
        )
        return await self.change(context_id, request)

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

        Args:
            commit: Makes the commit; by default it is one outside of turns.
        """
        if isinstance(request, Save):
            check_context_id(context_id)
        async with self._in_line(context_id, request.artifact_id):
            for attempt in range(_TRIES):
                prepared = await self._prepare(context_id, request, share=attempt == 0)
                try:
                    if commit is None:
                        done = await self._rows.apply(context_id, prepared.change)
                    else:
                        done = await commit(prepared.change)
                except ArtifactMoved:
                    continue
                reach("A4")
                await self._done(context_id, done, prepared)
                return done
        raise StoreConflict("others keep changing this artifact: try again")

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

    async def _prepare(self, context_id: str, request: Request, *, share: bool) -> _Prepared:
        if isinstance(request, Save):
            return await self._save(request, share=share)
        if isinstance(request, Delete):
            blobs = []
            if self._blobs is not None:
                blobs = await self._rows.blobs_of(context_id, request.artifact_id)
            change = ArtifactDeletion(artifact_id=request.artifact_id)
            return _Prepared(change, freed=blobs)
        found = await self._building(context_id, request.artifact_id, request.version)
        if isinstance(request, Fail):
            grown = _grown(found, status=ArtifactStatus.FAILED)
            return _Prepared(grown)
        return await self._append(context_id, found, request, share=share)

    async def _save(self, request: Save, *, share: bool) -> _Prepared:
        content = request.content
        raw = content.encode() if isinstance(content, str) else content
        parts: list[ArtifactPart] = []
        stored: str | bytes = content
        if len(raw) > INLINE_BYTES:
            is_rows = request.kind is ArtifactKind.DATASET
            parts, stored = await self._cut(raw, is_rows=is_rows, share=share)
        is_open = request.status is ArtifactStatus.BUILDING
        write = ArtifactWrite(
            artifact_id=request.artifact_id,
            kind=request.kind,
            stored=stored,
            media_type=request.media_type,
            parts=parts,
            status=request.status,
            size=len(raw),
            sha256="" if is_open else await _digest(raw),
            rows=request.rows,
            description=request.description,
            metadata=request.metadata,
            columns=request.columns,
        )
        return _Prepared(write, hashed=hashlib.sha256() if is_open else None)

    async def _append(
        self, context_id: str, found: StoredVersion, request: Append, *, share: bool
    ) -> _Prepared:
        old = found.artifact
        if old.columns is None:
            new, rows = checked_chunk(request.chunk), 0
        else:
            new, rows = checked_rows(request.chunk, old.columns, "/chunk")
        tail = found.tail + new if found.tail else new
        parts: list[ArtifactPart] = []
        if len(tail) > INLINE_BYTES:
            parts, tail = await self._cut(tail, is_rows=old.columns is not None, share=share)
        hashed = self._hash_so_far(context_id, old)
        if hashed is None and request.last:
            hashed = await self._hash_again(context_id, found)
        if hashed is not None:
            await _update(hashed, new)
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
        return _Prepared(grown, hashed=hashed)

    async def _building(
        self, context_id: str, artifact_id: str, version: int | None
    ) -> StoredVersion:
        """
        The version that is being built.

        Raises:
            ArtifactNotFound: There is no such artifact, or version of it.
            ValueRefused: It is a data artifact, which is saved whole.
            StoreConflict: It is complete, or has failed.
        """
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

    async def _cut(
        self, raw: bytes, *, is_rows: bool, share: bool
    ) -> tuple[list[ArtifactPart], bytes]:
        """*raw* as parts, and a tail; no row is cut in two."""
        parts: list[ArtifactPart] = []
        known: dict[str, ArtifactPart] = {}
        view, start = memoryview(raw), 0
        while len(raw) - start > INLINE_BYTES:
            end = min(start + self._part_bytes, len(raw))
            if is_rows and end < len(raw):
                end = (raw.rfind(b"\n", start, end) + 1) or raw.index(b"\n", end) + 1
            piece = view[start:end]
            rows = raw.count(b"\n", start, end) if is_rows else 0
            digest = await _digest(piece)
            part = known.get(digest)
            if part is None:
                part = known[digest] = await self._store(piece, digest, share=share)
            parts.append(replace(part, rows=rows))
            start = end
        return parts, raw[start:]

    async def _store(self, piece: memoryview, digest: str, *, share: bool) -> ArtifactPart:
        """Have a part where a row may name it."""
        size = len(piece)
        if self._blobs is None:
            return ArtifactPart(size=size, sha256=digest, data=bytes(piece))
        if share and (name := await self._rows.blob_with(digest, size)) is not None:
            there = await self._blobs.get(path_of(self._owner, name))
            if there is not None and await _digest(there) == digest:  # else it is damaged
                return ArtifactPart(size=size, sha256=digest, blob=name, shared=True)
        name = new_name(digest)
        expires = time.monotonic() + GRACE_S / 2
        await self._blobs.put(path_of(self._owner, name), piece)
        return ArtifactPart(size=size, sha256=digest, blob=name, expires=expires)

    async def _done(self, context_id: str, artifact: Artifact, prepared: _Prepared) -> None:
        key = (context_id, artifact.artifact_id, artifact.version)
        self._hashes.pop(key, None)
        if prepared.hashed is not None and artifact.status is ArtifactStatus.BUILDING:
            self._hashes[key] = (artifact.size, prepared.hashed)
            while len(self._hashes) > _MOST_HASHES:
                self._hashes.popitem(last=False)
        with contextlib.suppress(StoreError):  # the commit is made; what is left is an orphan
            if self._blobs is not None:
                await drop(self._rows, self._owner, self._blobs, prepared.freed)
            if time.monotonic() - self._tidied > _TIDY_S:
                self._tidied = time.monotonic()
                self._shard = (self._shard + 1) % _SHARDS
                await self.collect(GRACE_S, f"/{self._shard:02x}")

    def _hash_so_far(self, context_id: str, artifact: Artifact) -> Any:
        """The hash of what is there, if this process has written all of it."""
        key = (context_id, artifact.artifact_id, artifact.version)
        size, hashed = self._hashes.get(key, (-1, None))
        return hashed.copy() if hashed is not None and size == artifact.size else None

    async def _hash_again(self, context_id: str, found: StoredVersion) -> Any:
        hashed = hashlib.sha256()
        async for _, piece in self._pieces(context_id, found):
            await _update(hashed, piece)
        return hashed

    # --- reading ---

    async def get(self, context_id: str, artifact_id: str, version: int | None = None) -> Artifact:
        """Describe a version."""
        found = None
        if is_artifact_id(artifact_id):
            found = await self._rows.peek(context_id, artifact_id, version)
        if found is None:
            raise no_artifact(artifact_id, version)
        return found.artifact

    async def load(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> Loaded:
        """The whole content."""
        found = await self._find(context_id, artifact_id, version)
        if found.text is not None:
            data: dict[str, Any] = json.loads(found.text)
            return data
        raw = b"".join([piece async for _, piece in self._pieces(context_id, found)])
        if found.artifact.kind is ArtifactKind.FILE:
            return raw
        whole = partial(_content_of, raw, found.artifact.kind)
        return whole() if len(raw) < _LARGE else await asyncio.to_thread(whole)

    async def stream(
        self, context_id: str, artifact_id: str, *, version: int | None = None
    ) -> AsyncIterator[bytes]:
        """The content in pieces."""
        found = await self._find(context_id, artifact_id, version)
        async for _, piece in self._pieces(context_id, found):
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
        _check_from_0(start, "/start")
        _check_from_0(size or 0, "/size")
        found = await self._find(context_id, artifact_id, version)
        end = found.artifact.size if size is None else min(start + size, found.artifact.size)
        wanted: list[bytes] = []
        if start < end:
            async for at, piece in self._pieces(context_id, found, start=start):
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
        _check_from_0(after, "/after")
        check_limit(limit)
        found = await self._find(context_id, artifact_id, version)
        if found.artifact.kind is not ArtifactKind.DATASET:
            raise ValueRefused(
                f"{artifact_id!r} is a {found.artifact.kind} artifact, not a dataset", path="/kind"
            )
        wanted: list[bytes] = []
        if limit and after < found.artifact.rows:
            async for first, piece in self._pieces(context_id, found, row=after):
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
        check_limit(limit)
        return await self._rows.newest(
            context_id,
            turn=turn,
            kind=artifact_filter(ArtifactKind, kind, "/kind"),
            status=artifact_filter(ArtifactStatus, status, "/status"),
            after=after,
            limit=limit,
        )

    async def _find(
        self, context_id: str, artifact_id: str, version: int | None
    ) -> StoredVersion:
        """
        A version to read, the newest complete one by default.

        Raises:
            ArtifactNotFound: There is none.
        """
        found = None
        if is_artifact_id(artifact_id):
            if version is None:
                found = await self._rows.complete_one(context_id, artifact_id)
            else:
                found = await self._rows.peek(context_id, artifact_id, version)
        if found is None:
            raise no_artifact(artifact_id, version)
        return found

    async def _pieces(
        self, context_id: str, found: StoredVersion, *, start: int = 0, row: int | None = None
    ) -> AsyncIterator[tuple[int, bytes]]:
        """
        The parts from the one with *start* or *row*, and the tail, each with its place.

        The place is in bytes, or in rows if *row* is given.
        """
        one = found.artifact
        if found.text is not None:
            yield 0, found.text.encode()
            return
        after = 0
        if found.part_count and (start or row):
            at = await self._rows.part_at(
                context_id, one.artifact_id, one.version, start=start, row=row or 0
            )
            after = at - 1
        while after < found.part_count:
            # Bytes in the database are read part by part, names many at once.
            limit = _PARTS_AT_ONCE if self._blobs is not None else 1
            limit = min(limit, found.part_count - after)
            parts = await self._rows.parts(
                context_id, one.artifact_id, one.version, after=after, limit=limit
            )
            if not parts:
                raise no_artifact(one.artifact_id, one.version)  # deleted meanwhile
            for part in parts:
                piece = await self._part(context_id, one, part)
                yield (part.start if row is None else part.first_row), piece
            after = parts[-1].part
        if found.tail:
            at = one.size - len(found.tail)
            yield (at if row is None else one.rows - found.tail.count(b"\n")), found.tail

    async def _part(self, context_id: str, one: Artifact, part: StoredPart) -> bytes:
        """
        The bytes of a part.

        Raises:
            ArtifactDamaged: They are gone, or were altered.
            ArtifactNotFound: The artifact was deleted meanwhile.
        """
        piece = part.data
        if part.blob is not None and self._blobs is not None:
            piece = await self._blobs.get(path_of(self._owner, part.blob))
        actual = None if piece is None else await _digest(piece)
        if piece is not None and actual == part.sha256:
            return piece
        if await self._rows.peek(context_id, one.artifact_id, one.version) is None:
            raise no_artifact(one.artifact_id, one.version)
        happened = "has vanished" if piece is None else "was altered"
        if part.blob is not None and self._blobs is None:
            happened = "lies in a blob store, and these stores were opened without one"
        raise ArtifactDamaged(
            f"part {part.part} of version {one.version} of artifact {one.artifact_id!r} {happened}:"
            f" SHA-256 {part.sha256} is expected" + ("" if actual is None else f", not {actual}"),
            artifact_id=one.artifact_id,
            version=one.version,
            expected=part.sha256,
            actual=actual,
        )

    # --- orphans ---

    async def collect(self, grace_s: float, shard: str = "") -> int:
        """Remove orphans, and return how many; *shard*: only in this part of the tenant's room."""
        if self._blobs is None:
            return 0
        removed = 0
        waiting: list[str] = []
        async for path in self._blobs.older(room_of(self._owner) + shard, grace_s):
            waiting.append(path)
            if len(waiting) == _PARTS_AT_ONCE:
                removed += await self._collect(self._blobs, waiting)
                waiting = []
        return removed + await self._collect(self._blobs, waiting)

    async def _collect(self, blobs: Blobs, paths: Sequence[str]) -> int:
        named = {name: path for path in paths if (name := name_of(path)) is not None}
        orphans = await self._rows.unnamed(list(named)) if named else []
        gone = [path for path in paths if name_of(path) is None] + [named[n] for n in orphans]
        for path in gone:
            await blobs.remove(path)
        return len(gone)


async def drop(rows: ArtifactRows, tenant: str, blobs: Blobs, names: Sequence[str]) -> None:
    """Remove those blobs that no row names any more; what a failure leaves is an orphan."""
    for name in await rows.unnamed(names) if names else ():
        await blobs.remove(path_of(tenant, name))


class _Line:
    """The changes of one artifact that wait for each other."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class _Prepared(NamedTuple):
    """A change, with the hash of the content after it, and blobs that it may free."""

    change: ArtifactChange
    hashed: Any = None
    freed: Sequence[str] = ()


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


def _check_from_0(value: object, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueRefused(f"{path[1:]} is a whole number from 0, not {value!r}", path=path)


def _content_of(raw: bytes, kind: ArtifactKind) -> Loaded:
    if kind is ArtifactKind.DATASET:
        return _lines(raw)
    data: dict[str, Any] = json.loads(raw)
    return data


def _lines(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in raw.split(b"\n") if line]


async def _digest(raw: bytes | memoryview) -> str:
    if len(raw) < _LARGE:
        return hashlib.sha256(raw).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(raw).hexdigest())


async def _update(hashed: Any, raw: bytes) -> None:
    if len(raw) < _LARGE:
        hashed.update(raw)
    else:
        await asyncio.to_thread(hashed.update, raw)
