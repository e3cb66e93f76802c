"""
Messages as JSON: what stores keep, and what pi and pipy-ai write, read back equal or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from looopy.errors import ValueRefused
from looopy.types.message import (
    NO_COST,
    AssistantBlock,
    AssistantMessage,
    Block,
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
    now_ms,
)


def message_to_json(message: Message, *, compact: bool = False) -> dict[str, Any]:
    """
    Write *message* as pi's JSON object.

    Args:
        message: Any of the four message types.
        compact: Leave out fields that hold their default, as the stores do; `message_from_json`
            fills them in again.
    """
    if isinstance(message, UserMessage):
        content = message.content
        return {
            "role": "user",
            "content": content if isinstance(content, str) else _blocks(content, compact, _USER),
            "timestamp": message.timestamp,
        }
    if isinstance(message, AssistantMessage):
        return _assistant_to_json(message, compact)
    if isinstance(message, ToolResultMessage):
        data: dict[str, Any] = {
            "role": "toolResult",
            "tool_call_id": message.tool_call_id,
            "tool_name": message.tool_name,
            "content": _blocks(message.content, compact, _USER),
        }
        if message.details is not None or not compact:
            data["details"] = message.details
        if message.is_error or not compact:
            data["is_error"] = message.is_error
        data["timestamp"] = message.timestamp
        return data
    data = {"role": message.role, "content": message.content, "timestamp": message.timestamp}
    if message.metadata or not compact:
        data["metadata"] = message.metadata
    return data


def _assistant_to_json(message: AssistantMessage, compact: bool) -> dict[str, Any]:
    blocks = _blocks(message.content, compact, _ASSISTANT)
    data: dict[str, Any] = {"role": "assistant", "content": blocks}
    for name in ("api", "provider", "model"):
        value = getattr(message, name)
        if value or not compact:
            data[name] = value
    usage = usage_to_json(message.usage, compact=compact)
    if usage or not compact:
        data["usage"] = usage
    reason = message.stop_reason
    data["stop_reason"] = (reason if isinstance(reason, StopReason) else _stop_reason(reason)).value
    if message.error_message is not None or not compact:
        data["error_message"] = message.error_message
    data["timestamp"] = message.timestamp
    return data


def usage_to_json(usage: Usage, *, compact: bool = False) -> dict[str, Any]:
    """Write *usage* as pi's JSON object, an unknown cost as null; compact leaves out zeros."""
    data = _numbers(usage, _TOKENS, compact=compact)
    if usage.cost is None:
        data["cost"] = None
        return data
    cost = _numbers(usage.cost, _DOLLARS, compact=compact)
    if not usage.cost.complete:
        cost["complete"] = False
    if cost or not compact:
        data["cost"] = cost
    return data


_TOKENS = ("input", "output", "cache_read", "cache_write", "total_tokens")
_DOLLARS = ("input", "output", "cache_read", "cache_write", "total")


def _numbers(of: Usage | Cost, names: Sequence[str], *, compact: bool) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name in names:
        value = getattr(of, name)
        if value or not compact:
            data[name] = value
    return data


def _blocks(
    blocks: Sequence[Block], compact: bool, readers: Mapping[str, Any]
) -> list[dict[str, Any]]:
    for i, block in enumerate(blocks):
        if not isinstance(block, _BLOCKS) or block.type not in readers:
            # A value that could not be read back is not written.
            raise _refused(f"/content/{i}", f"{type(block).__name__} is no block of this message")
    return [_block_to_json(b, compact) for b in blocks]


def _block_to_json(block: Block, compact: bool) -> dict[str, Any]:
    if isinstance(block, TextContent):
        data: dict[str, Any] = {"type": "text", "text": block.text}
        signature, key = block.text_signature, "text_signature"
    elif isinstance(block, ToolCall):
        data = {
            "type": "toolCall",
            "id": block.id,
            "name": block.name,
            "arguments": block.arguments,
        }
        if block.invalid_arguments is not None:
            data["invalid_arguments"] = block.invalid_arguments
        signature, key = block.thought_signature, "thought_signature"
    elif isinstance(block, ThinkingContent):
        data = {"type": "thinking", "thinking": block.thinking}
        if block.redacted:
            data["redacted"] = True
        signature, key = block.thinking_signature, "thinking_signature"
    else:
        return {"type": "image", "data": block.data, "mime_type": block.mime_type}
    if signature is not None or not compact:
        data[key] = signature
    return data


