"""
The fields of messages, their blocks and their usage: one table, with the type of each field.

From this table come the check of callers' messages and the repair of foreign ones
(`message_check`), JSON in both directions (`message_json`), and the compiled reader and writer of
rows (`looopy.stores.rows.schema`). A new field is a line of its dataclass and a line here.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from datetime import datetime
from typing import Any, Final, Literal, cast

from looopy.types.message import (
    DOLLARS,
    NO_COST,
    NO_USAGE,
    TOKENS,
    AssistantMessage,
    AudioContent,
    Citation,
    Cost,
    CustomMessage,
    DocumentContent,
    ImageContent,
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
)
from looopy.types.storable import MAX_INT

_STOPS: Final = frozenset(reason.value for reason in StopReason)
ROLES: Final[Mapping[str, type[Any]]] = {
    kind.role: kind for kind in (UserMessage, AssistantMessage, ToolResultMessage)
}
_URL: Final = r"(?i)https?://[^\s\x00-\x1f]{1,8000}"


class Nothing(Exception):
    """Nothing can be made of a value. Never leaves this package."""


class Kind:
    """
    The type of a field.

    Args:
        name: For the refusal, after "must be".
        fits: True if a value has it.
        made: Converts a value that has not; raises any exception if it cannot.
        json: The class of its JSON value.
        reads: How compiled code reads it in a row; see `looopy.stores.rows.schema`. `default`: no
            value but the default.
        writes: How compiled code writes it, likewise.
    """

    __slots__ = ("fits", "json", "made", "name", "reads", "writes")  # no dataclass: it loads slowly

    def __init__(
        self,
        name: str,
        fits: Callable[[Any], bool],
        made: Callable[[Any], Any],
        json: type = object,
        reads: str = "default",
        writes: str = "default",
    ) -> None:
        self.name, self.fits, self.made, self.json = name, fits, made, json
        self.reads, self.writes = reads, writes


class Field:
    """
    A field in the table.

    Args:
        kind: Its type.
        default: The value that JSON leaves out.
        left_out: Where JSON leaves the default out: `never`, in the `compact` form of the stores,
            or `always`, as pi has no such field.
    """

    __slots__ = ("default", "kind", "left_out")

    def __init__(
        self,
        kind: Kind,
        default: Any = None,
        left_out: Literal["never", "compact", "always"] = "never",
    ) -> None:
        self.kind, self.default, self.left_out = kind, default, left_out


def fits_whole(value: Any) -> bool:
    """True for a whole number of 64 bits."""
    return type(value) is int and -MAX_INT <= value < MAX_INT


def _fits_dollars(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or fits_whole(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def as_text(value: Any) -> str:
    """Bytes as UTF-8, anything else as JSON."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _as_whole(value: Any) -> int:
    if isinstance(value, datetime):  # a moment, in the unit of timestamps
        value = value.timestamp() * 1000
    number = int(value) if isinstance(value, int) else round(float(value))
    if not fits_whole(number):
        raise Nothing
    return number


def _as_dollars(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise Nothing
    return number


_NO: Final = ("", "0", "false", "no", "off")


def as_flag(value: Any) -> bool:
    """True if *value* means yes; text such as `"false"` and `"0"` does not."""
    return value.strip().lower() not in _NO if isinstance(value, str) else bool(value)


def as_base64(value: Any) -> str:
    """Bytes as base64 text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    raise Nothing


def _are_citations(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    return not value or all(
        isinstance(one, Citation)
        and all(field.kind.fits(getattr(one, name)) for name, field in FIELDS[Citation].items())
        for one in value
    )


def _as_citations(value: Any) -> tuple[Citation, ...]:
    """The citations among *value*'s items; text of another type is left out of them."""
    if not isinstance(value, (list, tuple)):
        raise Nothing
    found = [from_mapping(Citation, c) if isinstance(c, Mapping) else c for c in value]
    return tuple(
        Citation(**{name: mended(Citation, name, getattr(c, name), "", []) for name in _CITED})
        for c in found
        if isinstance(c, Citation)
    )


def _are_logprobs(value: Any, levels: int = 2) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(one, TokenLogprob)
        and isinstance(one.token, str)
        and _fits_dollars(one.logprob)
        and (one.top == () or (levels > 1 and _are_logprobs(one.top, levels - 1)))
        for one in value
    )


