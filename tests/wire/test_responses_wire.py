"""OpenAI's Responses API through the real SDK and real sockets, against a strict server."""

from __future__ import annotations

import json
from functools import partial

import pytest
from tests.wire import three
from tests.wire.fake_openai import Answer, refuses
from tests.wire.fake_responses import (
    answers,
    calls,
    ends,
    reasons,
    replies,
    speaks,
    sse,
)
from tests.wire.three import ADD, ASK, PNG, play

from looopy import Agent, LoopConfig, tool
from looopy.errors import (
    ConfigurationError,
    ContextOverflow,
    HistoryRejected,
    LLMError,
    LLMUnavailable,
    RateLimited,
    UnsupportedOption,
)
from looopy.llm import render, resolve_provider
from looopy.llm.openai.provider import OpenAIProvider
from looopy.types.message import (
    AssistantMessage,
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
API = "responses"
serving = partial(three.serving, API)
failing = partial(three.failing, API)
answered = partial(three.answered, API)


async def sent(request=ASK, *, official=False, monkeypatch=None, **options):
    """The body of one request."""
    async with serving(replies("ok")) as (server, provider):
        if official:
            monkeypatch.setattr(OpenAIProvider, "_official", True)
        last = (await play(provider, request, **options))[-1]
    assert last.type == "done", last.error
    return server.received[0]


# --- what comes ------------------------------------------------------------------------------


async def test_usage_leaves_out_what_the_cache_served():
    """`input` and `cache_read` are apart; the total is the server's."""
    message = await answered(replies("ok"))
    assert message.usage == Usage(input=4, output=4, cache_read=6, total_tokens=14, reasoning=2)


async def test_thinking_comes_in_parts_and_is_signed():
    """The summary's parts are apart by an empty line; the encrypted whole is the signature."""
    message = await answered(answers(reasons(0, "First this.", "Then that."), speaks(1, "Done.")))
    thinking, text = message.content
    assert thinking.thinking == "First this. \n\nThen that. "
    assert json.loads(thinking.thinking_signature) == {"id": "rs_1", "encrypted_content": "gAAA"}
    assert text == TextContent("Done.")


async def test_thinking_that_nobody_may_read_is_kept():
    """No summary, only the encrypted whole."""
    message = await answered(answers(reasons(0), speaks(1, "Done.")))
    assert message.content[0].thinking == ""
    assert "gAAA" in message.content[0].thinking_signature


async def test_two_thoughts_are_two_blocks():
    """Each signature covers one."""
    one = reasons(0, encrypted="gAAA1", item_id="rs_1")
    two = reasons(1, encrypted="gAAA2", item_id="rs_2")
    message = await answered(answers(one, two, speaks(2, "Done.")))
    signed = [json.loads(b.thinking_signature) for b in message.content[:2]]
    assert [s["encrypted_content"] for s in signed] == ["gAAA1", "gAAA2"]


async def test_calls_come_in_pieces():
    """Several, each with its arguments; the reason to stop follows from what is there."""
    message = await answered(
        answers(calls(0, "c1", "add", '{"a": 1, "b": 2}'), calls(1, "c2", "add", "{}", pieces=0))
    )
    assert message.tool_calls == [ToolCall("c1", "add", {"a": 1, "b": 2}), ToolCall("c2", "add")]
    assert message.stop_reason == StopReason.TOOL_USE


async def test_calls_whose_pieces_alternate_are_kept_apart():
    """Each piece names the place of its item."""
    one, two = list(calls(0, "c1", "add", '{"a": 1}')), list(calls(1, "c2", "sub", '{"b": 2}'))
    mixed = [piece for pair in zip(one, two, strict=True) for piece in pair]
    message = await answered(answers(mixed))
    assert message.tool_calls == [ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "sub", {"b": 2})]


async def test_a_call_that_comes_whole_amid_another_is_whole():
    """What came in pieces is known of each item by itself."""
    one = list(calls(0, "c1", "add", '{"a": 1}'))
    called = list(calls(1, "c2", "sub", '{"b": 2}', pieces=0))
    message = await answered(answers([one[0], called[0], one[1], *called[1:], *one[2:]]))
    assert message.tool_calls == [ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "sub", {"b": 2})]


async def test_items_that_come_only_whole_are_taken():
    """A server may leave the pieces out."""
    whole = {"type": "message", "content": [{"type": "output_text", "text": "all"}]}
    called = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
    pieces = [
        sse("response.output_item.done", output_index=index, item=item)
        for index, item in enumerate((whole, whole, called))
    ]
    message = await answered(answers(pieces))
    assert message.content[:2] == (TextContent("all"), TextContent("all"))
    assert message.tool_calls == [ToolCall("c1", "add", {"a": 1})]


async def test_an_answer_that_was_not_streamed_is_taken():
    """Some servers ignore `stream` and send the whole as JSON."""
    whole = {
        "object": "response",
        "status": "completed",
        "output": [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Hm."}],
                "encrypted_content": "gAAA",
            },
            {"type": "message", "content": [{"type": "output_text", "text": "all at once"}]},
        ],
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    body = json.dumps(whole).encode()
    message = await answered(Answer(pieces=[body[:20], body[20:]], content_type="application/json"))
    assert (message.text, message.thinking_text) == ("all at once", "Hm.")
    assert message.usage == Usage(input=3, output=4, total_tokens=7)


