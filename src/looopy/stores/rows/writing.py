"""
Writes messages as the text that is stored, once for each message and commit of a turn.

Nearly all messages have the one shape that this process makes: Python's own types, texts, a few
small numbers. Their text is put together directly, and checked once for characters that no backend
keeps. All other messages go through `check_message`, `message_to_json` and then `dump`, which
decide: the types of fields, the text, the refusal. So the two ways differ only in the time they
take, as in `reading`, and every written message can be read back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

from looopy.types.message import (
    DOLLARS,
    NO_COST,
    NO_USAGE,
    TOKENS,
    AssistantMessage,
    Block,
    Cost,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_check import check_message, check_usage
from looopy.types.message_json import message_to_json, usage_to_json
from looopy.types.storable import MAX_BODY_BYTES, MAX_INT, dump, dump_plain

_quote: Any = json.encoder.encode_basestring
_STOPS = {reason: f',"stop_reason":"{reason.value}"' for reason in StopReason}
# How deep the details of a result lie, and the arguments of a call: within message, content, block.
_WITHIN_MESSAGE, _WITHIN_BLOCK = 2, 4


_written: tuple[Usage, str] = NO_USAGE, "{}"  # the newest; it cannot be changed


class _Unusual(Exception):
    """A shape that is left to the general way. Never leaves this module."""


def message_text(message: Message, path: str = "") -> str:
    """
    The compact JSON of *message*, as every backend keeps it.

    Args:
        path: JSON pointer of the message, for the error.

    Raises:
        ValueRefused: It cannot be stored; `path` names the place.
    """
    writer = _WRITERS.get(type(message))
    if writer is not None:
        try:
            text = writer(message)
        except (_Unusual, TypeError, KeyError, AttributeError):  # a value of another type
            pass
        else:
            if _is_kept(text):
                return text
    check_message(message, path)
    return dump(message_to_json(message, compact=True), path)


def usage_text(usage: Usage) -> str:
    """The compact JSON of *usage*; `ValueRefused` if it cannot be stored."""
    try:
        return _usage(usage)
    except (_Unusual, AttributeError):
        check_usage(usage, "/usage")
        return dump(usage_to_json(usage, compact=True))


def quoted(text: str, path: str = "") -> str:
    """*text* as a JSON string; `ValueRefused` at *path* if it cannot be stored."""
    if type(text) is str:
        found: str = _quote(text)
        if _is_kept(found):
            return found
    return dump(text, path)


def _is_kept(text: str) -> bool:
    """True if every backend keeps JSON *text*; false if it needs a closer check."""
    if len(text) > MAX_BODY_BYTES or "\\u0000" in text:
        return False
    if not text.isascii():
        try:
            return len(text.encode()) <= MAX_BODY_BYTES
        except UnicodeEncodeError:
            return False
    return True


def _user(message: UserMessage) -> str:
    content = message.content
    said = _quote(content) if isinstance(content, str) else _blocks(_SHOWN, content)
    return f'{{"role":"user","content":{said},"timestamp":{_whole(message.timestamp)}}}'


def _assistant(message: AssistantMessage) -> str:
    if message.logprobs.__class__ is not tuple or message.logprobs:
        raise _Unusual
    blocks = _blocks(_SAID, message.content)
    made_by = _made_by(message.api, message.provider, message.model)
    used = _usage(message.usage)
    usage = "" if used == "{}" else f',"usage":{used}'
    why = message.error_message
    error = "" if why is None else f',"error_message":{_quote(why)}'
    error += _signed("response_id", message.response_id)
    return (
        f'{{"role":"assistant","content":{blocks}{made_by}{usage}{_STOPS[message.stop_reason]}'
        f'{error},"timestamp":{_whole(message.timestamp)}}}'
    )


def _result(message: ToolResultMessage) -> str:
    details, failed = "", ""
    if message.details is not None:
        details = f',"details":{_value(message.details, _WITHIN_MESSAGE)}'
    if message.is_error is True:
        failed = ',"is_error":true'
    elif message.is_error is not False:
        raise _Unusual
    return (
        f'{{"role":"toolResult","tool_call_id":{_quote(message.tool_call_id)}'
        f',"tool_name":{_quote(message.tool_name)},"content":{_blocks(_SHOWN, message.content)}'
        f'{details}{failed},"timestamp":{_whole(message.timestamp)}}}'
    )


@lru_cache(maxsize=64)
def _made_by(api: str, provider: str, model: str) -> str:
    """The model and provider of an answer: the same for one answer after the other."""
    names = {"api": api, "provider": provider, "model": model}
    return "".join(
        [f',"{name}":{_quote(value)}' for name, value in names.items() if value != ""]
    )


def _blocks(writers: Mapping[type, Callable[[Any], str]], blocks: Sequence[Block]) -> str:
    if len(blocks) == 1:  # as most are
        return f"[{writers[type(blocks[0])](blocks[0])}]"
    return f"[{','.join([writers[type(block)](block) for block in blocks])}]"


def _text(block: TextContent) -> str:
    if block.citations.__class__ is not tuple or block.citations:
        raise _Unusual
    end = _signed("text_signature", block.text_signature)
    return f'{{"type":"text","text":{_quote(block.text)}{end}}}'


def _image(block: ImageContent) -> str:
    if block.url is not None:
        raise _Unusual
    data, mime_type = _quote(block.data), _quote(block.mime_type)
    return f'{{"type":"image","data":{data},"mime_type":{mime_type}}}'


def _thinking(block: ThinkingContent) -> str:
    hidden = ""
    if block.redacted is True:
        hidden = ',"redacted":true'
    elif block.redacted is not False:
        raise _Unusual
    end = _signed("thinking_signature", block.thinking_signature)
    return f'{{"type":"thinking","thinking":{_quote(block.thinking)}{hidden}{end}}}'


def _call(block: ToolCall) -> str:
    invalid = _signed("invalid_arguments", block.invalid_arguments)
    end = _signed("thought_signature", block.thought_signature)
    arguments = _object(block.arguments, _WITHIN_BLOCK)
    return (
        f'{{"type":"toolCall","id":{_quote(block.id)},"name":{_quote(block.name)}'
        f',"arguments":{arguments}{invalid}{end}}}'
    )


def _signed(name: str, value: str | None) -> str:
    return "" if value is None else f',"{name}":{_quote(value)}'


def _usage(usage: Usage) -> str:
    global _written  # noqa: PLW0603 - one is written with an answer and with its turn
    if usage is NO_USAGE:
        return "{}"
    newest, text = _written  # in one step: threads write, too
    if usage is newest:
        return text
    parts = _numbers(usage, TOKENS)
    cost = usage.cost
    if cost is None:
        parts.append('"cost":null')
    elif cost is not NO_COST:
        if cost.complete is not True:
            raise _Unusual
        if dollars := _numbers(cost, DOLLARS):
            parts.append(f'"cost":{{{",".join(dollars)}}}')
    text = f"{{{','.join(parts)}}}"
    _written = usage, text
    return text


def _numbers(of: Usage | Cost, names: Sequence[str]) -> list[str]:
    parts = []
    for name in names:
        value = getattr(of, name)
        if type(value) is int:
            if value:
                parts.append(f'"{name}":{_whole(value)}')
        elif type(value) is not float or names is TOKENS or not isfinite(value):
            raise _Unusual
        elif value:
            parts.append(f'"{name}":{value!r}')
    return parts


def _whole(value: int) -> int:
    if type(value) is int and -MAX_INT <= value < MAX_INT:
        return value
    raise _Unusual


def _value(value: Any, depth: int) -> str:
    text = dump_plain(value, depth)
    if text is None:
        raise _Unusual
    return text


def _object(value: Mapping[str, Any], depth: int) -> str:
    if type(value) is not dict:
        raise _Unusual
    return _value(value, depth)


_WRITERS: dict[type, Callable[[Any], str]] = {
    UserMessage: _user,
    AssistantMessage: _assistant,
    ToolResultMessage: _result,
}
_SHOWN: dict[type, Callable[[Any], str]] = {TextContent: _text, ImageContent: _image}
_SAID: dict[type, Callable[[Any], str]] = {
    TextContent: _text,
    ToolCall: _call,
    ThinkingContent: _thinking,
}
