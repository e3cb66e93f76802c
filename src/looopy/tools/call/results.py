"""
The result or exception of a tool, as content for the model.

Functions return any Python value; a model reads text and files. Every value that pydantic can
write as JSON becomes JSON text. Any other becomes an error that names the possible types. Text
is measured in UTF-8 bytes and cut between characters.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

from looopy.errors import ValueRefused
from looopy.tools.base import ToolContext, ToolResult
from looopy.types.constructors import amended, quick
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    ToolResultMessage,
    UserBlock,
    url_of,
)
from looopy.types.message_check import Lost, mended_shown
from looopy.types.message_fields import as_flag
from looopy.types.message_json import message_to_json
from looopy.types.storable import SURELY_SHORT, check, dump, is_media_type, repair, repair_json

_MAX_LEAVES = 5
_MAX_DETAILS_CHARS = 1024 * 1024  # as JSON
_CONTINUATION = 0x80  # the top bits of a byte inside a character: RFC 3629, section 3


@quick
@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call. `blocks` are in order, and [] for empty text."""

    blocks: tuple[UserBlock, ...]
    details: Any = None
    is_error: bool = False


def failure(text: str) -> Answer:
    """An error with *text*."""
    return Answer((TextContent(text),), is_error=True)


def to_answer(value: Any) -> Answer:
    """
    Wrap what a tool returned.

    Raises:
        TypeError: It is bytes, or holds something that JSON cannot express.
        ValueError: It holds itself.
    """
    if not isinstance(value, ToolResult):
        return Answer(to_blocks(value))
    # Here an empty list has no content; returned by itself it is the JSON text of a list.
    empty = isinstance(value.content, (str, list, tuple)) and not value.content
    blocks = () if empty or value.content is None else to_blocks(value.content)
    return Answer(blocks, details=value.details, is_error=_is_error(value.is_error))


def _is_error(said: Any) -> bool:
    """True if a tool reports failure; a value that means neither yes nor no is a failure."""
    if said is True or said is False:
        return said
    try:
        return as_flag(said)
    except Exception:  # noqa: BLE001 - an array's truth, say, is its own code
        return True


_NAMES = {"image": "an image", "document": "a document", "audio": "audio"}
_BLOCKS = (TextContent, ImageContent, DocumentContent, AudioContent)


def to_blocks(value: Any) -> tuple[UserBlock, ...]:
    """
    The content for *value*: blocks, text as one block, all else as JSON text.

    Raises:
        TypeError: It cannot be written, or a block holds something that no model can read.
    """
    if isinstance(value, _BLOCKS):
        lost: Lost = []
        blocks = mended_shown((value,), lost)
        if wrong := [path for path in lost if not path.endswith("_signature")]:
            name = wrong[0].rpartition("/")[2]
            raise TypeError(
                f"the tool returned {type(value).__name__}({name}=...) with a value of the type"
                f" {type(getattr(value, name)).__name__}, which no model can read"
            )
        return blocks
    if isinstance(value, (list, tuple)) and any(isinstance(item, _BLOCKS) for item in value):
        return tuple(block for item in value for block in to_blocks(item))
    text = value if isinstance(value, str) else to_json_text(value)
    return (TextContent(str(text)),) if text else ()


def to_json_text(value: Any) -> str:
    """
    *value* as JSON; `None` is `null`, NaN and infinities become strings.

    Raises:
        TypeError: Bytes, or something that JSON cannot express.
        ValueError: It holds itself.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(
            "the tool returned bytes, which a model cannot read: return text, ImageContent or"
            " DocumentContent, or save them with context.artifacts.save() and return the name of"
            " the artifact"
        )
    try:
        # A string or number of a subclass, such as an enum's, writes its value in both.
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return _rich_json_text(value)


def _rich_json_text(value: Any) -> str:
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except PydanticSerializationError as error:
        raise TypeError(
            f"the tool returned a {type(value).__name__} that cannot be written as JSON ({error}):"
            " return text, a dict, a dataclass or a pydantic model"
        ) from None


def error_text(error: BaseException) -> str:
    """The text of *error*, or else its class's name; for a group, the texts of its members."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the call its result
        return f"{name} (its message cannot be shown)"
    if isinstance(error, BaseExceptionGroup):
        leaves = [error_text(one) for one in error.exceptions[:_MAX_LEAVES]]
        return f"{text}: {'; '.join(leaves)}"
    if isinstance(error, KeyError) and type(error).__str__ is KeyError.__str__:
        return f"{name}: {text}"  # the text alone is only the key
    return text if text.strip() else name


def exceeds(blocks: Sequence[UserBlock], max_bytes: int) -> bool:
    """True if *blocks* are more than *max_bytes*, counted as `limit_blocks` does."""
    left = max_bytes
    for block in blocks:
        left -= _size_of(block, left)
        if left < 0:
            return True
    return False


