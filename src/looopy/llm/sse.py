"""
Server-sent events out of bytes, however the network cut them.

Lines end at CR, LF or CRLF and nowhere else: JSON text may hold U+2028 and its kin unescaped, and a
piece may end within a character or between CR and LF. So bytes are split first and decoded by line.

Servers label such a body in many ways, so its first character decides what it is. After a byte
order mark, `{` or `[` begins JSON: one value, or one on each line. Some servers leave out the blank
line between events; JSON objects on the `data` lines of one event are events of their own.
"""

from __future__ import annotations

import json
import re

# WHATWG HTML, "Server-sent events", section 9.2.5: the line endings.
_LINE = re.compile(rb"\r\n|\n|\r")


_BOM = b"\xef\xbb\xbf"
_DONE = b"[DONE]"


class SSEDecoder:
    """Bytes in, the `data` of whole events out. Comments and other fields are skipped."""

    __slots__ = ("_after_cr", "_data", "_head", "_is_json", "_tail")

    def __init__(self) -> None:
        self._head: bytes | None = b""  # of the body, until its first character came
        self._is_json = False
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> list[str]:
        """Give the data of each event that *piece* completes; `UnicodeDecodeError` if not UTF-8."""
        if self._head is not None:
            piece = self._begun(self._head + piece)
        if not piece:
            return []
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        lines = _LINE.split(piece)
        found: list[str] = []
        for line in lines[:-1]:
            if self._tail:
                self._tail.append(line)
                line = b"".join(self._tail)  # noqa: PLW2901 - the line with its beginning
                self._tail = []
            self._take(line, found)
        if lines[-1]:
            self._tail.append(lines[-1])
        return found

    def close(self) -> list[str]:
        """The data of a last event that no blank line ended."""
        found: list[str] = []
        line, self._tail = b"".join(self._tail), []
        self._take(line, found)
        self._give(found)
        return found

    def _begun(self, head: bytes) -> bytes:
        """*head* without a byte order mark, once its first character is there."""
        shown = head.removeprefix(_BOM)
        if not shown.strip() or _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        self._is_json = shown.lstrip().startswith((b"{", b"["))
        return shown

    def _take(self, line: bytes, found: list[str]) -> None:
        if self._is_json:
            if not self._data and (line == _DONE or _is_object(line)):
                found.append(line.decode())
            elif line:
                self._data.append(line)
        elif line.startswith(b"data:"):
            data = line[6:] if line[5:6] == b" " else line[5:]
            if self._data and data.startswith((b"{", _DONE)) and _is_object(b"\n".join(self._data)):
                self._give(found)
            self._data.append(data)
        elif not line:
            self._give(found)

    def _give(self, found: list[str]) -> None:
        if self._data:
            found.append(b"\n".join(self._data).decode())
            self._data = []


def _is_object(data: bytes) -> bool:
    if not (data.startswith(b"{") and data.rstrip().endswith(b"}")):
        return False
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
