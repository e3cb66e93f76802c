"""
A provider whose model writes its thoughts into its text, as one that keeps them apart.

What stands in tags such as `<think>...</think>` becomes thinking content, live and in the final
message; see `looopy.llm.tag_splitter` for what counts as a tag. Everything else passes as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from looopy.errors import ConfigurationError
from looopy.llm.provider import LLMProvider
from looopy.llm.resolve import resolve_provider
from looopy.llm.tag_splitter import THOUGHT_TAGS, Piece, TagSplitter
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    TextContent,
    ThinkingContent,
)
from looopy.types.request import (
    LLMRequest,
    PartialMessage,
    StreamEvent,
    StreamEventType,
    StreamOptions,
)


class ThoughtTags:
    """
    Stands before *provider* and takes the thoughts out of its text. See `LLMProvider`.

    What else the provider has (`name`, `model`, `window_tokens`, ...) is had through this one too.

    Args:
        provider: A name or a provider.
        tags: Names of the tags that hold thoughts.
        inside: A tag that each answer begins within, for models whose prompt ends in `<think>`, so
            that only its end is in the answer.

    Raises:
        ConfigurationError: A tag is no name of letters, digits, `-` and `_`, or *inside* is none
            of *tags*.
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
                raise ConfigurationError(f"{tag!r} is no name of a tag, such as 'think'")
        if isinstance(tags, str) or not tags:
            raise ConfigurationError("tags takes names, such as ['think', 'analysis']")
        if inside and inside.lower() not in [tag.lower() for tag in tags]:
            raise ConfigurationError(f"inside={inside!r} is none of the tags")
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
        if hasattr(events, "aclose"):
            async with aclosing(cast("Any", events)):
                async for event in events:
                    for made in answer.read(event):
                        yield made
        else:
            async for event in events:
                for made in answer.read(event):
                    yield made


class _Answer:
    """One answer: events of the provider in, events with thoughts apart out."""

    def __init__(self, tags: Sequence[str], inside: str) -> None:
        self._tags = tags
        self._inside = inside
        self._places: dict[int, int] = {}  # of blocks that pass, in the provider's count and ours
        self._splitter: TagSplitter | None = None  # of the text that comes
        self._splitting = -1  # its place in the provider's count
        self._blocks = 0  # begun so far, in our count
        self._open: tuple[str, int, list[str]] | None = None  # kind, place and text so far
        self._partial: _Partial | None = None

    def read(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """What *event* becomes."""
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
    """The message so far, looked at when somebody does."""

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
        """What has come so far, thoughts apart."""
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
