"""Answers that Anthropic's server pauses: sent back as they are until they are whole."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace

import pytest
from anthropic.types import ServerToolUseBlock, ServerToolUseBlockParam
from anthropic.types import StopReason as Reason
from pydantic import TypeAdapter
from tests.agent.kit import assert_whole
from tests.wire import fake_anthropic
from tests.wire.fake_openai import HOLD, Answer
from tests.wire.three import answered, last_event, says, serving

from looopy import Agent, LoopConfig, PromptPart
from looopy.stores import open_stores
from looopy.types.message import (
    AssistantMessage,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    UserMessage,
)
from looopy.types.request import LLMRequest

PROMPT = [PromptPart("Be brief."), PromptPart("It is noon.", position="after")]


def use(number):
    """The server begins a search."""
    return ServerToolUseBlock(
        type="server_tool_use", id=f"srv_{number}", name="web_search", input={"query": "x"}
    ).model_dump(exclude_none=True)


def found(number):
    """The server has found something."""
    return {"type": "web_search_tool_result", "tool_use_id": f"srv_{number}", "content": []}


def pauses(*blocks):
    """An answer of *blocks* that the server pauses."""
    reason = TypeAdapter(Reason).validate_python("pause_turn")
    pieces = [fake_anthropic.block(i, block) for i, block in enumerate(blocks)]
    return fake_anthropic.answers(*pieces, reason=reason)


def ends(number, text):
    """The rest of the answer."""
    return fake_anthropic.answers(
        fake_anthropic.block(0, found(number)), fake_anthropic.text(1, text)
    )


def kinds(message):
    """The types of a message's blocks."""
    return [block.type for block in message.content]


async def test_a_paused_answer_continues_until_it_is_complete():
    """In one turn, each part stored once, and sent back as it came."""
    answers = [pauses(use(1)), pauses(found(1), use(2)), ends(2, "Sunny.")]
    async with (
        serving("anthropic", *answers, says("anthropic", "Yes.")) as (server, made),
        open_stores("memory:") as stores,
        Agent("p", llm_provider=made, stores=stores, system_prompt=PROMPT) as agent,
    ):
        result = await agent.execute_turn("How is the weather?")
        assert (result.outcome, result.stop_reason) == ("completed", "stop"), result.error
        stored = await agent.get_messages()
        assert (await agent.execute_turn("Really?")).outcome == "completed"
    _, first, second, last = stored
    assert (first.stop_reason, second.stop_reason) == (StopReason.PAUSED, StopReason.PAUSED)
    assert kinds(second) == ["serverToolResult", "serverToolCall"]
    assert result.text == last.text == "Sunny."
    assert result.usage.output == 27
    asked = [received.body["messages"] for received in server.received]  # none was refused
    assert [[m["role"] for m in one] for one in asked] == [
        ["user"],
        ["user", "assistant"],
        ["user", "assistant"],
        ["user", "assistant", "user"],
    ]
    TypeAdapter(ServerToolUseBlockParam).validate_python(asked[1][1]["content"][0])
    assert asked[1][1]["content"] == [use(1)]
    assert asked[2][1]["content"] == [use(1), found(1), use(2)]
    assert asked[3][1]["content"][:4] == [use(1), found(1), use(2), found(2)]


async def test_pauses_have_a_limit_and_the_user_may_speak_instead():
    """Each is a model call of the turn; a search without a result is not sent behind it."""
    config = LoopConfig(max_iterations=2)
    answers = [pauses(use(1)), pauses(use(2)), says("anthropic", "Fine.")]
    async with (
        serving("anthropic", *answers) as (server, made),
        Agent("p", llm_provider=made, loop_config=config) as agent,
    ):
        result = await agent.execute_turn("How is the weather?")
        assert (result.outcome, result.stop_reason) == ("completed", "max_iterations")
        assert (await agent.execute_turn("Never mind.")).text == "Fine."
    wire = server.received[2].body["messages"]
    assert [block["type"] for block in wire[1]["content"]] == ["text"]


LIFE = """
import asyncio, sys
from looopy import Agent
from looopy.llm.anthropic.provider import AnthropicProvider

async def main():
    made = AnthropicProvider(sys.argv[3], api_key="k", base_url=sys.argv[2])
    async with Agent("ada", llm_provider=made, stores=sys.argv[1]) as agent:
        await agent.execute_turn("go")

asyncio.run(main())
"""


