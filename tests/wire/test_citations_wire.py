"""Citations of a user's documents: asked for, streamed or whole, kept, and sent back."""

from __future__ import annotations

import base64
import json

import pytest
from anthropic.types import CitationCharLocation, DocumentBlockParam, TextBlockParam
from pydantic import ConfigDict, TypeAdapter, with_config
from tests.wire import fake_anthropic
from tests.wire.fake_openai import Answer
from tests.wire.three import last_event, says, serving

from looopy import Agent, LoopConfig
from looopy.errors import UnsupportedOption
from looopy.stores import open_stores
from looopy.types.event import TurnWarning
from looopy.types.message import Citation, DocumentContent, TextContent, UserMessage
from looopy.types.request import LLMRequest

GRASS = base64.b64encode(b"The grass is green.").decode()
FACTS = DocumentContent(GRASS, mime_type="text/plain", name="facts", cite=True)
PLAIN = DocumentContent(GRASS, mime_type="text/plain", name="more")
ASKED = UserMessage([FACTS, PLAIN, TextContent("What is green?")])
PLACE = CitationCharLocation(
    type="char_location",
    cited_text="The grass is green.",
    document_index=0,
    document_title="facts",
    start_char_index=0,
    end_char_index=19,
).model_dump()
KEPT = Citation(title="facts", text="The grass is green.", raw=PLACE)


def cites(*, streams):
    """An answer that cites the first document, in pieces or whole."""
    if streams:
        return fake_anthropic.answers(
            fake_anthropic.block(
                0,
                {"type": "text", "text": "", "citations": []},
                {"type": "text_delta", "text": "Grass."},
                {"type": "citations_delta", "citation": PLACE},
            )
        )
    whole = {"type": "text", "text": "Grass.", "citations": [PLACE]}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [whole]}
    message |= {"stop_reason": "end_turn", "usage": fake_anthropic.USAGE}
    return Answer(pieces=[json.dumps(message).encode()], content_type="application/json")


@pytest.mark.parametrize("streams", [True, False])
async def test_citations_are_asked_for_kept_and_sent_back(streams):
    """For all documents, as the API wants it; from a store, and without the file's id."""
    async with (
        serving("anthropic", cites(streams=streams), says("anthropic", "Yes.")) as (server, made),
        open_stores("memory:") as stores,
    ):
        async with Agent("c", llm_provider=made, stores=stores) as agent:
            result = await agent.execute_turn(ASKED)
            assert result.outcome == "completed", result.error
        async with Agent("c", llm_provider=made, stores=stores) as agent:
            question, stored = await agent.get_messages()
            assert (await agent.execute_turn("Sure?")).outcome == "completed"
    assert question.content == ASKED.content
    assert stored.content == (TextContent("Grass.", citations=(KEPT,)),)
    assert stored.citations == [KEPT]
    first, second = (received.body["messages"] for received in server.received)
    typed = TypeAdapter(with_config(ConfigDict(extra="forbid"))(DocumentBlockParam))
    for document in first[0]["content"][:2]:
        assert typed.validate_python(document)["citations"] == {"enabled": True}
    text = second[1]["content"][0]
    TypeAdapter(TextBlockParam).validate_python(text)
    assert text["citations"] == [{k: v for k, v in PLACE.items() if k != "file_id"}]


async def test_a_citation_of_a_document_that_is_gone_is_not_sent():
    """The window let it go, and its number would mean another one."""
    config = LoopConfig(max_messages=2)
    async with (
        serving("anthropic", cites(streams=True), says("anthropic", "Yes.")) as (server, made),
        Agent("c", llm_provider=made, loop_config=config) as agent,
    ):
        await agent.execute_turn(ASKED)
        assert (await agent.execute_turn("Sure?")).outcome == "completed"
    assert "citations" not in json.dumps(server.received[1].body)


async def test_citations_and_an_output_schema_exclude_each_other():
    """The API refuses both at once; we do before the request, and name the way out."""
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    async with serving("anthropic") as (server, made):
        last = await last_event(made, LLMRequest(messages=[ASKED]), output_schema=schema)
    assert isinstance(last.error, UnsupportedOption)
    assert "leave out output_type, or DocumentContent.cite" in str(last.error)
    assert server.received == []


@pytest.mark.parametrize("api", ["completions", "responses"])
async def test_an_api_without_document_citations_is_reported(api):
    """The document goes out all the same; the warning names what was left out."""
    async with (
        serving(api, says(api, "Grass."), says(api, "Yes.")) as (_, made),
        Agent("c", llm_provider=made) as agent,
    ):
        first = [e async for e in agent.execute_turn(ASKED) if isinstance(e, TurnWarning)]
        second = [e async for e in agent.execute_turn("Sure?") if isinstance(e, TurnWarning)]
    assert [(one.code, "DocumentContent.cite" in one.text) for one in first] == [("cite", True)]
    assert second == []
