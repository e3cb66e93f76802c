"""AnthropicProvider through the real SDK and real sockets: the Messages API and its rules."""

from __future__ import annotations

import warnings
from functools import partial

from tests.wire import fake_anthropic, three
from tests.wire.fake_anthropic import (
    MODEL,
    answers,
    block,
    calls,
    redacted,
    says,
    sign,
    started,
    text,
    thinks,
)
from tests.wire.fake_openai import CUT, Answer
from tests.wire.three import ADD, ASK, play

from looopy.types.message import (
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
)
from looopy.types.request import LLMRequest

serving = partial(three.serving, "anthropic")


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


async def test_thinking_without_its_text_keeps_its_signature():
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


async def test_a_model_that_is_to_be_retired_is_no_warning_in_our_code():
    """The SDK warns about its age from within; that is for the user to read elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with serving(says("ok"), model="claude-sonnet-4-5-20250929") as (_, provider):
            assert (await play(provider))[-1].type == "done"


async def test_a_turn_that_claude_ends_without_a_word_has_a_warning():
    """Claude may end its turn so after a tool's result; one without an answer shows a warning."""
    told = []
    async with serving(fake_anthropic.answers(), says("ok")) as (_, provider):
        for _ in range(2):
            last = (await play(provider, warn=lambda code, _: told.append(code)))[-1]
            assert last.type == "done"
    assert told == ["empty_answer"]
