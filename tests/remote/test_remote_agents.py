"""Agents that speak A2A as tools: what they say, ask and fail at, over the official SDK."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from starlette.responses import Response
from tests.agent.kit import assert_whole
from tests.remote.agents import Cutter, Cutting, Deaf
from tests.remote.conftest import open_desk

from looopy import AuthContext, LoopConfig, open_stores
from looopy.errors import ConfigurationError, MissingExtra, ToolServerError
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import RemoteAgent
from looopy.types.state import PendingKind

NAME = "agent__Front_desk__invoke"


def ask(prompt):
    """What the model says to ask the clerk."""
    return tool_call(NAME, prompt=prompt)


async def run(make_agent, stores, url, *prompts, auth=None, **options):
    """An agent that has asked the clerk these things; results and events."""
    agent = await make_agent(
        ScriptedProvider([*map(ask, prompts), text("ok")]),
        tools=[RemoteAgent(url, **options)],
        stores=stores,
        loop_config=LoopConfig(max_tool_failures=50),
    )
    events = [event async for event in agent.execute_turn("go", auth)]
    return agent, [e.result for e in events if e.type == "tool_execution_end"], events


async def test_an_agent_elsewhere_is_a_tool(make_agent, memory_stores, desk, clerk):
    """Its card says what it is called and good for; what it comes to is the result."""
    [tool] = await RemoteAgent(desk).list_tools()
    assert tool.name == NAME
    assert tool.description == "Knows the house.\n- echo: Repeats what it hears."
    agent, (result,), _ = await run(make_agent, memory_stores, desk, "good morning")
    assert (result.text, result.is_error) == ("you said good morning", False)
    assert result.details["state"] == "completed"
    assert [one["text"] for one in clerk.heard] == ["good morning"]
    await assert_whole(memory_stores)
    assert len(await agent.get_messages()) == 4  # nothing of the other agent's own


async def test_progress_of_a_remote_agent_is_shown_under_a_path(
    make_agent, memory_stores, streaming_desk
):
    """As pieces of a message, in the stream of the turn, and stored nowhere."""
    _, _, events = await run(make_agent, memory_stores, streaming_desk, "hi")
    shown = [e for e in events if e.path]
    assert {e.path for e in shown} == {(f"tool:{NAME}",)}
    assert [e.delta for e in shown] == ["let me see", "you ", "said ", "hi"]
    assert all(e.seq is None for e in shown)
    stored = await memory_stores.journal.events("ada")
    assert not [e for e in stored if e.path]


async def test_half_a_character_becomes_a_replacement(make_agent, memory_stores, clerk):
    """An agent that cuts a text in the middle of an emoji costs no result."""
    with open_desk(clerk, around=Cutting) as url:
        _, (result,), events = await run(make_agent, memory_stores, url, "hi")
    assert [e.delta for e in events if e.path] == ["let me \ufffd", "you ", "said ", "\ufffd"]
    assert (result.text, result.is_error) == ("you said \ufffd", False)


async def test_an_answer_without_a_task_is_a_result(make_agent, memory_stores, desk):
    """A2A allows a plain message."""
    _, (result,), _ = await run(make_agent, memory_stores, desk, "greet")
    assert (result.text, result.is_error) == ("hello", False)


async def test_parts_of_every_kind_reach_the_model(make_agent, memory_stores, streaming_desk):
    """Text, data with its whole numbers, an image, a file elsewhere, and files of plain text."""
    _, (result,), _ = await run(make_agent, memory_stores, streaming_desk, "everything")
    words, data, image, file, cafe, broken = result.content
    assert words.text == "words"
    kept = json.loads(data.text)
    assert kept == {"n": 3, "half": 0.5, "all": [1, {"big": 1e300}]}
    assert [type(one) for one in (kept["n"], kept["all"][0])] == [int, int]
    assert cafe.text == "caf\u00e9"
    assert broken.text == "[file g, text/plain, 1 bytes]"
    assert (image.type, image.data) == ("image", "iVBORw==")
    assert "https://x.invalid/f" in file.text


async def test_the_answer_and_the_artifacts_beside_it_both_count(
    make_agent, memory_stores, streaming_desk, desk
):
    """Without what was said on the way, and without a message that repeats an artifact."""
    for remote in (streaming_desk, desk):
        _, (result,), _ = await run(make_agent, memory_stores, remote, "both")
        assert [one.text for one in result.content] == ["The table is ready.", "n,m\n1,2"]
        for prompt in ("twice", "quiet"):
            _, (result,), _ = await run(make_agent, memory_stores, remote, prompt)
            assert [one.text for one in result.content] == ["It is 5."]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("fail", "The agent failed: no idea"), ("reject", "The agent refused the task: not I")],
)
async def test_a_failed_task_is_an_error_result(make_agent, memory_stores, desk, prompt, said):
    """Failed and rejected tasks are no success, and the turn goes on."""
    _, (result,), events = await run(make_agent, memory_stores, desk, prompt)
    assert (result.text, result.is_error) == (said, True)
    assert events[-1].outcome == "completed"


async def test_an_agent_that_breaks_is_an_error(make_agent, memory_stores, desk):
    """Whatever the other side makes of its own exception."""
    _, (result,), events = await run(make_agent, memory_stores, desk, "boom")
    assert result.is_error
    assert events[-1].outcome == "completed"


async def test_a_question_is_passed_on_and_its_task_continues(
    make_agent, memory_stores, desk, clerk
):
    """The answer is a message to the same task."""
    agent, _, events = await run(make_agent, memory_stores, desk, "ask")
    assert events[-1].outcome == "input_required"
    [request] = agent.state.pending
    assert (request.kind, request.prompt) == (PendingKind.INPUT, "Which city?")
    result = await agent.execute_turn(None, inputs={request.request_id: "Rome"})
    assert result.messages[0].text == "so: Rome"
    first, second = clerk.heard
    assert second["known"]
    assert (first["task"], first["context"]) == (second["task"], second["context"])
    assert first["message"] != second["message"]
    await assert_whole(memory_stores)


async def test_a_wish_for_credentials_ends_the_turn_so(make_agent, memory_stores, desk, clerk):
    """As `auth_required`; the next turn brings them, and the task goes on with them."""
    user = AuthContext("ada", credentials={"token": "old-token-1"})
    headers = lambda auth: {"Authorization": f"Bearer {auth.credentials['token']}"}  # noqa: E731
    agent, _, events = await run(
        make_agent, memory_stores, desk, "auth", auth=user, headers=headers
    )
    assert events[-1].outcome == "auth_required"
    [request] = agent.state.pending
    assert (request.kind, request.prompt) == (PendingKind.AUTH, "Who are you?")
    fresh = AuthContext("ada", credentials={"token": "new-token-2"})
    result = await agent.execute_turn(None, fresh, inputs={request.request_id: "it is I"})
    assert result.messages[0].text == "so: it is I"
    assert [one["from"] for one in clerk.heard] == ["Bearer old-token-1", "Bearer new-token-2"]


class Guard:
    """Answers 401 to those whose token is not good now."""

    def __init__(self):
        self.good = "old-token"

    def __call__(self, app):
        async def guarded(scope, receive, send):
            sender = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
            if scope["type"] == "http" and sender != f"Bearer {self.good}":
                await Response(status_code=401)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return guarded


async def test_a_refused_token_leaves_the_call_open(make_agent, memory_stores, clerk):
    """Also where a new process cannot list the tool; the agent works once, for a good token."""
    guard = Guard()

    def once_more(_request):
        guard.good = "new-token"
        return ask("hi")

    def headers(auth):
        return {"Authorization": f"Bearer {auth.credentials['token']}"}

    users = [AuthContext("ada", credentials={"token": f"{n}-token"}) for n in ("old", "new")]
    with open_desk(clerk, around=guard) as url:
        for script in ([once_more], []):
            source = RemoteAgent(url, headers=headers)
            agent = await make_agent(script, tools=[source], stores=memory_stores)
            turn = agent.execute_turn("go" if script else None, users[0])
            warned = [event.text async for event in turn if event.type == "warning"]
            ended = await turn
            assert (ended.outcome, ended.pending, ended.error) == ("auth_required", (), None)
            assert "the remote agent '127.0.0.1' did not" in warned[0]
            assert "401" in warned[0]
            assert "stays open: sign the user in" in warned[-1]
            await agent.shutdown()
        assert clerk.heard == []
        source = RemoteAgent(url, headers=headers)
        agent = await make_agent([text("ok")], tools=[source], stores=memory_stores)
        result = await agent.execute_turn(None, users[1])
    assert (result.outcome, result.text) == ("completed", "ok")
    assert [one["from"] for one in clerk.heard] == ["Bearer new-token"]
    await assert_whole(memory_stores)


async def test_calls_of_a_context_are_one_conversation(
    make_agent, memory_stores, streaming_desk, clerk
):
    """In the same and in later turns; another context, and another actor, have their own."""
    source = RemoteAgent(streaming_desk)
    script = [ask("1"), ask("2"), text("ok"), ask("3"), text("ok")]
    agent = await make_agent(script, tools=[source], stores=memory_stores)
    await agent.execute_turn("go")
    await agent.execute_turn("go")
    for context_id, actor in (("bob", None), ("carl", "x"), ("carl2", "x")):
        other = await make_agent(
            [ask("4"), text("ok")], tools=[source], stores=memory_stores, context_id=context_id
        )
        await other.execute_turn("go", AuthContext(actor) if actor else None)
    contexts = [one["context"] for one in clerk.heard]
    assert len(set(contexts[:3])) == 1
    assert len(set(contexts)) == 4
    assert len({one["message"] for one in clerk.heard}) == 6


async def test_a_conversation_can_be_named(make_agent, memory_stores, streaming_desk, clerk):
    """By the application, where it knows better."""
    await run(
        make_agent, memory_stores, streaming_desk, "hi", conversation=lambda _call: "our-case-7"
    )
    assert clerk.heard[0]["context"] == "our-case-7"


async def test_credentials_are_those_of_the_turn_and_are_not_shown(
    make_agent, memory_stores, streaming_desk, clerk
):
    """Also in what the agent says back."""
    user = AuthContext("ada", credentials={"token": "secret-of-ada"})
    headers = lambda auth: {"Authorization": f"Bearer {auth.credentials['token']}"}  # noqa: E731
    _, (result,), _ = await run(
        make_agent,
        memory_stores,
        streaming_desk,
        "I know secret-of-ada",
        auth=user,
        headers=headers,
    )
    assert clerk.heard[0]["from"] == "Bearer secret-of-ada"
    assert "secret-of-ada" not in result.text
    assert "secret-of-ada" not in repr(await memory_stores.journal.events("ada"))


async def test_cancelling_the_turn_cancels_the_task(
    make_agent, memory_stores, streaming_desk, clerk
):
    """And the turn ends as cancelled."""
    agent = await make_agent(
        [ask("wait")], tools=[RemoteAgent(streaming_desk)], stores=memory_stores
    )
    stream = agent.execute_turn("go")
    async for event in stream:
        if event.path:
            break
    stream.cancel()
    result = await stream
    assert result.outcome == "cancelled"
    assert clerk.cancelled == [clerk.heard[0]["task"]]
    await assert_whole(memory_stores)


@pytest.mark.parametrize("around", [lambda app: app, Deaf])
async def test_cancelling_reaches_an_agent_that_does_not_stream(
    make_agent, memory_stores, clerk, around
):
    """Also one that answers at its end only: its list of tasks names the task."""
    with open_desk(clerk, streaming=False, around=around) as url:
        agent = await make_agent([ask("wait")], tools=[RemoteAgent(url)], stores=memory_stores)
        stream = agent.execute_turn("go")
        while not clerk.heard:  # noqa: ASYNC110 - it is another thread
            await asyncio.sleep(0)
        stream.cancel()
        assert (await stream).outcome == "cancelled"
    assert clerk.cancelled == [clerk.heard[0]["task"]]
    await assert_whole(memory_stores)


async def test_an_agent_that_takes_too_long_is_stopped(
    make_agent, memory_stores, streaming_desk, clerk
):
    """Its task is cancelled, and the result says that it timed out."""
    _, (result,), events = await run(make_agent, memory_stores, streaming_desk, "wait", timeout_s=3)
    assert "timed out after 3 s" in result.text
    assert clerk.cancelled
    assert events[-1].outcome == "completed"


async def test_an_answer_without_end_has_one(make_agent, memory_stores, streaming_desk):
    """More than the limit is not read, and the call fails."""
    _, (result,), events = await run(
        make_agent, memory_stores, streaming_desk, "much", max_bytes=100_000
    )
    assert result.is_error
    assert events[-1].outcome == "completed"


async def test_an_agent_that_is_not_there_costs_its_tool(make_agent, memory_stores, caplog):
    """With a warning; a required one keeps the agent from starting."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    agent = await make_agent([text("ok")], tools=[RemoteAgent(url)], stores=memory_stores)
    events = [event async for event in agent.execute_turn("go")]
    [warning] = [e for e in events if e.type == "warning"]
    assert warning.code == "tools_unavailable"
    assert "did not show its card" in warning.text
    assert events[-1].outcome == "completed"
    other = await make_agent(tools=[RemoteAgent(url, required=True)], start=False, context_id="b")
    with pytest.raises(ToolServerError, match="did not show its card"):
        await other.start()


