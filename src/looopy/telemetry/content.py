"""
Messages as the GenAI conventions write them in attributes, for applications that want them there.

A text is redacted, first by the turn, which knows its credentials, then by the application, and cut
to a length that collectors take. Files appear by their type alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

MOST_CHARS: Final = 8_192  # of one text
MOST_MESSAGES: Final = 64  # of one request: the newest
_CUT: Final = "... [cut]"
_HIDDEN: Final = "[redacted]"
_REASONS: Final = {
    StopReason.TOOL_USE: "tool_call",
    StopReason.SENSITIVE: "content_filter",
    StopReason.ABORTED: "error",
    StopReason.PAUSED: "stop",
}
_logger = logging.getLogger("looopy")

Redact: TypeAlias = Callable[[Any], Any]
"""Removes the secrets of a turn from a JSON value."""


class Content:
    """
    Writes content for one turn.

    Args:
        redact: The turn's; see `Redact`.
        also: The application's, for each text; or `None`.
    """

    def __init__(self, redact: Redact, also: Callable[[str], str] | None) -> None:
        self._redact = redact
        self._also = also

    def instructions(self, prompt: str) -> str:
        """A system prompt."""
        return self._dump([{"type": "text", "content": prompt}])

    def messages(self, messages: Sequence[Message]) -> str:
        """The newest of *messages*, oldest first."""
        return self._dump([_message(one) for one in messages[-MOST_MESSAGES:]])

    def answer(self, message: AssistantMessage) -> str:
        """The answer of a model."""
        reason = finish_reason(message.stop_reason)
        return self._dump([{**_message(message), "finish_reason": reason}])

    def value(self, value: Any) -> str:
        """Arguments, or a result."""
        return self._dump(value)

    def result(self, result: ToolResultMessage) -> str:
        """The content of a tool's result."""
        return self._dump(_parts(result.content))

    def _dump(self, value: Any) -> str:
        return json.dumps(self._shown(self._redact(value)), ensure_ascii=False, default=str)

    def _shown(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(str(key)): self._shown(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._shown(one) for one in value]
        return value

    def _text(self, text: str) -> str:
        if self._also is not None:
            try:
                text = str(self._also(text))
            except Exception:
                _logger.exception("the function `redact` of the telemetry failed")
                return _HIDDEN
        return text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + _CUT


def finish_reason(reason: StopReason) -> str:
    """A model's stop reason in the words of the conventions."""
    return _REASONS.get(reason) or reason.value  # which takes long


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, UserMessage):
        content = message.content
        blocks = [TextContent(content)] if isinstance(content, str) else content
        return {"role": "user", "parts": _parts(blocks)}
    if isinstance(message, AssistantMessage):
        return {"role": "assistant", "parts": _parts(message.content)}
    if isinstance(message, ToolResultMessage):
        part = {
            "type": "tool_call_response",
            "id": message.tool_call_id,
            "response": _parts(message.content),
        }
        return {"role": "tool", "parts": [part]}
    return {"role": "user", "parts": [{"type": "text", "content": str(message.content)}]}


def _parts(blocks: Iterable[Any]) -> list[dict[str, Any]]:
    return [_part(block) for block in blocks]


def _part(block: Any) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"type": "text", "content": block.text}
    if isinstance(block, ThinkingContent):
        return {"type": "reasoning", "content": block.thinking}
    if isinstance(block, ToolCall):
        said = block.arguments if block.invalid_arguments is None else block.invalid_arguments
        return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": said}
    return {"type": getattr(block, "type", "blob")}  # a file, or a tool of the provider
