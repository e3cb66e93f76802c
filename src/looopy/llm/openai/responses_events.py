"""
The events of OpenAI's Responses API become stream events.

An answer is a list of items: reasoning, messages, function calls. Each is announced, comes in
pieces and is then repeated as a whole; a server that leaves the pieces out works as well. The
reader keeps other items (searches, images, later additions) as they came.

A gateway that loses its server may begin the answer again in the same stream. That stream is
broken: each of the two answers may have the same call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from looopy.errors import LLMError
from looopy.llm.openai.chat import citation_of, count, reasoning_in, thoughts_beside
from looopy.llm.openai.responses_format import SERVER_SIDE, signature
from looopy.llm.reader import AnswerReader
from looopy.types.message import ServerToolCall, StopReason, Usage
from looopy.types.request import StreamEvent

_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})
_THINKING = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_BEGINS = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.done"})
_INCOMPLETE = {
    "content_filter": StopReason.SENSITIVE,
    "max_output_tokens": StopReason.LENGTH,
    "None": StopReason.LENGTH,
}
_ASKED = ("action", "queries", "code", "arguments", "server_label")
_PASSING_CODES = frozenset({"", "server_error", "vector_store_timeout"})


@dataclass(slots=True, eq=False, repr=False)
class EventReader(AnswerReader):
    """Reads one answer's events; `sources` as `responses_format.to_body` returns it."""

    _end: StopReason | None = field(init=False, default=None)
    _reason: str | None = field(init=False, default=None)  # the server's, to end
    _begun_as: Any = field(init=False, default=None)  # the answer's id
    _items: int = field(init=False, default=0)  # that were read whole
    _shown: set[Any] = field(init=False, default_factory=set)  # items of which pieces have come
    _served: set[Any] = field(init=False, default_factory=set)  # the server's tools that began
    # The ids of calls: of those that began, at the number and by the id of an item.
    _call_ids: set[str] = field(init=False, default_factory=set)
    _open_calls: dict[Any, str] = field(init=False, default_factory=dict)
    _by_item: dict[str, str] = field(init=False, default_factory=dict)
    # The log-probabilities in the pieces of a text, for a server that does not repeat them.
    _pieces: list[Mapping[str, Any]] = field(init=False, default_factory=list)

    @property
    def finished(self) -> bool:
        """True once the server reported that the answer is complete."""
        return self._end is not None

    complete = finished

    def feed(self, data: str) -> list[StreamEvent]:
        """Read one event, or a whole answer that does not stream; `LLMError` for any other."""
        event = self._parsed(data)
        if not isinstance(event, dict):
            raise self._invalid("an invalid event")
        if event.get("object") == "response":
            event = {"type": f"response.{event.get('status')}", "response": event}
        kind = event.get("type")
        if not isinstance(kind, str):
            if event.get("error"):
                raise self._failed(event)
            raise self._invalid("an event without a type")
        delta = event.get("delta")
        if self._begins_again(kind, event):
            raise self._spliced()
        if kind in _TEXT:
            if self._answer.logprobs is not None:
                self._pieces += _listed([event], "logprobs")
            return self._piece(event, self._answer.text_delta(_text(delta)))
        if kind in _THINKING:
            return self._piece(event, self._answer.thinking_delta(_text(delta)))
        if kind == "response.reasoning_summary_part.added":
            more = event.get("output_index") in self._shown
            return list(self._answer.thinking_delta("\n\n")) if more else []
        if kind == "response.function_call_arguments.delta":
            return self._more(event, _text(delta))
        if kind == "response.function_call_arguments.done":
            shown = event.get("output_index") in self._shown
            return [] if shown else self._more(event, event.get("arguments"))
        if kind in ("response.output_item.added", "response.output_item.done"):
            item = event.get("item")
            if not isinstance(item, dict):
                raise self._invalid("an item that is not an object")
            return self._begin(event, item) if kind.endswith("added") else self._whole(event, item)
        if kind in ("error", "response.failed", "response.cancelled"):
            raise self._failed(event)
        return self._finish(event) if kind in _ENDS else []

    def end(self, *, said_done: bool) -> tuple[StreamEvent, ...]:
        """
        End the stream, *said_done* by `[DONE]`; `LLMUnavailable` without a sign that all is there.
        """
        if not self.finished and not said_done:
            raise self._broke_off()
        return self._ended(self._answer.done(self._end or StopReason.STOP), self._reason)

    def _begins_again(self, kind: str, event: Mapping[str, Any]) -> bool:
        """True if *event* belongs to a second answer in the stream of the first."""
        begun = self.finished or self._answer.has_content or bool(self._items)
        if kind in _BEGINS:
            response = event.get("response")
            response = response if isinstance(response, dict) else {}
            response_id = response.get("id")
            if not begun:
                self._begun_as = response_id
                self._by(response.get("model"))
            return begun and (kind == "response.created" or response_id != self._begun_as)
        return self.finished and (kind in _TEXT or kind == "response.output_item.added")

    def _piece(self, event: Mapping[str, Any], events: Sequence[StreamEvent]) -> list[StreamEvent]:
        if events:
            self._shown.add(event.get("output_index"))
        return list(events)

    def _begin(self, event: Mapping[str, Any], item: Mapping[str, Any]) -> list[StreamEvent]:
        self._shown.discard(event.get("output_index"))
        events = list(self._answer.end_block())
        if item.get("type") == "function_call":
            call_id, item_id = _text(item.get("call_id")), _text(item.get("id"))
            self._call_ids.add(call_id)
            self._open_calls[event.get("output_index")] = call_id
            # Servers that give all items one id are known by their numbers alone.
            self._by_item[item_id] = "" if item_id in self._by_item else call_id
            events += self._call(event, call_id, item.get("name"), "")
        elif item.get("type") in SERVER_SIDE:
            self._served.add(event.get("output_index"))
            events += self._answer.server_tool_begins(_server_tool(item))
        return events

    def _whole(self, event: Mapping[str, Any], item: Mapping[str, Any]) -> list[StreamEvent]:
        """An item is complete: what did not come in pieces, and its signature."""
        self._items += 1
        answer, kind, place = self._answer, item.get("type"), event.get("output_index")
        shown = place in self._shown
        self._shown.discard(place)
        if kind == "function_call":
            call_id, begun = _text(item.get("call_id")), self._open_calls.pop(place, "")
            if begun and call_id not in self._call_ids:
                call_id = begun  # some gateways change the id
            arguments = "" if shown else item.get("arguments")
            return self._call(event, call_id, item.get("name"), arguments)
        events: list[StreamEvent] = []
        if kind == "message":
            if not shown:
                events += answer.text_delta("".join(_texts(item.get("content"), "text", "refusal")))
            for one in _listed(item.get("content"), "annotations"):
                events += answer.cite(citation_of(one))
            self._weigh(_listed(item.get("content"), "logprobs") or self._pieces)
            self._pieces.clear()
            if item.get("phase"):
                answer.sign(signature(phase=item["phase"]))
        elif kind == "reasoning":
            if not shown:
                parts = _texts(item.get("summary"), "text") or _texts(item.get("content"), "text")
                events += answer.thinking_delta("\n\n".join(parts))
            if encrypted := item.get("encrypted_content"):
                signed = signature(id=item.get("id"), encrypted_content=encrypted)
                events += answer.signature(signed)
        else:
            runs, block = kind in SERVER_SIDE, _server_tool(item)
            if runs and place not in self._served:  # a server that did not announce it
                events += answer.server_tool_begins(block)
            events += answer.server_tool(block, "servertool_end" if runs else None)
        return [*events, *answer.end_block()]

    def _more(self, event: Mapping[str, Any], arguments: Any) -> list[StreamEvent]:
        """More of a call's arguments, without its head."""
        return self._call(event, self._by_item.get(_text(event.get("item_id"))), None, arguments)

    def _call(
        self, event: Mapping[str, Any], call_id: Any, name: Any, arguments: Any
    ) -> list[StreamEvent]:
        events = self._tool_call(event.get("output_index"), call_id, name, arguments)
        return self._piece(event, events) if arguments else list(events)

    def _finish(self, event: Mapping[str, Any]) -> list[StreamEvent]:
        response = event.get("response")
        response = response if isinstance(response, dict) else {}
        self._named(response.get("id"))
        events: list[StreamEvent] = []
        output = response.get("output")
        all_lost = not self._items and not self._answer.has_content  # of a server without a stream
        calls_lost = not self._answer.has_calls
        for index, item in enumerate(output if isinstance(output, list) else ()):
            is_call = isinstance(item, dict) and item.get("type") == "function_call"
            if isinstance(item, dict) and (all_lost or (calls_lost and is_call)):
                at = {"output_index": index}
                events += [*self._begin(at, item), *self._whole(at, item)]
        self._count(response)
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        self._end = StopReason.STOP
        if event["type"] == "response.incomplete" or response.get("status") == "incomplete":
            self._reason = str(reason)
            self._end = _INCOMPLETE.get(self._reason)
            if self._end is None:
                self._end = StopReason.LENGTH if self._answer.has_content else StopReason.STOP
        return events

    def _count(self, response: Mapping[str, Any]) -> None:
        usage = response.get("usage")
        if isinstance(usage, dict):
            self._answer.usage = read_usage(usage)

    def _failed(self, event: Mapping[str, Any]) -> LLMError:
        response = event.get("response")
        error = event.get("error") or event
        if isinstance(response, dict):
            self._count(response)
            error = response.get("error") or {}
        error = error if isinstance(error, dict) else {"message": str(error)}
        code = str(error.get("code") or "")
        known = (
            code in (*_PASSING_CODES, "insufficient_quota")
            or "rate_limit" in code
            or code.isdigit()
        )
        body = {k: v for k, v in error.items() if k not in ("type", "sequence_number")}
        if error.get("type") not in (None, "error"):
            body["type"] = error["type"]
        return self._reported(body, None if known else 400)


