"""
100,000 turns through a server in one process: nothing may be left of them, and no step may be long.

    python -m tests.campaign.endurance                 100,000 turns: half in memory, half on SQLite
    python -m tests.campaign.endurance --turns 5000 --stores sqlite

Contexts come and go, ten turns each, and a host that has places for a few of them makes and shuts
down their agents. Clients read streams to the end, or leave them in the middle; they use several
faces. One turn in ten is cancelled, and one in ten fails. Between blocks of turns everything is at
rest. Then the live objects are counted by type, and tasks, threads, file descriptors and memory.
What grows from each block to the next is a leak.

Meanwhile a watch asks the event loop for its turn again and again. The time in which the machine
gave our threads no processor is subtracted, so a busy machine may hide a stall, but makes none. In
each block there are also turns on a conversation of 2,000 messages, with a tool result of 10 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import heapq
import json
import logging
import os
import sys
import tempfile
import threading
import time
import traceback
import weakref
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from looopy import Agent, AuthContext, Stores, open_stores, tool
from looopy.errors import LLMError
from looopy.server import AgentHost, ag_ui_api, ai_sdk_api, create_app
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.message import (
    AssistantMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest

VISIT = 10
"""Turns of one context."""

_ADA = AuthContext("ada")
_AT_ONCE = 4  # clients, each with two contexts
_PLACES = 6  # agents that the host keeps: fewer than there are contexts
_RSS_MB = 5.0  # that memory may grow after the first tenth
_STALL_S = 0.1
_TICK_S = 0.005
_WARM = 5  # heavy turns in the first block: threads and their memory are there then
_HEAVY = 10 * 1024 * 1024
# glibc raises its threshold at the first large block that is freed, and each thread then keeps such
# blocks: 10 MB a thread, for good. With fixed thresholds, the memory that grows is memory in use.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**20)}


# --- the application ------------------------------------------------------------------------------


@tool(effects="none")
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@tool(effects="none")
def boom() -> str:
    """Fail."""
    raise ValueError("it broke")


@tool(effects="none")
async def hang() -> str:
    """Wait for the end of the world."""
    await asyncio.Event().wait()
    return "unreached"


@tool(needs_approval=True)
def pay(eur: int) -> str:
    """Pay."""
    return f"paid {eur}"


@tool(effects="none", max_result_bytes=2 * _HEAVY)
def read() -> str:
    """Read a large file."""
    return "0123456789abcde\n" * (_HEAVY // 16)


_CALLS: dict[str, Any] = {
    "add": tool_call("add", a=2, b=3),
    "boom": tool_call("boom"),
    "hang": tool_call("hang"),
    "pay": tool_call("pay", eur=5),
    "read": tool_call("read"),
}


def _reply(request: LLMRequest) -> Any:
    last = request.messages[-1]
    if last.role == "user" and last.text in _CALLS:
        return text("I look."), _CALLS[last.text]
    if last.role == "user" and last.text == "fail":
        return text("I "), failure(LLMError("no luck", provider="scripted", retryable=False))
    return text("This is what I have found, as far as I can tell.")


def build(context_id: str, stores: Stores) -> Agent:
    """Make the agent of one context."""
    model = ScriptedProvider(_reply, chunk_chars=8)
    return Agent(context_id, llm_provider=model, tools=[add, boom, hang, pay, read], stores=stores)


# --- a client -------------------------------------------------------------------------------------


class Client:
    """Sends requests to an ASGI application in this process, and may leave in a response."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        stream: bool = False,
        leave: Callable[[bytes], Awaitable[bool]] | None = None,
    ) -> bytes:
        """
        The body of the response; up to the chunk at which *leave* says so.

        Raises:
            RuntimeError: The status is not one of success.
        """
        content = b"" if body is None else json.dumps(body).encode()
        left, got, status = asyncio.Event(), list[bytes](), 0
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": content, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def take(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif (chunk := message.get("body", b"")) and not left.is_set():
                got.append(chunk)
                if leave is not None and await leave(chunk):
                    left.set()

        name, _, query = path.partition("?")
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        if stream:
            headers.append((b"accept", b"text/event-stream"))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": name,
            "raw_path": name.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        try:
            await self._app(scope, receive, take)
        finally:
            left.set()
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {b''.join(got)[:200]!r}")
        return b"".join(got)


