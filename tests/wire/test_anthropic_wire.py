"""AnthropicProvider through the real SDK and real sockets: the Messages API and its rules."""

from __future__ import annotations

import json
import warnings
from functools import partial

import pytest
from tests.wire import three
from tests.wire.fake_anthropic import (
    MODEL,
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
from tests.wire.fake_openai import CUT, Answer
from tests.wire.three import ADD, ASK, play

from looopy.errors import (
    ContextOverflow,
    HistoryRejected,
    LLMUnavailable,
    RateLimited,
)
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

API = "anthropic"
serving = partial(three.serving, API)
failing = partial(three.failing, API)


# --- what comes --------------------------------------------------------------------------------


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


async def test_a_model_that_is_to_be_retired_is_no_warning_in_our_code():
    """The SDK warns about its age from within; that is for the user to read elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with serving(says("ok"), model="claude-sonnet-4-5-20250929") as (_, provider):
            assert (await play(provider))[-1].type == "done"


# --- what goes wrong ---------------------------------------------------------------------------


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
