"""A server's answer as a tool result: text and files for the model, other content as a note."""

from __future__ import annotations

import base64
from typing import Any

from looopy.tools.base import ToolResult
from looopy.tools.call.results import to_json_text
from looopy.types.message import AudioContent, DocumentContent, ImageContent, TextContent, UserBlock

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_AUDIO = ("audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3")


def to_tool_result(answer: Any) -> ToolResult:
    """
    The tool result for *answer*, a `CallToolResult` of the SDK.

    Structured content is kept in `details`; if there is no other content, the model sees it.
    """
    blocks = [block for one in answer.content for block in blocks_of(one)]
    structured = answer.structured_content
    if structured is not None and not blocks:
        blocks = [TextContent(to_json_text(structured))]
    details = None if structured is None else {"structured_content": structured}
    return ToolResult(tuple(blocks), details=details, is_error=bool(answer.is_error))


def blocks_of(content: Any) -> list[UserBlock]:
    """One part of the server's content, for the model."""
    match content.type:
        case "text":
            return [TextContent(content.text)] if content.text else []
        case "image":
            return [_file(content.data, content.mime_type, "an image")]
        case "audio":
            return [_file(content.data, content.mime_type, "audio")]
        case "resource_link":
            return [TextContent(_link(content))]
        case "resource":
            return [resource_block(content.resource)]
        case kind:
            return [TextContent(f"[content of type {kind!r}: cannot be shown]")]


def resource_block(resource: Any) -> UserBlock:
    """The content of a resource, for the model."""
    text = getattr(resource, "text", None)
    if text is not None:
        return TextContent(f"[resource {resource.uri}]\n{text}")
    mime_type = resource.mime_type or "application/octet-stream"
    return _file(resource.blob, mime_type, f"resource {resource.uri}")


def _file(data: str, mime_type: str, what: str) -> UserBlock:
    if mime_type in _IMAGES and _is_base64(data):
        return ImageContent(data=data, mime_type=mime_type)
    if mime_type in _AUDIO and _is_base64(data):
        return AudioContent(data=data, mime_type=mime_type)
    if mime_type == "application/pdf" and _is_base64(data):
        return DocumentContent(data=data, mime_type=mime_type)
    return TextContent(f"[{what}, {mime_type}, {_size(data)} bytes: cannot be shown]")


def _link(content: Any) -> str:
    kind = f", {content.mime_type}" if content.mime_type else ""
    said = f": {content.description}" if content.description else ""
    return f"[resource {content.name!r} at {content.uri}{kind}{said}]"


def _is_base64(data: str) -> bool:
    try:
        return bool(base64.b64decode(data, validate=True))
    except ValueError:
        return False


def _size(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")
