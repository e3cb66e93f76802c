"""
Messages, events, records and artifacts as JSON text and back, for authors of a store.

    text = encode_event(event)
    assert decode_event(text) == event

Each pair is exact: it returns a value that equals the given one, or raises `ValueRefused`, whose
`path` points at the fault. A sequence is a tuple when it comes back. The bytes of an artifact's
content are stored as they are; its description is a record like the others.

Text that a released version has written can be read by every later version: a field that is added
has a default, and no field changes its meaning. An older version refuses a field that it does not
know, because it could not keep it.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from looopy.errors import ValueRefused
from looopy.stores.records import ContextRecord, ContextState, Entry, MessageRecord, TurnRecord
from looopy.stores.rows import reading, writing
from looopy.types import event as events
from looopy.types.artifact import Artifact
from looopy.types.event import AgentEvent, Event, is_durable
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_check import check_message
from looopy.types.message_json import (
    message_from_json,
    message_to_json,
    usage_from_json,
    usage_to_json,
)
from looopy.types.storable import MAX_DEPTH, dump, escape

__all__ = [
    "Record",
    "decode_event",
    "decode_message",
    "decode_record",
    "encode_event",
    "encode_message",
    "encode_record",
]

Record: TypeAlias = Artifact | ContextRecord | ContextState | Entry | MessageRecord | TurnRecord
"""The records that a store keeps beside messages and events."""

R = TypeVar("R", Artifact, ContextRecord, ContextState, Entry, MessageRecord, TurnRecord)
_MESSAGES = (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)
_BY_REFERENCE = frozenset({"has_effects", "error"})
"""Fields of durable events that live in one process; see `event_to_json`."""


def encode_message(message: Message) -> str:
    """
    The JSON text of a message.

    Raises:
        ValueRefused: It cannot be stored faithfully.
    """
    return writing.message_text(message)


def decode_message(text: str) -> Message:
    """
    The message in JSON text.

    Raises:
        ValueRefused: It is not a message.
    """
    try:
        return reading.decode_message(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _not_json(error) from error


def encode_event(event: AgentEvent) -> str:
    """
    The JSON text of a durable event, with its `seq` and position if it has them.

    Raises:
        ValueRefused: It cannot be stored faithfully, or is not durable.
    """
    if not is_durable(event):
        raise ValueRefused(f"{event.type} is not durable: no store keeps it", path="/type")
    return dump({"type": event.type, **_written(event, "")})


def decode_event(text: str) -> AgentEvent:
    """
    The event in JSON text.

    Raises:
        ValueRefused: It is not a durable event.
    """
    data = _object(text)
    kind = _kinds().get(data.pop("type", None))
    if kind is None:
        raise ValueRefused("no type of a durable event", path="/type")
    return cast("AgentEvent", _made(kind, data, ""))


def event_from_json(data: Mapping[str, Any]) -> AgentEvent | None:
    """
    The event in an object that `event_to_json` wrote, passing ones included.

    A later version may have written it: a field that is unknown here is left out, and an unknown
    type is `None`.

    Raises:
        ValueRefused: A known field has no value of its type.
    """
    kind: type | None = _all_kinds().get(data.get("type", ""))
    if kind is None:
        return None
    known = _hints(kind)
    given = {name: one for name, one in data.items() if name in known and one is not None}
    return cast("AgentEvent", _made(kind, given, ""))


def encode_record(record: Record) -> str:
    """
    The JSON text of a record.

    Raises:
        ValueRefused: It cannot be stored faithfully.
    """
    return dump(_written(record, ""))


def decode_record(kind: type[R], text: str) -> R:
    """
    The record in JSON text.

    Args:
        kind: `Artifact`, `ContextRecord`, `ContextState`, `Entry`, `MessageRecord` or `TurnRecord`.

    Raises:
        ValueRefused: It is not a record of this kind.
    """
    made: R = _made(kind, _object(text), "")
    return made


# --- writing ------------------------------------------------------------------------------------


def _written(value: Any, path: str) -> dict[str, Any]:
    """The fields of a dataclass, without a `None` that is the default."""
    data: dict[str, Any] = {}
    for one in fields(value):
        found = getattr(value, one.name)
        if one.name in _BY_REFERENCE and isinstance(value, Event):
            continue
        if found is None and one.default is None:
            continue
        data[one.name] = _write(found, f"{path}/{one.name}")
    return data


def _write(value: Any, path: str) -> Any:
    if isinstance(value, _MESSAGES):
        check_message(value, path)
        return message_to_json(value, compact=True)
    if isinstance(value, Usage):
        return usage_to_json(value, compact=True)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueRefused("a moment has a time zone", path=path)
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if path.count("/") > MAX_DEPTH:  # before Python's own limit, in a value of any depth
        raise ValueRefused(f"nested deeper than {MAX_DEPTH} levels", path=path)
    if isinstance(value, Mapping):
        return {key: _write(one, f"{path}/{escape(str(key))}") for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_write(one, f"{path}/{place}") for place, one in enumerate(value)]
    if is_dataclass(value):
        return _written(value, path)
    return value


# --- reading ------------------------------------------------------------------------------------


@cache
def _kinds() -> dict[str, type[Event]]:
    """The durable events, by type."""
    return {
        name: kind
        for name, kind in _all_kinds().items()
        if kind.durable or kind is events.ToolExecutionStart
    }


@cache
def _all_kinds() -> dict[str, type[Event]]:
    """All events, by type."""
    found = [one for one in vars(events).values() if isinstance(one, type)]
    return {kind.type: kind for kind in found if issubclass(kind, Event) and kind is not Event}


@cache
def _hints(kind: type) -> Mapping[str, tuple[Any, Field[Any]]]:
    """The fields of a dataclass, each with its type."""
    hints = get_type_hints(kind)
    without = _BY_REFERENCE if issubclass(kind, Event) else ()
    return {one.name: (hints[one.name], one) for one in fields(kind) if one.name not in without}


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _not_json(error) from error
    if type(data) is not dict:
        raise ValueRefused("a JSON object is needed", path="")
    return data


def _not_json(error: Exception) -> ValueRefused:
    return error if isinstance(error, ValueRefused) else ValueRefused(f"not JSON: {error}", path="")


def _made(kind: type, data: Any, path: str) -> Any:
    """The dataclass of this *kind* in JSON."""
    if type(data) is not dict:
        raise ValueRefused(f"{kind.__name__} is a JSON object", path=path)
    known = _hints(kind)
    for name in data:
        if name not in known:
            raise ValueRefused(f"{kind.__name__} has no field {name!r}", path=_at(path, name))
    given: dict[str, Any] = {}
    for name, (hint, one) in known.items():
        if name in data:
            given[name] = _read(hint, data[name], _at(path, name))
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueRefused(f"{kind.__name__} needs {name}", path=_at(path, name))
    return kind(**given)


def _at(path: str, name: str) -> str:
    return f"{path}/{escape(name)}"


def _read(hint: Any, data: Any, path: str) -> Any:
    """The value of this type in JSON."""
    if hint is Any:
        return data
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if set(arguments) & set(_MESSAGES):
            return _read_at(message_from_json, data, path)
        if data is None and type(None) in arguments:
            return None
        return _read_one_of([one for one in arguments if one is not type(None)], data, path)
    if origin is Literal:
        if data not in arguments:
            raise ValueRefused(f"one of {arguments} is needed", path=path)
        return data
    if origin is tuple and arguments[-1] is not Ellipsis:
        if type(data) is not list or len(data) != len(arguments):
            raise ValueRefused(f"a list of {len(arguments)} values is needed", path=path)
        pairs = zip(arguments, data, strict=True)
        return tuple(_read(of, one, f"{path}/{n}") for n, (of, one) in enumerate(pairs))
    if origin in (tuple, list, Sequence):
        if type(data) is not list:
            raise ValueRefused("a list is needed", path=path)
        return tuple(_read(arguments[0], one, f"{path}/{n}") for n, one in enumerate(data))
    if origin in (dict, Mapping):
        if type(data) is not dict:
            raise ValueRefused("a JSON object is needed", path=path)
        return {key: _read(arguments[1], one, _at(path, key)) for key, one in data.items()}
    return _read_plain(hint, data, path)


def _read_one_of(hints: Sequence[Any], data: Any, path: str) -> Any:
    for hint in hints[:-1]:
        with suppress(ValueRefused):
            return _read(hint, data, path)
    return _read(hints[-1], data, path)


def _read_plain(kind: Any, data: Any, path: str) -> Any:
    if kind in _MESSAGES:
        message = _read_at(message_from_json, data, path)
        if type(message) is kind:
            return message
        raise ValueRefused(f"{kind.__name__} is needed", path=path)
    if kind is Usage:
        return _read_at(usage_from_json, data, path)
    if issubclass(kind, datetime):
        return _moment(data, path)
    if issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise ValueRefused(f"{data!r} is not a {kind.__name__}", path=path) from None
    if is_dataclass(kind):
        return _made(cast("type", kind), data, path)
    if type(data) is kind or (kind is float and type(data) is int):
        return data
    raise ValueRefused(f"{kind.__name__} is needed, not {type(data).__name__}", path=path)


def _moment(data: Any, path: str) -> datetime:
    try:
        found = datetime.fromisoformat(data)
    except (ValueError, TypeError):
        found = None
    if found is None or found.tzinfo is None:
        raise ValueRefused("a moment is text in ISO 8601 with a time zone", path=path)
    return found


def _read_at(read: Any, data: Any, path: str) -> Any:
    """A part that has a reader of its own, with the place of the whole before its path."""
    try:
        return read(data)
    except ValueRefused as error:
        inner = (error.path or "").removeprefix("/usage" if read is usage_from_json else "")
        raise ValueRefused(error.message, path=f"{path}{inner}") from None
