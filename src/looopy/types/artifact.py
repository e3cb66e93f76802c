"""Artifacts: named, versioned results of a turn, and the writer that tools use."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

Row: TypeAlias = Mapping[str, Any]
"""A row of a dataset: JSON values by column."""

Content: TypeAlias = bytes | str | Mapping[str, Any] | Sequence[Row]
"""Bytes or text of a file, the object of a data artifact, or the rows of a dataset."""

Loaded: TypeAlias = bytes | dict[str, Any] | list[dict[str, Any]]
"""Content as it is read: bytes of a file, the object of a data artifact, or rows of a dataset."""

Chunk: TypeAlias = bytes | str | Sequence[Row]
"""A piece of a file or of a dataset."""


ARTIFACT_TOOLS = frozenset(
    {
        *("create_file_artifact", "append_file_chunk", "get_file_content"),
        *("create_data_artifact", "update_data_artifact", "get_data_content", "get_data_artifact"),
        *("create_dataset_artifact", "append_dataset_row", "append_dataset_rows"),
        *("get_dataset_rows", "list_artifacts", "get_artifact", "delete_artifact"),
    }
)
"""The names of looopy's tools for artifacts, whose results repeat what is in them."""


class ArtifactKind(StrEnum):
    """The content of an artifact: bytes, one JSON object, or rows with named columns."""

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
        version: Counted from 1; each save and each open makes the next.
        size: Bytes of the content: a data artifact's JSON text, a dataset's rows as JSON lines.
        sha256: Hex digest of the content; empty until the version is complete.
        turn: The turn that began this version; 0 before the first turn.
        description: A sentence for people and models, or `None`.
        metadata: JSON values of the application.
        columns: Types by name, of a dataset; `None` of any other kind.
        rows: How many rows a dataset has; 0 of any other kind.
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
    description: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] | None = None
    rows: int = 0


class OpenArtifact(Protocol):
    """
    A version that is being written; see `ArtifactWriter.open`.

    Attributes:
        artifact: The version as the last call left it.
    """

    artifact: Artifact

    async def append(self, chunk: Chunk) -> Artifact:
        """Append a chunk; durable when it returns. See `ArtifactStore.append`."""
        ...


class ArtifactWriter(Protocol):
    """The artifact methods that a tool gets, for its own context."""

    async def save(
        self,
        artifact_id: str,
        content: Content,
        *,
        kind: ArtifactKind | str | None = None,
        media_type: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Artifact:
        """Save a new version; durable when it returns. See `ArtifactStore.save`."""
        ...

    def open(
        self,
        artifact_id: str,
        *,
        kind: ArtifactKind | str = ArtifactKind.FILE,
        media_type: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[OpenArtifact]:
        """
        Write a new version piece by piece: `async with context.artifacts.open("log") as log:`.

        The version is complete at the end of the block, and failed if the block raised.
        """
        ...

    async def append(
        self, artifact_id: str, chunk: Chunk, *, version: int | None = None, last: bool = False
    ) -> Artifact:
        """Append to a version that is being built. See `ArtifactStore.append`."""
        ...

    async def complete(self, artifact_id: str, *, version: int | None = None) -> Artifact:
        """End the version that is being built. See `ArtifactStore.complete`."""
        ...

    async def fail(self, artifact_id: str, *, version: int | None = None) -> Artifact:
        """Give the version that is being built up. See `ArtifactStore.fail`."""
        ...

    async def load(self, artifact_id: str, version: int | None = None) -> Loaded:
        """Load a version, the newest complete one by default. See `ArtifactStore.load`."""
        ...

    async def read(
        self,
        artifact_id: str,
        *,
        start: int = 0,
        size: int | None = None,
        version: int | None = None,
    ) -> bytes:
        """Read a range of bytes. See `ArtifactStore.read`."""
        ...

    def stream(self, artifact_id: str, *, version: int | None = None) -> AsyncIterator[bytes]:
        """Read the content in pieces. See `ArtifactStore.stream`."""
        ...

    async def rows(
        self, artifact_id: str, *, after: int = 0, limit: int = 100, version: int | None = None
    ) -> list[dict[str, Any]]:
        """Read rows of a dataset. See `ArtifactStore.rows`."""
        ...

    async def get(self, artifact_id: str, version: int | None = None) -> Artifact:
        """Describe a version, the newest by default. See `ArtifactStore.get`."""
        ...

    async def versions(self, artifact_id: str) -> list[Artifact]:
        """All versions, oldest first. See `ArtifactStore.versions`."""
        ...

    async def list(
        self,
        *,
        turn: int | None = None,
        kind: ArtifactKind | str | None = None,
        status: ArtifactStatus | str | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[Artifact]:
        """The newest version of each artifact, by id. See `ArtifactStore.list`."""
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
