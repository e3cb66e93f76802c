"""`ArtifactStore` in memory: versions and their parts in dictionaries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from looopy.stores.artifacts.rows import StoredPart, StoredVersion
from looopy.stores.artifacts.store import Artifacts
from looopy.stores.memory.context import (
    Contexts,
    MemoryStore,
    MemoryVersion,
    StoredContext,
    change_artifact,
    check_change,
)
from looopy.stores.records import ArtifactChange, ArtifactWrite
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus


class InMemoryArtifactStore(Artifacts):
    """See `ArtifactStore` for the contract."""

    def __init__(self, backend: Contexts | None = None, tenant: str = "default") -> None:
        self.backend = backend or Contexts()
        self.tenant = tenant
        super().__init__(InMemoryArtifactRows(self.backend, tenant), tenant, None)


class InMemoryArtifactRows(MemoryStore):
    """See `ArtifactRows`."""

    async def peek(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> StoredVersion | None:
        """The row of a version."""
        for one in reversed(self._versions(context_id, artifact_id)):
            if version in (None, one.artifact.version):
                return _row(one)
        return None

    async def complete_one(self, context_id: str, artifact_id: str) -> StoredVersion | None:
        """The row of the newest complete version."""
        for one in reversed(self._versions(context_id, artifact_id)):
            if one.artifact.status is ArtifactStatus.COMPLETE:
                return _row(one)
        return None

    async def parts(
        self, context_id: str, artifact_id: str, version: int, *, after: int, limit: int
    ) -> list[StoredPart]:
        """Parts, in order."""
        return self._parts(context_id, artifact_id, version)[after : after + limit]

    async def part_at(
        self, context_id: str, artifact_id: str, version: int, *, start: int = 0, row: int = 0
    ) -> int:
        """The number of the last part that begins there, or before."""
        parts = self._parts(context_id, artifact_id, version)
        if row:
            return max(1, bisect_right(parts, row, key=lambda part: part.first_row))
        return max(1, bisect_right(parts, start, key=lambda part: part.start))

    async def all_versions(self, context_id: str, artifact_id: str) -> list[Artifact]:
        """The versions, oldest first."""
        return [one.artifact for one in self._versions(context_id, artifact_id)]

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
        """The newest version of each."""
        context = self._get(context_id)
        artifacts = context.artifacts if context else {}
        newest = (artifacts[name][-1].artifact for name in sorted(artifacts) if name > after)
        found = [
            one
            for one in newest
            if turn in (None, one.turn)
            and kind in (None, one.kind)
            and status in (None, one.status)
        ]
        return found[:limit]

    async def apply(self, context_id: str, change: ArtifactChange) -> Artifact:
        """Make a change outside of turns."""
        context: StoredContext | None = self._get(context_id)
        if context is None and not isinstance(change, ArtifactWrite):
            check_change(None, change)
        changed = change_artifact(self.backend.make(self.tenant, context_id), change)
        self._ring(context_id)
        return changed

    async def blob_with(self, sha256: str, size: int) -> str | None:  # noqa: ARG002 - there is none
        """No name: the parts lie here."""
        return None

    async def unnamed(self, names: Sequence[str]) -> list[str]:
        """All of them, as above."""
        return list(names)

    def _versions(self, context_id: str, artifact_id: str) -> Sequence[MemoryVersion]:
        context = self._get(context_id)
        return context.artifacts.get(artifact_id, ()) if context else ()

    def _parts(self, context_id: str, artifact_id: str, version: int) -> list[StoredPart]:
        for one in self._versions(context_id, artifact_id):
            if one.artifact.version == version:
                return one.parts
        return []


def _row(one: MemoryVersion) -> StoredVersion:
    return StoredVersion(one.artifact, one.text, one.tail, len(one.parts))
