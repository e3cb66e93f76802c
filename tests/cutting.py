"""A proxy before a Postgres server that cuts a connection at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

COMMIT = b"COMMIT"


class Cutter:
    """
    Passes everything on, until it is told to cut.

    Attributes:
        cuts: Where each of the next commits is cut: `before` it reaches the server, or `after` it
            was applied and before the client hears of it.
        refusing: Whether connections are cut as soon as they are made.
        on_cut: Called when a commit is cut.
        seen: How many commits came by.
        asked: How often a client spoke and the server had its turn.
    """

    def __init__(self, url: str) -> None:
        self._upstream = urlsplit(url)
        self._folder = tempfile.TemporaryDirectory(prefix="lpx-")
        self._pairs: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.cuts: list[str] = []
        self.refusing = False
        self.on_cut: Callable[[], object] = _nothing
        self.seen = 0
        self.asked = 0

    @property
    def url(self) -> str:
        """The URL of the same database, through here."""
        query = urlencode({"host": self._folder.name})
        database = self._upstream.path
        netloc = f"{self._upstream.username}@"
        return urlunsplit(("postgresql", netloc, database, query, ""))

    async def __aenter__(self) -> Self:
        path = Path(self._folder.name) / ".s.PGSQL.5432"
        self._server = await asyncio.start_unix_server(self._serve, path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.sever()
        await asyncio.gather(*self._pairs, return_exceptions=True)
        self._folder.cleanup()

    def sever(self, *, but: asyncio.Task[object] | None = None) -> None:
        """Cut every connection there is, whatever it is at, but one."""
        for task, writer in self._pairs.items():
            if task is not but:
                writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        folder = parse_qs(self._upstream.query).get("host")
        if folder:
            return await asyncio.open_unix_connection(Path(folder[0]) / ".s.PGSQL.5432")
        return await asyncio.open_connection(self._upstream.hostname, self._upstream.port or 5432)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs[task] = writer
        server_writer = None
        try:
            if self.refusing:
                return
            server_reader, server_writer = await self._connect()
            back = asyncio.create_task(_copy(server_reader, writer))
            try:
                cut = await self._pass_on(reader, server_writer, back)
                if cut == "after":
                    back.cancel()
                    await _answered(server_reader)
            finally:
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
        except OSError:
            return  # one of both ends is gone, and so is the other
        finally:
            del self._pairs[task]
            for end in (writer, server_writer):
                if end is not None:
                    end.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.Task[None],
    ) -> str | None:
        client = _Client()
        while data := await reader.read(65536):
            self.asked += b"NOTIFY" not in data  # goes its own way, whenever it suits
            if client.commits(data):
                self.seen += 1
                cut = self.cuts.pop(0) if self.cuts else "never"
                if cut != "never":
                    self.on_cut()
                if cut == "before":
                    return cut
                if cut == "after":
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    writer.write(data)
                    return cut
            writer.write(data)
            await writer.drain()
        return None


class _Client:
    """
    What a client says, read well enough to know a COMMIT: a query of that text, or the execution of
    a statement that was prepared from it.

    Messages as in the frontend/backend protocol 3.0: a type, a length that counts itself, a body;
    the first one has no type.
    """

    def __init__(self) -> None:
        self._data = b""
        self._typed = 0
        self._prepared: set[bytes] = set()

    def commits(self, data: bytes) -> bool:
        """Whether *data*, which comes next, holds the end of a message that commits."""
        self._data += data
        found = False
        while len(self._data) >= self._typed + 4:
            size = self._typed + int.from_bytes(self._data[self._typed : self._typed + 4], "big")
            if len(self._data) < size:
                break
            message, self._data = self._data[:size], self._data[size:]
            if self._typed:
                found |= self._commits(message[:1], message[5:].split(b"\0", 2))
            self._typed = 1
        return found

    def _commits(self, kind: bytes, parts: list[bytes]) -> bool:
        if kind == b"P":  # Parse: a name for a text
            (self._prepared.add if parts[1] == COMMIT else self._prepared.discard)(parts[0])
        if kind == b"B":  # Bind: a portal, and the name of what it will execute
            return parts[1] in self._prepared
        return kind == b"Q" and parts[0] == COMMIT


def _nothing() -> None:
    pass


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def _answered(reader: asyncio.StreamReader) -> None:
    """Read until the server has said that it has committed."""
    data = b""
    while COMMIT not in data:
        more = await reader.read(65536)
        assert more, "the server closed before it committed"
        data += more
