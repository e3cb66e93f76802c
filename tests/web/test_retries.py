"""The clients of all protocols ask again, before a server that is killed or not: it acts once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import httpx
import httpx2
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types import GetTaskRequest, ListTasksRequest, Role, SendMessageRequest, TaskState
from openai import AsyncOpenAI
from tests.preloaded import Preloaded
from tests.shares import split
from tests.web.served import Served

from looopy.server.protocols.mcp.calls import KEY
from mcp import Client


class Desk(Served):
    """A server whose tool acts, then holds until it is told."""

    def __init__(self, folder: Path, preloaded: Preloaded) -> None:
        super().__init__(folder, preloaded, "tests.web.retry_app")
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
async def desk(tmp_path: Path, preloaded: Preloaded) -> AsyncIterator[Desk]:
    """A running server."""
    server = Desk(tmp_path, preloaded)
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


@pytest.mark.parametrize(
    ("client", "killed"),
    split([("ag-ui", True)], [("ag-ui", False), ("ai-sdk", True), ("ai-sdk", False)]),
)
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


@pytest.mark.long
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


@pytest.mark.parametrize(
    ("place", "killed"),
    split(
        [("conversation", True)],
        [
            ("conversation", False),
            *itertools.product(("none", "previous", "fork"), (False, True)),
        ],
    ),
)
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


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True], ids=["cut", "killed"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_message_that_the_a2a_sdk_sends_again_is_one_task(binding, killed, desk):
    """It names no context. The task of a dead process has failed, and its context continues it."""
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, desk.url).get_agent_card()
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        client = ClientFactory(config).create(card)
        message = new_text_message("act", role=Role.ROLE_USER)

        async def send(message: Any) -> Any:
            sent = client.send_message(SendMessageRequest(message=message))
            first, *_ = [one async for one in sent]
            task = await client.get_task(GetTaskRequest(id=first.task.id))
            found = await client.list_tasks(ListTasksRequest(history_length=0))
            return task, sorted(TaskState.Name(one.status.state) for one in found.tasks)

        first = asyncio.ensure_future(send(message))
        await desk.acted()
        if killed:
            await desk.restart()
            with pytest.raises(Exception, match=r"(?i)connection|peer|network"):
                await first
        else:
            first.cancel()
            [task] = (await client.list_tasks(ListTasksRequest())).tasks
            await desk.let_end(task.context_id)
        state = "TASK_STATE_FAILED" if killed else "TASK_STATE_COMPLETED"
        for _ in range(2):
            task, states = await send(message)
            assert states == [state]
            assert TaskState.Name(task.status.state) == state
        if killed:
            more = new_text_message("go on", context_id=task.context_id, role=Role.ROLE_USER)
            assert (await send(more))[1] == ["TASK_STATE_COMPLETED", state]
    assert desk.effects == 1


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True], ids=["cut", "killed"])
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_call_that_the_mcp_sdk_makes_again_acts_once(era, killed, desk):
    """A client that leaves cancels its call in the newer protocol, and the result says so."""

    async def ask() -> Any:
        async with Client(f"{desk.url}/mcp", mode=era) as client:
            return await client.call_tool("ask", {"prompt": "act"}, meta={KEY: "k-1"})

    first = asyncio.ensure_future(ask())
    await desk.acted()
    if killed:
        await desk.restart()
        with pytest.raises(BaseExceptionGroup):
            await first
    else:
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
            await first
        async with httpx.AsyncClient(base_url=desk.url) as http:
            [context] = (await http.get("/contexts")).json()["items"]
        await desk.let_end(context["context_id"])
    for _ in range(2):
        again = (await ask()).structured_content
        assert again["text"] == ("It is unknown." if killed else again["text"])
        assert again["outcome"] == ("completed" if killed else again["outcome"])
    assert desk.effects == 1
