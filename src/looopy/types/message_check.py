"""
The type of each field of a message, and repairs for values of another type.

A dataclass takes any value, and a field of a wrong type would show only when it is read back, which
is too late. So messages of callers are refused before anything is written (`check_message`). Those
of models, tools and damaged rows are repaired (`mended_message`, `salvaged_message`): a number in
text becomes a number, arguments as JSON text become arguments, and an unusable value is replaced by
the field's default.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar, cast

from looopy.errors import ValueRefused
from looopy.types.constructors import amended
from looopy.types.message import (
    DOLLARS,
    NO_COST,
    NO_USAGE,
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
    UserBlock,
    UserMessage,
)
from looopy.types.storable import MAX_INT

T = TypeVar("T")
Lost: TypeAlias = list[str]
"""Where something was left out, as JSON pointers."""

_STOPS: Final = frozenset(reason.value for reason in StopReason)
_TAKEN: Final = ("", "user", "assistant", "toolResult")
_NO: Final = ("", "0", "false", "no", "off")
_URL: Final = r"(?i)https?://[^\s\x00-\x1f]{1,8000}"


_MOST_DOLLARS: Final = 1_000_000
"""For one call: more than that is an error of whoever says it."""
_ROUNDING: Final = 1e-9


class _Nothing(Exception):
    """Nothing can be made of a value. Never leaves this module."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """
    The type of a field.

    Attributes:
        name: For the refusal, after "must be".
        fits: True if a value has it.
        made: Converts a value that has not; raises any exception if it cannot.
    """

    name: str
    fits: Callable[[Any], bool]
    made: Callable[[Any], Any]


def _fits_whole(value: Any) -> bool:
    return type(value) is int and -MAX_INT <= value < MAX_INT


def _fits_dollars(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or _fits_whole(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _as_text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _as_whole(value: Any) -> int:
    if isinstance(value, datetime):  # a moment, in the unit of timestamps
        value = value.timestamp() * 1000
    number = int(value) if isinstance(value, int) else round(float(value))
    if not _fits_whole(number):
        raise _Nothing
    return number


def _as_dollars(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise _Nothing
    return number


def as_flag(value: Any) -> bool:
    """True if *value* means yes; text such as `"false"` and `"0"` does not."""
    return value.strip().lower() not in _NO if isinstance(value, str) else bool(value)


def _as_base64(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    raise _Nothing


def _are_citations(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    return not value or all(
        isinstance(one, Citation)
        and all(shape.fits(getattr(one, name)) for name, shape in _FIELDS[Citation].items())
        for one in value
    )


def _as_citations(value: Any) -> tuple[Citation, ...]:
    """The citations among *value*'s items; text of another type is left out of them."""
    if not isinstance(value, (list, tuple)):
        raise _Nothing
    found = [_from_mapping(Citation, c) if isinstance(c, Mapping) else c for c in value]
    lost: Lost = []
    return tuple(_mended(Citation, c, "", lost) for c in found if isinstance(c, Citation))


def _are_logprobs(value: Any, levels: int = 2) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(one, TokenLogprob)
        and isinstance(one.token, str)
        and _fits_dollars(one.logprob)
        and (one.top == () or (levels > 1 and _are_logprobs(one.top, levels - 1)))
        for one in value
    )


def _as_logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    """The log-probabilities among *value*'s items, without those of other types."""
    if not isinstance(value, (list, tuple)):
        raise _Nothing
    found = []
    for item in value:
        one = item
        if isinstance(item, Mapping):
            one = TokenLogprob(item.get("token", ""), item.get("logprob", 0), item.get("top") or ())
        if isinstance(one, TokenLogprob) and _are_logprobs((bare := replace(one, top=()),)):
            found.append(replace(bare, top=_as_logprobs(one.top)) if one.top else bare)
    return tuple(found)


def _is_base64(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        return False
    return True


def _is_url_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and re.fullmatch(_URL, value) is not None)


def _nothing(_value: Any) -> Any:
    raise _Nothing


def _as_usage(value: Any) -> Usage:
    if not isinstance(value, Mapping):
        raise _Nothing
    return Usage(**{f.name: value[f.name] for f in fields(Usage) if f.name in value})


def _as_cost(value: Any) -> Cost:
    if isinstance(value, Mapping):
        return Cost(**{f.name: value[f.name] for f in fields(Cost) if f.name in value})
    return Cost(total=_as_dollars(value))


