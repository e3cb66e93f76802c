"""A distorted stream has the calls that the model asked for, each once and with its arguments."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from looopy.llm.accumulate import Accumulator
from looopy.llm.anthropic.events import EventReader as Anthropic
from looopy.llm.calls import arguments_of
from looopy.llm.openai.chat import ChunkReader
from looopy.llm.openai.responses_events import EventReader as Responses

WORDS = st.sampled_from(["Oslo", "", 'a "b" }{', "\\", "</x>", '{"city": 1}'])
VALUES = WORDS | st.integers(0, 9) | st.lists(WORDS, max_size=2) | st.dictionaries(WORDS, WORDS)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "days", "{"]), VALUES, min_size=1, max_size=2)
NAMES = st.sampled_from(["weather", "pay"])
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)
CLOSING = ["", "\n</tool_call>", "<|tool_call_end|>", "[/TOOL_CALLS]", "```", "}"]
FORMS = st.tuples(st.sampled_from(["plain", "{} first", "encoded twice"]), st.sampled_from(CLOSING))


def unlike(calls):
    """The calls without those that equal an earlier one: nothing tells the two apart."""
    return [one for i, one in enumerate(calls) if one not in calls[:i]]


def cut(draw, text):
    """The pieces of *text*."""
    at = sorted(draw(st.lists(st.integers(1, max(1, len(text) - 1)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *at], [*at, None], strict=True) if text[a:b]]


def written(draw, arguments, *, plain=False):
    """The pieces of a call's arguments, as odd servers write them if they may not be *plain*."""
    form, closing = ("plain", "") if plain else draw(FORMS)
    text = json.dumps(arguments)
    if form == "encoded twice":
        text = json.dumps(text)
    pieces = cut(draw, text) + [closing] * bool(closing)
    if not plain and draw(st.booleans()):
        pieces.append(text)  # once more
    return ["{}", *pieces] if form == "{} first" else pieces


def made(reader, answer, said):
    """The names and arguments of the calls that are read from *said*."""
    for one in said:
        reader.feed(json.dumps(one))
    done = {} if isinstance(reader, Anthropic) else {"said_done": False}
    reader.end(**done)
    calls = answer.snapshot().tool_calls
    assert len({call.id for call in calls}) == len(calls)
    assert [call.invalid_arguments for call in calls] == [None] * len(calls)
    return [(call.name, call.arguments) for call in calls]


