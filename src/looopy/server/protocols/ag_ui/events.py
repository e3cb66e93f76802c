"""
Our events as events of AG-UI 1.0.

A run of AG-UI is one turn. Our pending requests are its interrupts, and a call of a client tool is
left to the page. A message of the model has the id `TURN.ITERATION`, live and in a snapshot alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from looopy.server.protocols.asides import aside_of
from looopy.server.protocols.call_ids import CallIds
from looopy.server.protocols.deltas import GrowingAnswer, Piece
from looopy.types.event import (
    AgentEvent,
    ApprovalDecided,
    ArtifactUpdate,
    AuthRequired,
    Compaction,
    Event,
    HistoryCleared,
    InputRequired,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ServerToolStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnError,
    TurnStart,
    TurnWarning,
)
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    ImageContent,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserBlock,
    UserMessage,
)
from looopy.types.state import Outcome, PendingKind, PendingRequest

Out: TypeAlias = dict[str, Any]
"""An event of AG-UI, as JSON."""

CREDENTIALS: Final = "credentials"
"""The id of the interrupt of a turn that needs fresh credentials, and has no request for them."""

SNAPSHOT: Final = "MESSAGES_SNAPSHOT"


_LONG = 64 * 1024  # characters of arguments that are not completed
_RESTS: Final = (
    *("", "null", ":null", '"":null', "0"),
    *("rue", "ue", "e", "alse", "lse", "se", "ull", "ll", "l"),
)
_RESTS_OF_TEXT: Final = tuple(f'{rest}"' for rest in ("", "\\", "0000", "000", "00", "0"))


class RunEvents:
    """
    Maps the events of one turn.

    An event `MESSAGES_SNAPSHOT` without messages asks the caller for those committed up to `seq`.

    Args:
        thread_id, run_id: As the page named them.
        turn: The number of the turn, whose end ends the run; `None`: the first end does.
        known: The ids of the calls that the page has.

    Attributes:
        ended: True once the run has ended.
        seq: The newest durable event that was mapped.
        ids: The ids of the calls, as the page has them.
    """

    def __init__(
        self, thread_id: str, run_id: str, turn: int | None = None, known: Iterable[str] = ()
    ) -> None:
        self.ids = CallIds(known)
        self.ended = False
        self.seq = 0
        self._run: Out = {"threadId": thread_id, "runId": run_id}
        self._turn = turn
        self._now = 0  # the turn of the newest event
        self._made: set[str] = set()  # the model's ids: a call that repeats one gets another
        self._answer = GrowingAnswer(lambda call_id: call_id not in self._made)
        self._calling: dict[str, list[str]] = {}  # calls that are being written, as they were sent
        self._step: str | None = None
        self._message_id = ""
        self._attempt = 1  # to show the message; each has an id of its own
        self._shown = False  # something of a message that is not committed
        self._text: list[str] = []  # of the open message, as it was sent
        self._text_open = False
        self._thought: str | None = None  # the id of the open reasoning
        self._served: set[str] = set()
        self._said: UserMessage | None = None
        self._pending: Sequence[PendingRequest] = ()
        self._error = ""

    def started(self) -> Out:
        """The first event of the run."""
        return {"type": "RUN_STARTED", **self._run, "protocolVersion": "1.0"}

    def see(self, event: AgentEvent) -> Iterator[Out]:
        """The events that follow from *event*."""
        if event.path:  # an agent that works as a tool speaks through its result
            return
        self.seq, self._now = event.seq or self.seq, event.turn
        at = {"timestamp": int(event.timestamp.timestamp() * 1000)}
        for out in self._mapped(event):
            yield {**out, **at}

    def _mapped(self, event: AgentEvent) -> Iterator[Out]:
        match event:
            case TurnStart():
                self._said = event.user_message
            case MessageStart(message=AssistantMessage()):
                yield from self._take_back()
                yield from self._enter(event)
            case MessageUpdate():
                yield from self._enter(event)
                for piece in self._answer.more(event):
                    yield from self._piece(piece)
            case MessageEnd():
                yield from self._message(event)
            case ServerToolStart():
                yield from self._enter(event)
                yield from self._serve(event.tool_call_id, event.tool_name, event.args)
            case InputRequired() if event.reason:
                self._error = event.reason
            case InputRequired() | AuthRequired():
                self._pending = event.pending
            case TurnError():
                self._error = event.text
            case HistoryCleared():  # nothing more comes of its turns
                self.ended = True
                yield from self._close()
                yield from self._end_calls()
                yield from self._leave()
                yield self.finished({"type": "cancelled"})
            case TurnEnd():
                yield from self._take_back()
                yield from self._leave()
                if self._turn is None or event.turn == self._turn:
                    self.ended = True
                    yield self._end(event)
            case _:
                yield from _aside(event, self.ids)

    def _enter(self, event: Event) -> Iterator[Out]:
        """Begin the step and the message of the event, if others or none are open."""
        step = message_id_of(event.turn, event.iteration)
        if step != self._step:
            yield from self._leave()
            self._step = self._message_id = step
            self._attempt = 1
            yield {"type": "STEP_STARTED", "stepName": step}

    def _leave(self) -> Iterator[Out]:
        if self._step is not None:
            yield {"type": "STEP_FINISHED", "stepName": self._step}
            self._step = None

    def _piece(self, piece: Piece) -> Iterator[Out]:
        self._shown = True
        if piece.kind == "call":
            call_id = self._new_id(piece.call_id)
            if piece.begins:
                yield from self._close_thought()
                self._calling[call_id] = []
                yield self._begun(call_id, piece.name)
            if piece.text:
                self._calling[call_id].append(piece.text)
                yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": piece.text}
        elif piece.kind == "thinking":
            if piece.text:
                yield from self._think(piece)
            if piece.ends:
                yield from self._close_thought()
        elif piece.text:
            yield from self._close_thought()
            between = "\n" if piece.begins and self._text else ""
            yield from self._say(between + piece.text)

    def _think(self, piece: Piece) -> Iterator[Out]:
        if self._thought is None:
            self._thought = thought_id_of(self._message_id, piece.block)
            yield {"type": "REASONING_START", "messageId": self._thought}
            start = {"messageId": self._thought, "role": "reasoning"}
            yield {"type": "REASONING_MESSAGE_START", **start}
        more = {"messageId": self._thought, "delta": piece.text}
        yield {"type": "REASONING_MESSAGE_CONTENT", **more}

    def _close_thought(self) -> Iterator[Out]:
        if self._thought is not None:
            yield {"type": "REASONING_MESSAGE_END", "messageId": self._thought}
            yield {"type": "REASONING_END", "messageId": self._thought}
            self._thought = None

    def _say(self, text: str) -> Iterator[Out]:
        if not self._text_open:
            self._text_open = True
            start = {"messageId": self._message_id, "role": "assistant"}
            yield {"type": "TEXT_MESSAGE_START", **start}
        self._text.append(text)
        more = {"messageId": self._message_id, "delta": text}
        yield {"type": "TEXT_MESSAGE_CONTENT", **more}

    def _close(self) -> Iterator[Out]:
        yield from self._close_thought()
        if self._text_open:
            self._text_open = False
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._message_id}

    def _end_calls(self) -> Iterator[Out]:
        """End calls that are not committed, with arguments that a page can read."""
        for call_id, pieces in self._calling.items():
            if rest := rest_of("".join(pieces)):
                yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": rest}
            yield {"type": "TOOL_CALL_END", "toolCallId": call_id}
        self._calling.clear()

    def _take_back(self) -> Iterator[Out]:
        """Take back what was shown of an answer that was never committed."""
        self._answer.drop()
        yield from self._close()
        yield from self._end_calls()
        self.ids.take_back()
        if self._shown:
            self._shown, self._text = False, []
            self._attempt += 1
            self._message_id = f"{self._step}-{self._attempt}"
            yield {"type": SNAPSHOT}

    def _message(self, event: MessageEnd) -> Iterator[Out]:
        message = event.message
        if isinstance(message, AssistantMessage):
            yield from self._enter(event)
            yield from self._committed(message)
            calls = [block for block in message.content if isinstance(block, ToolCall)]
            self._made.update(call.id for call in calls)
            if self._attempt > 1:  # from here on it has its own id, and its calls are there
                self._message_id = message_id_of(event.turn, event.iteration)
                for call in calls:
                    self._new_id(call.id)
                self.ids.commit()
                yield {"type": SNAPSHOT}
                return
            for block in message.content:
                if isinstance(block, ToolCall):
                    yield from self._called(block)
                elif isinstance(block, ServerToolCall):
                    yield from self._serve(block.id, block.name, block.arguments)
            self.ids.commit()
            for call_id, item in server_results(message):
                yield _result(f"{call_id}-result", call_id, item)
        elif isinstance(message, ToolResultMessage):
            failed = {"metadata": {"looopy": {"isError": True}}} if message.is_error else {}
            content = content_of(message.content)
            call_id = self.ids.of(message.tool_call_id)
            shown = _result(f"message-{event.position}", call_id, content)
            yield {**shown, **failed}
        elif isinstance(message, UserMessage) and message != self._said:
            about = {"messageId": f"message-{event.position}"}
            yield {"type": "TEXT_MESSAGE_START", **about, "role": "user"}
            if message.text:
                yield {"type": "TEXT_MESSAGE_CONTENT", **about, "delta": message.text}
            yield {"type": "TEXT_MESSAGE_END", **about}

    def _committed(self, message: AssistantMessage) -> Iterator[Out]:
        """The rest of an answer; all of it, if it is not how the answer began."""
        shown = "".join(self._text)
        kept = self._keeps_calls(message)
        anew, pieces = self._answer.end(message)
        if not anew and kept:
            for piece in pieces:
                yield from self._piece(piece)
        elif not kept or not message.text.startswith(shown):
            yield from self._take_back()
            shown = ""
        if (anew or not kept) and message.text[len(shown) :]:
            yield from self._close_thought()
            yield from self._say(message.text[len(shown) :])
        yield from self._close()
        self._shown, self._text = False, []

    def _keeps_calls(self, message: AssistantMessage) -> bool:
        """True if the calls that the page has are the first calls of *message*."""
        made = {one.id: one for one in message.content if isinstance(one, ToolCall)}
        for call_id, pieces in self._answer.arguments.items():
            text = "".join(pieces)
            if call_id not in made or not _says(text, made[call_id]):
                return False
        return True

    def _new_id(self, call_id: str) -> str:
        return self.ids.new(call_id, self._now)

    def _begun(self, call_id: str, name: str) -> Out:
        start = {"toolCallId": call_id, "toolCallName": name}
        return {"type": "TOOL_CALL_START", **start, "parentMessageId": self._message_id}

    def _called(self, call: ToolCall) -> Iterator[Out]:
        """The rest of a call that is committed."""
        call_id = self._new_id(call.id)
        if call_id not in self._calling:
            yield from self._call(call_id, call.name, call.arguments)
            return
        if not self._calling.pop(call_id):
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": "{}"}
        yield {"type": "TOOL_CALL_END", "toolCallId": call_id}

    def _call(self, call_id: str, name: str, args: Mapping[str, Any]) -> Iterator[Out]:
        yield self._begun(call_id, name)
        text = json.dumps(dict(args), ensure_ascii=False)
        yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": text}
        yield {"type": "TOOL_CALL_END", "toolCallId": call_id}

    def _serve(self, call_id: str, name: str, args: Mapping[str, Any]) -> Iterator[Out]:
        if call_id and call_id not in self._served:
            self._served.add(call_id)
            yield from self._call(call_id, name, args)

    def _end(self, event: TurnEnd) -> Out:
        if event.outcome in (Outcome.FAILED, Outcome.INTERRUPTED):
            died = "the process that ran this turn died: run it again to continue"
            text = self._error or ("the turn failed" if event.outcome is Outcome.FAILED else died)
            return {"type": "RUN_ERROR", "message": text, "code": event.stop_reason.value}
        if event.outcome is Outcome.INPUT_REQUIRED and self._error:
            return {"type": "RUN_ERROR", "message": self._error, "code": "budget"}
        outcome: Out = {"type": "success"}
        if event.outcome is Outcome.CANCELLED:
            outcome = {"type": "cancelled"}
        elif event.outcome in (Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED):
            outcome = outcome_of(self._pending, self.ids)
        more: Out = {"usage": [_usage(event.usage)]} if event.usage.total_tokens else {}
        if event.outcome is Outcome.COMPLETED and event.stop_reason is not StopReason.STOP:
            more["result"] = {"stop_reason": event.stop_reason.value}
        return {"type": "RUN_FINISHED", **self._run, "outcome": outcome, **more}

    def finished(self, outcome: Out) -> Out:
        """The last event of a run that runs no turn."""
        return {"type": "RUN_FINISHED", **self._run, "outcome": outcome}


def message_id_of(turn: int, iteration: int) -> str:
    """The id of a message of the model."""
    return f"{turn}.{iteration}"


def thought_id_of(message_id: str, block: int) -> str:
    """The id of the reasoning before or in a message of the model."""
    return f"{message_id}-thought-{block}"


def outcome_of(pending: Sequence[PendingRequest], ids: CallIds | None = None) -> Out:
    """How a run ends that waits: for interrupts, or for the page's own tools alone."""
    ids = ids or CallIds()
    others = [one for one in pending if one.kind is not PendingKind.CLIENT_TOOL]
    if others or not pending:
        asked = [_interrupt(one, ids) for one in others]
        fresh = {"id": CREDENTIALS, "reason": "auth", "message": "fresh credentials are needed"}
        return {"type": "interrupt", "interrupts": asked or [fresh]}
    return {"type": "success", "pendingToolCallIds": [ids.of(one.tool_call_id) for one in pending]}


