"""Rows are read fast, and say exactly what the slow reading says they do."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.types.test_message import JSON, MESSAGES, PI

from looopy.errors import ValueRefused
from looopy.stores.rows import reading
from looopy.stores.rows.reading import decode_message, decode_records
from looopy.types.message import AssistantMessage, CustomMessage, TextContent, Usage
from looopy.types.message_json import message_from_json, message_to_json
from looopy.types.storable import dump

# Everything that a message or one of its blocks may say, each part of the right kind or of another.
_FIELDS = {
    **dict.fromkeys(("text", "text_signature", "thinking", "thinking_signature", "data"), JSON),
    **dict.fromkeys(("mime_type", "id", "name", "arguments"), JSON),
    **dict.fromkeys(("thought_signature", "invalid_arguments"), JSON),
}
_BLOCKS = st.lists(
    JSON
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "thinking", "toolCall", "image"])}, optional=_FIELDS
    ),
    max_size=2,
)
_COUNTS = ("input", "output", "cache_read", "cache_write", "total_tokens")
_COSTS = ("input", "output", "cache_read", "cache_write", "total")
_USAGE = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(_COUNTS, JSON),
        "cost": JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(_COSTS, JSON)),
    },
)
_STRANGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "toolResult", "note"]), "timestamp": JSON},
    optional={
        "content": JSON | _BLOCKS,
        "usage": JSON | _USAGE,
        "stop_reason": JSON | st.sampled_from(["stop", "toolUse"]),
        **dict.fromkeys(("api", "provider", "model", "error_message", "details", "metadata"), JSON),
        **dict.fromkeys(("tool_call_id", "tool_name", "is_error"), JSON),
    },
)


ODD = (None, True, False, 0, 1, 1.5, "", "toolUse", "tired", [], [1], {}, {"a": 1}, 10**400)
SAID = [message_to_json(message_from_json(data), compact=c) for data in PI for c in (True, False)]


def altered(data):
    """*data* with each value in it, at any depth, odd in each way or gone."""
    for key in list(data if isinstance(data, dict) else range(len(data))):
        whole = data[key]
        for data[key] in ODD:
            yield data
        if isinstance(whole, (dict, list)):
            data[key] = whole = copy.deepcopy(whole)
            for _ in altered(whole):
                yield data
        if isinstance(data, dict):
            del data[key]
            yield data
        data[key] = whole


def outcome(read, *args):
    """What reading gives, or how it refuses."""
    try:
        return read(*args)
    except (ValueError, ValueRefused) as error:
        return type(error), str(error), getattr(error, "path", None)


def read_slowly(text):
    """As it is specified."""
    return message_from_json(json.loads(text))


@pytest.fixture(autouse=True, scope="module")
def frozen_clock():
    """A message without a time is of now, which must be the same for both."""
    with mock.patch("looopy.types.message.now_ms", return_value=7):
        yield


@given(message=MESSAGES, compact=st.booleans())
def test_a_stored_message_is_read_back_equal(message, compact):
    """In the form that stores keep, and in the full one."""
    text = json.dumps(message_to_json(message, compact=compact))
    assert decode_message(text) == message
    assert repr(decode_message(text)) == repr(read_slowly(text))


def check_alike(data):
    """Fast and slow reading give the same message, or the same sentence with the same place."""
    text = json.dumps(data)
    with mock.patch("looopy.types.message_json.now_ms", return_value=1):  # where none is said
        fast, slow = outcome(decode_message, text), outcome(read_slowly, text)
    assert fast == slow
    assert repr(fast) == repr(slow)  # 1, 1.0 and True are equal, but not the same


@given(data=_STRANGE | JSON)
def test_any_row_is_read_or_refused_as_the_slow_way_does(data):
    """Whatever it says."""
    check_alike(data)


@pytest.mark.parametrize("data", SAID)
def test_a_message_with_one_odd_value_is_read_or_refused_as_the_slow_way_does(data):
    """Whichever it is, and wherever it stands."""
    for odd in altered(copy.deepcopy(data)):
        check_alike(odd)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "{}",
        "{} ",
        " {}",
        "{}{}",
        "{},{}",
        "[{}]",
        "nul",
        "\ufeff{}",
        '{"role":"us',
        b"{}",
    ],
)
def test_invalid_json_is_refused_as_json_loads_does(text):
    """Cut off, with something behind it, empty."""
    assert outcome(decode_message, text) == outcome(read_slowly, text)
    whole = dump(message_to_json(CustomMessage("note", "hi", timestamp=3)))
    assert outcome(decode_message, f" {whole} ") == outcome(read_slowly, f" {whole} ")


@given(messages=st.lists(MESSAGES, max_size=5))
def test_many_rows_are_each_read_as_alone(messages):
    """What they share is equal, and their places are kept."""
    found = [
        (5 + i, i, 2 * i, 3 * i, json.dumps(message_to_json(message, compact=True)))
        for i, message in enumerate(messages)
    ]
    records = decode_records(found)
    assert [(r.position, r.turn, r.iteration, r.seq) for r in records] == [f[:4] for f in found]
    assert [r.message for r in records] == messages


def test_the_usual_messages_take_the_fast_way():
    """None of what our own stores write falls back to the slow one."""
    written = [message_from_json(data) for data in PI]
    written.append(AssistantMessage((TextContent("hi"),), timestamp=3))
    slow = mock.Mock(side_effect=message_from_json)
    with mock.patch.object(reading, "message_from_json", slow):
        for message in written:
            assert decode_message(dump(message_to_json(message, compact=True))) == message
            assert decode_message(dump(message_to_json(message))) == message
    slow.assert_not_called()


def test_a_message_that_is_read_is_frozen():
    """It can be copied and pickled, and is not open to be changed."""
    message = decode_message(dump(message_to_json(message_from_json(PI[2]))))
    assert copy.deepcopy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 - our own
    for part in (message, message.usage, message.usage.cost, *message.content):
        with pytest.raises(FrozenInstanceError):
            setattr(part, fields(part)[0].name, "another")


def test_words_that_come_again_are_kept_once():
    """Ten thousand messages hold the name of their model once."""
    said = AssistantMessage((TextContent("hi"),), api="a b", provider="c d", model="e f")
    body = dump(message_to_json(said, compact=True))
    first, second = (r.message for r in decode_records((i, 1, 1, i, body) for i in (1, 2)))
    assert first == second
    assert first.model is second.model
    assert first.provider is second.provider
    assert first.api is second.api
    assert first.usage is second.usage
    assert first.usage == Usage()
