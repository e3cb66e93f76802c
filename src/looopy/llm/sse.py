"""
Server-sent events out of bytes, however the network cut them.

Lines end at CR, LF or CRLF and nowhere else: JSON text may hold U+2028 and its kin unescaped, and a
piece may end within a character or between CR and LF. So bytes are split first and decoded by line.
"""

from __future__ import annotations

import re

# WHATWG HTML, "Server-sent events", section 9.2.5: the line endings.
_LINE = re.compile(rb"\r\n|\n|\r")


class SSEDecoder:
    """Bytes in, the `data` of whole events out. Comments and other fields are skipped."""

    __slots__ = ("_after_cr", "_data", "_tail")

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> list[str]:
        """Give the data of each event that *piece* completes; `UnicodeDecodeError` if not UTF-8."""
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
        self._take(b"", found)
        return found

    def _take(self, line: bytes, found: list[str]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line and self._data:
            found.append(b"\n".join(self._data).decode())
            self._data = []
