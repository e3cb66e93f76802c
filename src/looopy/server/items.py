"""
Contexts, turns, messages and artifacts as JSON objects: items of a page, over HTTP and in the CLI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from looopy.agent.lease import seems_left
from looopy.stores.contexts.search import SearchHit
from looopy.stores.owner import is_here, process_of
from looopy.stores.records import ContextRecord, Entry, MessageRecord, TurnRecord
from looopy.types.artifact import Artifact
from looopy.types.message_json import message_to_json, usage_to_json
from looopy.types.ranges import Range, holds
from looopy.types.state import AgentStatus, pending_to_json

_LIMIT: Final = re.compile(r"\(Budget\.(\w+)\)")


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


def context_to_json(record: ContextRecord) -> dict[str, Any]:
    """A context without its messages."""
    status, interrupted = status_of(record)
    return {
        "context_id": record.context_id,
        "status": status.value,
        "turn_count": record.turn_count,
        "interrupted_turn": interrupted,
        "pending": [{**pending_to_json(r), "args": dict(r.args)} for r in record.state.pending],
        "error": None if record.state.error is None else record.state.error[1],
        "waits_for": record.state.waits_for,
        "waits_for_limit": _limit_in(record.state.waits_for),
        "needs_auth": record.state.needs_auth,
        "created_at": record.created_at.isoformat(),
        "last_activity": record.last_activity.isoformat(),
        "usage": usage_to_json(record.state.usage),
        "metadata": dict(record.metadata),
    }


def _limit_in(reason: str | None) -> str | None:
    """The field of `Budget` that a sentence about a budget without room names, if it names one."""
    found = None if reason is None else _LIMIT.search(reason)
    return None if found is None else found[1]


def lease_to_json(record: ContextRecord) -> dict[str, Any] | None:
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


def hit_to_json(hit: SearchHit) -> dict[str, Any]:
    """A message that a search found."""
    return {
        "context_id": hit.context_id,
        "position": hit.position,
        "turn": hit.turn,
        "role": hit.role,
        "snippet": hit.snippet,
        "matches": [list(match) for match in hit.matches],
    }


def turn_to_json(turn: TurnRecord) -> dict[str, Any]:
    """A turn without its messages."""
    return {
        "turn": turn.turn,
        "outcome": turn.outcome.value if turn.outcome else None,
        "stop_reason": turn.stop_reason.value if turn.stop_reason else None,
        "continues": turn.continues,
        "actor_id": turn.actor_id,
        "started_at": turn.started_at.isoformat(),
        "ended_at": turn.ended_at.isoformat() if turn.ended_at else None,
        "usage": usage_to_json(turn.usage),
        "process": turn.process,
        "recovered_by": turn.recovered_by,
        "metadata": dict(turn.metadata),
    }


def is_hidden(turn: TurnRecord, hidden: Iterable[Range]) -> bool:
    """True if *turn* was rewound. One without messages went with the message before it."""
    return holds(hidden, min(turn.first_position, turn.last_position))


def placed_to_json(record: MessageRecord) -> dict[str, Any]:
    """A message with its place."""
    return {
        "position": record.position,
        "turn": record.turn,
        "seq": record.seq,
        "message": message_to_json(record.message),
    }


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """A message that no turn has taken yet."""
    return {
        "number": entry.number,
        "kind": entry.kind.value,
        "message": message_to_json(entry.message),
        "created_at": entry.created_at.isoformat(),
    }


def artifact_to_json(artifact: Artifact) -> dict[str, Any]:
    """A version of an artifact, without its content."""
    return {
        "artifact_id": artifact.artifact_id,
        "kind": artifact.kind.value,
        "version": artifact.version,
        "status": artifact.status.value,
        "size": artifact.size,
        "media_type": artifact.media_type,
        "sha256": artifact.sha256,
        "created_at": artifact.created_at.isoformat(),
        "turn": artifact.turn,
        "description": artifact.description,
        "metadata": dict(artifact.metadata),
        "columns": None if artifact.columns is None else dict(artifact.columns),
        "rows": artifact.rows,
    }
