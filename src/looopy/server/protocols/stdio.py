"""
Lines over two file descriptors, for protocols that have one message a line.

Reading and writing block, so each has a thread of its own: a pipe, a terminal and a file work
alike, on every system, and a process can end while its input is still open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
TOO_LONG: Final = b"\n"
"""Stands for a line that was longer; a line itself has no end."""
_PIECE_BYTES: Final = 256 * 1024


class Lines:
    """The lines of *reader*, and a place to write lines, *writer*; neither is closed."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="looopy-out")
        self._thread: threading.Thread | None = None
        self._broken = False
        self.ended = False  # the other side has closed its end

    async def read(self) -> bytes | None:
        """The next line without its end, or `TOO_LONG`; `None` if there are no more."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._read, args=(loop,), name="looopy-in", daemon=True
            )
            self._thread.start()
        return await self._lines.get()

    async def write(self, line: bytes) -> None:
        """
        Write *line*, which has its end.

        Raises:
            ConnectionError: The other side has closed its end.
        """
        if self._broken:
            raise ConnectionError("the client is gone")
        try:
            await asyncio.get_running_loop().run_in_executor(self._writing, self._write, line)
        except (OSError, RuntimeError) as error:
            self._broken = True
            raise ConnectionError("the client is gone") from error

    def close(self) -> None:
        """Let the thread that writes end."""
        self._broken = True
        self._writing.shutdown(wait=False)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._writer, rest) :]

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        def put(line: bytes | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._lines.put_nowait, line)

        begun: list[bytes] = []
        size = 0
        while piece := self._some():
            *lines, rest = piece.split(b"\n")
            for line in lines:
                put(b"".join([*begun, line]) if size <= MAX_LINE_BYTES else TOO_LONG)
                begun, size = [], 0
            size += len(rest)
            if size <= MAX_LINE_BYTES:
                begun.append(rest)
            else:
                begun = []
        self.ended = True
        if begun:
            put(b"".join(begun))
        put(None)

    def _some(self) -> bytes:
        try:
            return os.read(self._reader, _PIECE_BYTES)
        except OSError:
            return b""