_TEXT: Final = _Kind("text", _is_text, _as_text)
_TEXT_OR_NONE: Final = _Kind("text or None", _is_text_or_none, _as_text)
_OPAQUE: Final = _Kind("text or None", _is_text_or_none, _nothing)  # other bytes would be refused
_BASE64: Final = _Kind("base64 text", _is_text, _as_base64)
_WHOLE_BASE64: Final = _Kind("base64 text", _is_base64, _as_base64)
_ADDRESS: Final = _Kind("an http or https URL, or None", _is_url_or_none, _nothing)
_MIME_TYPE: Final = _Kind("text", _is_text, _nothing)
_WHOLE: Final = _Kind("a whole number of 64 bits", _fits_whole, _as_whole)
_DOLLARS: Final = _Kind("a finite number", _fits_dollars, _as_dollars)
_ROLE: Final = _Kind(
    "the role of a custom message", lambda value: _is_text(value) and value not in _TAKEN, _nothing
)
_FLAG: Final = _Kind("True or False", lambda value: value is True or value is False, as_flag)
_OBJECT: Final = _Kind("a JSON object", lambda value: isinstance(value, Mapping), dict)
_ANY: Final = _Kind("a JSON value", lambda _value: True, _nothing)
_STOP: Final = _Kind(
    "a stop reason", lambda value: isinstance(value, str) and value in _STOPS, _nothing
)
_CITATIONS: Final = _Kind("a list of Citation", _are_citations, _as_citations)
_LOGPROBS: Final = _Kind("a list of TokenLogprob", _are_logprobs, _as_logprobs)
_USAGE: Final = _Kind("a Usage", lambda value: isinstance(value, Usage), _as_usage)
_COST: Final = _Kind(
    "a Cost or None", lambda value: value is None or isinstance(value, Cost), _as_cost
)

_FIELDS: Final[dict[type, dict[str, _Kind]]] = {
    Citation: {"url": _TEXT_OR_NONE, "title": _TEXT_OR_NONE, "text": _TEXT_OR_NONE, "raw": _OBJECT},
    TextContent: {"text": _TEXT, "text_signature": _OPAQUE, "citations": _CITATIONS},
    ThinkingContent: {"thinking": _TEXT, "thinking_signature": _OPAQUE, "redacted": _FLAG},
    ImageContent: {"data": _BASE64, "mime_type": _MIME_TYPE, "url": _ADDRESS},
    DocumentContent: {
        "data": _WHOLE_BASE64,
        "mime_type": _MIME_TYPE,
        "url": _ADDRESS,
        "name": _TEXT_OR_NONE,
        "cite": _FLAG,
    },
    AudioContent: {"data": _WHOLE_BASE64, "mime_type": _MIME_TYPE},
    ToolCall: {
        "id": _TEXT,
        "name": _TEXT,
        "arguments": _OBJECT,
        "thought_signature": _OPAQUE,
        "invalid_arguments": _TEXT_OR_NONE,
    },
    ServerToolCall: {"id": _TEXT, "name": _TEXT, "arguments": _OBJECT, "item": _OBJECT},
    ServerToolResult: {"tool_call_id": _TEXT, "tool_name": _TEXT, "item": _OBJECT},
    Cost: {**dict.fromkeys(DOLLARS, _DOLLARS), "complete": _FLAG},
    Usage: {**dict.fromkeys(TOKENS, _WHOLE), "cost": _COST},
    UserMessage: {"timestamp": _WHOLE},
    AssistantMessage: {
        "api": _TEXT,
        "provider": _TEXT,
        "model": _TEXT,
        "usage": _USAGE,
        "stop_reason": _STOP,
        "error_message": _TEXT_OR_NONE,
        "timestamp": _WHOLE,
        "response_id": _TEXT_OR_NONE,
        "logprobs": _LOGPROBS,
    },
    ToolResultMessage: {
        "tool_call_id": _TEXT,
        "tool_name": _TEXT,
        "details": _ANY,
        "is_error": _FLAG,
        "timestamp": _WHOLE,
    },
    CustomMessage: {"role": _ROLE, "content": _ANY, "metadata": _OBJECT, "timestamp": _WHOLE},
}
"""The fields of each class, but for the blocks of a message's content."""

_MEDIA: Final[dict[Any, str]] = {
    ImageContent: "an image",
    DocumentContent: "a document",
    AudioContent: "audio",
}
_SHOWN: Final = (TextContent, *_MEDIA)
_SAID: Final = (TextContent, ThinkingContent, ToolCall, ServerToolCall, ServerToolResult)
_BLOCKS_OF: Final[dict[type, tuple[type, ...]]] = {
    UserMessage: _SHOWN,
    AssistantMessage: _SAID,
    ToolResultMessage: _SHOWN,
}
_BLOCK_NAMED: Final[dict[str, type[Any]]] = {
    kind.type: kind
    for kind in (
        *_SAID,
        *(ImageContent, DocumentContent, AudioContent),
    )
}
_MESSAGES: Final = (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)


