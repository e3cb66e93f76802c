"""
One turn on several faces of a server, each cut at random, while the server is killed.

    python -m tests.campaign.protocols              100 cuts of each face, the server killed twice
    python -m tests.campaign.protocols --cuts 10 --seed 3

A turn of several iterations runs on SQLite. It is watched through the HTTP API's events, the AI
SDK's stream, the Responses API, A2A and AG-UI, in an editor's session (ACP), which is another
process's view of the same database, and by `looopy contexts follow`, a process of its own. Each
watcher is disconnected again and again.
The server is killed by SIGKILL and started again; whoever comes first continues the turn. It then
asks for approvals, one after another, and each face gives one of them. The others must show that it
is given; the time from the decision to that is printed. In the end every face must show the
transcript that the store has: nothing missing, nothing twice. Each connection must also show a
beginning of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import acp
import httpx
from tests.server.acp.kit import Editor, connected
from tests.server.proxy import Proxy

from looopy import Agent, AuthContext, Stores, open_stores, tool
from looopy.types.request import LLMRequest

Said: TypeAlias = tuple[str, ...]
"""A piece of a transcript: `("text", TEXT)` or `("tool", NAME, RESULT)`."""

Request: TypeAlias = dict[str, Any]
"""A pending request, as the HTTP API describes it."""

Seen: TypeAlias = Callable[[], None]

_TOKEN = "t" * 32
_LOOK_S = 0.05  # between two looks of a face that has to be asked
_STEPS = 6
_ROOT = Path(__file__).parents[2]


# --- the server's process ------------------------------------------------------------------------


def _application(pace_s: float) -> Callable[[str, Stores], Agent]:
    """The factory of every process: the work of its tools is the same in each."""
    from looopy.testing import ScriptedProvider, text, tool_call

    class Model(ScriptedProvider):
        """Its call ids are unique in all processes, as those of real providers are."""

        def _call_id(self) -> str:
            return f"call_{secrets.token_hex(8)}"

    @tool(effects="idempotent")
    async def work(step: int) -> str:
        """Work for a moment."""
        await asyncio.sleep(pace_s * 20)
        return f"worked on {step}"

    @tool(needs_approval=True)
    async def publish() -> str:
        """Publish it."""
        return "published"

    def reply(request: LLMRequest) -> Any:
        results = [m.text for m in request.messages if m.role == "toolResult"]
        done = sum("worked" in one for one in results)
        if done < _STEPS:
            said = " ".join(f"{done}.{n}" for n in range(40))
            return text(f"Step {said}."), tool_call("work", step=done)
        if results.count("published") == len(FACES):
            return text(" ".join(f"end.{n}" for n in range(80)))
        return text("May I?"), tool_call("publish")

    def build(context_id: str, stores: Stores) -> Agent:
        model = Model(reply, chunk_chars=6, delay_s=pace_s)
        return Agent(context_id, llm_provider=model, tools=[work, publish], stores=stores)

    return build


def _app(stores: Stores, pace_s: float) -> Any:
    """The application with all faces that HTTP has."""
    from looopy.server import (
        AgentHost,
        StaticTokens,
        a2a_api,
        ag_ui_api,
        ai_sdk_api,
        create_app,
        responses_api,
    )

    return create_app(
        AgentHost(_application(pace_s), stores),
        authenticate=StaticTokens({_TOKEN: "ada"}),
        protocols=[ai_sdk_api, responses_api, a2a_api, ag_ui_api],
    )


async def _serve(url: str, pace_s: float) -> None:
    import uvicorn

    async with open_stores(url) as stores:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(256)
            sys.stdout.write(f"{listening.getsockname()[1]}\n")
            sys.stdout.flush()
            config = uvicorn.Config(_app(stores, pace_s), log_level="error")
            await uvicorn.Server(config).serve([listening])


class Server:
    """A server process that can be killed and started again."""

    def __init__(self, url: str, pace_s: float) -> None:
        self.url, self.pace_s = url, pace_s
        self.place = ""
        self._command = [url, str(pace_s)]
        self._child: asyncio.subprocess.Process | None = None
        self._client: httpx.AsyncClient | None = None
        self.up = asyncio.Event()
        self.kills = 0

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        code = "import sys, asyncio; from tests.campaign.protocols import _serve;"
        code += "asyncio.run(_serve(sys.argv[1], float(sys.argv[2])))"
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, *self._command), cwd=_ROOT, stdout=asyncio.subprocess.PIPE
        )
        if self._child.stdout is None:
            raise RuntimeError("the server has no output")
        self.place = f"http://127.0.0.1:{int(await self._child.stdout.readline())}"
        self._client = httpx.AsyncClient(
            base_url=self.place,
            headers={"Authorization": f"Bearer {_TOKEN}"},
            timeout=30,
        )
        self.up.set()

    async def kill(self) -> None:
        """Kill it by SIGKILL."""
        self.up.clear()
        if self._child is not None:
            self._child.kill()
            await self._child.wait()
        if self._client is not None:
            await self._client.aclose()

    async def client(self) -> httpx.AsyncClient:
        """A client of the running process."""
        await self.up.wait()
        if self._client is None:
            raise RuntimeError("the server was not started")
        return self._client


# --- the faces -----------------------------------------------------------------------------------


async def _frames(
    client: httpx.AsyncClient, path: str, headers: dict[str, str], **more: Any
) -> AsyncIterator[tuple[int, str | None, Any]]:
    """The server-sent events of *path*: the status, the id and the data of each."""
    method = "POST" if more else "GET"
    async with client.stream(method, path, headers=headers, **more) as answer:
        if answer.status_code != 200:
            yield answer.status_code, None, None
            return
        place: str | None = None
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                place = line[4:]
            elif line.startswith("data: "):
                text = line[6:]
                yield 200, place, None if text == "[DONE]" else json.loads(text)
                place = None


class Face:
    """
    A watcher of one face.

    Attributes:
        cuts: How often it was disconnected.
        beginnings: What each connection had shown when it was cut.
        pieces: Texts that it showed alone, each a beginning of one in the transcript.
        closed_s: How long after each decision it showed that an approval was given.
    """

    name = ""

    def __init__(self, server: Server, chance: random.Random, cuts: int) -> None:
        self.server, self.chance, self.left = server, chance, cuts
        self.cuts = 0
        self.beginnings: list[list[Said]] = []
        self.pieces: set[str] = set()
        self.closed_s: list[float] = []
        self.over = asyncio.Event()  # the turn has ended: stop when all is seen

    async def see_closed(self, client: httpx.AsyncClient, request: Request, seen: Seen) -> None:
        """Show that *request* waits, which is `seen()`; return once it is shown to be over."""
        raise NotImplementedError

    async def approve(self, client: httpx.AsyncClient, request: Request) -> None:
        """Give the approval."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Return once it watches."""

    async def close(self) -> None:
        """End what it keeps open."""

    async def watch(self) -> None:
        """Watch, and be cut, until the turn is over."""
        while not self.over.is_set():
            client = await self.server.client()
            patience = self.chance.uniform(0.02, 0.25) if self.left else 5.0
            try:
                async with asyncio.timeout(patience):
                    await self.connect(client)
            except TimeoutError:
                self.left = max(0, self.left - 1)
                self.cuts += 1
            except (httpx.HTTPError, RuntimeError):
                await asyncio.sleep(0.02)  # killed
            await asyncio.sleep(0.01)

    async def connect(self, client: httpx.AsyncClient) -> None:
        """Watch through one connection."""
        raise NotImplementedError

    async def final(self, client: httpx.AsyncClient) -> list[Said]:
        """The transcript that it shows in the end."""
        raise NotImplementedError

    def expected(self, stored: list[Said]) -> list[Said]:
        """The part of the transcript that it has to show in the end."""
        return stored


