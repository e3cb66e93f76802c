"""Images by URL, documents and recordings on the wire, judged by the types of the SDKs."""

from __future__ import annotations

import base64
import json

import pytest
from pydantic import ConfigDict, TypeAdapter, with_config
from tests.wire.three import APIS, PNG, last_event, says, serving

from looopy import Agent
from looopy.errors import UnsupportedContent
from looopy.llm import FallbackProvider
from looopy.stores import open_stores
from looopy.testing import ScriptedProvider, text
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest

PDF = base64.b64encode(b"%PDF-1.7 /Type /Page").decode()
NOTES = base64.b64encode("zwölf Boxkämpfer".encode()).decode()
WAV = base64.b64encode(b"RIFF....WAVE").decode()
CAT = "https://example.test/cat.png"
OFFER = "https://example.test/offer.pdf"
EVERY = [
    TextContent("read these"),
    ImageContent(url=CAT),
    ImageContent(PNG),
    DocumentContent(PDF, name="offer.pdf"),
    DocumentContent(PDF),
    DocumentContent(NOTES, mime_type="text/markdown", name="notes.md"),
]


def part_types(api):
    """The SDK's own type of a part of a user's message."""
    if api == "anthropic":
        from anthropic.types import DocumentBlockParam, ImageBlockParam, TextBlockParam

        kinds = {"text": TextBlockParam, "image": ImageBlockParam, "document": DocumentBlockParam}
    elif api == "responses":
        from openai.types.responses import (
            ResponseInputFileParam,
            ResponseInputImageParam,
            ResponseInputTextParam,
        )

        kinds = {
            "input_text": ResponseInputTextParam,
            "input_image": ResponseInputImageParam,
            "input_file": ResponseInputFileParam,
        }
    else:
        from openai.types.chat import (
            ChatCompletionContentPartImageParam,
            ChatCompletionContentPartInputAudioParam,
            ChatCompletionContentPartTextParam,
        )
        from openai.types.chat.chat_completion_content_part_param import File

        kinds = {
            "text": ChatCompletionContentPartTextParam,
            "image_url": ChatCompletionContentPartImageParam,
            "input_audio": ChatCompletionContentPartInputAudioParam,
            "file": File,
        }
    return {
        name: TypeAdapter(with_config(ConfigDict(extra="forbid"))(kind))
        for name, kind in kinds.items()
    }


def checked(api, parts):
    """*parts*, each of the SDK's type for it."""
    types = part_types(api)
    for part in parts:
        types[part["type"]].validate_python(part)
    return parts


async def sent(api, messages, **options):
    """The messages as they went out, without marks for a cache."""
    async with serving(api, says(api, "ok"), **options) as (server, made):
        last = await last_event(made, LLMRequest(messages=messages))
    assert last.type == "done", last.error
    body = server.received[0].body
    return without_marks(body["input" if api == "responses" else "messages"])


def without_marks(wire):
    """*wire* without marks for Anthropic's cache."""

    def unmarked(part):
        return {name: value for name, value in part.items() if name != "cache_control"}

    return json.loads(json.dumps(wire), object_hook=unmarked)


