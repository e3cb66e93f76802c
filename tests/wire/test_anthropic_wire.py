"""AnthropicProvider through the real SDK and real sockets, against a server with its rules."""

from __future__ import annotations

import asyncio
import json
import warnings
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial

import pytest
from tests.wire import three
from tests.wire.fake_anthropic import (
    MODEL,
    FakeAnthropic,
    answers,
    block,
    calls,
    event,
    redacted,
    refuses,
    says,
    sign,
    started,
    stopped,
    text,
    thinks,
)
from tests.wire.fake_openai import CUT, HOLD, Answer
from tests.wire.three import ADD, ASK, given_up, play

from looopy.errors import (
    ContextOverflow,
    HistoryRejected,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    MissingKey,
    RateLimited,
)
from looopy.llm.anthropic.provider import AnthropicProvider
from looopy.types.message import (
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import LLMRequest

KEY = "sk-ant-a-very-secret-key-0123456789"
API = "anthropic"
serving = partial(three.serving, API)
failing = partial(three.failing, API)


# --- what comes --------------------------------------------------------------------------------


async def test_text_comes_as_the_server_sends_it():
    """Deltas arrive one by one; pings are skipped; the last event has it all."""
    async with serving(says("hello big world")) as (server, provider):
        events = await play(provider)
    assert [e.type for e in events] == [
        "start", "text_start", "text_delta", "text_delta", "text_delta", "text_end", "done",
    ]  # fmt: skip
    assert [e.delta for e in events if e.type == "text_delta"] == ["hello", " big", " world"]
    message = events[-1].message
    assert (message.text, message.stop_reason) == ("hello big world", StopReason.STOP)
    assert (message.api, message.provider) == ("anthropic-messages", "anthropic")
    assert message.model == MODEL
    assert server.received[0].path == "/v1/messages"


async def test_a_delta_is_seen_before_the_answer_ends():
    """The rest is not sent before the first word was read."""
    go = asyncio.Event()
    pieces = [started(), *text(0, "a b")]
    pieces.insert(3, go)
    seen = []
    async with serving(Answer(pieces=[*pieces, *stopped()])) as (_, provider):
        async for e in provider.stream(ASK):
            if e.type == "text_delta":
                seen.append(e.delta)
                go.set()
    assert seen == ["a", " b"]


async def test_a_connection_is_used_again():
    """An answer is read to its end, so the next call needs no new connection, whatever its key."""
    async with serving(says("one"), says("two")) as (server, provider):
        await play(provider, api_key="one")
        await play(provider, api_key="two")
        assert server.connections == 1


async def test_all_kinds_of_blocks_come_in_order():
    """Thinking with its signature, redacted thinking, two texts that stay two, two calls."""
    answer = answers(
        thinks(0, "let me think"),
        redacted(1),
        thinks(2, "once more"),
        text(3, "I add."),
        text(4, "Now."),
        calls(5, "toolu_1", "add", '{"a": 1, ', '"b": [2]}'),
        calls(6, "toolu_2", "now"),
        reason="tool_use",
    )
    async with serving(answer) as (_, provider):
        events = await play(provider, LLMRequest(messages=ASK.messages, tools=[ADD]))
    message = events[-1].message
    assert list(message.content) == [
        ThinkingContent("let me think", thinking_signature=sign("let me think", MODEL)),
        ThinkingContent("", thinking_signature=sign("", MODEL), redacted=True),
        ThinkingContent("once more", thinking_signature=sign("once more", MODEL)),
        TextContent("I add."),
        TextContent("Now."),
        ToolCall("toolu_1", "add", {"a": 1, "b": [2]}),
        ToolCall("toolu_2", "now", {}),
    ]
    assert message.stop_reason == StopReason.TOOL_USE
    indexes = {e.type: e.content_index for e in events if e.type.endswith("_start")}
    assert indexes == {"thinking_start": 2, "text_start": 4, "toolcall_start": 6}
    ended = [e.delta for e in events if e.type == "thinking_end"]
    assert ended == ["let me think", "", "once more"]


async def test_every_event_type_comes_and_knows_the_message_so_far():
    """The twelve; each with the partial message and the number of its block."""
    whole = answers(thinks(0, "hmm"), text(1, "so"), calls(2, "c1", "add", "{}"))
    broken = Answer(pieces=[started(), *text(0, "a"), CUT])
    async with serving(whole, broken) as (_, provider):
        request = LLMRequest(messages=ASK.messages, tools=[ADD])
        events = [*await play(provider, request), *await play(provider)]
    assert {e.type for e in events} == {
        "start", "text_start", "text_delta", "text_end", "thinking_start", "thinking_delta",
        "thinking_end", "toolcall_start", "toolcall_delta", "toolcall_end", "done", "error",
    }  # fmt: skip
    assert all(e.partial is not None for e in events)
    delta = next(e for e in events if e.type == "toolcall_delta")
    assert (delta.content_index, delta.delta) == (2, "{}")


async def test_thinking_whose_text_is_withheld_keeps_its_signature():
    """A block without text is a block all the same: it goes back as it came."""
    empty = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "signature_delta", "signature": sign("", MODEL)},
    )
    call = calls(1, "c1", "add", "{}")
    async with serving(answers(empty, call), says("3")) as (server, provider):
        said = (await play(provider, LLMRequest(messages=ASK.messages, tools=[ADD])))[-1].message
        result = ToolResultMessage(tool_call_id="c1", content="3")
        request = LLMRequest(messages=[*ASK.messages, said, result], tools=[ADD])
        assert (await play(provider, request))[-1].type == "done"
    assert server.received[1].body["messages"][1]["content"][0] == {
        "type": "thinking",
        "thinking": "",
        "signature": sign("", MODEL),
    }


