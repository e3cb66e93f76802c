"""The clients of all protocols ask again, before a server that is killed or not: it acts once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import httpx
import httpx2
import pytest
from openai import AsyncOpenAI
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
        return await self.hears()

    async def hears(self) -> Any:
        """The next that it says."""
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


@pytest.mark.parametrize("killed", [False, True], ids=["late", "killed"])
@pytest.mark.parametrize("conversation", ["none", "c"])
async def test_the_openai_sdk_of_node_repeats_its_request_and_the_tool_acts_once(
    conversation, killed, bundle, desk
):
    """By itself, when no response comes in time, or the connection breaks; it sends no key."""
    timeout_ms = "60000" if killed else "1000"
    script = bundle("retries.mjs")
    async with Asking(script, "openai", desk.url, conversation, timeout_ms) as client:
        assert await client.hears() == "attempt"
        await desk.acted()
        if killed:
            await desk.restart()
        assert await client.hears() == "attempt"
        desk.hold.unlink(missing_ok=True)
        while (said := await client.hears()) == "attempt":
            pass
        assert said == ("It is unknown." if killed else "It is done.")
    assert desk.effects == 1


@pytest.mark.parametrize("killed", [False, True], ids=["late", "killed"])
@pytest.mark.parametrize("place", ["none", "conversation", "previous", "fork"])
async def test_the_openai_sdk_of_python_repeats_its_request_and_the_tool_acts_once(
    place, killed, desk
):
    """In a new conversation, in one that is named, behind a response, and behind an older one."""
    attempts = asyncio.Queue[str]()

    async def sends(request: Any) -> None:
        attempts.put_nowait(request.headers["x-stainless-retry-count"])

    timeout_s = 60 if killed else 1
    http = httpx2.AsyncClient(event_hooks={"request": [sends]}, timeout=timeout_s)
    async with AsyncOpenAI(
        base_url=f"{desk.url}/v1", api_key="x", max_retries=8, timeout=timeout_s, http_client=http
    ) as client:
        more: dict[str, Any] = {} if place == "none" else {"conversation": "c"}
        if place in ("previous", "fork"):
            first = await client.responses.create(model="looopy", input="hi", **more)
            if place == "fork":
                await client.responses.create(model="looopy", input="hi again", **more)
            more = {"previous_response_id": first.id}
        while not attempts.empty():
            attempts.get_nowait()

        create = client.responses.create
        asked = asyncio.ensure_future(create(model="looopy", input="act", **more))
        await desk.acted()
        assert await attempts.get() == "0"
        if killed:
            await desk.restart()
        assert await attempts.get() == "1"
        desk.hold.unlink(missing_ok=True)
        assert (await asked).output_text == ("It is unknown." if killed else "It is done.")
    assert desk.effects == 1


async def test_the_openai_sdk_says_yes_twice_and_both_are_heard(desk):
    """A request that is the same as the one before is no repetition unless the SDK says so."""
    desk.hold.unlink()
    async with AsyncOpenAI(base_url=f"{desk.url}/v1", api_key="x") as client:
        for count, headers in enumerate(({}, {}, {"x-stainless-retry-count": "1"}), 1):
            done = await client.responses.create(
                model="looopy", input="act", conversation="c", extra_headers=headers
            )
            assert done.output_text == "It is done."
            assert desk.effects == count  # the response before was delivered
