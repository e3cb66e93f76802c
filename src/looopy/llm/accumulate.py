"""
Builds one assistant message from the pieces of a provider's stream.

Every provider has its own wire format, but all of them send the same few things: more text, more
thinking, more of a tool call's arguments, the end. An `Accumulator` takes these and returns the
stream events that follow from them. Pieces are kept in lists and joined once, so a message costs
time in proportion to its length. `looopy.llm.calls` finds the call that a piece belongs to.

Only a message that ended well announces its tool calls. One that breaks off may be cut anywhere, so
`snapshot` and `error` leave unfinished calls out and keep the text. The arguments of a call are
judged once, in `done`: a JSON object that every store can keep, or `invalid_arguments`.

A character may come in two halves, a surrogate in each of two pieces. The first one waits for the
other, so that no reader ever sees a half.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from looopy.llm.calls import Calls, arguments_of
from looopy.types.constructors import maker
from looopy.types.message import (
    NO_USAGE,
    AssistantBlock,
    AssistantMessage,
    Citation,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
    now_ms,
)
from looopy.types.request import StreamEvent, StreamEventType
from looopy.types.storable import repair_piece

if TYPE_CHECKING:
    from looopy.llm.logprobs import Logprobs

_event = maker(StreamEvent)
_START: dict[str, StreamEventType] = {"text": "text_start", "thinking": "thinking_start"}
_DELTA: dict[str, StreamEventType] = {"text": "text_delta", "thinking": "thinking_delta"}
_END: dict[str, StreamEventType] = {"text": "text_end", "thinking": "thinking_end"}


def _fresh_call_id() -> str:
    return f"call_{os.urandom(12).hex()}"


class _Block:
    """One block as it grows."""

    __slots__ = (
        *("call", "citations", "half", "kind", "lost", "parts", "redacted", "server"),
        *("signature",),
    )

    def __init__(self, kind: Literal["text", "thinking", "toolcall", "server"]) -> None:
        self.kind = kind
        self.parts: list[str] = []
        self.half = ""  # of a character, at the end of what came
        self.lost = False  # a lone half was replaced
        self.signature: list[str] = []
        self.redacted = False
        self.call: ToolCall | None = None  # once finished
        self.citations: list[Citation] | None = None
        self.server: ServerToolCall | ServerToolResult | None = None

    def take(self, piece: str) -> str:
        """Add *piece*; return what may be shown of it, without half a character at its end."""
        if self.half or not piece.isascii():
            whole = self.half + piece
            piece, self.half = repair_piece(whole)
            self.lost = self.lost or piece.count("\ufffd") > whole.count("\ufffd")
        if piece:
            self.parts.append(piece)
        return piece

    def take_rest(self) -> str:
        """Add the half that still waits, as U+FFFD; return it."""
        if not self.half:
            return ""
        self.half, self.lost = "", True
        return self.take("\ufffd")

    def joined(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""


class Accumulator:
    """
    One assistant message in the making; a `PartialMessage`.

    Each method returns the events to pass on, in order: an empty list, one event or several.

    Args:
        api: The wire format, such as `"openai-completions"`.
        provider: The provider's name.
        model: The model's name at the provider.
        price: Adds the cost to the usage of a call that began at a time, in milliseconds since
            1970. It is the message's own time: the price of a stored call can be checked later.
        new_call_id: Makes ids for calls that came without one, or with one that this message has
            used before.
    """

    keeps_pieces_whole: ClassVar[bool] = True
    """No piece has half a character. The loop reads it, and so need not load this module."""

    __slots__ = (
        "_blocks",
        "_calls",
        "_current",
        "_final",
        "_new_call_id",
        "_price",
        "_started",
        "api",
        "logprobs",
        "model",
        "provider",
        "response_id",
        "served",
        "timestamp",
        "usage",
    )

    def __init__(
        self,
        *,
        api: str,
        provider: str,
        model: str,
        price: Callable[[Usage, int], Usage] | None = None,
        new_call_id: Callable[[], str] = _fresh_call_id,
    ) -> None:
        self.api = api
        self.provider = provider
        self.model = model
        self.timestamp = now_ms()
        self.usage = NO_USAGE
        self.response_id: str | None = None
        self.served = ""  # the model's name in the server's answer
        self.logprobs: Logprobs | None = None  # if they are wanted
        self._price = price
        self._new_call_id = new_call_id
        self._blocks: list[_Block] = []
        self._current: int | None = None  # the open text or thinking block
        self._calls = Calls()
        self._final: AssistantMessage | None = None
        self._started = False

    @property
    def text(self) -> str:
        """The text so far, blocks joined by newlines."""
        return "\n".join(b.joined() for b in self._blocks if b.kind == "text")

    @property
    def has_content(self) -> bool:
        """True if any piece came."""
        return bool(self._blocks)

    @property
    def has_calls(self) -> bool:
        """True if a tool call began."""
        return bool(self._calls.all)

    @property
    def finished(self) -> bool:
        """True once `done` or `error` was called."""
        return self._final is not None

    def snapshot(self) -> AssistantMessage:
        """The message so far, without unfinished tool calls; after the end, the final message."""
        if self._final is not None:
            return self._final
        return self._message(StopReason.STOP)

    def start(self) -> tuple[StreamEvent, ...]:
        """The answer begins. Calling it again does nothing."""
        if self._started:
            return ()
        self._started = True
        return (StreamEvent("start", partial=self),)

    def text_delta(self, delta: str) -> tuple[StreamEvent, ...]:
        """More text. An empty piece is not an event."""
        return self._delta("text", delta)

    def thinking_delta(self, delta: str, *, signature: str = "") -> tuple[StreamEvent, ...]:
        """More thinking. An empty piece is no event; *signature* belongs to a block it opens."""
        events = self._delta("thinking", delta)
        if signature and events and self._current is not None:
            block = self._blocks[self._current]
            block.signature = block.signature or [signature]
        return events

    def signature(self, delta: str) -> tuple[StreamEvent, ...]:
        """More of the signature of the open thinking block; opens one if necessary."""
        events: list[StreamEvent] = []
        block = self._enter("thinking", events)
        self._blocks[block].signature.append(delta)
        return tuple(events)

    def redacted_thinking(self, data: str) -> tuple[StreamEvent, ...]:
        """A whole block of thinking that the provider hides; *data* is its signature."""
        events: list[StreamEvent] = []
        self._close_current(events)
        block = self._blocks[self._enter("thinking", events)]
        block.signature, block.redacted = [data], True
        self._close_current(events)
        return tuple(events)

    def end_block(self) -> tuple[StreamEvent, ...]:
        """The open block of text or thinking is complete: what comes next is another one."""
        events: list[StreamEvent] = []
        self._close_current(events)
        return tuple(events)

    def sign(self, signature: str) -> None:
        """Set the signature of the open block, if there is one."""
        if self._current is not None:
            self._blocks[self._current].signature = [signature]

    def sign_last(self, signature: str, *kinds: Literal["text", "thinking", "toolcall"]) -> None:
        """Set the signature of the last block of the first of *kinds* that the message has."""
        for kind in kinds:
            block = next((b for b in reversed(self._blocks) if b.kind == kind), None)
            if block is not None:
                block.signature = [signature]
                return

    def cite(self, citation: Citation) -> tuple[StreamEvent, ...]:
        """A source of the open text, of the last one, or else of the text to come."""
        texts = [b for b in self._blocks if b.kind == "text"]
        current = None if self._current is None else self._blocks[self._current]
        events: list[StreamEvent] = []
        if current is not None and current.kind == "text":
            block = current
        elif texts and current is None:
            block = texts[-1]
        else:
            block = self._blocks[self._enter("text", events)]
        block.citations = [*(block.citations or ()), citation]
        return tuple(events)

    def server_tool(
        self,
        block: ServerToolCall | ServerToolResult,
        says: Literal["servertool_start", "servertool_end"] | None = None,
    ) -> tuple[StreamEvent, ...]:
        """A block that the server made with a tool of its own; *says* is its report of the run."""
        events: list[StreamEvent] = []
        self._close_current(events)
        made = _Block("server")
        made.server = block
        self._blocks.append(made)
        if says is not None:
            place = len(self._blocks) - 1
            events.append(StreamEvent(says, place, partial=self, server_tool=block))
        return tuple(events)

    def server_tool_begins(self, block: ServerToolCall) -> tuple[StreamEvent, ...]:
        """The server begins to run a tool of its own, whose block is not whole yet."""
        events: list[StreamEvent] = []
        self._close_current(events)
        place = len(self._blocks)
        events.append(StreamEvent("servertool_start", place, partial=self, server_tool=block))
        return tuple(events)

    def tool_call(
        self,
        index: int | None,
        *,
        call_id: str | None = None,
        name: str | None = None,
        arguments_delta: str = "",
        signature: str = "",
    ) -> tuple[StreamEvent, ...]:
        """
        More of a tool call.

        Args:
            index: The call's number in this message, as the provider counts; pieces of several may
                alternate. `None`: the provider does not count.
            call_id: Usually only in the first piece.
            name: Usually only in the first piece.
            arguments_delta: The next piece of the argument JSON.
            signature: The provider's opaque mark of the call, whole.
        """
        events: list[StreamEvent] = []
        call = self._calls.find(index, call_id or "", name or "", arguments_delta)
        if call is None:
            self._close_current(events)
            block, position = _Block("toolcall"), len(self._blocks)
            self._blocks.append(block)
            call = self._calls.begin(index, call_id or "", name or "", position, block)
            known = ToolCall(call_id or "", name or "", {}) if call_id or name else None
            events.append(StreamEvent("toolcall_start", position, partial=self, tool_call=known))
        position = call.position
        block = self._blocks[position]
        if signature:
            block.signature = [signature]
        if shown := block.take(arguments_delta):
            events.append(StreamEvent("toolcall_delta", position, shown, self))
        return tuple(events)

    def done(self, stop_reason: StopReason, usage: Usage | None = None) -> tuple[StreamEvent, ...]:
        """
        The answer is complete.

        The content decides between `stop` and `toolUse`, not the provider's own reason. An answer
        cut at its `length` may end in a call whose arguments never came: that call is left out.

        Args:
            stop_reason: The provider's.
            usage: Tokens; `None` keeps the value of `usage`.
        """
        if usage is not None:
            self.usage = usage
        events: list[StreamEvent] = []
        self._close_current(events)
        used: set[str] = set()
        cut = self._calls.all[-1] if stop_reason == StopReason.LENGTH and self._calls.all else None
        for call in self._calls.asked():
            position = call.position
            block = self._blocks[position]
            if rest := block.take_rest():
                events.append(StreamEvent("toolcall_delta", position, rest, self))
            pieces, raw = block.parts, block.joined()
            if call is cut and not raw.strip():
                continue
            call_id = call.call_id
            if not call_id.strip() or call_id in used:
                call_id = self._new_call_id()
            used.add(call_id)
            arguments, invalid = arguments_of(raw, pieces)
            block.call = ToolCall(
                call_id,
                call.name,
                arguments,
                thought_signature="".join(block.signature) or None,
                invalid_arguments=invalid,
            )
            events.append(StreamEvent("toolcall_end", position, raw, self, tool_call=block.call))
        called = bool(used)
        if called and stop_reason in (StopReason.STOP, StopReason.PAUSED):
            stop_reason = StopReason.TOOL_USE
        elif not called and stop_reason == StopReason.TOOL_USE:
            stop_reason = StopReason.STOP
        self._final = self._message(stop_reason)
        if self.logprobs is not None and (found := self.logprobs.all()):
            self._final = replace(self._final, logprobs=found)
        events.append(StreamEvent("done", partial=self, message=self._final))
        return tuple(events)

    def error(
        self, error: Exception, stop_reason: StopReason = StopReason.ERROR
    ) -> tuple[StreamEvent, ...]:
        """The answer broke off. The text so far is kept, unfinished tool calls are not."""
        self._final = self._message(stop_reason, str(error) or type(error).__name__)
        return (StreamEvent("error", partial=self, message=self._final, error=error),)

    def _delta(self, kind: Literal["text", "thinking"], delta: str) -> tuple[StreamEvent, ...]:
        if not delta:
            return ()
        position = self._current
        if position is not None and (block := self._blocks[position]).kind == kind:
            shown = block.take(delta)
            return (_event(_DELTA[kind], position, shown, self),) if shown else ()
        events: list[StreamEvent] = []
        position = self._enter(kind, events)
        if shown := self._blocks[position].take(delta):
            events.append(_event(_DELTA[kind], position, shown, self))
        return tuple(events)

    def _enter(self, kind: Literal["text", "thinking"], events: list[StreamEvent]) -> int:
        if self._current is not None:
            if self._blocks[self._current].kind == kind:
                return self._current
            self._close_current(events)
        self._current = len(self._blocks)
        self._blocks.append(_Block(kind))
        events.append(StreamEvent(_START[kind], self._current, partial=self))
        return self._current

    def _close_current(self, events: list[StreamEvent]) -> None:
        position, self._current = self._current, None
        if position is None:
            return
        block = self._blocks[position]
        if rest := block.take_rest():
            events.append(StreamEvent(_DELTA[block.kind], position, rest, self))
        events.append(StreamEvent(_END[block.kind], position, block.joined(), self))

    def _message(self, stop_reason: StopReason, error: str | None = None) -> AssistantMessage:
        return AssistantMessage(
            tuple(_content_of(b) for b in self._blocks if b.call or b.kind != "toolcall"),
            api=self.api,
            provider=self.provider,
            model=self.model,
            usage=self.usage if self._price is None else self._price(self.usage, self.timestamp),
            stop_reason=stop_reason,
            error_message=error,
            timestamp=self.timestamp,
            response_id=self.response_id,
        )


def _content_of(block: _Block) -> AssistantBlock:
    if block.call is not None:
        return block.call
    if block.server is not None:
        return block.server
    if block.kind == "thinking":
        # A provider would refuse a signature over other text than it signed.
        signature = None if block.lost else "".join(block.signature) or None
        return ThinkingContent(
            block.joined(), thinking_signature=signature, redacted=block.redacted
        )
    signature = "".join(block.signature) or None
    if block.citations is None:
        return TextContent(block.joined(), text_signature=signature)
    return TextContent(block.joined(), text_signature=signature, citations=tuple(block.citations))
