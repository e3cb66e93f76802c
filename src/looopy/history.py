"""
Which messages of a context the model sees: the newest that fit, cut where nothing is torn apart.

The log only grows, the window of a model does not. Three rules make the cut:

- It is safe: what is left begins with a user message, and no result is parted from its call. When the
  newest user message alone leads to more than fits, that message stays and the oldest complete groups (an
  assistant message with its results) behind it go. When the newest group alone is too large, the text of its
  results is shortened, never the pair.
- It moves in steps: the place of the cut is a multiple of a quarter of what is kept, counted from the
  beginning of the log. So the same first message is sent for many requests in a row, and prompt caches live.
- It is found from the end, so that its cost is that of what is kept, however long the log is.

Nothing here is stored, and what comes out is still a log: `looopy.llm.render` makes it valid.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from looopy.types.context import LoopConfig
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)

UNKNOWN_WINDOW_TOKENS: Final = 32_000
_CHARS_PER_TOKEN: Final = 4
_MESSAGE_TOKENS: Final = 4  # role and separators
_IMAGE_TOKENS: Final = 1_200
_LEAST_RESULT_CHARS: Final = 256


def visible(
    messages: Sequence[Message], config: LoopConfig, *, window_tokens: int | None = None
) -> list[Message]:
    """
    The newest messages within the limits of *config*.

    Args:
        messages: The log of a context, oldest first; counted from its beginning, so always pass it from
            the same message on.
        config: `max_messages` and `history_tokens` count; either may be `None`.
        window_tokens: What the model's window holds, if known: `"auto"` is then three quarters of it, to
            leave room for system prompt, tools and the answer.

    Returns:
        A part of *messages*, unchanged but for shortened results; all of them where they fit. The newest
        user message and everything said in it is always there, whatever the limits.
    """
    most_tokens = _token_limit(config, window_tokens)
    scan = _scan(messages, config.max_messages, most_tokens)
    if scan.complete:
        return list(messages)
    pinned, start = _cut(messages, scan, config.max_messages)
    kept = list(messages[start:])
    if pinned is not None:
        kept.insert(0, messages[pinned])
    return kept if most_tokens is None else _shortened(kept, most_tokens)


def estimate_tokens(message: Message) -> int:
    """About how many tokens a message takes: a quarter of its characters. Custom messages take none."""
    if isinstance(message, CustomMessage):
        return 0
    if isinstance(message.content, str):
        return _MESSAGE_TOKENS + _tokens(len(message.content))
    chars = images = 0
    for block in message.content:
        if isinstance(block, TextContent):
            chars += len(block.text)
        elif isinstance(block, ThinkingContent):
            chars += len(block.thinking)
        elif isinstance(block, ToolCall):
            chars += len(block.name) + len(json.dumps(block.arguments, default=str))
        else:
            images += 1
    return _MESSAGE_TOKENS + _tokens(chars) + images * _IMAGE_TOKENS


def _tokens(chars: int) -> int:
    return -(-chars // _CHARS_PER_TOKEN)


def _token_limit(config: LoopConfig, window_tokens: int | None) -> int | None:
    if config.history_tokens != "auto":
        return config.history_tokens
    if window_tokens is None:
        return UNKNOWN_WINDOW_TOKENS
    return window_tokens * 3 // 4


@dataclass(slots=True)
class _Scan:
    """
    What a walk from the end found.

    Attributes:
        first: Index of the oldest message that still fits.
        complete: Everything fits.
        users: Indices of user messages with no result behind them whose call lies before; newest first.
        groups: The same for assistant messages.
        torn: Indices of the other user messages.
    """

    first: int
    complete: bool = False
    users: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)


def _scan(messages: Sequence[Message], most: int | None, most_tokens: int | None) -> _Scan:
    scan = _Scan(len(messages))
    count = tokens = 0
    results_without_call: set[str] = set()
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if not isinstance(message, CustomMessage):
            count += 1
            tokens += 0 if most_tokens is None else estimate_tokens(message)
        if (most is not None and count > most) or (most_tokens is not None and tokens > most_tokens):
            return scan
        scan.first = i
        if isinstance(message, ToolResultMessage):
            results_without_call.add(message.tool_call_id)
        elif isinstance(message, AssistantMessage):
            results_without_call.difference_update(call.id for call in message.tool_calls)
            if not results_without_call:
                scan.groups.append(i)
        elif isinstance(message, UserMessage):
            (scan.torn if results_without_call else scan.users).append(i)
    scan.complete = True
    return scan


def _cut(messages: Sequence[Message], scan: _Scan, most: int | None) -> tuple[int | None, int]:
    """The index of a user message to keep by itself, or `None`, and the index to keep everything from."""
    start = _stepped(scan.first, len(messages), most)
    # A user message inside a group is the next best: rendering mends what is torn there.
    for candidates in (scan.users, scan.torn):
        fitting = [i for i in candidates if i >= start]
        if fitting:
            return None, fitting[-1]
    # The newest turn alone is too long: its user message, then its newest groups.
    fitting = [i for i in scan.groups if i > start] or [_newest_group(messages)]
    group = fitting[-1]
    question = next((i for i in range(group, -1, -1) if isinstance(messages[i], UserMessage)), None)
    return (None if question == group else question), group


def _stepped(first: int, length: int, most: int | None) -> int:
    """*first* or a little later, at a place that stays while the log grows by a quarter of the window."""
    kept = max(1, length - first)
    step = max(1, most // 4) if most is not None and kept >= most else _power_of_two(kept // 4)
    return min(-(-first // step) * step, length - 1)


def _power_of_two(number: int) -> int:
    """The largest power of two up to *number*; at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def _newest_group(messages: Sequence[Message]) -> int:
    """Where the newest user message or group begins; the newest result's own group, if nothing else."""
    begin = len(messages) - 1
    results_without_call: set[str] = set()
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if isinstance(message, ToolResultMessage):
            results_without_call.add(message.tool_call_id)
            continue
        begin = i
        if isinstance(message, AssistantMessage):
            results_without_call.difference_update(call.id for call in message.tool_calls)
        if isinstance(message, UserMessage) or not results_without_call:
            break
    return begin


