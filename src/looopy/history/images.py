"""
How many tokens an image takes, by its size in pixels.

The header of the file has the size, in every format that models take. Hosted models count areas: a
token for about 750 pixels (Anthropic), or 85 tokens and 170 for each square of 512 (OpenAI), after
they have shrunk what is too large. The larger of the two counts here.
"""

from __future__ import annotations

import base64
from typing import Final

_UNKNOWN: Final = 1_200  # an image whose size cannot be read
_PIXELS: Final = 750  # for a token
_LONGEST: Final = 1_568  # pixels of an edge, after which the model shrinks the image
_MOST: Final = 1_600
_LEAST: Final = 85
_HEADER: Final = 96  # characters of base64 with the size, in all formats but JPEG
_JPEG_HEADER: Final = 87_384  # the size comes after what cameras write, which is up to 64 KiB


def image_tokens(data: str) -> int:
    """About how many tokens an image takes; *data* is its base64."""
    size = _size(data)
    if size is None:
        return _UNKNOWN
    width, height = size
    longest = max(width, height)
    if longest > _LONGEST:
        width, height = width * _LONGEST // longest, height * _LONGEST // longest
    by_area = width * height // _PIXELS
    by_squares = 85 + 170 * -(-width // 512) * -(-height // 512)
    return max(_LEAST, min(_MOST, max(by_area, min(by_squares, _MOST))))


def _size(data: str) -> tuple[int, int] | None:
    """Width and height; `None` if the header is not one that we know."""
    head = _decoded(data, _HEADER)
    found = None
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        found = _number(head[16:20]), _number(head[20:24])
    elif head[:4] == b"GIF8" and len(head) >= 10:
        found = _little(head[6:8]), _little(head[8:10])
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        found = _webp(head)
    elif head[:2] == b"\xff\xd8":
        found = _jpeg(_decoded(data, _JPEG_HEADER))
    return found if found is not None and min(found) > 0 else None


def _decoded(data: str, most: int) -> bytes:
    part = data[: min(most, len(data) // 4 * 4)]
    try:
        return base64.b64decode(part)
    except ValueError:
        return b""


def _webp(head: bytes) -> tuple[int, int] | None:
    if head[12:16] == b"VP8 ":
        return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF
    if head[12:16] == b"VP8L":
        bits = _little(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if head[12:16] == b"VP8X":
        return _little(head[24:27]) + 1, _little(head[27:30]) + 1
    return None


def _jpeg(raw: bytes) -> tuple[int, int] | None:
    """The size in the first frame header, after segments that each have their length."""
    at = 2
    while at + 9 <= len(raw) and raw[at] == 0xFF:
        marker = raw[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _number(raw[at + 7 : at + 9]), _number(raw[at + 5 : at + 7])
        at += 2 + max(2, _number(raw[at + 2 : at + 4]))
    return None


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _little(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
