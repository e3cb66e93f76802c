"""
Tools with which a model keeps its own results: files, JSON objects and tables, by name.

`ArtifactTools()` is a source of fourteen tools over the artifacts of the turn's context; they
cannot name another context. Each write is durable when the tool returns. A writing tool never runs
beside another writing tool. So the changes that a model requests in one answer happen in that
order.

A file or table is complete when it is created, and each change then makes its next version. Begun
with `complete=false` it is built up instead: each piece is added to the same version, until one is
the last. Nothing is read again for that, so it may become as large as the disk allows.

Tables of earlier versions of looopy are one JSON object, `{"columns": ..., "rows": [...]}`, under a
media type of their own. They are read, and become datasets when rows are added.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal

from looopy.errors import ArtifactNotFound
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.function.decorator import tool
from looopy.types.artifact import (
    Artifact,
    ArtifactKind,
    ArtifactStatus,
    ArtifactWriter,
    OpenArtifact,
)
from looopy.types.message import DocumentContent, ImageContent

DATASET = "application/vnd.looopy.dataset+json"
_MOST_CHARS = 50_000
_MOST_ROWS = 1_000
_MOST_LISTED = 200
_WHOLE_BYTES = 8 * 1024 * 1024  # of what is read or changed in one piece
ColumnType = Literal["string", "number", "integer", "boolean", "any"]
Row = dict[str, Any]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
}


class ArtifactTools:
    """
    A `ToolProvider` for artifacts of the turn's context.

    Args:
        read_only: Offer only the tools that read.
    """

    is_local: Final = True

    def __init__(self, *, read_only: bool = False) -> None:
        self._tools = [*_LOOKING] if read_only else [*_WRITING, *_LOOKING]

    def list_tools(self) -> Sequence[Tool]:
        """The tools."""
        return self._tools


# --- files ---


@tool
async def create_file_artifact(
    artifact_id: str,
    context: ToolContext,
    content: str = "",
    media_type: str = "text/plain; charset=utf-8",
    override: bool = False,
    description: str | None = None,
    complete: bool = True,
) -> dict[str, Any]:
    """
    Create a text file.

    Args:
        override: Replace an artifact that has this name already.
        description: One sentence about it.
        complete: False if more is to be appended: finish with the last chunk.
    """
    await _new(context, artifact_id, override=override)
    writer, raw = _writer(context), content.encode()
    if complete:
        return _said(
            await writer.save(artifact_id, raw, media_type=media_type, description=description)
        )
    opened = writer.open(artifact_id, media_type=media_type, description=description)
    return _said(await _begin(opened, raw))


@tool
async def append_file_chunk(
    artifact_id: str, chunk: str, context: ToolContext, last_chunk: bool = False
) -> dict[str, Any]:
    """
    Append text to a file.

    Args:
        last_chunk: For a file that was begun with complete=false: it is complete now.
    """
    found = await _find(context, artifact_id, ArtifactKind.FILE)
    writer = _writer(context)
    if found.status is ArtifactStatus.BUILDING:
        return _said(
            await writer.append(artifact_id, chunk, version=found.version, last=last_chunk)
        )
    _check_size(found)
    content = await writer.read(artifact_id, version=found.version)
    saved = await writer.save(
        artifact_id,
        content + chunk.encode(),
        media_type=found.media_type,
        description=found.description,
        metadata=found.metadata,
    )
    return _said(saved)


@tool(effects="none", parallel=True)
async def get_file_content(
    artifact_id: str,
    context: ToolContext,
    offset: int = 0,
    limit: int = _MOST_CHARS,
    version: int | None = None,
) -> Any:
    """
    Read a file, or a part of it.

    Args:
        offset: Characters to skip.
        limit: Characters to read.
        version: An older version; the newest by default.
    """
    found = await _find(context, artifact_id, ArtifactKind.FILE, version)
    writer, offset = _writer(context), max(0, offset)
    limit = max(1, min(limit, _MOST_CHARS))
    if found.size > _WHOLE_BYTES:
        return await _part_of(writer, found, offset, limit)
    data = await writer.read(artifact_id, version=found.version)
    if found.media_type.startswith("image/"):
        return ImageContent(base64.b64encode(data).decode(), mime_type=found.media_type)
    if found.media_type == "application/pdf":
        return DocumentContent(base64.b64encode(data).decode(), name=artifact_id)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ToolResult(f"{artifact_id!r} is not text: {len(data):,} bytes", is_error=True)
    part = text[offset : offset + limit]
    more = len(text) - offset - len(part)
    return {"content": part, "offset": offset, "total_chars": len(text), "more": max(0, more)}


async def _part_of(writer: ArtifactWriter, found: Artifact, offset: int, limit: int) -> Any:
    """Characters of a file that is not read whole; the bytes before them are only counted."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    part, skipped = "", 0
    try:
        async for piece in writer.stream(found.artifact_id, version=found.version):
            text = decoder.decode(piece)
            wanted = text[max(0, offset - skipped) :]
            skipped += len(text) - len(wanted)
            part += wanted[: limit + 1 - len(part)]
            if len(part) > limit:
                break
    except UnicodeDecodeError:
        said = f"{found.artifact_id!r} is not text: {found.size:,} bytes"
        return ToolResult(said, is_error=True)
    more = len(part) > limit
    return {"content": part[:limit], "offset": offset, "total_bytes": found.size, "more": more}


