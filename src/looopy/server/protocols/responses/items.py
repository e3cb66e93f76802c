"""
A turn as a response: its events become output items, and the events of a response's stream.

The shapes follow OpenAI's Responses API (the `openai` package, `types/responses`). A tool
that runs here is an `mcp_call`, and an approval an `mcp_approval_request`: the API has those kinds
for a server that runs tools itself, and asks before. A tool of the client's side is a
`function_call`, and so is any other question.

The number of an event (`sequence_number`) is the same each time the response is streamed, so that a
client continues after the last one that it has. It counts the letters of the deltas, because the
log has no deltas: their lengths differ from stream to stream, and their sum does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from looopy.server.protocols.deltas import GrowingAnswer, Piece
from looopy.tools.call.results import to_json_text
from looopy.types.event import (
    AgentEvent,
    AuthRequired,
    InputRequired,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ServerToolEnd,
    ServerToolStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnError,
    TurnStart,
)
from looopy.types.message import AssistantMessage, StopReason, TextContent, Usage
from looopy.types.state import Outcome, PendingKind, PendingRequest

Json: TypeAlias = dict[str, Any]

LABEL: Final = "looopy"
"""The `server_label` of the tools that run here; the model provider's have `provider`."""
_CUT_SHORT: Final = {
    StopReason.LENGTH: "max_output_tokens",
    StopReason.AUTH_REQUIRED: "auth_required",  # a word of ours
}
_SPAN: Final = 1 << 25  # numbers between two stored events: more than a stored text has letters
_STATUS: Final = {
    Outcome.COMPLETED: "completed",
    Outcome.INPUT_REQUIRED: "completed",  # the output ends with what a person has to answer
    Outcome.CANCELLED: "cancelled",
    Outcome.AUTH_REQUIRED: "incomplete",
    Outcome.INTERRUPTED: "incomplete",
    Outcome.FAILED: "failed",
}


def response_id(context_id: str, turn: int) -> str:
    """The id of the response that a turn is; `place_of` reads it."""
    return f"resp_{turn}_{context_id}"


def place_of(given: str) -> tuple[str, int] | None:
    """The context and the turn that a response's id names; `None` for any other text."""
    kind, _, rest = given.partition("_")
    number, _, context_id = rest.partition("_")
    if kind != "resp" or not context_id or not number.isascii() or not number.isdecimal():
        return None
    turn = int(number) if len(number) < 19 else 0
    return (context_id, turn) if turn > 0 and response_id(context_id, turn) == given else None


