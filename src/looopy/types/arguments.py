"""Reads the arguments of a tool call as the model wrote them, up to what every store can keep."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from looopy.types.storable import MAX_INT, is_within_levels

MAX_ARGUMENT_DEPTH = 60
"""Levels of nesting in a call's arguments; a stored message adds a few and stores take 64."""


def read_json(raw: str) -> Any:
    """
    The JSON value in *raw*.

    Raises:
        ValueError: It is not valid, or no store could keep it. The words follow "they are".
    """
    value, end = read_first(raw)
    if end < len(raw):
        raise ValueError(f"not valid JSON (Extra data: char {end})")
    return value


def read_first(raw: str) -> tuple[Any, int]:
    """
    The JSON value that *raw* begins with, and the place of the next character that is not a space.

    Raises:
        ValueError: As `read_json` does.
    """
    try:
        value, end = _DECODER.raw_decode(raw, _after_spaces(raw, 0))
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error})") from None
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None
    if not is_within_levels(value, MAX_ARGUMENT_DEPTH):
        raise ValueError(f"nested deeper than {MAX_ARGUMENT_DEPTH} levels")
    return value, _after_spaces(raw, end)


def _after_spaces(raw: str, place: int) -> int:
    return len(raw) - len(raw[place:].lstrip(" \t\n\r"))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not valid JSON ({name} is not a JSON number)")


def _read_int(digits: str) -> int:
    # Python reads no more than some thousand digits.
    value = int(digits) if len(digits) < 32 else MAX_INT
    if not -MAX_INT <= value < MAX_INT:
        raise ValueError("too large: an integer does not fit 64 bits")
    return value


def _read_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("too large: a number does not fit 64 bits")
    return value


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_int=_read_int, parse_float=_read_float
)
