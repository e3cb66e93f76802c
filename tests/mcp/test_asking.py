"""What an MCP server asks the user: the turn ends, and goes on with the answer in any process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from tests.agent.kit import assert_whole
from tests.mcp.kit import SERVERS, started

from looopy import open_stores
from looopy.testing import text, tool_call
from looopy.types.state import PendingKind


@pytest.fixture
def source(workshop, notes):
    """The tools of a workshop that asks by its answers, and keeps notes."""
    return workshop()


@pytest.fixture
def old_source(workshop, notes):
    """The tools of a workshop that asks while a call runs, and keeps notes."""
    return workshop(protocol="legacy")


async def make_asked(make_agent, stores, source, call, replies=("went",)):
    """An agent whose server has asked, and the one request that is pending."""
    script = [call, *(text(one) for one in replies)]
    agent = await make_agent(script, tools=[source], stores=stores)
    result = await agent.execute_turn("go")
    assert result.outcome == "input_required"
    [request] = result.pending
    return agent, request


async def test_a_question_ends_the_turn_and_its_answer_resumes_the_call(
    make_agent, memory_stores, source, notes
):
    """The person sees message and form; the server goes on where it was."""
    agent, request = await make_asked(make_agent, memory_stores, source, tool_call("travel"))
    assert (request.kind, request.prompt) == (PendingKind.INPUT, "Which city?")
    assert "city" in request.schema["properties"]
    assert request.tool_name == "travel"
    result = await agent.execute_turn(None, inputs={request.request_id: {"city": "Rome"}})
    assert result.messages[0].text == "went to Rome"
    assert result.outcome == "completed"
    assert notes.lines[-1] == "travelled to Rome"
    await assert_whole(memory_stores)


async def test_a_server_may_ask_again_and_again(make_agent, memory_stores, source, notes):
    """Each question is a turn of its own, and none is asked twice."""
    agent, request = await make_asked(make_agent, memory_stores, source, tool_call("tour"))
    result = await agent.execute_turn(None, inputs={request.request_id: {"city": "Rome"}})
    assert result.outcome == "input_required"
    [second] = result.pending
    assert second.prompt == "And after Rome?"
    assert second.request_id != request.request_id
    result = await agent.execute_turn(None, inputs={second.request_id: {"city": "Oslo"}})
    assert result.messages[0].text == "went to Rome and Oslo"
    assert notes.lines.count("toured Rome and Oslo") == 1
    await assert_whole(memory_stores)


@pytest.mark.parametrize(
    ("value", "said"),
    [(False, "declin"), (None, "cancel"), ("Rome", "Rome")],
)
async def test_the_answer_of_a_person_reaches_the_server(
    make_agent, memory_stores, source, value, said
):
    """A refusal is one, and the only field of a form needs no name."""
    agent, request = await make_asked(make_agent, memory_stores, source, tool_call("travel"))
    result = await agent.execute_turn(None, inputs={request.request_id: value})
    assert said in result.messages[0].text.lower() or said in result.messages[0].text
    assert result.messages[0].is_error is (value != "Rome")
    assert result.outcome == "completed"


@pytest.mark.long
async def test_a_restarted_server_gets_the_answer(make_agent, memory_stores, notes):
    """It does not know its own state: it begins anew, and the person is asked nothing twice."""
    source = started(env=notes.env)
    agent, request = await make_asked(make_agent, memory_stores, source, tool_call("tour"))
    result = await agent.execute_turn(None, inputs={request.request_id: {"city": "Rome"}})
    [second] = result.pending
    await source.aclose()
    result = await agent.execute_turn(None, inputs={second.request_id: {"city": "Oslo"}})
    assert result.messages[0].text == "went to Rome and Oslo"
    assert notes.lines.count("toured Rome and Oslo") == 1
    await assert_whole(memory_stores)


async def test_saying_something_else_cancels_the_question(make_agent, memory_stores, source, notes):
    """The call is answered, the server hears nothing more, and the history is valid."""
    agent, _ = await make_asked(make_agent, memory_stores, source, tool_call("travel"))
    result = await agent.execute_turn("never mind")
    assert result.outcome == "completed"
    assert agent.state.pending == ()
    assert "travelled to Rome" not in notes.lines
    await assert_whole(memory_stores)


async def test_a_server_of_2025_asks_in_the_middle_and_is_called_again(
    make_agent, memory_stores, old_source, notes
):
    """Its call is cancelled, so nothing goes on without an answer, and begins anew with one."""
    agent, request = await make_asked(
        make_agent, memory_stores, old_source, tool_call("call_the_user")
    )
    assert request.prompt == "Which city?"
    result = await agent.execute_turn(None, inputs={request.request_id: {"city": "Rome"}})
    assert result.messages[0].text == "accept: Rome"
    assert notes.lines == ["rang", "rang", "heard accept"]
    await assert_whole(memory_stores)


async def test_a_server_of_2025_may_ask_twice_in_one_call(
    make_agent, memory_stores, old_source, notes
):
    """The first answer is given again when the second one comes."""
    agent, request = await make_asked(make_agent, memory_stores, old_source, tool_call("tour"))
    result = await agent.execute_turn(None, inputs={request.request_id: {"city": "Rome"}})
    [second] = result.pending
    assert second.prompt == "And after Rome?"
    result = await agent.execute_turn(None, inputs={second.request_id: {"city": "Oslo"}})
    assert result.messages[0].text == "went to Rome and Oslo"
    assert notes.lines.count("toured Rome and Oslo") == 1


async def test_calls_at_the_same_time_are_asked_their_own_questions(
    make_agent, memory_stores, old_source
):
    """A server of 2025 does not say which call asks: its calls take turns."""
    questions = [f"Which city, {name}?" for name in ("Ada", "Bob", "Carl", "Dora")]
    agents = [
        await make_agent(
            [tool_call("call_the_user", question=question), text("ok")],
            tools=[old_source],
            stores=memory_stores,
            context_id=f"context{i}",
        )
        for i, question in enumerate(questions)
    ]
    results = await asyncio.gather(*(agent.execute_turn("go") for agent in agents))
    assert [result.pending[0].prompt for result in results] == questions
    results = await asyncio.gather(
        *(
            agent.execute_turn(None, inputs={result.pending[0].request_id: {"city": f"city {i}"}})
            for i, (agent, result) in enumerate(zip(agents, results, strict=True))
        )
    )
    assert [r.messages[0].text for r in results] == [f"accept: city {i}" for i in range(4)]


async def test_a_server_that_may_not_ask_does_not(make_agent, memory_stores, workshop):
    """The call fails, and says why; nobody is asked."""
    source = workshop(elicitation=False)
    agent = await make_agent(
        [tool_call("travel"), text("ok")], tools=[source], stores=memory_stores
    )
    result = await agent.execute_turn("go")
    assert result.outcome == "completed"
    assert result.iterations[0].tool_results[0].is_error


async def test_an_address_that_the_user_has_to_visit_is_asked_for(
    make_agent, memory_stores, workshop, notes, protocol, monkeypatch
):
    """The call is refused until somebody was there; then it is made again."""
    agent, request = await make_asked(
        make_agent, memory_stores, workshop(protocol=protocol), tool_call("enter")
    )
    assert request.prompt == "Please sign in\nhttps://door.invalid"
    monkeypatch.setenv("WORKSHOP_OPEN", "yes")
    result = await agent.execute_turn(None, inputs={request.request_id: True})
    assert result.messages[0].text == "inside"
    assert notes.lines == ["knocked", "knocked"]


@pytest.mark.parametrize(
    ("value", "said"), [(False, "Please sign in"), (True, "asks again for what the user has done")]
)
async def test_an_unvisited_address_fails_the_call(
    make_agent, memory_stores, workshop, notes, protocol, value, said
):
    """Declined, or said to be done and not: an error, and no question without end."""
    agent, request = await make_asked(
        make_agent, memory_stores, workshop(protocol=protocol), tool_call("enter")
    )
    result = await agent.execute_turn(None, inputs={request.request_id: value})
    assert result.outcome == "completed"
    assert result.messages[0].is_error
    if value:
        assert said in result.messages[0].text
    assert agent.state.pending == ()


CHILD = """
import asyncio, os, signal, sys
from looopy import Agent
from looopy.testing import ScriptedProvider, tool_call
from looopy.tools import MCPTools