def chunk(delta, finish=None):
    """A chunk of chat completions."""
    return {"id": "a", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@st.composite
def chunks(draw):
    """Calls, and their stream of chat completions."""
    calls = draw(CALLS)
    index = draw(st.sampled_from(["counted", "all 0", "none", "head at 0"]))
    ids = draw(st.sampled_from(["own", "own in each piece", "none", "another in each piece"]))
    named = draw(st.sampled_from(["head", "each piece"]))
    if index == "head at 0" and ids in ("none", "another in each piece"):
        named = "head"
    alone = draw(st.booleans())  # the head has no arguments
    if index not in ("counted", "head at 0"):
        calls = unlike(calls)
    if index == "head at 0" and ids in ("none", "another in each piece"):
        calls = unlike(calls)
    said = []
    for place, (name, arguments) in enumerate(calls):
        # With an id and a name of its own, a second object is another call.
        heads = ids == "another in each piece" and named == "each piece"
        pieces = written(draw, arguments, plain=heads)
        for number, piece in enumerate([""] * alone + pieces):
            head = number == 0
            part = {"function": {"arguments": piece}}
            if head or named == "each piece":
                part["function"]["name"] = name
            if ids == "own in each piece" or (head and ids == "own"):
                part["id"] = f"call_{place}"
            elif ids == "another in each piece":
                part["id"] = f"call_{place}_{number}"
            if index != "none":
                moved = 0 if head or index == "all 0" else place
                part["index"] = place if index == "counted" else moved
            said.append(chunk({"tool_calls": [part]}))
    return calls, [*said, chunk({}, "tool_calls")]


@given(chunks(), st.booleans())
def test_distorted_chunks_have_the_calls_that_were_asked_for(case, ids):
    """Whatever becomes of indexes, ids, names and arguments; also through any-llm."""
    calls, said = case
    answer = Accumulator(api="api", provider="p", model="m")
    assert made(ChunkReader(answer, ids=ids), answer, said) == calls


@st.composite
def items(draw):
    """Calls, and their stream of the Responses API."""
    calls = draw(CALLS)
    index = draw(st.sampled_from(["counted", "none", "tail at the next"]))
    items = draw(st.sampled_from(["own", "one for all", "another in each event", "none"]))
    changes = draw(st.booleans())  # the id of a call, in its last event
    said, whole = [], []
    for place, (name, arguments) in enumerate(calls):
        head = {"type": "function_call", "call_id": f"call_{place}", "name": name}
        pieces = written(draw, arguments)
        steps = [("output_item.added", {"item": {**head, "arguments": ""}})]
        steps += [("function_call_arguments.delta", {"delta": piece}) for piece in pieces]
        text = json.dumps(arguments)
        if draw(st.booleans()):
            steps.append(("function_call_arguments.done", {"arguments": text}))
        last = {**head, "arguments": draw(st.sampled_from([text, arguments]))}
        whole.append(last)
        if changes and index == "counted":
            last = {**last, "call_id": f"other_{place}"}
        steps.append(("output_item.done", {"item": last}))
        if draw(st.booleans()):  # without pieces
            steps = [step for step in steps if not step[0].endswith("delta")]
        for number, (kind, event) in enumerate(steps):
            item_id = {
                "own": f"fc_{place}", "one for all": "fc", "none": None,
                "another in each event": f"fc_{place}_{number}",
            }[items]  # fmt: skip
            at = place + (index != "counted" and 0 < number < len(steps) - 1)
            where = {} if index == "none" else {"output_index": at}
            if "item" in event:
                event["item"] = {**event["item"], "id": item_id}
            said.append({"type": f"response.{kind}", "item_id": item_id, **where, **event})
    output = draw(st.sampled_from([[], whole]))
    return calls, [*said, {"type": "response.completed", "response": {"output": output}}]


@given(items())
def test_distorted_items_have_the_calls_that_were_asked_for(case):
    """Whatever becomes of indexes, ids and arguments, and with the whole output at the end."""
    calls, said = case
    answer = Accumulator(api="api", provider="p", model="m")
    assert made(Responses(answer), answer, said) == calls


@st.composite
def blocks(draw):
    """Calls, and their stream of the Messages API."""
    calls = draw(CALLS)
    index = draw(st.sampled_from(["counted", "tail at the next"]))
    ids = draw(st.sampled_from(["own", "none"]))
    said = [{"type": "message_start", "message": {"id": "a"}}]
    for place, (name, arguments) in enumerate(calls):
        form = draw(st.sampled_from(["pieces", "whole", "text"]))
        given = {"pieces": {}, "whole": arguments, "text": json.dumps(arguments)}[form]
        block = {"type": "tool_use", "name": name, "input": given}
        block["id"] = f"call_{place}" if ids == "own" else None
        steps = [{"type": "content_block_start", "content_block": block}]
        pieces = (
            written(draw, arguments) if form == "pieces" else draw(st.sampled_from([[], ["{}"]]))
        )
        for piece in pieces:
            delta = {"type": "input_json_delta", "partial_json": piece}
            steps.append({"type": "content_block_delta", "delta": delta})
        if draw(st.booleans()):
            steps.append({"type": "content_block_stop"})
        for number, step in enumerate(steps):
            said.append({**step, "index": place + (index != "counted" and number > 0)})
    return calls, [*said, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}]


@given(blocks())
def test_distorted_blocks_have_the_calls_that_were_asked_for(case):
    """Whatever becomes of indexes, ids and arguments, also without the ends of blocks."""
    calls, said = case
    answer = Accumulator(api="api", provider="p", model="m")
    assert made(Anthropic(answer), answer, said) == calls


def test_second_object_with_other_values_is_not_read():
    """Nothing tells which of the two the model meant."""
    raw = '{"city": "Oslo"}{"city": "Rome"}'
    assert arguments_of(raw) == ({}, raw)
    assert arguments_of("{}" * 100 + raw) == ({}, "{}" * 100 + raw)


def test_arguments_so_far_in_each_piece_are_read_once():
    """Some servers send the text from its beginning each time."""
    pieces = ['{"city"', '{"city": "Os', '{"city": "Oslo"}']
    assert arguments_of("".join(pieces), pieces) == ({"city": "Oslo"}, None)
