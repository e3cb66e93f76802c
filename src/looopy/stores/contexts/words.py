"""
Words of a text, as a search compares them: the same for every store.

Text is cut into units. A unit is a word (letters, digits and their marks), or one character of a
script that puts no spaces between words. Units are compared folded: without case, accents and
compatibility forms.

An index keeps words and not units: a single character of Chinese is in most messages. So two such
characters that follow each other are one word of the index, and the last of a row is one by itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

LONGEST_TEXT = 100_000
"""Characters of a message that are searched, from its beginning."""
LONGEST_WORD = 64
"""Characters of a word that an index keeps."""
_MOST_BYTES = 500_000  # of the words of one message; a row of Postgres holds a million
UNITS_AT_ONCE = 2_000
"""Units of a text that `index_pieces` reads without a break: five milliseconds of CPU."""
LAST_CHARACTER = "\U0010ffff"
"""Sorts after every character that a word can have."""

# Han, kana, Bopomofo, Thai, Lao, Myanmar, Khmer.
_DENSE = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u302f\u3031-\u3035\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
    "\u0e01-\u0e7f\u0e81-\u0eff\u1000-\u109f\u1780-\u17ff"
)
# Python's `\w` leaves out the marks of vowels and accents.
_MARKS_UP_TO = 0x3100
_ACCENTS = re.compile("[\u0300-\u036f]")
_ASCII = re.compile("[a-z0-9]+")


class Unit(NamedTuple):
    """
    One unit of a text.

    Attributes:
        word: Folded.
        dense: True for one character of a script without spaces.
        start, end: Its place in the text.
    """

    word: str
    dense: bool
    start: int
    end: int


@cache
def _pattern() -> re.Pattern[str]:
    marks = "".join(
        c
        for c in map(chr, range(0x300, _MARKS_UP_TO))
        if unicodedata.category(c)[0] == "M" and not re.match(f"[{_DENSE}]", c)
    )
    dense = f"[{_DENSE}]"
    return re.compile(rf"({dense})|(?:(?!{dense})(?:[^\W_]|[{marks}\ufe20-\ufe2f]))+")


def fold(word: str) -> str:
    """*word* without case, accents and compatibility forms."""
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    return unicodedata.normalize("NFKC", _ACCENTS.sub("", decomposed))


def units(text: str) -> Iterator[Unit]:
    """The units of *text*, in order."""
    for found in _pattern().finditer(text):
        word = fold(found[0])
        if word:  # else it was a mark alone
            yield Unit(word, found[1] is not None, found.start(), found.end())


def in_a_row(words: Iterable[str], *, prefix: bool = False) -> str:
    """
    The words of units in order, in a form that contains the form of each phrase.

    Args:
        prefix: The last word is the beginning of one.
    """
    joined = "\n".join(words)
    return f"\n{joined}" if prefix else f"\n{joined}\n"


def all_in_a_row(text: str) -> str:
    """The words of all units of *text*, see `in_a_row`: a tenth of the work of `units`."""
    if text.isascii():
        return in_a_row(_ASCII.findall(text.lower()))
    return in_a_row(filter(None, (fold(found[0]) for found in _pattern().finditer(text))))


def index_words(text: str) -> set[str]:
    """The words under which an index keeps *text*, of a message without what is not searched."""
    return bounded_words(word for piece in index_pieces(text) for word in piece)


def index_pieces(text: str) -> Iterator[set[str]]:
    """
    The words of an index that *text* has, a part of the text at a time.

    Each part takes some milliseconds, so a thread can let others run between two of them.
    """
    if text.isascii():
        yield {word[:LONGEST_WORD] for word in _ASCII.findall(text.lower())}
        return
    found: set[str] = set()
    before: Unit | None = None
    for number, unit in enumerate(units(text), 1):
        if before is not None and before.dense:
            found.add(before.word + unit.word if unit.dense else before.word)
        if not unit.dense:
            found.add(unit.word[:LONGEST_WORD])
        before = unit
        if number % UNITS_AT_ONCE == 0:
            yield found
            found = set()
    if before is not None and before.dense:
        found.add(before.word)
    yield found


def bounded_words(words: Iterable[str]) -> set[str]:
    """*words* without repetition, and no more of them than one row of a database holds."""
    found = set(words)
    left = _MOST_BYTES
    if sum(map(len, found)) * 4 <= left:
        return found
    kept: set[str] = set()
    for word in sorted(found, key=_by_length):
        left -= len(word.encode()) + 2
        if left < 0:
            break
        kept.add(word)
    return kept


def _by_length(word: str) -> tuple[int, str]:
    return len(word), word


class Span(NamedTuple):
    """The words of an index from *low* to *high*; one word if they are equal."""

    low: str
    high: str


def index_spans(wanted: Sequence[Unit], *, prefix: bool) -> list[Span]:
    """The words of an index in a text with *wanted* in a row; *prefix*: the last is a beginning."""
    spans: list[Span] = []
    for place, unit in enumerate(wanted):
        after = wanted[place + 1] if place + 1 < len(wanted) else None
        if not unit.dense:
            word = unit.word[:LONGEST_WORD]
            whole = after is not None or not prefix or len(unit.word) >= LONGEST_WORD
            spans.append(_span(word, whole=whole))
        elif after is not None and after.dense:
            spans.append(_span(unit.word + after.word, whole=True))
        elif place == 0 or not wanted[place - 1].dense:
            spans.append(_span(unit.word, whole=False))
    return spans


def _span(word: str, *, whole: bool) -> Span:
    return Span(word, word if whole else word + LAST_CHARACTER)
