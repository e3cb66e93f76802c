"""A turn that waits for a budget to be raised, as each face shows it."""

import httpx
import pytest
from a2a.types import TaskState

from looopy import Agent, Budget, LoopConfig, open_stores
from looopy.server import AgentHost
from looopy.server.a2a.tasks import TaskReader
from looopy.server.ag_ui.events import RunEvents
from looopy.server.ai_sdk.parts import Parts
from looopy.server.app import create_app
from looopy.server.auth import StaticTokens
from looopy.server.mcp.calls import _waiting
from looopy.server.responses.items import ResponseBuilder
from looopy.testing import ScriptedProvider, text

ADA = "a" * 20


@pytest.fixture
async def stores():
    """In memory."""
    async with open_stores("memory:") as opened:
        yield opened


def agent(context_id, stores, tokens=500):
    """An agent whose budget has no room for a call."""
    return Agent(
        context_id,
        llm_provider=ScriptedProvider([text("Hello.")]),
        stores=stores,
        loop_config=LoopConfig(
            budget=Budget(owner_day_tokens=tokens), max_tokens=1_000, on_budget="ask"
        ),
    )


async def test_each_face_says_which_budget_has_no_room(stores):
    """From the log, where no warning is; and none of them says that it was answered."""
    async with agent("c", stores) as asking:
        await asking.execute_turn("Hi.")
        said = asking.state.waits_for
        assert "Budget.owner_day_tokens" in said
        told = _waiting(asking)
        assert said in told.content[0].text
        assert told.structured_content["outcome"] == "input_required"
    log = await stores.journal.events("c")
    response = ResponseBuilder("c", 1, model="m")
    run, parts = RunEvents("c", "r", turn=1), Parts("m1")
    for event in log:
        response.take(event)
    shown = [one for event in log for one in run.see(event)]
    assert (shown[-1]["type"], shown[-1]["message"]) == ("RUN_ERROR", said)
    streamed = [one for event in log for one in parts.see(event)]
    assert {"type": "error", "errorText": said} in streamed
    assert streamed[-1]["finishReason"] == "error"
    made = response.response()
    assert (made["status"], made["error"]["message"]) == ("failed", said)
    reader = TaskReader(stores, "c", "http://localhost")
    chain = await reader.find(1)
    assert chain.state is TaskState.TASK_STATE_INPUT_REQUIRED
    status = await reader.status(chain)
    assert said in status.message.parts[0].text


async def test_a_client_continues_the_turn_when_there_is_room(stores):
    """The context says that it waits, and for what, until then."""
    tokens = [500]

    def make(context_id, own):
        return agent(context_id, own, tokens[0])

    async with AgentHost(make, stores, max_agents=1) as host:
        app = create_app(host, authenticate=StaticTokens({ADA: "ada"}))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://localhost",
            headers={"Authorization": f"Bearer {ADA}", "Accept": "text/event-stream"},
        ) as client:
            await client.post("/contexts/c/turns", json={"message": "Hi."})
            found = (await client.get("/contexts/c")).json()
            assert (found["status"], found["interrupted_turn"], found["pending"]) == (
                "waiting", 1, [],
            )  # fmt: skip
            assert "Budget.owner_day_tokens" in found["waits_for"]
            assert found["waits_for_limit"] == "owner_day_tokens"
            (turn,) = (await client.get("/contexts/c/turns")).json()["items"]
            assert (turn["outcome"], turn["stop_reason"]) == ("input_required", "budget")
            tokens[0] = 5_000
            await client.post("/contexts/other/turns", json={"message": "Hi."})  # takes the place
            answer = await client.post("/contexts/c/turns", json={})
            assert "Hello." in answer.text
            found = (await client.get("/contexts/c")).json()
            assert (found["status"], found["waits_for"]) == ("ready", None)
            assert found["waits_for_limit"] is None
