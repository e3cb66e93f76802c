"""The model asks the user, and tools that the user's side runs: `request_input`, `client_tool`."""

from __future__ import annotations

import pytest
from tests.agent.kit import add, assert_whole

from looopy import ToolContext, tool
from looopy.errors import InvalidTool, ValueRefused
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import Ask, client_tool, request_input
from looopy.types.message import ToolResultMessage
from looopy.types.state import Outcome, PendingKind

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "ages/years": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
CAMERA = client_tool(
    "photograph", "Take a picture", {"type": "object", "properties": {"of": {"type": "string"}}}
)


def told(messages):
    """What each call was answered, in order."""
    return [m.text for m in messages if isinstance(m, ToolResultMessage)]


async def ask(make_agent, stores, **arguments):
    """A context that waits for the answer to this question of the model, and its request."""
    agent = await make_agent(
        [tool_call("request_input", **arguments), text("done")],
        tools=[request_input],
        stores=stores,
    )
    result = await agent.execute_turn("go")
    assert result.outcome is Outcome.INPUT_REQUIRED
    [request] = result.pending
    return agent, request


async def test_the_tool_is_offered_only_when_it_is_passed(make_agent, memory_stores):
    """With a prompt that is required, and four types; without it, its name is unknown."""
    provider = ScriptedProvider([text("hi"), tool_call("request_input", prompt="?"), text("oh")])
    with_it = await make_agent(provider, tools=[add, request_input], stores=memory_stores)
    await with_it.execute_turn("go")
    spec = {t.name: t for t in provider.requests[0].tools}["request_input"]
    assert spec.parameters["required"] == ["prompt"]
    assert spec.parameters["properties"]["input_type"]["enum"] == [
        "confirmation",
        "clarification",
        "selection",
        "data",
    ]
    without = await make_agent(provider, tools=[add], stores=memory_stores)
    result = await without.execute_turn("go")
    assert "no tool named 'request_input'" in told(result.messages)[0]


@pytest.mark.parametrize(
    ("arguments", "value", "shown"),
    [
        ({"input_type": "confirmation"}, True, "true"),
        ({"input_type": "confirmation"}, False, "false"),
        ({"input_type": "clarification"}, "the red one", "the red one"),
        ({"input_type": "selection", "options": ["red", "blue"]}, "blue", "blue"),
        ({"input_type": "selection", "options": [{"id": 1}, {"id": 2}]}, {"id": 2}, '{"id": 2}'),
        ({"input_type": "data"}, [1, None], "[1, null]"),
        ({}, {"any": "thing"}, '{"any": "thing"}'),
        ({"schema": PERSON}, {"name": "Eva"}, '{"name": "Eva"}'),
        (
            {"schema": {"type": "array"}, "options": ["red", "blue", "green"]},
            ["red", "green"],
            '["red", "green"]',
        ),
    ],
)
async def test_the_answer_becomes_the_result(make_agent, memory_stores, arguments, value, shown):
    """Whatever was asked for, a denied confirmation too."""
    agent, request = await ask(make_agent, memory_stores, prompt="Which?", **arguments)
    assert (request.kind, request.prompt) == (PendingKind.INPUT, "Which?")
    assert request.args["prompt"] == "Which?"
    result = await agent.execute_turn(None, inputs={request.request_id: value})
    assert (result.text, told(result.messages)) == ("done", [shown])
    assert not any(m.is_error for m in result.messages if isinstance(m, ToolResultMessage))
    await assert_whole(memory_stores)


