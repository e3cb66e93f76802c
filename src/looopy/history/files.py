"""
How many tokens a document or a recording takes.

Hosted models read a page of a PDF as its text and as an image, and a second of sound as 10 to 32
tokens. The pages are counted in the file; a file that does not show them has as many as its size
suggests. A file that only the provider loads counts as a short one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Final

from looopy.history.images import image_tokens
from looopy.llm.documents import document_text, plain_type
from looopy.types.message import AudioContent, DocumentContent, ImageContent

_PAGE_TOKENS: Final = 2_000
_PAGE: Final = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_PAGE_BYTES: Final = 50_000  # of a file that keeps its pages compressed
_UNKNOWN_PAGES: Final = 10
_SECOND_TOKENS: Final = 32
_WAV_HEADER: Final = 64  # characters of base64 with the rate in bytes a second
_MP3_RATE: Final = 8_000  # bytes a second: of speech, and the longest for a size
_MOST_RATE: Final = 1_000_000
_MOST_KNOWN: Final = 64
# By the hash and the length of the data: a large file is not decoded at each look.
_known: dict[tuple[int, int, str], int] = {}


def file_tokens(
    block: DocumentContent | AudioContent | ImageContent, count: Callable[[str], int]
) -> int:
    """About how many tokens *block* takes; *count* estimates a text."""
    if isinstance(block, ImageContent):
        return image_tokens(block.data)
    if not block.data:
        return _UNKNOWN_PAGES * _PAGE_TOKENS
    key = hash(block.data), len(block.data), block.mime_type
    tokens = _known.get(key)
    if tokens is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        tokens = _known[key] = _counted(block, count)
    return tokens


def _counted(block: DocumentContent | AudioContent, count: Callable[[str], int]) -> int:
    if isinstance(block, AudioContent):
        return max(1, len(block.data) * 3 // 4 * _SECOND_TOKENS // _rate(block))
    text = document_text(block)
    if text is not None:
        return count(text)
    try:
        raw = base64.b64decode(block.data)
    except ValueError:
        raw = b""
    pages = len(_PAGE.findall(raw)) or -(-len(raw) // _PAGE_BYTES) or _UNKNOWN_PAGES
    return pages * _PAGE_TOKENS


def _rate(block: AudioContent) -> int:
    """Bytes of sound in a second."""
    try:
        head = base64.b64decode(block.data[:_WAV_HEADER])
    except ValueError:
        head = b""
    rate = int.from_bytes(head[28:32], "little") if head[8:12] == b"WAVE" else 0
    return rate if 0 < rate <= _MOST_RATE and "mp" not in plain_type(block) else _MP3_RATE
