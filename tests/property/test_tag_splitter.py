"""What is told of a text never depends on how a stream cut it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.llm.test_thoughts import blocks

PARTS = st.sampled_from(
    [
        *("<think>", "</think>", "<thinking>", "</thinking>", "<think/>", "<analysis a='>'>"),
        *("</analysis>", "</think ", "<thi", "<", ">", "/", "'", '"', "=", "a", "word", "é🙂"),
        *(" ", "  ", "\n", "\n\n", "\t", "`", "``", "```", "~~~", "    "),
    ]
)
TEXTS = st.lists(PARTS, max_size=25).map("".join)


@st.composite
def cut_texts(draw):
    """A text, and the same in pieces."""
    text = draw(TEXTS)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@given(cut_texts(), st.sampled_from(["", "think"]))
def test_the_split_does_not_depend_on_the_cuts(given_text, inside):
    """Whole, in pieces, by characters: the same blocks."""
    text, pieces = given_text
    whole = blocks([text], inside=inside)
    assert blocks(pieces, inside=inside) == whole
    assert blocks(text, inside=inside) == whole


@given(TEXTS)
def test_a_text_without_tags_stays_as_it_is(text):
    """Character for character."""
    plain = text.replace("think", "blink").replace("analysis", "nothing").replace("<thi", "<bli")
    assert blocks(plain) == ([f"T:{plain}"] if plain else [])


TAGS = ["<think>", "</think>", "<thinking>", "</thinking>", "<think/>"]


@given(st.lists(st.sampled_from([*TAGS, "one", "two", "é🙂", " ", "\n", "`", "```"]), max_size=25))
def test_no_word_is_lost_or_made_up(parts):
    """Besides tags and whitespace, everything comes out in order."""

    def words(text):
        return re.sub(r"</?think(?:ing)?/?>|\s", "", text)

    said = "".join(block.removeprefix("T:").removeprefix(">") for block in blocks(["".join(parts)]))
    assert words(said) == words("".join(parts))