IN_TEXT = '<document name="notes.md">\nzwölf Boxkämpfer\n</document>'
AS_SENT = {
    "completions": [
        {"type": "text", "text": "read these"},
        {"type": "image_url", "image_url": {"url": CAT}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {
            "type": "file",
            "file": {"filename": "offer.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        },
        {
            "type": "file",
            "file": {"filename": "document.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        },
        {"type": "text", "text": IN_TEXT},
    ],
    "responses": [
        {"type": "input_text", "text": "read these"},
        {"type": "input_image", "detail": "auto", "image_url": CAT},
        {
            "type": "input_image",
            "detail": "auto",
            "image_url": f"data:image/png;base64,{PNG}",
        },
        {
            "type": "input_file",
            "filename": "offer.pdf",
            "file_data": f"data:application/pdf;base64,{PDF}",
        },
        {
            "type": "input_file",
            "filename": "document.pdf",
            "file_data": f"data:application/pdf;base64,{PDF}",
        },
        {"type": "input_text", "text": IN_TEXT},
    ],
    "anthropic": [
        {"type": "text", "text": "read these"},
        {"type": "image", "source": {"type": "url", "url": CAT}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
            "title": "offer.pdf",
        },
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "zwölf Boxkämpfer"},
            "title": "notes.md",
        },
    ],
}


@APIS
async def test_files_go_out_as_each_api_has_them(api):
    """Images by URL and by data, PDFs with and without a name, text as a document."""
    (user,) = await sent(api, [UserMessage(EVERY)])
    assert checked(api, user["content"]) == AS_SENT[api]


@pytest.mark.parametrize("api", ["responses", "anthropic"])
async def test_a_document_by_url_is_loaded_by_the_provider(api):
    """Both APIs take the URL of a PDF."""
    (user,) = await sent(api, [UserMessage([DocumentContent(url=OFFER)])])
    (part,) = checked(api, user["content"])
    assert part in (
        {"type": "input_file", "file_url": OFFER},
        {"type": "document", "source": {"type": "url", "url": OFFER}},
    )


async def test_audio_goes_to_chat_completions():
    """A recording is WAV or MP3 there."""
    said = [AudioContent(WAV), AudioContent(WAV, mime_type="audio/mpeg")]
    (user,) = await sent("completions", [UserMessage(said)])
    assert checked("completions", user["content"]) == [
        {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": WAV, "format": "mp3"}},
    ]


UNREADABLE = [
    ("completions", DocumentContent(url=OFFER), "openai-responses/"),
    ("completions", AudioContent(WAV, mime_type="audio/flac"), "mp3, wav"),
    ("responses", AudioContent(WAV), "chat completions"),
    ("anthropic", AudioContent(WAV), "transcript"),
    ("anthropic", DocumentContent(WAV, mime_type="application/zip"), "PDF"),
]


@pytest.mark.parametrize(("api", "block", "way_out"), UNREADABLE)
async def test_a_file_that_the_api_does_not_take_is_refused_before_the_request(api, block, way_out):
    """The error is typed, says the way out, and no byte was sent; later it is only named."""
    asked = UserMessage([TextContent("what is this?"), block])
    async with serving(api, says(api, "ok")) as (server, made):
        last = await last_event(made, LLMRequest(messages=[asked]))
        assert server.received == []
        assert isinstance(last.error, UnsupportedContent)
        assert way_out in str(last.error)
        assert last.error.mime_type == block.mime_type
        more = [asked, UserMessage("never mind")]
        assert (await last_event(made, LLMRequest(messages=more))).type == "done"
    assert f"{block.type} ({block.mime_type}), which this model cannot read" in json.dumps(
        server.received[0].body
    )


@APIS
async def test_a_file_in_a_result_reaches_the_model(api):
    """In its place where the API has one; chat completions get it as a message of the user."""
    called = AssistantMessage([ToolCall("c1", "load")])
    result = ToolResultMessage(
        tool_call_id="c1", tool_name="load", content=[DocumentContent(PDF), ImageContent(url=CAT)]
    )
    wire = await sent(api, [UserMessage("load it"), called, result])
    if api == "completions":
        assert wire[-2]["content"] == "(see attached file)"
        assert wire[-1]["content"][0]["text"] == "Attached file(s) from tool result:"
        parts = wire[-1]["content"][1:]
    else:
        parts = wire[-1]["output"] if api == "responses" else wire[-1]["content"][0]["content"]
    assert checked(api, parts) == [AS_SENT[api][4], AS_SENT[api][1]]


@APIS
async def test_the_history_with_files_is_the_same_bytes_from_turn_to_turn(api):
    """Over a restart too: the request grows at its end, so that a prompt cache finds it."""
    async with (
        serving(api, says(api, "one"), says(api, "two")) as (server, made),
        open_stores("memory:") as stores,
    ):
        for said in (UserMessage(EVERY), "and now?"):
            async with Agent("files", llm_provider=made, stores=stores) as agent:
                result = await agent.execute_turn(said)
                assert result.outcome == "completed", result.error
    name = "input" if api == "responses" else "messages"
    first, second = (without_marks(received.body[name]) for received in server.received)
    assert json.dumps(second[: len(first)]) == json.dumps(first)


async def test_the_next_model_of_a_chain_gets_a_file_that_the_first_cannot_read():
    """A file that has no place at one provider is no failure of it."""
    async with serving("anthropic") as (server, made):
        chain = FallbackProvider([made, ScriptedProvider([text("I hear it")])], failures=1)
        asked = LLMRequest(messages=[UserMessage([AudioContent(WAV)])])
        assert (await last_event(chain, asked)).message.text == "I hear it"
        assert server.received == []
        assert not any(one.wait_s for one in chain._breakers)
