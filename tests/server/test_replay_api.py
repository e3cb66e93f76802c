"""Turns that run again over HTTP, in this process: compared with today's agent, and in a fork."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

from tests.server.loopback import client_of
from tests.server.test_api import ADA, BEN, EVE

from looopy import Agent, AuthContext, open_stores, tool
from looopy.server import AgentHost, Limits, create_app
from looopy.server.gate.auth import StaticTokens
from looopy.server.page import replays
from looopy.testing import ScriptedProvider, text, tool_call

ran = []


@tool(effects="none")
def look(word: str) -> str:
    """Look a word up."""
    ran.append(word)
    return f"{word} is a word"


@tool(needs_approval=True)
def pay(eur: int) -> str:
    """Pay."""
    return f"paid {eur}"


def reply(request):
    """Play the model."""
    last = request.messages[-1]
    if last.role == "toolResult":
        return text(f"Done: {last.text}.")
    if "odd" in last.text:
        return tool_call("nope")
    if "pay" in last.text:
        return tool_call("pay", eur=5)
    return tool_call("look", word="a") if "look" in last.text else text(f"Said: {last.text}")


def fresh():
    """The parts of the agent, which a test changes, as a deployment would."""
    ran.clear()
    return SimpleNamespace(prompt="You help.", tools=[look, pay], made=[], model=reply)


@asynccontextmanager
async def serving(parts, limits=None):
    """A client of one host, as Ada; its factory makes what *parts* say now."""

    def build(context_id, stores):
        parts.made.append(stores.tenant)
        return Agent(
            context_id,
            llm_provider=ScriptedProvider(parts.model),
            tools=parts.tools,
            system_prompt=parts.prompt,
            stores=stores,
        )

    tokens = StaticTokens({ADA: "ada", BEN: "ben", EVE: {"actor_id": "ada", "tenant_id": "other"}})
    async with open_stores("memory:") as stores, AgentHost(build, stores, idle_s=60) as host:
        app = create_app(host, authenticate=tokens, limits=limits)
        async with client_of(app, ADA) as client:
            yield client, host


async def asks(client, host, path, token=ADA, **body):
    """Begin a turn by *path*, and wait for its end: the context and the turn."""
    headers = {"Authorization": f"Bearer {token}"}
    answer = await client.post(path, json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    found = answer.json()
    auth = AuthContext("ada", tenant_id="other" if token == EVE else None)
    async with host.agent(found["context_id"], auth) as agent:
        await agent.wait_for_idle()
    return found["context_id"], found["turn"]


async def said(client, context_id, turn):
    """The texts of a turn."""
    page = (await client.get(f"/contexts/{context_id}/messages")).json()
    found = [one["message"]["content"] for one in page["items"] if one["turn"] == turn]
    return [one if isinstance(one, str) else one[0].get("text") for one in found]


async def test_a_replay_names_the_first_difference_to_the_agent_of_now():
    """The same turn, another prompt, a tool that is gone; nothing runs and nothing is stored."""
    parts = fresh()
    async with serving(parts) as (client, host):
        for message in ("look it up", "pay", "odd"):
            await asks(client, host, "/contexts/c/turns", message=message)
        await asks(client, host, "/contexts/d/turns", EVE, message="look it up")
        path = "/contexts/c/turns/1/replay"
        before = repr(sorted(host.stores.state.backend.contexts.items(), key=repr))
        found = (await client.post(path, json={})).json()
        assert found == {
            "turn": 1,
            "outcome": "completed",
            "stop_reason": "stop",
            "after": 0,
            "messages": 3,
            "difference": None,
            "gone": [],
            "left_out": [],
        }
        waits = (await client.post("/contexts/c/turns/2/replay", json={})).json()
        assert (waits["outcome"], waits["difference"]) == ("input_required", None)

        parts.prompt = "You guess."
        found = (await client.post(path, json={})).json()["difference"]
        assert (found["kind"], found["iteration"]) == ("request", 1)
        assert found["text"] == "the system prompt of the request differs from what was recorded"
        assert found["then"] != found["now"]
        ignoring = await client.post(path, json={"ignore": ["prompt"]})
        assert ignoring.json()["difference"] is None

        parts.tools = [pay]
        found = (await client.post(path, json={"ignore": ["prompt", "tools"]})).json()
        assert found["gone"] == ["look"]
        assert (found["difference"]["kind"], found["difference"]["text"]) == (
            "tool",
            "the tool 'look' is gone",
        )
        for turn in (2, 3):  # what still is, and what never was
            answer = await client.post(f"/contexts/c/turns/{turn}/replay", json={})
            assert answer.json()["gone"] == []
        assert repr(sorted(host.stores.state.backend.contexts.items(), key=repr)) == before
        assert ran == ["a", "a"]  # by the turns themselves

        theirs = {"Authorization": f"Bearer {EVE}"}
        parts.made.clear()
        assert (await client.post("/contexts/d/turns/1/replay", json={}, headers=theirs)).is_success
        assert parts.made == ["other"]
        for where, body, status, place in (
            ("turns/9/replay", {}, 404, None),
            ("turns/x/replay", {}, 400, "/turn"),
            ("turns/1/replay", {"ignore": ["luck"]}, 400, "/ignore"),
            ("turns/1/replay", {"ignore": "prompt"}, 400, "/ignore"),
            ("turns/1/replay", {"colour": "red"}, 400, "/colour"),
            ("turns/9/run-beside", {}, 404, None),
            ("turns/1/run-beside", {"message": 5}, 400, "/message"),
        ):
            answer = await client.post(f"/contexts/c/{where}", json=body)
            assert (answer.status_code, answer.json()["error"].get("path")) == (status, place)


async def test_a_replay_of_an_actor_is_one_at_a_time_and_counts_as_a_turn(monkeypatch):
    """A second is refused while the first runs, an open turn too; a prompt may not wait."""
    parts, go, waiting = fresh(), asyncio.Event(), asyncio.Queue()

    async def slow(_context):
        waiting.put_nowait(None)
        await go.wait()
        return "You help."

    async with serving(parts, Limits(turns_per_minute=4)) as (client, host):
        await asks(client, host, "/contexts/c/turns", message="Hi.")
        parts.prompt = slow
        await client.post("/contexts/open/turns", json={"message": "Hi."})
        await waiting.get()
        answer = await client.post("/contexts/open/turns/1/replay", json={})
        assert (answer.status_code, answer.json()["error"]["path"]) == (400, "/turn")
        path = "/contexts/c/turns/1/replay"
        with monkeypatch.context() as short:
            short.setattr(replays, "_MOST_S", 0.01)
            answer = await client.post(path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "timeout")
        await waiting.get()
        first = asyncio.create_task(client.post(path, json={}))
        await waiting.get()
        for why in ("one replay of an actor", "4 turns in a minute"):
            answer = await client.post(path, json={})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "limit_exceeded")
            assert why in answer.text
            assert answer.headers["retry-after"]
            go.set()
            assert (await first).json()["difference"] is None  # a prompt is known by its text


async def test_a_turn_runs_again_beside_itself_in_a_fork():
    """With the agent of now, or another message; once for a key; the context itself stays."""
    parts = fresh()
    async with serving(parts) as (client, host):
        await asks(client, host, "/contexts/c/turns", message="Hi.")
        await asks(client, host, "/contexts/c/turns", message="look it up")
        await asks(client, host, "/contexts/c/turns", message="Bye.")
        before = (await client.get("/contexts/c/messages")).json()
        path = "/contexts/c/turns/2/run-beside"
        parts.model = lambda request: text(f"I know, after {len(request.messages)}.")
        fork, turn = await asks(client, host, path)
        assert fork.startswith("c-replay-")
        assert await said(client, fork, turn) == ["look it up", "I know, after 3."]
        assert ran == ["a"]
        other, turn = await asks(client, host, path, message="look twice")
        assert await said(client, other, turn) == ["look twice", "I know, after 3."]
        first, turn = await asks(client, host, "/contexts/c/turns/1/run-beside")
        assert await said(client, first, turn) == ["Hi.", "I know, after 1."]
        assert (await client.get("/contexts/c/messages")).json() == before

        key = {"Idempotency-Key": "k"}
        [one, two] = [await client.post(path, json={}, headers=key) for _ in range(2)]
        assert (one.status_code, one.json()) == (202, two.json())
        answer = await client.post(path, json={"message": "No."}, headers=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "idempotency_conflict")
        elsewhere = await client.post("/contexts/c/turns/1/run-beside", json={}, headers=key)
        assert elsewhere.json()["context_id"] != one.json()["context_id"]


async def test_a_turn_that_cannot_run_beside_leaves_no_fork():
    """One that only answered; and an agent that does not start."""
    parts = fresh()
    async with serving(parts, Limits(turns_per_minute=3)) as (client, host):
        await asks(client, host, "/contexts/c/turns", message="pay")
        [waits] = (await client.get("/contexts/c")).json()["pending"]
        await asks(client, host, "/contexts/c/turns", inputs={waits["request_id"]: True})
        answer = await client.post("/contexts/c/turns/2/run-beside", json={})
        assert (answer.status_code, answer.json()["error"]["path"]) == (400, "/turn")
        assert "name the turn that asked" in answer.text
        parts.tools = [look, look]  # the agent of the fork does not start
        answer = await client.post("/contexts/c/turns/1/run-beside", json={})
        assert answer.status_code == 500
        answer = await client.post("/contexts/c/turns/1/run-beside", json={})
        assert answer.status_code == 429  # before the fork
        names = [one["context_id"] for one in (await client.get("/contexts")).json()["items"]]
        assert names == ["c"]
