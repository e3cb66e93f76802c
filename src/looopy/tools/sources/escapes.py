r"""
JSON of servers with half a character: a text that was cut in the middle of an emoji.

A server may write the half as an escape, `\ud83d`. The parsers of the SDKs for MCP and A2A refuse
the whole message then, and a call that has run loses its result. So such an escape becomes `\ufffd`
before they read it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

# Each escape from left to right, so that the text `\\ud83d` is one of a backslash.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?P<other>\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|(?P<late>u[dD][c-fC-F][0-9a-fA-F]{2})|(?P<any>.))",
    re.DOTALL,
)
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def whole_escapes(data: bytes) -> bytes:
    """JSON without lone surrogates among its escapes; *data* itself if it has none."""
    return _ESCAPE.sub(_whole, data) if _HALF.search(data) else data


def _whole(escape: re.Match[bytes]) -> bytes:
    is_half = escape["late"] or not (escape["other"] or escape["any"])
    return rb"\ufffd" if is_half else escape[0]


async def whole_lines(chunks: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[bytes]:
    """
    The lines of a stream of events, without lone surrogates among their escapes.

    A line of more than *most_bytes* passes as it is: its reader refuses it.
    """
    held: list[bytes] = []
    async for chunk in chunks:
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if not end and sum(map(len, held)) <= most_bytes:
            held.append(chunk)
            continue
        end = end or len(chunk)
        yield whole_escapes(b"".join((*held, chunk[:end])))
        held = [chunk[end:]] if end < len(chunk) else []
    if held:
        yield whole_escapes(b"".join(held))
