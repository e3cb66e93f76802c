"""OpenAIProvider through the real SDK and real sockets, against a server that speaks the format."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial

import pytest
from tests.wire import three
from tests.wire.fake_openai import (
    CUT,
    DONE,
    HOLD,
    UNANSWERED,
    Answer,
    FakeOpenAI,
    chunk,
    event,
    refuses,
    says,
)
from tests.wire.three import ADD, ASK, PNG, given_up, play

from looopy.errors import (
    ContextOverflow,
    HistoryRejected,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    MissingKey,
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

KEY = "a-very-secret-key-0123456789"
API = "completions"
serving = partial(three.serving, API)
failing = partial(three.failing, API)


async def test_text_comes_as_the_server_sends_it():
    """Deltas arrive one by one, the empty first one is none, and the last event has it all."""
    async with serving(says("hello big world")) as (server, provider):
        events = await play(provider)
    assert [e.type for e in events] == [
        "start", "text_start", "text_delta", "text_delta", "text_delta", "text_end", "done",
    ]  # fmt: skip
    assert [e.delta for e in events if e.type == "text_delta"] == ["hello", " big", " world"]
    message = events[-1].message
    assert (message.text, message.stop_reason) == ("hello big world", StopReason.STOP)
    assert (message.api, message.provider, message.model) == (
        "openai-completions",
        "openai",
        "fake",
    )
    assert server.received[0].path == "/v1/chat/completions"


async def test_a_delta_is_seen_before_the_answer_ends():
    """The second word is not sent before the first was read."""
    go = asyncio.Event()
    answer = Answer(pieces=[chunk({"content": "a"}), go, chunk({"content": "b"}, finish="stop")])
    seen = []
    async with serving(answer) as (_, provider):
        async for e in provider.stream(ASK):
            if e.type == "text_delta":
                seen.append(e.delta)
                go.set()
    assert seen == ["a", "b"]


async def test_a_connection_is_used_again():
    """An answer is read to its end, so the next call needs no new connection."""
    async with serving(says("one"), says("two")) as (server, provider):
        await play(provider)
        await play(provider)
        assert server.connections == 1


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


async def test_the_key_of_the_call_wins():
    """Option, then the provider's own, which may be a function asked each time."""
    keys = iter(["first", "second"])

    async def next_key():
        return next(keys)

    async with serving(says("a"), says("b"), says("c"), api_key=next_key) as (server, provider):
        await play(provider)
        await play(provider, api_key="of the call")
        await play(provider)
    sent = [r.headers["authorization"] for r in server.received]
    assert sent == ["Bearer first", "Bearer of the call", "Bearer second"]


