"""
Tells thoughts in tags from the text around them, however the stream cuts them.

Some models write what they think into their answer, as `<thinking>...</thinking>`. A `TagSplitter`
is fed the text as it comes and gives pieces of text and of thoughts. What it says never depends on
how the text was cut: what may still become a tag is held back until it is one or is none.

Tags within code (fenced blocks, and spans in backticks on one line) are code. Whitespace is kept,
but for that at the edges of tags: within them, and beside them where there is some on the other
side or nothing at all. A thought ends at the first closing tag of its name, or with the text; a
tag that closes nothing is dropped, and what only begins like a tag is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

THOUGHT_TAGS: Final = (
    "thinking",
    "think",
    "thought",
    "analysis",
    "reasoning",
    "reflection",
    "planning",
    "debugging",
    "decision",
    "observation",
    "strategizing",
)
"""Names of tags that models put their thoughts into."""

_LONGEST_TAG: Final = 512  # characters, attributes included; what goes on is no tag
_FENCE: Final = 3  # backticks or tildes that open a block of code
_LONGEST_RUN: Final = 512  # what is longer counts as several: a run is not read again and again
_MOST_INDENT: Final = 3  # spaces before them
_SPECIAL: Final = re.compile(r"[<`~\n]")


@dataclass(frozen=True, slots=True)
class Piece:
    """
    A piece of what was said.

    Attributes:
        kind: Text for the reader, or a thought.
        text: Never empty.
        first: Whether it begins another block: a thought, or the text after one.
    """

    kind: Literal["text", "thought"]
    text: str
    first: bool


class TagSplitter:
    """
    Splits one text.

    Args:
        tags: Names of tags that hold thoughts, in letters; their case does not matter.
        inside: A tag that the text is within from its beginning: the prompt of some models ends in
            one.
    """

    def __init__(self, tags: Sequence[str] = THOUGHT_TAGS, *, inside: str = "") -> None:
        self._tags = tuple(tag.lower() for tag in tags)
        names = "|".join(sorted(self._tags, key=len, reverse=True))
        quoted = "\"[^\"]*\"|'[^']*'"
        self._whole = re.compile(
            rf"<(?P<slash>/?)(?P<name>{names})(?:\s(?:[^<>\"']|{quoted})*)?/?>", re.IGNORECASE
        )
        self._begun = re.compile(
            rf"</?(?:{names})(?:/|\s(?:[^<>\"']|{quoted})*(?:\"[^\"]*|'[^']*)?)?", re.IGNORECASE
        )
        self._within = inside.lower()
        self._held = ""  # what may become a tag, or a longer run of backticks
        self._out: list[Piece] = []
        self._kind: str | None = None  # of the block that is open
        self._space = ""  # of the text, shown if some follows
        self._pause = ""  # of the thought, shown if more of it follows
        self._last = ""  # the last character of text that was shown
        self._tagged = False  # a tag came since
        self._indent = 0  # spaces since the line began; more than enough when there was more
        self._fence = ""  # the run that opened the block of code we are in
        self._fence_line = False  # still on the line that opened it
        self._span = 0  # backticks that opened the span of code we are in

    def feed(self, text: str) -> list[Piece]:
        """Take more of the text, and give what can be told."""
        return self._split(text, final=False)

    def close(self) -> list[Piece]:
        """The text is over: give the rest."""
        pieces = self._split("", final=True)
        if self._space and not self._within and not self._tagged:
            pieces += self._taken("text", self._space)
        self._space = ""
        return pieces

    def _split(self, text: str, *, final: bool) -> list[Piece]:
        data, place = self._held + text, 0
        while place < len(data):
            read_on = self._thought if self._within else self._plain
            step = read_on(data, place, final=final)
            if not step:
                break
            place += step
        self._held = data[place:]
        pieces, self._out = self._out, []
        return pieces

    # --- within a thought ------------------------------------------------------------------------

    def _thought(self, data: str, place: int, *, final: bool) -> int:
        """Read on within a thought; how far, 0 when more is needed."""
        end = data.find("<", place)
        if end != place:
            end = len(data) if end < 0 else end
            self._think(data[place:end])
            return end - place
        closing = f"</{self._within}"
        rest = data[place : place + _LONGEST_TAG]
        if rest[: len(closing)].lower() == closing:
            after = rest[len(closing) :].lstrip()
            if after[:1] == ">":
                self._edge("")
                return len(rest) - len(after) + 1
            waits = not after and len(rest) < _LONGEST_TAG
        else:
            waits = closing.startswith(rest.lower())
        if waits and not final:
            return 0
        self._think("<")
        return 1

    def _think(self, text: str) -> None:
        """Show a thought, without whitespace at its edges."""
        said = text.rstrip()
        if not said:
            self._pause += text if self._kind else ""
            return
        pause = text[len(said) :]
        said = self._pause + said if self._kind else said.lstrip()
        self._pause = pause
        self._out.append(Piece("thought", said, self._kind != "thought"))
        self._kind = "thought"

    # --- between thoughts ------------------------------------------------------------------------

    def _plain(self, data: str, place: int, *, final: bool) -> int:
        """Read on in the text; how far, 0 when more is needed."""
        char = data[place]
        if char == "<" and not (self._fence or self._span):
            return self._angle(data, place, final=final)
        if char in "`~":
            end = place + 1
            most = place + _LONGEST_RUN
            while end < len(data) and end < most and data[end] == char:
                end += 1
            if end == len(data) and end < most and not final:
                return 0
            self._run(char, end - place)
            return self._say(data[place:end])
        if char == "\n":
            self._indent, self._span, self._fence_line = 0, 0, False
            return self._say(char)
        found = _SPECIAL.search(data, place + 1)
        said = data[place : found.start() if found else len(data)]
        self._indent += len(said) if not said.strip(" ") else _MOST_INDENT + 1
        return self._say(said)

    def _angle(self, data: str, place: int, *, final: bool) -> int:
        """Read a tag, or what looks like one."""
        rest = data[place : place + _LONGEST_TAG]
        tag = self._whole.match(rest)
        if tag is not None:
            opens = not tag["slash"] and not tag[0].endswith("/>")
            self._edge(tag["name"].lower() if opens else "")
            return tag.end()
        begun = self._begun.fullmatch(rest)
        name = rest[2:] if rest[1:2] == "/" else rest[1:]
        short = any(t.startswith(name.lower()) for t in self._tags)
        if (begun or short) and len(rest) < _LONGEST_TAG and not final:
            return 0
        self._indent += _MOST_INDENT + 1
        return self._say("<")

    def _run(self, char: str, length: int) -> None:
        """A run of backticks or tildes opens or closes code, or is text."""
        at_line = self._indent <= _MOST_INDENT
        self._indent += _MOST_INDENT + 1
        if self._fence:
            same = char == self._fence[0]
            if same and ((at_line and length >= len(self._fence)) or self._fence_line):
                self._fence = ""  # on its own line it was a span after all
        elif at_line and length >= _FENCE:
            self._fence, self._fence_line = char * length, True
        elif char == "`":
            if not self._span:
                self._span = length
            elif self._span == length:
                self._span = 0

    def _edge(self, within: str) -> None:
        """A tag opens the thought *within*, or closes one, or stands for itself."""
        if not self._last and not self._tagged:
            self._space = ""  # before the first tag there was nothing else
        self._within, self._pause, self._tagged = within, "", True
        if self._kind == "thought" or within:
            self._kind = None

    def _say(self, text: str) -> int:
        """Show text; of whitespace beside a tag, what is on one side."""
        waits = self._tagged or not self._last
        if waits:
            said = text.lstrip()
            self._space += text[: len(text) - len(said)]
            if not said:
                return len(text)
            alone = self._tagged and (not self._last or self._last.isspace())
            shown = said if alone else self._space + said
            self._space, self._tagged = "", False
        else:
            shown = text
        self._out += self._taken("text", shown)
        return len(text)

    def _taken(self, kind: Literal["text"], text: str) -> list[Piece]:
        piece = Piece(kind, text, self._kind != kind)
        self._kind, self._last = kind, text[-1]
        return [piece]
