"""What a client may send to the Responses API, and what each part of it becomes."""

import pytest

from looopy import Approve, Deny
from looopy.errors import ValueRefused
from looopy.server.protocols.responses.request import read
from looopy.types.message import AudioContent, DocumentContent, ImageContent, TextContent

BASE = {"model": "looopy", "conversation": "c"}


def part(**given):
    """The block that a part of a user's message becomes."""
    asked = read({**BASE, "input": [{"role": "user", "content": [given]}]})
    [block] = asked.message.content
    return block


@pytest.mark.parametrize(
    ("given", "block"),
    [
        ({"type": "input_text", "text": "Hi."}, TextContent("Hi.")),
        (
            {"type": "input_image", "image_url": "data:image/gif;base64,R0lG"},
            ImageContent("R0lG", mime_type="image/gif"),
        ),
        (
            {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "low"},
            ImageContent(url="https://a.example/b.png"),
        ),
        (
            {"type": "input_file", "file_data": "data:text/plain;base64,SGk=", "filename": "a"},
            DocumentContent("SGk=", mime_type="text/plain", name="a"),
        ),
        (
            {"type": "input_file", "file_data": "JVBERi0="},
            DocumentContent("JVBERi0=", mime_type="application/pdf"),
        ),
        (
            {"type": "input_file", "file_url": "https://a.example/b.pdf", "filename": "b.pdf"},
            DocumentContent(url="https://a.example/b.pdf", name="b.pdf"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}},
            AudioContent("SUQz", mime_type="audio/mpeg"),
        ),
    ],
)
def test_each_part_of_a_message_becomes_its_block(given, block):
    """Inline or by address."""
    assert part(**given) == block


def test_several_messages_become_one_message():
    """A turn has one message of the user."""
    asked = read({**BASE, "input": [{"role": "user", "content": c} for c in ("One.", "Two.")]})
    assert asked.message.content == (TextContent("One."), TextContent("Two."))


def test_answers_are_parsed_by_the_kind_of_their_request():
    """JSON as JSON; an approval with its reason."""
    given = [
        {"type": "function_call_output", "call_id": "a", "output": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "b", "output": "plain words"},
        {"type": "mcp_approval_response", "approval_request_id": "c", "approve": True},
        {
            "type": "mcp_approval_response",
            "approval_request_id": "d",
            "approve": False,
            "reason": "too dear",
        },
    ]
    asked = read({**BASE, "input": given})
    assert asked.message is None
    assert asked.inputs == {
        "a": {"x": 1},
        "b": "plain words",
        "c": Approve(),
        "d": Deny(reason="too dear"),
    }


def test_the_options_of_the_api_are_those_of_a_turn():
    """A named function, the effort, the length, the schema."""
    schema = {"type": "object", "properties": {}}
    asked = read(
        {
            **BASE,
            "temperature": 0.5,
            "max_output_tokens": 99,
            "tool_choice": {"type": "function", "name": "add"},
            "reasoning": {"effort": "none"},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}},
            "metadata": {"a": "b"},
            "stream": True,
            "parallel_tool_calls": True,
        }
    )
    options = asked.options
    assert (options.temperature, options.max_tokens, options.tool_choice) == (0.5, 99, "add")
    assert options.thinking_level == "off"
    assert (asked.output_type, asked.metadata, asked.stream) == (schema, {"a": "b"}, True)
    assert read({**BASE, "text": {"format": {"type": "text"}}}).output_type is None


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ([], ""),
        ({}, "/input"),
        ({"input": "Hi."}, "/model"),
        ({"model": 3, "input": "Hi."}, "/model"),
        ({**BASE, "input": 3}, "/input"),
        ({**BASE, "input": ["Hi."]}, "/input/0"),
        ({**BASE, "input": [{"role": "user", "content": 3}]}, "/input/0/content"),
        ({**BASE, "input": [{"type": "function_call_output", "output": "x"}]}, "/input/0/call_id"),
        (
            {**BASE, "input": [{"type": "mcp_approval_response", "approval_request_id": "x"}]},
            "/input/0/approve",
        ),
        (
            {
                **BASE,
                "input": [
                    {
                        "type": "mcp_approval_response",
                        "approval_request_id": "x",
                        "approve": True,
                        "reason": 3,
                    }
                ],
            },
            "/input/0/reason",
        ),
        ({**BASE, "conversation": {"id": 3}}, "/conversation/id"),
        ({**BASE, "conversation": 3}, "/conversation"),
        ({**BASE, "stream": 1}, "/stream"),
        ({**BASE, "metadata": {"a": 1}}, "/metadata"),
        ({**BASE, "tool_choice": {"type": "hosted"}}, "/tool_choice/type"),
        ({**BASE, "tool_choice": 3}, "/tool_choice"),
        ({**BASE, "text": {"format": "text"}}, "/text/format"),
        ({**BASE, "text": {"format": {"type": "json_schema"}}}, "/text/format/schema"),
        ({**BASE, "reasoning": 3}, "/reasoning"),
        ({**BASE, "reasoning": {"effort": "enormous"}}, ""),
    ],
)
def test_a_wrong_value_is_refused_at_its_place(given, path):
    """By a JSON pointer into the body."""
    with pytest.raises(ValueRefused) as caught:
        read(given)
    assert caught.value.path == path
