"""An answer in JSON is read while it is still being written."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.llm.local.jsonstream import AnswerReader, StringDecoder

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too
SPACE = st.sampled_from(["", " ", "\n  ", "\n\n\t"])


@st.composite
def escaped(draw):
    """A JSON string without its quotes, each character written in one of its possible ways."""
    out = []
    for character in draw(ANY_TEXT):
        plain = json.dumps(character)[1:-1]
        raw = json.dumps(character, ensure_ascii=False)[1:-1]
        out.append(draw(st.sampled_from([plain, raw, plain.upper().replace("\\U", "\\u")])))
        if plain in ("\\n", "\\t", "\\r", "\\b", "\\f"):
            out[-1] = plain
    return "".join(out)


def pieces_of(text, cuts):
    """*text* cut at the places *cuts*."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def read(text, cuts=()):
    reader = AnswerReader()
    shown = [reader.feed(piece) for piece in pieces_of(text, cuts)]
    return shown, reader.finish()


@given(escaped(), st.lists(st.integers(0, 10_000)))
def test_a_string_is_decoded_as_json_does_wherever_it_is_cut(inside, cuts):
    """Escapes and surrogate pairs may be split between pieces."""
    decoder = StringDecoder()
    decoded = [decoder.feed(piece) for piece in pieces_of(inside + '"', cuts)]
    assert "".join(decoded) + decoder.flush() == json.loads(f'"{inside}"')
    assert decoder.closed


@given(ANY_TEXT, st.lists(st.integers(0, 10_000)), st.booleans(), SPACE, SPACE, SPACE)
def test_a_reply_is_read_wherever_it_is_cut(said, cuts, ascii_only, before, within, after):
    """The text shown piece by piece adds up to the reply."""
    value = json.dumps(said, ensure_ascii=ascii_only)
    text = f'{before}{{{within}"reply"{within}:{within}{value}{within}}}{after}'
    shown, answer = read(text, cuts)
    assert "".join(shown) + answer.text == json.loads(text)["reply"]
    assert answer.kind == "reply"
    assert answer.complete


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.lists(st.integers(0, 10_000)))
def test_a_call_is_read_wherever_it_is_cut(arguments, cuts):
    """A call shows nothing until it is whole."""
    shown, answer = read(json.dumps({"tool": "add", "arguments": arguments}), cuts)
    assert "".join(shown) == ""
    assert (answer.kind, answer.complete, answer.tool_name) == ("call", True, "add")
    assert json.loads(answer.arguments) == arguments


def test_a_reply_is_shown_before_it_is_whole():
    """Each piece gives what can be known by then."""
    reader = AnswerReader()
    shown = [reader.feed(piece) for piece in ['{"re', 'ply": "He', "llo \\ud83d", "\\ude00 w"]]
    assert shown == ["", "He", "llo ", "\U0001f600 w"]


def test_a_reply_that_breaks_off_is_kept_and_called_incomplete():
    """What was said until then counts."""
    shown, answer = read('{"reply": "Once upon a ti\\u00')
    assert "".join(shown) == "Once upon a ti"
    assert (answer.kind, answer.complete) == ("reply", False)


def test_half_a_surrogate_pair_at_the_end_is_not_lost():
    """It is given as it came, as `json` does."""
    shown, answer = read('{"reply": "x\\ud83d')
    assert ("".join(shown), answer.text) == ("x", "\ud83d")


def test_half_a_surrogate_pair_that_is_not_escaped_is_shown_as_it_comes():
    """A piece may end behind it; nothing is shown twice."""
    reader = AnswerReader()
    assert [reader.feed(piece) for piece in ['{"reply": "abcdef\ud83d', 'x"}']] == [
        "abcdef\ud83d",
        "x",
    ]


@pytest.mark.parametrize("text", ['{"tool"', '{"tool": "add", "arguments": {"a": 1'])
def test_a_call_that_breaks_off_is_a_call(text):
    """It is told apart from a reply, though nothing of it can be used."""
    answer = read(text)[1]
    assert (answer.kind, answer.complete) == ("call", False)


@pytest.mark.parametrize("text", ["", "  ", "{", '{"re', '{"reply"', '{"reply": ', "nonsense"])
def test_json_cut_too_early_is_unknown(text):
    """Nothing was said yet."""
    answer = read(text)[1]
    assert (answer.kind, answer.complete) == ("unknown", False)


def test_a_reply_that_is_no_string_is_given_as_json_at_the_end():
    """So a reply can have a schema of its own."""
    shown, answer = read('{"reply": {"city": "Malm\u00f6"}}', [3, 12, 15])
    assert "".join(shown) == ""
    assert (answer.kind, answer.text) == ("reply", '{"city": "Malm\u00f6"}')


@pytest.mark.parametrize("text", ["[]", "{}", '{"tool": 1}', '"reply"'])
def test_json_that_is_no_answer_is_refused(text):
    """A value that is neither a reply nor a call raises."""
    with pytest.raises(ValueError, match="neither a reply nor a tool call"):
        read(text)


@pytest.mark.parametrize("text", ['{"reply": "\\x', '{"reply": "\\u12+4'])
def test_an_escape_that_json_does_not_know_is_refused(text):
    """It raises instead of guessing."""
    with pytest.raises(ValueError, match="not a JSON escape"):
        read(text)
