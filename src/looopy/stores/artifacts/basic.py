"""The rows of artifacts for a backend that lists its versions, such as the memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Unpack

from looopy.stores.artifacts.rows import StoredPart, StoredVersion, Wanted, chosen
from looopy.types.artifact import Artifact, ArtifactStatus

if TYPE_CHECKING:
    from looopy.stores.records import ArtifactChange

_CHUNK = 32


class BasicArtifactRows(ABC):
    """
    The rows of artifacts, from which `BasicArtifactStore` makes all of `ArtifactStore`.

    A store that keeps content as rows writes an `ArtifactChange` in its commit: `apply` does so
    outside of turns, and `Journal.commit` within them. `looopy.stores.memory.context` shows it.
    """

    @abstractmethod
    async def artifact_ids(self, context_id: str) -> Iterable[str]:
        """The ids of all artifacts of a context, in any order; none for an unknown context."""

    @abstractmethod
    async def stored_versions(self, context_id: str, artifact_id: str) -> Sequence[StoredVersion]:
        """The rows of all versions, oldest first; none if there is no such artifact."""

    @abstractmethod
    async def parts(
        self, context_id: str, artifact_id: str, version: int, *, after: int, limit: int
    ) -> list[StoredPart]:
        """The parts of a version with a number over *after*, in order, at most *limit*."""

    @abstractmethod
    async def apply(self, context_id: str, change: ArtifactChange) -> Artifact:
        """
        Make a change outside of turns, in one commit. The context is created for a write.

        Raises:
            ArtifactMoved: It was made for another state; nothing was written.
            ArtifactNotFound: There is nothing to delete.
        """

    async def peek(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> StoredVersion | None:
        """The row of a version, the newest by default."""
        for one in reversed(await self.stored_versions(context_id, artifact_id)):
            if version in (None, one.artifact.version):
                return one
        return None

    async def complete_one(self, context_id: str, artifact_id: str) -> StoredVersion | None:
        """The row of the newest complete version."""
        for one in reversed(await self.stored_versions(context_id, artifact_id)):
            if one.artifact.status is ArtifactStatus.COMPLETE:
                return one
        return None

    async def part_at(
        self, context_id: str, artifact_id: str, version: int, *, start: int = 0, row: int = 0
    ) -> int:
        """The number of the last part that begins at *start* and *row*, or before; 1 if none."""
        found, after = 1, 0
        while some := await self.parts(context_id, artifact_id, version, after=after, limit=_CHUNK):
            for part in some:
                begins = part.first_row <= row if row else part.start <= start
                if begins:
                    found = part.part
            after = some[-1].part
        return found

    async def all_versions(self, context_id: str, artifact_id: str) -> list[Artifact]:
        """The versions, oldest first."""
        return [one.artifact for one in await self.stored_versions(context_id, artifact_id)]

    async def newest(self, context_id: str, **wanted: Unpack[Wanted]) -> list[Artifact]:
        """The newest version of each artifact, by id."""
        names = sorted(n for n in await self.artifact_ids(context_id) if n > wanted["after"])
        all_of_them = [await self.stored_versions(context_id, name) for name in names]
        return chosen((one[-1].artifact for one in all_of_them if one), wanted)

    async def blob_with(self, sha256: str, size: int) -> str | None:  # noqa: ARG002 - there is none
        """No name: the rows hold the parts."""
        return None

    async def unnamed(self, names: Sequence[str]) -> list[str]:
        """All of them, as above."""
        return list(names)

    async def hold_uploads(
        self,
        names: Sequence[str],
        ttl_s: float,  # noqa: ARG002
        *,
        new: bool,  # noqa: ARG002
    ) -> list[str]:
        """All of them, as above."""
        return list(names)

    async def end_uploads(self, names: Sequence[str], *, held: bool) -> list[str]:  # noqa: ARG002
        """All of them, as above."""
        return list(names)
