"""One gate decides what may be stored: kept unchanged, or refused with its place."""

import enum
import json
import math
import re
from decimal import Decimal
from itertools import pairwise
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.errors import ValueRefused
from looopy.types import storable as gate
from looopy.types.storable import (
    MAX_BODY_BYTES,
    MAX_DEPTH,
    check,
    check_text,
    dump,
    repair,
    repair_json,
    repair_piece,
)


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
    "a text of 17 MB": ("x" * 17_000_000, ""),
    "one byte too much": ("x" * (MAX_BODY_BYTES - 1), ""),
    "two bytes a letter": ("\u00e9" * (MAX_BODY_BYTES // 2), ""),
    "bytes": ({"a": b"x"}, "/a"),
    "a set": ([{1}], "/0"),
    "a decimal": ([Decimal(1)], "/0"),
    "an object": ({"a/b~c": {"": object()}}, "/a~1b~0c/"),
}


@pytest.mark.parametrize("value", KEPT.values(), ids=KEPT)
def test_a_storable_value_reads_back_equal(value):
    """Read back it is equal, to the sign of a zero and the order of keys; and it is UTF-8."""
    text = dump(value)
    text.encode()
    again = json.loads(text)
    assert again == value
    assert repr(again) == repr(value)


@pytest.mark.parametrize(("value", "path"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_a_backend_would_change_is_refused_with_its_place(value, path):
    """Always the same error, with a JSON pointer to the culprit, in a short sentence."""
    for prefix in ("", "/messages/0"):
        with pytest.raises(ValueRefused) as caught:
            dump(value, prefix)
        assert caught.value.path == prefix + path
        assert str(caught.value).startswith((prefix + path) or "value")
        str(caught.value).encode()


def test_tuples_mappings_and_enums_become_lists_objects_and_values():
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


def _told(asked, value):
    """The place and the reason of a refusal."""
    try:
        asked(value, "/x")
    except ValueRefused as refused:
        return refused.path, refused.message
    return None


@pytest.mark.parametrize("most", [MAX_BODY_BYTES, 40])
@given(
    value=st.deferred(lambda: _ANYTHING)
    | st.text("\x01\u20ac\U0001f600a", max_size=30)
    | st.lists(st.just(-(2**63)), max_size=4)
)
def test_check_refuses_the_values_that_dump_refuses(most, value):
    """With the same words, whatever a value may be long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "MAX_BODY_BYTES", most)
        assert _told(check, value) == _told(dump, value)


def test_a_check_serialises_only_values_near_the_limit(monkeypatch):
    """Whoever stores the value makes it. A text is measured, with what its escapes take."""
    monkeypatch.delattr(gate, "_encode")
    check({"text": "x" * (MAX_BODY_BYTES - 2000), "numbers": [1.5] * 50})
    check({"text": "\x1b[1m\n" * (MAX_BODY_BYTES // 11 - 10)})
    for text in ("x" * MAX_BODY_BYTES, "\x1b" * (MAX_BODY_BYTES // 6), '"' * (MAX_BODY_BYTES // 2)):
        with pytest.raises(NameError):
            check({"text": text})


@given(text=ANY_TEXT)
def test_repaired_text_passes_the_gate(text):
    """Text of tools and models loses only what cannot be stored, and sound text is not touched."""
    repaired = repair(text)
    check_text(repaired, "/text")
    wanted = re.sub("[\ud800-\udbff][\udc00-\udfff]", _pair, text)
    assert repaired == re.sub("[\0\ud800-\udfff]", "\ufffd", wanted)
    assert repair(repaired) is repaired


def _pair(halves):
    high, low = map(ord, halves[0])
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


@given(text=ANY_TEXT, cuts=st.lists(st.integers(0, 40)))
def test_pieces_of_a_text_make_the_text_wherever_it_is_cut(text, cuts):
    """Also between the halves of a character; no piece but the last waits for more."""
    data = text.encode("utf-16-le", "surrogatepass")
    ends = sorted({min(2 * cut, len(data)) for cut in cuts} | {0, len(data)})
    half, made = "", []
    for begin, end in pairwise(ends):
        piece, half = repair_piece(half + data[begin:end].decode("utf-16-le", "surrogatepass"))
        piece.encode()
        made.append(piece)
    whole = data.decode("utf-16-le", "replace")
    assert "".join(made) + "\ufffd" * len(half) == whole


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
def test_a_refused_value_of_a_tool_is_repaired_into_a_storable_one(value, _path):
    """Each hostile value but a too long one becomes one that can be stored."""
    if isinstance(value, str) and len(value) > 1000:
        return
    dump(repair_json(value))


class _Number(int):
    """A whole number of somebody's own."""


_ODD = st.sampled_from(
    [
        *("x\0y", "\ud800", "\udc00\ud800", "\U0001f600", "\x7f", "\u2028", ""),
        *(2**63, 2**63 - 1, -(2**63), -(2**63) - 1, math.nan, math.inf, -0.0, 1e308),
        *(True, None, Decimal(1), b"x", {1}, _Number(3), _Number(2**63), range(2)),
        *(_nested(MAX_DEPTH - 2), _nested(MAX_DEPTH), _circle(), MappingProxyType({"a": "\0"})),
    ]
)
_ODD_KEY = st.sampled_from(["a", "\u00e9", "a\0", "\ud800", 1, None])
_ANYTHING = st.recursive(
    _ODD | st.sampled_from(["a", 1, 0.5]) | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_ODD_KEY, inner, max_size=3)
        | st.dictionaries(_ODD_KEY, inner, max_size=3).map(MappingProxyType)
    ),
    max_leaves=8,
)
_SLOW = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict
).encode


