"""What the answers and failures of the three APIs become: a table of each, one test for both."""

from __future__ import annotations

import json

import pytest
from tests.wire import fake_anthropic, fake_openai, fake_responses
from tests.wire.fake_anthropic import started
from tests.wire.fake_openai import CUT, DONE, UNANSWERED, Answer, chunk
from tests.wire.fake_responses import answers, calls, reasons, speaks, sse
from tests.wire.three import ADD, ASK, failing, play, serving

from looopy.errors import (
    ContextOverflow,
    HistoryRejected,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    RateLimited,
)
from looopy.types.message import (
    AssistantMessage,
    ServerToolCall,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import LLMRequest

CHAT, RESPONSES, MESSAGES = "completions", "responses", "anthropic"
STOP, TOOL_USE, LENGTH = StopReason.STOP, StopReason.TOOL_USE, StopReason.LENGTH
TWO = [ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "sub", {"b": 2})]


def chat(*pieces):
    """An answer of chat completions."""
    return Answer(pieces=[*pieces, DONE])


def piece(index, call_id=None, **function):
    """A piece of a call of chat completions."""
    return chunk({"tool_calls": [{"index": index, "id": call_id, "function": function}]})


def unstreamed(whole):
    """An answer of a server that ignores `stream`."""
    body = json.dumps(whole).encode()
    return Answer(pieces=[body[:20], body[20:]], content_type="application/json")


def claude(*blocks, end=(), reason="end_turn"):
    """An answer of the Messages API."""
    if end:
        return Answer(pieces=[started(), *(one for block in blocks for one in block), *end])
    return fake_anthropic.answers(*blocks, reason=reason)


def signs(number, place):
    """A thought of the Responses API."""
    return reasons(place, encrypted=f"gAAA{number}", item_id=f"rs_{number}")


def signature(number=""):
    """What is kept of it."""
    return f'{{"id":"rs_{number or 1}","encrypted_content":"gAAA{number}"}}'


