"""
Contexts, turns, messages and artifacts as JSON objects: items of a page, over HTTP and in the CLI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import date
from enum import Enum
from typing import Any, Final, TypeVar, cast

from looopy.agent.lease import seems_left
from looopy.server import models
from looopy.stores.owner import is_here, process_of
from looopy.stores.records import ContextRecord, MessageRecord, TurnRecord
from looopy.types.message import Usage, UserMessage
from looopy.types.message_json import message_to_json, usage_to_json
from looopy.types.ranges import Range, counted, holds
from looopy.types.state import AgentStatus, PendingRequest, pending_to_json

Model = TypeVar("Model")
_LIMIT: Final = re.compile(r"\(Budget\.(\w+)\)")


def item(model: type[Model], record: object, **others: Any) -> Model:
    """
    An item of *model*, a `TypedDict`: the items of long pages are written out below instead.

    Args:
        record: Has the fields of the same names.
        others: The other fields, as JSON.
    """
    needed: frozenset[str] = vars(model)["__required_keys__"]
    found = {
        name: others[name] if name in others else to_json(getattr(record, name))
        for name in model.__annotations__
        if name in needed
    }
    return cast("Model", found)


def to_json(value: Any) -> Any:
    """A value of a record as JSON."""
    if value is None or isinstance(value, (str, int, float)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    if isinstance(value, Usage):
        return usage_to_json(value)
    if isinstance(value, UserMessage):
        return message_to_json(value)
    return dict(value) if isinstance(value, Mapping) else asdict(value)


def status_of(record: ContextRecord) -> tuple[AgentStatus, int | None]:
    """The status that an agent would show for the context, and the turn that it could continue."""
    turn = record.open_turn
    if turn is not None:
        if not seems_left(record):
            return AgentStatus.BUSY, None
        if not record.state.waits:
            return AgentStatus.READY, turn.turn
    if record.state.pending:
        return AgentStatus.WAITING, None
    if record.state.waits:
        return AgentStatus.WAITING, record.state.resumable
    if record.state.error is not None:
        return AgentStatus.FAILED, None
    return AgentStatus.READY, record.state.resumable


def context_to_json(record: ContextRecord) -> models.Context:
    """A context, with the `seq` from which a client that has read it follows its events."""
    status, interrupted = status_of(record)
    state = record.state
    return {
        "context_id": record.context_id,
        "status": status,
        "turn_count": record.turn_count,
        "interrupted_turn": interrupted,
        "pending": [_pending(one) for one in state.pending],
        "error": None if state.error is None else state.error[1],
        "waits_for": state.waits_for,
        "waits_for_limit": _limit_in(state.waits_for),
        "needs_auth": state.needs_auth,
        "left_as": state.left_as,
        "created_at": record.created_at.isoformat(),
        "last_activity": record.last_activity.isoformat(),
        "usage": _usage(state.usage),
        "metadata": dict(record.metadata),
        "tags": list(record.tags),
        "last_seq": record.last_seq,
        "last_position": record.last_position,
        "hidden_messages": counted(record.hidden),
        "lease": _lease(record),
    }


def _pending(request: PendingRequest) -> models.PendingRequest:
    return cast("models.PendingRequest", {**pending_to_json(request), "args": dict(request.args)})


def _usage(usage: Usage) -> models.Usage:
    return cast("models.Usage", usage_to_json(usage))


def _limit_in(reason: str | None) -> str | None:
    """The field of `Budget` that a sentence about a budget without room names, if it names one."""
    found = None if reason is None else _LIMIT.search(reason)
    return None if found is None else found[1]


def _lease(record: ContextRecord) -> models.Lease | None:
    """The process that holds the context for its running turn; `None` if no process does."""
    if record.holder is None or record.open_turn is None:
        return None
    return {
        "turn": record.open_turn.turn,
        "process": process_of(record.holder),
        "here": is_here(record.holder),
        "live": not seems_left(record),
        "cancelling": record.inbox.cancel_turn == record.open_turn.turn,
    }


def turn_to_json(turn: TurnRecord, hidden: Iterable[Range]) -> models.Turn:
    """A turn without its messages; *hidden* are the positions that were rewound."""
    return {
        "turn": turn.turn,
        "outcome": turn.outcome,
        "stop_reason": turn.stop_reason,
        "continues": turn.continues,
        "actor_id": turn.actor_id,
        "started_at": turn.started_at.isoformat(),
        "ended_at": turn.ended_at.isoformat() if turn.ended_at else None,
        "usage": _usage(turn.usage),
        "process": turn.process,
        "recovered_by": turn.recovered_by,
        "hidden": is_hidden(turn, hidden),
        "metadata": dict(turn.metadata),
    }


def is_hidden(turn: TurnRecord, hidden: Iterable[Range]) -> bool:
    """True if *turn* was rewound. One without messages went with the message before it."""
    return holds(hidden, min(turn.first_position, turn.last_position))


def placed_to_json(record: MessageRecord) -> models.PlacedMessage:
    """A message with its place."""
    return {
        "position": record.position,
        "turn": record.turn,
        "seq": record.seq,
        "message": message_to_json(record.message),
    }
