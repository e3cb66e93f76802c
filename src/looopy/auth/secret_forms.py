"""
Where a text spells a secret: as it is, or as programs encode text for each other.

A secret is never encoded as a whole to see that a text does not hold it. Letters and digits stay as
they are in most encodings, so each `Spelling` has a fragment of letters and digits that every text
with it contains. Only a text that has such a fragment is searched, letter by letter, and a letter
may be written in each of its ways: raw, percent-encoded, escaped, as an entity, several times over.

If a secret is part of a longer text that is then encoded in base64 or base32, it may begin at any
of three or five places of a group of characters, and each gives other text. So the search uses the
part that all such texts have in common: the characters that depend on the bytes of the secret
alone.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

MASK = "[redacted]"
LEAST = 8
"""
A shorter text is not a secret: hiding it would hide ordinary words, and guessing it is easy.
"""
_MAX_DEPTH = 16
_SAMPLE = 36  # bytes of a secret from which its fragments are made
_FRAGMENT = 16  # characters, of which fewer than 4 tell nothing
# Compiled when a turn has a secret: that takes longer than importing the module.
_SCHEME = r"(?i)bearer|basic|token|apikey|digest"
_URL_LOGIN = r"://[^/?#@:\s]*:([^/?#@\s]+)@"
_NAME = r"(?i)key|token|secret|passw|credential|auth|cookie|session"


def names_a_secret(name: str) -> bool:
    """True if the value of a header or variable of this *name* is likely to be a secret."""
    return re.search(_NAME, name) is not None


def secrets_in(value: Any) -> set[str | bytes]:
    """
    Every secret in *value*; bytes only where they are not UTF-8 text.

    Args:
        value: Text, bytes, an object with `get_secret_value()`, or mappings, sequences, sets,
            dataclasses and pydantic models of these. Keys of mappings are names, not secrets.

    Returns:
        Texts and bytes of at least 8 characters.
    """
    found: set[str | bytes] = set()
    _gather(value, 1, found)
    return found


def _gather(value: Any, depth: int, found: set[str | bytes]) -> None:
    if isinstance(value, str):
        found |= _parts(value)
    elif depth > _MAX_DEPTH or value is None:
        return
    elif isinstance(value, dict):  # the usual one
        for part in value.values():
            _gather(part, depth + 1, found)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        if len(data := bytes(value)) >= LEAST:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = ""
            found.add(text if len(text) >= LEAST else data)
    elif callable(reveal := getattr(value, "get_secret_value", None)):
        _gather(reveal(), depth + 1, found)
    else:
        for part in members_of(value):
            _gather(part, depth + 1, found)


def members_of(value: Any) -> list[Any]:
    """The parts of *value*, as far as they can be read without running its code."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    if hasattr(type(value), "model_fields"):  # a pydantic model
        return list(vars(value).values())
    return []


def _parts(text: str) -> set[str]:
    """The secret itself, and what of a header or a URL is one when it stands alone."""
    text = text.strip()
    if " " in text:
        scheme, _, token = text.partition(" ")
        if len(token := token.lstrip()) >= LEAST and re.fullmatch(_SCHEME, scheme):
            text = token
    parts = {text} if len(text) >= LEAST else set()
    if "://" in text:
        for password in re.findall(_URL_LOGIN, text):
            parts |= {part for part in (password, unquote(password)) if len(part) >= LEAST}
    return parts


# --- how a secret is spelled ---------------------------------------------------------------------


