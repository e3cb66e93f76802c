"""An answer at the limit of model calls, in each protocol: the words, and the reason."""

from __future__ import annotations

import contextlib
import json

import httpx
import pytest
from openai.types.responses import Response
from tests.server.acp.kit import Editor, connected, said

from looopy import Agent, LoopConfig, open_stores, tool
from looopy.server import (
    AgentHost,
    StaticTokens,
    a2a_api,
    ag_ui_api,
    ai_sdk_api,
    create_app,
    responses_api,
)
from looopy.server.protocols.mcp.serving import Offer, make_server
from looopy.testing import ScriptedProvider, text, tool_call
from mcp import Client

WORDS = "I know only one."
CONFIG = LoopConfig(max_iterations=1, on_max_iterations="answer")


@tool(effects="none")
def look() -> str:
    """Look."""
    return "one"


def build(context_id, stores):
    """An agent that always reaches its limit."""
    model = ScriptedProvider([tool_call("look"), text(WORDS)])
    return Agent(context_id, llm_provider=model, tools=[look], stores=stores, loop_config=CONFIG)


@pytest.fixture
async def stores():
    """Empty stores."""
    async with open_stores("memory:") as opened:
        yield opened


@pytest.fixture
async def client(stores):
    """A client of an application with every protocol of HTTP."""
    app = create_app(
        AgentHost(build, stores),
        authenticate=StaticTokens({"a-token-for-ada-alone": "ada"}),
        protocols=[ai_sdk_api, responses_api, a2a_api, ag_ui_api],
    )
    headers = {"Authorization": "Bearer a-token-for-ada-alone"}
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app)
        yield await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)
        )


def parts(answer):
    """The events of a stream."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data:").strip() for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


async def test_http_api_says_that_a_turn_ended_at_its_limit(client):
    """`turn_end` has the reason and the number of model calls."""
    headers = {"Accept": "text/event-stream"}
    body = {"message": "go"}
    end = parts(await client.post("/contexts/c/turns", json=body, headers=headers))[-1]
    facts = (end["outcome"], end["stop_reason"], end["iterations"])
    assert facts == ("completed", "max_iterations", 2)
    assert end["messages"][-1]["content"][0]["text"] == WORDS


async def test_protocols_of_http_say_that_a_turn_ended_at_its_limit(client):
    """In metadata, and in AG-UI in the result."""
    asked = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "go"}]}
    body = {"id": "chat", "trigger": "submit-message", "messages": [asked]}
    finish = next(
        p for p in parts(await client.post("/api/chat", json=body)) if p["type"] == "finish"
    )
    assert finish["finishReason"] == "other"
    assert finish["messageMetadata"]["stopReason"] == "max_iterations"

    body = {"threadId": "run", "runId": "r", "state": {}, "tools": [], "context": []}
    body |= {"forwardedProps": {}, "messages": [{"id": "m1", "role": "user", "content": "go"}]}
    last = parts(await client.post("/ag-ui", json=body))[-1]
    assert (last["type"], last["outcome"]) == ("RUN_FINISHED", {"type": "success"})
    assert last["result"] == {"stop_reason": "max_iterations"}

    answer = await client.post("/v1/responses", json={"model": "looopy", "input": "go"})
    response = Response.model_validate(answer.json())
    assert (response.status, response.output_text) == ("completed", WORDS)
    assert response.metadata == {"stop_reason": "max_iterations"}

    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    answer = await client.post(
        "/message:send", json={"message": message}, headers={"A2A-Version": "1.0"}
    )
    status = answer.json()["task"]["status"]
    assert status["state"] == "TASK_STATE_COMPLETED"
    assert status["message"]["parts"][0]["text"] == WORDS
    assert status["message"]["metadata"] == {"stop_reason": "max_iterations"}


async def test_mcp_call_says_that_a_turn_ended_at_its_limit(stores):
    """In the structured content, beside the words."""
    async with AgentHost(build, stores) as host:
        server = make_server({"ask": Offer(host, "Ask it.")}, name="test")
        async with Client(server) as client:
            result = await client.call_tool("ask", {"prompt": "go"})
    assert not result.is_error
    facts = (result.structured_content["text"], result.structured_content["stop_reason"])
    assert facts == (WORDS, "max_iterations")


async def test_editor_is_told_that_a_turn_ended_at_its_limit(stores):
    """With the words, and ACP's own reason."""
    editor = Editor()
    async with connected(stores, editor, factory=build) as client:
        made = await client.new_session(cwd="/w", mcp_servers=[])
        response = await client.prompt(made.session_id, said("go"))
    assert response.stop_reason == "max_turn_requests"
    assert response.field_meta["looopy"]["stop_reason"] == "max_iterations"
    assert WORDS in editor.text()
