"""
How the events of a commit become rows, and rows become events again.

Each body is stored once. An event that mirrors a message *is* that message's row, with its `seq` in
a column; `tool_execution_end` is part of the row of the tool result that follows it (its `seq` is
one less); and `turn_start` and `turn_end` are the turn's row. Only the remaining events have a row
in the event log.

Every backend uses these functions, so all of them keep the same text. The backend assigns the
numbers: a row carries its offset within the commit.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from looopy.errors import StoreError, ValueRefused
from looopy.stores.records import (
    ANY_CALL,
    ContextState,
    Entry,
    EntryKind,
    NewSummary,
    TurnRecord,
)
from looopy.stores.rows.meta import Facts, decode_meta, encode_meta, from_us, to_us
from looopy.stores.rows.reading import DAMAGED, read_message
from looopy.stores.rows.writing import message_text, usage_text
from looopy.types.artifact import Artifact, ArtifactKind
from looopy.types.auth import AuthRequest
from looopy.types.event import (
    AgentEvent,
    ApprovalDecided,
    ArtifactUpdate,
    AuthRequired,
    Compaction,
    HistoryCleared,
    HistoryRewound,
    InputRequired,
    MessageEnd,
    ServerToolEnd,
    ServerToolStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnError,
    TurnStart,
    TurnWarning,
    event_to_json,
    is_durable,
    utc_now,
)
from looopy.types.message import (
    NO_USAGE,
    AssistantMessage,
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_check import mended_usage
from looopy.types.message_json import usage_from_json, usage_to_json
from looopy.types.state import (
    AgentStatus,
    HeldCall,
    Outcome,
    PendingKind,
    PendingRequest,
    held_to_json,
    pending_to_json,
)
from looopy.types.storable import check_actor, dump

_logger = logging.getLogger("looopy")
End = TypeVar("End", Outcome, StopReason)


class MessageRow(NamedTuple):
    """A message to insert at `first_position + offset`, with `first_seq + seq_offset`."""

    offset: int
    seq_offset: int
    iteration: int
    role: str
    created_us: int
    body: str
    meta: str | None


class EventRow(NamedTuple):
    """
    Any other event to insert with `first_seq + seq_offset`.

    `message_offset` points at the assistant message of this commit that announced the call (added
    to the commit's first position); `None`: `Commit.assistant_position`, where the type needs it.
    """

    seq_offset: int
    iteration: int
    type: str
    created_us: int
    body: str
    message_offset: int | None


class TurnOpening(NamedTuple):
    """The beginning of a turn's row, of `turn_start`; `user_offset`: the user's first message."""

    continues: int | None
    started_us: int
    user_offset: int | None


class TurnClosing(NamedTuple):
    """`turn_end`: what closes the turn's row; `usage` is the text of `spent`."""

    seq_offset: int
    outcome: Outcome
    stop_reason: StopReason
    spent: Usage
    usage: str
    ended_us: int


class Rows(NamedTuple):
    """All rows of one commit. `seqs`: how many numbers it takes."""

    messages: Sequence[MessageRow]
    events: Sequence[EventRow]
    opening: TurnOpening | None
    closing: TurnClosing | None
    seqs: int


def encode(events: Sequence[AgentEvent]) -> Rows:
    """
    Turn the durable events of one commit into rows; each event takes the next number.

    Raises:
        ValueRefused: A value cannot be stored; `path` is a pointer into the list of messages.
    """
    messages: list[MessageRow] = []
    others: list[EventRow] = []
    opening: TurnOpening | None = None
    closing: TurnClosing | None = None
    ended: ToolExecutionEnd | None = None
    assistant: int | None = None
    for i, event in enumerate(events):
        created = to_us(event.timestamp)
        if isinstance(event, MessageEnd):
            if isinstance(event.message, AssistantMessage):
                assistant = len(messages)
            messages.append(_message_row(event, len(messages), i, created, ended))
            ended = None
        elif isinstance(event, ToolExecutionEnd):
            following = events[i + 1] if i + 1 < len(events) else None
            if not isinstance(following, MessageEnd) or following.message is not event.result:
                raise ValueError(
                    "tool_execution_end must be followed by its tool result's message_end"
                )
            ended = event
        elif isinstance(event, TurnStart):
            opening = TurnOpening(event.continues, created, _user_offset(event, events))
        elif isinstance(event, TurnEnd):
            spent, usage = event.usage, usage_text(event.usage)
            closing = TurnClosing(i, event.outcome, event.stop_reason, spent, usage, created)
        elif not is_durable(event):
            raise ValueError(f"{event.type} is not durable: it cannot be committed")
        elif isinstance(event, ToolExecutionStart):
            # Its name and arguments are in the assistant's message.
            body = f'{{"tool_call_id":{dump(event.tool_call_id, "/tool_call_id")}}}'
            if event.edited:  # these are in no message
                body = start_body(event.tool_call_id, event.args)
            others.append(EventRow(i, event.iteration, event.type, created, body, assistant))
        else:
            body = dump(event_body(event))
            others.append(EventRow(i, event.iteration, event.type, created, body, None))
    return Rows(messages, others, opening, closing, len(events))


def with_artifacts(encoded: Rows, artifacts: Sequence[Artifact]) -> Rows:
    """*encoded* with kind and version of the artifact that each `artifact_update` is about."""
    events, changed = [], iter(artifacts)
    for row in encoded.events:
        if row.type == ArtifactUpdate.type and (artifact := next(changed, None)) is not None:
            facts = {"kind": artifact.kind.value, "version": artifact.version}
            events.append(row._replace(body=dump({**json.loads(row.body), **facts})))
        else:
            events.append(row)
    return encoded._replace(events=events)


def message_rows(messages: Sequence[Message]) -> Rows:
    """Rows for messages appended outside a turn, each with its `message_end`."""
    rows = []
    for i, message in enumerate(messages):
        event = MessageEnd(context_id="", message=message)
        rows.append(_message_row(event, i, i, to_us(event.timestamp), None))
    return Rows(rows, (), None, None, len(rows))


def _message_row(
    event: MessageEnd, offset: int, seq_offset: int, created: int, ended: ToolExecutionEnd | None
) -> MessageRow:
    message = event.message
    body = message_text(message, f"/{offset}")
    meta = encode_meta(event, ended, created)
    return MessageRow(offset, seq_offset, event.iteration, message.role, created, body, meta)


def _user_offset(start: TurnStart, events: Sequence[AgentEvent]) -> int | None:
    if start.user_message is None:
        return None
    firsts = [e.message for e in events if isinstance(e, MessageEnd)]
    return next(i for i, message in enumerate(firsts) if message is start.user_message)


def start_body(call_id: str, args: Mapping[str, Any]) -> str:
    """The body of a `tool_execution_start` whose arguments a person has changed."""
    return dump({"tool_call_id": call_id, "args": dict(args)})


def event_body(event: AgentEvent) -> dict[str, Any]:
    """The fields of an event that its row keeps as JSON."""
    common = {"type", "context_id", "turn", "iteration", "timestamp", "path", "seq"}
    return {k: v for k, v in event_to_json(event).items() if k not in common}


# --- and back ----------------------------------------------------------------------------------


def decode_message_events(context_id: str, row: Sequence[Any]) -> list[AgentEvent]:
    """
    The events of a message's row: `tool_execution_end` if it has one, then `message_end`.

    Args:
        row: Position, turn, iteration, seq, created_us, meta and body.
    """
    position, turn, iteration, seq, created_us, meta, body = row
    message = read_message(body, position=position)
    facts = _facts(meta, created_us, position)
    events: list[AgentEvent] = []
    if (ran := facts.ran) is not None:
        ended: dict[str, Any] = {
            "context_id": context_id,
            "turn": turn,
            "iteration": iteration,
            "timestamp": ran[2],
            "seq": seq - 1,
        }
        if not isinstance(message, ToolResultMessage):  # damaged: the number is taken all the same
            text = f"the end of a tool call with the message at position {position} is damaged"
            events.append(TurnWarning(**ended, code=DAMAGED, text=text))
        else:
            ended["started"], ended["duration_s"] = ran[:2]
            events.append(
                ToolExecutionEnd(
                    **ended,
                    tool_call_id=message.tool_call_id,
                    tool_name=message.tool_name,
                    result=message,
                    is_error=message.is_error,
                )
            )
    events.append(
        MessageEnd(
            context_id=context_id,
            turn=turn,
            iteration=iteration,
            timestamp=from_us(created_us),
            seq=seq,
            message=message,
            position=position,
            started=facts.started,
            first_delta_s=facts.first_delta_s,
            attempts=facts.attempts,
            usage=message.usage if isinstance(message, AssistantMessage) else None,
            request=facts.request,
        )
    )
    return events


def _facts(meta: str | None, created_us: int, position: int) -> Facts:
    try:
        return decode_meta(meta, created_us)
    except Exception as error:  # noqa: BLE001 - one bad row never stops a read
        _logger.warning("what is stored beside the message at position %s: %s", position, error)
        return Facts()


def decode_turn_start(context_id: str, turn: TurnRecord, user_message: Message | None) -> TurnStart:
    """The `turn_start` of a turn's row."""
    return TurnStart(
        context_id=context_id,
        turn=turn.turn,
        timestamp=turn.started_at,
        seq=turn.start_seq,
        user_message=user_message if isinstance(user_message, UserMessage) else None,
        continues=turn.continues,
        process=turn.process,
    )


def decode_turn_end(
    context_id: str, turn: TurnRecord, iteration: int, messages: Sequence[Message]
) -> TurnEnd:
    """The `turn_end` of a closed turn's row; *messages* were added by the turn."""
    if turn.outcome is None or turn.stop_reason is None or turn.ended_at is None:
        raise ValueError(f"turn {turn.turn} is open")
    return TurnEnd(
        context_id=context_id,
        turn=turn.turn,
        iteration=iteration,
        timestamp=turn.ended_at,
        seq=turn.end_seq,
        outcome=turn.outcome,
        stop_reason=turn.stop_reason,
        messages=tuple(messages),
        usage=turn.usage,
    )


def decode_event(
    context_id: str, row: Sequence[Any], announced: Mapping[str, ToolCall]
) -> AgentEvent:
    """
    The event of a row of the event log; for a damaged row, a `warning` with its `seq`.

    Args:
        row: Seq, turn, iteration, type, created_us, position and body.
        announced: For `tool_execution_start`, the calls of the assistant's message, by id.
    """
    seq, turn, iteration, kind, created_us, _, body = row
    common: dict[str, Any] = {
        "context_id": context_id,
        "turn": turn,
        "iteration": iteration,
        "timestamp": from_us(created_us),
        "seq": seq,
    }
    try:
        return _DECODERS[kind](json.loads(body), common, announced)
    except Exception as error:  # noqa: BLE001 - one bad row never stops a read
        why = f"{error.__class__.__name__}: {error}"
        text = f"the stored event {seq} of the type {kind!r} cannot be read: {why}"
        _logger.warning("context %s: %s", context_id, text)
        return TurnWarning(**common, code=DAMAGED, text=text)


def is_stored(kind: str) -> bool:
    """True if there are durable events of this type."""
    others = ("turn_start", "turn_end", "message_end", "tool_execution_end")
    return kind in others or kind in _DECODERS


def check_body(kind: str, body: Mapping[str, Any]) -> None:
    """Raise `ValueRefused` for JSON that `event_body` would not write for an event of *kind*."""
    try:
        found = event_body(_DECODERS[kind](body, {"context_id": ""}, {}))
    except Exception as error:
        raise ValueRefused(f"no {kind}: {type(error).__name__}: {error}", path="") from error
    if found != body:
        raise ValueRefused(f"no {kind} that looopy writes", path="")


def _decode_tool_start(
    data: Mapping[str, Any], common: dict[str, Any], announced: Mapping[str, ToolCall]
) -> ToolExecutionStart:
    call_id = data["tool_call_id"]
    call = announced.get(call_id) or ToolCall(call_id)
    return ToolExecutionStart(
        **common,
        tool_call_id=call_id,
        tool_name=call.name,
        args=data.get("args", call.arguments),
        edited="args" in data,
    )


def _decode_pending(data: Mapping[str, Any]) -> tuple[PendingRequest, ...]:
    return tuple(pending_from_json(p) for p in data.get("pending", ()))


def _decode_decided(data: Mapping[str, Any], common: dict[str, Any]) -> ApprovalDecided:
    check_actor(data["actor_id"])
    return ApprovalDecided(**common, **data)


_DECODERS: dict[
    str, Callable[[Mapping[str, Any], dict[str, Any], Mapping[str, ToolCall]], AgentEvent]
] = {
    "tool_execution_start": _decode_tool_start,
    "artifact_update": lambda data, common, _: ArtifactUpdate(
        **common, **{**data, "kind": ArtifactKind(data["kind"])}
    ),
    "server_tool_start": lambda data, common, _: ServerToolStart(**common, **data),
    "server_tool_end": lambda data, common, _: ServerToolEnd(**common, **data),
    "input_required": lambda data, common, _: InputRequired(
        **common, pending=_decode_pending(data), reason=data.get("reason", "")
    ),
    "approval_decided": lambda data, common, _: _decode_decided(data, common),
    "auth_required": lambda data, common, _: AuthRequired(**common, pending=_decode_pending(data)),
    "history_cleared": lambda data, common, _: HistoryCleared(
        **common, covers=(data["covers"][0], data["covers"][1])
    ),
    "history_rewound": lambda data, common, _: HistoryRewound(
        **common, **{**data, "covers": (data["covers"][0], data["covers"][1])}
    ),
    "compaction": lambda data, common, _: Compaction(
        **common, **{**data, "covers": (data["covers"][0], data["covers"][1])}
    ),
    "error": lambda data, common, _: TurnError(**common, **data),
    # Never stored: for a damaged row that was exported as the warning that replaced it.
    "warning": lambda data, common, _: TurnWarning(**common, **data),
}


def started_call(body: str) -> str:
    """Which call the row of a `tool_execution_start` is about; `ANY_CALL` if it is damaged."""
    try:
        return str(json.loads(body)["tool_call_id"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        _logger.warning("a stored tool_execution_start cannot be read: %s", error)
        return ANY_CALL


# --- the inbox -----------------------------------------------------------------------------------


def entry_body(message: UserMessage, actor_id: str | None) -> str:
    """The text of a message that waits in an inbox; `ValueRefused` has a path into the message."""
    check_actor(actor_id)
    return message_text(message)


def decode_entry(number: int, kind: str, actor_id: str | None, created_us: int, body: str) -> Entry:
    """The entry of an inbox in its columns."""
    message = read_message(body, position=None)
    if not isinstance(message, UserMessage):  # a damaged row still leaves the inbox as said
        message = UserMessage(f"[message {number} of the inbox cannot be read]", timestamp=0)
    return Entry(
        number=number,
        kind=EntryKind(kind),
        message=message,
        actor_id=actor_id,
        created_at=from_us(created_us),
    )


# --- the small columns -------------------------------------------------------------------------


def interrupted_now() -> TurnClosing:
    """Columns that close a turn as interrupted, without a `turn_end`."""
    now = to_us(utc_now())
    return TurnClosing(0, Outcome.INTERRUPTED, StopReason.INTERRUPTED, NO_USAGE, "{}", now)


def decode_usage(text: str) -> Usage:
    """The usage in a column's text; of damaged text, the readable parts."""
    try:
        return _read_usage(json.loads(text))
    except Exception as error:  # noqa: BLE001 - one bad row never stops a read
        _logger.warning("a stored usage cannot be read: %s", error)
        return NO_USAGE


def _read_usage(data: Any) -> Usage:
    try:
        return usage_from_json(data)
    except ValueRefused as error:
        _logger.warning("a stored usage was repaired as it was read: %s", error)
        return mended_usage(data, [])


def decode_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object in a column's text, {} if it is damaged; *what* names it in the log."""
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return found
        why = "it is not a JSON object"
    except (ValueError, TypeError, RecursionError) as error:
        why = str(error)
    _logger.warning("%s cannot be read: %s", what, why)
    return {}


def state_column(state: ContextState) -> str:
    """Text of a context's state column; defaults are left out."""
    data: dict[str, Any] = _rare(state) if state.is_rare else {}
    if state.pending:
        data["pending"] = [pending_to_json(p) for p in state.pending]
    if state.answered:
        data["answered"] = [[pending_to_json(p), value] for p, value in state.answered]
    if state.held:
        data["held"] = [held_to_json(h) for h in state.held]
    if state.error is not None:
        data["error"] = list(state.error)
    if state.resumable is not None:
        data["resumable"] = state.resumable
    if state.waits_for is not None:
        data["waits_for"] = state.waits_for
    if state.output is not None:
        data["output"] = state.output
    if state.summary is not None:
        data["summary"] = state.summary
    if state.charged is not NO_USAGE and (used := usage_to_json(state.charged, compact=True)):
        data["charged"] = used
    if not data:  # as between most turns
        usage = usage_text(state.usage)
        sums = [] if usage == "{}" else [f'"usage":{usage}']
        if state.run_us is not None:
            sums.append(f'"run_us":{state.run_us:d}')
        if state.sent is not None:
            sums.append(f'"sent":"{state.sent}"')
        if state.trace is not None:
            sums.append(f'"trace":"{state.trace}"')
        return f"{{{','.join(sums)}}}"
    if used := usage_to_json(state.usage, compact=True):
        data["usage"] = used
    kept = {name: getattr(state, name) for name in ("run_us", "sent", "trace")}
    return dump(data | {name: value for name, value in kept.items() if value is not None})


def _rare(state: ContextState) -> dict[str, Any]:
    names = ("needs_auth", "concluding", "left_as")
    return {name: found for name in names if (found := getattr(state, name))}


def decode_state(text: str, context_id: str = "") -> ContextState:
    """The state in a column's text; of damaged text, the readable parts and an `error`."""
    try:
        data: Any = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        data = None  # which no part can be read from
    parts: dict[str, Any] = {}
    damage: Exception | None = None
    for name, read in _PARTS.items():
        try:
            parts[name] = read(data)
        except Exception as failure:  # noqa: BLE001 - one bad row never stops a list
            damage = failure
            _logger.warning("%r in the state of context %s: %s", name, context_id, failure)
    if damage is not None:
        why = f"the stored state of this context is damaged: {type(damage).__name__}: {damage}"
        parts["error"] = (StoreError.__name__, why)
    return ContextState(**parts)


def state_after_clear(text: str, *, forced: bool) -> str:
    """
    The state column of a cleared context: what no turn resets, without `sent` and `trace`.

    Args:
        forced: True if it ended a turn. That one has run as well, so the turns show how long.
    """
    kept = replace(ContextState(**decode_state(text).sums), sent=None, trace=None)
    return state_column(replace(kept, run_us=None) if forced else kept)


def state_left_as(text: str, status: AgentStatus) -> str:
    """The state column of a context whose agent was left as *status*; `ready` removes the note."""
    left_as = None if status is AgentStatus.READY else status
    return state_column(replace(decode_state(text), left_as=left_as))


def state_with_summary(text: str, position: int, new: NewSummary) -> str:
    """The state column of a context with a *new* summary at *position*."""
    state = decode_state(text)
    summary = position if new.message.content else None
    return state_column(replace(state, summary=summary, usage=state.usage + new.usage))


def _decode_error(data: Mapping[str, Any]) -> tuple[str, str] | None:
    error = data.get("error")
    return None if error is None else (str(error[0]), str(error[1]))


def _decode_one(data: Mapping[str, Any], name: str, kind: type) -> Any:
    found = data.get(name)
    if found is None or type(found) is kind:
        return found
    raise TypeError(f"{kind.__name__} is needed, not {type(found).__name__}")


def _decode_sent(data: Mapping[str, Any]) -> str | None:
    """The beginning of the last request: without it, only a warning is missing."""
    sent = data.get("sent")
    return sent if isinstance(sent, str) and _PLAIN.issuperset(sent) else None


def _decode_trace(data: Mapping[str, Any]) -> str | None:
    """The last traced turn: without it, only a link is missing."""
    trace = data.get("trace")
    return trace if isinstance(trace, str) and _TRACE.fullmatch(trace) else None


_TRACE = re.compile(r"[0-9]{1,18} 00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PLAIN = frozenset("0123456789abcdef -" + "rewindfork")
_PARTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "pending": _decode_pending,
    "answered": lambda data: tuple(
        (pending_from_json(p), value) for p, value in data.get("answered", ())
    ),
    "held": lambda data: tuple(HeldCall(**h) for h in data.get("held", ())),
    "error": _decode_error,
    "resumable": lambda data: _decode_one(data, "resumable", int),
    "summary": lambda data: _decode_one(data, "summary", int),
    "usage": lambda data: _read_usage(data.get("usage", {})),
    "charged": lambda data: _read_usage(data["charged"]) if "charged" in data else NO_USAGE,
    "run_us": lambda data: _decode_one(data, "run_us", int),
    "output": lambda data: _decode_one(data, "output", dict),
    "sent": _decode_sent,
    "trace": _decode_trace,
    "waits_for": lambda data: _decode_one(data, "waits_for", str),
    "needs_auth": lambda data: bool(_decode_one(data, "needs_auth", bool)),
    "concluding": lambda data: bool(_decode_one(data, "concluding", bool)),
    "left_as": lambda data: AgentStatus(data["left_as"]) if "left_as" in data else None,
}


def pending_from_json(data: Mapping[str, Any]) -> PendingRequest:
    """The pending request in a JSON object."""
    expires, auth = data.get("expires_at"), data.get("auth")
    return PendingRequest(
        **{
            **data,
            "kind": PendingKind(data["kind"]),
            "options": tuple(data.get("options", ())),
            "auth": None if auth is None else AuthRequest(**auth),
            "expires_at": None if expires is None else datetime.fromisoformat(expires),
        }
    )


def decode_end(kind: type[End], value: str | None) -> End | None:
    """How a turn ended, from a column: `None` while it is open, `interrupted` if unknown."""
    try:
        return None if value is None else kind(value)
    except ValueError:
        return kind("interrupted")
