"""
Results that are more than the model is shown: their beginning, and the whole as an artifact.

A tool's result may be what the user was waiting for, so the rest of it is not thrown away. It is
saved as a file of the context before the result is stored; the text that the model sees names it,
so that another tool, or a person, can read it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Iterator, Sequence

from looopy.tools.provider import ToolContext
from looopy.tools.results import limit_blocks
from looopy.types.message import ImageContent, TextContent, UserBlock

_logger = logging.getLogger("looopy")
_STRANGE = re.compile(r"[^\w.:-]")
_MAX_ID_CHARS = 100
_PART_BYTES = 8 * 1024 * 1024  # what every store takes as one artifact
_CONTINUATION = 0x80  # the top bits of a byte inside a character: RFC 3629, section 3


async def shown_and_kept(
    blocks: Sequence[UserBlock], max_bytes: int, context: ToolContext
) -> tuple[UserBlock, ...]:
    """
    As much of *blocks*, which are too much, as the model is shown; the whole is kept.

    A store that fails costs no result: the rest is then left out, and the text says so.
    """
    kept: str | None = None
    if context.artifacts is not None:
        try:
            kept = await _keep(blocks, context)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the tool has run
            _logger.warning("a long result could not be kept: %s", type(error).__name__)
    return limit_blocks(blocks, max_bytes, kept=kept)


async def _keep(blocks: Sequence[UserBlock], context: ToolContext) -> str:
    """Save the text, and each image; what says where they are."""
    writer = context.artifacts
    assert writer is not None  # noqa: S101 - the caller has looked
    call_id = _STRANGE.sub("_", context.tool_call_id)[:_MAX_ID_CHARS]
    name = f"results/{context.turn}/{call_id}"
    places: list[str] = []
    text = "\n".join(block.text for block in blocks if isinstance(block, TextContent))
    parts = list(_parts(text.encode("utf-8", "replace")))
    for number, part in enumerate(parts, 1):
        part_name = name if len(parts) == 1 else f"{name}/part-{number}"
        saved = await writer.save(part_name, part, media_type="text/plain; charset=utf-8")
        places.append(f"artifact {saved.artifact_id!r}, version {saved.version}")
    images = [block for block in blocks if isinstance(block, ImageContent)]
    for number, image in enumerate(images, 1):
        data = base64.b64decode(image.data)
        saved = await writer.save(f"{name}/image-{number}", data, media_type=image.mime_type)
        places.append(f"artifact {saved.artifact_id!r}, version {saved.version}")
    return "; ".join(places)


def _parts(data: bytes) -> Iterator[bytes]:
    """*data* in pieces that one artifact may hold, cut between characters."""
    start = 0
    while start < len(data):
        end = min(start + _PART_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == _CONTINUATION:
            end -= 1
        yield data[start:end]
        start = end