def _interrupt(request: PendingRequest, ids: CallIds) -> Out:
    schema = request.schema
    if request.kind is PendingKind.APPROVAL:
        words: Out = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
        words |= {"note": {"type": "string"}}
        if schema is not None:
            words["args"] = dict(schema)
        schema = {"type": "object", "properties": words, "required": ["approved"]}
    about = {"toolName": request.tool_name, "args": dict(request.args)}
    found: Out = {
        "id": request.request_id,
        "reason": request.kind.value,
        "message": request.prompt or None,
        "toolCallId": ids.of(request.tool_call_id),
        "responseSchema": None if schema is None else dict(schema),
        "expiresAt": request.expires_at.isoformat() if request.expires_at else None,
        "metadata": {"looopy": {**about, "options": list(request.options)}},
    }
    return {name: value for name, value in found.items() if value is not None}


def content_of(content: str | Sequence[UserBlock]) -> str | list[Out]:
    """The content of a user's message or of a result: text, or parts if there is a file."""
    if isinstance(content, str):
        return content
    if all(isinstance(block, TextContent) for block in content):
        return "\n".join(block.text for block in content if isinstance(block, TextContent))
    return [_part(block) for block in content]


def _part(block: UserBlock) -> Out:
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    url = None if isinstance(block, AudioContent) else block.url
    source = {"type": "data", "value": block.data} if url is None else {"type": "url", "value": url}
    kind = "document"
    if isinstance(block, (ImageContent, AudioContent)):
        kind = block.type
    return {"type": kind, "source": {**source, "mimeType": block.mime_type}}