@pytest.mark.parametrize(
    ("arguments", "value", "place", "words"),
    [
        ({"input_type": "confirmation"}, "yes", "", "boolean"),
        ({"input_type": "confirmation"}, 1, "", "boolean"),
        ({"input_type": "clarification"}, "", "", ""),
        ({"input_type": "clarification"}, 3, "", "string"),
        ({"input_type": "selection", "options": ["red"]}, "green", "", 'one of "red", not "green"'),
        ({"input_type": "selection", "options": [1]}, True, "", "one of 1"),
        ({"schema": PERSON}, {}, "/name", "required"),
        ({"schema": PERSON}, {"name": 3}, "/name", "string"),
        ({"schema": PERSON}, {"name": "E", "ages/years": [1, -1]}, "/ages~1years/1", ""),
        ({"schema": PERSON}, {"name": "E", "x": 1}, "", "unknown field"),
        ({"schema": {"type": "array"}, "options": [1]}, [1, 2], "/1", "one of 1"),
        ({}, "x" * 1_100_000, "", "1,048,576"),
    ],
)
async def test_a_value_that_does_not_fit_is_refused_at_its_place(
    make_agent, stores, arguments, value, place, words
):
    """A JSON pointer into the inputs; nothing is stored, and the request goes on waiting."""
    agent, request = await ask(make_agent, stores, prompt="Which?", **arguments)
    before = await stores.journal.events("ada")
    with pytest.raises(ValueRefused) as refused:
        await agent.execute_turn(None, inputs={request.request_id: value})
    assert refused.value.path == f"/inputs/{request.request_id}{place}"
    assert words in refused.value.message
    assert await stores.journal.events("ada") == before
    assert agent.state.pending == (request,)
    await agent.execute_turn("never mind")
    await assert_whole(stores)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt": ""}, "do not fit"),
        ({}, "required but missing"),
        ({"prompt": "?", "input_type": "guess"}, "must be one of"),
        ({"prompt": "?", "input_type": "selection"}, "needs `options`"),
        ({"prompt": "?", "schema": {"type": "nonsense"}}, "Ask.schema is not a valid JSON Schema"),
    ],
)
async def test_a_question_that_cannot_be_answered_is_not_asked(
    make_agent, memory_stores, arguments, words
):
    """The model is told what is wrong with it."""
    agent = await make_agent(
        [tool_call("request_input", **arguments), text("done")],
        tools=[request_input],
        stores=memory_stores,
    )
    result = await agent.execute_turn("go")
    assert (result.text, result.pending) == ("done", ())
    assert words in told(result.messages)[0]


async def test_several_questions_wait_together(make_agent, stores):
    """Each with a request of its own, beside a tool that completes."""
    replies = [
        (
            tool_call("request_input", prompt="A?"),
            tool_call("request_input", prompt="B?"),
            tool_call("add", a=1, b=2),
        ),
        text("done"),
    ]
    agent = await make_agent(replies, tools=[request_input, add], stores=stores)
    first = await agent.execute_turn("go")
    a, b = first.pending
    assert (a.prompt, b.prompt, told(first.messages)) == ("A?", "B?", ["3"])
    last = await agent.execute_turn(None, inputs={b.request_id: "b", a.request_id: "a"})
    assert told(last.messages) == ["a", "b"]
    await assert_whole(stores)


@pytest.mark.parametrize(
    ("value", "shown", "failed"),
    [
        ("a cat", "a cat", False),
        ({"file": "cat.png"}, '{"file": "cat.png"}', False),
        (None, "null", False),
        ({"is_error": True, "content": "no camera"}, "no camera", True),
        ({"is_error": False, "content": {"w": 1}, "details": {"ms": 3}}, '{"w": 1}', False),
        ({"is_error": True}, "", True),
        ({"is_error": "maybe"}, '{"is_error": "maybe"}', False),
        ({"is_error": True, "other": 1}, '{"is_error": true, "other": 1}', False),
    ],
)
async def test_the_users_side_runs_a_client_tool(make_agent, stores, value, shown, failed):
    """The request has its arguments; the answer, given to another process, is its result."""
    agent = await make_agent([tool_call("photograph", of="cat")], tools=[CAMERA], stores=stores)
    result = await agent.execute_turn("go")
    [request] = result.pending
    assert (request.kind, request.tool_name, request.args) == (
        PendingKind.CLIENT_TOOL,
        "photograph",
        {"of": "cat"},
    )
    there = await make_agent([text("done")], tools=[CAMERA], stores=stores)
    last = await there.execute_turn(None, inputs={request.request_id: value})
    [answer] = [m for m in last.messages if isinstance(m, ToolResultMessage)]
    assert (last.text, answer.text, answer.is_error) == ("done", shown, failed)
    await assert_whole(stores)