async def test_an_agent_that_went_away_is_an_error(make_agent, memory_stores, clerk):
    """It was there when the tool was offered, and not when it was called."""
    with open_desk(clerk) as url:
        source = RemoteAgent(url)
        agent = await make_agent([ask("hi"), text("ok")], tools=[source], stores=memory_stores)
    result = await agent.execute_turn("go")
    [answer] = result.iterations[0].tool_results
    assert answer.is_error
    assert "could not be asked" in answer.text
    assert result.outcome == "completed"


async def test_a_task_whose_stream_is_cut_is_looked_at(make_agent, memory_stores, clerk):
    """The agent goes on without us; what it comes to is found."""
    with open_desk(clerk, around=Cutter) as url:
        _, (result,), _ = await run(make_agent, memory_stores, url, "good morning")
    assert (result.text, result.is_error) == ("you said good morning", False)
    assert len(clerk.heard) == 1


async def test_a_card_that_leads_elsewhere_is_not_followed(clerk):
    """Credentials go where the user has sent them; other places have to be allowed."""
    with open_desk(clerk) as there, open_desk(clerk, at=there) as url:
        with pytest.raises(ToolServerError, match="allow it by origins="):
            await RemoteAgent(url, required=True).list_tools()
        [tool] = await RemoteAgent(url, origins=[there]).list_tools()
        assert tool.name == NAME


