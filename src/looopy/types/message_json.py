"""
Messages as JSON: what stores keep, and what pi and pipy-ai write, read back equal or refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar, cast

from looopy.errors import ValueRefused
from looopy.types.message import (
    DOLLARS,
    NO_COST,
    TOKENS,
    AssistantMessage,
    AudioContent,
    Block,
    Citation,
    Cost,
    CustomMessage,
    DocumentContent,
    ImageContent,
    Message,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    TokenLogprob,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    now_ms,
)

T = TypeVar("T")
_SIGNATURES: Final = ("text_signature", "thinking_signature", "thought_signature")
# The fields of each class, in the order in which they are written.
_FIELDS: Final[dict[type, tuple[str, ...]]] = {
    Citation: ("url", "title", "text", "raw"),
    TextContent: ("text", "text_signature", "citations"),
    ThinkingContent: ("thinking", "redacted", "thinking_signature"),
    ImageContent: ("data", "mime_type", "url"),
    DocumentContent: ("data", "mime_type", "url", "name", "cite"),
    AudioContent: ("data", "mime_type"),
    ToolCall: ("id", "name", "arguments", "invalid_arguments", "thought_signature"),
    ServerToolCall: ("id", "name", "arguments", "item"),
    ServerToolResult: ("tool_call_id", "tool_name", "item"),
    UserMessage: ("content", "timestamp"),
    AssistantMessage: (
        *("content", "api", "provider", "model", "usage", "stop_reason", "error_message"),
        *("response_id", "logprobs", "timestamp"),
    ),
    ToolResultMessage: (
        *("tool_call_id", "tool_name", "content", "details", "is_error", "timestamp"),
    ),
    CustomMessage: ("content", "timestamp", "metadata"),
}
_TYPES: Final[dict[str, type]] = {
    **dict.fromkeys(("text", "thinking", "data", "mime_type", "id", "name", *_SIGNATURES), str),
    **dict.fromkeys(("api", "provider", "model", "tool_call_id", "tool_name"), str),
    **dict.fromkeys(("error_message", "invalid_arguments", "url", "title", "response_id"), str),
    **dict.fromkeys(("timestamp", *TOKENS), int),
    **dict.fromkeys(("redacted", "is_error", "complete", "cite"), bool),
    **dict.fromkeys(("arguments", "metadata", "item", "raw"), dict),
}
# What is not written where it has this value: ours, which pi does not know; and in compact form.
_UNKNOWN_TO_PI: Final[dict[str, Any]] = {
    "redacted": False,
    "citations": (),
    "logprobs": (),
    "cite": False,
    **dict.fromkeys(("invalid_arguments", "url", "name", "title", "response_id")),
}
_UNSAID: Final[dict[str, Any]] = {
    **_UNKNOWN_TO_PI,
    **dict.fromkeys(("error_message", "details", *_SIGNATURES)),
    **dict.fromkeys(("api", "provider", "model"), ""),
    "usage": {},
    "metadata": {},
    "is_error": False,
}
_USER: Final[dict[str, type[Any]]] = {
    kind.type: kind for kind in (TextContent, ImageContent, DocumentContent, AudioContent)
}
_ASSISTANT: Final[dict[str, type[Any]]] = {
    kind.type: kind
    for kind in (TextContent, ThinkingContent, ToolCall, ServerToolCall, ServerToolResult)
}


# --- writing --------------------------------------------------------------------------------------


def message_to_json(message: Message, *, compact: bool = False) -> dict[str, Any]:
    """
    Write *message* as pi's JSON object.

    Args:
        message: Any of the four message types.
        compact: Leave out fields that hold their default, as the stores do; `message_from_json`
            fills them in again.
    """
    given: dict[str, Any] = {}
    if isinstance(message, AssistantMessage):
        given["content"] = _blocks(message.content, compact, _ASSISTANT)
        given["usage"] = usage_to_json(message.usage, compact=compact)
        given["stop_reason"] = _stop_reason(message.stop_reason).value
        if message.logprobs:
            given["logprobs"] = [_logprob_to_json(one) for one in message.logprobs]
    elif not isinstance(message, CustomMessage) and not isinstance(message.content, str):
        given["content"] = _blocks(message.content, compact, _USER)
    return {"role": message.role, **_written(message, compact, given)}


def usage_to_json(usage: Usage, *, compact: bool = False) -> dict[str, Any]:
    """Write *usage* as pi's JSON object, an unknown cost as null; compact leaves out zeros."""
    data = _numbers(usage, TOKENS, compact=compact)
    if usage.cost is None:
        data["cost"] = None
        return data
    cost = _numbers(usage.cost, DOLLARS, compact=compact)
    if not usage.cost.complete:
        cost["complete"] = False
    if cost or not compact:
        data["cost"] = cost
    return data


def _numbers(of: Usage | Cost, names: Sequence[str], *, compact: bool) -> dict[str, Any]:
    found = {name: getattr(of, name) for name in names}
    shorter = {name for name in found if compact or name == "reasoning"}
    return {name: value for name, value in found.items() if value or name not in shorter}


def _blocks(blocks: Sequence[Block], compact: bool, allowed: Mapping[str, type[Any]]) -> list[Any]:
    for i, block in enumerate(blocks):
        if not isinstance(block, tuple(allowed.values())):
            # A value that could not be read back is not written.
            raise _refused(f"/content/{i}", f"{type(block).__name__} is no block of this message")
    return [{"type": block.type, **_written(block, compact, _within(block))} for block in blocks]


def _within(block: Block) -> dict[str, Any]:
    """The citations of *block*, in JSON; empty for nearly all blocks."""
    if not isinstance(block, TextContent) or not block.citations:
        return {}
    return {"citations": [_written(one, given={}, compact=True) for one in block.citations]}


