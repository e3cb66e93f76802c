"""`ArtifactStore` in memory: versions and their parts in dictionaries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from looopy.stores.artifacts.basic import BasicArtifactRows
from looopy.stores.artifacts.rows import StoredPart, StoredVersion, Version
from looopy.stores.artifacts.store import Artifacts
from looopy.stores.memory.context import (
    Contexts,
    MemoryStore,
    StoredContext,
    change_artifact,
    check_change,
)
from looopy.stores.records import ArtifactChange, ArtifactWrite
from looopy.types.artifact import Artifact


class InMemoryArtifactStore(Artifacts):
    """See `ArtifactStore` for the contract."""

    def __init__(self, backend: Contexts | None = None, tenant: str = "default") -> None:
        self.backend = backend or Contexts()
        self.tenant = tenant
        super().__init__(InMemoryArtifactRows(self.backend, tenant), tenant, None)


class InMemoryArtifactRows(MemoryStore, BasicArtifactRows):
    """See `ArtifactRows`."""

    async def artifact_ids(self, context_id: str) -> Iterable[str]:
        context = self._get(context_id)
        return context.artifacts if context else ()

    async def stored_versions(self, context_id: str, artifact_id: str) -> Sequence[StoredVersion]:
        return [one.row for one in self._versions(context_id, artifact_id)]

    async def parts(
        self, context_id: str, artifact_id: str, version: int, *, after: int, limit: int
    ) -> list[StoredPart]:
        return self._parts(context_id, artifact_id, version)[after : after + limit]

    async def part_at(
        self, context_id: str, artifact_id: str, version: int, *, start: int = 0, row: int = 0
    ) -> int:
        parts = self._parts(context_id, artifact_id, version)
        if row:
            return max(1, bisect_right(parts, row, key=lambda part: part.first_row))
        return max(1, bisect_right(parts, start, key=lambda part: part.start))

    async def apply(self, context_id: str, change: ArtifactChange) -> Artifact:
        context: StoredContext | None = self._get(context_id)
        if context is None and not isinstance(change, ArtifactWrite):
            check_change(None, change)
        changed = change_artifact(self.backend.make(self.tenant, context_id), change)
        self._ring(context_id)
        return changed

    def _versions(self, context_id: str, artifact_id: str) -> Sequence[Version]:
        context = self._get(context_id)
        return context.artifacts.get(artifact_id, ()) if context else ()

    def _parts(self, context_id: str, artifact_id: str, version: int) -> list[StoredPart]:
        for one in self._versions(context_id, artifact_id):
            if one.artifact.version == version:
                return one.parts
        return []