async def test_the_address_of_a_card_will_do(streaming_desk):
    """As well as that of the agent."""
    for url in (streaming_desk, f"{streaming_desk}/.well-known/agent-card.json"):
        [tool] = await RemoteAgent(url, required=True, name="ours").list_tools()
        assert tool.name == "agent__ours__invoke"


CHILD = """
import asyncio, os, signal, sys
from looopy import Agent
from looopy.testing import ScriptedProvider, tool_call
from looopy.tools import RemoteAgent

async def main(stores, url, name):
    model = ScriptedProvider([tool_call(name, prompt="ask")])
    agent = Agent("ada", llm_provider=model, tools=[RemoteAgent(url)], stores=stores)
    await agent.start()
    print((await agent.execute_turn("go")).outcome, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.timeout(180)  # processes, one after the other
@pytest.mark.long
async def test_a_question_survives_the_death_of_the_process(
    sqlite_url, tmp_path, make_agent, streaming_desk, clerk
):
    """Asked in one process, answered in another: the same task there."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, script, sqlite_url, streaming_desk, NAME],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert (child.stdout, child.returncode) == ("input_required\n", -signal.SIGKILL), child.stderr
    async with open_stores(sqlite_url) as stores:
        source = RemoteAgent(streaming_desk)
        agent = await make_agent([text("went")], tools=[source], stores=stores)
        [request] = agent.state.pending
        result = await agent.execute_turn(None, inputs={request.request_id: "Rome"})
        assert (result.outcome, result.messages[0].text) == ("completed", "so: Rome")
        assert len({one["task"] for one in clerk.heard}) == 1
        await assert_whole(stores)
        await agent.shutdown()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://x", {}),
        ("http://me:secret@x", {}),
        ("http://x", {"origins": "http://y"}),
        ("http://x", {"card_timeout_s": 0}),
    ],
)
async def test_options_that_make_no_sense_are_refused(url, options):
    """At once, with the way out."""
    with pytest.raises(ConfigurationError, match="RemoteAgent") as refused:
        RemoteAgent(url, **options)
    assert "secret" not in str(refused.value)


async def test_the_error_of_a_missing_extra_names_it(monkeypatch, make_agent):
    """With the command that does it."""
    monkeypatch.delitem(sys.modules, "looopy.tools.sources.a2a.sdk", raising=False)
    monkeypatch.setitem(sys.modules, "a2a.client", None)
    agent = await make_agent(tools=[RemoteAgent("http://127.0.0.1:1")], start=False)
    with pytest.raises(MissingExtra) as missing:
        await agent.start()
    assert missing.value.extras == ("a2a",)
