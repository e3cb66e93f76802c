"""
What is said in a context: messages, their blocks, and what a model call used.

The vocabulary is pipy-ai's and pi's, field for field and value for value, so that a message written
by
either is one of ours: snake_case keys, values such as `toolResult` and `toolCall`, timestamps as
integer milliseconds since 1970. `message_from_json` reads it and `message_to_json` writes it back.

Messages are frozen and never edited: the log is evidence. What a model is shown is rendered from it
(`looopy.llm.render`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias, cast

from looopy.errors import ValueRefused


class StopReason(StrEnum):
    """Why a model stopped generating (the first six, pi's values), or why a turn ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_USE = "toolUse"
    ERROR = "error"
    ABORTED = "aborted"
    SENSITIVE = "sensitive"
    MAX_ITERATIONS = "max_iterations"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TOOL_FAILURES = "max_tool_failures"
    DOOM_LOOP = "doom_loop"
    BUDGET = "budget"
    DEADLINE = "deadline"
    CONTENT_FILTER = "content_filter"
    CANCELLED = "cancelled"
    INPUT_REQUIRED = "input_required"
    AUTH_REQUIRED = "auth_required"
    INTERRUPTED = "interrupted"


def now_ms() -> int:
    """Milliseconds since 1970, UTC: the unit of message timestamps."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class TextContent:
    """A block of text. `text_signature` is opaque and replayed unchanged."""

    type: ClassVar[str] = "text"
    text: str = ""
    _: KW_ONLY
    text_signature: str | None = None


@dataclass(frozen=True, slots=True)
class ThinkingContent:
    """A block of reasoning. `thinking_signature` is opaque and replayed unchanged."""

    type: ClassVar[str] = "thinking"
    thinking: str = ""
    _: KW_ONLY
    thinking_signature: str | None = None


@dataclass(frozen=True, slots=True)
class ImageContent:
    """An image, base64-encoded."""

    type: ClassVar[str] = "image"
    data: str = ""
    _: KW_ONLY
    mime_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """
    A model's wish to have a tool run.

    `arguments` is the JSON object it sent. What was no JSON object is kept as sent in
    `invalid_arguments` (ours, absent in pi), and `arguments` is then empty.
    """

    type: ClassVar[str] = "toolCall"
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    thought_signature: str | None = None
    invalid_arguments: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """US dollars. All zero where the price is not known."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0
    total: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            total=self.total + other.total,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one or more model calls. `input` leaves out what the cache served."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost: Cost = field(default_factory=Cost)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            total_tokens=self.total_tokens + other.total_tokens,
            cost=self.cost + other.cost,
        )


def _as_blocks(content: Any) -> tuple[Any, ...]:
    """A plain string stands for one text block, any other sequence for its items."""
    if isinstance(content, str):
        return (TextContent(content),) if content else ()
    return tuple(content)


UserBlock: TypeAlias = TextContent | ImageContent
AssistantBlock: TypeAlias = TextContent | ThinkingContent | ToolCall


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said: a string, or text and image blocks in order."""

    role: ClassVar[str] = "user"
    content: str | Sequence[UserBlock] = ""
    _: KW_ONLY
    timestamp: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        if not isinstance(self.content, (str, tuple)):
            object.__setattr__(self, "content", tuple(self.content))

    @property
    def text(self) -> str:
        """The text alone, blocks joined by newlines."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(b.text for b in self.content if isinstance(b, TextContent))


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """
    What the model answered: text, thinking and tool calls in order; a string stands for one text.
    """

    role: ClassVar[str] = "assistant"
    content: Sequence[AssistantBlock] = ()
    _: KW_ONLY
    api: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason = StopReason.STOP
    error_message: str | None = None
    timestamp: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        if not isinstance(self.content, tuple):
            object.__setattr__(self, "content", _as_blocks(self.content))

    @property
    def text(self) -> str:
        """The text alone, blocks joined by newlines."""
        return "\n".join(b.text for b in self.content if isinstance(b, TextContent))

    @property
    def thinking_text(self) -> str:
        """The thinking alone, blocks joined by newlines."""
        return "\n".join(b.thinking for b in self.content if isinstance(b, ThinkingContent))

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The announced tool calls, in order."""
        return [b for b in self.content if isinstance(b, ToolCall)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultMessage:
    """What a tool answered. `details` is for programs and logs, never for the model."""

    role: ClassVar[str] = "toolResult"
    tool_call_id: str = ""
    tool_name: str = ""
    content: Sequence[UserBlock] = ()
    details: Any = None
    is_error: bool = False
    timestamp: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        if not isinstance(self.content, tuple):
            object.__setattr__(self, "content", _as_blocks(self.content))

    @property
    def text(self) -> str:
        """The text alone, blocks joined by newlines."""
        return "\n".join(b.text for b in self.content if isinstance(b, TextContent))


@dataclass(frozen=True, slots=True)
class CustomMessage:
    """A message of the application's own role: stored with the rest, left out of model requests."""

    role: str
    content: Any = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    timestamp: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        if not isinstance(self.role, str) or self.role in ("", "user", "assistant", "toolResult"):
            raise _refused("/role", f"{self.role!r} is not the role of a custom message")


Message: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage | CustomMessage
Block: TypeAlias = TextContent | ThinkingContent | ImageContent | ToolCall


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
    data["stop_reason"] = message.stop_reason.value
    if message.error_message is not None or not compact:
        data["error_message"] = message.error_message
    data["timestamp"] = message.timestamp
    return data


def usage_to_json(usage: Usage, *, compact: bool = False) -> dict[str, Any]:
    """Write *usage* as pi's JSON object; compact leaves out zeros."""
    data: dict[str, Any] = {
        name: getattr(usage, name)
        for name in ("input", "output", "cache_read", "cache_write", "total_tokens")
    }
    cost = {
        name: getattr(usage.cost, name)
        for name in ("input", "output", "cache_read", "cache_write", "total")
    }
    if compact:
        data = {k: v for k, v in data.items() if v}
        cost = {k: v for k, v in cost.items() if v}
    if cost or not compact:
        data["cost"] = cost
    return data


def _blocks(
    blocks: Sequence[Block], compact: bool, readers: Mapping[str, Any]
) -> list[dict[str, Any]]:
    for i, block in enumerate(blocks):
        if not isinstance(block, _BLOCKS) or block.type not in readers:
            # What could not be read back is not written.
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
    cost = data.get("cost") or {}
    if not isinstance(cost, Mapping):
        raise _refused(path + "/cost", "must be an object")
    return Usage(
        input=_get(data, "input", int, int, path),
        output=_get(data, "output", int, int, path),
        cache_read=_get(data, "cache_read", int, int, path),
        cache_write=_get(data, "cache_write", int, int, path),
        total_tokens=_get(data, "total_tokens", int, int, path),
        cost=Cost(
            **{
                name: _dollars(cost, name, path + "/cost")
                for name in ("input", "output", "cache_read", "cache_write", "total")
            }
        )
        if cost
        else Cost(),
    )


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