def _of_message(message: dict[str, Any]) -> list[Said]:
    if message["role"] == "user":
        return []
    texts = [b["text"] for b in message["content"] if b["type"] == "text"]
    if message["role"] == "toolResult":
        return [("tool", message["tool_name"], "".join(texts))]
    return [("text", one) for one in texts] if message["role"] == "assistant" else []


class Events(Face):
    """The HTTP API's events, which continue behind the last id."""

    name = "events"
    resumes = False  # by itself: then the rest of a text comes with its end alone

    def __init__(self, server: Server, chance: random.Random, cuts: int) -> None:
        super().__init__(server, chance, cuts)
        self.seen: dict[int, list[Said]] = {}
        self.last = 0
        self.wrong: list[str] = []
        self._text = ""

    async def connect(self, client: httpx.AsyncClient) -> None:
        """Continue behind the last id."""
        headers = {"Last-Event-ID": str(self.last)}
        self._text = ""
        async for _, place, event in _frames(client, "/contexts/c/events", headers):
            self.take(place, event)

    def take(self, place: str | int | None, event: Any) -> None:
        """Take an event, with its id if it is durable."""
        if place is not None:
            if int(place) != self.last + 1:
                self.wrong.append(f"{place} came behind {self.last}")
            self.last = int(place)
        if not isinstance(event, dict):
            return
        if event["type"] == "message_update":
            self._text += event["delta"]
        elif event["type"] == "message_start":
            self._text = ""
        elif event["type"] == "message_end":
            said = _of_message(event["message"])
            self.seen[self.last] = said
            whole = said[0][1] if said and said[0][0] == "text" else ""
            shown = whole[: len(self._text)] if self.resumes else whole
            if self._text and self._text != shown:
                self.wrong.append(f"deltas said {self._text!r}, the message {whole!r}")
            self._text = ""

    async def see_closed(self, client: httpx.AsyncClient, request: Request, seen: Seen) -> None:
        """An event says that it waits, and another that it was decided."""
        async for _, _, event in _frames(client, "/contexts/c/events?after=0", {}):
            if _asks(event, request):
                seen()
            elif _decides(event, request):
                return

    async def approve(self, client: httpx.AsyncClient, request: Request) -> None:
        """Continue the turn with the answer."""
        body = {"inputs": {request["request_id"]: True}}
        (await client.post("/contexts/c/turns", json=body)).raise_for_status()

    async def final(self, client: httpx.AsyncClient) -> list[Said]:
        """What came, by its ids."""
        while self.last < (await client.get("/contexts/c")).json()["last_seq"]:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self.connect(client)
        if self.wrong:
            return [("wrong", *self.wrong)]
        return [one for place in sorted(self.seen) for one in self.seen[place]]


