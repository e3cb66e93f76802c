"""
Tools with which a model keeps its own results: files, JSON objects and tables, by name.

`ArtifactTools()` is a source of fourteen tools over the artifacts of the turn's context; they
cannot name another context. Each write makes the next version of an artifact and is durable when
the tool returns. A writing tool never runs beside another writing tool. So the changes that a model
requests in one answer happen in that order.

A table is stored as one JSON object, `{"columns": ..., "rows": [...]}`, under a media type of its
own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.function.decorator import tool
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactWriter
from looopy.types.message import ImageContent

DATASET = "application/vnd.looopy.dataset+json"
_MOST_CHARS = 50_000
_MOST_ROWS = 1_000
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
) -> dict[str, Any]:
    """
    Create a text file.

    Args:
        override: Replace an artifact that has this name already.
    """
    await _new(context, artifact_id, override=override)
    return _said(await _writer(context).save(artifact_id, content.encode(), media_type=media_type))


@tool
async def append_file_chunk(artifact_id: str, chunk: str, context: ToolContext) -> dict[str, Any]:
    """Append text to a file."""
    found = await _find(context, artifact_id, ArtifactKind.FILE)
    content = await _bytes(context, artifact_id)
    saved = await _writer(context).save(
        artifact_id, content + chunk.encode(), media_type=found.media_type
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
    found = await _find(context, artifact_id, ArtifactKind.FILE)
    data = await _bytes(context, artifact_id, version)
    if found.media_type.startswith("image/"):
        return ImageContent(base64.b64encode(data).decode(), mime_type=found.media_type)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ToolResult(f"{artifact_id!r} is no text: {len(data):,} bytes", is_error=True)
    offset = max(0, offset)
    part = text[offset : offset + max(1, min(limit, _MOST_CHARS))]
    more = len(text) - offset - len(part)
    return {"content": part, "offset": offset, "total_chars": len(text), "more": max(0, more)}


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
) -> dict[str, Any]:
    """
    Create a table with these columns.

    Args:
        columns: Types by name.
        override: Replace an artifact that has this name already.
    """
    if not columns:
        raise ValueError('columns: a table has at least one, such as {"name": "string"}')
    await _new(context, artifact_id, override=override)
    table: dict[str, Any] = {"columns": columns, "rows": []}
    return await _save_rows(context, artifact_id, table, rows or [])


@tool
async def append_dataset_row(artifact_id: str, row: Row, context: ToolContext) -> dict[str, Any]:
    """Append a row to a table."""
    return await _save_rows(context, artifact_id, await _table(context, artifact_id), [row])


@tool
async def append_dataset_rows(
    artifact_id: str, rows: list[Row], context: ToolContext
) -> dict[str, Any]:
    """Append rows to a table: all of them or none."""
    return await _save_rows(context, artifact_id, await _table(context, artifact_id), rows)


@tool(effects="none", parallel=True)
async def get_dataset_rows(
    artifact_id: str,
    context: ToolContext,
    offset: int = 0,
    limit: int = 100,
) -> dict[str, Any]:
    """
    Read rows of a table.

    Args:
        offset: Rows to skip.
        limit: Rows to read.
    """
    table = await _table(context, artifact_id)
    offset = max(0, offset)
    rows = table["rows"][offset : offset + max(1, min(limit, _MOST_ROWS))]
    more = max(0, len(table["rows"]) - offset - len(rows))
    return {"columns": table["columns"], "rows": rows, "offset": offset, "more": more}


# --- all kinds ---


@tool(effects="none", parallel=True)
async def list_artifacts(context: ToolContext) -> list[dict[str, Any]]:
    """List the files, objects and tables of this conversation."""
    return [_said(one) for one in await _writer(context).list()]


@tool(effects="none", parallel=True)
async def get_artifact(artifact_id: str, context: ToolContext) -> dict[str, Any]:
    """Describe a file, object or table: its kind, version and size."""
    return _said(await _find(context, artifact_id))


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
    return {
        "artifact_id": artifact.artifact_id,
        "kind": _kind(artifact),
        "version": artifact.version,
        "size": artifact.size,
        "media_type": artifact.media_type,
    }


async def _find(
    context: ToolContext, artifact_id: str, kind: ArtifactKind | None = None
) -> Artifact:
    """The newest version, which must be of *kind*."""
    artifacts = await _writer(context).list()
    found = next((one for one in artifacts if one.artifact_id == artifact_id), None)
    if found is None:
        names = ", ".join(repr(one.artifact_id) for one in artifacts[:20]) or "none"
        raise ValueError(f"there is no artifact {artifact_id!r}; there are: {names}")
    if kind is not None and _kind(found) != kind.value:
        raise ValueError(f"{artifact_id!r} is a {_kind(found)} artifact, not a {kind.value}")
    return found


async def _new(context: ToolContext, artifact_id: str, *, override: bool) -> None:
    if override:
        return
    if any(one.artifact_id == artifact_id for one in await _writer(context).list()):
        raise ValueError(f"there is an artifact {artifact_id!r} already: pass override=true")


async def _bytes(context: ToolContext, artifact_id: str, version: int | None = None) -> bytes:
    content = await _writer(context).load(artifact_id, version)
    return content if isinstance(content, bytes) else json.dumps(content).encode()


async def _object(context: ToolContext, artifact_id: str, version: int | None = None) -> Row:
    content = await _writer(context).load(artifact_id, version)
    if isinstance(content, bytes):
        raise ValueError(f"that version of {artifact_id!r} is a file")  # noqa: TRY004 - for the model
    return dict(content)


async def _table(context: ToolContext, artifact_id: str) -> dict[str, Any]:
    await _find(context, artifact_id, ArtifactKind.DATASET)
    return await _object(context, artifact_id)


async def _save_rows(
    context: ToolContext, artifact_id: str, table: dict[str, Any], rows: Sequence[Row]
) -> dict[str, Any]:
    for number, row in enumerate(rows):
        _check_row(table["columns"], row, number)
    made = {"columns": table["columns"], "rows": [*table["rows"], *rows]}
    saved = await _writer(context).save(artifact_id, made, media_type=DATASET)
    return {**_said(saved), "rows": len(made["rows"])}


def _check_row(columns: Mapping[str, str], row: Row, number: int) -> None:
    for name, value in row.items():
        if name not in columns:
            known = ", ".join(columns)
            raise ValueError(f"rows[{number}].{name}: no such column; there are: {known}")
        allowed = _TYPES.get(columns[name])
        is_truth = isinstance(value, bool) and columns[name] != "boolean"
        if allowed and value is not None and (is_truth or not isinstance(value, allowed)):
            raise ValueError(f"rows[{number}].{name}: must be {columns[name]}, or null")
