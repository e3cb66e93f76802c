"""The artifacts of a turn's tools: the `ArtifactWriter` of a stored turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from looopy.auth.redaction import Redactor
from looopy.stores.base import ArtifactStore
from looopy.stores.records import ArtifactDeletion, ArtifactWrite
from looopy.stores.rules import artifact_deletion, artifact_write
from looopy.stores.shield import settle
from looopy.types.artifact import Artifact, ArtifactKind


class TurnArtifacts:
    """
    The artifacts of a context, as one turn's tools see them.

    Args:
        change: Saves a version, or deletes an artifact, together with its event, as a step of the
            turn. `None` for a turn that is not stored step by step (`auto_save=False`): the
            artifact alone is changed, at once and without an owner.
        redactor: Knows the secrets that no artifact may hold.
    """

    def __init__(
        self,
        artifacts: ArtifactStore,
        context_id: str,
        change: Callable[[ArtifactWrite | ArtifactDeletion], Awaitable[Artifact]] | None,
        *,
        redactor: Redactor,
    ) -> None:
        self._artifacts = artifacts
        self._context_id = context_id
        self._change = change
        self._redactor = redactor

    async def save(
        self,
        artifact_id: str,
        content: bytes | str | Mapping[str, Any],
        *,
        kind: ArtifactKind | str | None = None,
        media_type: str | None = None,
    ) -> Artifact:
        """
        Save a new version.

        A tool that times out or is cancelled first waits for the end of this call.
        """
        self._redactor.refuse(artifact_id=artifact_id, content=content, media_type=media_type)
        if self._change is None:
            return await self._artifacts.save(
                self._context_id, artifact_id, content, kind=kind, media_type=media_type
            )
        return await settle(self._change(artifact_write(artifact_id, content, kind, media_type)))

    async def load(self, artifact_id: str, version: int | None = None) -> Any:
        """Load a version, the newest by default."""
        return await self._artifacts.load(self._context_id, artifact_id, version)

    async def list(self) -> list[Artifact]:
        """The newest version of each artifact."""
        return await self._artifacts.list(self._context_id)

    async def delete(self, artifact_id: str) -> None:
        """
        Remove all versions of an artifact.

        A tool that times out or is cancelled first waits for the end of this call.
        """
        self._redactor.refuse(artifact_id=artifact_id)
        if self._change is None:
            await settle(self._artifacts.delete(self._context_id, artifact_id))
        else:
            await settle(self._change(artifact_deletion(artifact_id)))
