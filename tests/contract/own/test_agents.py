"""Agents that are given stores of an application's own one by one."""

from __future__ import annotations

import threading

import pytest
from tests.own_stores import Contents, Documents, JsonLines

from looopy import Agent, ToolContext, tool
from looopy.errors import ConfigurationError
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import UserMessage


@tool
async def save(context: ToolContext) -> str:
    """Save an artifact."""
    artifact = await context.artifacts.save("report", "x" * 100_000)
    return f"version {artifact.version}"


def model():
    """Call the tool once a turn, then tell how many messages there are."""

    def answer(request):
        asked = isinstance(request.messages[-1], UserMessage)
        return tool_call("save") if asked else text(f"{len(request.messages)} messages")

    return ScriptedProvider(answer)


async def test_each_store_is_used_and_closed_with_the_agent(tmp_path):
    """The next agent continues, and no thread is left."""
    threads = set(threading.enumerate())
    stores = {
        "message_store": JsonLines(tmp_path / "chats"),
        "artifact_store": Contents(tmp_path / "files"),
        "state_store": Documents(tmp_path / "state"),
    }
    for turn in (1, 2):
        async with Agent("c", llm_provider=model(), tools=[save], **stores) as agent:
            result = await agent.execute_turn("Go on.")
            assert (result.turn, result.text) == (turn, f"{turn * 4 - 1} messages")
            assert [(one.version, one.size) for one in await agent.get_artifacts()] == [
                (turn, 100_000)
            ]
        left = [one for one in threading.enumerate() if one.name.startswith("looopy-")]
        assert set(left) <= threads
    assert sorted(one.name for one in (tmp_path / "files").iterdir()) == [
        "c%report@1",
        "c%report@2",
    ]


async def test_an_agent_that_starts_again_has_the_data_of_its_process(tmp_path):
    """Without a state store, too."""
    agent = Agent("c", llm_provider=model(), tools=[save], message_store=JsonLines(tmp_path))
    for turn in (1, 2):
        async with agent:
            assert (await agent.execute_turn("Go on.")).turn == turn


def test_two_ways_to_say_where_are_refused(tmp_path):
    """And a state store without messages."""
    with pytest.raises(ConfigurationError, match="pass one of them"):
        Agent("c", llm_provider="local", stores="sqlite:///a.db", message_store=JsonLines(tmp_path))
    with pytest.raises(ConfigurationError, match="need a `message_store`"):
        Agent("c", llm_provider="local", state_store=Documents(tmp_path))