def _asks(event: Any, request: Request) -> bool:
    """True for the event that says that *request* waits."""
    if not isinstance(event, dict) or event["type"] != "input_required":
        return False
    return any(one["request_id"] == request["request_id"] for one in event["pending"])


def _decides(event: Any, request: Request) -> bool:
    """True for the event that says that *request* was decided."""
    is_one = isinstance(event, dict) and event["type"] == "approval_decided"
    return is_one and event["request_id"] == request["request_id"]


async def _look(
    shows: Callable[[httpx.AsyncClient, Request], Awaitable[bool]],
    client: httpx.AsyncClient,
    request: Request,
    *,
    until: bool,
) -> None:
    """Ask a face again and again, as a page does that nobody calls."""
    while await shows(client, request) is not until:  # noqa: ASYNC110 - another process knows
        await asyncio.sleep(_LOOK_S)


class Command(Events):
    """
    `looopy contexts follow`: one process, which never ends, behind a proxy that cuts it off.

    Its connections are made again by the program itself, also after a kill of the server.
    """

    name = "CLI"
    resumes = True

    def __init__(self, server: Server, chance: random.Random, cuts: int) -> None:
        super().__init__(server, chance, cuts)
        self._proxy = Proxy(lambda: server.place)
        self._events: list[Any] = []
        self._news = asyncio.Condition()
        self._child: asyncio.subprocess.Process | None = None
        self._closed = False
        self._steady = False  # not cut now

    async def watch(self) -> None:
        """Start the program, and cut its connections until the turn is over."""
        async with self._proxy:
            reading = asyncio.create_task(self._read())
            while not self.over.is_set():
                patience = self.chance.uniform(0.02, 0.25) if self.left else 5.0
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await self.over.wait()
                if self.left and self._events and not self._steady and self._proxy.cut():
                    self.left -= 1
                    self.cuts += 1
            client = await self.server.client()
            head = (await client.get("/contexts/c")).json()["last_seq"]
            await self._until(lambda _: self.last >= head)
            await self.close()
            await reading

    async def begin(self) -> None:
        """Wait for its first line: a program that finds no server at its start ends."""
        await self._until(lambda event: event is not None)

    async def _read(self) -> None:
        self._child = await self._start("follow", "c", "--after", "0", "--json")
        if self._child.stdout is None:
            raise RuntimeError("the program has no output")
        async for line in self._child.stdout:
            event = json.loads(line)
            async with self._news:
                self.take(event.get("seq"), event)
                self._events.append(event)
                self._news.notify_all()
        if not self._closed:
            self.wrong.append(f"the program ended with {await self._child.wait()}")

    async def _start(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "looopy.cli", "contexts", *command),
            *("--server", self._proxy.url),
            cwd=_ROOT,
            env={**os.environ, "LOOOPY_TOKEN": _TOKEN},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=2**24,
        )

    async def _until(self, condition: Callable[[Any], bool]) -> None:
        """Wait for an event of this condition, from the first on."""
        looked = 0
        async with asyncio.timeout(60), self._news:
            while not (condition(None) or any(map(condition, self._events[looked:]))):
                looked = len(self._events)
                await self._news.wait()

    async def see_closed(self, client: httpx.AsyncClient, request: Request, seen: Seen) -> None:
        """A line says that it waits, and another that it was decided."""
        self._steady = True
        try:
            await self._until(lambda event: _asks(event, request))
            seen()
            await self._until(lambda event: _decides(event, request))
        finally:
            self._steady = False

    async def approve(self, client: httpx.AsyncClient, request: Request) -> None:
        """Run the command for it; a command that never reaches its server ends after a second."""
        self._steady = True
        try:
            child = await self._start("approve", "c", request["request_id"], "--no-wait")
            if await child.wait():
                raise RuntimeError("looopy contexts approve failed")
        finally:
            self._steady = False

    async def final(self, client: httpx.AsyncClient) -> list[Said]:
        """Its lines, by their numbers."""
        if self.wrong:
            return [("wrong", *self.wrong)]
        return [one for place in sorted(self.seen) for one in self.seen[place]]

    async def close(self) -> None:
        """End the program."""
        self._closed = True
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()


