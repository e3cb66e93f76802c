"""OpenAIProvider through the real SDK and real sockets: the format of chat completions."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from tests.wire import three
from tests.wire.fake_openai import (
    DONE,
    UNANSWERED,
    Answer,
    FakeOpenAI,
    chunk,
    event,
    refuses,
    says,
)
from tests.wire.three import ADD, ASK, PNG, play

from looopy.errors import (
    ContextOverflow,
    HistoryRejected,
    LLMUnavailable,
    RateLimited,
)
from looopy.llm.openai.provider import OpenAIProvider
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import LLMRequest, ThinkingLevel

API = "completions"
serving = partial(three.serving, API)
failing = partial(three.failing, API)


async def test_usage_leaves_out_what_the_cache_served():
    """`input` and `cache_read` are apart; the total is the server's."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "total_tokens": 107,
        "prompt_tokens_details": {"cached_tokens": 60},
    }
    async with serving(says("ok", usage=usage)) as (server, provider):
        last = (await play(provider))[-1]
    assert last.message.usage == Usage(input=40, output=7, cache_read=60, total_tokens=107)
    assert server.received[0].body["stream_options"] == {"include_usage": True}


async def test_a_server_without_usage_works():
    """No usage chunk: the counts are zero."""
    async with serving(says("ok", usage=None)) as (_, provider):
        last = (await play(provider))[-1]
    assert (last.type, last.message.usage) == ("done", Usage())


async def test_a_server_that_refuses_stream_options_is_asked_without():
    """The field is dropped once and for all, in the same call."""
    refusal = refuses(400, "Unknown parameter: 'stream_options'")
    async with serving(refusal, says("ok"), says("ok")) as (server, provider):
        assert (await play(provider))[-1].message.text == "ok"
        assert (await play(provider))[-1].message.text == "ok"
    assert ["stream_options" in r.body for r in server.received] == [True, False, False]


async def test_tool_arguments_come_in_pieces():
    """Id and name come first, the JSON cut anywhere; the finished call is whole."""
    pieces = [
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add"}}]}),
        *(
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
            for part in ('{"a', '": 1, "', 'b": [2]', "}")
        ),
        chunk(finish="tool_calls"),
        DONE,
    ]
    async with serving(Answer(pieces=pieces)) as (_, provider):
        events = await play(provider, LLMRequest(messages=ASK.messages, tools=[ADD]))
    message = events[-1].message
    assert message.stop_reason == StopReason.TOOL_USE
    assert message.tool_calls == [ToolCall("c1", "add", {"a": 1, "b": [2]})]
    assert [e.tool_call for e in events if e.type == "toolcall_end"] == message.tool_calls


async def test_two_calls_side_by_side_stay_apart():
    """Pieces of two calls may alternate; each has its own arguments, in order."""
    pieces = [
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add"}}]}),
        chunk({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "sub"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": '{"b":2}'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        chunk(finish="tool_calls"),
        DONE,
    ]
    async with serving(Answer(pieces=pieces)) as (_, provider):
        message = (await play(provider))[-1].message
    assert message.tool_calls == [ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "sub", {"b": 2})]


@pytest.mark.parametrize("index", [0, None])
async def test_calls_that_all_claim_one_number_stay_apart(index):
    """Some servers send each call whole, all as number 0 or without one."""
    pieces = [
        chunk(
            {
                "tool_calls": [
                    {"index": index, "id": i, "function": {"name": "add", "arguments": "{}"}}
                ]
            }
        )
        for i in ("c1", "c2")
    ]
    async with serving(Answer(pieces=[*pieces, chunk(finish="stop"), DONE])) as (_, provider):
        message = (await play(provider))[-1].message
    assert [c.id for c in message.tool_calls] == ["c1", "c2"]
    assert message.stop_reason == StopReason.TOOL_USE


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
            "content": [{"type": "text", "text": "Attached image(s) from tool result:"}, url],
        },
        {"role": "user", "content": "so?"},
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


async def test_a_spent_quota_is_not_tried_again():
    """429 that no waiting mends."""
    error, _ = await failing(refuses(429, "check your plan", code="insufficient_quota"))
    assert isinstance(error, RateLimited)
    assert not error.retryable


async def test_an_invalid_history_is_told_with_its_place():
    """The server refuses the messages; the position is that in the request, system prompt aside."""
    messages = [
        UserMessage("a"),
        AssistantMessage([ToolCall("c1", "add")]),
        UserMessage("b"),
    ]
    error, _ = await failing(request=LLMRequest(messages=messages, system_prompt="s"))
    assert isinstance(error, HistoryRejected)
    assert error.position == 2
    assert UNANSWERED in str(error)
    assert not error.retryable


async def test_an_overflow_is_told_with_the_limit():
    """400 with OpenAI's words."""
    text = "This model's maximum context length is 8,192 tokens. However, you asked for 9000."
    error, _ = await failing(refuses(400, text, code="context_length_exceeded"))
    assert isinstance(error, ContextOverflow)
    assert error.limit_tokens == 8192


async def test_an_error_within_the_stream_ends_it():
    """A server that fails after it began says so in a chunk."""
    error, message = await failing(
        Answer(pieces=[chunk({"content": "I"}), event({"error": {"message": "Overloaded"}})])
    )
    assert isinstance(error, LLMUnavailable)
    assert message.text == "I"


async def test_an_overflow_within_the_stream_is_one():
    """The window may be found full after the answer began."""
    body = {"error": {"code": 400, "message": "exceeds the available context size", "n_ctx": 4096}}
    error, _ = await failing(Answer(pieces=[event(body)]))
    assert isinstance(error, ContextOverflow)
    assert error.limit_tokens == 4096


async def test_empty_choices_and_comments_are_skipped():
    """Chunks without choices, keep-alive comments and other fields mean nothing."""
    pieces = [
        b": waiting\n\n",
        chunk(),
        b"event: x\nid: 1\n" + chunk({"content": "ok"}),
        event({"choices": [], "prompt_filter_results": []}),
        chunk(finish="stop"),
        DONE,
    ]
    async with serving(Answer(pieces=pieces)) as (_, provider):
        assert (await play(provider))[-1].message.text == "ok"


async def test_an_answer_that_was_not_streamed_is_taken():
    """Some servers ignore `stream` and send the whole as JSON."""
    whole = {
        "choices": [{"index": 0, "message": {"content": "all at once"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    body = event(whole).removeprefix(b"data: ").strip()
    answer = Answer(pieces=[body[:20], body[20:]], content_type="application/json")
    async with serving(answer) as (_, provider):
        message = (await play(provider))[-1].message
    assert message.text == "all at once"
    assert message.usage == Usage(input=3, output=4, total_tokens=7)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("stop", StopReason.STOP),
        ("length", StopReason.LENGTH),
        ("content_filter", StopReason.SENSITIVE),
        ("tool_calls", StopReason.STOP),
    ],
)
async def test_the_reason_to_finish_is_translated(finish, expected):
    """And `tool_calls` without any is an ordinary stop, or the loop would turn for ever."""
    answer = Answer(pieces=[chunk({"content": "x"}), chunk(finish=finish), DONE])
    async with serving(answer) as (_, provider):
        assert (await play(provider))[-1].message.stop_reason == expected


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
