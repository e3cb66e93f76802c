"""The HTTP API over a real server on loopback: clients that leave, come again, or do not read."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
from tests.loop_time import advance
from tests.server.loopback import listening

from looopy import Agent, open_stores, tool
from looopy.server import AgentHost
from looopy.server.app import create_app
from looopy.server.gate.auth import StaticTokens
from looopy.server.gate.limits import Limits
from looopy.testing import ScriptedProvider, text, tool_call

TOKEN = "a" * 20
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
SSE = HEADERS | {"Accept": "text/event-stream"}


class World:
    """Agents that call the tool `wait` and then answer; it returns once `go` is set."""

    def __init__(self, script=None, chunk_chars=3):
        self.go, self.entered, self.chunk_chars = asyncio.Event(), asyncio.Event(), chunk_chars
        self.script = script or (lambda _: tool_call("wait"), lambda _: text("All done."))

    def build(self, context_id, stores):
        @tool(effects="idempotent")
        async def wait() -> str:
            """Wait."""
            self.entered.set()
            await self.go.wait()
            return "done"

        provider = ScriptedProvider(self.script, repeat=True, chunk_chars=self.chunk_chars)
        return Agent(context_id, llm_provider=provider, stores=stores, tools=[wait])


@asynccontextmanager
async def serving(world, url="memory:", limits=None):
    """A server in this event loop; gives a client of it, and its host."""
    async with open_stores(url) as stores:
        host = AgentHost(world.build, stores)
        tokens = StaticTokens({TOKEN: "ada"})
        app = create_app(host, authenticate=tokens, limits=limits)
        async with listening(app) as place:
            try:
                async with httpx.AsyncClient(base_url=place, headers=HEADERS, timeout=60) as client:
                    client.app = app
                    yield client, host
            finally:
                world.go.set()  # a host waits for the turns that run
                await host.aclose()


async def read(response, *, until=None, most=None):
    """The frames of a stream as (id, name, data), up to the one named *until*."""
    found, lines = [], {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            lines[name] = value
            continue
        if "event" in lines:
            found.append((lines.get("id"), lines["event"], json.loads(lines["data"])))
            if lines["event"] == until or len(found) == most:
                break
        lines = {}
    return found


async def until(condition):
    """Wait until *condition* holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.005)


async def test_a_client_that_reconnects_resumes_after_its_last_event():
    """The turn does not notice; each durable event arrives once, whoever was connected."""
    world = World()
    async with serving(world) as (client, host):
        body = {"message": "Hi."}
        async with client.stream("POST", "/contexts/c/turns", json=body, headers=SSE) as one:
            seen = await read(one, until="tool_execution_start")
        await until(lambda: not host._kept["default", "c"].users)  # the server has noticed
        seen = seen[: [place for place, _, _ in seen].index("2") + 1]  # more was on its way
        headers = SSE | {"Last-Event-ID": "2"}
        async with client.stream("GET", "/contexts/c/events", headers=headers) as two:
            world.go.set()
            seen += await read(two, until="turn_end")
        places = [int(place) for place, _, _ in seen if place]
        assert places == list(range(1, len(places) + 1))
        after = {"after": str(places[-2])}
        async with client.stream("GET", "/contexts/c/events", params=after) as three:
            assert [place for place, _, _ in await read(three, most=1)] == [str(places[-1])]


async def test_a_subscriber_at_another_server_gets_each_event_once(tmp_path):
    """Two servers on one database: one runs the turn, the other one tells of it."""
    world, url = World(), f"sqlite:///{tmp_path}/app.db"
    async with serving(world, url) as (here, _), serving(world, url) as (there, _):
        assert (await here.post("/contexts/c/turns", json={"message": "Hi."})).status_code == 202
        await world.entered.wait()
        async with there.stream("GET", "/contexts/c/events?after=0") as stream:
            world.go.set()
            seen = await read(stream, until="turn_end")
        places = [place for place, _, _ in seen]
        assert places == [str(n) for n in range(1, len(places) + 1)]  # nothing passes there
        answer = await there.get("/contexts/c/messages")
        assert answer.json()["items"][-1]["message"]["content"][0]["text"] == "All done."


async def test_a_reader_that_does_not_read_is_cut_off():
    """It harms neither the turn nor another reader."""
    long = text("x" * 4_000_000)
    world = World([lambda _: long], chunk_chars=None)
    advance(0)
    async with serving(world, limits=Limits(send_s=50)) as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        reader, writer = await asyncio.open_connection(
            client.base_url.host, client.base_url.port, limit=1024
        )
        writer.write(
            b"GET /contexts/c/events?after=0 HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        kept = host._kept["default", "c"]
        await kept.agent.wait_for_idle()
        await until(lambda: kept.users)
        await until(lambda: not kept.users or advance(51))
        async with client.stream("GET", "/contexts/c/events?after=0") as stream:
            assert (await read(stream, until="turn_end"))[-1][1] == "turn_end"
        writer.close()


async def test_streams_are_counted_and_closed_streams_are_not():
    """Beyond the limit of one actor a stream is 429; a silent one has a heartbeat."""
    world = World()
    world.go.set()
    limits = Limits(streams_per_actor=1, heartbeat_s=0.01)
    async with serving(world, limits=limits) as (client, _):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        async with client.stream("GET", "/contexts/c/events") as stream:
            lines = stream.aiter_lines()
            while not (await anext(lines)).startswith(": ping"):
                pass
            refused = await client.get("/contexts/c/events")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        status = 429  # until the server has noticed
        for _ in range(500):
            if status != 429:
                break
            async with client.stream("GET", "/contexts/c/events?after=0") as stream:
                status = stream.status_code
        assert status == 200


async def test_draining_ends_a_stream_after_the_end_of_its_turn():
    """New turns are refused, with 503; a client sees the turn's end and then the stream's."""
    world = World()
    async with serving(world) as (client, host):
        body = {"message": "Hi."}
        async with client.stream("POST", "/contexts/c/turns", json=body, headers=SSE) as one:
            await world.entered.wait()
            draining = asyncio.create_task(host.drain())
            await until(lambda: host.closed)
            refused = await client.post("/contexts/d/turns", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "host_closed")
            assert (await client.get("/readyz")).status_code == 503
            world.go.set()
            seen = await read(one)
            assert seen[-1][1] == "turn_end"
            assert await draining == 0


async def test_a_deleted_context_ends_its_readers():
    """With a problem, and a client that comes again gets 404."""
    world = World()
    world.go.set()
    async with serving(world) as (client, _):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        async with client.stream("GET", "/contexts/c/events?after=0") as stream:
            lines = stream.aiter_lines()
            while not (await anext(lines)).startswith("event: turn_end"):
                pass
            assert (await client.delete("/contexts/c")).status_code == 204
            async for _ in lines:
                pass
        assert (await client.get("/contexts/c/events")).status_code == 404
