"""What of the chat-completions format needs no server to be seen."""

from __future__ import annotations

import pytest

from looopy.llm.openai.chat import read_usage, to_body
from looopy.types.message import (
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions, ThinkingLevel

ASK = LLMRequest(messages=[UserMessage("hi")])


def body(request=ASK, *, provider="p", official=False, vendor="", **options):
    return to_body(
        request,
        StreamOptions(**options),
        provider=provider,
        model="m",
        official=official,
        vendor=vendor,
    )[0]


def test_unset_options_are_not_sent():
    """The server's own defaults hold."""
    assert body() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }


def test_fields_that_only_openai_knows_go_only_there():
    """Others refuse what they do not know, or know it by its old name."""
    ours = body(official=True, max_tokens=5, session_id="s", thinking_level=ThinkingLevel.XHIGH)
    other = body(max_tokens=5, session_id="s", thinking_level=ThinkingLevel.XHIGH)
    assert (ours["max_completion_tokens"], len(ours["prompt_cache_key"])) == (5, 32)
    assert ours["reasoning_effort"] == "xhigh"
    assert (other["max_tokens"], other["reasoning_effort"]) == (5, "high")
    assert "prompt_cache_key" not in other


def test_a_thinking_budget_goes_where_a_number_is_understood():
    """Elsewhere its level is sent."""
    options = {"thinking_level": ThinkingLevel.LOW, "thinking_budgets": {"low": 2048}}
    assert body(vendor="openrouter", **options)["reasoning"] == {"max_tokens": 2048}
    assert body(**options)["reasoning_effort"] == "low"


def test_thinking_is_turned_off_where_that_has_a_word():
    """Elsewhere it is left to the model, as the word would be refused."""
    assert body(official=True, thinking_level=ThinkingLevel.OFF)["reasoning_effort"] == "none"
    sent = body(vendor="openrouter", thinking_level=ThinkingLevel.OFF)
    assert sent["reasoning"] == {"effort": "none"}
    assert "reasoning_effort" not in body(thinking_level=ThinkingLevel.OFF)


@pytest.mark.parametrize("choice", ["auto", "none", "required", "add"])
def test_a_choice_without_tools_is_not_sent(choice):
    """Servers refuse it."""
    assert "tool_choice" not in body(tool_choice=choice)


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "required": ["a"],
                "additionalProperties": False,
            },
            True,
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "object"}},
                "required": ["a"],
                "additionalProperties": False,
            },
            False,
        ),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {}}, True),
    ],
)
def test_strict_mode_is_asked_for_where_the_schema_allows_it(schema, strict):
    """An open object stays open; any other is closed, and all its properties are required."""
    assert body(output_schema=schema)["response_format"]["json_schema"]["strict"] is strict


@pytest.mark.parametrize(
    ("server", "longest", "kept"),
    [
        ({}, 30, True),
        ({"vendor": "ollama"}, 30, True),
        ({}, 1001, False),
        ({"vendor": "openrouter"}, 30, False),
        ({"official": True}, 30, False),
    ],
)
def test_a_server_with_a_grammar_holds_texts_to_their_length(server, longest, kept):
    """Else a small model may write one text until it is cut; OpenAI gets the length in words."""
    text = {"type": "string", "minLength": 1, "maxLength": longest}
    schema = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    form = body(output_schema=schema, **server)["response_format"]["json_schema"]["schema"]
    sent = form["properties"]["a"]
    assert sent == text if kept else f"maxLength: {longest}" in sent["description"]
    assert ("maxLength" in sent) is kept


def test_names_and_ids_that_servers_refuse_are_made_fit():
    """A model called a tool by an odd name, an id came from elsewhere; call and result agree."""
    long_id = "call|" + "x" * 400
    messages = [
        UserMessage("a"),
        AssistantMessage([ToolCall(long_id, "my tool!"), ToolCall("c", "")]),
        ToolResultMessage(tool_call_id=long_id, content=[TextContent("ok")]),
        ToolResultMessage(tool_call_id="c"),
    ]
    _, assistant, first, second = body(LLMRequest(messages=messages))["messages"]
    names = [c["function"]["name"] for c in assistant["tool_calls"]]
    assert names == ["my_tool_", "unknown"]
    sent = assistant["tool_calls"][0]["id"]
    assert len(sent) <= 40
    assert first["tool_call_id"] == sent
    assert second["content"] == "(no output)"


def test_an_empty_answer_is_left_out():
    """Servers refuse a message with neither content nor calls; places still point home."""
    request = LLMRequest(messages=[UserMessage("a"), AssistantMessage([]), UserMessage("b")])
    sent, sources = to_body(request, StreamOptions(), provider="p", model="m", official=False)
    assert [m["content"] for m in sent["messages"]] == ["a", "b"]
    assert sources == [0, 2]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": "many"}, Usage()),
        (
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 4},
            Usage(input=6, output=2, cache_read=4, total_tokens=12),
        ),
        (
            {
                "prompt_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 5},
            },
            Usage(input=2, cache_read=3, cache_write=5, total_tokens=10),
        ),
        (
            {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(cache_read=9, total_tokens=1),
        ),
        ({"prompt_tokens": 3.0, "total_tokens": 9}, Usage(input=3, total_tokens=9)),
        ({"prompt_tokens": float("inf"), "completion_tokens": -1}, Usage()),
    ],
)
def test_usage_is_read_in_every_dialect(data, expected):
    """Cached tokens under either name; what is no count is zero."""
    assert read_usage(data) == expected