def server_results(message: AssistantMessage) -> Iterator[tuple[str, str]]:
    """The calls that the provider ran itself, and the text of their results."""
    found: dict[str, Mapping[str, Any]] = {}
    for block in message.content:
        if isinstance(block, ServerToolCall) and block.id:
            found.setdefault(block.id, block.item)
        elif isinstance(block, ServerToolResult):
            found[block.tool_call_id] = block.item
    for call_id, item in found.items():
        yield call_id, json.dumps(dict(item), ensure_ascii=False)


def rest_of(text: str) -> str:
    """Some end that makes JSON of the beginning of a JSON object; empty if there is none."""
    if not text.strip():
        return "{}"
    if len(text) > _LONG:
        return ""
    closing: list[str] = []
    quoted = escaped = False
    for char in text:
        if quoted:
            quoted, escaped = escaped or char != '"', not escaped and char == "\\"
        elif char == '"':
            quoted = True
        elif char in "{[":
            closing.append("}" if char == "{" else "]")
        elif char in "}]" and closing:
            closing.pop()
    end = "".join(reversed(closing))
    for rest in _RESTS_OF_TEXT if quoted else _RESTS:
        for more in ("", ":null") if quoted else ("",):
            with suppress(ValueError, RecursionError):
                json.loads(text + rest + more + end)
                return rest + more + end
    return ""


