"""Vendors behind OpenAI's format and clouds behind Anthropic's, through their official clients."""

from __future__ import annotations

import json

import anthropic
import pytest
from tests.wire import fake_anthropic, fake_bedrock
from tests.wire.fake_bedrock import FakeBedrock, framed
from tests.wire.fake_openai import DONE, Answer, FakeOpenAI, chunk, says
from tests.wire.three import ASK, last_event
from tests.wire.vendors import (
    GOOGLE,
    OPENED,
    OPENROUTER,
    SKIP,
    azure_client,
    client_at,
    closed_clients,  # noqa: F401 - a fixture of this module
    gemini_3,
    plain_model,
    reasoning_model,
    signature_of,
)

from looopy import Agent, LoopConfig, RetryPolicy, tool
from looopy.errors import InvalidLLMResponse, RateLimited
from looopy.llm.anthropic.provider import AnthropicProvider
from looopy.llm.openai.provider import OpenAIProvider
from looopy.llm.openai.vendor import vendor_of
from looopy.types.message import (
    AssistantMessage,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest, ThinkingLevel


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def google_call(name, arguments, signature=None, call_id="c1"):
    """A call as Google sends it: whole, without a number."""
    call = {"id": call_id, "type": "function"}
    call["function"] = {"name": name, "arguments": json.dumps(arguments)}
    if signature:
        call["extra_content"] = {"google": {"thought_signature": signature}}
    return call


# --- Gemini ---------------------------------------------------------------------------------------


async def test_gemini_gets_its_thought_signatures_back():
    """Two steps with tools, the first with two calls of which one is signed: none is refused."""
    both = [google_call("add", {"a": 1, "b": 2}, "SIG-1"), google_call("add", {"a": 3, "b": 4})]
    both[1]["id"] = "c2"
    first = [chunk({"role": "assistant", "tool_calls": both}, finish="stop"), DONE]
    again = [google_call("add", {"a": 3, "b": 7}, "SIG-2", "c3")]
    second = [chunk({"tool_calls": again}, finish="tool_calls"), DONE]
    answers = Answer(pieces=first), Answer(pieces=second), says("10"), says("yes")
    async with FakeOpenAI(*answers, check=gemini_3) as server:
        made = OpenAIProvider("gemini-3-pro-preview", client=client_at(GOOGLE, server))
        async with Agent("ada", llm_provider=made, tools=[add]) as agent:
            result = await agent.execute_turn("1+2, 3+4, both")
            assert result.raise_for_outcome().text == "10"
            assert (await agent.execute_turn("sure?")).text == "yes"
    assert len(server.received) == 4
    sent = [m["tool_calls"] for m in server.received[-1].body["messages"] if "tool_calls" in m]
    assert [[signature_of(c) for c in calls] for calls in sent] == [["SIG-1", None], ["SIG-2"]]


async def test_gemini_takes_a_call_of_another_model():
    """It is marked as unsigned, as Google documents it."""
    messages = [
        UserMessage("1+2?"),
        AssistantMessage([ToolCall("c", "add", {"a": 1, "b": 2})], provider="anthropic"),
        ToolResultMessage(tool_call_id="c", tool_name="add", content="3"),
    ]
    async with FakeOpenAI(says("3"), check=gemini_3) as server:
        made = OpenAIProvider("gemini-3-flash", client=client_at(GOOGLE, server))
        last = await last_event(made, LLMRequest(messages=messages))
    assert last.type == "done", last.error
    assert signature_of(server.received[0].body["messages"][1]["tool_calls"][0]) == SKIP


async def test_a_thought_of_gemini_is_no_text_and_a_signed_text_goes_back():
    """Google marks both beside the words."""
    thought = {"content": "hm", "extra_content": {"google": {"thought": True}}}
    signed = {"content": "", "extra_content": {"google": {"thought_signature": "SIG-1"}}}
    pieces = [chunk(thought), chunk({"content": "hi"}), chunk(signed, finish="stop"), DONE]
    async with FakeOpenAI(Answer(pieces=pieces), says("x"), check=gemini_3) as server:
        made = OpenAIProvider("gemini-3-flash", client=client_at(GOOGLE, server))
        message = (await last_event(made)).message
        assert (message.text, message.thinking_text) == ("hi", "hm")
        history = [UserMessage("a"), message, UserMessage("b")]
        await last_event(made, LLMRequest(messages=history))
    assert server.received[1].body["messages"][1]["extra_content"] == signed["extra_content"]


# --- OpenAI, Azure --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name", "vendor"),
    [
        ("https://api.openai.com/v1", "openai", "openai"),
        ("https://eu.api.openai.com/v1", "openai", "openai"),
        ("https://mine.openai.azure.com/openai/v1/", "openai", "openai"),
        ("https://mine.services.ai.azure.com/openai/v1", "x", "openai"),
        (GOOGLE, "openai", "google"),
        ("https://us-central1-aiplatform.googleapis.com/v1/x", "openai", "google"),
        (OPENROUTER, "openai", "openrouter"),
        ("http://127.0.0.1:11434/v1", "ollama", "ollama"),
        ("http://127.0.0.1:8000/v1", "openai", ""),
        ("https://api.openai.com.evil.example/v1", "openai", ""),
        ("https://evil-openrouter.ai/v1", "openai", ""),
    ],
)
def test_a_vendor_is_known_by_its_address(url, name, vendor):
    """Also by the name that a provider was given; not by an address that only looks alike."""
    assert vendor_of(url, name) == vendor


