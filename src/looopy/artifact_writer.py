"""What a tool may do with artifacts: `ArtifactWriter` of one turn that is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from looopy.errors import Fenced
from looopy.redaction import Redactor
from looopy.settle import settle
from looopy.stores.base import ArtifactStore
from looopy.stores.names import artifact_write
from looopy.stores.records import ArtifactWrite
from looopy.types.artifact import Artifact, ArtifactKind
from looopy.types.context import CancelToken


class TurnArtifacts:
    """
    The artifacts of a context, as one turn's tools see them.

    Args:
        save: Saves a version together with its event, as a step of the turn; `None` for a turn that
            is not stored as it goes: the version alone is.
        redactor: Knows what no artifact may hold.
        token: Says when another owner has the context.
    """

    def __init__(
        self,
        artifacts: ArtifactStore,
        context_id: str,
        save: Callable[[ArtifactWrite], Awaitable[Artifact]] | None,
        *,
        redactor: Redactor,
        token: CancelToken,
    ) -> None:
        self._artifacts = artifacts
        self._context_id = context_id
        self._save = save
        self._redactor = redactor
        self._token = token

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

        A tool whose time is up, or that is stopped, waits for the end of this, and stops then.
        """
        self._redactor.refuse(artifact_id=artifact_id, content=content, media_type=media_type)
        if self._save is None:
            return await self._artifacts.save(
                self._context_id, artifact_id, content, kind=kind, media_type=media_type
            )
        return await settle(self._save(artifact_write(artifact_id, content, kind, media_type)))

    async def load(self, artifact_id: str, version: int | None = None) -> Any:
        """Load a version, the newest by default."""
        return await self._artifacts.load(self._context_id, artifact_id, version)

    async def list(self) -> list[Artifact]:
        """The newest version of each artifact."""
        return await self._artifacts.list(self._context_id)

    async def delete(self, artifact_id: str) -> None:
        """Remove all versions of an artifact."""
        if self._token.reason == "fenced":
            raise Fenced("another owner has this context: nothing was deleted")
        await settle(self._artifacts.delete(self._context_id, artifact_id))
