"""The state of an agent: status, counts, and the requests it waits for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from looopy.errors import LooopyError
from looopy.types.auth import AuthRequest, auth_to_json
from looopy.types.message import (
    NO_USAGE,
    StopReason,
    Usage,
)


class AgentStatus(StrEnum):
    """Where an agent is in its life; `looopy.agent.lifecycle` holds the allowed changes."""

    CREATED = "created"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    PAUSED = "paused"
    WAITING = "waiting"
    FAILED = "failed"
    SHUTDOWN = "shutdown"


class Outcome(StrEnum):
    """How a turn ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INPUT_REQUIRED = "input_required"
    AUTH_REQUIRED = "auth_required"
    INTERRUPTED = "interrupted"


_COMPLETED = frozenset({"stop", "length", "max_iterations", "max_tool_calls"})
_OF_THE_SAME_NAME = frozenset({"cancelled", "input_required", "auth_required", "interrupted"})


def outcome_of(stop_reason: StopReason) -> Outcome:
    """The outcome that a turn's *stop_reason* means."""
    if stop_reason.value in _COMPLETED:
        return Outcome.COMPLETED
    if stop_reason.value in _OF_THE_SAME_NAME:
        return Outcome(stop_reason.value)
    return Outcome.FAILED


class PendingKind(StrEnum):
    """The kind of answer that a pending request needs."""

    APPROVAL = "approval"
    INPUT = "input"
    AUTH = "auth"
    CLIENT_TOOL = "client_tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """
    A request that a turn waits for; answered by `execute_turn(None, inputs={request_id: value})`.

    Attributes:
        args: The arguments of its call.
        turn: The turn that asked.
        prompt: One sentence for the person who answers.
        schema: JSON Schema of the value, or `None`. For an approval, it is the schema of the
            arguments: `Approve(args=...)` must fit it, and is refused if it is `None`.
        auth: The requested credentials, and the key to encrypt them to; `None` if it asks for none.
        answered_by: The actor who answered, until the call runs, if it is another one than the
            turn's; or `None`.
    """

    request_id: str
    kind: PendingKind
    tool_name: str
    args: Mapping[str, Any]
    tool_call_id: str
    turn: int
    prompt: str = ""
    schema: Mapping[str, Any] | None = None
    options: Sequence[Any] = ()
    expires_at: datetime | None = None
    auth: AuthRequest | None = None
    answered_by: str | None = None


def pending_to_json(request: PendingRequest) -> dict[str, Any]:
    """A pending request as a JSON object."""
    data = {f.name: getattr(request, f.name) for f in fields(request)}
    data["kind"] = request.kind.value
    data["expires_at"] = request.expires_at.isoformat() if request.expires_at else None
    data["options"] = list(request.options)
    if request.answered_by is None:
        del data["answered_by"]
    if request.auth is None:
        del data["auth"]
    else:
        data["auth"] = auth_to_json(request.auth)
    return data


OF_AN_AGENT: Final = {"looopy": "agent"}
"""The `HeldCall.state` of a call whose questions come from an agent that works as a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCall:
    """
    Private data of a call that waits, kept until it has its result; no subscriber sees it.

    Attributes:
        origin: The turn that announced it.
        asked_in: The turn in which it asked last; 0: it has not asked. A run that had started by
            then did not finish.
        keys: By `request_id`, the tool's own key of the question. An approval that the tool did not
            ask for itself has no key.
        state: The state that the tool keeps until it runs again; JSON.
        sealed: By `request_id`, the private keys of requests for credentials, encrypted.
        bound: The digest to which an approval of the call is bound; see `looopy.loop.approval`.
        died: It was running when its process ended, so its effect is unknown.
        args: The arguments that a person put in the place of the model's, or `None`.
    """

    tool_call_id: str
    origin: int
    asked_in: int
    keys: Mapping[str, str] = field(default_factory=dict)
    state: Any = None
    sealed: Mapping[str, str] = field(default_factory=dict)
    bound: str | None = None
    died: bool = False
    args: Mapping[str, Any] | None = None

    @property
    def of_an_agent(self) -> bool:
        """True if an agent works as this tool: it ends an approval that has expired itself."""
        return bool(self.state == OF_AN_AGENT)


def held_to_json(held: HeldCall) -> dict[str, Any]:
    """A held call as a JSON object, which an older version reads if no person changed the call."""
    data = {f.name: getattr(held, f.name) for f in fields(held)}
    if held.args is None:
        del data["args"]
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """
    A snapshot of an agent.

    Attributes:
        turn_count: Accepted turns, failed ones included.
        error: The reason of the last turn's failure, or `None`.
        pending: Requests that wait for an answer; empty unless the status is `waiting`. It may be
            empty then, see `waits_for` and `needs_auth`.
        interrupted_turn: The last turn, if its process died or it failed before its final answer,
            and `execute_turn(None)` can continue it.
        waits_for: A sentence about the budget that has no room for the turn, which asks for more
            (`LoopConfig.on_budget`); `execute_turn(None)` continues it then. Or `None`.
        needs_auth: True if the turn waits for credentials of its actor, and for no answer:
            `execute_turn(None, auth_context)` of that actor continues it.
        left_as: `paused` or `shutdown`, if an agent of any process was left so, and no turn has
            begun since; or `None`.
        usage: Tokens and cost of the context so far.
        tags: The words that the application gave the context, sorted.
    """

    status: AgentStatus
    turn_count: int = 0
    created_at: datetime | None = None
    last_activity: datetime | None = None
    error: LooopyError | None = None
    pending: Sequence[PendingRequest] = ()
    interrupted_turn: int | None = None
    waits_for: str | None = None
    needs_auth: bool = False
    left_as: AgentStatus | None = None
    usage: Usage = NO_USAGE
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
