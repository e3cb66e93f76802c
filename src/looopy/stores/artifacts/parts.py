"""
Parts of a content: cut and stored, read and compared with their hashes, removed when orphaned.

Equal parts of a tenant are stored once. A part may take over the name in another row only if the
commit still finds that row and locks it, so a deletion on the way cannot remove the bytes. A part
that no row names is held by an upload until the commit that names it. If the holder has died, or a
day is over, the part is an orphan and may be removed; a commit that comes later is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from looopy.errors import ArtifactDamaged
from looopy.stores.artifacts.rows import ArtifactRows, StoredPart, StoredVersion
from looopy.stores.blobs.base import Blobs, name_of, new_name, path_of, room_of
from looopy.stores.records import ArtifactPart
from looopy.stores.rules import no_artifact
from looopy.types.artifact import Artifact

INLINE_BYTES = 64 * 1024
PART_BYTES = 8 * 1024 * 1024
DATABASE_PART_BYTES = 1024 * 1024
"""The largest tail; the largest part in a blob store, and in a database."""

HELD_S = 24 * 3600.0
"""How long an upload is held for the commit that names it, unless it is renewed."""

LARGE = 1024 * 1024
"""The fewest bytes that are hashed, or parsed, in a thread."""

_PARTS_AT_ONCE = 256


class Parts:
    """
    The parts of one tenant.

    Args:
        rows: The rows that name them.
        tenant: Whose they are.
        blobs: Takes the parts; `None`: the rows take them.
    """

    def __init__(self, rows: ArtifactRows, tenant: str, blobs: Blobs | None) -> None:
        self.rows = rows
        self.tenant = tenant
        self.blobs = blobs
        self._part_bytes = DATABASE_PART_BYTES if blobs is None else PART_BYTES

    async def cut(
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
            digest = await digest_of(piece)
            part = known.get(digest)
            if part is None:
                part = known[digest] = await self._store(piece, digest, share=share)
            parts.append(replace(part, rows=rows))
            start = end
        return parts, raw[start:]

    async def stage(
        self, content: Iterator[bytes], *, is_rows: bool, share: bool
    ) -> list[ArtifactPart]:
        """
        Put the parts of *content* into the blob store, for a row that will name them.

        Args:
            content: In blocks, which are read in a thread.
            share: Equal parts that are there may be named instead.
        """
        cutter = Cutter(self._part_bytes, is_rows=is_rows)
        known: dict[str, ArtifactPart] = {}

        async def staged(part: bytes) -> ArtifactPart:
            digest = await digest_of(part)
            if digest not in known:
                known[digest] = await self._store(memoryview(part), digest, share=share)
            return replace(known[digest], rows=part.count(b"\n") if is_rows else 0)

        parts: list[ArtifactPart] = []
        # Only the reading is done in threads: each that made parts would keep memory for one.
        while (block := await asyncio.to_thread(next, content, None)) is not None:
            parts += [await staged(part) for part in cutter.parts(block)]
        parts += [await staged(part) for part in cutter.last_parts()]
        return parts

    async def _store(self, piece: memoryview, digest: str, *, share: bool) -> ArtifactPart:
        """Have a part where a row may name it."""
        size = len(piece)
        if self.blobs is None:
            return ArtifactPart(size=size, sha256=digest, data=bytes(piece))
        if share and (name := await self.rows.blob_with(digest, size)) is not None:
            there = await self.blobs.get(path_of(self.tenant, name))
            if there is not None and await digest_of(there) == digest:  # else it is damaged
                return ArtifactPart(size=size, sha256=digest, blob=name, shared=True)
        name = new_name(digest)
        await self.rows.hold_uploads([name], HELD_S, new=True)
        await self.blobs.put(path_of(self.tenant, name), piece)
        return ArtifactPart(size=size, sha256=digest, blob=name)

    async def pieces(
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
            at = await self.rows.part_at(
                context_id, one.artifact_id, one.version, start=start, row=row or 0
            )
            after = at - 1
        while after < found.part_count:
            # Bytes in the database are read part by part, names many at once.
            limit = _PARTS_AT_ONCE if self.blobs is not None else 1
            limit = min(limit, found.part_count - after)
            parts = await self.rows.parts(
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
        The bytes of a part; `ArtifactDamaged`, or `ArtifactNotFound` if it was deleted meanwhile.
        """
        piece = part.data
        if part.blob is not None and self.blobs is not None:
            piece = await self.blobs.get(path_of(self.tenant, part.blob))
        actual = None if piece is None else await digest_of(piece)
        if piece is not None and actual == part.sha256:
            return piece
        if await self.rows.peek(context_id, one.artifact_id, one.version) is None:
            raise no_artifact(one.artifact_id, one.version)
        happened = "has vanished" if piece is None else "was altered"
        if part.blob is not None and self.blobs is None:
            happened = "is in a blob store, and these stores were opened without one"
        raise ArtifactDamaged(
            f"part {part.part} of version {one.version} of artifact {one.artifact_id!r} {happened}:"
            f" SHA-256 {part.sha256} is expected" + ("" if actual is None else f", not {actual}"),
            artifact_id=one.artifact_id,
            version=one.version,
            expected=part.sha256,
            actual=actual,
        )

    async def collect(self, grace_s: float, shard: str = "") -> int:
        """Remove orphans, and return how many; *shard*: only in this part of the tenant's room."""
        if self.blobs is None:
            return 0
        removed = 0
        waiting: list[str] = []
        async for path in self.blobs.older(room_of(self.tenant) + shard, grace_s):
            waiting.append(path)
            if len(waiting) == _PARTS_AT_ONCE:
                removed += await self._collect(self.blobs, waiting)
                waiting = []
        return removed + await self._collect(self.blobs, waiting)

    async def _collect(self, blobs: Blobs, paths: Sequence[str]) -> int:
        named = {path: name for path in paths if (name := name_of(path)) is not None}
        orphans = await self.rows.unnamed(sorted(set(named.values()))) if named else []
        free = set(await self.rows.end_uploads(orphans, held=False))
        gone = [path for path, name in named.items() if name in free]
        for path in gone:
            await blobs.remove(path)
        return len(gone)