class ResponseBuilder:
    """
    One response, built from the events of its turn in their order; with deltas or without.

    Args:
        model: The name by which the client knows the agent.
        metadata, background: Of the request.

    Attributes:
        context_id, turn: The turn.
        done: True once the turn has ended.
    """

    def __init__(
        self,
        context_id: str,
        turn: int,
        *,
        model: str,
        metadata: Mapping[str, str] = MappingProxyType({}),
        background: bool = False,
    ) -> None:
        self.done = False
        self.context_id, self.turn = context_id, turn
        self._output: list[Json] = []
        self._answer = GrowingAnswer()
        self._writing: Json | None = None  # the item of the answer that grows
        self._dropped: set[str] = set()  # ids of items that were begun and taken back
        self._calls: dict[str, Json] = {}  # by the call's id, those without a result
        self._arguments: dict[str, Mapping[str, Any]] = {}  # by the call's id
        self._failure: str | None = None
        self._count = 0  # the next number
        self._first: int | None = None  # the `seq` of the turn's first event
        self._response: Json = {
            "id": response_id(context_id, turn),
            "object": "response",
            "created_at": 0,
            "completed_at": None,
            "status": "in_progress",
            "background": background,
            "conversation": {"id": context_id},
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": dict(metadata),
            "model": model,
            "output": self._output,
            "parallel_tool_calls": True,
            "previous_response_id": response_id(context_id, turn - 1) if turn > 1 else None,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": None,
        }

    def response(self) -> Json:
        """The response as it is now."""
        items = [dict(item) for item in self._output if item["id"] not in self._dropped]
        return {**self._response, "output": items}

    def take(self, event: AgentEvent) -> list[Json]:
        """The events of the response's stream that follow from an event of the turn."""
        if event.path or event.turn != self.turn or self.done:
            return []
        sent = [self._numbered(one) for one in self._of(event)]
        if event.seq is not None:
            self._first = event.seq if self._first is None else self._first
            self._count = max(self._count, (event.seq - self._first + 1) * _SPAN)
        return sent

    def failed(self, message: str) -> Json:
        """The event of a stream that breaks off: the turn may continue."""
        return self._numbered(
            {"type": "error", "code": "server_error", "message": message, "param": None}
        )

    def _numbered(self, event: Json) -> Json:
        self._count += len(event.get("delta", "")) or 1
        event["sequence_number"] = self._count - 1
        return event

    def _of(self, event: AgentEvent) -> Iterator[Json]:
        match event:
            case TurnStart():
                self._response["created_at"] = int(event.timestamp.timestamp())
                yield {"type": "response.created", "response": self.response()}
                yield {"type": "response.in_progress", "response": self.response()}
            case MessageStart():
                if self._answer.drop():
                    yield from self._drop()
            case MessageUpdate():
                for piece in self._answer.more(event):
                    yield from self._piece(piece)
            case MessageEnd(message=AssistantMessage() as message):
                anew, pieces = self._answer.end(message)
                if anew:
                    yield from self._drop()
                for piece in pieces:
                    yield from self._piece(piece)
                yield from self._close()
                self._arguments |= {call.id: call.arguments for call in message.tool_calls}
            case InputRequired() if event.reason:
                self._failure = event.reason
            case InputRequired() | AuthRequired():
                for request in event.pending:
                    yield from self._ask(request)
            case TurnError():
                self._failure = event.text
            case TurnEnd():
                yield from self._end(event)
            case _:
                yield from self._of_a_tool(event)

    def _of_a_tool(self, event: AgentEvent) -> Iterator[Json]:
        match event:
            case ToolExecutionStart():
                yield from self._call(event.tool_call_id, event.tool_name, event.args, LABEL)
            case ServerToolStart():
                yield from self._call(event.tool_call_id, event.tool_name, event.args, "provider")
            case ToolExecutionEnd():
                said = "".join(b.text for b in event.result.content if isinstance(b, TextContent))
                args = self._arguments.get(event.tool_call_id, {})
                yield from self._call(event.tool_call_id, event.tool_name, args, LABEL)
                yield from self._result(event.tool_call_id, said, is_error=event.is_error)
            case ServerToolEnd():
                yield from self._call(event.tool_call_id, event.tool_name, event.args, "provider")
                yield from self._result(event.tool_call_id, None, is_error=event.is_error)
            case _:
                pass

    # --- the answer ------------------------------------------------------------------------------

    def _piece(self, piece: Piece) -> Iterator[Json]:
        """The events of a piece of the model's text or thinking."""
        kind = "message" if piece.kind == "text" else "reasoning"
        if piece.begins:
            if self._writing is None or self._writing["type"] != kind:
                yield from self._close()
                yield from self._open(kind)
            yield from self._part_begins(piece)
        writing = self._writing
        if writing is None:
            return
        said = _SAID[kind]
        part = writing["content"][-1]
        place = {**self._place(writing), "content_index": len(writing["content"]) - 1}
        if piece.text:
            part["text"] += piece.text
            delta: Json = {"type": f"response.{said}.delta", **place, "delta": piece.text}
            yield delta | ({"logprobs": []} if kind == "message" else {})
        if piece.ends:
            done: Json = {"type": f"response.{said}.done", **place, "text": part["text"]}
            yield done | ({"logprobs": []} if kind == "message" else {})
            yield {"type": "response.content_part.done", **place, "part": dict(part)}

    def _open(self, kind: str) -> Iterator[Json]:
        if kind == "message":
            item: Json = {"id": self._new_id("msg"), "type": kind, "role": "assistant"}
        else:
            item = {"id": self._new_id("rs"), "type": kind, "summary": []}
        self._writing = {**item, "status": "in_progress", "content": []}
        yield self._add(self._writing)

    def _part_begins(self, piece: Piece) -> Iterator[Json]:
        writing = self._writing
        if writing is None:
            return
        part: Json = {"type": "reasoning_text", "text": ""}
        if piece.kind == "text":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        writing["content"].append(part)
        place = {**self._place(writing), "content_index": len(writing["content"]) - 1}
        yield {"type": "response.content_part.added", **place, "part": dict(part)}

    def _close(self, status: str = "completed") -> Iterator[Json]:
        """The item that grows has ended."""
        writing, self._writing = self._writing, None
        if writing is not None:
            yield self._done(writing, status)

    def _drop(self) -> Iterator[Json]:
        """A call of the model failed: its items are in the stream, but not in the response."""
        if self._writing is not None:
            self._dropped.add(self._writing["id"])
        yield from self._close("incomplete")

    # --- calls and questions ---------------------------------------------------------------------

    def _call(self, call_id: str, name: str, args: Mapping[str, Any], label: str) -> Iterator[Json]:
        """A tool runs; nothing if that was sent before."""
        if call_id in self._calls:
            return
        item = self._calls[call_id] = {
            "id": self._new_id("mcp"),
            "type": "mcp_call",
            "server_label": label,
            "name": name,
            "arguments": to_json_text(args),
            "output": None,
            "error": None,
            "status": "in_progress",
        }
        yield self._add(item)
        yield {"type": "response.mcp_call.in_progress", **self._place(item)}
        yield {
            "type": "response.mcp_call_arguments.done",
            **self._place(item),
            "arguments": item["arguments"],
        }

    def _result(self, call_id: str, said: str | None, *, is_error: bool) -> Iterator[Json]:
        item = self._calls.pop(call_id)
        status = "failed" if is_error else "completed"
        if is_error:
            content = [{"type": "text", "text": said or "the tool failed"}]
            item["error"] = {"type": "mcp_tool_execution_error", "content": content}
        else:
            item["output"] = said
        yield {"type": f"response.mcp_call.{status}", **self._place(item)}
        yield self._done(item, status)

    def _ask(self, request: PendingRequest) -> Iterator[Json]:
        """Ask the client; the request and the answer have the same id."""
        if (begun := self._calls.pop(request.tool_call_id, None)) is not None:
            self._dropped.add(begun["id"])  # the call runs once it has the answer
            yield self._done(begun, "incomplete")
        if request.kind is PendingKind.AUTH:
            return  # the next request brings fresh credentials
        item: Json = {"name": request.tool_name, "arguments": to_json_text(request.args)}
        if request.kind is PendingKind.APPROVAL:
            item |= {"id": request.request_id, "type": "mcp_approval_request"}
            item["server_label"] = LABEL
        else:
            if request.kind is PendingKind.INPUT:
                item["arguments"] = to_json_text(
                    {"prompt": request.prompt, "schema": request.schema}
                )
            item |= {"id": self._new_id("fc"), "call_id": request.request_id}
            item |= {"type": "function_call", "status": "completed"}
        yield self._add(item)
        yield self._done(item, None)

    # --- the end ---------------------------------------------------------------------------------

    def _end(self, event: TurnEnd) -> Iterator[Json]:
        if self._answer.drop():
            yield from self._drop()
        for item in self._calls.values():  # they wait for an answer, or were cut
            yield self._done(item, "incomplete")
        self._calls.clear()
        waits_for_room = event.outcome is Outcome.INPUT_REQUIRED and self._failure is not None
        status = "failed" if waits_for_room else _STATUS[event.outcome]
        details = _CUT_SHORT.get(event.stop_reason)
        if event.stop_reason is StopReason.MAX_ITERATIONS:  # the API's own reasons say "incomplete"
            self._response["metadata"] |= {"stop_reason": event.stop_reason.value}
        if status == "completed" and details is not None:
            status = "incomplete"
        if status == "failed":
            text = self._failure or "the turn failed"
            self._response["error"] = {"code": "server_error", "message": text}
        if details is not None:
            self._response["incomplete_details"] = {"reason": details}
        self._response |= {
            "status": status,
            "completed_at": int(event.timestamp.timestamp()) if status == "completed" else None,
            "usage": usage_of(event.usage),
        }
        self.done = True
        # The API has no event for a cancelled response: `incomplete` ends its stream.
        last = status if status in ("completed", "failed") else "incomplete"
        yield {"type": f"response.{last}", "response": self.response()}

    # --- items -----------------------------------------------------------------------------------

    def _new_id(self, kind: str) -> str:
        """An id that is the same each time the response is built."""
        return f"{kind}_{self.turn}_{len(self._output)}_{self._response['conversation']['id']}"

    def _place(self, item: Json) -> Json:
        return {"item_id": item["id"], "output_index": self._index(item)}

    def _index(self, item: Json) -> int:
        return next(i for i, one in enumerate(self._output) if one is item)

    def _add(self, item: Json) -> Json:
        self._output.append(item)
        shown = dict(item)
        if "content" in shown:
            shown["content"] = []
        index = len(self._output) - 1
        return {"type": "response.output_item.added", "output_index": index, "item": shown}

    def _done(self, item: Json, status: str | None) -> Json:
        if status is not None:
            item["status"] = status
        index = self._index(item)
        return {"type": "response.output_item.done", "output_index": index, "item": dict(item)}


_SAID: Final = {"message": "output_text", "reasoning": "reasoning_text"}


def usage_of(usage: Usage) -> Json:
    """The usage of a turn in the API's words: its `input_tokens` include the cache's."""
    entered = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": entered,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
        },
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": entered + usage.output,
    }


def rest_of(event: Json, after: int) -> Json | None:
    """An event of a stream for a client that has all up to the number *after*; or `None`."""
    missing = event["sequence_number"] - after
    if missing <= 0:
        return None
    delta = event.get("delta", "")
    return event if missing >= len(delta) else {**event, "delta": delta[-missing:]}


def built(
    context_id: str, turn: int, events: Iterable[AgentEvent], *, model: str
) -> ResponseBuilder:
    """The response of a turn, from the events that the store has of it."""
    builder = ResponseBuilder(context_id, turn, model=model)
    for event in events:
        builder.take(event)
    return builder