class Secret:
    """
    A secret, and its spellings as soon as something asks for them.

    Attributes:
        least: No text with fewer characters holds it.
    """

    __slots__ = ("_heads", "_made", "_starts", "data", "least", "text")

    def __init__(self, secret: str | bytes) -> None:
        if isinstance(secret, str):
            self.text, self.data = secret, secret.encode("utf-8", "surrogatepass")
        else:
            self.text, self.data = secret.decode("latin-1"), secret
        self.least = len(self.text)
        self._heads: Sequence[str] | None = None  # made for the first text
        self._starts = ""
        self._made: dict[int, Spelling] = {}

    def begun_in(self, low: str, *, at_end: bool = False) -> list[Spelling]:
        """
        Its spellings that may begin in a text with these letters and digits; usually none.

        *at_end*: also spellings whose first one or two letters or digits may end such a text.
        """
        if self._heads is None:
            self._heads, self._starts = _heads(self.data[:3], self.text[:3])
        heads = self._heads
        found = [*filter(low.__contains__, heads)]
        if at_end and low and (f" {low[-1]}" in self._starts or f" {low[-2:]}" in self._starts):
            found += [head for head in heads if head.startswith((low[-1], low[-2:]))]
        return [self.spelling(n) for n, head in enumerate(heads) if head in found] if found else []

    def spelling(self, number: int) -> Spelling:
        """One of its spellings."""
        made = self._made.get(number)
        if made is None:
            made = self._made[number] = Spelling(self.text, self.data, _KINDS[number])
        return made


class _Kind(NamedTuple):
    """
    One way to spell secrets.

    Attributes:
        letters: From the secret's text and bytes: the same beginning, longest first.
        view: The part of a text in which such spellings are sought; `None` for the whole.
        alike: Characters in `letters`, with their possible substitutes.
    """

    letters: Callable[[str, bytes], Sequence[str]]
    view: Callable[[str], str] | None = None
    alike: Mapping[str, str] = {}


def lowered(text: str | bytes) -> str:
    """The letters and digits of *text*, in lower case."""
    data = text if isinstance(text, bytes) else text.encode("ascii", "ignore")
    return data.translate(_LOWER, _OTHERS).decode("ascii")


_LOWER = bytes(range(256)).lower()
_OTHERS = bytes({*range(256)} - {*(string.ascii_letters + string.digits).encode()})


def _without_space(text: str) -> str:
    return "".join(text.split())


def _in_hex(before: str) -> _Kind:
    return _Kind(lambda _, data: (data.hex("x").replace("x", before),), lowered)


