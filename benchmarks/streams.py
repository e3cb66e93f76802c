"""
Serve many event streams: how many events arrive, how late, and how much CPU an event costs.

    python -m benchmarks.streams                   1,000 readers for 30 s, then the cost of an event
    python -m benchmarks.streams --readers 200 --seconds 10

The readers follow 50 contexts, whose turns make about five durable events a second each. A fifth of
the readers never reads, and a fifth leaves again and again and continues by `Last-Event-ID`. All
others have to get each event exactly once, those that leave too. The server and its readers share
the machine, so the lag is that of both.

The cost is CPU time of the server's process for each event sent, beside a bare generator of
sse-starlette that sends frames of the same size to as many readers. The work of the turns
themselves is taken out: it is measured without readers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

_CONTEXTS = 50
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_PAUSE_S = 0.6  # of a tool: its iteration has three durable events
_ROOT = Path(__file__).parent.parent


# --- the server's process ------------------------------------------------------------------------


async def _serve(pause_s: float, words: int) -> None:
    import uvicorn

    from looopy import Agent, AuthContext, LoopConfig, Stores, open_stores, tool
    from looopy.server import AgentHost, Limits, create_app
    from looopy.testing import ScriptedProvider, text, tool_call

    @tool(effects="none")
    async def wait() -> str:
        """Wait for a moment."""
        await asyncio.sleep(pause_s)
        return "done"

    model = ScriptedProvider(
        lambda _: (text("word " * words), tool_call("wait")) if words else tool_call("wait"),
        chunk_chars=5,
    )
    endless = LoopConfig(
        max_iterations=10**6, max_tool_calls=10**6, on_doom_loop="warn", max_messages=20
    )

    def build(context_id: str, stores: Stores) -> Agent:
        return Agent(
            context_id, llm_provider=model, tools=[wait], stores=stores, loop_config=endless
        )

    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of readers that left
    limits = Limits(streams_per_actor=10**5, streams=10**5, send_s=10.0)
    async with open_stores("memory:") as stores:
        host = AgentHost(build, stores, max_agents=_CONTEXTS, drain_s=0.1)
        app = create_app(
            host, authenticate=lambda _: AuthContext("ada"), limits=limits, protocols=[_routes]
        )
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(4096)
            print(listening.getsockname()[1], flush=True)
            config = uvicorn.Config(app, log_level="error", lifespan="off", backlog=4096)
            await uvicorn.Server(config).serve([listening])


def _routes(_: Any) -> list[Any]:
    """The figures of the process, and the bare generator."""
    from sse_starlette import EventSourceResponse
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def figures(_: Request) -> Response:
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        size = pages * os.sysconf("SC_PAGE_SIZE")
        return JSONResponse({"cpu_s": used.ru_utime + used.ru_stime, "rss": size})

    async def plain(request: Request) -> Response:
        size, every = int(request.query_params["size"]), float(request.query_params["every"])

        async def frames() -> AsyncIterator[dict[str, Any]]:
            number = 0
            while True:
                number += 1
                yield {"id": str(number), "event": "plain", "data": "x" * size}
                await asyncio.sleep(every)

        return EventSourceResponse(frames(), sep="\n")

    return [Route("/figures", figures), Route("/plain", plain)]


# --- the readers ---------------------------------------------------------------------------------


@dataclass
class Reader:
    """What one reader got."""

    ids: list[int] = field(default_factory=list)
    frames: int = 0
    size: int = 0
    lags_s: list[float] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if no durable event was missing, twice or out of order."""
        first = self.ids[0] if self.ids else 0
        return self.ids == list(range(first, first + len(self.ids)))


async def _get(port: int, path: str, last: int | None = None) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    place = "" if last is None else f"Last-Event-ID: {last}\r\n"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{place}\r\n".encode())
    return reader, writer


async def _json(port: int, path: str) -> Any:
    reader, writer = await _get(port, path)
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(found[1]) if found else 0)
    writer.close()
    return json.loads(body)


async def _begin(port: int, name: str) -> None:
    body = b'{"message": "Go."}'
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /contexts/{name}/turns HTTP/1.1\r\nHost: localhost\r\n"
    more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + more.encode() + body)
    status = await reader.readline()
    if b"202" not in status:
        raise RuntimeError(f"the turn was not accepted: {status!r}")
    writer.close()


async def _read(port: int, path: str, got: Reader, until: float, *, leaves: bool) -> None:
    """Read the events of *path* until the clock says *until*, or for a moment if it *leaves*."""
    last: int | None = got.ids[-1] if got.ids else None
    reader, writer = await _get(port, path, last)
    if leaves:
        until = min(until, time.monotonic() + 2.0)
    rest = b""
    try:
        async with asyncio.timeout(max(0.0, until - time.monotonic())):
            while chunk := await reader.read(65536):
                now = time.time()
                *whole, rest = (rest + chunk).split(b"\n\n")
                for one in whole:
                    _note(one, got, now)
    except (TimeoutError, ConnectionError):
        pass
    writer.transport.abort()


