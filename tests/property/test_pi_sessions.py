"""What is written as a session of pi's is read back equal; any lines are a session or refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shares import examples
from tests.unit.types.test_message import JSON, MESSAGES

from looopy.compat.pi import AssistantMessage, CustomMessage, read_session, write_session
from looopy.errors import ValueRefused
from looopy.types.message import NO_COST
from looopy.types.message_json import message_to_json
from looopy.types.storable import repair_json


def is_storable(message):
    """True if no text in *message* has to be repaired before a store takes it."""
    value = message_to_json(message)
    return repair_json(value) == value


search = settings(max_examples=examples(25))
ANY = st.text(max_size=20)  # any at all: separators of lines and lone surrogates too
NOTES = st.builds(
    CustomMessage,
    ANY.filter(lambda role: role not in ("", "user", "assistant", "toolResult")),
    JSON,
    st.dictionaries(st.sampled_from(["role", "content", "metadata", "timestamp", "x"]) | ANY, JSON),
    timestamp=st.integers(0, 2**53),
).filter(is_storable)
# pi writes an unknown cost as zeros, and zeros are read as unknown.
SPOKEN = MESSAGES.filter(
    lambda message: not isinstance(message, AssistantMessage) or message.usage.cost != NO_COST
).filter(is_storable)


@search
@given(st.lists(SPOKEN | NOTES, max_size=6))
def test_messages_come_back_equal(messages):
    """Through the lines of a file."""
    written = write_session(None, messages)
    read = read_session(written.lines())
    assert read == written
    assert read.messages == messages


@search
@given(st.lists(SPOKEN | NOTES, max_size=4), st.lists(SPOKEN, max_size=4), st.data())
def test_a_tree_comes_back_equal_whichever_way_is_taken(first, second, data):
    """Two branches from one place; each leaf is its own conversation."""
    trunk = write_session(None, first)
    left = trunk.extended(second)
    entries = [e.id for e in left.entries]
    leaf = data.draw(st.sampled_from(entries)) if entries else None
    there = read_session(left.lines(), leaf_id=leaf)
    assert there.messages == [*first, *second][: entries.index(leaf) + 1 if leaf else 0]
    branched = there.extended(second)
    back = read_session(branched.lines(), leaf_id=branched.leaf_id)
    assert back.messages == branched.messages


@search
@given(st.lists(st.dictionaries(ANY, JSON) | JSON | st.text(), max_size=4))
def test_any_lines_are_a_session_or_refused_with_their_number(lines):
    """Never anything else."""
    head = {"type": "session", "version": 3, "id": "s"}
    given_lines = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    refused, session = None, None
    try:
        session = read_session([json.dumps(head), *given_lines])
    except ValueRefused as error:
        refused = error
    if refused is not None:
        assert 2 <= refused.facts["line"] <= len(lines) + 1
        assert f"line {refused.facts['line']}:" in str(refused)
    else:
        assert read_session(session.lines()).messages == session.messages


@search
@given(st.text())
def test_an_invalid_session_is_refused(text):
    """A header comes first."""
    with pytest.raises(ValueRefused, match="line 1"):
        read_session([text])
