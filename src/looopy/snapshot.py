"""What is known of a context, as people are told it: the state of its agent, and its last error."""

from __future__ import annotations

from types import MappingProxyType

from looopy import errors
from looopy.errors import LooopyError
from looopy.stores.records import ContextRecord
from looopy.types.state import AgentState, AgentStatus


def snapshot(status: AgentStatus, record: ContextRecord | None) -> AgentState:
    """What an agent of *status* says of itself; *record* is `None` while there is no context."""
    if record is None:
        return AgentState(status=status)
    error = record.state.error
    return AgentState(
        status=status,
        turn_count=record.turn_count,
        created_at=record.created_at,
        last_activity=record.last_activity,
        error=None if error is None else error_of(*error),
        # While a turn runs, what it has asked so far can only be answered once it has ended.
        pending=tuple(record.state.pending) if record.open_turn is None else (),
        interrupted_turn=record.state.resumable if error is None else None,
        usage=record.state.usage,
        metadata=MappingProxyType(dict(record.metadata)),
    )


def error_of(name: str, text: str) -> LooopyError:
    """The error that a stored class name and sentence stand for."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, LooopyError):
        return kind(text)
    return LooopyError(text)