async def test_usage_keeps_what_the_cache_served_apart():
    """`input` is without the cached tokens; the counts at the end stand for the whole."""
    pieces = [started(), *text(0, "ok"), *stopped(output_tokens=70, input_tokens=13)]
    async with serving(Answer(pieces=pieces)) as (_, provider):
        message = (await play(provider))[-1].message
    assert message.usage == Usage(
        input=13, output=70, cache_read=400, cache_write=30, total_tokens=513
    )


async def test_the_usage_of_a_broken_answer_is_known():
    """What the beginning said was used is in the message of the error."""
    _, message = await failing(Answer(pieces=[started(), *text(0, "half"), CUT]))
    assert (message.usage.input, message.usage.cache_read) == (12, 400)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", StopReason.STOP),
        ("stop_sequence", StopReason.STOP),
        ("pause_turn", StopReason.STOP),
        ("tool_use", StopReason.STOP),
        ("max_tokens", StopReason.LENGTH),
        ("model_context_window_exceeded", StopReason.LENGTH),
        ("refusal", StopReason.SENSITIVE),
        ("something_new", StopReason.STOP),
    ],
)
async def test_the_reason_to_stop_is_translated(reason, expected):
    """And `tool_use` without a call is an ordinary stop, or the loop would turn for ever."""
    async with serving(answers(text(0, "x"), reason=reason)) as (_, provider):
        assert (await play(provider))[-1].message.stop_reason == expected


async def test_a_call_cut_by_the_length_limit_is_not_run():
    """Its arguments are no JSON: they are kept as they came."""
    answer = answers(calls(0, "c1", "add", '{"a": 1, "b'), reason="max_tokens")
    async with serving(answer) as (_, provider):
        message = (await play(provider))[-1].message
    assert message.stop_reason == StopReason.LENGTH
    assert message.tool_calls == [ToolCall("c1", "add", {}, invalid_arguments='{"a": 1, "b')]


async def test_what_is_not_known_is_skipped():
    """New event types and fields mean nothing to us; a new block is kept as it came."""
    pieces = [
        b": comment\n\n",
        started(),
        event({"type": "brand_new", "index": 0}),
        *block(0, {"type": "server_tool_use", "id": "s1"}, {"type": "new_delta", "x": 1}),
        *text(1, "ok"),
        *stopped(),
    ]
    async with serving(Answer(pieces=pieces)) as (_, provider):
        kept, said = (await play(provider))[-1].message.content
    assert said == TextContent("ok")
    assert (kept.type, kept.item) == ("serverToolCall", {"type": "server_tool_use", "id": "s1"})


async def test_characters_cut_by_the_network_come_whole():
    """Every byte in its own write, with line separators that JSON need not escape."""
    said = "ß 漢字 🙂 \u2028 end"
    whole = b"".join([started(), *text(0, said), *stopped()])
    pieces = [whole[i : i + 1] for i in range(len(whole))]
    async with serving(Answer(pieces=pieces)) as (_, provider):
        assert (await play(provider))[-1].message.text == said


