"""Tools whose schemas the server enforces: sent strict, read back plainly, refused by name."""

from __future__ import annotations

import pytest
from anthropic.types import ToolParam
from openai.types.chat import ChatCompletionFunctionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import ConfigDict, TypeAdapter, with_config
from tests.wire import fake_anthropic, fake_openai, fake_responses
from tests.wire.fake_openai import DONE, Answer, chunk
from tests.wire.three import APIS, last_event, says, serving

from looopy import Agent, ModelOptions
from looopy.errors import ConfigurationError, InvalidTool, UnsupportedOption
from looopy.types.message import UserMessage
from looopy.types.request import LLMRequest, ToolSpec

TYPES = {
    "completions": ChatCompletionFunctionToolParam,
    "responses": FunctionToolParam,
    "anthropic": ToolParam,
}
ran = []


def book(city: str, nights: int = 1) -> str:
    """Book a room."""
    ran.append((city, nights))
    return "booked"


def note(facts: dict) -> str:
    """Note anything."""
    return "noted"


def calls(api):
    """The model calls `book`; where every property is required, without a number of nights."""
    said = '{"city": "Oslo"}' if api == "anthropic" else '{"city": "Oslo", "nights": null}'
    if api == "anthropic":
        called = fake_anthropic.calls(0, "c1", "book", said)
        return fake_anthropic.answers(called, reason="tool_use")
    if api == "responses":
        return fake_responses.answers(fake_responses.calls(0, "c1", "book", said))
    call = {"index": 0, "id": "c1", "function": {"name": "book", "arguments": said}}
    pieces = [chunk({"tool_calls": [call]}), chunk(finish="tool_calls")]
    return Answer(pieces=[*pieces, chunk(usage=fake_openai.USAGE), DONE])


@APIS
async def test_a_strict_tool_is_held_to_its_schema(api):
    """The other tool stays open; a null for an argument that may be left out goes."""
    ran.clear()
    async with (
        serving(api, calls(api), says(api, "Done.")) as (server, made),
        Agent("s", llm_provider=made, tools=[book, note]) as agent,
    ):
        result = await agent.execute_turn("Book.", options={"strict_tools": ["book"]})
        assert result.outcome == "completed", result.error
        _, answer, *_ = await agent.get_messages()
    assert ran == [("Oslo", 1)]
    assert answer.tool_calls[0].arguments == {"city": "Oslo"}
    strict, loose = server.received[0].body["tools"]  # neither request was refused
    for one in (strict, loose):
        one.pop("cache_control", None)
        TypeAdapter(with_config(ConfigDict(extra="forbid"))(TYPES[api])).validate_python(one)
    inner = [one.get("function", one) for one in (strict, loose)]
    assert [bool(one.get("strict")) for one in inner] == [True, False]
    schema = inner[0].get("parameters", inner[0].get("input_schema"))
    assert schema["additionalProperties"] is False
    assert schema["required"] == (["city"] if api == "anthropic" else ["city", "nights"])


@APIS
async def test_a_schema_without_a_strict_form_is_refused_where_strict_is_asked(api):
    """With the tool and the place; without the option it goes out as it is."""
    async with (
        serving(api, says(api, "Hello.")) as (server, made),
        Agent("s", llm_provider=made, tools=[book, note]) as agent,
    ):
        refused = await agent.execute_turn("Hi.", options=ModelOptions(strict_tools=True))
        assert server.received == []
        assert (await agent.execute_turn("Hi.")).text == "Hello."
    error = refused.error
    assert isinstance(error, UnsupportedOption)
    assert error.option == "strict_tools"
    assert "the tool 'note' cannot be made strict: /facts " in str(error)
    assert "list the other tools in strict_tools" in str(error)


async def test_an_early_model_of_anthropic_takes_none():
    """Those that take no output schema."""
    spec = ToolSpec(name="a", description="", parameters={"type": "object"}, strict=True)
    request = LLMRequest(messages=[UserMessage("hi")], tools=[spec])
    async with serving("anthropic", model="claude-3-5-haiku-latest") as (server, made):
        error = (await last_event(made, request)).error
    assert isinstance(error, UnsupportedOption)
    assert "claude-3-5-haiku-latest takes no strict tools" in str(error)
    assert server.received == []


async def test_a_wrong_list_of_strict_tools():
    """A name that is none, and a value that is no list."""
    async with serving("completions") as (_, made), Agent("s", llm_provider=made) as agent:
        result = await agent.execute_turn("Hi.", options={"strict_tools": ["sea"]})
    assert isinstance(result.error, InvalidTool)
    assert "strict_tools names 'sea'" in str(result.error)
    for value in ("book", 1, [3]):
        with pytest.raises(ConfigurationError, match="strict_tools takes True, False or a list"):
            ModelOptions(strict_tools=value)
