"""
The events of a turn, as a subscriber sees them: frozen, and distinguished by `type`.

Where pi and pipy-agent have a name for an event, it is theirs. An event with a `seq` is durable:
subscribers see it only after the commit that stored it, its number is gapless within the context,
and `Agent.events(after=seq)` replays it. An event without one (a delta, a start) promises nothing
and is not stored.

Order of one iteration: `iteration_start`; queued user messages (`message_start`, `message_end`
each); the assistant's `message_start`, `message_update`* (and `server_tool_start`,
`server_tool_end` for tools that the provider runs), `message_end`; per tool
`tool_execution_start`, `tool_execution_update`*, `tool_execution_end`, `message_start`,
`message_end`; `iteration_end`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, ClassVar, Literal, TypeAlias

from looopy.errors import LooopyError
from looopy.types.artifact import ArtifactKind
from looopy.types.constructors import quick
from looopy.types.message import (
    NO_USAGE,
    AssistantMessage,
    CustomMessage,
    Message,
    StopReason,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_json import message_to_json, usage_to_json
from looopy.types.request import PartialMessage, RateQuota, StreamEvent
from looopy.types.state import AgentStatus, Outcome, PendingRequest, pending_to_json


def utc_now() -> datetime:
    """The time of an event: aware, UTC."""
    return datetime.now(UTC)


def moment_in(seconds: float) -> datetime:
    """The time in *seconds* from now: aware, UTC, and at most the end of the year 9999."""
    try:
        return utc_now() + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """
    The fields of every event.

    Attributes:
        turn: Number of the turn within the context, from 1.
        iteration: Number of the iteration within the turn, from 1; 0 before the first.
        path: Empty, or the chain of sub-agents down to this one.
        seq: Number within the context's log if the event is durable and committed, else `None`.
    """

    type: ClassVar[str] = ""
    durable: ClassVar[bool] = False

    context_id: str
    turn: int = 0
    iteration: int = 0
    timestamp: datetime = field(default_factory=utc_now)
    path: tuple[str, ...] = ()
    seq: int | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart(Event):
    """
    A turn was accepted: its user message is safe.

    Attributes:
        continues: The turn that this one continues, or `None`.
        process: The process that runs it (`looopy.telemetry.process_name`); `None`: not recorded.
    """

    type: ClassVar[Literal["turn_start"]] = "turn_start"
    durable: ClassVar[bool] = True
    user_message: UserMessage | None = None
    continues: int | None = None
    process: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationStart(Event):
    """One model call and its tools begin."""

    type: ClassVar[Literal["iteration_start"]] = "iteration_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationEnd(Event):
    """One model call and its tools are done."""

    type: ClassVar[Literal["iteration_end"]] = "iteration_end"
    message: AssistantMessage | None = None
    tool_results: Sequence[ToolResultMessage] = ()
    usage: Usage = NO_USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStart(Event):
    """A message begins. An assistant's is empty yet; the others are whole."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUpdate(Event):
    """
    The assistant's message grows.

    Attributes:
        delta: New text for the reader; empty for thinking and tool-call pieces.
        event: The provider's event, or `None` where waiting deltas were merged.
        partial: The message so far, by reference: read it at once, do not keep it.
    """

    type: ClassVar[Literal["message_update"]] = "message_update"
    delta: str = ""
    event: StreamEvent | None = None
    content_index: int = 0
    partial: PartialMessage | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEnd(Event):
    """
    A message is final and stored.

    Attributes:
        position: Its place in the context's history, from 1; `None` in a bare loop.
        started: When the model call began (assistant).
        first_delta_s: Seconds to the first delta (assistant).
        attempts: Model calls it took, 1 without a retry (assistant).
        request: Digests of its request: of the model's name, the tools and the system prompt.
            `None` if they equal the digests of the turn's previous call (assistant).
    """

    type: ClassVar[Literal["message_end"]] = "message_end"
    durable: ClassVar[bool] = True
    message: Message
    position: int | None = None
    started: datetime | None = None
    first_delta_s: float | None = None
    attempts: int = 1
    usage: Usage | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionStart(Event):
    """
    A tool is about to run. Durable when the tool has effects, see `looopy.tools`.

    Attributes:
        args: The arguments of the call: the model's, or the ones that a person approved instead.
        edited: True if a person gave the arguments.
    """

    type: ClassVar[Literal["tool_execution_start"]] = "tool_execution_start"
    tool_call_id: str
    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    has_effects: bool = True
    edited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionUpdate(Event):
    """A running tool reports."""

    type: ClassVar[Literal["tool_execution_update"]] = "tool_execution_update"
    tool_call_id: str
    tool_name: str
    partial_result: Any = None
    progress: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionEnd(Event):
    """A tool call has its result; the tool result message follows at once."""

    type: ClassVar[Literal["tool_execution_end"]] = "tool_execution_end"
    durable: ClassVar[bool] = True
    tool_call_id: str
    tool_name: str
    result: ToolResultMessage
    is_error: bool = False
    started: datetime | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerToolStart(Event):
    """
    The provider's own server begins to run a tool of its own, such as its web search.

    Attributes:
        args: The arguments, as far as the provider has sent them.
    """

    type: ClassVar[Literal["server_tool_start"]] = "server_tool_start"
    durable: ClassVar[bool] = True
    tool_call_id: str
    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerToolEnd(Event):
    """
    The provider's own server has run a tool. The answer's message holds what it sent of it.

    Attributes:
        args: The arguments, as far as the provider has said them.
        is_error: The server reports a failure.
    """

    type: ClassVar[Literal["server_tool_end"]] = "server_tool_end"
    durable: ClassVar[bool] = True
    tool_call_id: str
    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactUpdate(Event):
    """
    An artifact was written or deleted.

    Attributes:
        version: That was written; the newest one, when the artifact was deleted.
        append: The version was there, and has grown or ended.
        last_chunk: The version does not grow any more; false while it is being built.
        deleted: All versions of the artifact are gone.
        failed: The version was given up.
        anew: The turn's tools had read no version of the artifact before: the change repeats
            nothing of one.
    """

    type: ClassVar[Literal["artifact_update"]] = "artifact_update"
    durable: ClassVar[bool] = True
    artifact_id: str
    kind: ArtifactKind
    version: int
    append: bool = False
    last_chunk: bool = True
    deleted: bool = False
    failed: bool = False
    anew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequired(Event):
    """
    The turn ends until a person answers; see `AgentState.pending`.

    `reason` is a sentence where nothing is pending: a budget has to be raised.
    """

    type: ClassVar[Literal["input_required"]] = "input_required"
    durable: ClassVar[bool] = True
    pending: Sequence[PendingRequest] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthRequired(Event):
    """The turn ends until fresh credentials come."""

    type: ClassVar[Literal["auth_required"]] = "auth_required"
    durable: ClassVar[bool] = True
    pending: Sequence[PendingRequest] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecided(Event):
    """
    A request for approval was answered, or expired, at `timestamp`.

    Attributes:
        decision: `expired` is not a denial: no person decided.
        actor_id: The person who answered, who may be another one than the actor for whom the call
            runs. `None` if the answer came without an `AuthContext`, or the request expired.
        args: The arguments with which the person replaced the shown ones, or `None`.
        text: The person's note or reason, or `None`.
    """

    type: ClassVar[Literal["approval_decided"]] = "approval_decided"
    durable: ClassVar[bool] = True
    request_id: str
    tool_call_id: str
    tool_name: str
    decision: Literal["approved", "denied", "expired"]
    actor_id: str | None = None
    args: Mapping[str, Any] | None = None
    text: str | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange(Event):
    """
    The agent's status changed, or a model call will be tried again.

    Attributes:
        attempt: The number of the next attempt of the model call; `None`: no call is repeated.
        delay_s: The wait before that attempt.
        next_at: The time of that attempt: aware, UTC. A late view can see how long it still is.
        rate_limited: The model's server has asked to wait.
        reason: Why the last attempt failed.
    """

    type: ClassVar[Literal["status_change"]] = "status_change"
    status: AgentStatus
    attempt: int | None = None
    delay_s: float | None = None
    next_at: datetime | None = None
    rate_limited: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit(Event):
    """
    The rate limits in the headers of a model's server, or its refusal of a call.

    A turn has one for the first response of each model with such headers, and later ones only if
    a limit has another size, or has gone below a fifth or above it; and one for each refusal.

    Attributes:
        limits: In the order of the headers; () for a refusal without such headers.
        refused: The server refused the call because of a limit.
        retry_at: When it may be called again: aware, UTC; `None`: it names no time.
    """

    type: ClassVar[Literal["rate_limit"]] = "rate_limit"
    provider: str
    model: str
    limits: Sequence[RateQuota] = ()
    refused: bool = False
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRerouted(Event):
    """
    Another model answers than the one that was asked; once a turn for each pair.

    Attributes:
        asked: Provider and model, such as `openai/gpt-5-mini`.
        answered: The same of the model that answers.
        by: `fallback`: a `FallbackProvider` called it; `server`: the server chose it.
        reason: Why; empty if the server does not give a reason.
    """

    type: ClassVar[Literal["model_rerouted"]] = "model_rerouted"
    asked: str
    answered: str
    by: Literal["fallback", "server"]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport(Event):
    """The usage of the iteration, and of the turn so far."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    turn_usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCleared(Event):
    """The history up to here is hidden for good."""

    type: ClassVar[Literal["history_cleared"]] = "history_cleared"
    durable: ClassVar[bool] = True
    covers: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRewound(Event):
    """
    The newest part of the history is hidden from the model, or shown to it again.

    Attributes:
        covers: First and last position of that part, which stays on record.
        undone: True if it is shown again.
    """

    type: ClassVar[Literal["history_rewound"]] = "history_rewound"
    durable: ClassVar[bool] = True
    covers: tuple[int, int] = (0, 0)
    undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Event):
    """
    A summary now replaces a part of the history, which stays readable.

    Attributes:
        covers: First and last position of that part; (0, 0) in a bare loop.
        position: The position of the summary; `None` in a bare loop.
        tokens_before, tokens_after: The estimated length of the history for the model.
        unread: How many messages of that part the summary covers without mentioning them: the
            oldest, for which the model that wrote it had no room.
        undoes: The position of the summary that no longer counts, because of `undo_compact()`. The
            new one repeats the summary before it, or is empty.
    """

    type: ClassVar[Literal["compaction"]] = "compaction"
    durable: ClassVar[bool] = True
    covers: tuple[int, int] = (0, 0)
    position: int | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    unread: int = 0
    undoes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWarning(Event):
    """A warning, which does not end the turn. `code` is a guard's name or a short word."""

    type: ClassVar[Literal["warning"]] = "warning"
    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnError(Event):
    """Why a turn fails; `code` is its stop_reason. `error`: the exception, in this process only."""

    type: ClassVar[Literal["error"]] = "error"
    durable: ClassVar[bool] = True
    code: str
    text: str
    fatal: bool = False
    error: LooopyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd(Event):
    """
    The turn is over: one for each accepted turn.

    Attributes:
        messages: The messages that it added, oldest first.
    """

    type: ClassVar[Literal["turn_end"]] = "turn_end"
    durable: ClassVar[bool] = True
    outcome: Outcome
    stop_reason: StopReason
    messages: Sequence[Message] = ()
    usage: Usage = NO_USAGE

    @property
    def iterations(self) -> int:
        """How many model calls have answered, also in part."""
        return sum(isinstance(one, AssistantMessage) for one in self.messages)