@given(_ANYTHING)
def test_is_plain_accepts_no_value_that_check_refuses(value):
    """And what it lets pass is written as the encoder of the library writes it."""

    def close_look():
        gate._check(value, "", 1)

    error = _refusal(close_look)
    if error is None:
        assert dump(value) == _SLOW(value)
    else:
        assert not gate.is_plain(value, 1)
        assert _refusal(lambda: dump(value)) == error


def _refusal(action):
    try:
        action()
    except ValueRefused as refused:
        return str(refused), refused.path
    return None


@pytest.mark.parametrize("value", [v for v, _ in REFUSED.values()], ids=REFUSED)
def test_is_plain_refuses_a_bad_value_at_any_depth(value):
    """Alone, as a member and in a list; but for its length, which is measured once written."""
    fits = isinstance(value, str) and len(value) > MAX_DEPTH
    for place in (value, {"a": value}, [value], (value,), {"a": {"b": [value]}}):
        assert gate.is_plain(place, 1) is fits


@pytest.mark.parametrize("value", [range(2), enum.IntEnum("Two", "a b").a, {1: 2}.keys()])
def test_a_quick_look_knows_no_types_but_pythons_own(value):
    """Whatever else JSON may take is looked at closely."""
    assert not gate.is_plain(value, 1)


@pytest.mark.parametrize("text", ["x\0y", "\0", "\ud800"])
def test_a_short_text_is_looked_at_in_a_member_too(text):
    """The usual place of a text, which has a way of its own."""
    assert not gate.is_plain({"a": text}, 1)
    assert not gate.is_plain({text: "a"}, 1)


@pytest.mark.parametrize("value", KEPT.values(), ids=KEPT.keys())
def test_is_plain_accepts_usual_values(value):
    """All of these but the odd one: a key that is not ASCII is looked at closely."""
    assert gate.is_plain(value, 1) is (value != KEPT["an odd key"])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"content": ["short", {"text": "x" * MAX_BODY_BYTES}], "n": 1}, "/m/content/1/text"),
        ({"a/b": "x" * MAX_BODY_BYTES}, "/m/a~1b"),
        ({"parts": ["x" * (MAX_BODY_BYTES // 3)] * 4}, "/m/parts"),
    ],
)
def test_too_long_a_value_is_refused_by_its_largest_part(value, path):
    """The one to shorten; the whole if no part has most of it."""
    with pytest.raises(ValueRefused, match="bytes are more than") as refused:
        dump(value, "/m")
    assert refused.value.path == path
