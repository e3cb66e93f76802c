"""Every option of a model call reaches the wire, for each way to talk to a model."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.wire.three import APIS, last_event, says, serving

from looopy.llm.openai.provider import OpenAIProvider
from looopy.types.message import UserMessage
from looopy.types.request import LLMRequest, StreamOptions, ThinkingLevel, ToolSpec

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})
ASK = LLMRequest(messages=[UserMessage("hello")], tools=[ADD])
NOWHERE = "no place on the wire"
KEY = "a-very-secret-key-0123456789"


def body(*path):
    """What stands in the body, at *path*."""

    def found(received):
        value = received.body
        for part in path:
            value = value[part]
        return value

    return found


def header(name):
    """What stands in a header."""
    return lambda received: received.headers[name]


# Option, its value, and for each of the three where it stands and as what.
SENT = {
    "temperature": (
        0.25,
        (body("temperature"), 0.25),
        (body("temperature"), 0.25),
        (body("temperature"), 0.25),
    ),
    "max_tokens": (
        77,
        (body("max_completion_tokens"), 77),
        (body("max_output_tokens"), 77),
        (body("max_tokens"), 77),
    ),
    "thinking_level": (
        ThinkingLevel.HIGH,
        (body("reasoning_effort"), "high"),
        (body("reasoning", "effort"), "high"),
        (body("thinking", "type"), "enabled"),
    ),
    "stop": (["END"], (body("stop"), ["END"]), NOWHERE, (body("stop_sequences"), ["END"])),
    "seed": (7, (body("seed"), 7), NOWHERE, NOWHERE),
    "logprobs": (3, *[(body("top_logprobs"), 3)] * 2, NOWHERE),
    "extra_body": ({"temperature": 1}, *[(body("temperature"), 1)] * 3),
    "tool_choice": (
        "add",
        (body("tool_choice"), {"type": "function", "function": {"name": "add"}}),
        (body("tool_choice"), {"type": "function", "name": "add"}),
        (body("tool_choice", "name"), "add"),
    ),
    "output_schema": (
        SCHEMA,
        (body("response_format", "json_schema", "schema"), SCHEMA),
        (body("text", "format", "schema"), SCHEMA),
        (body("output_config", "format", "schema"), SCHEMA),
    ),
    "headers": (
        {"x-team": "red"},
        (header("x-team"), "red"),
        (header("x-team"), "red"),
        (header("x-team"), "red"),
    ),
    "session_id": (
        "ada",
        (lambda received: len(received.body["prompt_cache_key"]), 32),  # its stand-in
        (lambda received: len(received.body["prompt_cache_key"]), 32),
        (lambda received: len(received.body["metadata"]["user_id"]), 32),
    ),
    "api_key": (
        KEY,
        (header("authorization"), f"Bearer {KEY}"),
        (header("authorization"), f"Bearer {KEY}"),
        (header("authorization"), f"Bearer {KEY}"),
    ),
}
PLACES = {"completions": 1, "responses": 2, "anthropic": 3}
ELSEWHERE = {
    "thinking_budgets": "test_a_thinking_budget_reaches_the_wire",
    "timeout_s": "tests/wire/test_timeouts.py",
    "connect_timeout_s": "tests/wire/test_timeouts.py",
    "idle_timeout_s": "tests/wire/test_timeouts.py",
    "key_of": "tests/agent/models/test_fallback.py",
    "warn": "tests/agent/models/test_model_calls.py",
    "report": "tests/wire/test_reports_wire.py",
}


@pytest.fixture(autouse=True)
def at_openai(monkeypatch):
    """The server takes what OpenAI's own takes."""
    monkeypatch.setattr(OpenAIProvider, "_official", True)


async def sent(api, **options):
    """One request as it came."""
    async with serving(api, says(api, "ok")) as (server, made):
        last = await last_event(made, ASK, **options)
    assert last.type == "done", last.error
    return server.received[0]


@APIS
@pytest.mark.parametrize("option", SENT)
async def test_an_option_reaches_the_wire(api, option):
    """Where it belongs, or is refused where there is no place: nothing is dropped unseen."""
    value, where = SENT[option][0], SENT[option][PLACES[api]]
    if where is NOWHERE:
        async with serving(api) as (server, made):
            assert option in str((await last_event(made, ASK, **{option: value})).error)
        assert server.received == []
    else:
        place, expected = where
        assert place(await sent(api, **{option: value})) == expected


async def test_a_thinking_budget_reaches_the_wire():
    """As a number where one is taken, elsewhere by its level."""
    options = {"thinking_level": ThinkingLevel.LOW, "thinking_budgets": {"low": 2000}}
    received = await sent("anthropic", **options)
    assert received.body["thinking"]["budget_tokens"] == 2000
    assert (await sent("completions", **options)).body["reasoning_effort"] == "low"
    async with serving("completions", says("completions", "ok"), name="openrouter") as (s, made):
        await last_event(made, ASK, **options)
    assert s.received[0].body["reasoning"] == {"max_tokens": 2000}


def test_no_option_is_forgotten():
    """One that is added has a row here, or says where it is tested."""
    assert SENT.keys() | ELSEWHERE.keys() == {f.name for f in fields(StreamOptions)}