AgentEvent: TypeAlias = (
    TurnStart
    | IterationStart
    | IterationEnd
    | MessageStart
    | MessageUpdate
    | MessageEnd
    | ToolExecutionStart
    | ToolExecutionUpdate
    | ToolExecutionEnd
    | ServerToolStart
    | ServerToolEnd
    | ArtifactUpdate
    | InputRequired
    | AuthRequired
    | ApprovalDecided
    | StatusChange
    | RateLimit
    | ModelRerouted
    | UsageReport
    | HistoryCleared
    | HistoryRewound
    | Compaction
    | TurnWarning
    | TurnError
    | TurnEnd
)


def is_durable(event: Event) -> bool:
    """True if *event* is stored and numbered."""
    if isinstance(event, ToolExecutionStart):
        return event.has_effects
    return event.durable


def durable(events: Iterable[AgentEvent]) -> list[AgentEvent]:
    """Those of *events* that are stored and numbered."""
    return list(filter(is_durable, events))


def number(stored: Sequence[Event], seq: int, position: int, same: Sequence[Event] = ()) -> None:
    """
    Complete durable events once they are stored and before a subscriber sees them.

    Args:
        seq: The number of the first one; 0: they have no numbers yet.
        position: The position of the first message among them.
        same: The same events as they were stored, with their timestamps; empty: *stored* itself.
    """
    for event, original in zip(stored, same, strict=True) if same else ():
        _set(event, "timestamp", original.timestamp)
        if isinstance(original, TurnStart):
            _set(event, "process", original.process)
    for event in stored:
        if seq:
            _set(event, "seq", seq)
            seq += 1
        if isinstance(event, MessageEnd):
            _set(event, "position", position)
            position += 1


_set = object.__setattr__  # events are frozen


_HIDDEN = frozenset({"event", "partial", "has_effects", "error"})


def event_to_json(event: Event) -> dict[str, Any]:
    """
    Write *event* as one JSON object: its fields, messages as pi writes them, times as ISO 8601.

    By-reference fields of a delta are left out, `seq` is there only on durable events.
    """
    data: dict[str, Any] = {"type": event.type}
    for f in fields(event):
        if f.name in _HIDDEN:
            continue
        value = getattr(event, f.name)
        if f.name == "seq" and value is None:
            continue
        data[f.name] = _to_json(value)
    if isinstance(event, TurnEnd):
        data["iterations"] = event.iterations
    return data


def _to_json(value: Any) -> Any:
    if isinstance(value, (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)):
        return message_to_json(value)
    if isinstance(value, Usage):
        return usage_to_json(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {k: _to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(v) for v in value]
    if isinstance(value, PendingRequest):
        return pending_to_json(value)
    if isinstance(value, RateQuota):
        return {f.name: _to_json(getattr(value, f.name)) for f in fields(value)}
    return value
