"""The rows of versions and of their parts, and the methods that a backend supplies for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from looopy.stores.records import ArtifactChange, ArtifactGrowth, ArtifactWrite
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus


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

    async def blob_with(self, sha256: str, size: int) -> str | None:
        """The name of a blob of the tenant with this content."""
        ...

    async def unnamed(self, names: Sequence[str]) -> list[str]:
        """Those of *names* that no row of the tenant has."""
        ...