async def test_an_answer_that_was_not_streamed_is_taken():
    """Some servers ignore `stream` and send the whole as JSON."""
    content = [
        {"type": "text", "text": "all at once"},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
    ]
    usage = {"input_tokens": 3, "output_tokens": 4}
    whole = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}
    body = json.dumps(whole).encode()
    answer = Answer(pieces=[body[:20], body[20:]], content_type="application/json")
    async with serving(answer) as (_, provider):
        message = (await play(provider))[-1].message
    assert message.text == "all at once"
    assert message.tool_calls == [ToolCall("c1", "add", {"a": 1})]
    assert message.usage == Usage(input=3, output=4, total_tokens=7)


async def test_one_provider_serves_many_calls_at_once():
    """Answers do not mix."""
    script = [lambda r: says("echo " + r.body["messages"][0]["content"][0]["text"])] * 8
    async with serving(*script) as (_, provider):
        asks = [LLMRequest(messages=[UserMessage(f"n{i}")]) for i in range(8)]
        ends = await asyncio.gather(*(play(provider, ask) for ask in asks))
    assert [e[-1].message.text for e in ends] == [f"echo n{i}" for i in range(8)]


# --- keys --------------------------------------------------------------------------------------


async def test_the_key_of_the_call_wins():
    """Option, then the provider's own, which may be a function asked each time."""
    keys = iter(["first", "second"])

    async def next_key():
        return next(keys)

    async with serving(says("a"), says("b"), says("c"), api_key=next_key) as (server, provider):
        await play(provider)
        await play(provider, api_key="of the call", headers={"X-Trace": "t"})
        await play(provider)
    sent = [r.headers["authorization"] for r in server.received]
    assert sent == ["Bearer first", "Bearer of the call", "Bearer second"]
    # Where servers other than Anthropic's look for it.
    assert [r.headers["x-api-key"] for r in server.received] == ["first", "of the call", "second"]


async def test_the_key_of_the_environment_is_not_sent_to_another_server(monkeypatch):
    """A base URL given by hand gets no key that was meant for Anthropic."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
    async with serving(says("a")) as (server, provider):
        await play(provider)
    assert KEY not in str(server.received[0].headers)


async def test_the_environment_names_server_and_key_together(monkeypatch):
    """ANTHROPIC_BASE_URL with ANTHROPIC_API_KEY; the key is read anew for each call."""
    async with FakeAnthropic(says("a"), says("b")) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        provider = AnthropicProvider(MODEL)
        await play(provider)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        await play(provider)
        await provider.aclose()
    assert server.received[0].headers["authorization"] == "Bearer none"
    assert server.received[1].headers["authorization"] == f"Bearer {KEY}"


async def test_a_missing_key_names_the_variable():
    """At once, unless every call is said to bring its own; then in that call."""
    with pytest.raises(MissingKey, match="ANTHROPIC_API_KEY"):
        AnthropicProvider(MODEL)
    last = (await play(AnthropicProvider(MODEL, api_key="")))[-1]
    assert last.type == "error"
    assert not last.error.retryable
    assert "ANTHROPIC_API_KEY" in str(last.error)


async def test_the_sdk_of_the_user_is_used_as_it_is():
    """A client that was passed in keeps its key and stays open."""
    import anthropic

    async with FakeAnthropic(says("a"), says("b")) as server:
        client = anthropic.AsyncAnthropic(api_key="mine", base_url=server.url, max_retries=0)
        provider = AnthropicProvider(MODEL, client=client)
        await play(provider)
        await provider.aclose()
        await play(provider)
        await client.close()
    assert [r.headers["authorization"] for r in server.received] == ["Bearer mine"] * 2


async def test_a_model_that_is_to_be_retired_is_no_warning_in_our_code():
    """The SDK warns about its age from within; that is for the user to read elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with serving(says("ok"), model="claude-sonnet-4-5-20250929") as (_, provider):
            assert (await play(provider))[-1].type == "done"


# --- what goes wrong ---------------------------------------------------------------------------


