"""
Repairs of obvious slips in arguments: a number written as text, a truth value written as a word.

Nothing is coerced unless a tool asks for it (`coerce=True`), and then only single values with a
plain meaning. The schema decides where: each value of a wrong type is tried as one of the types
that its place allows. The model's own arguments stay unchanged; the tool gets a copy.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from looopy.tools.schema import validator_of

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

    from looopy.tools.base import Tool

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS = {"true": True, "false": False}
_MOST_DIGITS = 400
_ROUNDS = 8  # alternatives within alternatives show up one after the other


def coerce(tool: Tool, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    *arguments*, with single values as the schema of *tool* wants them where they can be read so.

    Values that cannot be are left for `validate` to explain.
    """
    validator = validator_of(tool)
    coerced: dict[str, Any] | None = None
    for _ in range(_ROUNDS):
        changed = False
        try:
            errors = list(validator.iter_errors(dict(arguments) if coerced is None else coerced))
        except ValueError:  # too deep, or not JSON
            break
        for path, value, types in _wrong_types(errors):
            meant = _as_one_of(value, types)
            if meant is None or not path:
                continue
            coerced = copy.deepcopy(dict(arguments)) if coerced is None else coerced
            changed = _put(coerced, path, value, meant) or changed
        if not changed:
            break
    return arguments if coerced is None else coerced


def _wrong_types(
    errors: Sequence[ValidationError],
) -> Iterator[tuple[list[str | int], Any, Sequence[str]]]:
    for error in errors:
        kind: Any = error.kind
        if kind.name == "type":
            yield list(error.instance_path), error.instance, kind.types
        elif kind.name in ("anyOf", "oneOfNotValid"):
            for branch in kind.context:
                yield from _wrong_types(branch)


def _as_one_of(value: Any, types: Sequence[str]) -> Any:
    """*value* as one of *types*, or `None` if it means none of them."""
    if isinstance(value, str):
        text = value.strip()
        if "boolean" in types and text.casefold() in _WORDS:
            return _WORDS[text.casefold()]
        if len(text) <= _MOST_DIGITS and _NUMBER.fullmatch(text):
            number = float(text)
            if "integer" in types and number.is_integer():
                return int(text) if text.lstrip("+-").isdigit() else int(number)
            if "number" in types and math.isfinite(number):
                return number
    elif "string" in types and isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    elif "boolean" in types and value in (0, 1) and not isinstance(value, (list, dict)):
        return bool(value)
    return None


def _put(into: Any, path: Sequence[str | int], old: Any, new: Any) -> bool:
    """Put *new* where *old* was; false when another alternative has changed it already."""
    for part in path[:-1]:
        into = into[part]
    if into[path[-1]] != old or type(into[path[-1]]) is not type(old):
        return False
    into[path[-1]] = new
    return True
