"""
Our events as parts of the AI SDK's UI message stream, version 1.

One answer of the AI SDK is one assistant message, and it may take several of our turns: a turn that
asks for approval, and the turn that continues it, write the same message. `Parts` maps the events
of these turns, stored ones and live ones alike. So a replay and the live stream are the same parts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from looopy.server.protocols.asides import aside_of
from looopy.server.protocols.call_ids import CallIds
from looopy.server.protocols.deltas import GrowingAnswer, Piece
from looopy.server.sse import json_bytes
from looopy.types.event import (
    AgentEvent,
    ApprovalDecided,
    ArtifactUpdate,
    AuthRequired,
    Compaction,
    HistoryCleared,
    InputRequired,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ServerToolEnd,
    ServerToolStart,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnError,
    TurnStart,
    TurnWarning,
)
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    Citation,
    DocumentContent,
    ImageContent,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from looopy.types.message_json import usage_to_json
from looopy.types.state import Outcome, PendingKind, PendingRequest, pending_to_json

Part: TypeAlias = dict[str, Any]
"""A chunk of the stream, as JSON."""

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
"""The headers of a response with the stream, besides the usual ones of a stream of events."""

RESULTS = frozenset({"tool-output-available", "tool-output-error", "tool-output-denied"})
"""The types of the parts that end a call."""

DONE = b"data: [DONE]\n\n"
"""The last line of a stream."""

_FINISH = {
    StopReason.STOP: "stop",
    StopReason.LENGTH: "length",
    StopReason.CONTENT_FILTER: "content-filter",
    StopReason.INPUT_REQUIRED: "tool-calls",
    StopReason.AUTH_REQUIRED: "tool-calls",
    StopReason.INTERRUPTED: "interrupted",
}


def line(part: Part) -> bytes:
    """*part* as a line of server-sent events."""
    return b"data: " + json_bytes(part) + b"\n\n"


def answer_id(turn: int) -> str:
    """The id of the assistant message that *turn* began."""
    return f"turn-{turn}"


class Parts:
    """
    Maps the events of the turns that write one assistant message.

    Args:
        message_id: The message's id; by default the first turn's.
        known: The tool calls that the viewer's message has already.
        asked: The requests for approval that it has already.
        until: See the attribute.

    Attributes:
        until: The number of the last of these turns, whose end ends the stream; `None`: the first
            end does.
        ended: True once the last of these turns has ended.
    """

    def __init__(
        self,
        message_id: str | None = None,
        *,
        known: Collection[str] = (),
        asked: Collection[str] = (),
        until: int | None = None,
    ) -> None:
        self.message_id = message_id
        self.ended = False
        self._started = False
        self.until = until
        self._calls: dict[str, str | None] = dict.fromkeys(known)  # with the names of the tools
        self._asked = set(asked)
        self._denied: set[str] = set()
        self._ids = CallIds(known)
        self._turn = 0
        self._made: set[str] = set()  # the model's ids: a call that repeats one gets another
        self._answer = GrowingAnswer(lambda call_id: call_id not in self._made)
        self._step: tuple[int, int] | None = None
        self._said: UserMessage | None = None
        self._error = ""
        self._sources: set[str] = set()

    def see(self, event: AgentEvent) -> Iterator[Part]:
        """The parts that follow from *event*."""
        if event.path:  # an agent that works as a tool speaks through its result
            return
        match event:
            case TurnStart():
                yield from self._begin(event)
            case MessageStart(message=AssistantMessage()):
                if self._answer.drop():  # by a call of the model that failed
                    yield self._reset()
                yield from self._enter(event)
            case MessageUpdate():
                yield from self._enter(event)
                for piece in self._answer.more(event):
                    yield from self._piece(event, piece)
            case MessageEnd():
                yield from self._message(event)
            case ToolExecutionStart() | ToolExecutionUpdate() | ServerToolStart() | ServerToolEnd():
                yield from self._running(event)
            case ApprovalDecided():
                yield from self._decided(event)
            case InputRequired() if event.reason:
                self._error = event.reason
            case AuthRequired() if not event.pending:
                yield _data("auth", {"turn": event.turn}, f"auth-{event.turn}")
            case InputRequired() | AuthRequired():
                for request in event.pending:
                    yield from self._request(request)
            case TurnEnd():
                yield from self._end(event)
            case _:
                yield from self._aside(event)

    def _begin(self, event: TurnStart) -> Iterator[Part]:
        self._said, self.ended, self._error = event.user_message, False, ""
        self._turn, self._made = event.turn, set()
        if not self._started:
            self._started = True
            self.message_id = self.message_id or answer_id(event.turn)
            about = {"turn": event.turn}
            yield {"type": "start", "messageId": self.message_id, "messageMetadata": about}

    def _enter(self, event: AgentEvent) -> Iterator[Part]:
        """Begin the step of the event, if another one or none is open."""
        step = (event.turn, event.iteration)
        if step != self._step:
            yield from self._leave()
            self._step = step
            yield {"type": "start-step"}

    def _leave(self) -> Iterator[Part]:
        if self._step is not None:
            self._step = None
            yield {"type": "finish-step"}

    def _reset(self) -> Part:
        """Take back what was shown of an answer that was never committed."""
        for call_id in self._ids.take_back():
            self._calls.pop(call_id, None)
        return {"type": "reset-step"}

    def _piece(self, event: AgentEvent, piece: Piece) -> Iterator[Part]:
        if piece.kind == "call":
            call: Part = {"toolCallId": self._ids.new(piece.call_id, self._turn)}
            if piece.begins:
                self._calls[call["toolCallId"]] = piece.name
                yield {"type": "tool-input-start", **call, "toolName": piece.name}
            if piece.text:
                yield {"type": "tool-input-delta", **call, "inputTextDelta": piece.text}
            return
        kind = "text" if piece.kind == "text" else "reasoning"
        block = f"{event.turn}.{event.iteration}.{piece.block}"
        if piece.begins:
            yield {"type": f"{kind}-start", "id": block}
        if piece.text:
            yield {"type": f"{kind}-delta", "id": block, "delta": piece.text}
        if piece.ends:
            yield {"type": f"{kind}-end", "id": block}

    def _message(self, event: MessageEnd) -> Iterator[Part]:
        message = event.message
        if isinstance(message, AssistantMessage):
            yield from self._enter(event)
            anew, pieces = self._answer.end(message)
            if anew:
                yield self._reset()
            number = -1
            for block in message.content:
                if isinstance(block, (TextContent, ThinkingContent)):
                    said = block.text if isinstance(block, TextContent) else block.thinking
                    number += bool(said)
                    for piece in pieces if said else ():
                        if piece.block == number:
                            yield from self._piece(event, piece)
                elif isinstance(block, ToolCall):
                    yield from self._called(block)
                elif isinstance(block, ServerToolCall):
                    yield from self._served(block.id, block.name, block.arguments)
            self._ids.commit()
            yield from self._server_results(message)
            yield from self._cited(message.citations)
        elif isinstance(message, ToolResultMessage):
            yield from self._result(message)
        elif isinstance(message, UserMessage) and message != self._said:
            parts = blocks_to_parts(message.content)
            yield {"type": "steering-message", "id": f"message-{event.position}", "parts": parts}

    def _called(self, call: ToolCall) -> Iterator[Part]:
        self._made.add(call.id)
        shown = self._ids.new(call.id, self._turn)
        if call.invalid_arguments is None:
            yield from self._call(shown, call.name, call.arguments)
            return
        self._calls[shown] = call.name
        yield {
            "type": "tool-input-error",
            "toolCallId": shown,
            "toolName": call.name,
            "input": call.invalid_arguments,
            "errorText": "the arguments are not a JSON object",
        }

    def _call(self, call_id: str, name: str, args: Mapping[str, Any]) -> Iterator[Part]:
        self._calls[call_id] = name
        yield {
            "type": "tool-input-available",
            "toolCallId": call_id,
            "toolName": name,
            "input": dict(args),
        }

    def _served(self, call_id: str, name: str, args: Mapping[str, Any]) -> Iterator[Part]:
        if call_id and call_id not in self._calls:
            for part in self._call(call_id, name, args):
                yield {**part, "providerExecuted": True}

    def _server_results(self, message: AssistantMessage) -> Iterator[Part]:
        """The results of the provider's own tools; one without a result of its own holds it."""
        found: dict[str, Mapping[str, Any]] = {}
        for block in message.content:
            if isinstance(block, ServerToolCall) and block.id:
                found.setdefault(block.id, block.item)
            elif isinstance(block, ServerToolResult):
                found[block.tool_call_id] = block.item
        for call_id, item in found.items():
            if call_id in self._calls:
                yield {
                    "type": "tool-output-available",
                    "toolCallId": call_id,
                    "output": dict(item),
                    "providerExecuted": True,
                }

    def _result(self, message: ToolResultMessage) -> Iterator[Part]:
        call_id = self._ids.of(message.tool_call_id)
        if call_id not in self._calls:  # of an earlier message, which this stream does not write
            return
        if call_id in self._denied:
            yield {"type": "tool-output-denied", "toolCallId": call_id}
        elif message.is_error:
            yield _failed(call_id, message.text or "the tool failed")
        else:
            output = output_of(message)
            yield {"type": "tool-output-available", "toolCallId": call_id, "output": output}

    def _running(
        self, event: ToolExecutionStart | ToolExecutionUpdate | ServerToolStart | ServerToolEnd
    ) -> Iterator[Part]:
        match event:
            case ToolExecutionStart(edited=True):
                call_id = self._ids.of(event.tool_call_id)
                yield from self._call(call_id, event.tool_name, event.args)
            case ToolExecutionUpdate():
                yield from self._report(event)
            case ServerToolStart():
                yield from self._enter(event)
                yield from self._served(event.tool_call_id, event.tool_name, event.args)
            case ServerToolEnd(is_error=True) if event.tool_call_id in self._calls:
                yield _failed(event.tool_call_id, "the provider reports a failure", served=True)
            case _:
                pass

    def _report(self, event: ToolExecutionUpdate) -> Iterator[Part]:
        call_id = self._ids.of(event.tool_call_id)
        if call_id not in self._calls:
            return
        if event.partial_result is not None:
            yield {
                "type": "tool-output-available",
                "toolCallId": call_id,
                "output": event.partial_result,
                "preliminary": True,
            }
        if event.progress is not None:
            data = {"toolCallId": call_id, "progress": event.progress}
            yield _data("progress", data, passing=True)

    def _request(self, request: PendingRequest) -> Iterator[Part]:
        call_id = self._ids.of(request.tool_call_id)
        own = self._calls.get(call_id, "") in (None, request.tool_name)
        if request.kind is PendingKind.APPROVAL and own:
            yield self._approval(request.request_id, call_id, request.prompt)
        elif request.kind is not PendingKind.CLIENT_TOOL or not own:
            yield _data("request", pending_to_json(request), request.request_id)

    def _approval(self, request_id: str, call_id: str, prompt: str = "") -> Part:
        self._asked.add(request_id)
        reason = {"reason": prompt} if prompt else {}
        return {
            "type": "tool-approval-request",
            "approvalId": request_id,
            "toolCallId": call_id,
            **reason,
        }

    def _decided(self, event: ApprovalDecided) -> Iterator[Part]:
        call_id = self._ids.of(event.tool_call_id)
        if self._calls.get(call_id, "") not in (None, event.tool_name):
            return
        if event.request_id not in self._asked:  # it was asked in a stream before this one
            yield self._approval(event.request_id, call_id)
        if event.decision != "approved":
            self._denied.add(call_id)
        yield response_part(event)

    def _cited(self, citations: Sequence[Citation]) -> Iterator[Part]:
        for cited in citations:
            source = cited.url or cited.title
            if not source or source in self._sources:
                continue
            self._sources.add(source)
            if cited.url is not None:
                title = {} if cited.title is None else {"title": cited.title}
                yield {"type": "source-url", "sourceId": source, "url": cited.url, **title}
            else:
                yield {
                    "type": "source-document",
                    "sourceId": source,
                    "mediaType": "text/plain",
                    "title": source,
                }

    def _aside(self, event: AgentEvent) -> Iterator[Part]:
        """Events that are not part of a message: data that passes, except for artifacts."""
        match event:
            case ArtifactUpdate():
                data: Part = {
                    "artifactId": event.artifact_id,
                    "kind": event.kind.value,
                    "version": event.version,
                    "complete": event.last_chunk,
                    "failed": event.failed,
                    "deleted": event.deleted,
                }
                yield _data("artifact", data, event.artifact_id)
            case TurnWarning():
                yield _data("warning", {"code": event.code, "text": event.text}, passing=True)
            case Compaction():
                yield _data("compaction", {"covers": list(event.covers)}, passing=True)
            case TurnError():
                self._error = event.text
            case HistoryCleared():  # nothing more comes of its turns
                self.ended = True
                yield {"type": "abort", "reason": "the history was cleared"}
            case _:
                if (aside := aside_of(event)) is not None:
                    yield _data(aside[0], dict(aside[1]), passing=True)

    def _end(self, event: TurnEnd) -> Iterator[Part]:
        if self._answer.drop():
            yield self._reset()
        yield from self._leave()
        if self.until is not None and event.turn < self.until:
            return
        self.ended = True
        about = {
            "turn": event.turn,
            "outcome": event.outcome.value,
            "stopReason": event.stop_reason.value,
            "usage": usage_to_json(event.usage),
        }
        if event.outcome is Outcome.CANCELLED:
            yield {"type": "message-metadata", "messageMetadata": about}
            yield {"type": "abort", "reason": "cancelled"}
            return
        if event.outcome is Outcome.FAILED or self._error:
            yield {"type": "message-metadata", "messageMetadata": about}
            yield {"type": "error", "errorText": self._error or "the turn failed"}
        reason = _FINISH.get(event.stop_reason)
        if self._error or (reason is None and event.outcome is Outcome.FAILED):
            reason = "error"
        yield {"type": "finish", "finishReason": reason or "other", "messageMetadata": about}