async def test_the_key_of_the_environment_is_not_sent_to_another_server(monkeypatch):
    """A base URL given by hand gets no key that was meant for OpenAI."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with serving(says("a")) as (server, provider):
        await play(provider)
    assert KEY not in str(server.received[0].headers)


async def test_the_environment_names_server_and_key_together(monkeypatch):
    """OPENAI_BASE_URL with OPENAI_API_KEY; the key is read anew for each call."""
    async with FakeOpenAI(says("a"), says("b")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        provider = OpenAIProvider("fake")
        await play(provider)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        await play(provider)
        await provider.aclose()
    assert server.received[0].headers["authorization"] == "Bearer none"
    assert server.received[1].headers["authorization"] == f"Bearer {KEY}"


async def test_a_missing_key_names_the_variable():
    """At once, unless every call is said to bring its own; then in that call."""
    with pytest.raises(MissingKey, match="OPENAI_API_KEY"):
        OpenAIProvider("fake")
    last = (await play(OpenAIProvider("fake", api_key="")))[-1]
    assert last.type == "error"
    assert not last.error.retryable
    assert "OPENAI_API_KEY" in str(last.error)


async def test_the_sdk_of_the_user_is_used_as_it_is():
    """A client that was passed in keeps its key and stays open."""
    import openai

    async with FakeOpenAI(says("a"), says("b")) as server:
        client = openai.AsyncOpenAI(api_key="mine", base_url=server.url, max_retries=0)
        provider = OpenAIProvider("fake", client=client)
        await play(provider)
        await provider.aclose()
        await play(provider)
        await client.close()
    assert [r.headers["authorization"] for r in server.received] == ["Bearer mine"] * 2


async def test_a_disconnect_keeps_what_came():
    """The connection breaks within the answer: worth trying again, the text so far is there."""
    error, message = await failing(Answer(pieces=[chunk({"content": "half an ans"}), CUT]))
    assert isinstance(error, LLMUnavailable)
    assert error.retryable
    assert message.text == "half an ans"
    assert message.error_message == str(error)


async def test_a_disconnect_drops_the_call_it_cut():
    """A tool call that may lack its end is not announced."""
    call = {"index": 0, "id": "c1", "function": {"name": "rm", "arguments": '{"path": "/"}'}}
    _, message = await failing(Answer(pieces=[chunk({"tool_calls": [call]}), CUT]))
    assert message.content == ()


async def test_an_answer_that_just_stops_is_an_error():
    """Neither a reason to finish nor [DONE]: the answer is not taken for complete."""
    error, message = await failing(Answer(pieces=[chunk({"content": "so far"})]))
    assert isinstance(error, LLMUnavailable)
    assert message.text == "so far"


@pytest.mark.parametrize(
    "tail", [[DONE], [chunk(finish="stop")], [chunk(finish="stop"), CUT], [DONE.strip()]]
)
async def test_one_sign_of_the_end_is_enough(tail):
    """[DONE] without a reason, a reason without [DONE], even when the connection breaks then."""
    async with serving(Answer(pieces=[chunk({"content": "all"}), *tail])) as (_, provider):
        last = (await play(provider))[-1]
    assert (last.type, last.message.text) == ("done", "all")


async def test_a_server_that_never_closes_is_not_waited_for():
    """After the reason to finish only a short while, though the connection stays open."""
    answer = Answer(pieces=[chunk({"content": "all"}, finish="stop"), HOLD])
    async with serving(answer) as (server, provider):
        last = (await play(provider))[-1]
        await server.left.wait()
    assert (last.type, last.message.text) == ("done", "all")


async def test_a_stalled_answer_is_given_up():
    """Silence within an answer: the idle timeout ends it, and the connection is closed."""
    answer = Answer(pieces=[chunk({"content": "hm"}), HOLD])
    async with serving(answer, idle_timeout_s=60) as (server, provider):
        last = await given_up(provider, "text_delta", 61)
        await server.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert last.error.retryable
    assert last.message.text == "hm"


async def test_a_server_that_never_speaks_is_given_up():
    """No byte at all: the same timeout, with more patience."""
    answer = Answer(gate=asyncio.Event())
    async with serving(answer, idle_timeout_s=60) as (server, provider):
        last = await given_up(provider, server.asked, 181)
        await server.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert "silent" in str(last.error)


async def test_a_slow_first_byte_is_waited_for():
    """The server thinks until it is told to speak; nothing was lost."""
    gate = asyncio.Event()
    answer = says("at last")
    slow = Answer(pieces=answer.pieces, gate=gate)
    async with serving(slow) as (server, provider):
        reading = asyncio.create_task(play(provider))
        await server.asked.wait()
        gate.set()
        assert (await reading)[-1].message.text == "at last"


async def test_a_call_has_a_total_time():
    """A server that keeps talking is cut off at `timeout_s`."""
    drip = [piece for _ in range(400) for piece in (chunk({"content": "x"}), b": still here\n\n")]
    async with serving(Answer(pieces=[*drip, HOLD])) as (server, provider):
        last = await given_up(provider, server.held, 61, timeout_s=60)
        await server.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert "time of one call" in str(last.error)


async def test_cancelling_the_reader_closes_the_connection():
    """The server sees the client leave, though it was silent."""
    async with serving(Answer(pieces=[chunk({"content": "x"}), HOLD])) as (server, provider):
        seen = asyncio.Event()

        async def read():
            async for e in provider.stream(ASK):
                if e.type == "text_delta":
                    seen.set()

        reading = asyncio.create_task(read())
        await seen.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await server.left.wait()


async def test_cancelling_before_the_first_byte_closes_the_connection():
    """Also while the server has not answered yet."""
    async with serving(Answer(gate=asyncio.Event())) as (server, provider):
        reading = asyncio.create_task(play(provider))
        await server.asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await server.left.wait()


async def test_closing_the_iterator_closes_the_connection():
    """Whoever has read enough may leave."""
    async with serving(Answer(pieces=[chunk({"content": "x"}), HOLD])) as (server, provider):
        async with aclosing(provider.stream(ASK)) as events:
            async for e in events:
                if e.type == "text_delta":
                    break
        await server.left.wait()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({}, None),
    ],
)
async def test_a_rate_limit_says_how_long(headers, expected):
    """429 with its header; once only, as the SDK's own retries are off."""
    error, _ = await failing(refuses(429, "slow down", headers=headers))
    assert isinstance(error, RateLimited)
    assert error.retryable
    assert error.retry_after_s == expected