async def test_azure_gets_the_fields_of_openai():
    """Through its own client, under the deployment's address."""
    async with FakeOpenAI(says("ok"), check=reasoning_model) as server:
        made = OpenAIProvider("gpt-5", client=azure_client(server))
        last = await last_event(made, max_tokens=50, session_id="ada")
    assert last.type == "done", last.error
    (received,) = server.received
    assert received.path.startswith("/openai/deployments/gpt-5/chat/completions")
    assert received.body["max_completion_tokens"] == 50
    assert "ada" not in json.dumps(received.body)


async def test_another_server_is_asked_again_with_the_name_that_it_wants():
    """A gateway in front of a reasoning model; from then on it gets that name at once."""
    answers = says("a"), says("b")
    async with FakeOpenAI(*answers, check=reasoning_model) as server:
        made = OpenAIProvider("gpt-5", base_url=server.url)
        for _ in range(2):
            assert (await last_event(made, max_tokens=50)).type == "done"
        await made.aclose()
    assert ["max_tokens" in r.body for r in server.received] == [True, False, False]


async def test_a_thinking_model_is_turned_down_as_far_as_it_goes():
    """`off` is `none`; where a model takes no `none`, the least that it names, with a warning."""
    told = []
    async with FakeOpenAI(says("a"), check=reasoning_model) as server:
        made = OpenAIProvider("gpt-5", client=azure_client(server))
        warn = lambda code, text: told.append((code, text))  # noqa: E731
        last = await last_event(made, thinking_level=ThinkingLevel.OFF, warn=warn)
    assert last.type == "done", last.error
    assert [r.body["reasoning_effort"] for r in server.received] == ["none", "minimal"]
    assert told == [("thinking_level", "gpt-5 does not take the effort 'none': 'minimal'")]


async def test_a_model_that_never_thinks_need_not_be_turned_off():
    """It refuses the word, and is asked again without."""
    async with FakeOpenAI(says("a"), check=plain_model) as server:
        made = OpenAIProvider("gpt-4o", client=azure_client(server))
        last = await last_event(made, thinking_level=ThinkingLevel.OFF)
    assert last.type == "done", last.error
    assert ["reasoning_effort" in r.body for r in server.received] == [True, False]


async def test_a_level_that_a_model_has_no_place_for_is_refused_by_its_name():
    """Nothing that was asked for is dropped."""
    async with FakeOpenAI(check=plain_model) as server:
        made = OpenAIProvider("gpt-4o", client=azure_client(server))
        last = await last_event(made, thinking_level=ThinkingLevel.HIGH)
    assert last.type == "error"
    assert "reasoning_effort" in str(last.error)


# --- OpenRouter -----------------------------------------------------------------------------------

DETAILS = [
    {"type": "reasoning.summary", "summary": "**Add", "format": "openai-responses-v1", "index": 0},
    {"type": "reasoning.summary", "summary": "ing**", "format": "openai-responses-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": "gAAA==", "id": "rs_1", "index": 0},
]
WHOLE = [{**DETAILS[0], "summary": "**Adding**"}, DETAILS[2]]


@pytest.mark.parametrize("thinks", [True, False])
async def test_openrouter_gets_its_reasoning_back_as_it_came(thinks):
    """In pieces beside the thinking, or whole beside a call without any."""
    pieces = [chunk({"reasoning": d["summary"], "reasoning_details": [d]}) for d in DETAILS[:2]]
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
    pieces = pieces if thinks else []
    pieces.append(chunk({"tool_calls": [call], "reasoning_details": [DETAILS[2]]}))
    pieces += [chunk(finish="tool_calls"), DONE]
    async with FakeOpenAI(Answer(pieces=pieces), says("3")) as server:
        made = OpenAIProvider("openai/gpt-5", client=client_at(OPENROUTER, server))
        async with Agent("ada", llm_provider=made, tools=[add]) as agent:
            assert (await agent.execute_turn("1+2?")).raise_for_outcome().text == "3"
    (sent,) = [m for m in server.received[1].body["messages"] if m["role"] == "assistant"]
    assert sent["reasoning_details"] == (WHOLE if thinks else DETAILS[2:])
    assert "reasoning" not in sent


