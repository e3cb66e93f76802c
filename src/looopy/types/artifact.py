"""Artifacts: named, versioned results of a turn, and the writer that tools use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol


class ArtifactKind(StrEnum):
    """The content of an artifact: bytes or JSON."""

    FILE = "file"
    DATA = "data"
    DATASET = "dataset"


class ArtifactStatus(StrEnum):
    """How far an artifact's writing has come."""

    BUILDING = "building"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """
    One version of an artifact, without its content.

    Attributes:
        artifact_id: The name, unique in its context.
        version: Counted from 1; each save makes the next.
        size: Bytes of the content.
        sha256: Hex digest of the content.
    """

    artifact_id: str
    kind: ArtifactKind
    version: int
    status: ArtifactStatus
    size: int
    media_type: str
    sha256: str
    created_at: datetime
    turn: int = 0


class ArtifactWriter(Protocol):
    """The artifact methods that a tool gets: write and read those of its own context."""

    async def save(
        self,
        artifact_id: str,
        content: bytes | str | Mapping[str, Any],
        *,
        kind: ArtifactKind | str | None = None,
        media_type: str | None = None,
    ) -> Artifact:
        """Save a new version; durable when it returns. See `ArtifactStore.save`."""
        ...

    async def load(self, artifact_id: str, version: int | None = None) -> bytes | dict[str, Any]:
        """Load a version, the newest by default. See `ArtifactStore.load`."""
        ...

    async def list(self) -> list[Artifact]:
        """The newest version of each artifact, by id."""
        ...

    async def delete(self, artifact_id: str) -> None:
        """
        Remove all versions of an artifact; they are gone for good when it returns.

        In a turn that is stored as it runs, this is a step of the turn, with its event.

        Raises:
            ArtifactNotFound: The context has no artifact of this id.
            Fenced: Another owner has the context; nothing was deleted.
        """
        ...