def response_part(event: ApprovalDecided) -> Part:
    """The decision about a call that waited for approval."""
    reason = event.text or ("not answered in time" if event.decision == "expired" else "")
    return {
        "type": "tool-approval-response",
        "approvalId": event.request_id,
        "approved": event.decision == "approved",
        **({"reason": reason} if reason else {}),
    }


def blocks_to_parts(content: str | Sequence[UserBlock]) -> list[Part]:
    """The text and the files of a user's message."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_user_part(block) for block in content]


def _user_part(block: UserBlock) -> Part:
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    url = None if isinstance(block, AudioContent) else block.url
    name = block.name if isinstance(block, DocumentContent) else None
    return {
        "type": "file",
        "mediaType": block.mime_type,
        "url": url or f"data:{block.mime_type};base64,{block.data}",
        **({"filename": name} if name else {}),
    }


def output_of(message: ToolResultMessage) -> Any:
    """The output of a tool: the object or list that it returned, its text, or a list of parts."""
    if any(isinstance(b, (ImageContent, DocumentContent, AudioContent)) for b in message.content):
        return blocks_to_parts(message.content)
    text = message.text
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _failed(call_id: str, text: str, *, served: bool = False) -> Part:
    by = {"providerExecuted": True} if served else {}
    return {"type": "tool-output-error", "toolCallId": call_id, "errorText": text, **by}


def _data(name: str, data: Part, part_id: str | None = None, *, passing: bool = False) -> Part:
    named = {} if part_id is None else {"id": part_id}
    kept = {"transient": True} if passing else {}
    return {"type": f"data-{name}", **named, "data": data, **kept}
