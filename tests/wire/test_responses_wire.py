"""OpenAI's Responses API through the real SDK and real sockets, against a strict server."""

from __future__ import annotations

from functools import partial

import pytest
from tests.wire import three
from tests.wire.fake_openai import refuses
from tests.wire.fake_responses import (
    answers,
    calls,
    reasons,
    replies,
    speaks,
)
from tests.wire.three import ADD, ASK, PNG, play

from looopy import Agent, LoopConfig, tool
from looopy.errors import (
    ConfigurationError,
    UnsupportedOption,
)
from looopy.llm import render, resolve_provider
from looopy.llm.openai.provider import OpenAIProvider
from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest, ThinkingLevel

KEY = "a-very-secret-key-0123456789"
serving = partial(three.serving, "responses")


async def sent(request=ASK, *, official=False, monkeypatch=None, **options):
    """The body of one request."""
    async with serving(replies("ok")) as (server, provider):
        if official:
            monkeypatch.setattr(OpenAIProvider, "_official", True)
        last = (await play(provider, request, **options))[-1]
    assert last.type == "done", last.error
    return server.received[0]


# --- what is sent ----------------------------------------------------------------------------


async def test_a_request_is_not_stored_at_the_server():
    """The conversation is ours; what the model reasoned is asked for, encrypted."""
    body = (await sent(LLMRequest(messages=[UserMessage("hi")], system_prompt="Be kind."))).body
    assert body == {
        "model": "fake",
        "input": [{"role": "user", "content": "hi"}],
        "instructions": "Be kind.",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


async def test_options_reach_the_wire():
    """Under this format's names; the request's model wins, and extra fields go over ours."""
    request = LLMRequest(messages=ASK.messages, model="other")
    body = (await sent(request, temperature=0.25, max_tokens=77)).body
    wanted = {"model": "other", "temperature": 0.25, "max_output_tokens": 77}
    assert {name: body[name] for name in wanted} == wanted
    async with serving(replies("ok"), extra_body={"store": False, "temperature": 1}) as (s, p):
        await play(p, temperature=0.5)
    assert s.received[0].body["temperature"] == 1


@pytest.mark.parametrize("level", list(ThinkingLevel))
async def test_the_thinking_level_reaches_the_wire(level, monkeypatch):
    """With a summary to read; `off` is an effort too."""
    body = (await sent(official=True, monkeypatch=monkeypatch, thinking_level=level)).body
    off = level is ThinkingLevel.OFF
    thinks = {"effort": level.value, "summary": "auto"}
    assert body.get("reasoning") == ({"effort": "none"} if off else thinks)


async def test_a_server_that_is_not_openai_gets_no_xhigh():
    """Others know no more than `high`."""
    assert (await sent(thinking_level=ThinkingLevel.XHIGH)).body["reasoning"]["effort"] == "high"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("required", "required"), ("add", {"type": "function", "name": "add"})],
)
async def test_tools_and_their_choice_reach_the_wire(choice, expected):
    """Flat, and without the strictness that would refuse most schemas."""
    request = LLMRequest(messages=ASK.messages, tools=[ADD])
    body = (await sent(request, tool_choice=choice)).body
    assert body["tools"] == [
        {
            "type": "function",
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ]
    assert body["tool_choice"] == expected


async def test_the_output_schema_reaches_the_wire():
    """Strict where the schema allows it."""
    schema = {
        "title": "A sum",
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    body = (await sent(output_schema=schema)).body
    assert body["text"] == {
        "format": {"type": "json_schema", "name": "A_sum", "schema": schema, "strict": True}
    }


async def test_the_session_reaches_the_wire(monkeypatch):
    """As a key of OpenAI's cache; elsewhere as a header; never as it is."""
    header = (await sent(session_id="ada")).headers["x-session-id"]
    received = await sent(official=True, monkeypatch=monkeypatch, session_id="ada")
    assert received.body["prompt_cache_key"] == header
    assert len(header) == 32


async def test_stop_sequences_are_refused_rather_than_dropped():
    """The format has none; the error says what to do, and nothing is sent."""
    async with serving() as (server, provider):
        last = (await play(provider, stop=["END"]))[-1]
    assert type(last.error) is UnsupportedOption
    assert last.error.option == "stop"
    assert "chat completions" in str(last.error)
    assert server.received == []


async def test_a_conversation_is_replayed_as_it_was():
    """Reasoning before its call, with what was encrypted; results with images; no ids of items."""
    first = answers(
        reasons(0, "Add."), speaks(1, "Adding.", phase="commentary"), calls(2, "c1", "add", "{}")
    )
    async with serving(first, replies("7")) as (server, provider):
        message = (await play(provider))[-1].message
        result = ToolResultMessage(
            tool_call_id="c1", tool_name="add", content=[TextContent("7"), ImageContent(PNG)]
        )
        history = [UserMessage([TextContent("hello"), ImageContent(PNG)]), message, result]
        request = LLMRequest(messages=render(history, provider="openai", model="fake"))
        last = (await play(provider, request))[-1]
    assert last.type == "done", last.error
    url = f"data:image/png;base64,{PNG}"
    image = {"type": "input_image", "detail": "auto", "image_url": url}
    assert server.received[1].body["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}, image]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Add. "}],
            "encrypted_content": "gAAA",
        },
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Adding.", "annotations": []}],
            "phase": "commentary",
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "7"}, image],
        },
    ]