@pytest.mark.long
async def test_a_turn_killed_between_two_pauses_continues(tmp_path):
    """In another process, with the part that is stored; that part is stored and sent back once."""
    begun = [fake_anthropic.started(), *fake_anthropic.block(0, found(1)), HOLD]
    answers = [pauses(use(1)), Answer(pieces=begun), pauses(found(1), use(2))]
    url = f"sqlite:///{tmp_path / 'db'}"
    async with serving("anthropic", *answers, ends(2, "Sunny.")) as (server, made):
        life = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", LIFE, url, server.url, fake_anthropic.MODEL)
        )
        await asyncio.wait(
            [asyncio.ensure_future(server.held.wait()), asyncio.ensure_future(life.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        life.kill()
        assert await life.wait() == -signal.SIGKILL
        async with (
            open_stores(url) as stores,
            Agent("ada", llm_provider=made, stores=stores) as agent,
        ):
            result = await agent.execute_turn(None)
            assert result.outcome == "completed", result.error
            said = await agent.get_messages()
            await assert_whole(stores, "ada")
    assert [kinds(message) for message in said[1:]] == [
        ["serverToolCall"],
        ["serverToolResult", "serverToolCall"],
        ["serverToolResult", "text"],
    ]
    asked = [received.body["messages"] for received in server.received]
    assert asked[1][1]["content"] == asked[2][1]["content"] == [use(1)]
    assert asked[3][1]["content"] == [use(1), found(1), use(2)]


async def test_a_window_that_begins_within_a_paused_answer():
    """A result without its call is refused by the API, so it stays behind."""
    item = ServerToolResult("srv_1", "web_search", item=found(1))
    rest = AssistantMessage((item, TextContent("Sunny.")), provider="anthropic")
    asked = LLMRequest(messages=[replace(rest, model=fake_anthropic.MODEL), UserMessage("go")])
    async with serving("anthropic", says("anthropic", "Yes.")) as (server, made):
        assert (await last_event(made, asked)).message.text == "Yes."
    wire = server.received[0].body["messages"]
    assert [block["type"] for block in wire[1]["content"]] == ["text"]


async def test_a_tool_of_an_mcp_connector_keeps_its_result():
    """Its blocks have types of their own; the API refuses one of the two alone."""
    call = {"type": "mcp_tool_use", "id": "mcp_1", "name": "echo", "server_name": "s", "input": {}}
    result = {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "is_error": False, "content": []}
    both = (
        ServerToolCall("mcp_1", "echo", {}, item=call),
        ServerToolResult("mcp_1", "mcp", item=result),
    )
    kept = []
    note = replace(both[0], item={"type": "mcp_tool_use", "omitted": "it was too large"})
    for blocks in (both, both[:1], both[1:], (note, both[1])):
        said = AssistantMessage(
            (*blocks, TextContent("Done.")), provider="anthropic", model=fake_anthropic.MODEL
        )
        asked = LLMRequest(messages=[UserMessage("go"), said, UserMessage("so?")])
        async with serving("anthropic", says("anthropic", "Yes.")) as (server, made):
            assert (await last_event(made, asked)).error is None
        kept.append(server.received[0].body["messages"][1]["content"][:-1])
    assert kept == [[call, result], [], [], []]


async def test_a_pause_without_a_tool_of_the_server_is_an_answer():
    """There is nothing to go on with."""
    message = await answered(
        "anthropic", fake_anthropic.answers(fake_anthropic.text(0, "Done."), reason="pause_turn")
    )
    assert message.stop_reason is StopReason.STOP


@pytest.mark.parametrize("model", ["gpt-5", "claude-opus-4-8"])
async def test_another_model_continues_in_its_own_words(model):
    """It cannot take the server's blocks; the text of the answer stays."""
    block = ServerToolCall("srv_1", "web_search", {}, item=use(1))
    paused = AssistantMessage(
        (TextContent("Let me see."), block),
        provider="other",
        model=model,
        stop_reason=StopReason.PAUSED,
    )
    asked = LLMRequest(messages=[UserMessage("go"), paused])
    async with serving("anthropic", says("anthropic", "Sunny.")) as (server, made):
        assert (await last_event(made, asked)).message.text == "Sunny."
    assert server.received[0].body["messages"][-1]["content"][0]["text"] == "Continue."
