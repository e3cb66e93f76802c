"""
The events of an Anthropic answer become stream events.

The API sends one block after the other, each between its start and its stop. A signature covers
exactly one block, so blocks keep their boundaries. The reader skips unknown types of events, and
keeps blocks that it does not know as they came: the API may add some.

A gateway that loses its server may begin the answer again in the same stream. That stream is
broken: each of the two answers may have the same call. A second `message_start` before the first
block is harmless, and some gateways send one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from looopy.llm.anthropic.format import SERVER_CALL, SERVER_RESULT
from looopy.llm.calls import arguments_of
from looopy.llm.reader import AnswerReader
from looopy.types.message import Citation, ServerToolCall, ServerToolResult, StopReason, Usage
from looopy.types.request import StreamEvent

# After `pause_turn` the server, which runs tools of its own, wants the answer back to continue it.
# `refusal` is the model's guard, which may come after some text.
_STOP_REASONS: Final = {
    "end_turn": StopReason.STOP,
    "stop_sequence": StopReason.STOP,
    "pause_turn": StopReason.PAUSED,
    "tool_use": StopReason.TOOL_USE,
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "refusal": StopReason.SENSITIVE,
}
_WORDLESS: Final = ("end_turn", "stop_sequence", "pause_turn")


@dataclass(slots=True, eq=False, repr=False)
class EventReader(AnswerReader):
    """Reads one answer's events; `sources` as `looopy.llm.anthropic.format.to_body` returns it."""

    # The kind of each block, by its number in the answer, and the arguments of a call's start.
    _kinds: dict[int, str] = field(init=False, default_factory=dict)
    _calls: dict[int, Any] = field(init=False, default_factory=dict)
    _counts: dict[str, int] = field(init=False, default_factory=dict)
    _stop: str | None = field(init=False, default=None)
    _thought: int = field(init=False, default=0)
    # Blocks of the server's own tools, by their number, and the pieces of their input.
    _items: dict[int, dict[str, Any]] = field(init=False, default_factory=dict)
    _inputs: dict[int, list[str]] = field(init=False, default_factory=dict)
    _served: bool = field(init=False, default=False)

    @property
    def finished(self) -> bool:
        """True once the model gave a reason to stop: only the end may still come."""
        return self._stop is not None

    def feed(self, data: str) -> Sequence[StreamEvent]:
        """Read one event, or a whole answer that does not stream; `LLMError` for any other."""
        event = self._parsed(data)
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise self._invalid("an invalid event")
        kind = event["type"]
        if kind == "content_block_delta":
            return self._delta(self._index(event), self._object(event, "delta"))
        if kind == "content_block_start":
            return self._begin(self._index(event), self._object(event, "content_block"))
        if kind == "content_block_stop":
            return self._end(self._index(event))
        if kind == "message_start":
            if self._kinds or self.finished:
                raise self._spliced()
            message = self._object(event, "message")
            self._named(message.get("id"))
            self._by(message.get("model"))
            self._count(message.get("usage"))
        elif kind == "message_delta":
            self._count(event.get("usage"))
            self._stopped(self._object(event, "delta").get("stop_reason"))
        elif kind == "error":
            raise self._reported(event)
        elif kind == "message":
            return self._whole(event)
        return ()

    def end(self) -> tuple[StreamEvent, ...]:
        """End the stream; `LLMUnavailable` if the answer has no sign of being complete."""
        if self._stop is None:
            raise self._broke_off()
        reason = _STOP_REASONS.get(self._stop, StopReason.STOP)
        if reason is StopReason.PAUSED and not self._served:
            reason = StopReason.STOP  # the server has nothing to continue: the text is an answer
        events = [event for index in list(self._calls) for event in self._end(index)]
        events += self._answer.done(reason)
        # After the result of a tool, Claude may well end its turn without a word.
        return tuple(events) if self._stop in _WORDLESS else self._ended(tuple(events), self._stop)

    def _begin(self, index: int, block: Mapping[str, Any]) -> Sequence[StreamEvent]:
        if index in self._kinds or self.finished:
            raise self._spliced()
        self._kinds[index] = kind = str(block.get("type"))
        if kind == "text":
            events = self._answer.text_delta(self._text(block, "text"))
            sources = block.get("citations")
            for one in sources if isinstance(sources, list) else ():
                events += self._cite(one)
            return events
        if kind == "thinking":
            events = self._answer.thinking_delta(self._text(block, "thinking"))
            if signature := self._text(block, "signature"):
                events += self._answer.signature(signature)
            return events
        if kind == "redacted_thinking":
            return self._answer.redacted_thinking(self._text(block, "data"))
        if kind == "tool_use":
            self._calls[index] = block.get("input")
            return self._answer.tool_call(
                index, call_id=self._text(block, "id"), name=self._text(block, "name")
            )
        self._items[index] = dict(block)
        self._inputs[index] = []
        return ()

    def _delta(self, index: int, delta: Mapping[str, Any]) -> Sequence[StreamEvent]:
        block, kind = self._kinds.get(index), delta.get("type")
        if kind == "input_json_delta" and index not in self._inputs and block != "tool_use":
            index = next((i for i in reversed(self._kinds) if self._kinds[i] == "tool_use"), index)
            block = self._kinds.get(index)  # a gateway gave the piece another number
        if block is None:
            raise self._invalid("a piece of a block that it never began")
        if kind == "text_delta" and block == "text":
            return self._answer.text_delta(self._text(delta, "text"))
        if kind == "input_json_delta" and block == "tool_use":
            piece = self._text(delta, "partial_json")
            if piece.strip() not in ("", "{}"):
                self._calls.pop(index, None)
            return self._answer.tool_call(index, arguments_delta=piece)
        if kind == "thinking_delta" and block == "thinking":
            return self._answer.thinking_delta(self._text(delta, "thinking"))
        if kind == "citations_delta" and block == "text":
            return self._cite(delta.get("citation"))
        if kind == "input_json_delta" and index in self._inputs:
            self._inputs[index].append(self._text(delta, "partial_json"))
            return ()
        if kind == "signature_delta" and block == "thinking":
            signature = self._text(delta, "signature")
            return self._answer.signature(signature) if signature else ()
        return ()

    def _end(self, index: int) -> Sequence[StreamEvent]:
        given = self._calls.pop(index, None)
        if given and isinstance(given, (dict, str)):  # a server that sends the call whole
            return self._tool_call(index, None, None, given)
        item = self._items.pop(index, None)
        if item is not None:
            self._served = True
            block = self._server_tool(item, self._inputs.pop(index))
            if isinstance(block, ServerToolResult):
                return self._answer.server_tool(block, "servertool_end")
            runs = str(item.get("type")).endswith(SERVER_CALL)
            return self._answer.server_tool(block, "servertool_start" if runs else None)
        return self._answer.end_block()

    def _cite(self, said: Any) -> tuple[StreamEvent, ...]:
        if not isinstance(said, dict):
            return ()
        texts = {name: value for name, value in said.items() if isinstance(value, str) and value}
        return self._answer.cite(
            Citation(
                url=texts.get("url") or texts.get("source"),
                title=texts.get("title") or texts.get("document_title"),
                text=texts.get("cited_text"),
                raw=dict(said),
            )
        )

    def _server_tool(
        self, item: dict[str, Any], pieces: Sequence[str]
    ) -> ServerToolCall | ServerToolResult:
        """A block of one of the server's own tools, or of a kind that looopy does not know."""
        kind = str(item.get("type"))
        if "tool_use_id" in item:
            name = kind.removesuffix(SERVER_RESULT)
            return ServerToolResult(self._text(item, "tool_use_id"), name, item=item)
        if said := "".join(pieces):
            item["input"], _ = arguments_of(said)
        asked = item.get("input")
        return ServerToolCall(
            self._text(item, "id"),
            self._text(item, "name") or kind,
            asked if isinstance(asked, dict) else {},
            item=item,
        )

    def _whole(self, message: Mapping[str, Any]) -> list[StreamEvent]:
        if self._kinds or self.finished:
            raise self._spliced()
        self._by(message.get("model"))
        events: list[StreamEvent] = []
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(block, dict):
                raise self._invalid("a block that is not an object")
            events += self._begin(index, block)
            events += self._end(index)
        self._named(message.get("id"))
        self._count(message.get("usage"))
        self._stopped(message.get("stop_reason"))
        return events

    def _stopped(self, reason: Any) -> None:
        if reason:
            self._stop = str(reason)

    def _count(self, usage: Any) -> None:
        """Take the newest counts: those at the end cover the whole, if they are given."""
        if not isinstance(usage, Mapping):
            return
        for name in (
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
        ):
            value = usage.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
                self._counts[name] = value
        details = usage.get("output_tokens_details")
        if isinstance(details, Mapping) and isinstance(details.get("thinking_tokens"), int):
            self._thought = max(0, details["thinking_tokens"])
        counts = self._counts
        self._answer.usage = Usage(
            input=counts.get("input_tokens", 0),
            output=counts.get("output_tokens", 0),
            cache_read=counts.get("cache_read_input_tokens", 0),
            cache_write=counts.get("cache_creation_input_tokens", 0),
            total_tokens=sum(counts.values()),
            reasoning=min(self._thought, counts.get("output_tokens", 0)),
        )

    def _index(self, event: Mapping[str, Any]) -> int:
        index = event.get("index")
        if not isinstance(index, int):
            raise self._invalid("a block without a number")
        return index

    def _object(self, event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = event.get(name)
        if not isinstance(value, Mapping):
            raise self._invalid(f"an event without its {name}")
        return value

    def _text(self, part: Mapping[str, Any], name: str) -> str:
        value = part.get(name)
        if value is not None and not isinstance(value, str):
            raise self._invalid(f"a {name} that is not text")
        return value or ""