@pytest.mark.parametrize(
    "signature", [None, "", "reasoning_content", "{not json", "[]", '{"id": "rs_1"}']
)
async def test_thinking_without_its_encrypted_whole_is_not_replayed(signature):
    """Of chat completions, of another API, or of a server that keeps its own."""
    thinking = ThinkingContent("hm", thinking_signature=signature)
    said = AssistantMessage(
        [thinking, TextContent("ok")], provider="openai", api="openai-responses", model="fake"
    )
    request = LLMRequest(messages=[UserMessage("a"), said, UserMessage("b")])
    items = (await sent(request)).body["input"]
    assert [item.get("type") for item in items] == [None, "message", None]


async def test_reasoning_of_another_provider_is_not_replayed():
    """Nobody else can read it."""
    signed = ThinkingContent("hm", thinking_signature='{"id":"r","encrypted_content":"gAAA"}')
    said = AssistantMessage([signed, TextContent("ok")], provider="other", api="openai-responses")
    request = LLMRequest(messages=[UserMessage("a"), said, UserMessage("b")])
    assert len((await sent(request)).body["input"]) == 3


async def test_a_turn_with_tools_keeps_its_reasoning():
    """Through the agent, its store and the rendering of its history."""

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    given = [
        answers(reasons(0, "Add."), calls(1, "c1", "add", '{"a": 2, "b": 3}')),
        answers(reasons(0, item_id="rs_2"), speaks(1, "It is 5.")),
        replies("You are welcome."),
    ]
    async with serving(*given) as (server, provider):
        config = LoopConfig(thinking_level=ThinkingLevel.LOW)
        async with Agent("ada", llm_provider=provider, tools=[add], loop_config=config) as agent:
            result = await agent.execute_turn("2 + 3?")
            again = await agent.execute_turn("Thanks!")
    assert (result.text, again.text) == ("It is 5.", "You are welcome.")
    items = server.received[2].body["input"]
    assert [item.get("id") for item in items if item.get("type") == "reasoning"] == ["rs_1", "rs_2"]
    assert result.usage.total_tokens == 28


async def test_a_model_without_reasoning_is_asked_again_without_it():
    """Once: the provider remembers what its model refuses."""
    no = "Encrypted content is not supported with this model."
    async with serving(refuses(400, no, param="include"), replies("a"), replies("b")) as (s, p):
        assert (await play(p))[-1].message.text == "a"
        assert (await play(p))[-1].message.text == "b"
    assert ["include" in r.body for r in s.received] == [True, False, False]


async def test_an_account_without_summaries_is_asked_again_without_them():
    """The level of thinking stays."""
    no = "Your organization must be verified to generate reasoning summaries."
    refused = refuses(400, no, param="reasoning.summary")
    async with serving(refused, replies("a")) as (server, provider):
        last = (await play(provider, thinking_level=ThinkingLevel.LOW))[-1]
    assert last.message.text == "a"
    assert server.received[1].body["reasoning"] == {"effort": "low"}


# --- by name ---------------------------------------------------------------------------------


def test_the_format_is_chosen_by_name(monkeypatch):
    """`openai-responses/...`; the provider is OpenAI all the same."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    provider = resolve_provider("openai-responses/gpt-5")
    assert repr(provider) == "<OpenAIProvider openai/gpt-5>"
    assert provider.api == "responses"


def test_another_format_is_refused(monkeypatch):
    """Named at once."""
    with pytest.raises(ConfigurationError, match="'grpc'"):
        OpenAIProvider("gpt-5", api="grpc", api_key=KEY)
