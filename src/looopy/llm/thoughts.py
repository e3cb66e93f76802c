"""
Thoughts that a model writes into its text, in tags such as `<think>...</think>`.

`TagSplitter` separates them from the text around them, however the stream cuts them. `ThoughtTags`
wraps a provider: thoughts become thinking content, live and in the final message.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from looopy.errors import ConfigurationError
from looopy.llm.provider import LLMProvider
from looopy.llm.resolve import resolve_provider
from looopy.types.message import AssistantBlock, AssistantMessage, TextContent, ThinkingContent
from looopy.types.request import (
    LLMRequest,
    PartialMessage,
    StreamEvent,
    StreamEventType,
    StreamOptions,
)

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
_LONGEST_TAG: Final = 512  # characters, attributes included; a longer one is not a tag
_FENCE: Final = 3  # backticks or tildes that open a block of code
_LONGEST_RUN: Final = 512  # a longer one counts as several, so no run is read again and again
_MOST_INDENT: Final = 3  # spaces before them
_SPECIAL: Final = re.compile(r"[<`~\n]")


@dataclass(frozen=True, slots=True)
class Piece:
    """
    A piece of the answer.

    Attributes:
        kind: Text for the reader, or a thought.
        text: Never empty.
        first: True if it begins another block: a thought, or the text after one.
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
        self._held = ""  # may become a tag, or a longer run of backticks
        self._out: list[Piece] = []
        self._kind: str | None = None  # of the block that is open
        self._space = ""  # of the text, shown if more of it follows
        self._pause = ""  # of the thought, shown if more of it follows
        self._last = ""  # the last character of text that was shown
        self._tagged = False  # a tag came since
        self._indent = 0  # spaces since the line began; more than enough when there was more
        self._fence = ""  # the run that opened the block of code we are in
        self._fence_line = False  # still on the line that opened it
        self._span = 0  # backticks that opened the span of code we are in

    def feed(self, text: str) -> list[Piece]:
        """Take more of the text, and return the pieces that are certain."""
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
        """A tag opens the thought *within*, or closes one, or is plain text."""
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


