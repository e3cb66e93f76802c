"""OpenAIProvider through the real SDK and real sockets: the format of chat completions."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from tests.wire import three
from tests.wire.fake_openai import (
    DONE,
    Answer,
    FakeOpenAI,
    chunk,
    refuses,
    says,
)
from tests.wire.three import ADD, ASK, PNG, play

from looopy.llm.openai.provider import OpenAIProvider
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest, ThinkingLevel

serving = partial(three.serving, "completions")


async def test_a_server_that_refuses_stream_options_is_asked_without():
    """The field is dropped once and for all, in the same call."""
    refusal = refuses(400, "Unknown parameter: 'stream_options'")
    async with serving(refusal, says("ok"), says("ok")) as (server, provider):
        assert (await play(provider))[-1].message.text == "ok"
        assert (await play(provider))[-1].message.text == "ok"
    asked = [r.body.get("stream_options") for r in server.received]
    assert asked == [{"include_usage": True}, None, None]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_is_read_and_sent_back_within_the_tool_loop(field):
    """It comes under either name, and goes back under the same until the user speaks again."""
    pieces = [
        chunk({field: "let me "}),
        chunk({field: "think"}),
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add"}}]}),
        chunk(finish="tool_calls"),
        DONE,
    ]
    async with serving(Answer(pieces=pieces), says("3"), says("bye")) as (server, provider):
        events = await play(provider)
        said = events[-1].message
        result = ToolResultMessage(tool_call_id="c1", content=[TextContent("3")])
        await play(provider, LLMRequest(messages=[*ASK.messages, said, result]))
        more = [*ASK.messages, said, result, UserMessage("and now?")]
        await play(provider, LLMRequest(messages=more))
    assert [e.type for e in events][:5] == [
        "start", "thinking_start", "thinking_delta", "thinking_delta", "thinking_end",
    ]  # fmt: skip
    assert said.thinking_text == "let me think"
    assert server.received[1].body["messages"][1][field] == "let me think"
    assert field not in server.received[2].body["messages"][1]


async def test_every_kind_of_message_goes_out_as_the_format_has_it():
    """System prompt, images, calls with their results; custom roles stay at home."""
    image = ImageContent(PNG, mime_type="image/png")
    messages = [
        UserMessage([TextContent("what is this?"), image]),
        CustomMessage("note", "not for the model"),
        AssistantMessage([ThinkingContent("hm"), ToolCall("c1", "look", {"at": "ß"})]),
        ToolResultMessage(tool_call_id="c1", tool_name="look", content=[image]),
        UserMessage("so?"),
        AssistantMessage([TextContent("a picture")]),
        UserMessage([TextContent("one"), TextContent("two")]),
    ]
    async with serving(says("ok")) as (server, provider):
        request = LLMRequest(messages=messages, system_prompt="Be brief.", tools=[ADD])
        assert (await play(provider, request))[-1].type == "done"
    body = server.received[0].body
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": "ß"}'},
    }
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "what is this?"}, url]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "(see attached image)"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Attached image(s) from tool result:"},
                url,
                {"type": "text", "text": "so?"},
            ],
        },
        {"role": "assistant", "content": "a picture"},
        {"role": "user", "content": "one\ntwo"},
    ]
    assert body["tools"][0]["function"]["name"] == "add"


async def test_every_option_reaches_the_wire():
    """What is set is sent, under the name that compatible servers know."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    async with serving(says("ok"), extra_body={"top_k": 5}) as (server, provider):
        await play(
            provider,
            LLMRequest(messages=ASK.messages, tools=[ADD], model="other"),
            temperature=0.5,
            max_tokens=99,
            thinking_level=ThinkingLevel.HIGH,
            stop=["END"],
            tool_choice="add",
            output_schema=schema,
            headers={"x-trace": "t1"},
            session_id="ctx/ä",
        )
    got = server.received[0]
    assert got.body["model"] == "other"
    assert got.body["temperature"] == 0.5
    assert got.body["max_tokens"] == 99
    assert got.body["reasoning_effort"] == "high"
    assert got.body["stop"] == ["END"]
    assert got.body["top_k"] == 5
    assert got.body["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    form = got.body["response_format"]["json_schema"]
    assert form["schema"]["properties"] == {"x": {"type": ["integer", "null"]}}
    assert (form["schema"]["required"], form["strict"]) == (["x"], True)
    assert got.headers["x-trace"] == "t1"
    assert len(got.headers["x-session-id"]) == 32


def test_a_provider_serves_several_event_loops():
    """Connections belong to a loop: each has its own, though the first one's are still open."""
    serving_loop = asyncio.new_event_loop()
    thread = threading.Thread(target=serving_loop.run_forever)
    thread.start()

    def in_server(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, serving_loop).result(10)

    server = FakeOpenAI(says("one"), says("two"))
    in_server(server.__aenter__())
    provider = OpenAIProvider("fake", base_url=server.url)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        assert first.run(play(provider))[-1].message.text == "one"
        assert second.run(play(provider))[-1].message.text == "two"
        first.run(provider.aclose())
        second.run(provider.aclose())
    in_server(server.__aexit__())
    serving_loop.call_soon_threadsafe(serving_loop.stop)
    thread.join()
    serving_loop.close()
    assert server.connections == 2