class Chat(Face):
    """The AI SDK: each connection gets the answer from its beginning."""

    name = "useChat"

    async def connect(self, client: httpx.AsyncClient) -> None:
        """Read the running answer; there is none between two turns."""
        parts: list[Any] = []
        try:
            async for status, _, part in _frames(client, "/api/chat/c/stream", {}):
                if status == 204:
                    await asyncio.sleep(0.05)
                elif part is not None:
                    parts.append(part)
        finally:
            if parts:
                self.beginnings.append(_of_parts(parts))

    async def see_closed(self, client: httpx.AsyncClient, request: Request, seen: Seen) -> None:
        """A page that loads shows its part in another state."""
        await _look(self.asks, client, request, until=True)
        seen()
        await _look(self.asks, client, request, until=False)

    async def approve(self, client: httpx.AsyncClient, request: Request) -> None:
        """Send the messages, with the answer in the part, and leave."""
        messages, part = await self._asked(client, request)
        if part is None:
            raise RuntimeError("no part of the page asks")
        part["state"] = "approval-responded"
        part["approval"]["approved"] = True
        body = {"id": "c", "trigger": "submit-message", "messages": messages}
        async with client.stream("POST", "/api/chat", json=body) as answer:
            answer.raise_for_status()

    async def asks(self, client: httpx.AsyncClient, request: Request) -> bool:
        """True if a page that loads now shows that *request* waits."""
        return (await self._asked(client, request))[1] is not None

    async def _asked(self, client: httpx.AsyncClient, request: Request) -> tuple[Any, Any]:
        """The messages, and the part that asks, or `None`."""
        messages = (await client.get("/api/chat/c")).json()["messages"]
        parts = [part for one in messages for part in one["parts"]]
        asking = [
            part
            for part in parts
            if part.get("state") == "approval-requested"
            and part["approval"]["id"] == request["request_id"]
        ]
        return messages, (asking[0] if asking else None)

    async def final(self, client: httpx.AsyncClient) -> list[Said]:
        """The transcript of a page that loads."""
        said: list[Said] = []
        for message in (await client.get("/api/chat/c")).json()["messages"]:
            for part in message["parts"] if message["role"] == "assistant" else ():
                if part["type"] == "text":
                    said.append(("text", part["text"]))
                elif "toolCallId" in part:
                    name = part.get("toolName") or part["type"].removeprefix("tool-")
                    said.append(("tool", name, str(part.get("output", ""))))
        return said


def _of_parts(parts: Sequence[Any]) -> list[Said]:
    """What the parts of a stream show, as far as they came."""
    items: dict[str, list[str]] = {}
    step: list[str] = []
    for part in parts:
        kind = part["type"]
        if kind == "start-step":
            step = []
        elif kind == "reset-step":
            for one in step:
                items.pop(one, None)
        elif kind == "text-start":
            items[part["id"]] = ["text", ""]
            step.append(part["id"])
        elif kind == "text-delta":
            items[part["id"]][1] += part["delta"]
        elif kind == "tool-input-available":
            items[part["toolCallId"]] = ["tool", part["toolName"], ""]
        elif kind == "tool-output-available":
            items[part["toolCallId"]][2] = str(part["output"])
    return [tuple(one) for one in items.values()]


