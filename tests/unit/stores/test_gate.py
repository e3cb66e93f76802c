"""One gate decides what may be stored: kept unchanged, or refused with its place."""

import enum
import json
import math
from decimal import Decimal
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.errors import ValueRefused
from looopy.stores.gate import MAX_BODY_BYTES, MAX_DEPTH, check_text, dump, repair, repair_json


def _nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


def _circle():
    value = {}
    value["self"] = value
    return value


KEPT = {
    "the largest integer": 2**63 - 1,
    "the smallest integer": -(2**63),
    "minus zero": -0.0,
    "a large float": 1e308,
    "a small float": 5e-324,
    "the order of keys": {"b": 1, "a": 2, "": 3},
    "a byte order mark": "\ufeffhi",
    "right to left": "\u202egnp.exe\u202c \u0627",
    "a line separator": "a\u2028b\u2029c",
    "an astral character": "\U0001f600",
    "a noncharacter": "\uffff",
    "control characters": "\x01\x1b[2J\x7f\x9b",
    "64 levels": _nested(MAX_DEPTH),
    "a long text": "x" * (MAX_BODY_BYTES - 2),
    "emptiness": [{}, [], "", None, False, 0],
    "an odd key": {"a/b~c": {"\u2028": 1}, "__class__": 1},
}
REFUSED = {
    "NUL": ({"a": ["x\0y"]}, "/a/0"),
    "NUL in a key": ({"a": {"x\0": 1}}, "/a"),
    "a lone high surrogate": ({"a": "\ud800"}, "/a"),
    "a lone low surrogate": (["ok", "\udfff"], "/1"),
    "surrogates in the wrong order": (["\udc00\ud800"], "/0"),
    "a surrogate in a key": ({"\ud800": 1}, ""),
    "not a number": ({"a": math.nan}, "/a"),
    "infinity": ({"a": math.inf}, "/a"),
    "minus infinity": ([-math.inf], "/0"),
    "2^63": ({"a": 2**63}, "/a"),
    "-2^63 - 1": ([-(2**63) - 1], "/0"),
    "2^70": (2**70, ""),
    "a 5,000-digit integer": ({"a": 10**5000}, "/a"),
    "an integer key": ({"a": {1: 2}}, "/a"),
    "a 5,000-digit key": ({10**5000: 1}, ""),
    "a None key": ({None: 1}, ""),
    "65 levels": (_nested(MAX_DEPTH + 1), "/0" * MAX_DEPTH),
    "5,000 levels": (_nested(5000), "/0" * MAX_DEPTH),
    "a circle": (_circle(), "/self" * MAX_DEPTH),
    "a text of 10 MB": ("x" * 10_000_000, ""),
    "one byte too much": ("x" * (MAX_BODY_BYTES - 1), ""),
    "two bytes a letter": ("\u00e9" * (MAX_BODY_BYTES // 2), ""),
    "bytes": ({"a": b"x"}, "/a"),
    "a set": ([{1}], "/0"),
    "a decimal": ([Decimal(1)], "/0"),
    "an object": ({"a/b~c": {"": object()}}, "/a~1b~0c/"),
}


@pytest.mark.parametrize("value", KEPT.values(), ids=KEPT)
def test_what_is_kept_is_kept_unchanged(value):
    """Read back it is equal, to the sign of a zero and the order of keys; and it is UTF-8."""
    text = dump(value)
    text.encode()
    again = json.loads(text)
    assert again == value
    assert repr(again) == repr(value)


@pytest.mark.parametrize(("value", "path"), REFUSED.values(), ids=REFUSED)
def test_what_a_backend_would_change_is_refused_with_its_place(value, path):
    """Always the same error, with a JSON pointer to the culprit, in a short sentence."""
    for prefix in ("", "/messages/0"):
        with pytest.raises(ValueRefused) as caught:
            dump(value, prefix)
        assert caught.value.path == prefix + path
        assert str(caught.value).startswith((prefix + path) or "value")
        str(caught.value).encode()


def test_tuples_mappings_and_enums_are_what_json_makes_of_them():
    """The vocabulary's own containers need no conversion before."""

    class Word(enum.StrEnum):
        ONE = "one"

    value = {"a": (1, (2,)), "b": MappingProxyType({"c": Word.ONE}), "d": [True, None]}
    assert dump(value) == '{"a":[1,[2]],"b":{"c":"one"},"d":[true,null]}'


def test_text_is_stored_as_it_is_and_not_escaped():
    """One letter stays one letter: what is searched in the database is found."""
    assert dump({"ä": "日本\U0001f600"}) == '{"ä":"日本\U0001f600"}'


ANY_TEXT = st.text(st.characters(), max_size=30)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=ANYTHING)
def test_any_value_is_kept_equal_or_refused(value):
    """There is no third way."""
    try:
        text = dump(value)
    except ValueRefused:
        return
    text.encode()
    assert "\0" not in text
    assert json.loads(text) == value


@given(text=ANY_TEXT)
def test_repaired_text_passes_the_gate(text):
    """Text of tools and models loses only what cannot be stored, and sound text is not touched."""
    repaired = repair(text)
    check_text(repaired, "/text")
    assert len(repaired) == len(text)
    for old, new in zip(text, repaired, strict=True):
        assert new == ("\ufffd" if old == "\0" or "\ud800" <= old <= "\udfff" else old)
    assert repair(repaired) is repaired


@given(value=ANYTHING)
def test_a_repaired_value_passes_the_gate(value):
    """What a tool returns can always be stored; a sound value is not touched."""
    repaired = repair_json(value)
    text = dump(repaired)
    assert repair_json(repaired) is repaired
    try:
        sound = dump(value) == text
    except ValueRefused:
        sound = False
    assert (repaired is value) is sound


@pytest.mark.parametrize(("value", "_path"), REFUSED.values(), ids=REFUSED)
def test_what_the_gate_refuses_of_a_tool_is_said_in_words(value, _path):
    """Each hostile value but a too long one becomes one that can be stored."""
    if isinstance(value, str) and len(value) > 1000:
        return
    dump(repair_json(value))