def limit_blocks(
    blocks: Sequence[UserBlock], max_bytes: int, *, kept: str | None = None
) -> tuple[UserBlock, ...]:
    """
    Keep the first *max_bytes* of *blocks*, counted in UTF-8 and in the base64 text of files.

    The rest is left out, and a marker in its place has its size. A file is kept whole
    or not at all. Blocks that fit come back unchanged.

    Args:
        kept: Where the whole is; a last marker names it.
    """
    shown: list[UserBlock] = []
    left = max_bytes
    for block in blocks:
        size = _size_of(block, left)
        if size <= left:
            shown.append(block)
            left -= size
        elif isinstance(block, TextContent):
            shown.append(TextContent(_cut(block.text, left)))
            left = 0
        else:
            what = _NAMES[block.type]
            shown.append(TextContent(f"[{what} of {size:,} bytes was left out: too large]"))
    if kept is not None:
        shown.append(TextContent(f"[All of it is kept: {kept}.]"))
    return tuple(shown)


def _size_of(block: UserBlock, enough: int) -> int:
    if not isinstance(block, TextContent):
        return len(block.data) + len(url_of(block) or "")
    # A character is 1 to 4 bytes, so most blocks need not be encoded to be measured.
    chars = len(block.text)
    return chars if chars > enough else len(block.text.encode("utf-8", "surrogatepass"))


def _cut(text: str, max_bytes: int) -> str:
    data = text.encode("utf-8", "surrogatepass")
    end = _between_characters(data, max_bytes)
    head = data[:end].decode("utf-8", "surrogatepass")
    return f"{head}\n[{len(data) - end:,} of {len(data):,} bytes were left out]"


def _between_characters(data: bytes, end: int) -> int:
    """The last place up to *end* where UTF-8 may be cut."""
    while 0 < end < len(data) and data[end] & 0xC0 == _CONTINUATION:
        end -= 1
    return min(end, len(data))


def storable(result: ToolResultMessage) -> ToolResultMessage:
    """*result* with text and details that every store keeps."""
    content = tuple(map(_storable_block, result.content))
    details = _storable_details(repair_json(result.details))
    # By identity: the tool's own values may not be comparable.
    same = details is result.details and all(map(is_, content, result.content))
    kept = result if same else amended(result, content=content, details=details)
    plain = [one for one in content if isinstance(one, TextContent) and one.text_signature is None]
    chars = sum(len(one.text) for one in plain)
    if details is None and len(plain) == len(content) and chars <= SURELY_SHORT:
        return kept  # every store takes texts so short, with any other fields
    try:
        check(message_to_json(kept, compact=True))
    except ValueRefused as refused:
        why = f"The tool has run, but its result cannot be stored: {refused.message}"
        return replace(result, content=(TextContent(why),), details=None, is_error=True)
    return kept


def _storable_block(block: UserBlock) -> UserBlock:
    if isinstance(block, TextContent):
        text = repair(block.text)
        return block if text is block.text else replace(block, text=text)
    if isinstance(block, DocumentContent) and block.name is not None:
        name = repair(block.name)
        return block if name is block.name else replace(block, name=name)
    return block


def _storable_details(value: Any) -> Any:
    """Details that fit. A finished tool's result must not be lost for data that no model reads."""
    if value is None:
        return None
    try:
        if len(dump(value)) <= _MAX_DETAILS_CHARS:
            return value
    except ValueRefused:
        pass  # too large: other problems were repaired before
    return {"omitted": "the details were too large to be stored"}


_logger = logging.getLogger("looopy")
_STRANGE = r"[^\w.:-]"
_MAX_ID_CHARS = 100


async def shown_and_kept(
    blocks: Sequence[UserBlock], max_bytes: int, context: ToolContext
) -> tuple[UserBlock, ...]:
    """
    As much of *blocks*, which are too large, as the model may see; the whole is kept.

    A failing store costs no result: the rest is then left out, with a note in the text.
    """
    kept: str | None = None
    if context.artifacts is not None:
        try:
            kept = await _keep(blocks, context)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the tool has run
            _logger.warning("a long result could not be kept: %s", type(error).__name__)
    return limit_blocks(blocks, max_bytes, kept=kept)


async def _keep(blocks: Sequence[UserBlock], context: ToolContext) -> str:
    """Save the text, and each file; return their places."""
    writer = context.artifacts
    assert writer is not None  # noqa: S101 - the caller has looked
    call_id = re.sub(_STRANGE, "_", context.tool_call_id)[:_MAX_ID_CHARS]
    name = f"results/{context.turn}/{call_id}"
    places: list[str] = []
    text = "\n".join(block.text for block in blocks if isinstance(block, TextContent))
    if text:
        data = text.encode("utf-8", "replace")
        saved = await writer.save(name, data, media_type="text/plain; charset=utf-8")
        places.append(f"artifact {saved.artifact_id!r}, version {saved.version}")
    files = [b for b in blocks if not isinstance(b, TextContent) and b.data]
    numbers = {kind: itertools.count(1) for kind in _NAMES}
    for file in files:
        data = base64.b64decode(file.data)
        place = f"{name}/{file.type}-{next(numbers[file.type])}"
        media_type = file.mime_type if is_media_type(file.mime_type) else None
        saved = await writer.save(place, data, media_type=media_type)
        places.append(f"artifact {saved.artifact_id!r}, version {saved.version}")
    return "; ".join(places)
