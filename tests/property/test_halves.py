"""A text with emoji, cut between any two code units: every reader of a stream sees whole ones."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shares import examples

from looopy import Agent, AuthContext, tool
from looopy.errors import InvalidLLMResponse
from looopy.llm.accumulate import Accumulator
from looopy.llm.anthropic.events import EventReader as Anthropic
from looopy.llm.openai.chat import ChunkReader
from looopy.llm.openai.responses_events import EventReader as Responses
from looopy.tools import ToolContext, ToolResult
from looopy.types.event import MessageUpdate, TurnEnd, TurnWarning, event_to_json
from looopy.types.message import (
    AssistantMessage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
)
from looopy.types.message_json import message_to_json
from looopy.types.request import StreamEvent

LETTERS = 'a "\\\n\u00e9\u2028\ufffd\U0001f600\U0001f44d\U0001f3fd'
TEXT = st.text(st.sampled_from(LETTERS), max_size=12)
LONE = st.sampled_from(["", "\ud83d", "\ude00", "\udce9"])
FORMS = ["text", "thinking", "arguments"]


@st.composite
def cut(draw, texts=TEXT):
    """A text, and its pieces as a server may send them."""
    text = draw(texts)
    data = text.encode("utf-16-le", "surrogatepass")
    cuts = draw(st.lists(st.integers(0, len(data) // 2), max_size=6))
    ends = sorted({2 * one for one in cuts} | {0, len(data)})
    pieces = [data[a:b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(ends)]
    return text, pieces


def whole(text):
    """*text* as it has to come."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def chat(form, pieces):
    """The stream of chat completions."""
    for piece in pieces:
        delta = {"content": piece}
        if form == "thinking":
            delta = {"reasoning_content": piece}
        elif form == "arguments":
            function = {"name": "note", "arguments": piece}
            delta = {"tool_calls": [{"index": 0, "id": "x", "function": function}]}
        yield {"id": "a", "choices": [{"index": 0, "delta": delta}]}
    yield {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def responses(form, pieces):
    """The stream of the Responses API, without the items that repeat the pieces."""
    kind = {
        "text": "response.output_text.delta",
        "thinking": "response.reasoning_text.delta",
        "arguments": "response.function_call_arguments.delta",
    }[form]
    if form == "arguments":
        item = {"type": "function_call", "call_id": "x", "name": "note"}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    for piece in pieces:
        yield {"type": kind, "output_index": 0, "delta": piece}
    yield {"type": "response.completed", "response": {"id": "a"}}


def anthropic(form, pieces):
    """The stream of Anthropic."""
    block, kind, name = {
        "text": ({"type": "text", "text": ""}, "text_delta", "text"),
        "thinking": ({"type": "thinking", "thinking": ""}, "thinking_delta", "thinking"),
        "arguments": ({"type": "tool_use", "id": "x", "name": "note"}, *("input_json_delta", "")),
    }[form]
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    for piece in pieces:
        delta = {"type": kind, name or "partial_json": piece}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}