async def test_a_rate_limit_may_name_a_date():
    """An HTTP date counts from now."""
    when = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    error, _ = await failing(refuses(429, "slow down", headers={"retry-after": when}))
    assert 500 < error.retry_after_s <= 600


async def test_a_spent_quota_is_not_tried_again():
    """429 that no waiting mends."""
    error, _ = await failing(refuses(429, "check your plan", code="insufficient_quota"))
    assert isinstance(error, RateLimited)
    assert not error.retryable


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
async def test_a_server_failure_may_pass(status):
    """5xx is worth trying again, whatever the body."""
    html = Answer(pieces=[b"<h1>Bad day</h1>"], status=status, content_type="text/html")
    error, _ = await failing(html)
    assert isinstance(error, LLMUnavailable)
    assert error.retryable
    assert "Bad day" in str(error)


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


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_not_shown(status):
    """The server quotes the key; the error, its facts and the message do not."""
    error, message = await failing(
        refuses(status, f"Incorrect API key provided: {KEY}"), api_key=KEY
    )
    assert type(error) is LLMError
    assert not error.retryable
    assert KEY not in f"{error} {error!r} {error.facts} {message} {error.__cause__}"
    assert "key" in str(error)


async def test_an_unknown_model_is_named():
    """404 says which model, and is not tried again."""
    error, _ = await failing(refuses(404, "The model does not exist", code="model_not_found"))
    assert not error.retryable
    assert "'fake'" in str(error)


async def test_nobody_listening_may_pass():
    """A refused connection is worth trying again and names the server."""
    async with FakeOpenAI() as server:
        url = server.url
    provider = OpenAIProvider("fake", base_url=url)
    last = (await play(provider))[-1]
    await provider.aclose()
    assert isinstance(last.error, LLMUnavailable)
    assert url.removesuffix("/v1") in str(last.error)


@pytest.mark.parametrize(
    "piece",
    [b"data: {not json\n\n", b"data: [1]\n\n", b"data: \xff\xfe\n\n", event({"choices": [7]})],
)
async def test_garbage_is_no_answer(piece):
    """What is no chunk ends the call as an invalid response, the text before it kept."""
    error, message = await failing(Answer(pieces=[chunk({"content": "so "}), piece]))
    assert isinstance(error, InvalidLLMResponse)
    assert message.text == "so "


async def test_a_web_page_is_no_answer():
    """A base URL without /v1 often leads to one, and the error says so."""
    page = Answer(pieces=[b"<html>Welcome</html>"], content_type="text/html; charset=utf-8")
    error, _ = await failing(page)
    assert isinstance(error, InvalidLLMResponse)
    assert "/v1" in str(error)


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


async def test_characters_cut_by_the_network_come_whole():
    """Every byte in its own write, with line separators that JSON need not escape."""
    text = "ß 漢字 🙂 \u2028 end"
    whole = chunk({"content": text}, finish="stop").replace(b"\n\n", b"\r\n\r\n") + DONE
    async with serving(Answer(pieces=[whole[i : i + 1] for i in range(len(whole))])) as (
        _,
        provider,
    ):
        assert (await play(provider))[-1].message.text == text


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


async def test_one_provider_serves_many_calls_at_once():
    """Answers do not mix."""
    answers = [lambda r: says("echo " + r.body["messages"][0]["content"])] * 8
    async with serving(*answers) as (_, provider):
        asks = [LLMRequest(messages=[UserMessage(f"n{i}")]) for i in range(8)]
        ends = await asyncio.gather(*(play(provider, a) for a in asks))
    assert [e[-1].message.text for e in ends] == [f"echo n{i}" for i in range(8)]


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
