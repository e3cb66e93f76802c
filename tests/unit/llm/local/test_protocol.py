"""A request is said in the form that a small model understands."""

import json

import jsonschema_rs
import pytest

from looopy.llm.local.protocol import DEFAULT_SYSTEM_PROMPT, answer_schema, build_prompt
from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions, ToolSpec

ADD = ToolSpec(
    name="add",
    description="Add two integers.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)
NOW = ToolSpec(name="now", description="The time.", parameters={"type": "object", "properties": {}})
CALL_ADD = {"tool": "add", "arguments": {"a": 1, "b": 2}}
CALL_NOW = {"tool": "now", "arguments": {}}
REPLY = {"reply": "hi"}


def prompt_of(messages, tools=(), system_prompt="", **options):
    request = LLMRequest(messages=messages, tools=tools, system_prompt=system_prompt)
    return build_prompt(request, StreamOptions(**options))


def said(prompt, skip=0):
    return [(message.role, message.text) for message in prompt.messages][skip:]


def test_without_tools_it_is_plain_talk():
    """No grammar, no examples, the messages as they are."""
    messages = [UserMessage("a"), AssistantMessage((TextContent("b"),)), UserMessage("c")]
    prompt = prompt_of(messages, system_prompt="Be kind.")
    assert prompt.system_prompt == "Be kind."
    assert said(prompt) == [("user", "a"), ("assistant", "b"), ("user", "c")]
    assert (prompt.schema, prompt.speaks_json) == (None, False)


def test_the_model_gets_its_name_without_a_system_prompt():
    """Small models make up who made them."""
    assert prompt_of([UserMessage("a")]).system_prompt == DEFAULT_SYSTEM_PROMPT
    assert "assistant of looopy" in DEFAULT_SYSTEM_PROMPT


def test_tools_stand_in_the_system_prompt_after_the_users_own():
    """Each on a line of its own, as JSON."""
    prompt = prompt_of([UserMessage("a")], [ADD, NOW], "Be kind.")
    lines = prompt.system_prompt.splitlines()
    assert lines[0] == "Be kind."
    assert [json.loads(line)["name"] for line in lines[-2:]] == ["add", "now"]
    assert json.loads(lines[-2])["description"] == "Add two integers."


def test_examples_show_the_form_with_a_tool_that_is_not_offered():
    """Every assistant line of theirs would be an answer, were that tool on the list."""
    weather = ToolSpec(name="get_weather", description="", parameters={"type": "object"})
    for tools in ([ADD], [ADD, weather]):
        prompt = prompt_of([UserMessage("a")], tools)
        answers = [json.loads(text) for role, text in said(prompt) if role == "assistant"]
        assert len(answers) == 4
        called = {answer["tool"] for answer in answers if "tool" in answer}
        assert len(called) == 1
        assert not called & {tool.name for tool in tools}
        assert said(prompt)[-1] == ("user", "a")


def test_history_is_shown_in_the_form_of_answers():
    """Calls and replies as JSON, results as what the user says next."""
    call = ToolCall("c1", "add", {"a": 1, "b": 2})
    messages = [
        UserMessage("1 + 2?"),
        AssistantMessage((TextContent("Let me see."), call)),
        ToolResultMessage(tool_call_id="c1", tool_name="add", content=(TextContent("3"),)),
        AssistantMessage((TextContent("It is 3."),)),
        UserMessage("Thanks"),
    ]
    assert said(prompt_of(messages, [ADD]), skip=8) == [
        ("user", "1 + 2?"),
        ("assistant", '{"reply":"Let me see."}\n{"tool":"add","arguments":{"a":1,"b":2}}'),
        ("user", "Tool result: 3"),
        ("assistant", '{"reply":"It is 3."}'),
        ("user", "Thanks"),
    ]


def test_several_calls_become_one_exchange_after_the_other():
    """An answer has one call, so history has too; a failed one says so."""
    messages = [
        UserMessage("?"),
        AssistantMessage((ToolCall("x", "now"), ToolCall("y", "add", {"a": 1, "b": 2}))),
        ToolResultMessage(tool_call_id="x", tool_name="now", content=(TextContent("noon"),)),
        ToolResultMessage(
            tool_call_id="y", tool_name="add", content=(TextContent("no"),), is_error=True
        ),
    ]
    assert said(prompt_of(messages, [ADD]), skip=9) == [
        ("assistant", '{"tool":"now","arguments":{}}'),
        ("user", "Tool result: noon"),
        ("assistant", '{"tool":"add","arguments":{"a":1,"b":2}}'),
        ("user", "Tool result: error: no"),
    ]


def test_a_call_id_used_again_later_keeps_its_own_result():
    """Results belong to the message they follow."""
    messages = []
    for text in ("one", "two"):
        messages += [
            UserMessage("?"),
            AssistantMessage((ToolCall("x", "now"),)),
            ToolResultMessage(tool_call_id="x", tool_name="now", content=(TextContent(text),)),
        ]
    shown = [text for _, text in said(prompt_of(messages, [NOW])) if "result: " in text]
    assert [text.splitlines()[0] for text in shown[1:]] == [
        "Tool result: one",
        "Tool result: two",
    ]


def test_speakers_take_turns():
    """Many chat templates refuse two messages of one side in a row."""
    messages = [UserMessage("a"), UserMessage("b"), AssistantMessage((TextContent("c"),))]
    assert said(prompt_of(messages)) == [("user", "a\n\nb"), ("assistant", "c")]


def test_history_with_calls_and_no_tools_allows_replies_only():
    """The model sees its own calls, so it goes on in JSON, but can call nothing."""
    messages = [
        UserMessage("?"),
        AssistantMessage((ToolCall("x", "now"),)),
        ToolResultMessage(tool_call_id="x", tool_name="now", content=(TextContent("noon"),)),
    ]
    prompt = prompt_of(messages)
    assert prompt.speaks_json
    assert jsonschema_rs.is_valid(prompt.schema, REPLY)
    assert not jsonschema_rs.is_valid(prompt.schema, CALL_NOW)


def test_an_image_is_named_and_left_out():
    """The model reads text only."""
    prompt = prompt_of([UserMessage((TextContent("look:"), ImageContent("AAAA")))])
    assert said(prompt) == [("user", "look:\n[an image, which this model cannot see]")]


@pytest.mark.parametrize(
    ("tool_choice", "allowed", "refused"),
    [
        (None, [CALL_ADD, CALL_NOW, REPLY], []),
        ("auto", [CALL_ADD, CALL_NOW, REPLY], []),
        ("required", [CALL_ADD, CALL_NOW], [REPLY]),
        ("none", [REPLY], [CALL_ADD, CALL_NOW]),
        ("add", [CALL_ADD], [CALL_NOW, REPLY]),
    ],
)
def test_the_tool_choice_decides_what_an_answer_may_be(tool_choice, allowed, refused):
    """The grammar allows nothing else."""
    schema = answer_schema([ADD, NOW], tool_choice=tool_choice)
    assert [jsonschema_rs.is_valid(schema, one) for one in allowed] == [True] * len(allowed)
    assert [jsonschema_rs.is_valid(schema, one) for one in refused] == [False] * len(refused)


def test_arguments_are_held_to_the_tools_schema_unless_loose():
    """Loosely, any JSON object will do."""
    wrong = {"tool": "add", "arguments": {"a": "one"}}
    assert not jsonschema_rs.is_valid(answer_schema([ADD]), wrong)
    assert jsonschema_rs.is_valid(answer_schema([ADD], loose=True), wrong)
    assert not jsonschema_rs.is_valid(
        answer_schema([ADD], loose=True), {"tool": "other", "arguments": {}}
    )


def test_an_output_schema_holds_the_answer_or_the_reply():
    """Plain talk is held to it whole; beside tools, the reply is."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    alone = prompt_of([UserMessage("a")], output_schema=schema)
    assert alone.schema == {**schema, "additionalProperties": False}
    assert '"n":{"type":"integer"}' in alone.system_prompt
    both = prompt_of([UserMessage("a")], [ADD], output_schema=schema).schema
    assert jsonschema_rs.is_valid(both, {"reply": {"n": 1}})
    assert jsonschema_rs.is_valid(both, CALL_ADD)
    assert not jsonschema_rs.is_valid(both, REPLY)
