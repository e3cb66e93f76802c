"""Half an emoji in a piece of an answer, a report or a result ends no stream of any protocol."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.property.test_halves import Foreign
from tests.server.loopback import listening

from looopy import Agent, open_stores, tool
from looopy.server import (
    AgentHost,
    StaticTokens,
    a2a_api,
    ag_ui_api,
    ai_sdk_api,
    create_app,
    mcp_api,
    responses_api,
)
from looopy.tools import ToolContext, ToolResult
from looopy.types.event import MessageUpdate
from looopy.types.message import TextContent

PIECES = ["Hi \ud83d", "\ude00! ", "lone \udce9 ", "word " * 20]
TEXT = "Hi \U0001f600! lone \ufffd " + "word " * 20
HEADERS = {"Authorization": "Bearer a-token-of-ada-alone", "A2A-Version": "1.0"}
SAID = {"role": "ROLE_USER", "messageId": "m", "parts": [{"text": "go"}]}
PART = {"type": "text", "text": "go"}
RUN = {"threadId": "a", "runId": "r", "state": {}, "tools": [], "context": []}
REQUESTS = {
    "native": ("/contexts/n/turns", {"message": "go"}),
    "compact": ("/contexts/k/turns?format=compact&include=thinking", {"message": "go"}),
    "responses": ("/v1/responses", {"model": "looopy", "input": "go", "stream": True}),
    "AG-UI": (
        "/ag-ui",
        {**RUN, "messages": [{"id": "1", "role": "user", "content": "go"}], "forwardedProps": {}},
    ),
    "useChat": (
        "/api/chat",
        {
            "id": "u",
            "messages": [{"id": "1", "role": "user", "parts": [PART]}],
            "trigger": "submit-message",
        },
    ),
    "A2A": (
        "/a2a/v1",
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendStreamingMessage",
            "params": {"message": SAID},
        },
    ),
}


@tool
async def note(n: str, context: ToolContext) -> ToolResult:
    """Note."""
    for piece in PIECES:
        context.report({"path": piece})
        context.show(MessageUpdate(context_id="inner", delta=piece))
        await asyncio.sleep(0)
    return ToolResult([TextContent("".join(PIECES))], details={"n": PIECES})


@asynccontextmanager
async def serving():
    """A server with all protocols; a client of it."""

    def build(context_id, stores):
        return Agent(context_id, llm_provider=Foreign(PIECES), tools=[note], stores=stores)

    async with open_stores("memory:") as stores, AgentHost(build, stores) as host:
        app = create_app(
            host,
            authenticate=StaticTokens({"a-token-of-ada-alone": "ada"}),
            protocols=[a2a_api, ag_ui_api, ai_sdk_api, mcp_api, responses_api],
            hosts=["127.0.0.1"],
        )
        async with (
            listening(app) as url,
            httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=60) as client,
        ):
            yield client


@pytest.mark.parametrize("protocol", REQUESTS)
async def test_stream_with_half_an_emoji_comes_to_its_end(protocol):
    """The whole answer is in it, and no half."""
    path, body = REQUESTS[protocol]
    async with serving() as client:
        answer = await client.post(path, json=body, headers={"Accept": "text/event-stream"})
        read = answer.text
    assert answer.status_code == 200, read
    assert "\\ud8" not in read.lower()
    assert "\U0001f600" in read or "\\ud83d\\ude00" in read
    if protocol != "compact":  # its text is in pieces
        assert json.dumps(TEXT.strip(), ensure_ascii=False)[1:-1] in read


async def test_reader_that_comes_in_the_middle_has_whole_characters():
    """Each of its connections is a stream to the end of the turn."""
    async with serving() as client:
        begun = await client.post("/contexts/c/turns", json={"message": "go"})
        assert begun.status_code == 202
        for after in range(3):
            headers = {"Last-Event-ID": str(after)}
            async with client.stream("GET", "/contexts/c/events", headers=headers) as answer:
                async for line in answer.aiter_lines():
                    if line == "event: turn_end":
                        break
                else:
                    raise AssertionError("the stream ended before the turn")