def _says(text: str, call: ToolCall) -> bool:
    """True if the page's *text* of the arguments equals the arguments of *call*."""
    try:
        return call.invalid_arguments is None and json.loads(text or "{}") == dict(call.arguments)
    except (ValueError, RecursionError):
        return False


def _result(message_id: str, call_id: str, content: str | list[Out]) -> Out:
    about = {"messageId": message_id, "toolCallId": call_id, "role": "tool"}
    return {"type": "TOOL_CALL_RESULT", **about, "content": content}


def _usage(usage: Usage) -> Out:
    return {
        "inputTokens": usage.input + usage.cache_read + usage.cache_write,
        "outputTokens": usage.output,
        "totalTokens": usage.total_tokens,
        "reasoningTokens": usage.reasoning,
        "cachedInputTokens": usage.cache_read,
        "cacheWriteInputTokens": usage.cache_write,
    }


def _aside(event: AgentEvent, ids: CallIds) -> Iterator[Out]:
    """Events that AG-UI has no event for."""
    match event:
        case ArtifactUpdate():
            yield _custom(
                "artifact",
                artifactId=event.artifact_id,
                kind=event.kind.value,
                version=event.version,
                complete=event.last_chunk,
                failed=event.failed,
                deleted=event.deleted,
            )
        case ToolExecutionUpdate():
            yield _custom(
                "progress",
                toolCallId=ids.of(event.tool_call_id),
                progress=event.progress,
                result=event.partial_result,
            )
        case TurnWarning():
            yield _custom("warning", code=event.code, text=event.text)
        case Compaction():
            yield _custom("compaction", covers=list(event.covers))
        case _:
            if (aside := aside_of(event)) is not None:
                yield _custom(aside[0].replace("-", "_"), **aside[1])


def decision_event(event: ApprovalDecided) -> Out:
    """The event for a person who has decided a call in another person's thread."""
    return _custom(
        "decision",
        requestId=event.request_id,
        decision=event.decision,
        actorId=event.actor_id,
        args=event.args,
        text=event.text,
    )


def _custom(name: str, **value: Any) -> Out:
    return {"type": "CUSTOM", "name": f"looopy.{name}", "value": value}
