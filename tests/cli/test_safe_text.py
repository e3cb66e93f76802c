"""Text that is not ours, made harmless for terminals."""

import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from looopy.cli.terminal import Terminal, one_line, safe_text

ANY = st.text(st.characters(codec=None, exclude_categories=()), max_size=200)
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def _is_harmless(char):
    return char in "\n\t" or (
        unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") and char not in BIDI
    )


@given(ANY)
def test_no_text_keeps_a_character_that_a_terminal_obeys(text):
    """Control characters, direction marks and surrogates are gone, one for one."""
    safe = safe_text(text)
    assert all(map(_is_harmless, safe))
    assert len(safe) == len(text)
    safe.encode()


@given(ANY)
def test_harmless_characters_stay_as_they_are(text):
    """Only what has to be replaced is replaced."""
    for before, after in zip(text, safe_text(text), strict=True):
        assert before == after or not _is_harmless(before)


@given(ANY)
def test_making_safe_text_safe_leaves_it_unchanged(text):
    """What was made safe is safe."""
    assert safe_text(safe_text(text)) == safe_text(text)


@given(st.lists(ANY, max_size=5))
def test_pieces_are_as_safe_as_the_whole(pieces):
    """A sequence that comes in deltas is treated like one that comes at once."""
    out = io.StringIO()
    terminal = Terminal(out=out, err=out)
    for piece in pieces:
        terminal.write(piece)
    assert out.getvalue() == safe_text("".join(pieces))


@given(ANY, st.integers(4, 60))
def test_a_shortened_line_is_one_line_within_its_limit(text, limit):
    """Whatever the text, it stays one line, and what is missing is marked."""
    line = one_line(text, limit)
    assert "\n" not in line
    assert len(line) <= limit


def test_a_replaced_character_can_be_seen():
    """The reader sees that something was there."""
    assert safe_text("a\x1b[2Jb\x9bc\x7fd\u202ee\ud800") == "a\u241b[2Jb\ufffdc\u2421d\ufffde\ufffd"