async def test_a_refusal_is_text():
    """What the model will not say, it says so."""
    piece = sse("response.refusal.delta", output_index=0, delta="No.")
    assert (await answered(answers([piece]))).text == "No."


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("completed", None, StopReason.STOP),
        ("incomplete", "max_output_tokens", StopReason.LENGTH),
        ("incomplete", "content_filter", StopReason.SENSITIVE),
    ],
)
async def test_the_reason_to_finish_is_translated(status, reason, expected):
    """An answer that is not complete says why."""
    given = answers(speaks(0, "x"), status=status, incomplete_details={"reason": reason})
    assert (await answered(given)).stop_reason == expected


async def test_what_is_not_known_is_skipped():
    """Events that a later API may bring; its items are kept as they came."""
    odd = [
        sse("response.something.new", output_index=0, delta="?"),
        sse("response.output_item.added", output_index=0, item={"type": "web_search_call"}),
        sse("response.output_item.done", output_index=0, item={"type": "web_search_call"}),
        b": waiting\n\n",
    ]
    kept, said = (await answered(answers(odd, speaks(1, "ok")))).content
    assert said == TextContent("ok")
    assert (kept.type, kept.item) == ("serverToolCall", {"type": "web_search_call"})


# --- what is sent ----------------------------------------------------------------------------


async def test_a_request_keeps_nothing_at_the_server():
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


async def test_temperature_reaches_the_wire():
    """As it is."""
    assert (await sent(temperature=0.25)).body["temperature"] == 0.25


async def test_max_tokens_reaches_the_wire():
    """Under this format's name."""
    assert (await sent(max_tokens=77)).body["max_output_tokens"] == 77


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


async def test_the_model_of_the_request_reaches_the_wire():
    """It wins over the provider's."""
    assert (await sent(LLMRequest(messages=ASK.messages, model="other"))).body["model"] == "other"


async def test_extra_fields_go_over_ours():
    """What we do not know can be said as well."""
    async with serving(replies("ok"), extra_body={"store": False, "temperature": 1}) as (s, p):
        await play(p, temperature=0.5)
    assert s.received[0].body["temperature"] == 1


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


# --- what fails ------------------------------------------------------------------------------


async def test_a_full_window_is_recognised():
    """400 with OpenAI's words."""
    text = "Your input exceeds the context window of this model."
    error, _ = await failing(refuses(400, text, code="context_length_exceeded", param="input"))
    assert isinstance(error, ContextOverflow)


async def test_an_invalid_history_is_told_with_its_place():
    """The server refuses an item; the position is that of its message."""
    signed = ThinkingContent("h", thinking_signature='{"id":"r","encrypted_content":"bad"}')
    said = AssistantMessage(
        [TextContent("a"), signed, TextContent("b")], provider="openai", api="openai-responses"
    )
    request = LLMRequest(messages=[UserMessage("a"), said, UserMessage("b")])
    error, _ = await failing(request=request)
    assert isinstance(error, HistoryRejected)
    assert error.position == 1


async def test_a_history_with_an_open_call_is_refused():
    """The server names no place then."""
    request = LLMRequest(messages=[UserMessage("a"), AssistantMessage([ToolCall("c1", "add")])])
    error, _ = await failing(request=request)
    assert isinstance(error, HistoryRejected)


@pytest.mark.parametrize(
    ("said", "kind", "retryable"),
    [
        ({"code": "server_error", "message": "Try again."}, LLMUnavailable, True),
        ({"code": "rate_limit_exceeded", "message": "Slow down."}, RateLimited, True),
        ({"code": "context_length_exceeded", "message": "Too long."}, ContextOverflow, False),
        ({"code": "invalid_prompt", "message": "Not this."}, LLMError, False),
        ({"code": None, "message": "An error occurred."}, LLMUnavailable, True),
    ],
)
@pytest.mark.parametrize("kind_of_event", ["error", "nested", "failed"])
async def test_an_error_within_the_stream_ends_it(said, kind, retryable, kind_of_event):
    """In each of the forms it comes in; what was said is kept."""
    piece = {
        "error": sse("error", param=None, sequence_number=9, **said),
        "nested": sse("error", error={"type": "error", **said}),
        "failed": sse("response.failed", response={"status": "failed", "error": said}),
    }[kind_of_event]
    error, message = await failing(Answer(pieces=[*list(speaks(0, "I was"))[:3], piece]))
    assert type(error) is kind
    assert error.retryable is retryable
    assert message.text == "I"


async def test_what_a_failed_answer_used_is_counted():
    """The server says it with the failure."""
    failed = ends("failed", error={"code": "server_error", "message": "x"})
    _, message = await failing(Answer(pieces=[failed]))
    assert message.usage.total_tokens == 14


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
