"""Compiled code writes what the general way writes, and refuses what that refuses."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looopy.errors import ValueRefused
from looopy.stores.records import ContextState
from looopy.stores.rows import events as rows
from looopy.stores.rows import writing
from looopy.types import storable as gate
from looopy.types.event import MessageEnd, ToolExecutionEnd, ToolExecutionStart
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    Citation,
    Cost,
    CustomMessage,
    DocumentContent,
    ImageContent,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    TokenLogprob,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_check import check_message, check_usage
from looopy.types.message_json import message_to_json, usage_to_json
from looopy.types.storable import MAX_BODY_BYTES, MAX_DEPTH, dump


class Words(str):
    """Text of a type that is not Python's own."""

    __slots__ = ()


def told(write, *args):
    """The value that *write* gives as JSON, or the place and the reason of its refusal."""
    try:
        return repr(json.loads(write(*args)))
    except ValueRefused as refused:
        return refused.path, refused.message


def generally(message, path=""):
    """What the general way says of *message*."""

    def write():
        check_message(message, path)
        return dump(message_to_json(message, compact=True), path)

    return told(write)


def at_once(message, path=""):
    """What is tested says."""
    return told(writing.message_text, message, path)


# What a field may be wrongly given is among them, and what no backend keeps.
ANY_TEXT = st.text(max_size=12) | st.sampled_from(
    ["", "\0", "a\0b", "\ud800", "\\u0000", '"\\\n\x01\x7f', "\u2028\u00e9\U0001f600", Words("w")]
)
ODD = st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=2)
WORDS = ANY_TEXT | ANY_TEXT | ANY_TEXT | ODD
VALUES = st.recursive(
    ANY_TEXT | ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(ANY_TEXT, inner, max_size=3)
        | st.dictionaries(st.integers(0, 3), inner, max_size=1)
    ),
    max_leaves=6,
)
MAYBE = st.none() | WORDS
COUNTS = st.integers(0, 10**6) | st.just(0) | st.just(2**63) | st.just(-1) | ODD
MONEY = st.floats(0, 1e3) | st.just(0.0) | st.just(-0.0) | st.just(3) | ODD
COSTS = st.builds(Cost, input=MONEY, output=MONEY, cache_read=MONEY, cache_write=MONEY, total=MONEY)
USAGES = st.builds(
    Usage,
    input=COUNTS,
    output=COUNTS,
    cache_read=COUNTS,
    cache_write=COUNTS,
    total_tokens=COUNTS,
    reasoning=COUNTS,
    cost=st.just(Cost()) | COSTS | st.just(Usage().cost),
)
STAMPS = st.integers(0, 2**53) | st.sampled_from([2**63, -(2**63), True])
CITATIONS = st.builds(Citation, url=MAYBE, raw=st.dictionaries(ANY_TEXT, VALUES, max_size=1))
TEXTS = st.builds(TextContent, WORDS, text_signature=MAYBE) | st.builds(
    TextContent, WORDS, citations=st.lists(CITATIONS | ODD, max_size=2).map(tuple) | ODD
)
LOGPROBS = st.lists(
    st.builds(TokenLogprob, WORDS, st.floats() | ODD, st.just(()) | ODD) | ODD, max_size=2
)
SERVED = st.builds(ServerToolCall, WORDS, WORDS, VALUES, item=VALUES) | st.builds(
    ServerToolResult, WORDS, WORDS, item=VALUES
)
SOURCES = st.sampled_from(["", "aGk=", "aG", b"hi"])
LINKS = st.none() | st.sampled_from(["https://a.test/b", "file:///a", 3])
IMAGES = (
    st.builds(ImageContent, WORDS, mime_type=WORDS)
    | st.builds(ImageContent, SOURCES, url=LINKS)
    | st.builds(DocumentContent, SOURCES, mime_type=WORDS, url=LINKS, name=MAYBE)
    | st.builds(AudioContent, SOURCES, mime_type=WORDS)
)
THINKING = st.builds(ThinkingContent, WORDS, thinking_signature=MAYBE, redacted=st.booleans() | ODD)
CALLS = st.builds(
    ToolCall,
    WORDS,
    WORDS,
    st.dictionaries(ANY_TEXT, VALUES, max_size=3) | VALUES,
    thought_signature=MAYBE,
    invalid_arguments=MAYBE,
)
BLOCKS = TEXTS | IMAGES | THINKING | CALLS | SERVED
MESSAGES = st.one_of(
    st.builds(UserMessage, ANY_TEXT | st.lists(BLOCKS, max_size=3), timestamp=STAMPS),
    st.builds(
        AssistantMessage,
        ANY_TEXT | st.lists(BLOCKS, max_size=3),
        api=WORDS,
        provider=WORDS,
        model=WORDS,
        usage=st.just(Usage()) | USAGES,
        stop_reason=st.sampled_from(StopReason) | st.sampled_from(["stop", "toolUse", "no reason"]),
        error_message=MAYBE,
        response_id=MAYBE,
        logprobs=st.just(()) | LOGPROBS.map(tuple) | ODD,
        timestamp=STAMPS,
    ),
    st.builds(
        ToolResultMessage,
        tool_call_id=WORDS,
        tool_name=WORDS,
        content=st.lists(TEXTS | IMAGES | THINKING, max_size=3),
        details=VALUES,
        is_error=st.booleans() | ODD,
        timestamp=STAMPS,
    ),
    st.builds(CustomMessage, st.just("note"), VALUES, timestamp=STAMPS),
)


