"""
Values that some database, encoder or stream changes or chokes on.

Each is kept exactly, or refused with the path to it before anything is written. `text` values fit
where a string belongs, the others where any JSON value does.
"""

from __future__ import annotations

import math
from typing import Any


def nested(depth: int) -> Any:
    """Lists within lists, *depth* of them."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


KEPT_TEXT: dict[str, str] = {
    "empty": "",
    "blank": " \t\r\n ",
    "escape": "\x1b[2J\x07\x7f\x9b",
    "byte order mark": "\ufeffhello",
    "right to left": "\u202eolleh\u202c",
    "line separator": "a\u2028b\u2029c\u0085d",
    "beyond the basic plane": "😀🧑‍🚀\U0001d4b3",
    "not normalised": "e\u0301 and \u00e9",
    "replacement character": "\ufffd\uffff",
    "quotes": "'; DROP TABLE looopy_messages; --\"\\",
    "parameters": ":tenant ? %s {x} $1",
    "number alike": "007",
    "null alike": "null",
    "one megabyte": "é" * 524_288,
}

REFUSED_TEXT: dict[str, str] = {
    "nul": "a\x00b",
    "lone surrogate": "a\ud800b",
    "lone low surrogate": "\udfff",
    "seventeen megabytes": "x" * 17_000_000,
}

KEPT: dict[str, Any] = {
    "negative zero": -0.0,
    "largest float": 1.7976931348623157e308,
    "1e308": 1e308,
    "smallest float": 5e-324,
    "a tenth": 0.1,
    "float of an integer": 1.0,
    "largest integer": 2**63 - 1,
    "smallest integer": -(2**63),
    "beyond a float": 2**53 + 1,
    "key order": {"b": 1, "a": 2, "10": 3, "9": 4},
    "empty key": {"": {"": []}},
    "keys that look like paths": {'a"."b': 1, "x/y~z": 2, "$.a[0]": 3},
    "fifty deep": nested(50),
    "truth": [True, False, None],
}

REFUSED: dict[str, Any] = {
    "not a number": math.nan,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "2 to the 63": 2**63,
    "2 to the 70": -(2**70),
    "five thousand digits": 10**5000,
    "five thousand deep": nested(5000),
    "integer keys": {1: "x"},
    "nul in a key": {"a\x00": 1},
    "surrogate in a key": {"\ud800": 1},
    "bytes": b"x",
    "a set": {1},
    "an object": object(),
}