# --- of callers: refused --------------------------------------------------------------------------


def check_message(message: object, path: str = "") -> None:
    """
    Refuse a message with a field of another type than it should have.

    JSON within it, such as arguments, is not looked into: that is for `looopy.types.storable`.

    Args:
        path: JSON pointer of the message, for the error.

    Raises:
        ValueRefused: `path` points at the field.
    """
    kind = _class_of(message)
    if kind is None:
        raise _refused(path, f"{type(message).__name__} is no message")
    _check_fields(kind, message, path)
    allowed = _BLOCKS_OF.get(kind)
    content = getattr(message, "content", None)
    if allowed is None or (kind is UserMessage and isinstance(content, str)):
        return
    if not isinstance(content, (list, tuple)):
        raise _refused(f"{path}/content", "must be text or a list of blocks")
    for i, block in enumerate(content):
        here = f"{path}/content/{i}"
        if not isinstance(block, allowed):
            raise _refused(here, f"{type(block).__name__} is no block of this message")
        _check_fields(next(one for one in allowed if isinstance(block, one)), block, here)
        _check_source(block, here)


def _check_source(block: object, path: str) -> None:
    """Refuse a block with two sources, and a document or a recording without one."""
    url = block.url if isinstance(block, (ImageContent, DocumentContent)) else None
    if not isinstance(block, (ImageContent, DocumentContent, AudioContent)):
        return
    if url is not None and block.data:
        raise _refused(f"{path}/url", "give the data or the url, not both")
    if url is None and not block.data and not isinstance(block, ImageContent):
        raise _refused(f"{path}/data", "must not be empty")


def check_usage(usage: object, path: str = "") -> None:
    """Raise `ValueRefused` unless *usage* is a `Usage` with numbers that can be stored."""
    if not isinstance(usage, Usage):
        raise _refused(path, f"must be a Usage, not {type(usage).__name__}")
    _check_fields(Usage, usage, path)


def _check_fields(kind: type, value: object, path: str) -> None:
    for name, shape in _FIELDS[kind].items():
        found = getattr(value, name)
        if not shape.fits(found):
            raise _refused(f"{path}/{name}", f"must be {shape.name}, not {type(found).__name__}")
        if isinstance(found, (Usage, Cost)):
            _check_fields(Usage if isinstance(found, Usage) else Cost, found, f"{path}/{name}")


def _class_of(message: object) -> type | None:
    return next((kind for kind in _MESSAGES if isinstance(message, kind)), None)


def _refused(path: str, why: str) -> ValueRefused:
    return ValueRefused(f"{path or 'message'}: {why}", path=path)


# --- of models and tools: repaired ----------------------------------------------------------------


def mended_message(message: Message, lost: Lost) -> Message:
    """*message* with each field of the type it should have, or itself; *lost* gets the places."""
    kind = _class_of(message)
    if kind is None:
        raise _refused("", f"{type(message).__name__} is no message")
    changes = _changes(kind, message, "", lost)
    allowed = _BLOCKS_OF.get(kind)
    if allowed is not None:
        content = getattr(message, "content", None)
        if kind is not UserMessage or not isinstance(content, str):
            blocks = mended_blocks(content, allowed, lost)
            if blocks is not content:
                changes["content"] = blocks
    if "stop_reason" in changes:
        calls = any(isinstance(b, ToolCall) for b in changes.get("content", ()) or message.content)
        changes["stop_reason"] = StopReason.TOOL_USE if calls else StopReason.STOP
    return replace(message, **changes) if changes else message


def mended_answer(answer: Any, lost: Lost) -> AssistantMessage:
    """The assistant message that a provider ended its stream with, or `ValueRefused`."""
    if _is_plain_answer(answer):  # as nearly all are
        return cast("AssistantMessage", answer)
    if not isinstance(answer, AssistantMessage):
        raise _refused("", f"{type(answer).__name__} is no AssistantMessage")
    return cast("AssistantMessage", mended_message(answer, lost))