async def test_a_disconnect_keeps_what_came():
    """The connection breaks within the answer: worth trying again, the text so far is there."""
    pieces = [started(), *text(0, "half an answer")[:3], CUT]
    error, message = await failing(Answer(pieces=pieces))
    assert isinstance(error, LLMUnavailable)
    assert error.retryable
    assert message.text == "half an"
    assert message.error_message == str(error)


async def test_a_disconnect_drops_the_call_it_cut():
    """A tool call that may lack its end is not announced, though its arguments look complete."""
    pieces = [started(), *calls(0, "c1", "rm", '{"path": "/"}'), CUT]
    _, message = await failing(Answer(pieces=pieces))
    assert message.content == ()


async def test_an_answer_that_just_ends_is_an_error():
    """No reason to stop: the answer is not taken for complete."""
    error, message = await failing(Answer(pieces=[started(), *text(0, "so far")]))
    assert isinstance(error, LLMUnavailable)
    assert message.text == "so far"


@pytest.mark.parametrize("tail", [[], [CUT], [event({"type": "message_stop"}), CUT]])
async def test_the_reason_to_stop_ends_an_answer(tail):
    """What may follow is of no account, even when the connection breaks then."""
    pieces = [started(), *text(0, "all"), stopped()[0], *tail]
    async with serving(Answer(pieces=pieces)) as (_, provider):
        last = (await play(provider))[-1]
    assert (last.type, last.message.text) == ("done", "all")


async def test_a_server_that_never_closes_is_not_waited_for():
    """After the reason to stop only a short while, though the connection stays open."""
    answer = Answer(pieces=[*says("all").pieces, HOLD])
    async with serving(answer) as (server, provider):
        last = (await play(provider))[-1]
        await server.left.wait()
    assert (last.type, last.message.text) == ("done", "all")


async def test_a_stalled_answer_is_given_up():
    """Silence within an answer: the idle timeout ends it, and the connection is closed."""
    answer = Answer(pieces=[started(), *text(0, "hm"), HOLD])
    async with serving(answer, idle_timeout_s=60) as (server, provider):
        last = await given_up(provider, "text_delta", 61)
        await server.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert last.error.retryable
    assert "silent" in str(last.error)
    assert last.message.text == "hm"


async def test_a_server_that_never_speaks_is_given_up():
    """No byte at all: the same timeout, with more patience."""
    async with serving(Answer(gate=asyncio.Event()), idle_timeout_s=60) as (server, provider):
        last = await given_up(provider, server.asked, 181)
        await server.left.wait()
    assert isinstance(last.error, LLMUnavailable)


async def test_a_call_has_a_total_time():
    """A server that keeps talking is cut off at `timeout_s`."""
    ping = event({"type": "ping"})
    answer = Answer(pieces=[started(), *[ping] * 400, HOLD])
    async with serving(answer) as (server, provider):
        last = await given_up(provider, server.held, 61, timeout_s=60)
        await server.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert "time of one call" in str(last.error)


async def test_cancelling_the_reader_closes_the_connection():
    """The server sees the client leave, though it was silent."""
    async with serving(Answer(pieces=[started(), *text(0, "x"), HOLD])) as (server, provider):
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
    async with serving(Answer(pieces=[started(), *text(0, "x"), HOLD])) as (server, provider):
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
    refusal = refuses(429, "slow down", "rate_limit_error", headers=headers)
    error, _ = await failing(refusal)
    assert isinstance(error, RateLimited)
    assert error.retryable
    assert error.retry_after_s == expected


