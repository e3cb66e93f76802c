"""
Text, thinking and calls of an answer as they grow, for every protocol that streams them.

An answer comes twice: as deltas while the model writes it, and whole once it is committed. A view
that attaches late has missed deltas, and a slow one has them merged. A `GrowingAnswer` turns all of
that into pieces that together are the committed answer: no text twice, none lost. The arguments of
a call come as the model writes them; the committed call is their end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from looopy.types.event import MessageUpdate
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from looopy.types.request import StreamEvent

Kind: TypeAlias = Literal["text", "thinking", "call"]


@dataclass(frozen=True, slots=True)
class Piece:
    """
    More of one block of an answer.

    Attributes:
        block: The block's number among blocks with text, from 0; 0 for a call.
        text: May be empty if the piece only ends the block. For a call, more of its arguments.
        begins: The block was not announced before.
        ends: The block is complete. No piece ends a call.
        call_id, name: Of a call.
    """

    kind: Kind
    block: int
    text: str = ""
    begins: bool = False
    ends: bool = False
    call_id: str = ""
    name: str = ""


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

    Args:
        may_call: True for the id of a call that the viewer wants to have as it grows. The others
            are to be shown once they are committed: such as one with an id that the turn has used,
            because the committed call gets another. `None`: none of them.

    Attributes:
        arguments: Of each call that the viewer has, what it has of the arguments: by id.
    """

    def __init__(self, may_call: Callable[[str], bool] | None = None) -> None:
        self.arguments: dict[str, list[str]] = {}
        self._may_call = may_call
        self._calls: dict[int, tuple[str, str]] = {}  # id and name, by index
        self._in_order = True  # no call was left out, so the next one may be shown
        self._blocks: list[_Block] = []
        self._open = False  # the last block may grow
        self._by_snapshot: bool | None = None  # None: no delta has come

    def drop(self) -> bool:
        """Return true if something was shown that was not committed: a call of the model failed."""
        shown = bool(self._blocks or self._calls)
        self._blocks, self._open, self._by_snapshot = [], False, None
        self._calls, self.arguments, self._in_order = {}, {}, True
        return shown

    def more(self, event: MessageUpdate) -> Iterator[Piece]:
        """The pieces that follow from a delta."""
        said, partial = event.event, event.partial
        if self._by_snapshot is None:
            begins = said is not None and said.type.endswith("_start") and not event.content_index
            self._by_snapshot = not begins and partial is not None
        if said is None and not event.delta and partial is not None:
            self._by_snapshot = True  # merged thinking: only the message so far has it
        if self._may_call is not None and said is not None and said.type.startswith("toolcall"):
            yield from self._call(said, self._may_call)
        if self._by_snapshot and partial is not None:
            for number, (kind, text) in enumerate(_shown(partial.snapshot())):
                seen = self._blocks[number].length if number < len(self._blocks) else 0
                yield from self._grow(kind, number, number, text[seen:])
            return
        if event.delta:
            yield from self._delta("text", event.content_index, event.delta)
        elif said is not None and said.type == "thinking_delta":
            yield from self._delta("thinking", event.content_index, said.delta)

    def _call(self, said: StreamEvent, may_call: Callable[[str], bool]) -> Iterator[Piece]:
        index, call = said.content_index, said.tool_call
        if said.type == "toolcall_start":
            known = call is not None and bool(call.name) and bool(call.id.strip())
            self._in_order = self._in_order and known and not self._by_snapshot
            if call is None or not self._in_order:
                return
            if call.id in self.arguments or not may_call(call.id):
                self._in_order = False
                return
            self._calls[index] = (call.id, call.name)
            self.arguments[call.id] = []
            yield Piece("call", 0, begins=True, call_id=call.id, name=call.name)
        elif said.type == "toolcall_delta" and index in self._calls and said.delta:
            call_id, name = self._calls[index]
            self.arguments[call_id].append(said.delta)
            yield Piece("call", 0, said.delta, call_id=call_id, name=name)

    def end(self, message: AssistantMessage) -> tuple[bool, list[Piece]]:
        """
        True if what was shown is not how the committed *message* begins; the missing pieces.

        They have no calls: the viewer shows the message's.
        """
        final = list(_shown(message))
        seen: list[tuple[Kind, str]] = [(b.kind, "".join(b.parts)) for b in self._blocks]
        anew = not _begins(final, seen) or not self._leads_to(message)
        if anew:
            self.drop()
        pieces: list[Piece] = []
        for number, (kind, text) in enumerate(final):
            known = self._blocks[number].length if number < len(self._blocks) else 0
            pieces += self._grow(kind, number, number, text[known:])
        pieces += self._close()
        self.drop()
        return anew, pieces

    def _leads_to(self, message: AssistantMessage) -> bool:
        """True if the shown calls are the calls of *message*, each in its place."""
        if self._may_call is None:
            return True
        waiting = dict.fromkeys(self._calls.values())
        texts, left_out = 0, False
        for block in message.content:
            if isinstance(block, ToolCall):
                known = (block.id, block.name) in waiting
                waiting.pop((block.id, block.name), None)
                left_out = left_out or not known
            elif next(_shown_of(block), None) is not None:
                texts += 1
                if left_out and texts <= len(self._blocks):
                    return False
        return not waiting

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
        yield from _shown_of(block)


def _shown_of(block: AssistantBlock) -> Iterator[tuple[Kind, str]]:
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