def _is_plain_answer(answer: Any) -> bool:
    """
    True if *answer* is certainly valid, decided quickly; false if it needs a closer check.

    It must never be true of an answer that `check_message` would refuse.
    """
    if type(answer) is not AssistantMessage or type(answer.content) is not tuple:
        return False
    usage, error, stamp = answer.usage, answer.error_message, answer.timestamp
    if not (
        type(answer.stop_reason) is StopReason
        and type(answer.api) is type(answer.provider) is type(answer.model) is str
        and (error is None or type(error) is str)
        and (answer.response_id is None or type(answer.response_id) is str)
        and type(answer.logprobs) is tuple
        and not answer.logprobs
        and type(stamp) is int
        and 0 <= stamp < MAX_INT
        and (usage is NO_USAGE or _is_plain_usage(usage))
    ):
        return False
    for block in answer.content:
        kind = type(block)
        if kind is TextContent:
            plain, signature = type(block.text) is str, block.text_signature
            plain = plain and type(block.citations) is tuple and not block.citations
        elif kind is ToolCall:
            plain, signature = type(block.id) is type(block.name) is str, block.thought_signature
            plain = plain and type(block.arguments) is dict and block.invalid_arguments is None
        else:
            return False
        if not plain or signature is not None:
            return False
    return True


def _is_plain_usage(usage: Any) -> bool:
    cost = usage.cost if type(usage) is Usage else usage
    if cost is not None and not (type(cost) is Cost and _is_plain_cost(cost)):
        return False
    into, out, read, wrote, total = (
        usage.input,
        usage.output,
        usage.cache_read,
        usage.cache_write,
        usage.total_tokens,
    )
    if usage.reasoning and not _fits_whole(usage.reasoning):
        return False
    if type(into) is type(out) is type(read) is type(wrote) is type(total) is int:
        return 0 <= into | out | read | wrote | total < MAX_INT
    return False


def _is_plain_cost(cost: Cost) -> bool:
    into, out, read, wrote, total = (
        cost.input,
        cost.output,
        cost.cache_read,
        cost.cache_write,
        cost.total,
    )
    if type(into) is type(out) is type(read) is type(wrote) is type(total) is float:
        least, all_of_it = min(into, out, read, wrote, total), into + out + read + wrote + total
        return cost.complete is True and least >= 0 and all_of_it <= _MOST_DOLLARS  # false for NaN
    return False


def mended_usage(usage: Any, lost: Lost) -> Usage:
    """*usage* with numbers that can be stored; of something else, no usage."""
    if not isinstance(usage, Usage):
        usage = _made(_USAGE, usage, NO_USAGE, "/usage", lost)
    return _mended(Usage, cast("Usage", usage), "/usage", lost)


def mended_shown(blocks: Any, lost: Lost) -> tuple[UserBlock, ...]:
    """The blocks that a tool shows to a model; *blocks* itself if nothing is wrong with them."""
    return cast("tuple[UserBlock, ...]", mended_blocks(blocks, _SHOWN, lost))


def mended_blocks(content: Any, allowed: tuple[type, ...], lost: Lost) -> tuple[Block, ...]:
    """The blocks of *content*, each of one of the *allowed* classes."""
    if isinstance(content, (str, bytes)):
        text = _as_text(content) if isinstance(content, bytes) else content
        return (TextContent(text),) if text else ()
    if not isinstance(content, (list, tuple)):
        if content is not None:
            lost.append("/content")
        return ()
    found: list[Block] = []
    for i, block in enumerate(content):
        one = _mended_block(block, allowed, f"/content/{i}", lost)
        if one is not None:
            found.append(one)
    same = type(content) is tuple and len(found) == len(content)
    if same and all(new is old for new, old in zip(found, content, strict=True)):
        return cast("tuple[Block, ...]", content)
    return tuple(found)


def _mended_block(block: Any, allowed: tuple[type, ...], path: str, lost: Lost) -> Block | None:
    if isinstance(block, str):
        return TextContent(block)
    if isinstance(block, Mapping):
        named = block.get("type")
        known = _BLOCK_NAMED.get(named) if isinstance(named, str) else None
        block = None if known is None else _from_mapping(known, block)
    for kind in allowed:
        if not isinstance(block, kind):
            continue
        found: Any = block
        if kind is ToolCall and not isinstance(found.arguments, Mapping):
            found = _with_arguments(found)
        if kind in _MEDIA and not _FIELDS[kind]["data"].fits(found.data):
            try:
                _as_base64(found.data)
            except _Nothing:
                lost.append(f"{path}/data")
                return TextContent(f"[{_MEDIA[kind]} that cannot be read was left out]")
        return _with_source(kind, _mended(kind, found, path, lost), path, lost)
    lost.append(path)
    return None