class Responses(Face):
    """The Responses API: one response a turn, each streamed from its beginning."""

    name = "responses"

    async def connect(self, client: httpx.AsyncClient) -> None:
        """Stream the newest turn."""
        turn = (await client.get("/contexts/c")).json()["turn_count"]
        if not turn:
            return
        items: dict[str, list[str]] = {}
        path = f"/v1/responses/resp_{turn}_c?stream=true"
        try:
            async for _, _, event in _frames(client, path, {}):
                kind = (event or {}).get("type")
                if kind == "response.content_part.added":
                    items[f"{event['item_id']}/{event['content_index']}"] = ["text", ""]
                elif kind == "response.output_text.delta":
                    items[f"{event['item_id']}/{event['content_index']}"][1] += event["delta"]
                elif kind == "response.output_item.done" and event["item"]["type"] == "mcp_call":
                    item = event["item"]
                    items[item["id"]] = ["tool", item["name"], item["output"] or ""]
        finally:
            if items and turn == 1:
                self.beginnings.append([tuple(one) for one in items.values()])

    async def see_closed(self, client: httpx.AsyncClient, request: Request, seen: Seen) -> None:
        """The next response exists."""
        asked = (await client.get(f"/v1/responses/resp_{request['turn']}_c")).json()["output"]
        if request["request_id"] in [one.get("id") for one in asked]:
            seen()
        await _look(self.asks, client, request, until=False)

    async def asks(self, client: httpx.AsyncClient, request: Request) -> bool:
        """True until there is another response behind the one that asks."""
        path = f"/v1/responses/resp_{request['turn'] + 1}_c"
        return (await client.get(path)).status_code == 404

    async def approve(self, client: httpx.AsyncClient, request: Request) -> None:
        """Create the next response, with the answer as its input."""
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": request["request_id"],
            "approve": True,
        }
        body = {
            "model": "looopy",
            "previous_response_id": f"resp_{request['turn']}_c",
            "input": [answer],
            "background": True,
        }
        (await client.post("/v1/responses", json=body)).raise_for_status()

    async def final(self, client: httpx.AsyncClient) -> list[Said]:
        """The responses of all turns."""
        said: list[Said] = []
        turns = (await client.get("/contexts/c")).json()["turn_count"]
        for turn in range(1, turns + 1):
            response = (await client.get(f"/v1/responses/resp_{turn}_c")).json()
            for item in response["output"]:
                if item["type"] == "message":
                    said += [("text", part["text"]) for part in item["content"]]
                elif item["type"] == "mcp_call" and item["status"] != "incomplete":
                    said.append(("tool", item["name"], item["output"]))
        return said


class Tasks(Face):
    """A2A: a subscription gets the task as it is, then the text so far."""

    name = "A2A"
    _VERSION: ClassVar = {"A2A-Version": "1.0"}

    async def connect(self, client: httpx.AsyncClient) -> None:
        """Subscribe to the newest task."""
        found = await self._newest(client)
        if found is None or found["status"]["state"] != "TASK_STATE_WORKING":
            await asyncio.sleep(0.05)
            return
        path = f"/tasks/{found['id']}:subscribe"
        said = ""
        async for _, _, event in _frames(client, path, self._VERSION):
            update = (event or {}).get("artifactUpdate")
            if update is not None and update["artifact"]["artifactId"].endswith(".text"):
                said = said if update.get("append") else ""
                said += "".join(part["text"] for part in update["artifact"]["parts"])
                self.pieces.add(said)

    async def see_closed(self, client: httpx.AsyncClient, request: Request, seen: Seen) -> None:
        """A subscription to the task that waits says that it works."""
        found = await self._newest(client)
        path = f"/tasks/{found['id']}:subscribe"
        waits = "TASK_STATE_INPUT_REQUIRED"
        async for _, _, event in _frames(client, path, self._VERSION):
            update = (event or {}).get("statusUpdate") or (event or {}).get("task")
            if update is not None:
                if update["status"]["state"] != waits:
                    return
                seen()

    async def approve(self, client: httpx.AsyncClient, request: Request) -> None:
        """Send a message to the task."""
        found = await self._newest(client)
        message = {
            "messageId": secrets.token_hex(8),
            "contextId": "c",
            "taskId": found["id"],
            "role": "ROLE_USER",
            "parts": [{"text": "approve"}],
        }
        body = {"message": message, "configuration": {"returnImmediately": True}}
        answer = await client.post("/message:send", json=body, headers=self._VERSION)
        answer.raise_for_status()

    async def final(self, client: httpx.AsyncClient) -> list[Said]:
        """The answer of the newest task."""
        found = await self._newest(client)
        if found is None or found["status"]["state"] != "TASK_STATE_COMPLETED":
            return [("wrong", str(found))]
        return [("text", part["text"]) for part in found["status"]["message"]["parts"]]

    def expected(self, stored: list[Said]) -> list[Said]:
        """A task has its answer; the steps to it were only shown while it worked."""
        return stored[-1:]

    async def _newest(self, client: httpx.AsyncClient) -> Any:
        path = "/tasks?contextId=c&pageSize=1"
        tasks = (await client.get(path, headers=self._VERSION)).json().get("tasks")
        return tasks[0] if tasks else None