class Cutter:
    """Cuts a content, as it comes, into parts and a tail; no row in two if *is_rows*."""

    def __init__(self, part_bytes: int, *, is_rows: bool) -> None:
        self._part_bytes = part_bytes
        self._is_rows = is_rows
        self._waiting = bytearray()

    def parts(self, piece: bytes) -> Iterator[bytes]:
        """The parts that are whole with *piece*; nothing else may be called before the last."""
        self._waiting += piece
        while len(self._waiting) > self._part_bytes + INLINE_BYTES and (end := self._end()):
            yield self._taken(end)

    def last_parts(self) -> Iterator[bytes]:
        """The rest of the parts, when there are no more pieces."""
        while len(self._waiting) > INLINE_BYTES:
            yield self._taken(self._end() or len(self._waiting))

    @property
    def tail(self) -> bytes:
        """The content after the last part."""
        return bytes(self._waiting)

    def _end(self) -> int:
        """The end of the next part; 0 if that is not known yet."""
        end = min(self._part_bytes, len(self._waiting))
        if not self._is_rows:
            return end
        return self._waiting.rfind(b"\n", 0, end) + 1 or self._waiting.find(b"\n", end) + 1

    def _taken(self, end: int) -> bytes:
        with memoryview(self._waiting) as view:  # copied once
            taken = bytes(view[:end])
        del self._waiting[:end]
        return taken


def stored_parts(
    content: Iterable[bytes], *, is_rows: bool
) -> Iterator[tuple[StoredPart | None, bytes]]:
    """The parts of a content, which hold their bytes, and last `None` with the tail."""
    cutter = Cutter(DATABASE_PART_BYTES, is_rows=is_rows)
    start, first_row = 0, 0
    pieces = (part for piece in content for part in cutter.parts(piece))
    for number, part in enumerate(chain(pieces, cutter.last_parts()), 1):
        rows = part.count(b"\n") if is_rows else 0
        digest = hashlib.sha256(part).hexdigest()
        yield StoredPart(number, start, len(part), digest, first_row, rows, None, part), b""
        start, first_row = start + len(part), first_row + rows
    yield None, cutter.tail


async def drop(
    rows: ArtifactRows, tenant: str, blobs: Blobs, names: Sequence[str], *, held: bool = False
) -> None:
    """
    Remove those blobs that no row names any more; what a failure leaves is an orphan.

    Args:
        held: Also if they are held by uploads, which are the caller's.
    """
    free = await rows.end_uploads(names, held=True) if held else await rows.unnamed(names)
    for name in free:
        await blobs.remove(path_of(tenant, name))


async def remove_unnamed(
    rows: ArtifactRows, tenant: str, blobs: Blobs | None, names: Sequence[str]
) -> int:
    """Remove those blobs that no row names any more, and count them; a failure is raised."""
    removed = 0
    if blobs is None:
        return removed
    for begin in range(0, len(names), _PARTS_AT_ONCE):
        for name in await rows.unnamed(names[begin : begin + _PARTS_AT_ONCE]):
            await blobs.remove(path_of(tenant, name))
            removed += 1
    return removed


async def digest_of(raw: bytes | memoryview) -> str:
    """The SHA-256 of *raw* in hex."""
    if len(raw) < LARGE:
        return hashlib.sha256(raw).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(raw).hexdigest())


async def update(hashed: Any, raw: bytes) -> None:
    """Feed *raw* to a hash."""
    if len(raw) < LARGE:
        hashed.update(raw)
    else:
        await asyncio.to_thread(hashed.update, raw)
