"""`ArtifactStore` on SQL: versions are rows, bytes and JSON text in columns of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from looopy.errors import ValueRefused
from looopy.stores.base import ArtifactStore
from looopy.stores.log import read_rows
from looopy.stores.rules import (
    artifact_write,
    check_artifact_id,
    check_context_id,
    no_artifact,
    no_context,
)
from looopy.stores.sql import statements as s
from looopy.stores.sql.commit import delete_artifact, peek, save_artifact, stored_artifact
from looopy.stores.sql.driver import Query, Steps
from looopy.stores.sql.store import NO_LIMIT, SQLStore, bounded, can_exist
from looopy.types.artifact import Artifact, ArtifactKind


class SQLArtifactStore(SQLStore, ArtifactStore):
    """See `ArtifactStore` for the contract."""

    async def save(
        self,
        context_id: str,
        artifact_id: str,
        content: bytes | str | Mapping[str, Any],
        *,
        kind: ArtifactKind | str | None = None,
        media_type: str | None = None,
    ) -> Artifact:
        check_context_id(context_id)
        write = artifact_write(artifact_id, content, kind, media_type)
        key = self.params(context_id)

        def work() -> Steps[Artifact]:
            # Locked first: the next version depends on the existing ones.
            while (yield from peek(key, lock=True)) is None:
                yield Query(s.CREATE, key)
            saved = yield from save_artifact(key, write)
            if saved is None:
                raise no_context(context_id)
            return saved

        return await self.write(work, context_id)

    async def load(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> bytes | dict[str, Any]:
        if not _can_hold(context_id, artifact_id):
            raise no_artifact(artifact_id, version)
        low, high = (1, NO_LIMIT) if version is None else (bounded(version), bounded(version))
        params = self.params(context_id, artifact=artifact_id, low=low, high=high)

        def work() -> Steps[bytes | dict[str, Any]]:
            found = yield Query(s.LOAD_ARTIFACT, params, alone=True)
            if not found:
                raise no_artifact(artifact_id, version)
            kind, data, raw = found[0]
            if kind == ArtifactKind.DATA.value:
                content: dict[str, Any] = json.loads(data)
                return content
            return bytes(raw)

        return await self.backend.run(work, write=False)

    async def list(self, context_id: str) -> list[Artifact]:
        return await read_rows(await self._ask(s.LIST_ARTIFACTS, context_id), stored_artifact)

    async def delete(self, context_id: str, artifact_id: str) -> None:
        if not _can_hold(context_id, artifact_id):
            raise no_artifact(artifact_id)

        def work() -> Steps[None]:
            yield from delete_artifact(self.params(context_id), artifact_id)

        await self.write(work, context_id)


def _can_hold(context_id: str, artifact_id: str) -> bool:
    """
    True if such an artifact may exist; ids that no store takes are answered like unknown ones.
    """
    try:
        check_artifact_id(artifact_id)
    except ValueRefused:
        return False
    return can_exist(context_id)