def _at(number: int) -> Callable[[bytes], Awaitable[bool]]:
    """Leave at chunk *number*."""
    count = 0

    async def leave(_chunk: bytes) -> bool:
        nonlocal count
        count += 1
        return count == number

    return leave


def _seen(needle: bytes) -> Callable[[bytes], Awaitable[bool]]:
    """Leave at the chunk that has *needle*."""

    async def leave(chunk: bytes) -> bool:
        return needle in chunk

    return leave


# --- what clients do ------------------------------------------------------------------------------

_Step: TypeAlias = Callable[[Client, AgentHost, str], Awaitable[bytes | None]]


def _has(found: bytes, needle: bytes) -> bytes:
    if needle not in found:
        raise RuntimeError(f"{needle!r} is missing in {found[-400:]!r}")
    return found


async def _read_compact(client: Client, _host: AgentHost, name: str) -> None:
    path = f"/contexts/{name}/turns?format=compact"
    _has(await client.send("POST", path, {"message": "add"}, stream=True), b'"completed"')


async def _drop(client: Client, host: AgentHost, name: str) -> None:
    path = f"/contexts/{name}/turns"
    await client.send("POST", path, {"message": "say"}, stream=True, leave=_at(5))
    async with host.agent(name, _ADA) as agent:
        await agent.wait_for_idle()


async def _cancel(client: Client, _host: AgentHost, name: str) -> None:
    async def cancel(chunk: bytes) -> bool:
        if b"event: tool_execution_start" in chunk:
            await client.send("POST", f"/contexts/{name}/cancel", {})
        return False

    path = f"/contexts/{name}/turns"
    found = await client.send("POST", path, {"message": "hang"}, stream=True, leave=cancel)
    _has(found, b'"cancelled"')


async def _fail(client: Client, _host: AgentHost, name: str) -> None:
    path = f"/contexts/{name}/turns"
    _has(await client.send("POST", path, {"message": "fail"}, stream=True), b'"failed"')


async def _chat(client: Client, _host: AgentHost, name: str) -> None:
    message = {"id": f"m-{name}", "role": "user", "parts": [{"type": "text", "text": "boom"}]}
    body = {"id": name, "message": message, "trigger": "submit-message"}
    _has(await client.send("POST", "/api/chat", body), b'"finish"')


async def _run(client: Client, _host: AgentHost, name: str) -> None:
    message = {"id": f"u-{name}", "role": "user", "content": "add"}
    body: dict[str, Any] = {"threadId": name, "runId": f"r-{name}", "messages": [message]}
    body |= {"tools": [], "context": [], "state": None, "forwardedProps": {}}
    _has(await client.send("POST", "/ag-ui", body), b"RUN_FINISHED")


async def _follow(client: Client, _host: AgentHost, name: str) -> None:
    path = f"/contexts/{name}/events"
    await client.send("GET", f"{path}?after=0", leave=_at(3))
    record = json.loads(await client.send("GET", f"/contexts/{name}"))
    reading = asyncio.create_task(
        client.send("GET", f"{path}?after={record['last_seq']}", leave=_seen(b"event: turn_end"))
    )
    await client.send("POST", f"/contexts/{name}/turns", {"message": "say"})
    _has(await reading, b"event: message_end")


async def _give_up(client: Client, host: AgentHost, name: str) -> None:
    """Cancel the task that waits for a turn; the turn goes on."""
    begun = asyncio.Event()

    async def ask() -> None:
        async with host.agent(name, _ADA) as agent:
            turn = agent.execute_turn("add", _ADA)
            await turn.accepted()
            begun.set()
            await turn

    asking = asyncio.create_task(ask())
    await begun.wait()
    asking.cancel()
    await asyncio.wait([asking])
    async with host.agent(name, _ADA) as agent:
        await agent.wait_for_idle()


