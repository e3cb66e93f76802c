"""MCP over HTTP with the SDK's client: the same calls as over stdio, behind the server's door."""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult
from tests.server.loopback import listening
from tests.server.obedient import build

from looopy import open_stores
from looopy.server import AgentHost, Limits, StaticTokens, create_app, mcp_api
from mcp import Client

ADA, BEN, EVE = "a" * 20, "b" * 20, "e" * 20
WHO = {ADA: "ada", BEN: "ben", EVE: {"actor_id": "ada", "tenant_id": "elsewhere"}}
ALLOW = ElicitResult(action="accept", content={"approve": True})
ERAS = ("auto", "legacy")
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def serving(stores, limits=None, grace_s=5):
    """The address of a server; at its end, requests and turns have little time."""
    host = AgentHost(build, stores, drain_s=0.01)
    app = create_app(host, authenticate=StaticTokens(WHO), protocols=[mcp_api], limits=limits)
    async with listening(app, timeout_graceful_shutdown=grace_s) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def connected(url, token=ADA, era="auto", person=None):
    """A client with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=300) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, elicitation_callback=person, mode=era) as client:
            yield client


def said(result):
    """The structured part of a result that is no failure."""
    assert not result.is_error, result
    return result.structured_content


@pytest.mark.parametrize("era", ERAS)
async def test_a_conversation_belongs_to_the_actor_who_began_it(era):
    """By each protocol: a call with its steps, an approval by a form, and strangers kept out."""
    steps, asked = [], []

    async def note(_progress, _total, message):
        steps.append(message)

    async def allow(_, params):
        asked.append(params.message)
        return ALLOW

    async with open_stores("memory:") as stores, serving(stores) as url:
        async with connected(url, era=era, person=allow) as client:
            [tool] = (await client.list_tools()).tools
            assert (tool.name, tool.description) == ("ask", "Make the agent of a context.")
            call = {"prompt": "read", "context_id": "c"}
            result = said(await client.call_tool("ask", call, progress_callback=note))
            assert (result["text"], result["turn"]) == ("Result: src/a.py:7", 1)
            assert steps[0] == "context_id: c"
            call = {"prompt": "pay", "context_id": "c"}
            paid = said(await client.call_tool("ask", call))
            assert (paid["text"], paid["turn"]) == ("Result: paid 500", 3)
            assert '"cents": 500' in asked[0]
        record = await stores.state.load("c")
        assert record is not None
        assert record.owner_actor == "ada"
        for token in (BEN, EVE):
            async with connected(url, token, era) as stranger:
                for call in ({"context_id": "c"}, {"context_id": "c", "prompt": "hi"}):
                    refused = await stranger.call_tool("ask", call)
                    if token == BEN or "prompt" not in call:
                        assert refused.structured_content["error"]["code"] == "context_not_found"
                    else:  # another tenant's own
                        assert said(refused)["turn"] == 1


@pytest.mark.parametrize("era", ERAS)
async def test_cancelling_a_call_cancels_the_turn_and_a_shutdown_does_not(
    era, tmp_path, monkeypatch
):
    """A turn that a shutdown cuts is interrupted, so the next server continues it."""
    monkeypatch.setenv("LOOOPY_TEST_FOLDER", str(tmp_path))
    reported = asyncio.Event()

    async def note(_progress, _total, message):
        if "50%" in message:
            reported.set()

    async def is_reported(client):
        reported.clear()
        arguments = {"prompt": "wait", "context_id": "c"}
        coming = client.call_tool("ask", arguments, progress_callback=note)
        call = asyncio.create_task(coming)
        await reported.wait()
        return call

    async def used(stores):
        async with AsyncExitStack() as client_side:
            async with serving(stores, grace_s=1) as url, build("c", stores) as other:
                client = await client_side.enter_async_context(connected(url, era=era))
                call = await is_reported(client)
                events = other.events(after=0)
                call.cancel()
                async for event in events:
                    if event.type == "turn_end":
                        break
                await asyncio.gather(call, return_exceptions=True)
                call = await is_reported(client)
            await call

    async with open_stores("memory:") as stores:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - the connection of the second call
            await used(stores)
        ended = [turn.outcome for turn in await stores.journal.turns("c")]
        assert ended == ["cancelled", "interrupted"]


async def test_the_door_is_that_of_the_other_faces():
    """Credentials, hosts, origins, sizes, turns and sessions."""
    limits = Limits(body_bytes=2000, message_bytes=100, streams_per_actor=2, turns_per_minute=1)
    async with open_stores("memory:") as stores, serving(stores, limits) as url:
        async with httpx.AsyncClient(headers=ACCEPT, timeout=30) as http:
            refused = await http.post(url, json=INITIALIZE)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert (await http.get(url)).status_code == 401
            assert (await http.delete(url)).status_code == 401
            http.headers["Authorization"] = f"Bearer {ADA}"
            for headers, body, status in (
                ({"Host": "evil.example"}, INITIALIZE, 421),
                ({"Origin": "https://evil.example"}, INITIALIZE, 403),
                ({"Content-Type": "text/plain"}, INITIALIZE, 415),
                ({}, {**INITIALIZE, "more": "x" * 2000}, 413),
                ({}, [INITIALIZE], 400),
                ({}, {"a": 1}, 400),
            ):
                sent = {"Content-Type": "application/json", **headers}
                answered = await http.post(url, content=json.dumps(body), headers=sent)
                assert answered.status_code == status, (headers, answered.text)
            broken = await http.post(
                url, content=b'{"a": NaN}', headers={"Content-Type": "application/json"}
            )
            assert broken.status_code == 400

            sessions = []
            for _ in range(3):
                answered = await http.post(url, json=INITIALIZE)
                sessions.append(answered.headers["mcp-session-id"])
            listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}

            async def status(session, token=ADA):
                headers = {"Mcp-Session-Id": session, "Authorization": f"Bearer {token}"}
                return (await http.post(url, json=listing, headers=headers)).status_code

            first, second, third = sessions
            assert await status(first) == 404  # ended, as the third was one too many
            assert (await status(second), await status(third)) == (200, 200)
            assert await status(third, BEN) == 404
            assert await status(third, EVE) == 404
        async with connected(url) as client:
            long = await client.call_tool("ask", {"prompt": "x" * 101})
            assert long.structured_content["error"]["code"] == "too_large"
            assert said(await client.call_tool("ask", {"prompt": "hi"}))["turn"] == 1
            many = await client.call_tool("ask", {"prompt": "hi", "context_id": "n"})
            assert many.structured_content["error"]["code"] == "limit_exceeded"
            assert not await stores.journal.turns("n")


@pytest.mark.long
async def test_a_killed_server_continues_the_turn_at_the_next_call(tmp_path):
    """`looopy serve` has the path; the turn of a lost call is continued by its context_id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, reported = f"http://127.0.0.1:{port}/mcp", asyncio.Event()
    command = [sys.executable, "-m", "looopy.cli", "serve", "obedient.py:build"]
    command += ["--port", str(port), "--db", f"sqlite:///{tmp_path}/app.db"]
    environment = {**os.environ, "LOOOPY_TEST_FOLDER": str(tmp_path), "LOOOPY_UI_TOKEN": ADA}

    @asynccontextmanager
    async def served():
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=Path(__file__).parents[1],
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            while b"token:" not in await process.stdout.readline():
                pass
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def note(_progress, _total, message):
        if "50%" in message:
            reported.set()

    async def lost(process):
        async with connected(url) as client:
            arguments = {"prompt": "wait", "context_id": "c"}
            coming = client.call_tool("ask", arguments, progress_callback=note)
            call = asyncio.create_task(coming)
            await reported.wait()
            os.kill(process.pid, signal.SIGKILL)
            await call

    async with served() as process:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - however the client puts it
            await lost(process)
    (tmp_path / "go").touch()
    async with served(), connected(url) as client:
        continued = said(await client.call_tool("ask", {"context_id": "c"}))
        assert (continued["text"], continued["turn"]) == ("Result: waited", 2)


