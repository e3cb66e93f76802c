"""Files in messages: one source each, of the type that it should be."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from looopy.errors import ValueRefused
from looopy.loop.incoming import as_user_message
from looopy.stores.rows.reading import read_message
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.message_check import check_message, mended_message
from looopy.types.message_fields import FIELDS, default_of

PDF = "JVBERi0="
URL = "https://example.test/offer.pdf"


@pytest.mark.parametrize(
    ("block", "place", "why"),
    [
        (DocumentContent(b"%PDF"), "data", "must be base64 text, not bytes"),
        (DocumentContent("JVBER"), "data", "must be base64 text"),
        (DocumentContent(), "data", "must not be empty"),
        (DocumentContent(PDF, url=URL), "url", "the data or the url, not both"),
        (DocumentContent(url="offer.pdf"), "url", "an http or https URL"),
        (DocumentContent(PDF, name=3), "name", "text or None"),
        (DocumentContent(PDF, mime_type=None), "mime_type", "must be text"),
        (ImageContent(url="data:image/png;base64,aGk="), "url", "an http or https URL"),
        (ImageContent("aGk=", url=URL), "url", "the data or the url, not both"),
        (AudioContent("UklGR"), "data", "must be base64 text"),
        (AudioContent(), "data", "must not be empty"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_place(block, place, why):
    """Before anything is stored, with a pointer to the field."""
    with pytest.raises(ValueRefused, match=why) as caught:
        as_user_message(UserMessage([TextContent("read"), block]))
    assert caught.value.path == f"/content/1/{place}"


def test_a_user_message_of_one_file_is_accepted():
    """A question may be a document and nothing more."""
    for block in (DocumentContent(PDF), DocumentContent(url=URL), AudioContent("UklGRg==")):
        message = UserMessage([block])
        assert as_user_message(message) is message


def test_files_of_tools_and_damaged_rows_are_repaired():
    """Bytes become base64; one with two sources keeps its data; one with none is named."""
    lost = []
    result = ToolResultMessage(
        content=[DocumentContent(b"%PDF-"), DocumentContent(PDF, url=URL), DocumentContent()]
    )
    mended = mended_message(result, lost)
    assert mended.content == (
        DocumentContent(PDF),
        DocumentContent(PDF),
        TextContent("[a document that cannot be read was left out]"),
    )
    assert lost == ["/content/1/url", "/content/2/data"]
    check_message(mended)


def test_a_row_of_an_older_version_is_the_same_image():
    """No `url` was written, and none is read."""
    row = {"role": "user", "content": [{"type": "image", "data": "aGk=", "mime_type": "image/gif"}]}
    read = read_message(json.dumps({**row, "timestamp": 1}), position=1)
    assert read == UserMessage([ImageContent("aGk=", mime_type="image/gif")], timestamp=1)


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_table_of_fields_has_each_field_with_its_default(kind):
    """A field without a line would be neither checked nor stored."""
    assert FIELDS[kind].keys() == {one.name for one in fields(kind)}
    for name, field in FIELDS[kind].items():
        if field.left_out != "never" and name != "cost":  # a cost that is not said is zero
            assert field.default == default_of(kind, name)
            assert type(field.default) is type(default_of(kind, name))
