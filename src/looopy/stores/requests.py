"""Requests to change an artifact: the argument of `ArtifactStore.change`, checked already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from looopy.types.artifact import ArtifactKind, ArtifactStatus, Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A version to save whole; `content` is JSON text of a data artifact, else bytes."""

    artifact_id: str
    kind: ArtifactKind
    content: str | bytes
    media_type: str
    rows: int = 0
    description: str | None = None
    metadata: str | None = None
    columns: str | None = None
    status: ArtifactStatus = ArtifactStatus.COMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A chunk for the version that is being built; `version`: only if it is this one."""

    artifact_id: str
    chunk: Chunk
    version: int | None = None
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Give up the version that is being built."""

    artifact_id: str
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove all versions."""

    artifact_id: str


Request: TypeAlias = Save | Append | Fail | Delete
