"""Streams whose caller's credentials expire: each protocol says it, and the turn continues."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from tests.server.loopback import client_of
from tests.server.test_api import frames
from tests.server.test_quotas import BEGINNINGS, FACES, RUN

from looopy import Agent, AuthContext, open_stores
from looopy.server import AgentHost, create_app, mcp_api
from looopy.server.gate.expiry import while_valid
from looopy.server.problems import Problem
from looopy.testing import ScriptedProvider, text

CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "ask",
        "arguments": {"prompt": "Hi.", "context_id": "new"},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
            "progressToken": 1,
        },
    },
}
OF_MCP = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "ask",
}


def who(_request):
    """The credentials of each request are valid for a moment."""
    return AuthContext("ada", expires_at=datetime.now(UTC) + timedelta(0, 0.5))


@asynccontextmanager
async def serving(**answering):
    """A client, whose credentials expire soon, of agents that never end their answer."""

    def build(context_id, stores):
        model = ScriptedProvider([text("Hi.")], delay_s=3600)
        return Agent(context_id, llm_provider=model, stores=stores)

    async with open_stores("memory:") as stores, AgentHost(build, stores, drain_s=0.1) as host:
        app = create_app(host, authenticate=who, protocols=[*FACES, mcp_api])
        async with client_of(app, "soon", {"A2A-Version": "1.0"}, **answering) as client:
            yield client, host


async def is_running(host):
    """The turn does not end with the stream."""
    record = await host.stores.state.load("new")
    return record.open_turn is not None


@pytest.mark.parametrize("query", ["", "?format=compact"])
async def test_a_stream_of_events_ends_with_a_problem(query):
    """Of a POST and of a GET; the last event has the code, and no id."""
    async with serving() as (client, host):
        sse = {"Accept": "text/event-stream"}
        body = {"message": "Hi."}
        said = await client.post(f"/contexts/new/turns{query}", json=body, headers=sse)
        for answer in (said, await client.get(f"/contexts/new/events{query}")):
            place, name, data = frames(answer.text)[-1]
            assert (place, name, data["error"]["code"]) == (None, "problem", "credentials_expired")
        assert await is_running(host)


async def test_each_protocol_says_that_the_credentials_have_expired():
    """In its own words, as the last thing of the stream; a reader with fresh ones goes on."""
    async with serving() as (client, host):
        chat = BEGINNINGS["/api/chat"][0]
        said = (await client.post("/api/chat", json=chat)).text
        assert '"type":"error"' in said
        assert "expired" in said
        assert "expired" in (await client.get("/api/chat/new/stream")).text
        assert await is_running(host)

        asked = {**RUN, "messages": [], "forwardedProps": None}
        *_, last = (await client.post("/ag-ui", json=asked)).text.strip().split("\n\n")
        assert json.loads(last.removeprefix("data: "))["code"] == "credentials_expired"
        assert await is_running(host)

        last = (await client.get("/v1/responses/resp_1_new?stream=true")).text
        assert last.strip().split("\n\n")[-1].startswith("event: error")
        assert "expired" in last
        assert await is_running(host)

        for request in (
            client.build_request("GET", "/tasks/task_1_new:subscribe"),
            client.build_request(
                "POST",
                "/a2a/v1",
                json={
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": "SubscribeToTask",
                    "params": {"id": "task_1_new"},
                },
            ),
        ):
            said = (await client.send(request)).text
            last = said.strip().split("\n\n")[-1]
            assert "credentials_expired" in last
            assert '"error"' in last
        assert await is_running(host)


async def test_a_call_of_mcp_ends_with_the_problem_as_its_result():
    """The model of the client reads it, and the turn continues."""
    async with serving() as (client, host), asyncio.timeout(60), host_running(client):
        answer = await client.post("/mcp", json=CALL, headers=OF_MCP)
        assert "credentials_expired" in answer.text
        assert await is_running(host)


@asynccontextmanager
async def host_running(client):
    """The background work of the faces, which a lifespan would run."""
    app = client._transport.app
    async with app.router.lifespan_context(app):
        yield


async def test_a_stream_of_credentials_that_stay_valid_does_not_end():
    """Nor does one end before its time."""

    async def items():
        for number in range(3):
            yield number

    later = datetime.now(UTC) + timedelta(1)
    for auth in (None, AuthContext("ada"), AuthContext("ada", expires_at=later)):
        assert [one async for one in while_valid(items(), auth)] == [0, 1, 2]


async def test_items_are_closed_and_their_errors_pass():
    """An error of the items is not taken for the end of the credentials."""
    closed = []

    async def items(error):
        try:
            yield 1
            if error is not None:
                raise error
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    later = AuthContext("ada", expires_at=datetime.now(UTC) + timedelta(1))
    with pytest.raises(TimeoutError):
        async for _ in while_valid(items(TimeoutError()), later):
            pass
    over = AuthContext("ada", expires_at=datetime.now(UTC))
    with pytest.raises(Problem) as raised:
        async for _ in while_valid(items(None), over):
            pass
    assert (raised.value.status, raised.value.code) == (401, "credentials_expired")
    assert closed == [True, True]