async def test_a_rate_limit_may_name_a_date():
    """An HTTP date counts from now."""
    when = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    refusal = refuses(429, "slow down", "rate_limit_error", headers={"retry-after": when})
    error, _ = await failing(refusal)
    assert 500 < error.retry_after_s <= 600


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
async def test_a_server_failure_may_pass(status):
    """5xx is worth trying again, 529 (overloaded) among them, and its header counts."""
    refusal = refuses(status, "Overloaded", "overloaded_error", headers={"retry-after": "3"})
    error, _ = await failing(refusal)
    assert isinstance(error, LLMUnavailable)
    assert error.retryable
    assert error.facts["retry_after_s"] == 3.0
    assert "Overloaded" in str(error)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", LLMUnavailable),
        ("api_error", LLMUnavailable),
        ("rate_limit_error", RateLimited),
        ("timeout_error", LLMUnavailable),
    ],
)
async def test_an_error_within_the_stream_ends_it(kind, expected):
    """A server that fails after it began says so in an event; what came is kept."""
    broken = event({"type": "error", "error": {"type": kind, "message": "bad day"}})
    error, message = await failing(Answer(pieces=[started(), *text(0, "I"), broken]))
    assert type(error) is expected
    assert error.retryable
    assert message.text == "I"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(402, "billing_error"), (None, "billing_error"), (400, "invalid_request_error")],
)
async def test_what_waiting_does_not_mend_is_not_tried_again(status, kind):
    """No money, or a request that is wrong, is told at once, also within a stream."""
    if status is None:
        broken = event({"type": "error", "error": {"type": kind, "message": "pay"}})
        script = Answer(pieces=[started(), broken])
    else:
        script = refuses(status, "Your credit balance is too low", kind)
    error, _ = await failing(script)
    assert not error.retryable


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ("prompt is too long: 210,417 tokens > 200000 maximum", 200_000),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease",
            200_000,
        ),
    ],
)
async def test_an_overflow_is_told_with_the_limit(message, limit):
    """400 with Anthropic's words."""
    error, _ = await failing(refuses(400, message, "invalid_request_error"))
    assert isinstance(error, ContextOverflow)
    assert error.limit_tokens == limit


async def test_a_request_that_is_too_large_is_an_overflow():
    """413: a shorter history mends it."""
    refusal = refuses(413, "Request exceeds the maximum size", "request_too_large")
    error, _ = await failing(refusal)
    assert isinstance(error, ContextOverflow)


async def test_an_invalid_history_is_told_with_its_place():
    """The server refuses a message; the position is that in the request, merged ones counted."""
    messages = [
        UserMessage("a"),
        UserMessage("b"),
        ToolResultMessage(tool_call_id="c0"),
        UserMessage([TextContent("c")]),
    ]
    refusal = refuses(400, "messages.0.content.1: odd", "invalid_request_error")
    error, _ = await failing(refusal, request=LLMRequest(messages=messages, system_prompt="s"))
    assert isinstance(error, HistoryRejected)
    assert error.position == 0
    assert not error.retryable


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_not_shown(status):
    """The server quotes the key; the error, its facts and the message do not."""
    refusal = refuses(status, f"invalid x-api-key: {KEY}", "authentication_error")
    error, message = await failing(refusal, api_key=KEY)
    assert type(error) is LLMError
    assert not error.retryable
    assert KEY not in f"{error} {error!r} {error.facts} {message} {error.__cause__}"
    assert "ANTHROPIC_API_KEY" in str(error)


async def test_an_unknown_model_is_named():
    """404 says which model, and is not tried again."""
    error, _ = await failing(refuses(404, f"model: {MODEL}", "not_found_error"))
    assert not error.retryable
    assert repr(MODEL) in str(error)


async def test_nobody_listening_may_pass():
    """A refused connection is worth trying again and names the server."""
    async with FakeAnthropic() as server:
        url = server.url
    provider = AnthropicProvider(MODEL, base_url=url)
    last = (await play(provider))[-1]
    await provider.aclose()
    assert isinstance(last.error, LLMUnavailable)
    assert url in str(last.error)


@pytest.mark.parametrize(
    "piece",
    [
        b"data: {not json\n\n",
        b"data: [1]\n\n",
        b"data: \xff\xfe\n\n",
        event({"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta"}}),
        event({"type": "content_block_delta", "index": 0}),
        event({"type": "content_block_start", "content_block": {"type": "text"}}),
        event({"type": "content_block_start", "index": 1, "content_block": "text"}),
        *block(1, {"type": "text", "text": 1})[:1],
        event({"type": "message_delta"}),
    ],
)  # fmt: skip
async def test_garbage_is_no_answer(piece):
    """What is no event ends the call as an invalid response, the text before it kept."""
    error, message = await failing(Answer(pieces=[started(), *text(0, "so"), piece]))
    assert isinstance(error, InvalidLLMResponse)
    assert message.text == "so"


async def test_a_web_page_is_no_answer():
    """The SDK adds /v1 itself, and the error says so."""
    page = Answer(pieces=[b"<html>Welcome</html>"], content_type="text/html; charset=utf-8")
    error, _ = await failing(page)
    assert isinstance(error, InvalidLLMResponse)
    assert "/v1" in str(error)
