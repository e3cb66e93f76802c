"""A proxy before a Postgres server that cuts a connection, or stands still, at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

COMMIT = b"COMMIT"
ALONE = b"WITH f ("  # how a write begins that is one statement, and a transaction of its own
_READY = b"Z\x00\x00\x00\x05I"  # for the next command, outside a transaction


class Cutter:
    """
    Passes everything on, until it is told to cut or to stand still.

    Args:
        url: Of a database behind it.
        tcp: Listen on a port of the loopback, and not on a socket in a folder.

    Attributes:
        cuts: Where each of the next commits is cut: `before` it reaches the server, `after` it was
            applied and before the client hears of it, or in the `middle`, as soon as the server has
            it. One that comes `late` reaches the server when the client has long been cut off.
            `hang before`, `hang middle` and `hang after` stand still instead: nothing of the commit
            has reached the server then, or its first half, or all of it, and no reply has come
            back. `freeze before` and so on do that to all connections. Nothing is lost: what was
            said is passed on by `thaw`.
        hang_at: The next connection on which this is said hangs before it.
        frozen: Whether everything stands still; new connections are taken.
        late: Lets what is late go on to the server.
        delivering: How many are late.
        refusing: Whether connections are cut as soon as they are made.
        on_cut: Called when a commit is cut.
        seen: How many commits came by.
        asked: How often a client spoke and the server had its turn.
    """

    def __init__(self, url: str, *, tcp: bool = False) -> None:
        self._tcp = tcp
        self._upstream = urlsplit(url)
        self._folder = tempfile.TemporaryDirectory(prefix="lpx-")
        self._pairs: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._gates: dict[asyncio.Task[None], asyncio.Event] = {}
        self.frozen = False
        self.hang_at: bytes | None = None
        self.cuts: list[str] = []
        self.refusing = False
        self.on_cut: Callable[[], object] = _nothing
        self.late = asyncio.Event()
        self.delivering = 0
        self.seen = 0
        self.asked = 0

    @property
    def url(self) -> str:
        """The URL of the same database, through here."""
        database = self._upstream.path
        netloc = f"{self._upstream.username}@"
        query = urlencode({"host": self._folder.name})
        if self._tcp:
            host, port = self._server.sockets[0].getsockname()
            query = urlencode({"host": host, "port": port})
        return urlunsplit(("postgresql", netloc, database, query, ""))

    async def __aenter__(self) -> Self:
        path = Path(self._folder.name) / ".s.PGSQL.5432"
        if self._tcp:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        else:
            self._server = await asyncio.start_unix_server(self._serve, path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.late.set()
        self.thaw()
        self.sever()
        await asyncio.gather(*self._pairs, return_exceptions=True)
        self._folder.cleanup()

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._pairs)

    def sever(self, *, but: asyncio.Task[object] | None = None) -> None:
        """Cut every connection there is, whatever it is at, but one."""
        for task, writer in self._pairs.items():
            if task is not but:
                writer.transport.abort()

    def hold(self) -> None:
        """Stand still on every connection there is; others are served."""
        for gate in self._gates.values():
            gate.clear()

    def freeze(self) -> None:
        """Stand still."""
        self.frozen = True
        self.hold()

    def thaw(self) -> None:
        """Pass on what was said meanwhile, also where the one who said it is gone."""
        self.frozen = False
        for gate in self._gates.values():
            gate.set()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        folder = parse_qs(self._upstream.query).get("host")
        if folder:
            return await asyncio.open_unix_connection(Path(folder[0]) / ".s.PGSQL.5432")
        return await asyncio.open_connection(self._upstream.hostname, self._upstream.port or 5432)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs[task] = writer
        gate = self._gates[task] = asyncio.Event()
        if not self.frozen:
            gate.set()
        server_writer = None
        try:
            if self.refusing:
                return
            await gate.wait()
            server_reader, server_writer = await self._connect()
            back = asyncio.create_task(_copy(server_reader, writer, gate))
            try:
                cut = await self._pass_on(reader, server_writer, back, gate)
                if cut == "after":
                    back.cancel()
                    await _answered(server_reader)
                if cut == "late":
                    await self._deliver_late(writer, server_reader, server_writer)
            finally:
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
        except OSError:
            return  # one of both ends is gone, and so is the other
        finally:
            del self._pairs[task], self._gates[task]
            for end in (writer, server_writer):
                if end is not None:
                    end.transport.abort()

    async def _deliver_late(
        self,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self.delivering += 1
        writer.transport.abort()
        try:
            await self.late.wait()
            with contextlib.suppress(OSError):
                server_writer.write(self._held)
                await server_writer.drain()
                await _answered(server_reader)
        finally:
            self.delivering -= 1

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.Task[None],
        gate: asyncio.Event,
    ) -> str | None:
        client = _Client()
        while data := await reader.read(65536):
            if self.hang_at is not None and self.hang_at in data:
                self.hang_at = None
                gate.clear()
            await gate.wait()
            self.asked += b"NOTIFY" not in data  # goes its own way, whenever it suits
            if client.commits(data):
                self.seen += 1
                cut = self.cuts.pop(0) if self.cuts else "never"
                if cut != "never":
                    self.on_cut()
                if cut == "before":
                    return cut
                if cut in ("after", "middle", "late"):
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                if cut == "late":
                    self._held = data
                    return cut
                if cut in ("after", "middle"):
                    writer.write(data)
                    await writer.drain()
                    return cut
                how, _, where = cut.partition(" ")
                if where:
                    gate.clear()
                    if how == "freeze":
                        self.freeze()
                    there = {"before": 0, "middle": len(data) // 2}.get(where, len(data))
                    writer.write(data[:there])
                    await writer.drain()
                    await gate.wait()
                    data = data[there:]
            writer.write(data)
            await writer.drain()
        return None


class _Client:
    """
    What a client says, read well enough to know what commits: a query that says COMMIT, or the
    execution of a statement that was prepared from it; and outside a transaction a write of one
    statement, once the client has asked for its end.

    Messages as in the frontend/backend protocol 3.0: a type, a length that counts itself, a body;
    the first one has no type.
    """

    def __init__(self) -> None:
        self._data = b""
        self._typed = 0
        self._prepared: dict[bytes, bytes] = {}
        self._inside = False  # a transaction
        self._bound = b""  # what is executed next

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
            self._prepared[parts[0]] = parts[1]
        if kind == b"B":  # Bind: a portal, and the name of what it will execute
            self._bound = self._prepared.get(parts[1], b"")
        if kind == b"S":  # Sync: what was bound is over with it
            bound, self._bound = self._bound, b""
            return self._ends(bound)
        return kind == b"Q" and self._ends(parts[0])

    def _ends(self, text: bytes) -> bool:
        """Whether a transaction of ours ends with *text*."""
        if text.startswith(b"BEGIN"):
            self._inside = not text.endswith(COMMIT)
        if text in (COMMIT, b"ROLLBACK"):
            self._inside = False
        return text == COMMIT or (text.startswith(ALONE) and not self._inside)


def _nothing() -> None:
    pass


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            await gate.wait()
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def _answered(reader: asyncio.StreamReader) -> None:
    """Read until the server has said that it is done, and so has committed."""
    data = b""
    while not data.endswith(_READY):
        more = await reader.read(65536)
        if not more:
            raise ConnectionResetError("the server closed before it committed")
        data += more
