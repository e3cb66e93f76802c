"""The rows of versions and of their parts, and the methods that a backend supplies for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self, TypedDict, Unpack

from looopy.stores.records import ArtifactChange, ArtifactGrowth, ArtifactMoved, ArtifactWrite
from looopy.stores.rules import grown_artifact, made_artifact
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.event import utc_now


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


class Wanted(TypedDict):
    """The artifacts to list, by facts of their newest version; `None` stands for any."""

    turn: int | None
    kind: ArtifactKind | None
    status: ArtifactStatus | None
    after: str
    limit: int | None


def chosen(newest: Iterable[Artifact], wanted: Wanted) -> list[Artifact]:
    """Those of *newest*, which are in the order of their ids, that are *wanted*."""
    turn, kind, status = wanted["turn"], wanted["kind"], wanted["status"]
    found = [
        one
        for one in newest
        if one.artifact_id > wanted["after"]
        and turn in (None, one.turn)
        and kind in (None, one.kind)
        and status in (None, one.status)
    ]
    return found[: wanted["limit"]]


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


@dataclass(slots=True, eq=False, repr=False)
class Version:
    """
    A version that Python objects hold, in the place of a row and its parts.

    Attributes:
        before: The number of its parts that are stored elsewhere, ahead of `parts`.
    """

    artifact: Artifact
    text: str | None
    tail: bytes
    parts: list[StoredPart] = field(default_factory=list)
    before: int = 0

    @classmethod
    def written(cls, write: ArtifactWrite, newest: Artifact | None, turn: int) -> Self:
        """The version after *newest*."""
        number = 1 if newest is None else newest.version + 1
        artifact = made_artifact(write, version=number, created_at=utc_now(), turn=turn)
        stored, parts = write.stored, placed_parts(write)
        if isinstance(stored, str):
            return cls(artifact, stored, b"", parts)
        return cls(artifact, None, stored, parts)

    @property
    def row(self) -> StoredVersion:
        """Its row."""
        return StoredVersion(self.artifact, self.text, self.tail, self.before + len(self.parts))

    def grow(self, growth: ArtifactGrowth) -> Artifact:
        """Add what was appended."""
        self.parts += placed_parts(growth)
        self.tail = growth.tail
        self.artifact = grown_artifact(self.artifact, growth)
        return self.artifact

    def copy(self) -> Self:
        """A version that grows by itself."""
        return replace(self, parts=list(self.parts))


def check_growth(newest: Artifact | None, growth: ArtifactGrowth) -> None:
    """Raise `ArtifactMoved` unless *growth* was made for the *newest* version."""
    if (
        newest is None
        or newest.version != growth.version
        or newest.status is not ArtifactStatus.BUILDING
        or newest.size != growth.size_before
    ):
        raise ArtifactMoved


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

    async def newest(self, context_id: str, **wanted: Unpack[Wanted]) -> list[Artifact]:
        """The newest version of each artifact, by id."""
        ...

    async def apply(self, context_id: str, change: ArtifactChange) -> Artifact:
        """Make a change outside of turns, in one commit; see `BasicArtifactRows.apply`."""
        ...

    async def blob_with(self, sha256: str, size: int) -> str | None:
        """The name of a blob of the tenant with this content."""
        ...

    async def unnamed(self, names: Sequence[str]) -> list[str]:
        """Those of *names* that no row of the tenant has."""
        ...

    async def hold_uploads(self, names: Sequence[str], ttl_s: float, *, new: bool) -> list[str]:
        """
        Hold blobs that no row has yet for *ttl_s* seconds, for a commit of this process.

        Args:
            new: These names are new; else they were held before.

        Returns:
            Those that are held no longer, and are not held now.
        """
        ...

    async def end_uploads(self, names: Sequence[str], *, held: bool) -> list[str]:
        """
        Those of *names* that may be removed: no row has them, and no commit can name them any more.

        Args:
            held: Also blobs that the caller holds. Otherwise their holder has to be dead, or its
                time over.
        """
        ...
