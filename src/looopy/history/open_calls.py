"""Calls of a history that have no result yet, and whether a turn can continue from it."""

from __future__ import annotations

from collections.abc import Sequence

from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.summary import is_summary


def unanswered(messages: Sequence[Message]) -> list[ToolCall]:
    """The calls of the last assistant message without a result; [] when a user spoke since."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolResultMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AssistantMessage):
            if message.stop_reason in (StopReason.ERROR, StopReason.ABORTED):
                return []
            return [c for c in message.tool_calls if c.id not in answered]
        elif isinstance(message, UserMessage):
            return []
    return []


def can_continue(messages: Sequence[Message]) -> bool:
    """
    True if the model has something to answer: open calls, or a tail that is not a whole answer.

    Trailing answers that failed or were aborted are skipped; a custom message is the caller's to
    convert, and counts as something to answer. A summary does not count.
    """
    for message in reversed(messages):
        if is_summary(message):
            continue
        if not isinstance(message, AssistantMessage):
            return True
        if message.stop_reason is StopReason.PAUSED:
            return True
        if message.stop_reason not in (StopReason.ERROR, StopReason.ABORTED):
            return bool(unanswered(messages))
    return False
