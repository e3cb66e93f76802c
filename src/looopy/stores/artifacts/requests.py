"""Requests to change an artifact, checked before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from looopy.errors import ValueRefused
from looopy.stores.requests import Delete, Save
from looopy.stores.rules import (
    artifact_filter,
    check_artifact_id,
    check_columns,
    checked_content,
    is_artifact_id,
    no_artifact,
)
from looopy.types.artifact import ArtifactKind, ArtifactStatus, Content
from looopy.types.storable import check_text, dump


class Described(TypedDict, total=False):
    """The keywords that `to_save` and `to_open` share."""

    media_type: str | None
    description: str | None
    metadata: Mapping[str, Any] | None
    columns: Mapping[str, str] | None


def to_save(
    artifact_id: str,
    content: Content,
    kind: ArtifactKind | str | None = None,
    media_type: str | None = None,
    *,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Save:
    """Check and serialise a version that is saved whole; errors as `ArtifactStore.save`."""
    check_artifact_id(artifact_id)
    actual, stored, media, rows = checked_content(content, kind, media_type, columns)
    return Save(
        artifact_id=artifact_id,
        kind=actual,
        content=stored,
        media_type=media,
        rows=rows,
        columns=_columns(columns, actual),
        description=_description(description),
        metadata=_metadata(metadata),
    )


def to_open(
    artifact_id: str,
    kind: ArtifactKind | str = ArtifactKind.FILE,
    media_type: str | None = None,
    *,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Save:
    """Check a version that is to be written piece by piece; errors as `ArtifactStore.open`."""
    check_artifact_id(artifact_id)
    wanted = artifact_filter(ArtifactKind, kind, "/kind")
    if wanted is None or wanted is ArtifactKind.DATA:
        raise ValueRefused("a data artifact is saved whole: open a file or a dataset", path="/kind")
    _, _, media, _ = checked_content(
        b"" if wanted is ArtifactKind.FILE else (), wanted, media_type, columns
    )
    return Save(
        artifact_id=artifact_id,
        kind=wanted,
        content=b"",
        media_type=media,
        columns=_columns(columns, wanted),
        status=ArtifactStatus.BUILDING,
        description=_description(description),
        metadata=_metadata(metadata),
    )


def to_delete(artifact_id: str) -> Delete:
    """The deletion of an artifact; `ArtifactNotFound` if no artifact can have that id."""
    if not is_artifact_id(artifact_id):
        raise no_artifact(artifact_id)
    return Delete(artifact_id=artifact_id)


def _columns(columns: Mapping[str, str] | None, kind: ArtifactKind) -> str | None:
    if kind is ArtifactKind.DATASET:
        return dump(dict(check_columns(columns)), "/columns")
    if columns is not None:
        raise ValueRefused(f"a {kind} artifact has no columns", path="/columns")
    return None


def _description(description: object) -> str | None:
    if description is None:
        return None
    if not isinstance(description, str):
        raise ValueRefused("a description is text", path="/description")
    check_text(description, "/description")
    return description


def _metadata(metadata: object) -> str | None:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ValueRefused("metadata is a JSON object", path="/metadata")
    return dump(dict(metadata), "/metadata") if metadata else None