WIRES = {
    "completions": (ChunkReader, chat, {"said_done": False}),
    "responses": (Responses, responses, {"said_done": False}),
    "anthropic": (Anthropic, anthropic, {}),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("form", FORMS)
@given(cut=cut(), lone=LONE)
def test_no_event_of_a_wire_has_half_a_character(wire, form, cut, lone):
    """Its deltas make the block, which is the model's text; a lone half becomes U+FFFD."""
    text, pieces = cut
    if form == "arguments":
        text, pieces, lone = json.dumps({"n": text}, ensure_ascii=False), list(pieces), ""
        pieces = ['{"n": ', *(json.dumps(one, ensure_ascii=False)[1:-1] for one in pieces), "}"]
        pieces[1:-1] = ['"', *pieces[1:-1], '"']
    reader_of, stream, end = WIRES[wire]
    answer = Accumulator(api="api", provider="p", model="m")
    reader = reader_of(answer)
    events = []
    for data in stream(form, [*pieces, lone]):
        events += reader.feed(json.dumps(data))
        answer.text.encode()
        repr(answer.snapshot()).encode()
    silent = form == "thinking" or (form == "text" and not whole(text + lone).strip())
    if silent and wire != "anthropic":  # an answer without text is refused at its end
        with pytest.raises(InvalidLLMResponse):
            reader.end(**end)
        shown = "".join(_deltas(events))
        assert whole(text + lone).startswith(shown)
        assert len(whole(text + lone)) - len(shown) <= 1  # a half that waited for the other
        return
    events += reader.end(**end)
    said = _deltas(events)
    for piece in said:
        piece.encode()
    assert "".join(said) == whole(text + lone)
    message = answer.snapshot()
    if form == "text":
        assert message.text == whole(text + lone)
    elif form == "arguments":
        assert message.tool_calls[0].arguments == json.loads(text)


def _deltas(events):
    return [event.delta for event in events if event.type.endswith("_delta")]


class Growing:
    """A message in the making, as a provider of somebody else may have it."""

    def __init__(self):
        self.thoughts, self.texts = [], []

    @property
    def text(self):
        return "".join(self.texts)

    def snapshot(self):
        blocks = (ThinkingContent("".join(self.thoughts)), TextContent(self.text))
        return AssistantMessage(blocks)


class Foreign:
    """A provider that shows every piece as it came."""

    def __init__(self, pieces):
        self._pieces = pieces

    async def stream(self, request, _options):
        growing = Growing()
        for piece in self._pieces:
            growing.thoughts.append(piece)
            yield StreamEvent("thinking_delta", 0, piece, growing)
        yield StreamEvent("thinking_end", 0, "".join(growing.thoughts), growing)
        for piece in self._pieces:
            growing.texts.append(piece)
            yield StreamEvent("text_delta", 1, piece, growing)
        message = growing.snapshot()
        if not isinstance(request.messages[-1], ToolResultMessage):
            call = ToolCall("x", "note", {"n": growing.text})
            yield StreamEvent("toolcall_end", 2, growing.text, growing, tool_call=call)
            message = AssistantMessage((*message.content, call), stop_reason=StopReason.TOOL_USE)
        yield StreamEvent("done", message=message)


@settings(max_examples=examples(20))
@given(cut=cut(st.tuples(TEXT, LONE, TEXT, LONE).map("".join)), secret=st.booleans())
def test_no_event_of_a_turn_has_half_a_character(cut, secret):
    """Whatever a provider of somebody else, a tool and its reports bring."""
    text, pieces = cut

    @tool
    async def note(n: str, context: ToolContext) -> ToolResult:
        """Note."""
        for piece in pieces:
            context.report({piece: [piece]})
            context.show(MessageUpdate(context_id="inner", delta=piece))
        context.show(TurnWarning(context_id="inner", code="odd", text=f"\u00e9{pieces}\ud83d"))
        return ToolResult([TextContent(text)], details={"n": n})

    auth = AuthContext("ada", credentials={"token": "a-secret-of-ada"}) if secret else None
    events = asyncio.run(played(Foreign(pieces), note, auth))
    for event in events:
        json.dumps(event_to_json(event), ensure_ascii=False, allow_nan=False).encode()
        if isinstance(event, MessageUpdate) and event.partial is not None:
            event.partial.text.encode()
            message_to_json(event.partial.snapshot())
    for kind in ("text", "thinking"):
        deltas = [e.event for e in events if isinstance(e, MessageUpdate) and e.event is not None]
        said = "".join(one.delta for one in deltas if one.type == f"{kind}_delta")
        # The last half has no block's end behind it that would show it.
        assert said.startswith(whole(text).removesuffix("\ufffd"))
    shown = [e.delta for e in events if isinstance(e, MessageUpdate) and e.path]
    assert whole(text).startswith("".join(shown))
    [end] = [event for event in events if isinstance(event, TurnEnd)]
    assert (end.outcome, end.messages[-1].text) == ("completed", whole(text))
    assert end.messages[1].tool_calls[0].arguments == {"n": whole(text)}
    assert end.messages[2].text == whole(text)


async def played(provider, note, auth):
    """The events of a turn."""
    async with Agent("ada", llm_provider=provider, tools=[note]) as agent:
        return [event async for event in agent.execute_turn("go", auth)]
