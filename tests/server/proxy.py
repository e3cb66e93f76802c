"""A proxy on loopback, before a server, that cuts connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """
    Passes bytes on, until its connections are cut.

    Args:
        behind: Gives the URL of the server, whenever somebody connects.

    Attributes:
        connections: How many there were.
        lost: How many of the next answers are cut off before their first byte.
    """

    def __init__(self, behind: Callable[[], str]) -> None:
        self._behind = behind
        self._open: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.lost = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> bool:
        """Cut all connections; true if there was one."""
        found = bool(self._open)
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        place = urlsplit(self._behind())
        try:
            there, here = await asyncio.open_connection(place.hostname, place.port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, here}
        self._open |= pair
        await asyncio.gather(self._pass(reader, here), self._pass(there, writer, answers=True))
        self._open -= pair

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        try:
            while data := await reader.read(65536):
                if answers and self.lost:
                    self.lost -= 1
                    self.cut()
                if writer.is_closing():
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