def _shortened(messages: list[Message], most_tokens: int) -> list[Message]:
    """*messages* with the text of tool results cut so that all fit, as far as results can make them fit."""
    sizes = [estimate_tokens(message) for message in messages]
    if sum(sizes) <= most_tokens:
        return messages
    results = [i for i, message in enumerate(messages) if isinstance(message, ToolResultMessage)]
    if not results:
        return messages
    room = most_tokens - (sum(sizes) - sum(sizes[i] for i in results))
    # A power of two, so that results which were shortened already stay as they are while more come.
    most_chars = max(
        _LEAST_RESULT_CHARS, _power_of_two(max(0, room) * _CHARS_PER_TOKEN // len(results))
    )
    return [
        _with_text_up_to(message, most_chars) if isinstance(message, ToolResultMessage) else message
        for message in messages
    ]


def _with_text_up_to(message: ToolResultMessage, most_chars: int) -> ToolResultMessage:
    total = sum(len(block.text) for block in message.content if isinstance(block, TextContent))
    if total <= most_chars:
        return message
    blocks: list[UserBlock] = []
    left = most_chars
    for block in message.content:
        if isinstance(block, ImageContent):
            blocks.append(block)
            continue
        share = max(_LEAST_RESULT_CHARS, left) if len(block.text) > left else len(block.text)
        blocks.append(TextContent(shorten(block.text, share)) if share < len(block.text) else block)
        left = max(0, left - share)
    return replace(message, content=tuple(blocks))


def shorten(text: str, most_chars: int) -> str:
    """The beginning and the end of *text*, two to one, with a marker between them; or *text* if it fits."""
    if len(text) <= most_chars:
        return text
    end = most_chars // 3
    head, tail = text[: most_chars - end], text[len(text) - end :]
    return f"{head}\n[... {len(text) - most_chars:,} characters left out ...]\n{tail}"
