"""
A turn as a picture: its runs, and what happened in each, on an axis of time.

A turn that was interrupted, or that waited for a person, is continued by another turn of the log.
`timeline` puts such turns together again. Each of them is one run, in one process: a run that ends
as `interrupted` has lost its process, and `last_sign` is the newest thing that this process stored.
The contents of messages and results are left out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from looopy.errors import ConfigurationError, ContextNotFound
from looopy.server import models
from looopy.server.items import is_hidden, item, to_json
from looopy.server.problems import Problem
from looopy.stores.bundle import Stores
from looopy.stores.records import TurnRecord
from looopy.types.event import (
    AgentEvent,
    ApprovalDecided,
    ArtifactUpdate,
    AuthRequired,
    InputRequired,
    MessageEnd,
    ServerToolEnd,
    ServerToolStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnError,
)
from looopy.types.message import AssistantMessage, UserMessage
from looopy.types.ranges import Range
from looopy.types.state import Outcome

_Json: TypeAlias = dict[str, Any]
_MOST_RUNS: Final = 200
_MOST_EVENTS: Final = 50_000
_MOST_SPANS: Final = 2_000
_PAGE = 500
_PAGE_BYTES: Final = 1024 * 1024
_LONGEST_TEXT = 300


async def timeline(
    stores: Stores, context_id: str, turn: int, hidden: Sequence[Range] = ()
) -> models.Timeline:
    """
    The runs that belong to *turn*, the oldest first, with their model calls, tool calls and marks.

    A long turn is shown up to 50,000 events, 2,000 spans and as many marks. `left_out` counts the
    other spans, `marks_left_out` the other marks, and `model_calls` has all of their kind;
    `complete` is false if events were left unread.

    Raises:
        Problem: 404; the context has no such turn.
        StoreUnavailable: The store did not answer.
    """
    records = await _linked(stores, context_id, turn)
    runs = [_Run(record) for record in records]
    by_turn = {run.turn: run for run in runs}
    read = 0
    complete = True
    async for event in _events(stores, context_id, records):
        read += 1
        if read > _MOST_EVENTS:
            complete = False
            break
        run = by_turn.get(event.turn)
        if run is not None and not event.path:
            run.add(event)
    room = _MOST_SPANS
    shown: list[models.Run] = []
    for run in runs:
        shown.append(run.to_json(room, hidden))
        room = max(0, room - len(shown[-1]["spans"]))
    return {"turn": turn, "runs": shown, "complete": complete}


async def _linked(stores: Stores, context_id: str, turn: int) -> list[TurnRecord]:
    """The turns that continue each other and of which *turn* is one, the oldest first."""

    async def record(number: int) -> TurnRecord | None:
        found = await stores.journal.turns(context_id, after=number - 1, limit=1)
        return found[0] if found and found[0].turn == number else None

    first = await record(turn)
    if first is None:
        raise Problem(f"there is no turn {turn}", status=404, code="turn_not_found")
    for _ in range(_MOST_RUNS):
        before = None if first.continues is None else await record(first.continues)
        if before is None:
            break
        first = before
    linked = {first.turn: first}
    for one in await stores.journal.turns(context_id, after=first.turn, limit=_MOST_RUNS):
        if one.continues not in linked:
            break
        linked[one.turn] = one
    return list(linked.values())


async def _events(
    stores: Stores, context_id: str, records: Sequence[TurnRecord]
) -> AsyncGenerator[AgentEvent, None]:
    """The durable events of these turns, in order."""
    seq, end = records[0].start_seq - 1, records[-1].end_seq
    while True:
        try:
            found = await _page(stores, context_id, seq)
        except ContextNotFound:  # it was deleted just now
            return
        for event in found:
            if end is not None and event.seq is not None and event.seq > end:
                return
            yield event
        if not found or found[-1].seq is None:
            return
        seq = found[-1].seq


async def _page(stores: Stores, context_id: str, after: int) -> Sequence[AgentEvent]:
    """The next events, without the messages of a turn in its end: those are not drawn."""
    try:
        return await stores.contexts.log_page(
            context_id, after=after, limit=_PAGE, most_bytes=_PAGE_BYTES
        )
    except ConfigurationError:  # another author's store, without the optional part
        return await stores.journal.events(context_id, after=after, limit=_PAGE)


class _Run:
    """One turn of the log: a run of the turn in one process."""

    def __init__(self, record: TurnRecord) -> None:
        self.turn = record.turn
        self._record = record
        self._spans: list[_Json] = []
        self._open: dict[str, _Json] = {}
        self._marks: list[_Json] = []
        self._last = record.started_at
        self._messages = 0

    def add(self, event: AgentEvent) -> None:
        """Take the next event."""
        if isinstance(event, MessageEnd):
            self._message(event)
        elif isinstance(event, (ToolExecutionStart, ServerToolStart)):
            kind = "tool" if isinstance(event, ToolExecutionStart) else "server_tool"
            span = self._span(kind, event.tool_name, event.timestamp, None, event)
            span["tool_call_id"] = event.tool_call_id
            self._open[event.tool_call_id] = span
        elif isinstance(event, (ToolExecutionEnd, ServerToolEnd)):
            self._call_ended(event)
        elif isinstance(event, ApprovalDecided):
            said = {"decision": event.decision, "actor_id": event.actor_id, "text": event.text}
            self._mark("approval", event.tool_name, event, **said)
        elif isinstance(event, InputRequired) and not event.pending:
            self._mark("budget", "", event, text=event.reason[:_LONGEST_TEXT])
            return
        elif isinstance(event, (InputRequired, AuthRequired)):
            names = ", ".join(request.tool_name for request in event.pending)
            self._mark("asks", names, event)
            return  # a recovery asks, too: no sign of the run's own process
        elif isinstance(event, ArtifactUpdate):
            self._mark("artifact", event.artifact_id, event, version=event.version)
        elif isinstance(event, TurnError):
            self._mark("error", event.code, event, text=event.text[:_LONGEST_TEXT])
        if not isinstance(event, (TurnEnd, ToolExecutionEnd, MessageEnd)):
            self._last = max(self._last, event.timestamp)

    def _message(self, event: MessageEnd) -> None:
        self._messages += 1
        if isinstance(event.message, AssistantMessage):
            self._last = max(self._last, event.timestamp)
            started = event.started or event.timestamp
            span = self._span("model", event.message.model, started, event.timestamp, event)
            span["attempts"] = event.attempts
            span["first_delta_s"] = event.first_delta_s
            span["tokens"] = event.message.usage.total_tokens
            span["stop_reason"] = event.message.stop_reason.value
        elif isinstance(event.message, UserMessage):
            self._last = max(self._last, event.timestamp)
            if self._messages > 1:
                self._mark("message", event.message.text[:_LONGEST_TEXT], event)

    def _call_ended(self, event: ToolExecutionEnd | ServerToolEnd) -> None:
        span = self._open.pop(event.tool_call_id, None)
        if isinstance(event, ToolExecutionEnd) and event.started is not None:
            ended = event.started + timedelta(seconds=event.duration_s)
            self._last = max(self._last, ended)
            if span is None:
                span = self._span("tool", event.tool_name, event.started, ended, event)
            span["started"], span["ended"] = _time(event.started), _time(ended)
        elif span is None:  # it never ran: it was refused, or its process died before
            at = event.timestamp
            span = self._span("tool", event.tool_name, at, at, event)
        elif isinstance(event, ServerToolEnd):
            self._last = max(self._last, event.timestamp)
            span["ended"] = _time(event.timestamp)
        else:
            span["unknown"] = True  # the recovery wrote this result; the tool's own never came
        span["is_error"] = event.is_error
        span["tool_call_id"] = event.tool_call_id

    def _span(
        self, kind: str, name: str, started: datetime, ended: datetime | None, event: AgentEvent
    ) -> _Json:
        span: _Json = {"kind": kind, "name": name, "iteration": event.iteration}
        span |= {"started": _time(started), "ended": None if ended is None else _time(ended)}
        self._spans.append(span)
        return span

    def _mark(self, kind: str, name: str, event: AgentEvent, **facts: Any) -> None:
        known = {key: value for key, value in facts.items() if value is not None}
        self._marks.append({"kind": kind, "name": name, "at": _time(event.timestamp), **known})

    def to_json(self, room: int, hidden: Sequence[Range]) -> models.Run:
        """All of it, with at most *room* spans and as many marks; *hidden* was rewound."""
        record = self._record
        return item(
            models.Run,
            record,
            hidden=is_hidden(record, hidden),
            started=_time(record.started_at),
            ended=to_json(record.ended_at),
            last_sign=_time(self._last) if record.outcome is Outcome.INTERRUPTED else None,
            spans=self._spans[:room],
            marks=self._marks[:room],
            left_out=max(0, len(self._spans) - room),
            marks_left_out=max(0, len(self._marks) - room),
            model_calls=sum(span["kind"] == "model" for span in self._spans),
        )


def _time(moment: datetime) -> str:
    return moment.isoformat()