def _logprob_to_json(one: TokenLogprob) -> dict[str, Any]:
    data: dict[str, Any] = {"token": one.token, "logprob": one.logprob}
    if one.top:
        data["top"] = [{"token": other.token, "logprob": other.logprob} for other in one.top]
    return data


def _written(value: object, compact: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of *value*, of which *given* are in JSON already."""
    kind = next((kind for kind in _FIELDS if isinstance(value, kind)), CustomMessage)
    unsaid = _UNSAID if compact else _UNKNOWN_TO_PI
    data: dict[str, Any] = {}
    for name in _FIELDS[kind]:
        found = given[name] if name in given else getattr(value, name)
        if name in unsaid:
            default = unsaid[name]
            if type(found) is type(default) and found == default:
                continue
        data[name] = found
    return data


# --- reading --------------------------------------------------------------------------------------


def message_from_json(data: Mapping[str, Any]) -> Message:
    """
    Read a message from pi's JSON object. Missing fields take their default; a missing timestamp is
    now.

    Raises:
        ValueRefused: A field has the wrong type or a value that is not known; `path` points at it.
    """
    if not isinstance(data, Mapping):
        raise _refused("", "a message is a JSON object")
    role, content = data.get("role"), data.get("content", "")
    given: dict[str, Any] = {}
    if data.get("timestamp") is None:
        given["timestamp"] = now_ms()
    if role == "user":
        given["content"] = content if isinstance(content, str) else _read_blocks(content, _USER)
        return _read(UserMessage, data, given)
    if role == "assistant":
        given["content"] = _read_blocks(data.get("content", ()), _ASSISTANT)
        given["usage"] = usage_from_json(data.get("usage") or {})
        given["stop_reason"] = _stop_reason(data.get("stop_reason") or "stop")
        given["logprobs"] = _logprobs(data.get("logprobs"), "/logprobs")
        return _read(AssistantMessage, data, given)
    if role == "toolResult":
        given["content"] = _read_blocks(data.get("content", ()), _USER)
        return _read(ToolResultMessage, data, given)
    if not isinstance(role, str) or not role:
        raise _refused("/role", "a message needs a role")
    given["content"] = content
    return _read(CustomMessage, data, given)


def usage_from_json(data: Mapping[str, Any], path: str = "/usage") -> Usage:
    """Read a usage object; missing counts are zero."""
    if not isinstance(data, Mapping):
        raise _refused(path, "must be an object")
    cost = data.get("cost", {})
    if cost is not None and not isinstance(cost, Mapping):
        raise _refused(path + "/cost", "must be an object")
    found = None if cost is None else _cost(cost, f"{path}/cost")
    return _read(Usage, data, {"cost": found}, path)


def _cost(data: Mapping[str, Any], path: str) -> Cost:
    if not data:
        return NO_COST
    dollars = {name: _number(data.get(name), f"{path}/{name}") for name in DOLLARS}
    return _read(Cost, data, dollars, path)


def _refused(path: str, why: str) -> ValueRefused:
    return ValueRefused(f"{path or 'message'}: {why}", path=path)


def _read(kind: type[T], data: Mapping[str, Any], given: Mapping[str, Any], path: str = "") -> T:
    """An instance of *kind* with the fields in *data*, of which *given* have been read."""
    found = dict(given)
    for one in fields(cast("Any", kind)):
        name = one.name
        value = None if name in given else data.get(name)
        if value is None:
            continue
        wanted = _TYPES.get(name, object)
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise _refused(f"{path}/{name}", f"must be of type {wanted.__name__}")
        found[name] = value
    return kind(**found)


def _number(value: Any, path: str) -> float:
    try:
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return float(value or 0)
    except OverflowError:
        pass
    raise _refused(path, "must be a number")


def _stop_reason(value: Any) -> StopReason:
    try:
        return StopReason(value)
    except ValueError:
        raise _refused("/stop_reason", f"{value!r} is no stop reason") from None


def _citations(value: Any, path: str) -> tuple[Citation, ...]:
    if not isinstance(value, (list, tuple)):
        raise _refused(path, "must be a list")
    for i, one in enumerate(value):
        if not isinstance(one, Mapping):
            raise _refused(f"{path}/{i}", "must be an object")
    return tuple(_read(Citation, one, {}, f"{path}/{i}") for i, one in enumerate(value))


def _logprobs(value: Any, path: str) -> tuple[TokenLogprob, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise _refused(path, "must be a list")
    found = []
    for i, one in enumerate(value):
        here = f"{path}/{i}"
        if not isinstance(one, Mapping) or not isinstance(token := one.get("token"), str):
            raise _refused(here, "must be an object with a token")
        number = _number(one.get("logprob"), f"{here}/logprob")
        found.append(TokenLogprob(token, number, _logprobs(one.get("top"), f"{here}/top")))
    return tuple(found)


def _read_blocks(value: Any, allowed: Mapping[str, type[Any]]) -> tuple[Block, ...]:
    if isinstance(value, str):
        return (TextContent(value),)
    if not isinstance(value, (list, tuple)):
        raise _refused("/content", "must be text or a list of blocks")
    blocks: list[Block] = []
    for i, item in enumerate(value):
        path = f"/content/{i}"
        named = item.get("type") if isinstance(item, Mapping) else None
        kind = allowed.get(named) if isinstance(named, str) else None
        if kind is None:
            raise _refused(path, f"{named!r} is no block of this message")
        given = {}
        if item.get("citations") is not None:
            given["citations"] = _citations(item["citations"], f"{path}/citations")
        blocks.append(_read(kind, item, given, path))
    return tuple(blocks)
