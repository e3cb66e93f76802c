"""
Documents and recordings in a request: which of them an API takes, and what stands for the others.

A file of the user's newest message that the model cannot read is refused, because the answer would
be about something else. Older files do not stop a turn: a file that an earlier model could read,
or that a tool returned, becomes a text that names it. A text document is sent everywhere, as text
if the API has no place for files.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from looopy.errors import UnsupportedContent
from looopy.llm.options import left_out
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    Message,
    TextContent,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from looopy.types.request import StreamOptions

_TEXT_TYPES: Final = frozenset(
    {
        *("application/json", "application/xml", "application/yaml", "application/x-yaml"),
        *("application/javascript", "application/toml", "application/sql"),
    }
)
AUDIO_FORMATS: Final = {
    **dict.fromkeys(("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"), "wav"),
    **dict.fromkeys(("audio/mpeg", "audio/mp3"), "mp3"),
}
"""The formats of recordings that models take, by their mime type."""


_BEGINNINGS: Final = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


class Unreadable(Exception):
    """The API has no place for a block; the text is the way out. Never raised to a user."""


def plain_type(block: DocumentContent | AudioContent | ImageContent) -> str:
    """The mime type without parameters such as a charset."""
    return block.mime_type.partition(";")[0].strip().lower()


def image_type(block: ImageContent) -> str:
    """The type that the first bytes of an image show; the declared one if they show none."""
    try:
        begins = base64.b64decode(block.data[:8])
    except ValueError:
        return block.mime_type
    return next((kind for magic, kind in _BEGINNINGS if begins.startswith(magic)), block.mime_type)


def document_text(block: UserBlock) -> str | None:
    """The text in a document of text that brings its data; `None` for any other block."""
    if not isinstance(block, DocumentContent) or not block.data:
        return None
    kind = plain_type(block)
    if not (kind.startswith("text/") or kind in _TEXT_TYPES):
        return None
    try:
        return base64.b64decode(block.data).decode("utf-8", "replace")
    except ValueError:
        return None


def as_text(block: DocumentContent, text: str) -> str:
    """The *text* of a document, with its name, for an API without a place for documents."""
    name = "".join(c for c in block.name or "document" if c.isprintable() and c != '"')
    return f'<document name="{name}">\n{text}\n</document>'


def data_url(block: DocumentContent | ImageContent) -> str:
    """The data of *block* as a URL."""
    kind = image_type(block) if isinstance(block, ImageContent) else block.mime_type
    return f"data:{kind};base64,{block.data}"


def file_name(block: DocumentContent) -> str:
    """The name of a document, which OpenAI requires."""
    return block.name or f"document.{plain_type(block).rpartition('/')[2]}"


def named(block: DocumentContent | AudioContent | ImageContent) -> str:
    """A sentence in the place of a block that the model cannot read."""
    name = getattr(block, "name", None)
    words = f"{block.type} {name!r}" if name else f"{block.type}"
    kind = "an" if words[0] in "ai" else "a"
    return f"[{kind} {words} ({block.mime_type}), which this model cannot read]"


def refuse_unreadable(
    block: UserBlock,
    position: int,
    messages: Sequence[Message],
    why: Unreadable,
    *,
    provider: str,
    model: str,
) -> str:
    """The text in place of *block*; `UnsupportedContent` if the newest user message has it."""
    assert isinstance(block, (DocumentContent, AudioContent, ImageContent))  # noqa: S101 - no text
    if position == newest_question(messages):
        raise UnsupportedContent(
            f"{provider}/{model} takes no {block.type} of the type {block.mime_type!r} here: {why}",
            provider=provider,
            model=model,
            mime_type=block.mime_type,
        )
    return named(block)


def newest_question(messages: Sequence[Message]) -> int:
    """The position of the user's newest message; -1 if there is none."""
    places = range(len(messages) - 1, -1, -1)
    return next((i for i in places if isinstance(messages[i], UserMessage)), -1)


def warn_of_citations(options: StreamOptions, messages: Sequence[Message], name: str) -> None:
    """Warn if the user's newest message wants citations, which the model *name* does not give."""
    position = newest_question(messages)
    content = messages[position].content if position >= 0 else ""
    if not isinstance(content, str) and any(getattr(block, "cite", False) for block in content):
        text = f"{name} does not cite documents: DocumentContent.cite is left out"
        left_out(options, "cite", text)


def without_files(
    messages: Sequence[Message], *, provider: str, model: str, images: bool
) -> Sequence[Message]:
    """
    *messages* for a model that reads only text; the same sequence if they hold no file.

    Args:
        images: It sees images that bring their data. Otherwise an image stays, for the caller.

    Raises:
        UnsupportedContent: The user's newest message has a file that is not text.
    """
    if not any(map(_has_file, messages)):
        return messages
    why = Unreadable("send the text of the file")

    def shown(block: Any, position: int) -> Any:
        if isinstance(block, ImageContent) and (block.data or not images):
            kind = image_type(block)
            return block if kind == block.mime_type else replace(block, mime_type=kind)
        if not isinstance(block, (ImageContent, DocumentContent, AudioContent)):
            return block
        text = document_text(block)
        if text is not None and isinstance(block, DocumentContent):
            return TextContent(as_text(block, text))
        return TextContent(
            refuse_unreadable(block, position, messages, why, provider=provider, model=model)
        )

    return [
        replace(message, content=tuple(shown(block, at) for block in message.content))
        if isinstance(message, (UserMessage, ToolResultMessage)) and _has_file(message)
        else message
        for at, message in enumerate(messages)
    ]


def _has_file(message: Message) -> bool:
    content = message.content
    return isinstance(message, (UserMessage, ToolResultMessage)) and not (
        isinstance(content, str) or all(isinstance(block, TextContent) for block in content)
    )