async def test_sessions_end_with_the_application():
    """Their streams too: nobody could write to one any more."""
    began = asyncio.Event()
    async with open_stores("memory:") as stores, AgentHost(build, stores) as host:
        app = create_app(host, authenticate=StaticTokens(WHO), protocols=[mcp_api])

        async def noting(scope, receive, send):
            async def sends(message):
                if scope["method"] == "GET":
                    began.set()
                await send(message)

            await app(scope, receive, sends)

        inside = httpx.ASGITransport(noting)
        headers = {**ACCEPT, "Authorization": f"Bearer {ADA}"}
        async with httpx.AsyncClient(
            transport=inside, headers=headers, base_url="http://127.0.0.1"
        ) as http:
            async with app.router.lifespan_context(app):
                opened = await http.post("/mcp", json=INITIALIZE)
                session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
                stream = asyncio.create_task(http.get("/mcp", headers=session))
                await began.wait()
                assert not stream.done()
            ended = stream.done()
            stream.cancel()
            assert ended


async def test_a_request_that_the_server_ends_leaves_its_turn_alone(tmp_path, monkeypatch):
    """Only a client that closes its response cancels: the turn of any other call goes on."""
    monkeypatch.setenv("LOOOPY_TEST_FOLDER", str(tmp_path))
    async with (
        open_stores("memory:") as stores,
        AgentHost(build, stores) as host,
        build("c", stores) as other,
    ):
        app = create_app(host, authenticate=StaticTokens(WHO), protocols=[mcp_api])
        headers = {"Authorization": f"Bearer {ADA}"}
        inside = httpx2.ASGITransport(app)  # its requests end without a word to the application
        async with httpx2.AsyncClient(transport=inside, headers=headers) as http:
            transport = streamable_http_client("http://127.0.0.1/mcp", http_client=http)
            async with Client(transport) as client:
                await client.call_tool("ask", {"prompt": "hi", "context_id": "c"})
                record = await stores.state.load("c")
                assert record is not None
                events = other.events(after=record.last_seq)
                waits = {"prompt": "wait", "context_id": "c"}
                call = asyncio.create_task(client.call_tool("ask", waits))
                async for event in events:
                    if event.type == "tool_execution_start":
                        call.cancel()
                        await asyncio.gather(call, return_exceptions=True)
                        (tmp_path / "go").touch()
                    if event.type == "turn_end":
                        assert event.outcome == "completed"
                        break