async def test_a_client_tool_is_asked_for_valid_calls_only(make_agent, memory_stores):
    """Arguments that do not fit are the model's to correct."""
    agent = await make_agent(
        [tool_call("photograph", of=3), text("done")], tools=[CAMERA], stores=memory_stores
    )
    result = await agent.execute_turn("go")
    assert (result.text, result.pending) == ("done", ())
    assert "do not fit" in told(result.messages)[0]


async def test_a_client_tool_may_need_approval_first(make_agent, stores):
    """Two requests, one after the other."""
    unlock = client_tool("unlock", needs_approval=True)
    agent = await make_agent([tool_call("unlock"), text("done")], tools=[unlock], stores=stores)
    [approval] = (await agent.execute_turn("go")).pending
    assert approval.kind is PendingKind.APPROVAL
    [request] = (await agent.execute_turn(None, inputs={approval.request_id: True})).pending
    assert request.kind is PendingKind.CLIENT_TOOL
    last = await agent.execute_turn(None, inputs={request.request_id: "open"})
    assert told(last.messages) == ["open"]
    await assert_whole(stores)


async def test_one_tool_cannot_answer_for_another(make_agent, stores):
    """A refused value among good ones refuses all of them."""
    replies = [(tool_call("photograph"), tool_call("request_input", prompt="?", options=["x"]))]
    agent = await make_agent(replies, tools=[CAMERA, request_input], stores=stores)
    photo, question = (await agent.execute_turn("go")).pending
    before = await stores.journal.events("ada")
    with pytest.raises(ValueRefused):
        await agent.execute_turn(None, inputs={photo.request_id: "cat", question.request_id: "y"})
    assert await stores.journal.events("ada") == before
    assert agent.state.pending == (photo, question)


def test_a_client_tool_is_checked_when_it_is_declared():
    """As any tool."""
    with pytest.raises(InvalidTool):
        client_tool("no spaces please")
    with pytest.raises(InvalidTool):
        client_tool("f", parameters={"type": "object", "properties": 3})
    with pytest.raises(InvalidTool):
        client_tool("f", expires_s=0)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"key": ""}, "/key"),
        ({"key": "k", "kind": "guess"}, "/kind"),
        ({"key": "k", "prompt": 3}, "/prompt"),
        ({"key": "k", "options": "abc"}, "/options"),
        ({"key": "k", "schema": {"type": 3}}, "/schema"),
        ({"key": "k", "expires_s": -1}, "/expires_s"),
        ({"key": "k", "expires_s": float("nan")}, "/expires_s"),
    ],
)
def test_a_question_is_checked_when_it_is_made(options, path):
    """The place is named."""
    with pytest.raises(ValueRefused) as refused:
        Ask(**options)
    assert refused.value.path == path


async def test_a_tool_that_catches_its_failures_does_not_catch_its_question(
    make_agent, memory_stores
):
    """`except Exception` in a tool is common."""

    @tool
    async def cautious(context: ToolContext) -> str:
        """Never fail."""
        try:
            return await context.ask("Sure?")
        except Exception:  # noqa: BLE001 - that is the point
            return "caught"

    agent = await make_agent(
        [tool_call("cautious"), text("done")],
        tools=[cautious],
        stores=memory_stores,
    )
    [request] = (await agent.execute_turn("go")).pending
    result = await agent.execute_turn(None, inputs={request.request_id: "yes"})
    assert told(result.messages) == ["yes"]