def message_from_json(data: Mapping[str, Any]) -> Message:
    """
    Read a message from pi's JSON object. Missing fields take their default; a missing timestamp is
    now.

    Raises:
        ValueRefused: A field has the wrong type or a value that is not known; `path` points at it.
    """
    if not isinstance(data, Mapping):
        raise _refused("", "a message is a JSON object")
    role = data.get("role")
    if role == "user":
        return UserMessage(
            _content(data.get("content", "")), timestamp=_get(data, "timestamp", int, now_ms)
        )
    if role == "assistant":
        return AssistantMessage(
            cast("tuple[AssistantBlock, ...]", _read_blocks(data.get("content", ()), _ASSISTANT)),
            api=_get(data, "api", str, str),
            provider=_get(data, "provider", str, str),
            model=_get(data, "model", str, str),
            usage=usage_from_json(data.get("usage") or {}),
            stop_reason=_stop_reason(data.get("stop_reason") or "stop"),
            error_message=_optional(data, "error_message", ""),
            timestamp=_get(data, "timestamp", int, now_ms),
        )
    if role == "toolResult":
        return ToolResultMessage(
            tool_call_id=_get(data, "tool_call_id", str, str),
            tool_name=_get(data, "tool_name", str, str),
            content=cast("tuple[UserBlock, ...]", _read_blocks(data.get("content", ()), _USER)),
            details=data.get("details"),
            is_error=_get(data, "is_error", bool, bool),
            timestamp=_get(data, "timestamp", int, now_ms),
        )
    if not isinstance(role, str) or not role:
        raise _refused("/role", "a message needs a role")
    return CustomMessage(
        role,
        data.get("content", ""),
        _get(data, "metadata", dict, dict),
        timestamp=_get(data, "timestamp", int, now_ms),
    )


def usage_from_json(data: Mapping[str, Any], path: str = "/usage") -> Usage:
    """Read a usage object; missing counts are zero."""
    if not isinstance(data, Mapping):
        raise _refused(path, "must be an object")
    cost = data.get("cost", {})
    if cost is not None and not isinstance(cost, Mapping):
        raise _refused(path + "/cost", "must be an object")
    return Usage(
        input=_get(data, "input", int, int, path),
        output=_get(data, "output", int, int, path),
        cache_read=_get(data, "cache_read", int, int, path),
        cache_write=_get(data, "cache_write", int, int, path),
        total_tokens=_get(data, "total_tokens", int, int, path),
        cost=None if cost is None else _cost(cost, path + "/cost"),
    )


def _cost(data: Mapping[str, Any], path: str) -> Cost:
    if not data:
        return NO_COST
    dollars = {name: _dollars(data, name, path) for name in _DOLLARS}
    return Cost(**dollars, complete=_get(data, "complete", bool, lambda: True, path))


def _refused(path: str, why: str) -> ValueRefused:
    return ValueRefused(f"{path or 'message'}: {why}", path=path)


def _get(
    data: Mapping[str, Any], name: str, kind: Any, default: Callable[[], Any], path: str = ""
) -> Any:
    value = data.get(name)
    if value is None:
        return default()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = kind.__name__ if isinstance(kind, type) else "number"
        raise _refused(f"{path}/{name}", f"must be of type {wanted}")
    return value


def _dollars(data: Mapping[str, Any], name: str, path: str) -> float:
    value = _get(data, name, (int, float), float, path)
    try:
        if not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise _refused(f"{path}/{name}", "must be a number")


def _optional(data: Mapping[str, Any], name: str, path: str) -> str | None:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise _refused(f"{path}/{name}", "must be of type str")
    return value


def _stop_reason(value: Any) -> StopReason:
    try:
        return StopReason(value)
    except ValueError:
        raise _refused("/stop_reason", f"{value!r} is no stop reason") from None


def _content(value: Any) -> str | tuple[UserBlock, ...]:
    if isinstance(value, str):
        return value
    return cast("tuple[UserBlock, ...]", _read_blocks(value, _USER))


def _read_blocks(
    value: Any, readers: Mapping[str, Callable[[Any, str], Block]]
) -> tuple[Block, ...]:
    if isinstance(value, str):
        return (TextContent(value),)
    if not isinstance(value, (list, tuple)):
        raise _refused("/content", "must be text or a list of blocks")
    blocks = []
    for i, item in enumerate(value):
        path = f"/content/{i}"
        kind = item.get("type") if isinstance(item, Mapping) else None
        reader = readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise _refused(path, f"{kind!r} is no block of this message")
        blocks.append(reader(item, path))
    return tuple(blocks)


def _read_text(item: Mapping[str, Any], path: str) -> TextContent:
    return TextContent(
        _get(item, "text", str, str, path), text_signature=_optional(item, "text_signature", path)
    )


def _read_thinking(item: Mapping[str, Any], path: str) -> ThinkingContent:
    return ThinkingContent(
        _get(item, "thinking", str, str, path),
        thinking_signature=_optional(item, "thinking_signature", path),
        redacted=_get(item, "redacted", bool, bool, path),
    )


def _read_image(item: Mapping[str, Any], path: str) -> ImageContent:
    mime_type = _get(item, "mime_type", str, lambda: "image/png", path)
    return ImageContent(_get(item, "data", str, str, path), mime_type=mime_type)


def _read_tool_call(item: Mapping[str, Any], path: str) -> ToolCall:
    return ToolCall(
        _get(item, "id", str, str, path),
        _get(item, "name", str, str, path),
        _get(item, "arguments", dict, dict, path),
        thought_signature=_optional(item, "thought_signature", path),
        invalid_arguments=_optional(item, "invalid_arguments", path),
    )


_USER: dict[str, Callable[[Any, str], Block]] = {"text": _read_text, "image": _read_image}
_BLOCKS = (TextContent, ThinkingContent, ImageContent, ToolCall)
_ASSISTANT: dict[str, Callable[[Any, str], Block]] = {
    "text": _read_text,
    "thinking": _read_thinking,
    "toolCall": _read_tool_call,
}
