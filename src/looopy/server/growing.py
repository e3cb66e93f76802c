"""
The text and the thinking of an answer as they grow, for every face that streams them.

An answer comes twice: as deltas while the model writes it, and whole once it is committed. A view
that attaches late has missed deltas, and a slow one has them merged. A `GrowingAnswer` turns all of
that into pieces that together are the committed answer: no text twice, none lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from looopy.types.event import MessageUpdate
from looopy.types.message import AssistantMessage, TextContent, ThinkingContent

Kind: TypeAlias = Literal["text", "thinking"]


@dataclass(frozen=True, slots=True)
class Piece:
    """
    More of one block of an answer.

    Attributes:
        block: The block's number among those that have text, from 0.
        text: May be empty if the piece only ends the block.
        begins: The block was not announced before.
        ends: The block is complete.
    """

    kind: Kind
    block: int
    text: str = ""
    begins: bool = False
    ends: bool = False


class _Block:
    __slots__ = ("index", "kind", "length", "parts")

    def __init__(self, kind: Kind, index: int) -> None:
        self.kind: Kind = kind
        self.index = index
        self.parts: list[str] = []
        self.length = 0


class GrowingAnswer:
    """
    The part of the answer being written that a viewer has; one object serves all answers.

    Each method returns pieces to show now. If `end` or `drop` returns true as well, the viewer must
    first forget everything that it has seen of this answer.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._open = False  # the last block may grow
        self._by_snapshot: bool | None = None  # None: no delta has come

    def drop(self) -> bool:
        """Return true if something was shown that was not committed: a call of the model failed."""
        shown = bool(self._blocks)
        self._blocks, self._open, self._by_snapshot = [], False, None
        return shown

    def more(self, event: MessageUpdate) -> Iterator[Piece]:
        """The pieces that follow from a delta."""
        said, partial = event.event, event.partial
        if self._by_snapshot is None:
            begins = said is not None and said.type.endswith("_start") and not event.content_index
            self._by_snapshot = not begins and partial is not None
        if said is None and not event.delta and partial is not None:
            self._by_snapshot = True  # merged thinking: only the message so far has it
        if self._by_snapshot and partial is not None:
            for number, (kind, text) in enumerate(_shown(partial.snapshot())):
                seen = self._blocks[number].length if number < len(self._blocks) else 0
                yield from self._grow(kind, number, number, text[seen:])
            return
        if event.delta:
            yield from self._delta("text", event.content_index, event.delta)
        elif said is not None and said.type == "thinking_delta":
            yield from self._delta("thinking", event.content_index, said.delta)

    def end(self, message: AssistantMessage) -> tuple[bool, list[Piece]]:
        """True if what was shown is not how the committed *message* begins; the missing pieces."""
        final = list(_shown(message))
        seen: list[tuple[Kind, str]] = [(b.kind, "".join(b.parts)) for b in self._blocks]
        anew = not _begins(final, seen)
        if anew:
            self.drop()
        pieces: list[Piece] = []
        for number, (kind, text) in enumerate(final):
            known = self._blocks[number].length if number < len(self._blocks) else 0
            pieces += self._grow(kind, number, number, text[known:])
        pieces += self._close()
        self.drop()
        return anew, pieces

    def _delta(self, kind: Kind, index: int, text: str) -> Iterator[Piece]:
        last = self._blocks[-1] if self._blocks else None
        same = last is not None and last.index == index and last.kind == kind
        number = len(self._blocks) - 1 if same else len(self._blocks)
        yield from self._grow(kind, number, index, text)

    def _grow(self, kind: Kind, number: int, index: int, text: str) -> Iterator[Piece]:
        if not text:
            return
        begins = number == len(self._blocks)
        if begins:
            yield from self._close()
            self._blocks.append(_Block(kind, index))
            self._open = True
        block = self._blocks[number]
        block.parts.append(text)
        block.length += len(text)
        yield Piece(kind, number, text, begins=begins)

    def _close(self) -> Iterator[Piece]:
        if self._open:
            self._open = False
            yield Piece(self._blocks[-1].kind, len(self._blocks) - 1, ends=True)


def _shown(message: AssistantMessage) -> Iterator[tuple[Kind, str]]:
    for block in message.content:
        if isinstance(block, TextContent) and block.text:
            yield "text", block.text
        elif isinstance(block, ThinkingContent) and block.thinking:
            yield "thinking", block.thinking


def _begins(final: Sequence[tuple[Kind, str]], seen: Sequence[tuple[Kind, str]]) -> bool:
    """True if *seen* is how *final* begins; only its last block may be shorter."""
    if len(seen) > len(final):
        return False
    for number, (kind, text) in enumerate(seen):
        whole_kind, whole = final[number]
        if kind != whole_kind:
            return False
        if number == len(seen) - 1:
            return whole.startswith(text)
        if whole != text:
            return False
    return True
