"""pydantic's `model_dump`, which users of pi and pipy-agent call, for dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal

from looopy.errors import ValueRefused


class Dumps:
    """
    Gives a class `model_dump`.

    A class whose dump differs from its fields has a method `__dump__`, which returns them.
    """

    __slots__ = ()

    def model_dump(
        self, *, mode: Literal["python", "json"] = "python", exclude_none: bool = False
    ) -> dict[str, Any]:
        """
        The fields as values of JSON, whatever the mode; `type` or `role` comes first.

        Fields without a `repr`, such as keys, are left out. An object that has no fields stays as
        it is.

        Args:
            exclude_none: Leave out fields that are `None`, at every depth.

        Raises:
            ValueRefused: There is no such mode.
        """
        if mode not in ("python", "json"):
            raise ValueRefused("mode is 'python' or 'json'", path="")
        shown: dict[str, Any] = _dumped(self, exclude_none=exclude_none)
        return shown


def _dumped(value: Any, *, exclude_none: bool) -> Any:
    if isinstance(value, (list, tuple)):
        return [_dumped(one, exclude_none=exclude_none) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Enum):
        return value.value
    data = _shallow(value)
    if data is None:
        return value
    return {
        key: _dumped(one, exclude_none=exclude_none)
        for key, one in data.items()
        if not (exclude_none and one is None)
    }


def _shallow(value: Any) -> Mapping[Any, Any] | None:
    """The fields of *value*, or its items; `None` if it has neither."""
    if hasattr(value, "__dump__"):
        data: Mapping[Any, Any] = value.__dump__()
        return data
    if isinstance(value, Mapping):
        return value
    if not is_dataclass(value) or isinstance(value, type):
        return None
    named = {name: getattr(value, name) for name in ("role", "type") if hasattr(value, name)}
    return named | {one.name: getattr(value, one.name) for one in fields(value) if one.repr}