async def main(url, server, tool, protocol):
    source = MCPTools(
        command=sys.executable, args=[server, "workshop"], protocol=protocol, name="workshop",
        env={key: os.environ[key] for key in os.environ if key.startswith("WORKSHOP_")},
    )
    script = ScriptedProvider([tool_call(tool)])
    agent = Agent("ada", llm_provider=script, tools=[source], stores=url)
    await agent.start()
    if agent.state.pending:
        answers = {agent.state.pending[0].request_id: {"city": "Rome"}}
        await agent.execute_turn(None, inputs=answers)
    result = await agent.execute_turn("go")
    print(result.outcome, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


def run_child(tmp_path, url, notes, tool, protocol, **env):
    """A process that asks, or answers what was asked, and is killed."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    return subprocess.run(
        [sys.executable, script, url, SERVERS, tool, protocol],
        capture_output=True,
        text=True,
        env=os.environ | notes.env | env,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(180)  # processes, one after the other
@pytest.mark.parametrize(("tool", "protocol"), [("call_the_user", "legacy"), ("travel", "auto")])
async def test_a_question_survives_the_death_of_the_process(
    sqlite_url, tmp_path, notes, make_agent, tool, protocol
):
    """Asked in one process, which is killed with its server; answered in another."""
    child = run_child(tmp_path, sqlite_url, notes, tool, protocol)
    assert (child.stdout, child.returncode) == ("input_required\n", -signal.SIGKILL), child.stderr
    source = started(env=notes.env, protocol=protocol)
    async with open_stores(sqlite_url) as stores:
        agent = await make_agent([text("went")], tools=[source], stores=stores)
        assert agent.state.status == "waiting"
        [request] = agent.state.pending
        assert request.prompt == "Which city?"
        result = await agent.execute_turn(None, inputs={request.request_id: {"city": "Rome"}})
        assert result.outcome == "completed"
        assert result.messages[0].text in ("went to Rome", "accept: Rome")
        done = [line for line in notes.lines if line not in ("asked", "rang")]
        assert done in (["travelled to Rome"], ["heard accept"])
        await assert_whole(stores)
        await agent.shutdown()


@pytest.mark.long
@pytest.mark.timeout(180)  # processes, one after the other
async def test_a_process_that_dies_with_the_answer_repeats_no_effect(
    sqlite_url, tmp_path, notes, make_agent
):
    """The server had gone on: the outcome is unknown, and the call is not made again."""
    asked = run_child(tmp_path, sqlite_url, notes, "travel", "auto")
    assert asked.stdout == "input_required\n", asked.stderr
    answered = run_child(tmp_path, sqlite_url, notes, "travel", "auto", WORKSHOP_KILLS="yes")
    assert answered.returncode == -signal.SIGKILL, answered.stderr
    async with open_stores(sqlite_url) as stores:
        source = started(env=notes.env)
        agent = await make_agent([text("I do not know.")], tools=[source], stores=stores)
        assert (agent.state.pending, agent.state.interrupted_turn) == ((), 2)
        result = await agent.execute_turn(None)
        assert result.outcome == "completed"
        assert notes.lines.count("travelled to Rome") == 1
        [answer] = [m for m in await agent.get_messages() if m.role == "toolResult"]
        assert answer.is_error
        assert "It may have run" in answer.text
        await assert_whole(stores)
        await agent.shutdown()
