"""
Summaries that replace a part of the log for the model: their form, and the history they leave.

A compaction removes nothing from the log. It appends a message with a summary of everything up to
some place, and the number of messages between that place and itself that stay visible in full.
Later messages need no knowledge of it. The newest summary counts, and covers the older ones too.
Its role is pi's, `compactionSummary`.

A compaction is undone in the same way: a summary repeats the one before it, with as many more
messages in full. If there was none before it, the new summary is empty and covers no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeGuard

from looopy.types.message import CustomMessage, Message, UserMessage

SUMMARY_ROLE: Final = "compactionSummary"
_PREFACE: Final = "A summary of the conversation before this message, which is no longer shown:"


class Fold(NamedTuple):
    """
    The newest summary of a log, its place in it, and the first place that is shown beside it.
    """

    summary: CustomMessage
    place: int
    start: int


def summary_message(text: str, *, kept: int, repeats: int | None = None) -> CustomMessage:
    """
    A summary to append.

    Args:
        kept: How many messages right before it are still shown in full.
        repeats: The position of the summary that it repeats: it undoes a later one.
    """
    metadata = {"kept": kept} if repeats is None else {"kept": kept, "repeats": repeats}
    return CustomMessage(SUMMARY_ROLE, text, metadata)


def is_summary(message: Message) -> TypeGuard[CustomMessage]:
    """True if *message* is a summary made by a compaction."""
    return (
        isinstance(message, CustomMessage)
        and message.role == SUMMARY_ROLE
        and isinstance(message.content, str)
        and isinstance(message.metadata.get("kept"), int)
    )


def kept_by(summary: CustomMessage) -> int:
    """How many messages right before *summary* are still shown in full."""
    return max(0, int(summary.metadata["kept"]))


def repeated_by(summary: CustomMessage, position: int) -> int:
    """The position of the summary that *summary*, at *position*, repeats: its own if it is new."""
    repeats = summary.metadata.get("repeats")
    return repeats if type(repeats) is int and 0 < repeats < position else position


def find_fold(messages: Sequence[Message]) -> Fold | None:
    """
    The fold of a log, or of its end; `None` when no summary is in it, or the newest is empty.
    """
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        # Few messages are custom ones, and this searches a history from end to end.
        if isinstance(message, CustomMessage) and is_summary(message):
            return Fold(message, i, max(0, i - kept_by(message))) if message.content else None
    return None


def shown_as(summary: CustomMessage) -> UserMessage:
    """*summary* as the model reads it, before all that is shown in full."""
    return UserMessage(f"{_PREFACE}\n\n{summary.content}", timestamp=summary.timestamp)