class Runs(Face):
    """AG-UI: a run without messages gets the thread, then follows the turn."""

    name = "AG-UI"

    async def connect(self, client: httpx.AsyncClient) -> None:
        """Follow the turn."""
        said: list[Said] = []
        try:
            async for event in self._run(client):
                said = _of_run(said, event)
        finally:
            if said:
                self.beginnings.append([one[:-1] if one[0] == "text" else one for one in said])
        await asyncio.sleep(0.05)

    async def see_closed(self, client: httpx.AsyncClient, request: Request, seen: Seen) -> None:
        """A run that shows the thread has no such interrupt any more."""
        await _look(self.asks, client, request, until=True)
        seen()
        await _look(self.asks, client, request, until=False)

    async def asks(self, client: httpx.AsyncClient, request: Request) -> bool:
        """True if a run that begins now is interrupted by *request*."""
        async for event in self._run(client):
            if event["type"] == "RUN_FINISHED":
                waits = (event.get("outcome") or {}).get("interrupts") or ()
                return request["request_id"] in [one["id"] for one in waits]
            if event["type"] not in ("RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"):
                return False  # a turn runs
        return False

    async def approve(self, client: httpx.AsyncClient, request: Request) -> None:
        """Resume the run, and leave."""
        payload = {"approved": True}
        resume = {"interruptId": request["request_id"], "status": "resolved", "payload": payload}
        async for _ in self._run(client, resume=[resume]):
            return

    async def final(self, client: httpx.AsyncClient) -> list[Said]:
        """The thread of a page that loads."""
        said: list[Said] = []
        async for event in self._run(client):
            said = _of_run(said, event)
        return [one[:-1] if one[0] == "text" else one for one in said]

    async def _run(self, client: httpx.AsyncClient, **more: Any) -> AsyncIterator[Any]:
        body = {"threadId": "c", "runId": secrets.token_hex(8), "state": {}, "messages": []}
        more = {"tools": [], "context": [], "forwardedProps": {}, **more}
        async for _, _, event in _frames(client, "/ag-ui", {}, json=body | more):
            if event is not None:
                yield event