async def _ask(client: Client, _host: AgentHost, name: str) -> None:
    path = f"/contexts/{name}/turns"
    _has(await client.send("POST", path, {"message": "pay"}, stream=True), b'"input_required"')


async def _allow(client: Client, _host: AgentHost, name: str) -> None:
    [pending] = json.loads(await client.send("GET", f"/contexts/{name}"))["pending"]
    path, inputs = f"/contexts/{name}/turns", {pending["request_id"]: True}
    _has(await client.send("POST", path, {"inputs": inputs}, stream=True), b"paid 5")


_STEPS: Sequence[_Step] = (
    *(_read_compact, _drop, _cancel, _fail, _chat),
    *(_run, _follow, _give_up, _ask, _allow),
)


async def _visits(client: Client, host: AgentHost, names: Iterator[str]) -> None:
    """Take contexts in pairs, one step of each in turn, and erase them."""
    for first in names:
        pair = [first, *([second] if (second := next(names, None)) else ())]
        for step in _STEPS:
            for name in pair:
                await step(client, host, name)
        for name in pair:
            await client.send("DELETE", f"/contexts/{name}")


def conversation(count: int) -> list[Message]:
    """Messages of turns with one tool call each."""
    made: list[Message] = []
    for n in range(count // 4):
        call = ToolCall(f"call-{n}", "add", {"a": n, "b": n})
        made += [
            UserMessage(f"question {n}"),
            AssistantMessage([TextContent("I look."), call]),
            ToolResultMessage(
                tool_call_id=call.id, tool_name="add", content=[TextContent(f"found {n}")]
            ),
            AssistantMessage([TextContent(f"It is {n}.")]),
        ]
    return made


async def _heavy(client: Client, host: AgentHost) -> None:
    """A turn with a large result on a long conversation, watched in both formats."""
    await host.stores.messages.append("long", conversation(2000))
    path = "/contexts/long/turns"
    await client.send("POST", path, {"message": "add"}, stream=True)
    await client.send("POST", f"{path}?format=compact", {"message": "read"}, stream=True)
    await client.send("POST", path, {"message": "read"}, stream=True)
    await client.send("GET", "/api/chat/long")
    await client.send("DELETE", "/contexts/long")


# --- what is left ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """
    What a process has while nothing happens in it.

    Attributes:
        objects: How many there are of each of `_KINDS`, in an array: objects are counted.
        blocks: Memory blocks of Python, which a text has, too.
    """

    objects: array[int]
    blocks: int
    tasks: int
    threads: int
    files: int
    rss_mb: float

    def of(self, kind: int) -> int:
        """How many objects of one kind there are."""
        return self.objects[kind] if kind < len(self.objects) else 0


_KINDS: dict[type, int] = {}
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # once: each look makes classes
_NOT_LEFT = (Left, weakref.ref)  # sets keep dead references until the next addition


def _left() -> Left:
    _forget_cancelled_timers()
    for _ in range(3):  # a finaliser makes garbage of its own
        gc.collect()
    blocks = sys.getallocatedblocks()
    if _trim is not None:
        _trim(0)  # free memory that the allocator keeps is no leak
    found = Counter(map(type, gc.get_objects()))
    for kind in found:
        _KINDS.setdefault(kind, len(_KINDS))
    return Left(
        array("q", [found[kind] for kind in _KINDS]),
        blocks,
        len(asyncio.all_tasks()),
        threading.active_count(),
        len(list(Path("/proc/self/fd").iterdir())),
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6,
    )


def _forget_cancelled_timers() -> None:
    """The loop drops them when there are many; until then they hold what they were to call."""
    loop: Any = asyncio.get_running_loop()
    loop._scheduled = [one for one in loop._scheduled if not one.cancelled()]
    loop._timer_cancelled_count = 0
    heapq.heapify(loop._scheduled)


def leaks(left: Sequence[Left], turns: int) -> list[str]:
    """
    What grew in each block of *turns* turns.

    A cache that fills grows in some of them. One object for each failed turn grows in all.
    """
    steps = list(pairwise(left))
    least = max(2, turns // 100)
    wrong = []
    for kind, number in _KINDS.items():
        grown = min(after.of(number) - before.of(number) for before, after in steps)
        if kind not in _NOT_LEFT and grown >= least:
            name = f"{kind.__module__}.{kind.__qualname__}"
            wrong.append(f"{name} grew by {grown} or more in each {turns} turns")
    for name in ("tasks", "threads", "files"):  # pools of threads fill up
        grown = min(getattr(after, name) - getattr(before, name) for before, after in steps)
        if grown > 0:
            wrong.append(f"{name} grew by {grown} or more in each {turns} turns")
    grown = min(after.blocks - before.blocks for before, after in steps)
    if turns >= 1000 and grown >= turns // 2:  # fewer turns are less than what comes and goes
        wrong.append(f"allocated blocks grew by {grown} or more in each {turns} turns")
    return wrong


class Watch:
    """Notes how long the event loop let a task wait, and in which code."""

    def __init__(self, limit_s: float = _STALL_S) -> None:
        self.longest_s = 0.0
        self.stalls: list[tuple[float, str]] = []
        self._limit_s = limit_s
        self._tick = 0.0
        self._where = ""
        self._over = threading.Event()
        self._loop_thread = threading.get_ident()

    def _without_processor_s(self) -> float:
        """
        How long the machine has let our threads wait for a processor, all in all.

        Those of others count, too: one that holds Python's lock stops the loop while it waits.
        """
        waited = 0
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, IndexError):  # it has just ended, or is not measured
                said = (thread / "schedstat").read_text()
                waited += int(said.split()[1])
        return waited / 1e9

    async def _ticks(self) -> None:
        before, idle = time.perf_counter(), self._without_processor_s()
        while True:
            self._tick = before
            await asyncio.sleep(_TICK_S)
            now, idle_now = time.perf_counter(), self._without_processor_s()
            stall = now - before - _TICK_S - max(0.0, idle_now - idle)
            self.longest_s = max(self.longest_s, stall)
            if stall > self._limit_s:
                self.stalls.append((stall, self._where))
            self._where = ""
            before, idle = now, idle_now

    def _look(self) -> None:
        """Note, from another thread, where the loop is while it is late."""
        while not self._over.wait(self._limit_s / 4):
            if time.perf_counter() - self._tick > self._limit_s / 2 and not self._where:
                frame = sys._current_frames().get(self._loop_thread)
                lines = traceback.extract_stack(frame)[-6:]
                self._where = " < ".join(
                    f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(lines)
                )

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch while the block runs."""
        self._over.clear()
        looking = threading.Thread(target=self._look, daemon=True)
        ticking = asyncio.create_task(self._ticks())
        await asyncio.sleep(0)
        looking.start()
        try:
            yield
        finally:
            self._over.set()
            looking.join()
            ticking.cancel()
            await asyncio.wait([ticking])


# --- a run ----------------------------------------------------------------------------------------


@dataclass
class Run:
    """
    Blocks of turns on one server.

    Attributes:
        left: What there was before the first measured block, and after each.
        wrong: What grew, and the stalls.
    """

    turns: int
    left: list[Left] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    longest_stall_s: float = 0.0
    took_s: float = 0.0


async def endure(
    url: str,
    *,
    turns: int,
    blocks: int,
    heavy: bool = False,
    each: Callable[[AgentHost], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Run:
    """
    Run one block to warm up, then *blocks* measured ones of *turns* turns each.

    Args:
        heavy: In each block there are also large results on a long conversation, and a stall counts
            as wrong.
        each: Called with each agent that is made, to break something on purpose.
        say: Gets a line after each block.
    """
    run, watch, began = Run(turns), Watch(), time.perf_counter()
    tasks = len(asyncio.all_tasks())

    def made(context_id: str, stores: Stores) -> Agent:
        agent = build(context_id, stores)
        if each is not None:
            each(host)
        return agent

    logger = logging.getLogger("looopy")
    level = logger.level
    async with open_stores(url) as stores, AgentHost(made, stores, max_agents=_PLACES) as host:
        faces = [ai_sdk_api, ag_ui_api]
        client = Client(create_app(host, authenticate=lambda _: _ADA, protocols=faces))
        gc.collect()
        gc.freeze()
        logger.setLevel(logging.CRITICAL)  # a handler may keep records, and with them what failed
        try:
            for block in range(blocks + 1):
                async with watch.watching():
                    for _ in range(0 if not heavy else 1 if block else _WARM):
                        await _heavy(client, host)
                    names = iter([f"c{n}" for n in range(turns // VISIT)])
                    await asyncio.gather(*(_visits(client, host, names) for _ in range(_AT_ONCE)))
                await _rest(host, tasks + 1)  # sse_starlette keeps one
                run.left.append(_left())
                say(_line(block, run, watch, time.perf_counter() - began))
        finally:
            logger.setLevel(level)
            gc.unfreeze()
    run.wrong = leaks(run.left, turns)
    run.longest_stall_s, run.took_s = watch.longest_s, time.perf_counter() - began
    if heavy:
        grown = run.left[-1].rss_mb - run.left[0].rss_mb
        if grown > _RSS_MB:
            run.wrong.append(f"memory grew by {grown:.1f} MB")
        run.wrong += [f"a stall of {s * 1e3:.0f} ms at {where}" for s, where in watch.stalls]
    return run


async def _rest(host: AgentHost, tasks: int) -> None:
    """Wait until the host has no agent, and no more than *tasks* are left; a leak stays."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(120):
            while host.agent_count or len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)  # what a reader that left has begun to look for may still arrive


def _line(block: int, run: Run, watch: Watch, took_s: float) -> str:
    left = run.left[-1]
    return (
        f"{(block + 1) * run.turns:>7} turns {took_s:>6.0f} s: {sum(left.objects):>7} objects"
        f" {left.blocks:>8} blocks {left.tasks} tasks {left.threads} threads {left.files} files"
        f" {left.rss_mb:6.1f} MB, longest stall {watch.longest_s * 1e3:.1f} ms"
    )


def _run_all(given: argparse.Namespace) -> Iterable[str]:
    """Run on each store; return what was wrong."""
    for name in given.stores:
        with tempfile.TemporaryDirectory() as folder:
            url = "memory:" if name == "memory" else f"sqlite:///{Path(folder) / 'endurance.db'}"
            turns = given.turns // len(given.stores) // (given.blocks + 1)
            sys.stdout.write(f"{name}\n")
            run = asyncio.run(endure(url, turns=turns, blocks=given.blocks, heavy=True, say=_say))
        for one in run.wrong:
            _say(f"WRONG {name}: {one}")
        yield from run.wrong


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run what the command line asks for; return the number of things that were wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.endurance", description=__doc__)
    parser.add_argument("--turns", type=int, default=100_000, help="in all, on all stores")
    parser.add_argument("--blocks", type=int, default=9, help="that are measured, after one more")
    parser.add_argument("--stores", nargs="+", default=["memory", "sqlite"])
    given = parser.parse_args()
    if not _ALLOCATOR.keys() <= os.environ.keys():  # read when a process begins
        command = [sys.executable, "-m", "tests.campaign.endurance", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **_ALLOCATOR})  # noqa: S606 - itself
    wrong = list(_run_all(given))
    if not wrong:
        _say("nothing is left of these turns, and no step was long")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
