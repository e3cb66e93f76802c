"""The blocks of a prompt are those of a message, and words may be an answer."""

import acp
import pytest
from acp import schema

from looopy import PendingKind, PendingRequest
from looopy.server.protocols.acp.prompts import message_of
from looopy.server.protocols.acp.updates import content_of, kind_of, title_of
from looopy.server.protocols.text_answers import answer_in
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    UserMessage,
)


def embedded(blob, mime_type, uri):
    """A block with a file in it."""
    found = schema.BlobResourceContents(blob=blob, mime_type=mime_type, uri=uri)
    return schema.EmbeddedResourceContentBlock(type="resource", resource=found)


def test_each_block_of_a_prompt_is_one_of_the_message():
    """So a place in one is a place in the other; and what is said can be shown again."""
    message = message_of(
        [
            acp.text_block("/continue"),
            acp.image_block("aW1n", "image/png"),
            acp.audio_block("c25k", "audio/wav"),
            acp.resource_link_block("a.py", "file:///w/a.py"),
            acp.resource_block(acp.embedded_text_resource("file:///w/b.py", "print(1)")),
            embedded("cGRm", "application/pdf", "file:///w/c.pdf"),
            embedded("aW1n", "image/jpeg", "file:///w/d.jpg"),
        ]
    )
    assert list(message.content) == [
        TextContent("/continue"),
        ImageContent("aW1n", mime_type="image/png"),
        AudioContent("c25k", mime_type="audio/wav"),
        TextContent("[a.py](file:///w/a.py)"),
        TextContent('<resource uri="file:///w/b.py">\nprint(1)\n</resource>'),
        DocumentContent("cGRm", mime_type="application/pdf", name="c.pdf"),
        ImageContent("aW1n", mime_type="image/jpeg"),
    ]
    shown = [content_of(block) for block in message.content]
    assert message_of(shown[:4]).content == message.content[:4]
    assert shown[5].resource.blob == "cGRm"


@pytest.mark.parametrize("words", [[], ["  "], ["/continue"], [" /continue\n"]])
def test_a_prompt_without_content_continues(words):
    """So does the command, and nothing else."""
    assert message_of([acp.text_block(one) for one in words]) is None


@pytest.mark.parametrize(
    ("said", "asked", "answer"),
    [
        ("Tuesday", {}, "Tuesday"),
        ("yes", {}, "yes"),
        ("yes", {"schema": {"type": "boolean"}}, True),
        ("NO", {"schema": {"type": "boolean"}}, False),
        ("perhaps", {"schema": {"type": "boolean"}}, None),
        ("42", {"schema": {"type": "string"}}, "42"),
        ("42", {"schema": {"type": "integer"}}, 42),
        ('{"a": 1}', {"schema": {"type": "object"}}, {"a": 1}),
        ("LEFT", {"options": ["left", "right"]}, "left"),
        ("2", {"options": [1, 2]}, 2),
        ("back", {"options": ["left", "right"]}, None),
        ("yes", {"kind": PendingKind.APPROVAL, "schema": {"type": "object"}}, None),
    ],
)
def test_words_are_an_answer_if_they_fit_the_question(said, asked, answer):
    """Otherwise they are a message; an approval is no matter of words."""
    options = {"kind": PendingKind.INPUT, "args": {}, "tool_call_id": "c", "turn": 1} | asked
    request = PendingRequest(request_id="1-c", tool_name="ask", **options)
    expected = None if answer is None else {"1-c": answer}
    assert answer_in(UserMessage(said), [request]) == expected
    assert answer_in(UserMessage(said), [request, request]) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("read_file", "read"),
        ("applyPatch", "edit"),
        ("web_search", "fetch"),
        ("run-tests", "execute"),
        ("ready", "other"),
        ("pay", "other"),
    ],
)
def test_the_first_telling_word_of_a_name_is_the_kind(name, kind):
    """It decides about an icon alone."""
    assert kind_of(name) == kind


def test_a_title_is_one_short_line():
    """Whatever the arguments are."""
    assert title_of("pay", {"cents": 5, "to": "ada\nlovelace"}) == 'pay cents=5 to="ada\\nlovelace"'
    assert len(title_of("pay", {"note": "x" * 500})) == 120