def _listed(parts: Any, name: str) -> list[Mapping[str, Any]]:
    """The objects in the lists *name* of an item's parts."""
    found: list[Mapping[str, Any]] = []
    for part in parts if isinstance(parts, list) else ():
        lists = part.get(name) if isinstance(part, dict) else None
        found += [one for one in lists if isinstance(one, dict)] if isinstance(lists, list) else []
    return found


def _server_tool(item: Mapping[str, Any]) -> ServerToolCall:
    """An item of one of the server's own tools, or of a kind that looopy does not know."""
    kind = str(item.get("type"))
    asked = {name: item[name] for name in _ASKED if item.get(name) is not None}
    action = asked.pop("action", None)
    if isinstance(action, Mapping):
        asked |= action
    return ServerToolCall(_text(item.get("id")), kind.removesuffix("_call"), asked, item=dict(item))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(parts: Any, *names: str) -> list[str]:
    """The texts of an item's parts."""
    found = parts if isinstance(parts, list) else ()
    return [p[n] for p in found if isinstance(p, dict) for n in names if isinstance(p.get(n), str)]


def read_usage(data: Mapping[str, Any]) -> Usage:
    """Read a usage object. Its `input_tokens` include what the cache served; `input` does not."""
    details = data.get("input_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    prompt, output = count(data, "input_tokens"), count(data, "output_tokens")
    cached, written = count(details, "cached_tokens"), count(details, "cache_write_tokens")
    total, reasoning = count(data, "total_tokens"), reasoning_in(data.get("output_tokens_details"))
    output += thoughts_beside(total - prompt - output, reasoning)
    return Usage(
        input=max(0, prompt - cached - written),
        output=output,
        cache_read=cached,
        cache_write=written,
        total_tokens=total or prompt + output,
        reasoning=min(output, reasoning),
    )