def _of_run(said: list[Said], event: dict[str, Any]) -> list[Said]:
    """What a run shows behind *event*; a text keeps the id of its message in the end."""
    match event:
        case {"type": "MESSAGES_SNAPSHOT", "messages": messages}:
            said = []
            names: dict[str, str] = {}
            for message in messages:
                names |= {c["id"]: c["function"]["name"] for c in message.get("toolCalls") or ()}
                if message["role"] == "assistant" and message.get("content"):
                    said.append(("text", message["content"], message["id"]))
                elif message["role"] == "tool":
                    name = names.get(message["toolCallId"], "")
                    said.append(("tool", name, message["content"]))
        case {"type": "TEXT_MESSAGE_START", "messageId": name}:
            said = [*said, ("text", "", name)]
        case {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": delta}:
            said = [("text", o[1] + delta, name) if o[2:] == (name,) else o for o in said]
        case {"type": "TOOL_CALL_RESULT", "content": content}:
            name = "publish" if content == "published" else "work"
            said = [*said, ("tool", name, content)]
        case _:
            pass
    return said


class Sessions(Face):
    """ACP: a session that is loaded gets the transcript, then what the log gets."""

    name = "ACP"

    async def connect(self, client: httpx.AsyncClient) -> None:
        """Load the session, and watch it."""
        editor = Editor()
        try:
            async with self._loaded(editor) as found:
                if found:
                    await asyncio.Event().wait()
        finally:
            self.beginnings.append(_of_updates(editor.updates))

    async def see_closed(self, client: httpx.AsyncClient, request: Request, seen: Seen) -> None:
        """A dialog asks in one session; its call goes on."""
        editor = Editor(None)
        async with self._loaded(editor) as session:
            asking = asyncio.create_task(session.prompt("c", _PROMPT))
            try:
                await editor.until(lambda: bool(editor.asked))
                name, before = editor.asked[0][0].tool_call_id, len(editor.updates)
                seen()
                await editor.until(lambda: any(map(_ends(name), editor.updates[before:])))
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def approve(self, client: httpx.AsyncClient, request: Request) -> None:
        """Allow it in the dialog."""
        editor = Editor("allow", None)
        async with self._loaded(editor) as session:
            asking = asyncio.create_task(session.prompt("c", _PROMPT))
            try:
                await editor.until(lambda: bool(editor.asked))
                name = editor.asked[0][0].tool_call_id
                await editor.until(lambda: any(map(_ends(name), editor.updates)))
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def final(self, client: httpx.AsyncClient) -> list[Said]:
        """The transcript of a session that is loaded."""
        editor = Editor()
        async with self._loaded(editor):
            return _of_updates(editor.updates)

    @contextlib.asynccontextmanager
    async def _loaded(self, editor: Editor) -> AsyncIterator[Any]:
        """The session, or `None` before the turn has begun."""
        factory = _application(self.server.pace_s)
        async with (
            open_stores(self.server.url) as stores,
            connected(stores, editor, actor=AuthContext("ada"), factory=factory) as session,
        ):
            try:
                await session.load_session(cwd="/", session_id="c", mcp_servers=[])
            except acp.RequestError:
                yield None
            else:
                yield session


_PROMPT = [acp.text_block("/continue")]


def _ends(name: str) -> Callable[[Any], bool]:
    """True for an update that shows the end of this call."""

    def ends(update: Any) -> bool:
        is_one = update.session_update == "tool_call_update" and update.tool_call_id == name
        return is_one and update.status == "completed"

    return ends


def _of_updates(updates: Sequence[Any]) -> list[Said]:
    """What the updates of a session show; `_meta` marks those that are looopy's own."""
    items: dict[str, list[str]] = {}
    for update in updates:
        kind = update.session_update
        if kind == "agent_message_chunk" and not update.field_meta:
            items.setdefault(update.message_id, ["text", ""])[1] += update.content.text
        elif kind == "tool_call":
            items[update.tool_call_id] = ["tool", update.title.partition(" ")[0], ""]
        elif kind == "tool_call_update" and update.status == "completed":
            texts = [one.content.text for one in update.content or ()]
            items[update.tool_call_id][2] = "".join(texts)
    return [tuple(one) for one in items.values()]


FACES = (Events, Command, Chat, Responses, Tasks, Runs, Sessions)


# --- the story -----------------------------------------------------------------------------------


async def _settled(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/contexts/c")).json()
    return found


async def _continue(server: Server) -> None:
    client = await server.client()
    answer = await client.post("/contexts/c/turns", json={})
    if answer.status_code != 202:
        raise RuntimeError(f"the turn was not continued: {answer.text}")


async def story(folder: Path, *, cuts: int, kills: int, seed: int, pace_s: float) -> list[str]:
    """Play one story; return what was wrong."""
    chance = random.Random(seed)
    server = Server(f"sqlite:///{folder / 'faces.db'}", pace_s)
    await server.start()
    faces = [kind(server, random.Random(chance.random()), cuts) for kind in FACES]
    client = await server.client()
    await client.post("/contexts/c/turns", json={"message": "Go."})
    watching = [asyncio.create_task(face.watch()) for face in faces]
    try:
        for face in faces:
            await face.begin()
        while server.kills < kills:
            await asyncio.sleep(chance.uniform(0.3, 1.2))
            if (await _settled(await server.client()))["status"] != "busy":
                break
            await server.kill()
            server.kills += 1
            await server.start()
            await _continue(server)
        for giving in chance.sample(faces, len(faces)):
            await _until(server, faces, "waiting")
            if wrong := await _approved(await server.client(), faces, giving):
                return [wrong]
        await _until(server, faces, "ready")
        for face in faces:
            face.over.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*watching)
        return await _judge(await server.client(), faces, server.kills)
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        for face in faces:
            await face.close()
        await server.kill()


async def _approved(client: httpx.AsyncClient, faces: Sequence[Face], giving: Face) -> str:
    """Have one face give the approval that waits, and the others show it; what was wrong."""
    [request] = (await _settled(client))["pending"]
    seen = {face: asyncio.Event() for face in faces}
    closed: dict[Face, float] = {}

    async def see(face: Face) -> None:
        await face.see_closed(client, request, seen[face].set)
        closed[face] = time.time()

    seeing = [asyncio.create_task(see(face)) for face in faces if face is not giving]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(seen[face].wait() for face in faces if face is not giving))
            if closed:
                early = ", ".join(face.name for face in closed)
                return f"{early} showed an approval that nobody gave"
            await giving.approve(client, request)
            await asyncio.gather(*seeing)
    except TimeoutError:
        others = [face for face in faces if face is not giving]
        if blind := [face.name for face in others if not seen[face].is_set()]:
            return f"{', '.join(blind)} did not show an approval that waits"
        late = [face.name for face in others if face not in closed]
        return f"{giving.name} gave an approval that {', '.join(late)} did not show"
    finally:
        for task in seeing:
            task.cancel()
        await asyncio.gather(*seeing, return_exceptions=True)
    given = await _decided(client, request)
    for face, moment in closed.items():
        face.closed_s.append(moment - given)
    return ""