# --- data ---


@tool
async def create_data_artifact(
    artifact_id: str, data: Row, context: ToolContext, override: bool = False
) -> dict[str, Any]:
    """
    Keep a JSON object.

    Args:
        override: Replace an artifact that has this name already.
    """
    await _new(context, artifact_id, override=override)
    return _said(await _writer(context).save(artifact_id, data))


@tool
async def update_data_artifact(
    artifact_id: str,
    data: Row,
    context: ToolContext,
    merge: bool = False,
) -> dict[str, Any]:
    """
    Replace a JSON object, or some of its fields.

    Args:
        merge: Change these fields and leave the others.
    """
    await _find(context, artifact_id, ArtifactKind.DATA)
    old = await _object(context, artifact_id) if merge else {}
    return _said(await _writer(context).save(artifact_id, {**old, **data}))


@tool(effects="none", parallel=True)
async def get_data_content(
    artifact_id: str, context: ToolContext, version: int | None = None
) -> dict[str, Any]:
    """
    Read a JSON object.

    Args:
        version: An older version; the newest by default.
    """
    await _find(context, artifact_id, ArtifactKind.DATA)
    return await _object(context, artifact_id, version)


@tool(effects="none", parallel=True)
async def get_data_artifact(artifact_id: str, context: ToolContext) -> dict[str, Any]:
    """Read a JSON object together with its name, version and size."""
    found = await _find(context, artifact_id, ArtifactKind.DATA)
    return {**_said(found), "data": await _object(context, artifact_id)}


# --- tables ---


@tool
async def create_dataset_artifact(
    artifact_id: str,
    columns: dict[str, ColumnType],
    context: ToolContext,
    rows: list[Row] | None = None,
    override: bool = False,
    description: str | None = None,
    complete: bool = True,
) -> dict[str, Any]:
    """
    Create a table with these columns.

    Args:
        columns: Types by name.
        override: Replace an artifact that has this name already.
        description: One sentence about it.
        complete: False if more rows are to be appended: finish with the last ones.
    """
    if not columns:
        raise ValueError('columns: a table has at least one, such as {"name": "string"}')
    await _new(context, artifact_id, override=override)
    _check_rows(columns, rows or [])
    writer = _writer(context)
    if complete:
        return _said(
            await writer.save(artifact_id, rows or [], columns=columns, description=description)
        )
    opened = writer.open(artifact_id, kind="dataset", columns=columns, description=description)
    return _said(await _begin(opened, rows or []))


@tool
async def append_dataset_row(
    artifact_id: str, row: Row, context: ToolContext, last_row: bool = False
) -> dict[str, Any]:
    """
    Append a row to a table.

    Args:
        last_row: For a table that was begun with complete=false: it is complete now.
    """
    return await _append_rows(context, artifact_id, [row], last=last_row)


@tool
async def append_dataset_rows(
    artifact_id: str, rows: list[Row], context: ToolContext, last_rows: bool = False
) -> dict[str, Any]:
    """
    Append rows to a table: all of them or none.

    Args:
        last_rows: For a table that was begun with complete=false: it is complete now.
    """
    return await _append_rows(context, artifact_id, rows, last=last_rows)


@tool(effects="none", parallel=True)
async def get_dataset_rows(
    artifact_id: str,
    context: ToolContext,
    offset: int = 0,
    limit: int = 100,
    version: int | None = None,
) -> dict[str, Any]:
    """
    Read rows of a table.

    Args:
        offset: Rows to skip.
        limit: Rows to read.
        version: An older version; the newest by default.
    """
    found = await _find(context, artifact_id, ArtifactKind.DATASET, version)
    offset, limit = max(0, offset), max(1, min(limit, _MOST_ROWS))
    if found.columns is None:
        columns, every = await _old_table(context, found)
        rows, total = every[offset : offset + limit], len(every)
    else:
        columns, total = found.columns, found.rows
        rows = await _writer(context).rows(
            artifact_id, after=offset, limit=limit, version=found.version
        )
    more = max(0, total - offset - len(rows))
    return {"columns": columns, "rows": rows, "offset": offset, "more": more}


# --- all kinds ---


@tool(effects="none", parallel=True)
async def list_artifacts(context: ToolContext, after: str = "") -> list[dict[str, Any]]:
    """
    List the files, objects and tables of this conversation, by name.

    Args:
        after: Begin after this name, for a list that was cut.
    """
    return [_said(one) for one in await _writer(context).list(after=after, limit=_MOST_LISTED)]


@tool(effects="none", parallel=True)
async def get_artifact(
    artifact_id: str, context: ToolContext, version: int | None = None
) -> dict[str, Any]:
    """
    Describe a file, object or table: its kind, version and size.

    Args:
        version: An older version; the newest by default.
    """
    return _said(await _find(context, artifact_id, version=version))


