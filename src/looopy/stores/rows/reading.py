"""
Reads stored messages back, ten thousand of them while a user waits for the first answer.

Nearly all rows have one shape: the compact one that the stores write, with every field of the right
type. The reader recognises these by one check of each value, and makes the message without the
detour over defaults, paths and conversions. Any other row goes to `message_from_json`, which
decides: how it is read, how missing fields are filled, and how damage is refused. So the two ways
differ only in the time they take.

A row without a valid message, of an older version or changed by other hands, never stops a read:
`read_message` repairs its fields, or puts a message of the role `damaged` in its place.

Repeated words, such as the name of the model, are kept once for all messages that are read
together, and so is the usage of those without any.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from looopy.stores.records import MessageRecord
from looopy.types.constructors import maker
from looopy.types.message import (
    NO_COST,
    AssistantBlock,
    AssistantMessage,
    Cost,
    CustomMessage,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserBlock,
    UserMessage,
)
from looopy.types.message_check import Lost, salvaged_message
from looopy.types.message_json import message_from_json

_logger = logging.getLogger("looopy")
_record = maker(MessageRecord)
_text = maker(TextContent)
_thinking = maker(ThinkingContent)
_image = maker(ImageContent)
_call = maker(ToolCall)
_cost = maker(Cost)
_usage = maker(Usage)
_user = maker(UserMessage)
_assistant = maker(AssistantMessage)
_result = maker(ToolResultMessage)
_parse = json.JSONDecoder().raw_decode
_STOPS = {reason.value: reason for reason in StopReason}
_NO_USAGE = Usage()
_NOTHING: dict[str, Any] = {}
_Words: TypeAlias = dict[str, str]
"""Words that were met before: of equal ones the first is kept."""


def decode_message(body: str, words: _Words | None = None) -> Message:
    """
    The message in a row's *body*.

    Args:
        words: One dictionary for all messages that are read together.

    Raises:
        ValueRefused: It is not a message; `path` points at the fault.
        ValueError: It is not JSON.
    """
    data: Any
    try:
        data, end = _parse(body)
    except (ValueError, TypeError):
        data, end = None, -1
    if end != len(body):  # not all of it is JSON, or not all of it is the value
        data = json.loads(body)
    return _plain_message(data, {} if words is None else words) or message_from_json(data)


DAMAGED: Final = "damaged"
"""The role of the message that replaces an unreadable row."""


def read_message(body: str, words: _Words | None = None, *, position: int | None) -> Message:
    """
    The message in a row's *body*; of a damaged row, the readable parts.

    Fields of a wrong type are repaired. If that is not enough, a `CustomMessage` of the role
    `damaged` says why, and keeps the position and the text of the row in its metadata. No model
    sees it. Each damaged row is logged as a warning.

    Args:
        words: One dictionary for all messages that are read together.
        position: The message's position, for the log; `None`: it waits in an inbox.
    """
    try:
        return decode_message(body, words)
    except Exception as error:  # noqa: BLE001 - one bad row never stops a read
        return _salvaged(body, position, error)


def _salvaged(body: str, position: int | None, error: Exception) -> Message:
    where = "of an inbox" if position is None else f"at position {position}"
    why = str(error) or type(error).__name__
    lost: Lost = []
    try:
        message = salvaged_message(json.loads(body), lost)
    except Exception:  # noqa: BLE001 - as above
        _logger.warning("the stored message %s cannot be read: %s", where, why)
        text = f"the stored message {where} cannot be read: {why}"
        kept = {"position": position, "path": getattr(error, "path", None), "body": body}
        return CustomMessage(DAMAGED, text, kept, timestamp=0)
    _logger.warning("the stored message %s was repaired as it was read: %s", where, why)
    return message


def decode_records(
    found: Iterable[tuple[int, int, int, int, str]], words: _Words | None = None
) -> list[MessageRecord]:
    """
    Messages with their places, of rows of position, turn, iteration, seq and body.

    Args:
        words: The same for all that are read together.
    """
    words = {} if words is None else words
    return [
        _record(
            position=position,
            turn=turn,
            iteration=iteration,
            seq=seq,
            message=read_message(body, words, position=position),
        )
        for position, turn, iteration, seq, body in found
    ]


# Each of these is exact: JSON has no types but these, and `True` is no whole number.


def _plain_message(data: Any, words: _Words) -> Message | None:
    """The message in *data* if it has the usual shape, else `None`."""
    if type(data) is not dict or type(timestamp := data.get("timestamp")) is not int:
        return None
    role, content = data.get("role"), data.get("content")
    if role == "user":
        if type(content) is str:
            return _user(content, timestamp=timestamp)
        blocks = _user_blocks(content, words)
        return None if blocks is None else _user(blocks, timestamp=timestamp)
    if role == "assistant":
        return _plain_assistant(data, timestamp, words)
    if role == "toolResult":
        return _plain_result(data, timestamp, words)
    return None


def _plain_assistant(
    data: dict[str, Any], timestamp: int, words: _Words
) -> AssistantMessage | None:
    if "logprobs" in data:
        return None
    get = data.get
    blocks = _assistant_blocks(get("content"), words)
    api, provider, model = get("api", ""), get("provider", ""), get("model", "")
    if blocks is None or not (type(api) is str and type(provider) is str and type(model) is str):
        return None
    stop_reason, error = get("stop_reason"), get("error_message")
    response_id = get("response_id")
    if response_id is not None and type(response_id) is not str:
        return None
    if type(stop_reason) is not str or stop_reason not in _STOPS:
        return None
    if error is not None and type(error) is not str:
        return None
    usage = _plain_usage(data["usage"]) if "usage" in data else _NO_USAGE
    if usage is None:
        return None
    return _assistant(
        blocks,
        api=words.setdefault(api, api),
        provider=words.setdefault(provider, provider),
        model=words.setdefault(model, model),
        usage=usage,
        stop_reason=_STOPS[stop_reason],
        error_message=error,
        timestamp=timestamp,
        response_id=response_id,
    )


def _plain_result(data: dict[str, Any], timestamp: int, words: _Words) -> ToolResultMessage | None:
    get = data.get
    call_id, name, is_error = get("tool_call_id"), get("tool_name"), get("is_error", False)
    blocks = _user_blocks(get("content"), words)
    if blocks is None or not (
        type(call_id) is str and type(name) is str and type(is_error) is bool
    ):
        return None
    return _result(
        tool_call_id=call_id,
        tool_name=words.setdefault(name, name),
        content=blocks,
        details=get("details"),
        is_error=is_error,
        timestamp=timestamp,
    )


def _plain_usage(data: Any) -> Usage | None:
    if type(data) is not dict:
        return None
    get = data.get
    counts = (get("input", 0), get("output", 0), get("cache_read", 0), get("cache_write", 0))
    total, reasoning = get("total_tokens", 0), get("reasoning", 0)
    said = get("cost", _NOTHING)
    cost = None if said is None else _plain_cost(said)
    if type(total) is not int or type(reasoning) is not int or (cost is None and said is not None):
        return None
    for count in counts:
        if type(count) is not int:
            return None
    return _usage(
        input=counts[0],
        output=counts[1],
        cache_read=counts[2],
        cache_write=counts[3],
        total_tokens=total,
        cost=cost,
        reasoning=reasoning,
    )


def _plain_cost(data: Any) -> Cost | None:
    if type(data) is not dict or "complete" in data:
        return None
    if not data:
        return NO_COST
    get = data.get
    parts = (
        get("input", 0.0),
        get("output", 0.0),
        get("cache_read", 0.0),
        get("cache_write", 0.0),
        get("total", 0.0),
    )
    for part in parts:
        if type(part) is not float:
            return None
    return _cost(
        input=parts[0],
        output=parts[1],
        cache_read=parts[2],
        cache_write=parts[3],
        total=parts[4],
    )


def _assistant_blocks(content: Any, words: _Words) -> tuple[AssistantBlock, ...] | None:
    if type(content) is not list:
        return None
    blocks: list[AssistantBlock] = []
    for item in content:
        kind = item.get("type") if type(item) is dict else None
        block: AssistantBlock | None = None
        if kind == "text":
            block = _plain_text(item)
        elif kind == "toolCall":
            block = _plain_call(item, words)
        elif kind == "thinking":
            thinking, signature = item.get("thinking"), item.get("thinking_signature")
            redacted = item.get("redacted", False)
            plain = signature is None or type(signature) is str
            if type(thinking) is str and plain and type(redacted) is bool:
                block = _thinking(thinking, thinking_signature=signature, redacted=redacted)
        if block is None:
            return None
        blocks.append(block)
    return tuple(blocks)


def _user_blocks(content: Any, words: _Words) -> tuple[UserBlock, ...] | None:
    if type(content) is not list:
        return None
    blocks: list[UserBlock] = []
    for item in content:
        kind = item.get("type") if type(item) is dict else None
        block: UserBlock | None = None
        if kind == "text":
            block = _plain_text(item)
        elif kind == "image" and "url" not in item:
            data, mime_type = item.get("data"), item.get("mime_type")
            if type(data) is str and type(mime_type) is str:
                block = _image(data, mime_type=words.setdefault(mime_type, mime_type))
        if block is None:
            return None
        blocks.append(block)
    return tuple(blocks)


def _plain_text(item: dict[str, Any]) -> TextContent | None:
    text, signature = item.get("text"), item.get("text_signature")
    if "citations" in item:
        return None
    if type(text) is str and (signature is None or type(signature) is str):
        return _text(text, text_signature=signature)
    return None


def _plain_call(item: dict[str, Any], words: _Words) -> ToolCall | None:
    get = item.get
    call_id, name, arguments = get("id"), get("name"), get("arguments")
    signature, invalid = get("thought_signature"), get("invalid_arguments")
    if (
        type(call_id) is str
        and type(name) is str
        and type(arguments) is dict
        and (signature is None or type(signature) is str)
        and (invalid is None or type(invalid) is str)
    ):
        return _call(
            call_id,
            words.setdefault(name, name),
            arguments,
            thought_signature=signature,
            invalid_arguments=invalid,
        )
    return None