FIRST, SECOND = (list(calls(i, c.id, c.name, json.dumps(c.arguments))) for i, c in enumerate(TWO))
WHOLE = list(calls(1, "c2", "sub", '{"b": 2}', pieces=0))
SAYS = {"type": "message", "content": [{"type": "output_text", "text": "all"}]}
SAYS_ALL = chat(chunk({"content": "all"})).pieces
CALLS = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
SEARCH = {"type": "web_search_call"}
USES = {"type": "server_tool_use", "id": "s1"}
CACHED = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 60},
}
SMALL = Usage(input=3, output=4, total_tokens=7)
# What an answer is about: its API, the answer, and fields of the message that it becomes.
ANSWERS = {
    "usage without what the cache served, chat": (
        *(CHAT, fake_openai.says("ok", usage=CACHED)),
        {"usage": Usage(input=40, output=7, cache_read=60, total_tokens=107)},
    ),
    "usage without what the cache served, responses": (
        *(RESPONSES, fake_responses.replies("ok")),
        {"usage": Usage(input=4, output=4, cache_read=6, total_tokens=14, reasoning=2)},
    ),
    "usage of the end instead of the start": (
        *(MESSAGES, claude(end=fake_anthropic.stopped(output_tokens=70, input_tokens=13))),
        {"usage": Usage(input=13, output=70, cache_read=400, cache_write=30, total_tokens=513)},
    ),
    "no usage": (CHAT, fake_openai.says("ok", usage=None), {"usage": Usage(), "text": "ok"}),
    "arguments in pieces": (
        CHAT,
        chat(
            piece(0, "c1", name="add"),
            *(piece(0, arguments=part) for part in ('{"a', '": 1, "', 'b": [2]', "}")),
            chunk(finish="tool_calls"),
        ),
        {"tool_calls": [ToolCall("c1", "add", {"a": 1, "b": [2]})], "stop_reason": TOOL_USE},
    ),
    "two calls whose pieces alternate, chat": (
        CHAT,
        chat(
            *(piece(0, "c1", name="add"), piece(1, "c2", name="sub")),
            *(piece(0, arguments='{"a":'), piece(1, arguments='{"b":2}')),
            *(piece(0, arguments="1}"), chunk(finish="tool_calls")),
        ),
        {"tool_calls": TWO},
    ),
    "two calls whose pieces alternate, responses": (
        RESPONSES,
        answers([one for pair in zip(FIRST, SECOND, strict=True) for one in pair]),
        {"tool_calls": TWO, "stop_reason": TOOL_USE},
    ),
    "a whole call amid another": (
        RESPONSES,
        answers([FIRST[0], WHOLE[0], FIRST[1], *WHOLE[1:], *FIRST[2:]]),
        {"tool_calls": TWO},
    ),
    "whole calls that all have number 0": (
        CHAT,
        chat(*(piece(0, i, name="add", arguments="{}") for i in "ab"), chunk(finish="stop")),
        {"tool_calls": [ToolCall("a", "add"), ToolCall("b", "add")], "stop_reason": TOOL_USE},
    ),
    "whole calls without a number": (
        CHAT,
        chat(*(piece(None, i, name="add", arguments="{}") for i in "ab"), chunk(finish="stop")),
        {"tool_calls": [ToolCall("a", "add"), ToolCall("b", "add")], "stop_reason": TOOL_USE},
    ),
    "a call cut by the length limit": (
        MESSAGES,
        claude(fake_anthropic.calls(0, "c1", "add", '{"a": 1, "b'), reason="max_tokens"),
        {
            "tool_calls": [ToolCall("c1", "add", {}, invalid_arguments='{"a": 1, "b')],
            "stop_reason": LENGTH,
        },
    ),
    "thinking in parts": (
        *(RESPONSES, answers(reasons(0, "First this.", "Then that."), speaks(1, "Done."))),
        {
            "content": (
                ThinkingContent("First this. \n\nThen that. ", thinking_signature=signature()),
                TextContent("Done."),
            )
        },
    ),
    "thinking without a summary": (
        *(RESPONSES, answers(reasons(0), speaks(1, "Done."))),
        {"content": (ThinkingContent("", thinking_signature=signature()), TextContent("Done."))},
    ),
    "two thoughts": (
        *(RESPONSES, answers(signs(1, 0), signs(2, 1), speaks(2, "Done."))),
        {
            "content": (
                ThinkingContent("", thinking_signature=signature(1)),
                ThinkingContent("", thinking_signature=signature(2)),
                TextContent("Done."),
            )
        },
    ),
    "items without pieces": (
        RESPONSES,
        answers(
            sse("response.output_item.done", output_index=place, item=item)
            for place, item in enumerate((SAYS, SAYS, CALLS))
        ),
        {"content": (TextContent("all"), TextContent("all"), TWO[0])},
    ),
    "a refusal as text": (
        *(RESPONSES, answers(sse("response.refusal.delta", output_index=0, delta="No."))),
        {"text": "No."},
    ),
    "chunks that say nothing, and comments": (
        CHAT,
        chat(
            *(b": waiting\n\n", chunk(), b"event: x\nid: 1\n" + chunk({"content": "ok"})),
            fake_openai.event({"choices": [], "prompt_filter_results": []}),
            chunk(finish="stop"),
        ),
        {"text": "ok"},
    ),
    "unknown events and items, responses": (
        RESPONSES,
        answers(
            sse("response.something.new", output_index=0, delta="?"),
            sse("response.output_item.added", output_index=0, item=SEARCH),
            sse("response.output_item.done", output_index=0, item=SEARCH),
            *(b": waiting\n\n", speaks(1, "ok")),
        ),
        {"content": (ServerToolCall("", "web_search", item=SEARCH), TextContent("ok"))},
    ),
    "unknown events and blocks, messages": (
        MESSAGES,
        claude(
            [b": comment\n\n", fake_anthropic.event({"type": "brand_new", "index": 0})],
            fake_anthropic.block(0, USES, {"type": "new_delta", "x": 1}),
            fake_anthropic.text(1, "ok"),
        ),
        {"content": (ServerToolCall("s1", "server_tool_use", item=USES), TextContent("ok"))},
    ),
    "unstreamed, chat": (
        CHAT,
        unstreamed(
            {
                "choices": [{"index": 0, "message": {"content": "all"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 4},
            }
        ),
        {"text": "all", "usage": SMALL},
    ),
    "events labelled as JSON, after a byte order mark and without blank lines": (
        CHAT,
        Answer(
            pieces=[b"\xef\xbb\xbf", *(one.rstrip() + b"\n" for one in SAYS_ALL)],
            content_type="application/json",
        ),
        {"text": "all"},
    ),
    "JSON on each line": (
        CHAT,
        Answer(
            pieces=[one.removeprefix(b"data: ") for one in SAYS_ALL],
            content_type="application/x-ndjson",
        ),
        {"text": "all"},
    ),
    "no word at the end of a turn, messages": (
        MESSAGES, claude(reason="end_turn"), {"content": (), "stop_reason": STOP}
    ),
    "unstreamed, responses": (
        RESPONSES,
        unstreamed(
            {
                "object": "response",
                "status": "completed",
                "output": [
                    {
                        "type": "reasoning",
                        "id": "rs_1",
                        "summary": [{"type": "summary_text", "text": "Hm."}],
                        "encrypted_content": "gAAA",
                    },
                    SAYS,
                ],
                "usage": {"input_tokens": 3, "output_tokens": 4},
            }
        ),
        {"text": "all", "thinking_text": "Hm.", "usage": SMALL},
    ),
    "unstreamed, messages": (
        MESSAGES,
        unstreamed(
            {
                "type": "message",
                "content": [
                    {"type": "text", "text": "all"},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                ],
                "stop_reason": "tool_use",
                "usage": {"input_tokens": 3, "output_tokens": 4},
            }
        ),
        {"content": (TextContent("all"), TWO[0]), "usage": SMALL},
    ),
    # A call is what ends in a use of tools; without one, the loop would turn for ever.
    **{
        f"{reason}, chat": (
            CHAT, chat(chunk({"content": "x"}), chunk(finish=reason)), {"stop_reason": expected}
        )
        for reason, expected in (
            ("stop", STOP), ("length", LENGTH), ("content_filter", StopReason.SENSITIVE),
            ("tool_calls", STOP), ("SAFETY", StopReason.SENSITIVE), ("MAX_TOKENS", LENGTH),
        )
    },
    **{
        f"{reason}, messages": (
            MESSAGES, claude(fake_anthropic.text(0, "x"), reason=reason), {"stop_reason": expected}
        )
        for reason, expected in (
            ("end_turn", STOP), ("stop_sequence", STOP), ("pause_turn", STOP), ("tool_use", STOP),
            ("max_tokens", LENGTH), ("model_context_window_exceeded", LENGTH),
            ("refusal", StopReason.SENSITIVE), ("something_new", STOP),
        )
    },
    **{
        f"{status} by {reason}, responses": (
            RESPONSES,
            answers(speaks(0, "x"), status=status, incomplete_details={"reason": reason}),
            {"stop_reason": expected},
        )
        for status, reason, expected in (
            ("completed", None, STOP), ("incomplete", "max_output_tokens", LENGTH),
            ("incomplete", "content_filter", StopReason.SENSITIVE),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize(("api", "answer", "expected"), ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_becomes_a_message(api, answer, expected):
    """Its fields; each call is announced as it is in the message."""
    async with serving(api, answer) as (_, made):
        events = await play(made, LLMRequest(messages=ASK.messages, tools=[ADD]))
    assert events[-1].type == "done", events[-1].error
    message = events[-1].message
    assert {name: getattr(message, name) for name in expected} == expected
    assert [e.tool_call for e in events if e.type == "toolcall_end"] == message.tool_calls


def within(said, kind):
    """An answer of the Responses API that fails after it began, in one of the forms of that."""
    failed = {
        "error": sse("error", param=None, sequence_number=9, **said),
        "nested": sse("error", error={"type": "error", **said}),
        "failed": sse("response.failed", response={"status": "failed", "error": said}),
    }
    return Answer(pieces=[*list(speaks(0, "I was"))[:3], failed[kind]])


def claude_fails(kind, *before):
    """An answer of the Messages API that fails after it began."""
    failed = fake_anthropic.event({"type": "error", "error": {"type": kind, "message": "no"}})
    return Answer(pieces=[started(), *before, failed])


def refused(api, *args, **more):
    """A refusal, in words of the vendor."""
    fake = fake_anthropic if api == MESSAGES else fake_openai
    return (api, fake.refuses(*args, **more))


FULL = "This model's maximum context length is 8,192 tokens. However, you asked for 9000."
BODY = {"error": {"code": 400, "message": "exceeds the available context size", "n_ctx": 4096}}
INVALID = "invalid_request_error"
# The API and the answer, the error, and fields of it or of the message that carries it.
FAILURES = {
    "a spent quota": (
        *refused(CHAT, 429, "check your plan", code="insufficient_quota"),
        *(RateLimited, {"retryable": False}),
    ),
    "a full window, chat": (
        *refused(CHAT, 400, FULL, code="context_length_exceeded"),
        *(ContextOverflow, {"limit_tokens": 8192}),
    ),
    "a full window within, chat": (
        *(CHAT, Answer(pieces=[fake_openai.event(BODY)])),
        *(ContextOverflow, {"limit_tokens": 4096}),
    ),
    "a full window, responses": (
        *refused(RESPONSES, 400, "Your input exceeds the context window of this model.",
                 code="context_length_exceeded", param="input"),
        *(ContextOverflow, {"retryable": False}),
    ),
    "a full window, messages": (
        *refused(MESSAGES, 400, "prompt is too long: 210,417 tokens > 200000 maximum", INVALID),
        *(ContextOverflow, {"limit_tokens": 200_000}),
    ),
    "a full window with the answer, messages": (
        *refused(MESSAGES, 400, "input length and `max_tokens` exceed context limit: 190000 + 20000"
                 " > 200000, decrease", INVALID),
        *(ContextOverflow, {"limit_tokens": 200_000}),
    ),
    "a request that is too large": (
        *refused(MESSAGES, 413, "Request exceeds the maximum size", "request_too_large"),
        *(ContextOverflow, {"retryable": False}),
    ),
    "no money": (
        *refused(MESSAGES, 402, "Your credit balance is too low", "billing_error"),
        *(LLMError, {"retryable": False}),
    ),
    "no money within": (
        MESSAGES, claude_fails("billing_error"), LLMError, {"retryable": False}
    ),
    "a wrong request": (
        *refused(MESSAGES, 400, "Your credit balance is too low", INVALID),
        *(LLMError, {"retryable": False}),
    ),
    **{
        f"nothing said, {name}": (api, answer, InvalidLLMResponse, {"retryable": True})
        for name, api, answer in (
            ("chat", CHAT, chat(chunk({"content": " "}), chunk(finish="stop"))),
            ("only thoughts, chat", CHAT, chat(chunk({"reasoning": "h"}), chunk(finish="stop"))),
            ("unknown reason, chat", CHAT, chat(chunk(finish="malformed_function_call"))),
            ("no reason, chat", CHAT, chat()),
            ("responses", RESPONSES, answers()),
            ("only thoughts, responses", RESPONSES, answers(reasons(0, "h"))),
            ("unknown reason, responses", RESPONSES,
             answers(status="incomplete", incomplete_details={"reason": "lost"})),
            ("unknown reason, messages", MESSAGES, claude(reason="lost")),
            ("tools without a call, messages", MESSAGES, claude(reason="tool_use")),
        )
    },
    "a miswritten call": (
        *refused(CHAT, 400, "Failed to call a function.", code="tool_use_failed"),
        *(InvalidLLMResponse, {"retryable": True, "unbilled": False}),
    ),
    "a miswritten call within": (
        CHAT,
        Answer(pieces=[fake_openai.event({"error": {"code": "tool_use_failed", "message": "no"}})]),
        *(InvalidLLMResponse, {"retryable": True}),
    ),
    "a spent quota within": (
        RESPONSES, within({"code": "insufficient_quota", "message": "no"}, "failed"),
        *(RateLimited, {"retryable": False}),
    ),
    "a spent balance": (*refused(CHAT, 402, "Insufficient Balance"), LLMError, {"status": 402}),
    "a spent balance, messages": (
        *refused(MESSAGES, 400, "Your credit balance is too low", INVALID),
        *(LLMError, {"status": 402}),
    ),
    "a failure within, chat": (
        CHAT,
        Answer(pieces=[
            chunk({"content": "I"}), fake_openai.event({"error": {"message": "Overloaded"}})
        ]),
        *(LLMUnavailable, {"text": "I"}),
    ),
    **{
        f"{kind} within": (
            *(MESSAGES, claude_fails(kind, *fake_anthropic.text(0, "I"))),
            *(error, {"retryable": True, "text": "I"}),
        )
        for kind, error in (
            ("overloaded_error", LLMUnavailable), ("api_error", LLMUnavailable),
            ("rate_limit_error", RateLimited), ("timeout_error", LLMUnavailable),
        )
    },
    **{
        f"{code} within, {kind}": (
            *(RESPONSES, within({"code": code, "message": "An error."}, kind), error),
            {"retryable": retryable, "text": "I"},
        )
        for kind in ("error", "nested", "failed")
        for code, error, retryable in (
            ("server_error", LLMUnavailable, True), ("rate_limit_exceeded", RateLimited, True),
            ("context_length_exceeded", ContextOverflow, False),
            ("invalid_prompt", LLMError, False), (None, LLMUnavailable, True),
        )
    },
    "usage before a break": (
        *(MESSAGES, Answer(pieces=[started(), *fake_anthropic.text(0, "half"), CUT])),
        *(LLMUnavailable, {"tokens": (12, 400)}),
    ),
    "usage of a failed answer": (
        *(RESPONSES, Answer(pieces=[
            fake_responses.ends("failed", error={"code": "server_error", "message": "x"})
        ])),
        *(LLMUnavailable, {"tokens": (4, 6)}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("api", "answer", "kind", "expected"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_becomes_an_error(api, answer, kind, expected):
    """Its type and fields; what came before it, and what it used, are in the message."""
    error, message = await failing(api, answer)
    assert type(error) is kind
    usage = message.usage
    found = {"text": message.text, "tokens": (usage.input, usage.cache_read)}
    found |= {name: getattr(error, name) for name in expected if name not in found}
    assert {name: found[name] for name in expected} == expected


BAD_THOUGHT = ThinkingContent("h", thinking_signature='{"id":"r","encrypted_content":"bad"}')


@pytest.mark.parametrize(
    ("api", "messages", "refusal", "position"),
    [
        (CHAT, [UserMessage("a"), AssistantMessage([TWO[0]]), UserMessage("b")], None, 2),
        (
            MESSAGES,
            [UserMessage("a"), UserMessage("b"), ToolResultMessage(tool_call_id="c0")],
            fake_anthropic.refuses(400, "messages.0.content.1: odd", INVALID),
            0,
        ),
        (
            RESPONSES,
            [
                UserMessage("a"),
                AssistantMessage(
                    [TextContent("a"), BAD_THOUGHT, TextContent("b")],
                    provider="openai",
                    api="openai-responses",
                ),
                UserMessage("b"),
            ],
            *(None, 1),
        ),
        (RESPONSES, [UserMessage("a"), AssistantMessage([TWO[0]])], None, None),
    ],
    ids=["chat", "messages", "responses", "responses without a place"],
)
async def test_an_invalid_history_is_refused_with_its_place(api, messages, refusal, position):
    """The position in the request, merged messages counted, system prompt aside."""
    request = LLMRequest(messages=messages, system_prompt="s")
    error, _ = await failing(api, *[refusal] * (refusal is not None), request=request)
    assert isinstance(error, HistoryRejected)
    assert (error.position, error.retryable) == (position, False)
    assert api != CHAT or UNANSWERED in str(error)