@tool
async def delete_artifact(artifact_id: str, context: ToolContext) -> str:
    """Delete a file, object or table with all its versions."""
    await _find(context, artifact_id)
    await _writer(context).delete(artifact_id)
    return f"deleted {artifact_id}"


_WRITING: Sequence[Tool] = (
    create_file_artifact,
    append_file_chunk,
    create_data_artifact,
    update_data_artifact,
    create_dataset_artifact,
    append_dataset_row,
    append_dataset_rows,
    delete_artifact,
)
_LOOKING: Sequence[Tool] = (
    get_file_content,
    get_data_content,
    get_data_artifact,
    get_dataset_rows,
    list_artifacts,
    get_artifact,
)


def _writer(context: ToolContext) -> ArtifactWriter:
    if context.artifacts is None:
        raise ValueError("there is nowhere to keep artifacts: this turn has no store")
    return context.artifacts


def _kind(artifact: Artifact) -> str:
    return "dataset" if artifact.media_type == DATASET else artifact.kind.value


def _said(artifact: Artifact) -> dict[str, Any]:
    said: dict[str, Any] = {
        "artifact_id": artifact.artifact_id,
        "kind": _kind(artifact),
        "version": artifact.version,
        "size": artifact.size,
        "media_type": artifact.media_type,
    }
    if artifact.kind is ArtifactKind.DATASET:
        said["rows"] = artifact.rows
    if artifact.status is not ArtifactStatus.COMPLETE:
        said["status"] = artifact.status.value
    if artifact.description is not None:
        said["description"] = artifact.description
    return said


async def _begin(
    opened: AbstractAsyncContextManager[OpenArtifact], content: bytes | list[Row]
) -> Artifact:
    """Begin a version with *content*, and leave it open: another call ends it."""
    being_built = await opened.__aenter__()
    return await being_built.append(content) if content else being_built.artifact


async def _find(
    context: ToolContext,
    artifact_id: str,
    kind: ArtifactKind | None = None,
    version: int | None = None,
) -> Artifact:
    """A version, the newest by default, which must be of *kind*."""
    try:
        found = await _writer(context).get(artifact_id, version)
    except ArtifactNotFound:
        if version is not None and any(
            one.artifact_id == artifact_id for one in await _writer(context).list()
        ):
            raise
        artifacts = await _writer(context).list(limit=20)
        names = ", ".join(repr(one.artifact_id) for one in artifacts) or "none"
        raise ValueError(f"there is no artifact {artifact_id!r}; there are: {names}") from None
    if kind is not None and _kind(found) != kind.value:
        raise ValueError(f"{artifact_id!r} is a {_kind(found)} artifact, not a {kind.value}")
    return found


async def _new(context: ToolContext, artifact_id: str, *, override: bool) -> None:
    if override:
        return
    try:
        await _writer(context).get(artifact_id)
    except ArtifactNotFound:
        return
    raise ValueError(f"there is an artifact {artifact_id!r} already: pass override=true")


def _check_size(found: Artifact) -> None:
    if found.size > _WHOLE_BYTES:
        raise ValueError(
            f"{found.artifact_id!r} is complete, and too large to be rewritten with more:"
            " begin another with complete=false"
        )


async def _object(context: ToolContext, artifact_id: str, version: int | None = None) -> Row:
    content = await _writer(context).load(artifact_id, version)
    if not isinstance(content, dict):
        raise ValueError(f"that version of {artifact_id!r} is not an object")  # noqa: TRY004 - for the model
    return dict(content)


async def _old_table(context: ToolContext, found: Artifact) -> tuple[Mapping[str, str], list[Row]]:
    """Columns and rows of a table that is stored as one object."""
    table = await _object(context, found.artifact_id, found.version)
    return table["columns"], table["rows"]


async def _append_rows(
    context: ToolContext, artifact_id: str, rows: Sequence[Row], *, last: bool
) -> dict[str, Any]:
    found = await _find(context, artifact_id, ArtifactKind.DATASET)
    writer = _writer(context)
    if found.status is ArtifactStatus.BUILDING and found.columns is not None:
        _check_rows(found.columns, rows)
        return _said(await writer.append(artifact_id, list(rows), version=found.version, last=last))
    _check_size(found)
    before: Any
    if found.columns is None:
        columns, before = await _old_table(context, found)
    else:
        columns, before = found.columns, await writer.load(artifact_id, found.version)
    _check_rows(columns, rows)
    saved = await writer.save(
        artifact_id,
        [*before, *rows],
        columns=columns,
        description=found.description,
        metadata=found.metadata,
    )
    return _said(saved)


def _check_rows(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows):
        _check_row(columns, row, number)


def _check_row(columns: Mapping[str, str], row: Row, number: int) -> None:
    for name, value in row.items():
        if name not in columns:
            known = ", ".join(columns)
            raise ValueError(f"rows[{number}].{name}: no such column; there are: {known}")
        allowed = _TYPES.get(columns[name])
        is_truth = isinstance(value, bool) and columns[name] != "boolean"
        if allowed and value is not None and (is_truth or not isinstance(value, allowed)):
            raise ValueError(f"rows[{number}].{name}: must be {columns[name]}, or null")
