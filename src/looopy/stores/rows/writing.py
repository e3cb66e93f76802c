"""
Writes messages as the text that is stored, once for each message and commit of a turn.

Nearly all messages have the one shape that this process makes: Python's own types, texts, a few
small numbers. Compiled code writes these (`schema`). All others go through `check_message`,
`message_to_json` and then `dump`, which decide: the types of fields, the text, the refusal. So
every written message can be read back.
"""

from __future__ import annotations

from typing import Any

from looopy.stores.rows.schema import writer
from looopy.types.message import (
    NO_USAGE,
    AssistantMessage,
    Message,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_check import (
    check_message,
    check_usage,
    is_plain_message,
    is_plain_usage,
)
from looopy.types.message_json import message_to_json, usage_to_json
from looopy.types.storable import MAX_BODY_BYTES, dump, is_plain

# Depth of a result's details, and of a call's arguments: within message, content, block.
_WITHIN_MESSAGE, _WITHIN_BLOCK = 2, 4


def message_text(message: Message, path: str = "") -> str:
    """
    The compact JSON of *message*, as every backend keeps it.

    Args:
        path: JSON pointer of the message, for the error.

    Raises:
        ValueRefused: It cannot be stored; `path` names the place.
    """
    if message.__class__ in _USUAL and is_plain_message(message) and _holds_json(message):
        text = _at_once(message)
        if text is not None:
            return text
    check_message(message, path)
    return dump(message_to_json(message, compact=True), path)


_written: tuple[Usage, str] = NO_USAGE, "{}"


def usage_text(usage: Usage) -> str:
    """The compact JSON of *usage*; `ValueRefused` if it cannot be stored."""
    global _written  # noqa: PLW0603 - one is written with a turn and with its context
    if usage is NO_USAGE:
        return "{}"
    newest, text = _written  # in one step: threads write, too
    if usage is newest:
        return text
    if is_plain_usage(usage) and (found := _at_once(usage)) is not None:
        _written = usage, found
        return found
    check_usage(usage, "/usage")
    return dump(usage_to_json(usage, compact=True))


def _at_once(value: Any) -> str | None:
    """The text as compiled code writes it; `None` if some backend would not keep it."""
    try:
        text = writer(value.__class__)(value)
    except ValueError:  # half a character
        return None
    return None if b"\\u0000" in text or len(text) > MAX_BODY_BYTES else text.decode()


_USUAL = (UserMessage, AssistantMessage, ToolResultMessage)


def _holds_json(message: Any) -> bool:
    """True if arguments and details are certainly JSON that can be stored."""
    if message.__class__ is AssistantMessage:
        for block in message.content:
            if block.__class__ is ToolCall and not is_plain(block.arguments, _WITHIN_BLOCK):
                return False
    elif message.__class__ is ToolResultMessage:
        return message.details is None or is_plain(message.details, _WITHIN_MESSAGE)
    return True