@settings(max_examples=300)
@given(message=MESSAGES, path=st.sampled_from(["", "/3"]))
def test_a_message_is_written_as_the_general_way_does(message, path):
    """Equal JSON in the same order, or the same refusal at the same place."""
    assert at_once(message, path) == generally(message, path)


@given(usage=USAGES)
def test_usage_is_written_as_the_general_way_does(usage):
    """Equal JSON, or the same refusal."""

    def write():
        check_usage(usage, "/usage")
        return dump(usage_to_json(usage, compact=True))

    assert told(writing.usage_text, usage) == told(write)
    assert writing.usage_text(Usage()) == "{}"


def _within(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


EDGES = {
    "details as deep as they may be": ToolResultMessage(details=_within(MAX_DEPTH - 1)),
    "details too deep": ToolResultMessage(details=_within(MAX_DEPTH)),
    "arguments as deep as they may be": AssistantMessage(
        [ToolCall("a", "b", {"v": _within(MAX_DEPTH - 4)})]
    ),
    "arguments too deep": AssistantMessage([ToolCall("a", "b", {"v": _within(MAX_DEPTH - 3)})]),
    "a text as long as it may be": UserMessage("x" * (MAX_BODY_BYTES - 53), timestamp=1),
    "a text too long": UserMessage("x" * MAX_BODY_BYTES, timestamp=1),
    "too long for its letters": UserMessage("\u00e9" * (MAX_BODY_BYTES // 2), timestamp=1),
    "details that are no number": ToolResultMessage(details={"a": math.nan}),
    "a block of a stranger": UserMessage((object(),)),
    "half a character": UserMessage("a\ud800"),
    "NUL": AssistantMessage([ToolCall("a\0", "b")]),
    "a price that is no number": AssistantMessage(usage=Usage(cost=Cost(total=math.nan))),
    "more tokens than fit": AssistantMessage(usage=Usage(input=2**63)),
}


@pytest.mark.parametrize("message", EDGES.values(), ids=EDGES)
def test_the_edges_are_those_of_the_general_way(message):
    """As deep and as long, and no further."""
    assert at_once(message) == generally(message)


USUAL = [
    UserMessage("How are you?", timestamp=1),
    UserMessage((TextContent("What is this?"), ImageContent("aGk=")), timestamp=1),
    AssistantMessage(
        [
            ThinkingContent("Hm.", thinking_signature="s"),
            TextContent("\u201cGood\u201d"),
            ToolCall("call_1", "look", {"at": ["a", 1, 0.5, None]}),
        ],
        api="a",
        provider="p",
        model="m",
        usage=Usage(input=3, output=4, total_tokens=7, cost=Cost(input=0.1, total=0.25)),
        stop_reason=StopReason.TOOL_USE,
        timestamp=2,
    ),
    ToolResultMessage(
        tool_call_id="call_1",
        tool_name="look",
        content=[TextContent("found")],
        details={"n": 1},
        is_error=True,
        timestamp=3,
    ),
]


@pytest.mark.parametrize("message", USUAL)
def test_usual_messages_take_the_fast_way(message, monkeypatch):
    """It does not take the general way, or all of this would be for nothing."""
    wanted = generally(message)
    monkeypatch.setattr(writing, "dump", None)
    monkeypatch.setattr(writing, "message_to_json", None)
    assert at_once(message) == wanted


def test_a_refused_call_names_its_place():
    """As all that is refused."""
    start = ToolExecutionStart(context_id="c", tool_call_id="a\0b", tool_name="t", args={})
    with pytest.raises(ValueRefused) as refused:
        rows.encode([start])
    assert refused.value.path == "/tool_call_id"


@given(usage=st.just(Usage()) | USAGES)
def test_a_state_with_usage_alone_is_stored_as_usage(usage):
    """The column says no more than `usage`, and says it as in a state that holds something."""
    try:
        short = rows.state_column(ContextState(usage=usage))
    except ValueRefused:
        return
    more = json.loads(rows.state_column(ContextState(usage=usage, summary=3)))
    assert {k: v for k, v in more.items() if k != "summary"} == json.loads(short)


@given(
    attempts=st.integers(1, 9) | st.just(2**63),
    first_delta_s=st.none() | st.floats(0, 1e6),
    duration_s=st.floats(0, 1e6) | st.just(1e300),
    ran=st.booleans(),
)
def test_the_facts_of_a_message_are_written_as_json(attempts, first_delta_s, duration_s, ran):
    """As `dump` would, and refused as by that."""
    message = ToolResultMessage(tool_call_id="a", content=[TextContent("b")])
    end = MessageEnd(
        context_id="c", message=message, attempts=attempts, first_delta_s=first_delta_s
    )
    ended = ToolExecutionEnd(
        context_id="c", tool_call_id="a", tool_name="t", result=message, duration_s=duration_s
    )
    events = [ended, end] if ran else [end]
    if attempts == 2**63 or (ran and duration_s == 1e300):
        with pytest.raises(ValueRefused):
            rows.encode(events)
    else:
        meta = rows.encode(events).messages[0].meta
        assert meta is None or dump(json.loads(meta)) == meta
        assert (meta is None) == (not ran and attempts == 1 and first_delta_s is None)


def test_a_plain_value_is_one_that_can_be_stored():
    """`dump` looks at any other more closely."""
    assert gate.is_plain({"a": [1, "b"]}, 1)
    assert not gate.is_plain({"a": math.inf}, 1)
    assert gate.dump({}) == "{}"