def _with_source(kind: type, block: Any, path: str, lost: Lost) -> Block:
    """*block*; a file with two sources keeps its data, and one without any becomes text."""
    try:
        _check_source(block, path)
    except ValueRefused as refused:
        lost.append(refused.path or path)
        if block.data:
            return cast("Block", replace(block, url=None))
        return TextContent(f"[{_MEDIA[kind]} that cannot be read was left out]")
    return cast("Block", block)


def _with_arguments(call: ToolCall) -> ToolCall:
    """*call* with the object that its arguments say as text, or with what they are kept as such."""
    said = cast("Any", call.arguments)
    if said is None:
        return amended(call, arguments={})
    if isinstance(said, (bytes, bytearray)):
        said = _as_text(said)
    try:
        text = said if isinstance(said, str) else json.dumps(said, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = f"<{type(said).__name__}>"
    found = None
    if isinstance(said, str):
        try:
            found = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            found = None
    if isinstance(found, dict):
        return amended(call, arguments=found)
    return amended(call, arguments={}, invalid_arguments=text)


def _mended(kind: type, value: T, path: str, lost: Lost) -> T:
    changes = _changes(kind, value, path, lost)
    return cast("T", replace(cast("Any", value), **changes)) if changes else value


def _changes(kind: type, value: object, path: str, lost: Lost) -> dict[str, Any]:
    """The fields of *value* that have to change, with what they become."""
    changes: dict[str, Any] = {}
    for name, shape in _FIELDS[kind].items():
        found = getattr(value, name)
        here = found
        if not shape.fits(found):
            here = _made(shape, found, _default(kind, name), f"{path}/{name}", lost)
        if isinstance(here, Usage) and here is not NO_USAGE:
            here = _mended(Usage, here, f"{path}/{name}", lost)
        elif isinstance(here, Cost) and here is not NO_COST:
            here = _known_cost(here, f"{path}/{name}", lost)
        elif kind is Usage and name in TOKENS and cast("int", here) < 0:
            lost.append(f"{path}/{name}")
            here = 0
        if here is not found:
            changes[name] = here
    return changes


def _known_cost(cost: Cost, path: str, lost: Lost) -> Cost | None:
    """*cost*, or `None` if a part is no amount of dollars: a zero there would pass any budget."""
    wrong: Lost = []
    found = _mended(Cost, cost, path, wrong)
    for name in DOLLARS:
        if not -_ROUNDING <= getattr(found, name) <= _MOST_DOLLARS:
            wrong.append(f"{path}/{name}")
    if cast("Any", cost.total) is None:
        wrong.append(f"{path}/total")
    lost += wrong
    return None if wrong else found


def _made(shape: _Kind, value: Any, default: Any, path: str, lost: Lost) -> Any:
    """*value* converted to the field's type, or the field's default if it cannot be."""
    if value is None:
        return default
    try:
        made = shape.made(value)
        if shape.fits(made):
            return made
    except Exception:  # noqa: BLE001, S110 - foreign objects run foreign code
        pass
    lost.append(path)
    return default


def _default(kind: type, name: str) -> Any:
    field = next(f for f in fields(cast("Any", kind)) if f.name == name)
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


# --- of damaged rows: saved -----------------------------------------------------------------------

_ROLES: Final[dict[str, type]] = {
    "user": UserMessage,
    "assistant": AssistantMessage,
    "toolResult": ToolResultMessage,
}


def salvaged_message(data: Any, lost: Lost) -> Message:
    """
    The message in a JSON value, with fields of any type.

    Args:
        lost: Called if something was left out.

    Raises:
        ValueRefused: It is not an object with a role.
    """
    role = data.get("role") if isinstance(data, Mapping) else None
    if not isinstance(role, str) or not role:
        raise _refused("/role" if isinstance(data, Mapping) else "", "a message needs a role")
    kind = _ROLES.get(role, CustomMessage)
    given = dict(data)
    if kind is not CustomMessage:
        content = given.get("content")
        if not (kind is UserMessage and isinstance(content, str)):
            given["content"] = mended_blocks(content, _BLOCKS_OF[kind], lost)
    given.setdefault("timestamp", 0)
    return mended_message(_from_mapping(kind, given), lost)


def _from_mapping(kind: type[T], data: Mapping[str, Any]) -> T:
    """An instance of *kind* with the fields that *data* has, of whatever type they are."""
    known: Collection[str] = [f.name for f in fields(cast("Any", kind))]
    given = {name: data[name] for name in known if data.get(name) is not None}
    made: T = kind(**given)
    return made