def _as_logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    """The log-probabilities among *value*'s items; other types are left out."""
    if not isinstance(value, (list, tuple)):
        raise Nothing
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
    raise Nothing


def _anything(_value: Any) -> bool:
    return True


def _as_usage(value: Any) -> Usage:
    if not isinstance(value, Mapping):
        raise Nothing
    return Usage(**{name: value[name] for name in FIELDS[Usage] if name in value})


def _as_cost(value: Any) -> Cost:
    if isinstance(value, Mapping):
        return Cost(**{name: value[name] for name in FIELDS[Cost] if name in value})
    return Cost(total=_as_dollars(value))


def _is_flag(value: Any) -> bool:
    return value is True or value is False


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) and value in _STOPS


def _is_own_role(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value not in ROLES


def _is_usage(value: Any) -> bool:
    return isinstance(value, Usage)


def _is_cost_or_none(value: Any) -> bool:
    return value is None or isinstance(value, Cost)


_TEXT: Final = Kind("text", _is_text, as_text, str, "text", "text")
_MAYBE: Final = Kind("text or None", _is_text_or_none, as_text, str, "text?", "text?")
_OPAQUE: Final = Kind("text or None", _is_text_or_none, _nothing, str, "text?", "text?")
"""Text of a provider, of which any other would be refused."""
_BASE64: Final = Kind("base64 text", _is_text, as_base64, str, "text", "text")
_WHOLE_BASE64: Final = Kind("base64 text", _is_base64, as_base64, str, "text")
_URL_OR_NONE: Final = Kind("an http or https URL, or None", _is_url_or_none, _nothing, str, "text?")
_MIME_TYPE: Final = Kind("text", _is_text, _nothing, str, "text", "text")
_WHOLE: Final = Kind("a whole number of 64 bits", fits_whole, _as_whole, int, "whole", "whole")
DOLLAR: Final = Kind("a finite number", _fits_dollars, _as_dollars, float, "number", "number")
_ROLE: Final = Kind("the role of a custom message", _is_own_role, _nothing, str)
_FLAG: Final = Kind("True or False", _is_flag, as_flag, bool, "flag", "flag")
_OBJECT: Final = Kind("a JSON object", _is_object, dict, dict, "object", "object")
ANY: Final = Kind("a JSON value", _anything, _nothing, object, "any", "any")
STOP: Final = Kind("a stop reason", _is_stop, _nothing, object, "stop", "stop")
CITATIONS: Final = Kind("a list of Citation", _are_citations, _as_citations)
LOGPROBS: Final = Kind("a list of TokenLogprob", _are_logprobs, _as_logprobs)
USAGE: Final = Kind("a Usage", _is_usage, _as_usage, object, "usage", "usage")
COST: Final = Kind("a Cost or None", _is_cost_or_none, _as_cost, object, "cost", "cost")
# The blocks of a message are checked and repaired one by one.
BLOCKS: Final = Kind("a list of blocks", _anything, _nothing, object, "blocks", "blocks")
TEXT_OR_BLOCKS: Final = Kind(
    "text or a list of blocks", _anything, _nothing, object, "text or blocks", "text or blocks"
)


def _short(kind: Kind, default: Any = None) -> Field:
    return Field(kind, default, "compact")


def _ours(kind: Kind, default: Any = None) -> Field:
    return Field(kind, default, "always")


_CITED: Final[dict[str, Field]] = {
    "url": _ours(_MAYBE),
    "title": _ours(_MAYBE),
    "text": Field(_MAYBE),
    "raw": Field(_OBJECT),
}
FIELDS: Final[dict[type, dict[str, Field]]] = {
    Citation: _CITED,
    TextContent: {
        "text": Field(_TEXT),
        "text_signature": _short(_OPAQUE),
        "citations": _ours(CITATIONS, ()),
    },
    ThinkingContent: {
        "thinking": Field(_TEXT),
        "redacted": _ours(_FLAG, default=False),
        "thinking_signature": _short(_OPAQUE),
    },
    ImageContent: {
        "data": Field(_BASE64),
        "mime_type": Field(_MIME_TYPE),
        "url": _ours(_URL_OR_NONE),
    },
    DocumentContent: {
        "data": Field(_WHOLE_BASE64),
        "mime_type": Field(_MIME_TYPE),
        "url": _ours(_URL_OR_NONE),
        "name": _ours(_MAYBE),
        "cite": _ours(_FLAG, default=False),
    },
    AudioContent: {"data": Field(_WHOLE_BASE64), "mime_type": Field(_MIME_TYPE)},
    ToolCall: {
        "id": Field(_TEXT),
        "name": Field(_TEXT),
        "arguments": Field(_OBJECT),
        "invalid_arguments": _ours(_MAYBE),
        "thought_signature": _short(_OPAQUE),
    },
    ServerToolCall: {
        "id": Field(_TEXT),
        "name": Field(_TEXT),
        "arguments": Field(_OBJECT),
        "item": Field(_OBJECT),
    },
    ServerToolResult: {
        "tool_call_id": Field(_TEXT),
        "tool_name": Field(_TEXT),
        "item": Field(_OBJECT),
    },
    Cost: {
        **{name: _short(DOLLAR, 0.0) for name in DOLLARS},
        "complete": _ours(_FLAG, default=True),
    },
    Usage: {
        **{name: _short(_WHOLE, 0) for name in TOKENS},
        "reasoning": _ours(_WHOLE, 0),
        "cost": _short(COST, NO_COST),
    },
    UserMessage: {"content": Field(TEXT_OR_BLOCKS), "timestamp": Field(_WHOLE)},
    AssistantMessage: {
        "content": Field(BLOCKS),
        "api": _short(_TEXT, ""),
        "provider": _short(_TEXT, ""),
        "model": _short(_TEXT, ""),
        "usage": _short(USAGE, NO_USAGE),
        "stop_reason": Field(STOP),
        "error_message": _short(_MAYBE),
        "response_id": _ours(_MAYBE),
        "logprobs": _ours(LOGPROBS, ()),
        "timestamp": Field(_WHOLE),
    },
    ToolResultMessage: {
        "tool_call_id": Field(_TEXT),
        "tool_name": Field(_TEXT),
        "content": Field(BLOCKS),
        "details": _short(ANY),
        "is_error": _short(_FLAG, default=False),
        "timestamp": Field(_WHOLE),
    },
    CustomMessage: {
        "role": Field(_ROLE),
        "content": Field(ANY),
        "timestamp": Field(_WHOLE),
        "metadata": _short(_OBJECT, {}),
    },
}
"""The fields of each class, in the order of JSON."""

SHOWN: Final = (TextContent, ImageContent, DocumentContent, AudioContent)
SPOKEN: Final = (TextContent, ThinkingContent, ToolCall, ServerToolCall, ServerToolResult)
BLOCKS_OF: Final[dict[type, tuple[type[Any], ...]]] = {
    UserMessage: SHOWN,
    AssistantMessage: SPOKEN,
    ToolResultMessage: SHOWN,
}
"""The classes of blocks that a message may have."""


def from_mapping(kind: type[Any], data: Mapping[str, Any]) -> Any:
    """An instance of *kind* with the fields that *data* has, of whatever type they are."""
    return kind(**{name: data[name] for name in FIELDS[kind] if data.get(name) is not None})


def mended(of: type, name: str, value: Any, path: str, lost: list[str]) -> Any:
    """
    The *value* of a field, converted to its type if it has another.

    The field's default replaces an unusable value, and *lost* gets *path*.
    """
    kind = FIELDS[of][name].kind
    if kind.fits(value):
        return value
    if value is not None:
        try:
            made = kind.made(value)
            if kind.fits(made):
                return made
        except Exception:  # noqa: BLE001, S110 - foreign objects run foreign code
            pass
        lost.append(path)
    return default_of(of, name)


def default_of(of: type, name: str) -> Any:
    """The default of a field; `None` if it has none."""
    field = next(f for f in fields(cast("Any", of)) if f.name == name)
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None