async def _decided(client: httpx.AsyncClient, request: Request) -> float:
    """The moment of the decision, by the log."""
    async for _, _, event in _frames(client, "/contexts/c/events?after=0", {}):
        if _decides(event, request):
            return datetime.fromisoformat(event["timestamp"]).timestamp()
    raise RuntimeError("the log has no decision")


async def _until(server: Server, faces: Sequence[Face], status: str) -> None:
    """Wait until the context has *status*, and until every face was cut often enough."""
    until = time.monotonic() + 300
    while (await _settled(await server.client()))["status"] != status:
        if time.monotonic() > until:
            raise TimeoutError(f"the context is not {status}")
        await asyncio.sleep(0.05)


async def _judge(client: httpx.AsyncClient, faces: Sequence[Face], kills: int) -> list[str]:
    stored: list[Said] = []
    for item in (await client.get("/contexts/c/messages?limit=200")).json()["items"]:
        stored += _of_message(item["message"])
    wrong = []
    if len(stored) < 2 * _STEPS:
        wrong.append(f"the store has {len(stored)} pieces: {stored}")
    for face in faces:
        final = await face.final(client)
        if final != face.expected(stored):
            wrong.append(f"{face.name} shows {_difference(final, face.expected(stored))}")
        wrong += [
            f"{face.name} showed {piece!r}"
            for piece in face.pieces
            if not any(one[-1].startswith(piece) for one in stored)
        ]
        for beginning in face.beginnings:
            if not _begins(beginning, stored):
                wrong.append(f"{face.name} showed {_difference(beginning, stored)}")
                break
        middle, most = statistics.median(face.closed_s), max(face.closed_s)
        sys.stdout.write(
            f"{face.name}: cut {face.cuts} times, the server killed {kills} times;"
            f" approvals closed after {middle * 1000:.0f} ms, at most {most * 1000:.0f}\n"
        )
    return wrong


def _begins(shown: Sequence[Said], stored: Sequence[Said]) -> bool:
    """True if *shown* is how the transcript begins; its last pieces may be unfinished."""
    for one, whole in zip(shown, stored, strict=False):
        if one[:-1] != whole[:-1] or not whole[-1].startswith(one[-1]):
            return False
    return len(shown) <= len(stored)


def _difference(shown: Sequence[Said], stored: Sequence[Said]) -> str:
    for place, (one, other) in enumerate(zip(shown, stored, strict=False)):
        if one != other:
            return f"{one!r} in place {place}, the store {other!r}"
    return f"{len(shown)} pieces, the store {len(stored)}: {shown[len(stored) :]}"


def main() -> int:
    """Play stories; return the number of those that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.protocols", description=__doc__)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds between two deltas")
    given = parser.parse_args()
    failed = 0
    for seed in range(given.seed, given.seed + given.runs):
        with tempfile.TemporaryDirectory() as folder:
            wrong = asyncio.run(
                story(
                    Path(folder), cuts=given.cuts, kills=given.kills, seed=seed, pace_s=given.pace
                )
            )
        sys.stdout.write(f"seed {seed}: {'; '.join(wrong) or 'every face shows the same'}\n")
        failed += bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main())
