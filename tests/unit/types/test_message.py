"""Messages speak pi's JSON: what it writes is read, what is written is read back equal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.errors import ValueRefused
from looopy.types.message import (
    NO_USAGE,
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
    now_ms,
)
from looopy.types.message_json import (
    message_from_json,
    message_to_json,
    usage_from_json,
    usage_to_json,
)

WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
MAYBE = st.none() | WORDS
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | WORDS | st.floats(-1e308, 1e308),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(WORDS, JSON, max_size=3)
COUNTS = st.integers(0, 10**9)
MONEY = st.floats(0, 1e6)
STAMPS = st.integers(0, 2**53)
CITATIONS = st.builds(Citation, url=MAYBE, title=MAYBE, text=MAYBE, raw=OBJECTS)
TEXTS = st.builds(TextContent, WORDS, text_signature=MAYBE)
LOGPROB = st.builds(TokenLogprob, WORDS, st.floats(-9999.0, 0))
LOGPROBS = st.lists(
    LOGPROB | st.builds(TokenLogprob, WORDS, st.floats(-9, 0), st.tuples(LOGPROB)), max_size=2
).map(tuple)
SAID = TEXTS | st.builds(TextContent, WORDS, citations=st.lists(CITATIONS, max_size=2).map(tuple))
SERVED = st.builds(ServerToolCall, WORDS, WORDS, OBJECTS, item=OBJECTS) | st.builds(
    ServerToolResult, WORDS, WORDS, item=OBJECTS
)
IMAGES = st.builds(ImageContent, WORDS, mime_type=WORDS) | st.builds(ImageContent, url=WORDS)
FILES = (
    IMAGES
    | st.builds(DocumentContent, WORDS, mime_type=WORDS, url=MAYBE, name=MAYBE, cite=st.booleans())
    | st.builds(AudioContent, WORDS, mime_type=WORDS)
)
THINKING = st.builds(ThinkingContent, WORDS, thinking_signature=MAYBE, redacted=st.booleans())
CALLS = st.builds(ToolCall, WORDS, WORDS, OBJECTS, thought_signature=MAYBE, invalid_arguments=MAYBE)
COSTS = st.builds(Cost, input=MONEY, output=MONEY, cache_read=MONEY, cache_write=MONEY, total=MONEY)
USAGES = st.builds(
    Usage,
    input=COUNTS,
    output=COUNTS,
    cache_read=COUNTS,
    cache_write=COUNTS,
    total_tokens=COUNTS,
    reasoning=COUNTS,
    cost=COSTS,
)
MESSAGES = st.one_of(
    st.builds(UserMessage, WORDS | st.lists(TEXTS | FILES, max_size=3), timestamp=STAMPS),
    st.builds(
        AssistantMessage,
        st.lists(SAID | THINKING | CALLS | SERVED, max_size=4),
        api=WORDS,
        provider=WORDS,
        model=WORDS,
        usage=st.just(Usage()) | USAGES,
        stop_reason=st.sampled_from(StopReason),
        error_message=MAYBE,
        response_id=MAYBE,
        logprobs=st.just(()) | LOGPROBS,
        timestamp=STAMPS,
    ),
    st.builds(
        ToolResultMessage,
        tool_call_id=WORDS,
        tool_name=WORDS,
        content=st.lists(TEXTS | FILES, max_size=3),
        details=JSON,
        is_error=st.booleans(),
        timestamp=STAMPS,
    ),
    st.builds(CustomMessage, st.just("note"), JSON, OBJECTS, timestamp=STAMPS),
)
STRANGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "toolResult", "note"])},
    optional=dict.fromkeys(
        ("content", "timestamp", "usage", "details", "metadata", "stop_reason"), JSON
    ),
)


@given(message=MESSAGES, compact=st.booleans())
def test_a_message_is_read_back_equal(message, compact):
    """Through JSON text, in the full form and in the one the stores keep."""
    written = json.dumps(message_to_json(message, compact=compact))
    assert message_from_json(json.loads(written)) == message


@given(message=MESSAGES)
def test_reading_and_writing_is_the_identity_on_the_full_form(message):
    """A message of another program comes out of looopy as it went in."""
    full = message_to_json(message)
    assert message_to_json(message_from_json(full)) == full


@given(message=MESSAGES)
def test_the_compact_form_is_part_of_the_full_one(message):
    """Nothing is renamed or rewritten, only left out."""
    full, compact = message_to_json(message), message_to_json(message, compact=True)
    assert compact.keys() <= full.keys()
    assert {"role", "content", "timestamp"} <= compact.keys()
    assert len(json.dumps(compact)) <= len(json.dumps(full))


PI = [
    {"role": "user", "content": "What is 2 + 3?", "timestamp": 1767225600000},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "and this?", "text_signature": None},
            {"type": "image", "data": "aGk=", "mime_type": "image/jpeg"},
        ],
        "timestamp": 1767225600001,
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "easy", "thinking_signature": "c2ln"},
            {"type": "text", "text": "I add.", "text_signature": None},
            {
                "type": "toolCall",
                "id": "call_1",
                "name": "add",
                "arguments": {"a": 2, "b": 3},
                "thought_signature": None,
            },
        ],
        "api": "anthropic-messages",
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "usage": {
            "input": 10,
            "output": 5,
            "cache_read": 0,
            "cache_write": 0,
            "total_tokens": 15,
            "cost": {
                "input": 0.1,
                "output": 0.2,
                "cache_read": 0.0,
                "cache_write": 0.0,
                "total": 0.3,
            },
        },
        "stop_reason": "toolUse",
        "error_message": None,
        "timestamp": 1767225600002,
    },
    {
        "role": "toolResult",
        "tool_call_id": "call_1",
        "tool_name": "add",
        "content": [{"type": "text", "text": "5", "text_signature": None}],
        "details": {"sum": 5},
        "is_error": False,
        "timestamp": 1767225600003,
    },
]


@pytest.mark.parametrize("message", PI)
def test_a_message_written_by_pi_is_ours(message):
    """Field for field and value for value, there and back."""
    assert message_to_json(message_from_json(message)) == message


def test_a_missing_timestamp_is_now():
    """A message written by hand needs none."""
    before = now_ms()
    message = message_from_json({"role": "user", "content": "hi"})
    assert before <= message.timestamp <= now_ms()


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ("hi", ""),
        (["user", "hi"], ""),
        ({}, "/role"),
        ({"role": ""}, "/role"),
        ({"role": 7}, "/role"),
        ({"role": "user", "content": None}, "/content"),
        ({"role": "user", "content": 7}, "/content"),
        ({"role": "user", "content": {"type": "text"}}, "/content"),
        ({"role": "user", "content": ["hi"]}, "/content/0"),
        ({"role": "user", "content": [{"type": "toolCall"}]}, "/content/0"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "/content/0"),
        ({"role": "user", "content": [{"type": "text", "text": 7}]}, "/content/0/text"),
        ({"role": "user", "content": "hi", "timestamp": "now"}, "/timestamp"),
        ({"role": "user", "content": "hi", "timestamp": 1.5}, "/timestamp"),
        ({"role": "user", "content": "hi", "timestamp": True}, "/timestamp"),
        ({"role": "assistant", "content": [{"type": "image"}]}, "/content/0"),
        (
            {"role": "assistant", "content": [{"type": "toolCall", "arguments": "{}"}]},
            "/content/0/arguments",
        ),
        (
            {"role": "assistant", "content": [{"type": "text", "text_signature": 7}]},
            "/content/0/text_signature",
        ),
        ({"role": "assistant", "stop_reason": "tired"}, "/stop_reason"),
        ({"role": "assistant", "stop_reason": ["stop"]}, "/stop_reason"),
        ({"role": "assistant", "model": 7}, "/model"),
        ({"role": "assistant", "error_message": 7}, "/error_message"),
        ({"role": "assistant", "usage": 7}, "/usage"),
        ({"role": "assistant", "usage": {"input": "many"}}, "/usage/input"),
        ({"role": "assistant", "usage": {"cost": 7}}, "/usage/cost"),
        ({"role": "assistant", "usage": {"cost": {"total": "much"}}}, "/usage/cost/total"),
        ({"role": "assistant", "usage": {"cost": {"total": True}}}, "/usage/cost/total"),
        ({"role": "assistant", "usage": {"cost": {"total": 10**400}}}, "/usage/cost/total"),
        ({"role": "toolResult", "tool_call_id": 7}, "/tool_call_id"),
        ({"role": "toolResult", "is_error": "no"}, "/is_error"),
        ({"role": "note", "metadata": []}, "/metadata"),
    ],
)
def test_an_invalid_message_is_refused_with_its_place(data, path):
    """Never another exception, never a guess."""
    with pytest.raises(ValueRefused) as caught:
        message_from_json(data)
    assert caught.value.path == path


@given(data=JSON | STRANGE)
def test_any_json_is_a_message_or_refused(data):
    """No value of a stranger makes anything but a message or a `ValueRefused`."""
    try:
        message = message_from_json(data)
    except ValueRefused:
        return
    assert message_from_json(message_to_json(message)) == message


@pytest.mark.parametrize("role", ["user", "assistant", "toolResult", "", None])
def test_a_custom_message_cannot_pass_for_another(role):
    """It would be read back as something else."""
    with pytest.raises(ValueRefused) as caught:
        CustomMessage(role, "hi")
    assert caught.value.path == "/role"


def test_a_string_where_blocks_belong_is_one_text_block():
    """Not one block for each of its letters."""
    assert AssistantMessage("hello").content == (TextContent("hello"),)
    assert ToolResultMessage(tool_call_id="1", tool_name="t", content="5").text == "5"


@pytest.mark.parametrize(
    "message",
    [
        UserMessage([{"type": "text", "text": "hi"}]),
        UserMessage([ToolCall("1", "add")]),
        AssistantMessage(["hi"]),
        AssistantMessage([ImageContent("aGk=")]),
        ToolResultMessage(content=[ThinkingContent("hm")]),
    ],
)
def test_a_block_that_does_not_belong_is_refused_when_written(message):
    """What could not be read back is not written."""
    with pytest.raises(ValueRefused) as caught:
        message_to_json(message)
    assert caught.value.path == "/content/0"


def test_the_parts_of_an_answer_are_at_hand():
    """Text, thinking and calls, each in order."""
    call = ToolCall("1", "add", {"a": 1})
    message = AssistantMessage([ThinkingContent("a"), TextContent("b"), call, TextContent("c")])
    assert (message.text, message.thinking_text, message.tool_calls) == ("b\nc", "a", [call])
    assert UserMessage([TextContent("x"), ImageContent(), TextContent("y")]).text == "x\ny"


@given(left=USAGES, right=USAGES)
def test_usage_adds_up_field_by_field(left, right):
    """No count is lost on the way to the sum of a turn."""
    both = left + right
    for name in ("input", "output", "cache_read", "cache_write", "total_tokens"):
        assert getattr(both, name) == getattr(left, name) + getattr(right, name)
    assert both.cost.total == left.cost.total + right.cost.total


@pytest.mark.parametrize(("content", "text"), [("hi", "hi"), ("", ""), ({"a": 1}, ""), (None, "")])
def test_a_message_of_an_own_role_has_text_like_any_other(content, text):
    """Who reads a history may ask each message for it."""
    assert CustomMessage("note", content).text == text


_COUNTED = Usage(input=1, total_tokens=1)
_DIME = Usage(input=2, total_tokens=2, cost=Cost(input=0.1, total=0.1))
_FREE = Usage(input=3, total_tokens=3, cost=Cost())


@pytest.mark.parametrize(
    ("parts", "cost"),
    [
        ([], Cost()),
        ([_COUNTED], None),
        ([_COUNTED, _COUNTED], None),
        ([_DIME, _DIME], Cost(input=0.2, total=0.2)),
        ([_FREE, _FREE], Cost()),
        ([_DIME, _COUNTED], Cost(input=0.1, total=0.1, complete=False)),
        ([_COUNTED, _DIME, _FREE], Cost(input=0.1, total=0.1, complete=False)),
        ([_COUNTED, _FREE], Cost(complete=False)),
        ([_DIME, Usage()], Cost(input=0.1, total=0.1)),
        ([Usage(), _DIME, _COUNTED, _DIME], Cost(input=0.2, total=0.2, complete=False)),
    ],
)
def test_a_sum_of_usage_marks_an_unknown_cost(parts, cost):
    """A price that is not known is never a zero: the rest is kept, and marked as not all."""
    usage = sum(parts, start=NO_USAGE)
    assert usage.cost == cost
    assert usage.is_priced == all(one is not _COUNTED for one in parts)
    assert usage.input == sum(one.input for one in parts)
    for compact in (True, False):
        assert usage_from_json(json.loads(json.dumps(usage_to_json(usage, compact=compact)))) == (
            usage
        )


def test_a_cost_of_zero_in_an_older_row_is_read():
    """As it was written then; what is unknown is said since."""
    assert usage_from_json({"input": 5, "cost": {"total": 0.0}}).cost == Cost()
    assert usage_from_json({"input": 5}).cost == Cost()  # compact JSON leaves zeros out
    assert usage_from_json({"input": 5, "cost": None}).cost is None
