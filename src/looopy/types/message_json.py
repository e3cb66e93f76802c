"""
Messages as JSON: what stores keep, and what pi and pipy-ai write, read back equal or refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from looopy.errors import ValueRefused
from looopy.types.message import (
    NO_COST,
    Block,
    Citation,
    Cost,
    CustomMessage,
    Message,
    StopReason,
    TextContent,
    TokenLogprob,
    Usage,
    now_ms,
)
from looopy.types.message_fields import (
    ANY,
    BLOCKS,
    BLOCKS_OF,
    CITATIONS,
    COST,
    DOLLAR,
    FIELDS,
    LOGPROBS,
    ROLES,
    STOP,
    TEXT_OR_BLOCKS,
    USAGE,
    Kind,
)

T = TypeVar("T")


# --- writing --------------------------------------------------------------------------------------


def message_to_json(message: Message, *, compact: bool = False) -> dict[str, Any]:
    """
    Write *message* as pi's JSON object.

    Args:
        message: Any of the four message types.
        compact: Leave out fields that hold their default, as the stores do; `message_from_json`
            fills them in again.
    """
    kind = ROLES.get(message.role, CustomMessage)
    return {"role": message.role, **_written(kind, message, compact=compact)}


def usage_to_json(usage: Usage, *, compact: bool = False) -> dict[str, Any]:
    """Write *usage* as pi's JSON object, an unknown cost as null; compact leaves out zeros."""
    return _written(Usage, usage, compact=compact)


def _written(of: type, value: Any, *, compact: bool) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, field in FIELDS[of].items():
        found: Any = getattr(value, name)
        default = field.default
        leave = field.left_out == "always" or (compact and field.left_out == "compact")
        if name == "role" or (leave and type(found) is type(default) and found == default):
            continue
        kind = field.kind
        if kind is USAGE:
            found = _written(Usage, found, compact=compact)
        elif kind is COST:
            found = found and _written(Cost, found, compact=compact)
        elif kind is STOP:
            found = _stop_reason(found).value
        elif kind is CITATIONS:
            found = [_written(Citation, one, compact=True) for one in found]
        elif kind is LOGPROBS:
            found = [_logprob_to_json(one) for one in found]
        elif kind is BLOCKS or (kind is TEXT_OR_BLOCKS and not isinstance(found, str)):
            found = _blocks(found, compact, BLOCKS_OF[of])
        data[name] = found
    return data


def _blocks(blocks: Sequence[Block], compact: bool, allowed: tuple[type, ...]) -> list[Any]:
    found = []
    for i, block in enumerate(blocks):
        kind = next((one for one in allowed if isinstance(block, one)), None)
        if kind is None:
            # A value that could not be read back is not written.
            named = type(block).__name__
            raise _refused(f"/content/{i}", f"{named} is not a block of this message")
        found.append({"type": block.type, **_written(kind, block, compact=compact)})
    return found


def _logprob_to_json(one: TokenLogprob) -> dict[str, Any]:
    data: dict[str, Any] = {"token": one.token, "logprob": one.logprob}
    if one.top:
        data["top"] = [{"token": other.token, "logprob": other.logprob} for other in one.top]
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
    role = data.get("role")
    if not isinstance(role, str) or not role:
        raise _refused("/role", "a message needs a role")
    kind: type[Message] = ROLES.get(role, CustomMessage)
    given = {**data, "timestamp": now_ms()} if data.get("timestamp") is None else data
    if "content" in data and data["content"] is None and kind is not CustomMessage:
        raise _refused("/content", "must be text or a list of blocks")
    return _read(kind, given)


def usage_from_json(data: Mapping[str, Any], path: str = "/usage") -> Usage:
    """Read a usage object; missing counts are zero."""
    if not isinstance(data, Mapping):
        raise _refused(path, "must be an object")
    return _read(Usage, data, path)


def _refused(path: str, why: str) -> ValueRefused:
    return ValueRefused(f"{path or 'message'}: {why}", path=path)


def _read(of: type[T], data: Mapping[str, Any], path: str = "") -> T:
    """An instance of *of*; a field that is null or missing has its default."""
    given: dict[str, Any] = {}
    for name, field in FIELDS[of].items():
        kind, here = field.kind, f"{path}/{name}"
        value = data.get(name)
        if kind is COST:  # a missing one is not an unknown one
            given[name] = _cost(data.get(name, {}), here)
        elif value is None and (kind is not ANY or name not in data):
            continue
        elif kind in _READERS:
            given[name] = _READERS[kind](value, here)
        elif kind is BLOCKS or kind is TEXT_OR_BLOCKS:
            plain = kind is TEXT_OR_BLOCKS and isinstance(value, str)
            given[name] = value if plain else _read_blocks(value, _TYPES[of])
        elif not isinstance(value, kind.json) or (kind.json is int and isinstance(value, bool)):
            raise _refused(here, f"must be {kind.name}, not {type(value).__name__}")
        else:
            given[name] = value
    return of(**given)


def _cost(data: Any, path: str) -> Cost | None:
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise _refused(path, "must be an object")
    return _read(Cost, data, path) if data else NO_COST


def _number(value: Any, path: str) -> float:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise _refused(path, "must be a number")


def _stop_reason(value: Any) -> StopReason:
    try:
        return StopReason(value)
    except ValueError:
        raise _refused("/stop_reason", f"{value!r} is not a stop reason") from None


def _places(value: Any, path: str) -> list[tuple[Any, str]]:
    if not isinstance(value, (list, tuple)):
        raise _refused(path, "must be a list")
    return [(one, f"{path}/{i}") for i, one in enumerate(value)]


def _citations(value: Any, path: str) -> tuple[Citation, ...]:
    found = _places(value, path)
    for one, here in found:
        if not isinstance(one, Mapping):
            raise _refused(here, "must be an object")
    return tuple(_read(Citation, one, here) for one, here in found)


def _logprobs(value: Any, path: str) -> tuple[TokenLogprob, ...]:
    found = []
    for one, here in _places(value, path):
        if not isinstance(one, Mapping) or not isinstance(token := one.get("token"), str):
            raise _refused(here, "must be an object with a token")
        number = _number(one.get("logprob") or 0, f"{here}/logprob")
        top = one.get("top")
        found.append(
            TokenLogprob(token, number, _logprobs(() if top is None else top, f"{here}/top"))
        )
    return tuple(found)


_READERS: Final[Mapping[Kind, Any]] = {
    DOLLAR: _number,
    STOP: lambda value, _: _stop_reason(value or "stop"),
    USAGE: lambda value, path: usage_from_json(value or {}, path),
    CITATIONS: _citations,
    LOGPROBS: _logprobs,
}
_TYPES: Final[Mapping[type, Mapping[str, type[Any]]]] = {
    of: {kind.type: kind for kind in kinds} for of, kinds in BLOCKS_OF.items()
}


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
            raise _refused(path, f"{named!r} is not a block of this message")
        blocks.append(_read(kind, item, path))
    return tuple(blocks)