class ThoughtTags:
    """
    Wraps *provider* and takes the thoughts out of its text. See `LLMProvider`.

    The other attributes of the provider (`name`, `model`, `window_tokens`, ...) are available here
    too.

    Args:
        provider: A name or a provider.
        tags: Names of the tags that hold thoughts.
        inside: A tag that each answer begins within, for models whose prompt ends in `<think>`, so
            that only its end is in the answer.

    Raises:
        ConfigurationError: A tag is not a name of letters, digits, `-` and `_`, or *inside* is not
            one of *tags*.
    """

    def __init__(
        self,
        provider: LLMProvider | str,
        *,
        tags: Sequence[str] = THOUGHT_TAGS,
        inside: str = "",
    ) -> None:
        for tag in (tags,) if isinstance(tags, str) else tags:
            if not tag[:1].isalpha() or not tag.replace("-", "").replace("_", "").isalnum():
                raise ConfigurationError(f"{tag!r} is not the name of a tag, such as 'think'")
        if isinstance(tags, str) or not tags:
            raise ConfigurationError("tags takes names, such as ['think', 'analysis']")
        if inside and inside.lower() not in [tag.lower() for tag in tags]:
            raise ConfigurationError(f"inside={inside!r} is not one of the tags")
        self.provider = resolve_provider(provider)
        self._tags = tuple(tags)
        self._inside = inside

    def __repr__(self) -> str:
        return f"<ThoughtTags {self.provider!r}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "provider":
            raise AttributeError(name)
        return getattr(self.provider, name)

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events. See `LLMProvider.stream`."""
        answer = _Answer(self._tags, self._inside)
        events = self.provider.stream(request, options or StreamOptions())
        closing = aclosing(cast("Any", events)) if hasattr(events, "aclose") else nullcontext()
        async with closing:
            async for event in events:
                for made in answer.read(event):
                    yield made


class _Answer:
    """One answer: events of the provider in, events with thoughts apart out."""

    def __init__(self, tags: Sequence[str], inside: str) -> None:
        self._tags = tags
        self._inside = inside
        self._places: dict[int, int] = {}  # of blocks that pass, in the provider's count and ours
        self._splitter: TagSplitter | None = None  # of the coming text
        self._splitting = -1  # its place in the provider's count
        self._blocks = 0  # begun so far, in our count
        self._open: tuple[str, int, list[str]] | None = None  # kind, place and text so far
        self._partial: _Partial | None = None

    def read(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """The events for *event*."""
        inner = event.partial
        self._partial = None if inner is None else _Partial(inner, self._tags, self._inside)
        kind = event.type
        if kind in ("text_start", "text_delta", "text_end"):
            yield from self._text(event)
            return
        if kind == "start":
            yield replace(event, partial=self._partial)
            return
        yield from self._end_text()
        if kind in ("done", "error"):
            message = event.message
            if message is not None:
                message = without_tags(message, self._tags, inside=self._inside)
            yield replace(event, partial=self._partial, message=message)
            return
        place = self._places.get(event.content_index)
        if place is None:
            place = self._places[event.content_index] = self._blocks
            self._blocks += 1
        yield replace(event, partial=self._partial, content_index=place)

    def _text(self, event: StreamEvent) -> Iterator[StreamEvent]:
        if event.content_index != self._splitting:
            yield from self._end_text()
            inside = self._inside if event.content_index == 0 else ""
            self._splitter = TagSplitter(self._tags, inside=inside)
            self._splitting = event.content_index
        if event.type == "text_end":
            yield from self._end_text()
        elif self._splitter is not None and event.type == "text_delta":
            yield from self._show(self._splitter.feed(event.delta))

    def _end_text(self) -> Iterator[StreamEvent]:
        splitter, self._splitter = self._splitter, None
        if splitter is not None:
            yield from self._show(splitter.close())
            yield from self._end_block()

    def _show(self, pieces: Sequence[Piece]) -> Iterator[StreamEvent]:
        for piece in pieces:
            kind = "text" if piece.kind == "text" else "thinking"
            if piece.first or self._open is None:
                yield from self._end_block()
                self._open = (kind, self._blocks, [])
                self._blocks += 1
                yield self._event(f"{kind}_start", self._open[1])
            self._open[2].append(piece.text)
            yield self._event(f"{kind}_delta", self._open[1], piece.text)

    def _end_block(self) -> Iterator[StreamEvent]:
        block, self._open = self._open, None
        if block is not None:
            kind, place, parts = block
            yield self._event(f"{kind}_end", place, "".join(parts))

    def _event(self, kind: str, place: int, text: str = "") -> StreamEvent:
        return StreamEvent(cast("StreamEventType", kind), place, text, self._partial)


class _Partial:
    """The message so far, computed on demand."""

    __slots__ = ("_inner", "_inside", "_tags")

    def __init__(self, inner: PartialMessage, tags: Sequence[str], inside: str) -> None:
        self._inner = inner
        self._tags = tags
        self._inside = inside

    @property
    def text(self) -> str:
        """The text so far, without thoughts."""
        return self.snapshot().text

    def snapshot(self) -> AssistantMessage:
        """The content so far, with thoughts apart."""
        return without_tags(self._inner.snapshot(), self._tags, inside=self._inside)


def without_tags(
    message: AssistantMessage, tags: Sequence[str] = THOUGHT_TAGS, *, inside: str = ""
) -> AssistantMessage:
    """
    *message* with the thoughts of its text as thinking content.

    A text without tags stays the same object. One that is split loses its signature, which was over
    other words.
    """
    content: list[AssistantBlock] = []
    for place, block in enumerate(message.content):
        if isinstance(block, TextContent):
            content += _split(block, tags, inside if place == 0 else "")
        else:
            content.append(block)
    same = len(content) == len(message.content)
    if same and all(new is old for new, old in zip(content, message.content, strict=True)):
        return message
    return replace(message, content=tuple(content))


def _split(block: TextContent, tags: Sequence[str], inside: str) -> list[AssistantBlock]:
    splitter = TagSplitter(tags, inside=inside)
    blocks: list[tuple[str, list[str]]] = []
    for piece in (*splitter.feed(block.text), *splitter.close()):
        if piece.first or not blocks:
            blocks.append((piece.kind, []))
        blocks[-1][1].append(piece.text)
    texts = [(kind, "".join(parts)) for kind, parts in blocks]
    if texts == [("text", block.text)] or not block.text:
        return [block]
    return [TextContent(t) if kind == "text" else ThinkingContent(t) for kind, t in texts]