def _in_base64(before: int) -> _Kind:
    skipped = (0, 2, 3)[before]  # characters that also hold bits of what precedes the secret

    def letters(_: str, data: bytes) -> Sequence[str]:
        padded = base64.b64encode(bytes(before) + data).decode()
        shared = padded[skipped : (before + len(data)) * 8 // 6]
        return (shared,) if before else (padded, padded.rstrip("="), shared)

    return _Kind(letters, _without_space, {"+": "+-", "/": "/_"})  # often in lines of 76


def _in_base32(before: int) -> _Kind:
    skipped = (0, 2, 4, 5, 7)[before]

    def letters(_: str, data: bytes) -> Sequence[str]:
        whole = base64.b32encode(bytes(before) + data).decode().lower().rstrip("=")
        shared = whole[skipped : (before + len(data)) * 8 // 5]
        return (shared,) if before else (whole, shared)

    return _Kind(letters, lowered)


_HEX = ("", "0x", "x", "u00", "25")
_KINDS = (
    # Only letters and digits count: "63 34", "63:34", "%63%34", "0x63, 0x34", "\x63\x34",
    # "&#x63;&#x34;", "\u0063\u0034", "%2563%2534".
    *map(_in_hex, _HEX),
    _Kind(lambda _, data: ("".join(map(str, data)),), lowered),  # "[99, 52]", "&#99;&#52;"
    *map(_in_base64, range(3)),
    *map(_in_base32, range(5)),
    _Kind(lambda text, _: (text,)),
)

_LETTERS = re.compile("[A-Za-z0-9]+")
_PIECES = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
_HEADS = "(?m)^[A-Za-z0-9]{0,3}"  # compiled when it is first needed, and kept by `re`
_BASE32 = string.ascii_lowercase + "234567"
_PAIRS = [one + other for one in _BASE32 for other in _BASE32]


@lru_cache(maxsize=256)
def _heads(data: bytes, text: str) -> tuple[Sequence[str], str]:
    """
    The letters and digits with which the spellings of a secret begin, at most 3 and in lower case.

    Three bytes of the secret decide them, and three bytes of it may outlive it. Tokens of one maker
    begin alike.

    Returns:
        The head of each spelling, in the order of `_KINDS`; it is "" if a spelling begins with
        something else. And all heads in one text, a space before each.
    """
    # Same as `letters` of `_KINDS`, which takes twenty times as long for so few bytes.
    bits, digits = int.from_bytes(data, "big"), data.hex()
    shifted = bits << 48 | (bits << 4 & 0xFFFFFF) << 24 | bits << 2 & 0xFFFFFF
    coded = base64.b64encode(shifted.to_bytes(9, "big")).decode()
    of_base32 = (bits >> 9, bits >> 7, bits >> 5, bits >> 8, bits >> 6)  # as 0, 2, 4, 1, 3 bits on
    first = digits[:2]
    begins = (
        *(digits[:3], first + "0", first + "x", first + "u", first + "2"),
        "".join(map(str, data))[:3],
        *(coded[:3], coded[4:7], coded[8:11]),
        *[_PAIRS[n >> 5 & 1023] + _BASE32[n & 31] for n in of_base32],
        text,  # at the end: it may have several lines
    )
    # Lowered only then: there are other characters whose lower case is a letter of ASCII.
    found = " ".join(re.findall(_HEADS, "\n".join(begins))[: len(_KINDS)]).lower()
    return found.split(" "), f" {found}"


class Spelling:
    """
    One way in which a text may spell a secret.

    Attributes:
        view: See `_Kind`.
        fragment: A part of the letters and digits of each text that spells the secret so, in lower
            case; "" if no part is long enough to search by.
    """

    __slots__ = ("_data", "_kind", "_sample", "_text", "fragment", "view")

    def __init__(self, text: str, data: bytes, kind: _Kind) -> None:
        # Not the `Secret`, which holds this: in a cycle, it would outlive its turn.
        self._text, self._data = text, data
        self._kind, self.view = kind, kind.view
        self._sample = kind.letters(text[:_SAMPLE], data[:_SAMPLE])[-1]
        longest = max(_LETTERS.findall(self._sample), key=len, default="")
        self.fragment = longest[:_FRAGMENT].lower() if len(longest) > 3 else ""

    def search(self, view: str, found: list[tuple[int, int]]) -> int:
        """
        Add to *found* where *view* spells it, as beginnings and ends.

        Returns:
            The beginning of what may continue as a spelling after the end of *view*; the length of
            *view* if nothing may.
        """
        if len(self._data) > _SAMPLE:  # its beginning costs the same, however long it is
            begun: list[tuple[int, int]] = []
            opened = self._search(view, (self._sample,), begun)
            if not begun:
                return opened
        return self._search(view, self._kind.letters(self._text, self._data), found)

    def _search(self, view: str, spelled: Sequence[str], found: list[tuple[int, int]]) -> int:
        opened = size = len(view)
        for letters in spelled:
            if letters in MASK:  # it would be found in the mask again
                continue
            reader = _Reader(letters, self._kind.alike)
            # Only a text and a secret that repeat themselves need more: then the text counts as
            # secret, rather than stop the process.
            steps = 2 * (size + len(letters)) + 1000
            start = reader.start(view, 0)
            while start >= 0:
                end, goes_on, taken = reader.read(view, start)
                steps -= taken
                if steps < 0:
                    end = size
                if end:
                    found.append((start, end))
                if goes_on:
                    opened = min(opened, start)
                start = reader.start(view, end or start + 1)
        return opened


class _Reader:
    """Reads *letters*, all but letters and digits of ASCII in any of their ways."""

    def __init__(self, letters: str, alike: Mapping[str, str]) -> None:
        self._letters, self._alike = letters, alike
        pieces = _PIECES.finditer(letters)
        first, second = next(pieces)[0], next(pieces, None)
        self._run = first if _LETTERS.match(first) else ""
        marked = second[0] if self._run and second else "" if self._run else first
        self._marks = "".join(self._ways(marked)) if marked else ""  # of what follows the run

    def _ways(self, piece: str) -> Mapping[str, _Ways]:
        return _ways(self._alike.get(piece, piece))

    def start(self, view: str, at: int) -> int:
        """Where *view* may begin to spell them, from *at* on; -1: nowhere."""
        run, marks, size = self._run, self._marks, len(view)
        if not run:
            found = re.compile(f"[{re.escape(marks)}]").search(view, at)
            return found.start() if found else -1
        least = at
        while (at := view.find(run, at)) >= 0:
            end = at + len(run)
            if not marks or end == size or view[end] in marks:
                return at
            at += 1
        few = run[:LEAST]  # the end of a text may be the beginning of a longer run
        at = max(least, size - len(run) + 1)
        while (at := view.find(few, at)) >= 0:
            if run.startswith(view[at:]):
                return at
            at += 1
        for at in range(max(least, size - len(few) + 1), size):
            if few.startswith(view[at:]):
                return at
        return -1

    def read(self, view: str, start: int) -> tuple[int, bool, int]:
        """
        Read them from *start* on.

        Returns:
            The end, or 0; whether more text may give another end; the number of steps.
        """
        most = len(self._letters) - 1
        if view.startswith(self._letters[:most], start):  # but perhaps the last one, as they are
            end, goes_on, steps = self._read(view, start + most, most)
            if end or goes_on:
                return end, goes_on, steps
        return self._read(view, start, 0)

    def _read(self, view: str, start: int, begun: int) -> tuple[int, bool, int]:
        size, steps, goes_on = len(view), 1, False
        ends = {start}
        for found in _PIECES.finditer(self._letters, begun):
            piece = found[0]
            ways = None if _LETTERS.match(piece) else self._ways(piece)
            after: set[int] = set()
            for end in ends:
                at = end
                if ways is None or at == size:
                    if view.startswith(piece, at):
                        after.add(at + len(piece))
                    elif size - at < len(piece) and piece.startswith(view[at:]):
                        goes_on = True
                    continue
                known = ways.get(view[at], _NO_WAY)
                if view[at] == "\\":
                    at = re.compile(_BACKSLASHES).match(view, at).end()  # type: ignore[union-attr]  # it is one
                    after.update(range(end + 1, at + 1) if piece == "\\" else ())
                for n in known.lengths:
                    if at + n <= size and view[at : at + n] in known.written:
                        after.add(at + n)
                if size - at < known.lengths[-1]:
                    goes_on = goes_on or known.begins(view[at:])
            steps += len(ends)
            ends = after
            if not ends:
                break
        return max(ends, default=0), goes_on, steps


# --- the ways to write one character -------------------------------------------------------------

_BACKSLASHES = r"\\+"
_SHORT = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\v": "v", "\0": "0"}


class _Ways(NamedTuple):
    """The ways to write a character that begin alike, and their lengths in ascending order."""

    written: frozenset[str]
    lengths: Sequence[int]

    def begins(self, text: str) -> bool:
        """True if one of them is longer than *text*, and begins with it."""
        return any(len(way) > len(text) and way.startswith(text) for way in self.written)


_NO_WAY = _Ways(frozenset(), (0,))


@lru_cache(maxsize=1024)
def _ways(chars: str) -> Mapping[str, _Ways]:
    """
    All ways to write one of *chars*, by their first character; also as UTF-8 read as Latin-1.

    A way that begins with backslashes is without them: each encoder within another doubles them.
    """
    found: dict[str, set[str]] = {}
    for char in chars:
        entities, escapes = _entities(char), _escapes(char)
        data = char.encode("utf-8", "surrogatepass")
        plain = {char, data.decode("latin-1"), *entities, *_percent_encoded(data)}
        # JSON and HTML in a URL, once and twice; `&amp;` in HTML, and in JSON as Go writes it.
        plain |= {mark + one[1:] for mark in ("&amp;", "&amp;amp;") for one in entities}
        quoted = {quote(one, safe="") for one in entities}
        quoted |= {quote("\\" * n + one, safe="") for n in (1, 2, 3) for one in escapes}
        quoted |= {quote(one, safe="") for one in quoted}
        plain |= quoted | {_small_digits(one) for one in quoted}
        escapes |= entities | {"u0026" + one[1:] for one in entities}
        for one in plain:
            found.setdefault(one[0], set()).add(one)
        found.setdefault("\\", set()).update(escapes)
    return {
        mark: _Ways(frozenset(ways), sorted({len(way) for way in ways}))
        for mark, ways in found.items()
    }


def _small_digits(encoded: str) -> str:
    return re.sub("%(?:25)*[0-9A-F]{2}", lambda found: found[0].lower(), encoded)


def _percent_encoded(data: bytes) -> set[str]:
    """In URLs: once, and again as a part of others."""
    found = {"+", "%2B", "%252B"} if data == b" " else set()
    for times in range(4):
        mark = "%" + "25" * times
        found.add("".join(f"{mark}{byte:02X}" for byte in data))
    return found | {_small_digits(one) for one in found}


def _entities(char: str) -> set[str]:
    """In HTML and XML."""
    from html.entities import codepoint2name  # compiles a pattern; most turns have no secret

    code = ord(char)
    names = {"#" + digits for digits in (f"{code}", f"0{code}", f"x{code:x}", f"x{code:X}")}
    names |= {codepoint2name[code]} if code in codepoint2name else set()
    names |= {"apos"} if char == "'" else set()
    return {f"&{name};" for name in names}


def _escapes(char: str) -> set[str]:
    """In JSON and in `repr`, after one backslash or more."""
    units = char.encode("utf-16-be", "surrogatepass")
    data = char.encode("utf-8", "surrogatepass")
    found = {_SHORT.get(char, char)} if char in _SHORT or char in string.punctuation else set()
    for form in ("x", "X"):
        found.add(f"U{ord(char):08{form}}")
        found |= {f"x{ord(char):02{form}}"} if ord(char) < 256 else set()
        for n in (1, 2, 4):
            found.add(("\\" * n).join(f"u{unit:04{form}}" for unit in _pairs(units)))
            found.add(("\\" * n).join(f"x{byte:02{form}}" for byte in data))
    return found


def _pairs(units: bytes) -> Iterator[int]:
    return (high * 256 + low for high, low in zip(units[::2], units[1::2], strict=True))


# --- the search of a text ------------------------------------------------------------------------


class Found(NamedTuple):
    """
    Where a text spells secrets.

    Attributes:
        spans: Beginnings and ends, in order; they do not overlap.
        opened: The beginning of what may continue as a spelling after the end of the text.
        letters: The number of characters from there on that would be a part of it.
    """

    spans: Sequence[tuple[int, int]]
    opened: int
    letters: int


def search(text: str, spellings: Iterable[Spelling]) -> Found:
    """Search *text* for *spellings*."""
    views: dict[Any, _View] = {}
    spans: list[tuple[int, int]] = []
    opened, letters = len(text), 0
    for spelling in spellings:
        view = views.get(spelling.view)
        if view is None:
            view = views[spelling.view] = _View(text, spelling.view)
        found: list[tuple[int, int]] = []
        at = spelling.search(view.chars, found)
        spans += [(view.place(start), view.place(end - 1) + 1) for start, end in sorted(found)]
        if at < len(view.chars):
            opened = min(opened, view.place(at))
            letters = max(letters, len(view.chars) - at)
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    for start, end in merged:
        if start < opened < end:
            opened = start
    return Found(merged, opened, letters)


class _View:
    """A part of the characters of *text*, and their places in it."""

    def __init__(self, text: str, kept: Callable[[str], str] | None) -> None:
        self.chars = kept(text) if kept else text
        self._text, self._kept = text, kept
        self._from = self._before = 0  # so many characters are kept before this place

    def place(self, number: int) -> int:
        """The place in the text of character *number*; it is quick in ascending order."""
        if self._kept is None:
            return number
        if number == len(self.chars) - 1:  # the end of a text may be the beginning of a secret
            return max(map(self._text.rfind, {self.chars[-1], self.chars[-1].upper()}))
        if number < self._before:
            self._from = self._before = 0
        step = 4096
        while True:
            count = len(self._kept(self._text[self._from : self._from + step]))
            if self._before + count <= number:
                self._before, self._from = self._before + count, self._from + step
            elif step == 1:
                return self._from
            else:
                step //= 8
