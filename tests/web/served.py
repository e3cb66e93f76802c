"""A server of the web tests as a process, which a test kills and starts again."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import httpx
from tests.preloaded import CLI, DEVNULL, ROOT, Preloaded, Process, environment

TOKEN = "t" * 24


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Served:
    """
    A module of the tests that serves at `PORT DATABASE FOLDER`, or `looopy serve`.

    Args:
        folder: Where its files are.
        preloaded: What it is a fork of.
        module: Its name.
    """

    def __init__(self, folder: Path, preloaded: Preloaded, module: str = CLI) -> None:
        port = str(free_port())
        self.url = f"http://127.0.0.1:{port}"
        self.hold = folder / "hold"  # while it is there, a story stops in its middle
        self.pids: list[int] = []  # of each process so far
        self._preloaded, self._module = preloaded, module
        database = f"sqlite:///{folder / 'web.db'}"
        self._args = [port, database, str(folder)]
        if module == CLI:
            app = "tests/web/page_app.py:build"
            self._args = ["serve", app, "--port", port, "--db", database]

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        env = environment() | {"LOOOPY_UI_TOKEN": TOKEN, "HOLD": str(self.hold)}
        self._process: Process = await self._preloaded.start(
            self._args, env, ROOT, stdin=DEVNULL, stdout=DEVNULL, module=self._module
        )
        self.pids.append(self._process.pid)
        self._ended = asyncio.ensure_future(self._process.wait())
        async with httpx.AsyncClient() as client:
            while not self._ended.done():
                try:
                    await client.get(f"{self.url}/readyz")
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                else:
                    return
        raise RuntimeError("the server did not start")

    async def kill(self) -> None:
        """`kill -9`."""
        if not self._ended.done():
            self._process.send_signal(signal.SIGKILL)
            await self._ended
        self._process.close()
