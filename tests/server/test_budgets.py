"""A turn that waits for a budget to be raised, as each face shows it."""

import asyncio
from datetime import date, datetime, timedelta

import httpx
import pytest
from a2a.types import TaskState
from tests.server.loopback import client_of

from looopy import Agent, AuthContext, Budget, LoopConfig, open_stores
from looopy.errors import ContextNotFound
from looopy.server import AgentHost, Client
from looopy.server.app import create_app
from looopy.server.gate.auth import StaticTokens
from looopy.server.protocols.a2a.tasks import TaskReader
from looopy.server.protocols.ag_ui.events import RunEvents
from looopy.server.protocols.ai_sdk.parts import Parts
from looopy.server.protocols.mcp.calls import _waiting
from looopy.server.protocols.responses.items import ResponseBuilder
from looopy.testing import ScriptedProvider, text

ADA, BEN, EVE = "a" * 20, "b" * 20, "e" * 20


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


async def test_each_protocol_names_the_budget_that_is_exhausted(stores):
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
        async with client_of(app, ADA, {"Accept": "text/event-stream"}) as client:
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


async def test_an_owner_sees_used_reserved_and_allowed_amounts(stores):
    """Their own and nobody else's, in their tenant; with the limits of the agent of the context."""
    made, asked = [], asyncio.Event()

    async def forever(_request):
        asked.set()
        await asyncio.Event().wait()

    def make(context_id, own):
        made.append(context_id)
        tokens = 9_000 if context_id == "large" else 5_000
        budget = Budget(
            owner_day_tokens=tokens, owner_month_cost_usd=2.5, unknown_cost="ignore",
            tenant_day_tokens=10**6,
        )  # fmt: skip
        config = LoopConfig(budget=budget, max_tokens=1_000)
        model = ScriptedProvider([text("Hello."), forever])
        return Agent(context_id, llm_provider=model, stores=own, loop_config=config)

    tokens = StaticTokens({ADA: "ada", BEN: "ben", EVE: {"actor_id": "ada", "tenant_id": "other"}})
    async with AgentHost(make, stores, drain_s=0.01) as host:
        app = create_app(host, authenticate=tokens)
        transport = httpx.ASGITransport(app)
        client, ben, eve = (
            Client("http://localhost", token=one, transport=transport) for one in (ADA, BEN, EVE)
        )
        async with client, ben, eve:
            assert await client.budget() == {"owner": "ada", "items": []}
            assert made == []  # nobody has a context whose agent could be asked
            async with host.agent("small", AuthContext("ada")) as one:
                await one.execute_turn("Hi.", AuthContext("ada"))
                one.execute_turn("Hi.", AuthContext("ada"))
                await asked.wait()
            found = await client.budget()
            day, month = found["items"]
            assert (found["owner"], day["period"], month["period"]) == ("ada", "day", "month")
            assert (day["tokens"], day["reserved_tokens"] > 1_000) == (3, True)
            assert (day["cost_usd"], day["cost_complete"], day["reserved_cost_usd"]) == (
                None, False, None,
            )  # fmt: skip
            assert (day["limit_tokens"], day["limit_cost_usd"]) == (5_000, None)
            assert (month["limit_tokens"], month["limit_cost_usd"]) == (None, 2.5)
            assert made == ["small"]  # it was at hand
            since = datetime.fromisoformat(day["since"])
            assert datetime.fromisoformat(day["until"]) - since == timedelta(days=1)
            old = (await client.budget(day=date(2001, 2, 3)))["items"]
            assert [one["since"][:10] for one in old] == ["2001-02-03", "2001-02-01"]
            assert [one["tokens"] for one in old] == [0, 0]
            await stores.state.save("large", {}, version=0)
            for other in (ben, eve):
                assert (await other.budget())["items"] == []
                with pytest.raises(ContextNotFound):
                    await other.budget(context_id="small")
            async with host.agent("large", AuthContext("ada")) as one:
                await one.execute_turn("Hi.", AuthContext("ada"))
            limits = [
                (await client.budget(context_id=name))["items"][0]["limit_tokens"]
                for name in ("small", "large")
            ]
            assert limits == [5_000, 9_000]
        bearer = {"Authorization": f"Bearer {ADA}"}
        at = {"transport": transport, "base_url": "http://localhost", "headers": bearer}
        async with httpx.AsyncClient(**at) as raw:
            for wrong in ("yesterday", "9999-12-31", "0001-01-01"):
                answer = await raw.get("/budget", params={"day": wrong})
                assert (answer.status_code, answer.json()["error"]["path"]) == (400, "/day")


async def test_a_turn_without_messages_is_hidden_with_the_message_before_it(stores):
    """Continued without room, a turn adds none: a rewind to behind it leaves it in sight."""
    said = [("Hi.", 500), (None, 500), (None, 50_000), ("More.", 50_000)]
    for message, tokens in said:
        async with agent("c", stores, tokens) as asking:
            await asking.execute_turn(message, auth_context=AuthContext("ada"))

    async def hidden(client):
        turns = (await client.get("/contexts/c/turns")).json()["items"]
        runs = (await client.get("/contexts/c/turns/3/timeline")).json()["runs"]
        shown = {run["turn"]: run["hidden"] for run in runs}
        assert shown == {one["turn"]: one["hidden"] for one in turns if one["turn"] in shown}
        return [one["turn"] for one in turns if one["hidden"]]

    async with AgentHost(agent, stores) as host:
        app = create_app(host, authenticate=StaticTokens({ADA: "ada"}))
        async with client_of(app, ADA) as client:
            assert await hidden(client) == []
            for to, expected in ((4, [4]), (3, [3, 4]), (1, [1, 2, 3, 4])):
                rewound = await client.post("/contexts/c/rewind", json={"to": to})
                assert rewound.status_code == 200, rewound.text
                assert await hidden(client) == expected
                assert (await client.post("/contexts/c/undo-rewind", json={})).status_code == 200
