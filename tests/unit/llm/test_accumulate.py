"""The accumulator: pieces in any cut become one message, and nothing half is announced."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.errors import LLMUnavailable
from looopy.llm.accumulate import Accumulator
from looopy.llm.calls import arguments_of
from looopy.types.arguments import MAX_ARGUMENT_DEPTH
from looopy.types.message import StopReason, TextContent, ThinkingContent, ToolCall, Usage


def accumulator(**options):
    return Accumulator(api="api", provider="p", model="m", **options)


def numbered():
    """Ids that a test can foresee."""
    count = iter(range(1, 100))
    return lambda: f"new_{next(count)}"


def types(events):
    return [e.type for e in events]


def test_a_block_opens_with_its_first_delta_and_closes_with_the_next_block():
    """Thinking, text and a call: each with start, deltas and end, in order."""
    a = accumulator()
    events = [
        *a.start(),
        *a.thinking_delta("hm"),
        *a.text_delta("so "),
        *a.text_delta("it is"),
        *a.tool_call(0, call_id="c1", name="add", arguments_delta='{"a":1}'),
        *a.done(StopReason.TOOL_USE, Usage(input=1)),
    ]
    assert [(e.type, e.content_index, e.delta) for e in events] == [
        ("start", 0, ""),
        ("thinking_start", 0, ""),
        ("thinking_delta", 0, "hm"),
        ("thinking_end", 0, "hm"),
        ("text_start", 1, ""),
        ("text_delta", 1, "so "),
        ("text_delta", 1, "it is"),
        ("text_end", 1, "so it is"),
        ("toolcall_start", 2, ""),
        ("toolcall_delta", 2, '{"a":1}'),
        ("toolcall_end", 2, '{"a":1}'),
        ("done", 0, ""),
    ]
    message = events[-1].message
    assert message.content == (
        ThinkingContent("hm"),
        TextContent("so it is"),
        ToolCall("c1", "add", {"a": 1}),
    )
    assert (message.stop_reason, message.usage) == (StopReason.TOOL_USE, Usage(input=1))
    assert (message.api, message.provider, message.model) == ("api", "p", "m")
    assert a.snapshot() is message


def test_empty_pieces_are_no_events():
    """The first chunk of many servers is empty."""
    a = accumulator()
    assert (a.text_delta(""), a.thinking_delta("")) == ((), ())
    assert a.snapshot().content == ()


def test_the_partial_message_is_the_accumulator_itself():
    """Events share it by reference; it shows the text so far and no unfinished call."""
    a = accumulator()
    (_, delta) = a.text_delta("so far")
    a.tool_call(0, call_id="c1", name="rm", arguments_delta='{"path":')
    assert delta.partial is a
    assert a.text == "so far"
    assert a.snapshot().content == (TextContent("so far"),)
    assert a.snapshot().timestamp == a.timestamp


def test_an_error_keeps_text_and_drops_calls():
    """What may lack its end is not run; what was said stays."""
    a = accumulator()
    a.text_delta("half")
    a.tool_call(0, call_id="c1", name="rm", arguments_delta="{}")
    error = LLMUnavailable("gone")
    (event,) = a.error(error)
    assert event.error is error
    assert event.message.content == (TextContent("half"),)
    assert event.message.stop_reason == StopReason.ERROR
    assert event.message.error_message == "gone"


def test_blank_and_repeated_ids_are_made_unique():
    """The first of its kind keeps the id; an end event and the message agree."""
    a = accumulator(new_call_id=numbered())
    events = []
    for index, call_id in enumerate(["x", None, "x", " ", "y"]):
        events += a.tool_call(index, call_id=call_id, name="t")
    events += a.done(StopReason.TOOL_USE)
    ids = [c.id for c in events[-1].message.tool_calls]
    assert ids == ["x", "new_1", "new_2", "new_3", "y"]
    assert [e.tool_call.id for e in events if e.type == "toolcall_end"] == ids


def test_a_made_up_id_is_unlike_any_other():
    """Two answers without ids do not share one: an idempotency key is made of it."""
    ids = set()
    for _ in range(2):
        a = accumulator()
        a.tool_call(0, name="t")
        ids |= {c.id for c in a.done(StopReason.TOOL_USE)[-1].message.tool_calls}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("said", "called", "expected"),
    [
        (StopReason.TOOL_USE, False, StopReason.STOP),
        (StopReason.STOP, True, StopReason.TOOL_USE),
        (StopReason.LENGTH, True, StopReason.LENGTH),
        (StopReason.SENSITIVE, False, StopReason.SENSITIVE),
    ],
)
def test_the_content_decides_between_stop_and_tool_use(said, called, expected):
    """A provider that says tool_calls without any would make the loop ask for ever."""
    a = accumulator()
    a.text_delta("x")
    if called:
        a.tool_call(0, call_id="c1", name="t", arguments_delta="{}")
    assert a.done(said)[-1].message.stop_reason == expected


def test_a_call_cut_before_its_arguments_is_left_out():
    """An answer at its limit may end in a bare name, which must not run without arguments."""
    a = accumulator()
    a.tool_call(0, call_id="c1", name="ok", arguments_delta="{}")
    a.tool_call(1, call_id="c2", name="rm")
    message = a.done(StopReason.LENGTH)[-1].message
    assert [c.name for c in message.tool_calls] == ["ok"]


def test_a_call_cut_within_its_arguments_is_kept_as_invalid():
    """The model is told, rather than the tool run."""
    a = accumulator()
    a.tool_call(0, call_id="c1", name="rm", arguments_delta='{"path": "/')
    (call,) = a.done(StopReason.LENGTH)[-1].message.tool_calls
    assert (call.arguments, call.invalid_arguments) == ({}, '{"path": "/')


@pytest.mark.parametrize("raw", ["", "  ", "{}", " {} "])
def test_no_arguments_are_an_empty_object(raw):
    """Servers write it in many ways."""
    assert arguments_of(raw) == ({}, None)


DEEP = '{"a":' * MAX_ARGUMENT_DEPTH + "1" + "}" * MAX_ARGUMENT_DEPTH


@pytest.mark.parametrize(
    "raw",
    [
        "null",
        "[1]",
        '"text"',
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": 9223372036854775808}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": 1',
        '{"a":' + DEEP + "}",
        '{"a":' + "[" * 100_000,
    ],
)
def test_content_that_no_store_accepts_is_invalid(raw):
    """No JSON object, no finite number, no 64 bits, too deep: kept as it came, and not run."""
    assert arguments_of(raw) == ({}, raw)


@pytest.mark.parametrize("raw", [DEEP, '{"a": -9223372036854775808}', '{"a": 1e300}'])
def test_content_at_the_limits_is_accepted(raw):
    """The last depth, the last integer."""
    assert arguments_of(raw) == (json.loads(raw), None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.lists(st.integers(1, 7)))
def test_arguments_survive_any_cut(arguments, cuts):
    """However the JSON is cut, the call has what was sent."""
    raw = json.dumps(arguments)
    a = accumulator()
    a.tool_call(0, call_id="c1", name="t")
    at = 0
    for size in cuts:
        a.tool_call(0, arguments_delta=raw[at : at + size])
        at += size
    a.tool_call(0, arguments_delta=raw[at:])
    (call,) = a.done(StopReason.TOOL_USE)[-1].message.tool_calls
    assert (call.arguments, call.invalid_arguments) == (arguments, None)


@given(st.lists(st.tuples(st.sampled_from(["text", "thinking"]), st.text()), max_size=20))
def test_no_character_is_lost_or_moved(pieces):
    """Blocks of one kind hold its pieces in order; end events repeat what deltas said."""
    a = accumulator()
    events = []
    for kind, piece in pieces:
        events += a.text_delta(piece) if kind == "text" else a.thinking_delta(piece)
    events += a.done(StopReason.STOP)
    for kind in ("text", "thinking"):
        whole = "".join(p for k, p in pieces if k == kind)
        assert "".join(e.delta for e in events if e.type == f"{kind}_delta") == whole
        assert "".join(e.delta for e in events if e.type == f"{kind}_end") == whole
        blocks = [b for b in events[-1].message.content if b.type == kind]
        assert "".join(getattr(b, kind) for b in blocks) == whole


def test_a_delta_does_not_change_earlier_snapshots():
    """Pieces are kept apart until someone asks, so a long answer costs no more than its length."""
    a = accumulator()
    for _ in range(1000):
        a.text_delta("some words ")
    assert len(a._blocks[0].parts) == 1000
    assert len(a.text) == 11_000
    assert len(a._blocks[0].parts) == 1