def _note(block: bytes, got: Reader, now: float) -> None:
    if b"data: " not in block:
        return
    got.frames += 1
    got.size += len(block)
    if found := _ID.search(block):
        got.ids.append(int(found[1]))
        if got.ids[-1] % 7 == 0 and b'"timestamp":"' in block:
            said = block.split(b'"timestamp":"', 1)[1].split(b'"', 1)[0].decode()
            got.lags_s.append(now - datetime.fromisoformat(said).timestamp())


async def _leaver(port: int, path: str, got: Reader, until: float) -> None:
    while time.monotonic() < until:
        await _read(port, path, got, until, leaves=True)


@contextlib.asynccontextmanager
async def _server(pause_s: float, words: int) -> AsyncIterator[int]:
    code = f"asyncio.run(_serve({pause_s}, {words}))"
    code = f"import asyncio; from benchmarks.streams import _serve; {code}"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=_ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        yield int(await child.stdout.readline())
    finally:
        child.kill()
        await child.wait()


# --- what is measured ----------------------------------------------------------------------------


async def arrivals(readers: int, seconds: float) -> None:
    """Print what arrives at many readers, and the server's memory."""
    fifth = readers // 5
    async with _server(_PAUSE_S, 0) as port:
        names = [f"c{n}" for n in range(_CONTEXTS)]
        await asyncio.gather(*(_begin(port, name) for name in names))
        paths = [f"/contexts/{names[n % _CONTEXTS]}/events" for n in range(readers)]
        deaf = [await _get(port, path) for path in paths[:fifth]]
        until = time.monotonic() + seconds
        leavers = [Reader() for _ in range(fifth)]
        healthy = [Reader() for _ in range(readers - 2 * fifth)]
        reading = [
            *(_leaver(port, p, r, until) for p, r in zip(paths[fifth:], leavers, strict=False)),
            *(
                _read(port, p, r, until, leaves=False)
                for p, r in zip(paths[2 * fifth :], healthy, strict=True)
            ),
        ]
        watching = asyncio.create_task(_watch(port, until))
        await asyncio.gather(*reading)
        rss, used = await watching
        for _, writer in deaf:
            writer.transport.abort()
    lags = sorted(lag for one in healthy for lag in one.lags_s)
    broken = sum(not one.is_whole for one in (*leavers, *healthy))
    events = sum(len(one.ids) for one in (*leavers, *healthy))
    print(f"readers                     {readers:,}: {fifth} that never read, {fifth} that leave")
    print(f"durable events received     {events:,}, {events / seconds:,.0f}/s")
    print(f"readers with a gap or twice {broken}")
    p50, p99, most = (1e3 * lags[int(len(lags) * part)] for part in (0.5, 0.99, 0.99999))
    print(f"lag, healthy readers        p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {most:.0f} ms")
    cpu = f"{used / seconds * 6 / 5:.2f} of a core, {1e6 * used * 6 / 5 / events:.0f} us an event"
    print(f"CPU of the server           {cpu}, turns and reconnects included")
    print(f"memory of the server, MiB   {' '.join(f'{one / 2**20:.0f}' for one in rss)}")


async def _watch(port: int, until: float) -> tuple[list[int], float]:
    """The server's memory at six moments, and its CPU time between the first and the last."""
    found = []
    step = (until - time.monotonic()) / 6
    while time.monotonic() < until - step / 2:
        await asyncio.sleep(step)
        found.append(await _json(port, "/figures"))
    return [int(one["rss"]) for one in found], found[-1]["cpu_s"] - found[0]["cpu_s"]


async def _cost(path: str, readers: int, seconds: float) -> tuple[float, int, int]:
    """CPU seconds of a server, the frames that it sent meanwhile, and their bytes."""
    async with _server(0.2, 40) as port:
        name = "c"
        if "plain" not in path:
            await _begin(port, name)
        got = [Reader() for _ in range(readers)]
        until = time.monotonic() + seconds + 1.0
        reading = [asyncio.create_task(_read(port, path, one, until, leaves=False)) for one in got]
        await asyncio.sleep(1.0)
        before = await _json(port, "/figures")
        count = sum(one.frames for one in got)
        await asyncio.sleep(seconds)
        after = await _json(port, "/figures")
        frames = sum(one.frames for one in got) - count
        await asyncio.gather(*reading)
        size = sum(one.size for one in got) // max(1, sum(one.frames for one in got))
        return after["cpu_s"] - before["cpu_s"], frames, size


async def costs(rounds: int = 3, readers: int = 50, seconds: float = 4.0) -> None:
    """Print the CPU time of an event, beside that of a bare generator; least of the rounds."""
    ours, bare, size = [], [], 0
    for _ in range(rounds):
        alone, _, _ = await _cost("/contexts/c/events", 0, seconds)
        cpu, frames, size = await _cost("/contexts/c/events", readers, seconds)
        ours.append(1e6 * (cpu - alone) / frames)
        every = readers * seconds / frames
        cpu, frames, _ = await _cost(f"/plain?size={size - 30}&every={every}", readers, seconds)
        bare.append(1e6 * cpu / frames)
    figures = f"looopy {min(ours):.1f}, bare generator {min(bare):.1f}"
    print(f"CPU an event of {size} bytes   {figures} us, ratio {min(ours) / min(bare):.2f}")


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16_384)), hard))
    asyncio.run(arrivals(given.readers, given.seconds))
    asyncio.run(costs())


if __name__ == "__main__":
    main()