async def test_reasoning_of_another_model_does_not_go_to_openrouter():
    """It could not be read there."""
    signature = json.dumps({"reasoning_details": WHOLE})
    said = [ThinkingContent("hm", thinking_signature=signature), ToolCall("c", "add", {})]
    messages = [
        UserMessage("1+2?"),
        AssistantMessage(said, provider="elsewhere", model="openai/gpt-5"),
        ToolResultMessage(tool_call_id="c", tool_name="add", content="3"),
    ]
    async with FakeOpenAI(says("3")) as server:
        made = OpenAIProvider("openai/gpt-5", client=client_at(OPENROUTER, server))
        assert (await last_event(made, LLMRequest(messages=messages))).type == "done"
    assert "reasoning_details" not in server.received[0].body["messages"][1]


# --- Bedrock --------------------------------------------------------------------------------------


def bedrock(server):
    """The provider over the official client for Bedrock."""
    client = anthropic.AsyncAnthropicBedrock(
        aws_access_key="a",
        aws_secret_key="b",
        aws_region="eu-central-1",
        base_url=server.url.removesuffix("/v1"),
        max_retries=0,
    )
    OPENED.append(client)
    return AnthropicProvider(fake_bedrock.MODEL, client=client)


async def test_bedrock_answers_through_its_own_client():
    """A turn with a tool: address, signed request, frames; each is asked once."""
    asks = fake_anthropic.calls(0, "toolu_1", "add", '{"a":1,', '"b":2}')
    answers = fake_anthropic.answers(asks, reason="tool_use"), fake_anthropic.says("it is 3")
    async with (
        FakeBedrock(*map(framed, answers)) as server,
        Agent("ada", llm_provider=bedrock(server), tools=[add]) as agent,
    ):
        result = await agent.execute_turn("1+2?")
    assert result.raise_for_outcome().text == "it is 3"
    assert result.usage.cache_read == 800
    assert len(server.received) == 2


async def test_an_exception_amid_an_answer_of_bedrock_is_an_error():
    """Typed, as an error of Anthropic's own stream."""
    begun = framed(fake_anthropic.says("half of it")).pieces[:4]
    answer = Answer(
        pieces=[*begun, fake_bedrock.throws("throttlingException", "Too many requests")],
        content_type="application/vnd.amazon.eventstream",
    )
    async with FakeBedrock(answer) as server:
        last = await last_event(bedrock(server))
    assert isinstance(last.error, RateLimited)


async def test_a_damaged_frame_is_an_error_that_may_pass():
    """Its checksum is wrong."""
    pieces = list(framed(fake_anthropic.says("half of it")).pieces)
    pieces[3] = pieces[3][:-1] + bytes([pieces[3][-1] ^ 1])
    async with FakeBedrock(
        Answer(pieces=pieces, content_type="application/vnd.amazon.eventstream")
    ) as server:
        last = await last_event(bedrock(server))
    assert isinstance(last.error, InvalidLLMResponse)
    assert last.error.retryable
    assert "damaged" in str(last.error)


# --- every server ---------------------------------------------------------------------------------


async def test_a_damaged_chunk_is_tried_again():
    """As an answer that broke off."""
    damaged = Answer(pieces=[chunk({"content": "ha"}), b'data: {"choices": [{"del\n\n'])
    async with FakeOpenAI(damaged, says("whole")) as server:
        made = OpenAIProvider("m", base_url=server.url)
        config = LoopConfig(retry=RetryPolicy(base_s=0.0))
        async with Agent("ada", llm_provider=made, loop_config=config) as agent:
            assert (await agent.execute_turn("go")).text == "whole"
        await made.aclose()


async def test_tools_of_the_body_come_beside_ours():
    """A server's own tool in `extra_body` does not remove the agent's."""
    search = {"type": "web_search"}
    async with FakeOpenAI(says("ok"), check=lambda _: []) as server:
        made = OpenAIProvider("m", base_url=server.url, extra_body={"tools": [search]})
        async with Agent("ada", llm_provider=made, tools=[add]) as agent:
            await agent.execute_turn("go")
        await made.aclose()
    ours, theirs = server.received[0].body["tools"]
    assert (ours["function"]["name"], theirs) == ("add", search)


async def test_the_name_of_a_context_goes_to_no_server():
    """Neither in a header nor in the body; one context has one substitute."""
    async with FakeOpenAI(says("a"), says("b")) as server:
        made = OpenAIProvider("m", base_url=server.url)
        for _ in range(2):
            await last_event(made, ASK, session_id="ada@example.org")
        await made.aclose()
    sent = [r.headers["x-session-id"] for r in server.received]
    assert sent[0] == sent[1] != "ada@example.org"
    assert "ada" not in json.dumps([[r.headers, r.body] for r in server.received])
