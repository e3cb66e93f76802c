"""The clients of all protocols ask again, before a server that is killed or not: it acts once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from tests.web.test_browser import Served


class Desk(Served):
    """A server whose tool acts, then holds until it is told."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port, "tests.web.retry_app")
        self._effects = folder / "effects"
        self.hold.touch()

    @property
    def effects(self) -> int:
        """How often the tool has acted."""
        return len(self._effects.read_text().splitlines()) if self._effects.exists() else 0

    async def acted(self) -> None:
        """Wait until the tool acts."""
        while not self.effects:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)

    async def restart(self) -> None:
        """Kill it while the tool acts, and start another one."""
        await self.kill()
        self.hold.unlink()
        await self.start()

    async def let_end(self, context_id: str) -> None:
        """Let the tool return, and wait until the turn is over."""
        self.hold.unlink()
        async with httpx.AsyncClient(base_url=self.url) as client:
            while True:
                found = (await client.get(f"/contexts/{context_id}/turns")).json()["items"]
                if found and all(turn["outcome"] for turn in found):
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A running server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Desk(tmp_path, port)
    await server.start()
    yield server
    await server.kill()


class Asking:
    """`retries.mjs` in node."""

    def __init__(self, script: Path, *args: str) -> None:
        self._args = ("node", str(script), *args)

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._args, stdin=pipe, stdout=pipe)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.stdin.close()
        await self._process.wait()

    async def tell(self, line: str) -> Any:
        """Tell it to go on; its answer."""
        self._process.stdin.write(f"{line}\n".encode())
        return json.loads(await self._process.stdout.readline())


@pytest.mark.parametrize("killed", [False, True], ids=["cut", "killed"])
@pytest.mark.parametrize("client", ["ag-ui", "ai-sdk"])
async def test_a_page_that_asks_again_has_the_tool_act_once(client, killed, bundle, desk):
    """By the same request, and by one that asks for another answer."""
    async with Asking(bundle("retries.mjs"), client, desk.url, "c") as page:
        await desk.acted()
        if killed:
            await desk.restart()
            assert await page.tell("wait") == "broken"
        else:
            assert await page.tell("abort") == "broken"
            await desk.let_end("c")
        answer = "It is unknown." if killed else "It is done."
        if killed and client == "ai-sdk":
            assert await page.tell("continue") == answer
        for _ in range(2):
            assert await page.tell("again") == answer
        assert "the tool act ran for this request" in await page.tell("regenerate")
    assert desk.effects == 1
