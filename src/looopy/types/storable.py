"""
Values that may be stored: checked once, before anything is written.

`dump` checks every value, refuses it if some backend would change or reject it, and serialises it
once. Memory, SQLite and Postgres keep the same text, so all three read back an equal value or
refuse it alike:

- text must be encodable as UTF-8 and hold no NUL: lone surrogates and NUL break Postgres, printing
  and every stream after they were stored;
- numbers must be finite and integers fit 64 bits;
- objects have string keys; nesting stays within 64 levels; a body stays within 16 MiB.

Values from tools and models are repaired (`repair`) on arrival, before the model or a subscriber
sees them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from looopy.errors import ValueRefused

MAX_DEPTH = 64
MAX_BODY_BYTES = 16 * 1024 * 1024
SURELY_SHORT = MAX_BODY_BYTES // 8
"""Characters that fit a body however they are written: one takes six bytes of JSON at most."""
MAX_NAME_BYTES = 512
"""
For the name of a tenant or an actor. An index of Postgres takes a tenant, with ids, in 2,704 bytes.
"""
MAX_MEDIA_TYPE = 255
"""Characters of a media type: RFC 6838 (4.2) has 127 on each side of the slash."""
MAX_INT = 2**63
"""The smallest whole number that is too large to be stored."""
_LONGEST_NUMBER = 1024  # bits
_SHORT_ESCAPES = b'"\\\b\f\n\r\t'  # two bytes of JSON; other control characters take six
_LONG_ESCAPES = bytes(byte for byte in range(0x20) if byte not in _SHORT_ESCAPES)


def _make_encode() -> Callable[[Any], str]:
    """
    The encoder of compact JSON, made once: `JSONEncoder.encode` makes such an encoder at each call.

    It does not search for cycles, because too deep a nesting has been refused by then.
    """
    make = getattr(json.encoder, "c_make_encoder", None)  # there in CPython
    default = dict  # any other Mapping
    if make is None:
        separators = (",", ":")
        return json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=separators, default=default
        ).encode
    quote = json.encoder.encode_basestring
    encode = make(
        markers=None,
        default=default,
        encoder=quote,
        indent=None,
        key_separator=":",
        item_separator=",",
        sort_keys=False,
        skipkeys=False,
        allow_nan=False,
    )
    return lambda value: "".join(encode(value, 0))


_encode = _make_encode()


def dump(value: Any, path: str = "") -> str:
    """
    Serialise *value* as compact JSON text that every backend keeps unchanged.

    Args:
        value: Anything that JSON can express; tuples become lists.
        path: JSON pointer of *value*, for the error.

    Raises:
        ValueRefused: `path` names the place; nothing was written.
    """
    if type(value) is dict and not value:  # as most values beside a turn
        return "{}"
    if not is_plain(value, 1):
        _check(value, path, 1)
    text = _encode(value)
    # A character is at most 4 bytes, so most values need no second encoding to be measured.
    if len(text) * 4 > MAX_BODY_BYTES and (size := len(text.encode())) > MAX_BODY_BYTES:
        raise _refused(
            _largest_part(value, path),
            f"{size:,} bytes are more than the {MAX_BODY_BYTES:,} that one value may have;"
            " store large content as an artifact",
        )
    return text


def _largest_part(value: Any, path: str) -> str:
    """The place of the part that makes *value* too long; its own if no part has most of it."""
    while True:
        parts: list[tuple[Any, Any]] = []
        if isinstance(value, Mapping):
            parts = list(value.items())
        elif isinstance(value, (list, tuple)):
            parts = list(enumerate(value))
        if not parts:
            return path
        whole = _most_bytes(value)
        key, value = max(parts, key=lambda part: _most_bytes(part[1]))
        if _most_bytes(value) * 2 <= whole:
            return path
        path = f"{path}/{escape(str(key))}"


def check(value: Any, path: str = "") -> None:
    """
    Refuse what `dump` refuses, for a value that is serialised later or not at all.

    The text is made only of a value that is too long, or nearly so.

    Args:
        path: JSON pointer of *value*, for the error.

    Raises:
        ValueRefused: `path` names the place.
    """
    if type(value) is dict and not value:
        return
    if not is_plain(value, 1):
        _check(value, path, 1)
    if _most_bytes(value) > MAX_BODY_BYTES < _most_bytes(value, _text_bytes):
        dump(value, path)


def _bound(text: str) -> int:
    return 6 * len(text) + 2  # a control character takes six


def _text_bytes(text: str) -> int:
    """The bytes of *text* as JSON, counted in a third of the time that it takes to make it."""
    raw = text.encode()
    escaped = len(raw) - len(raw.translate(None, _SHORT_ESCAPES + _LONG_ESCAPES))
    control = len(raw) - len(raw.translate(None, _LONG_ESCAPES)) if escaped else 0
    return len(raw) + escaped + 4 * control + 2


def _most_bytes(value: Any, of_text: Callable[[str], int] = _bound) -> int:
    """At least as many bytes as the JSON of *value* has, with a comma after it."""
    if isinstance(value, str):
        return of_text(value) + 1
    if isinstance(value, Mapping):
        return 3 + sum(of_text(key) + 1 + _most_bytes(item, of_text) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return 3 + sum(_most_bytes(item, of_text) for item in value)
    return 32


def check_text(value: str, path: str) -> None:
    """Raise `ValueRefused` for text with NUL or a lone surrogate."""
    if "\0" in value:
        raise _refused(path, "text must not contain NUL (U+0000)")
    if not is_unicode(value):
        raise _refused(path, "text must be valid Unicode; it holds a lone surrogate")


def is_media_type(value: str) -> bool:
    """True for a media type as RFC 6838 (4.2) and RFC 9110 (8.3.1) write it, of usual length."""
    # Built here: most programs check few, and `re` keeps what it compiled.
    name = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
    bare = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
    quoted = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
    pattern = f"{name}/{name}(?: *; *{bare}=(?:{bare}|{quoted}))*"
    return len(value) <= MAX_MEDIA_TYPE and re.fullmatch(pattern, value) is not None


def check_media_type(value: object, path: str) -> None:
    """Raise `ValueRefused` unless `is_media_type`: a server may send it as a header."""
    if not isinstance(value, str):
        raise _refused(path, f"a media type is text, not {type(value).__name__}")
    if not is_media_type(value):
        raise _refused(
            path,
            f"a media type is type/subtype, such as text/plain; charset=utf-8, with at most"
            f" {MAX_MEDIA_TYPE} characters",
        )


def check_name(value: object, what: str, path: str) -> None:
    """
    Refuse a value that cannot be the name of an actor or a tenant.

    Args:
        value: The value to check.
        what: Such as "an actor id", for the error.
        path: Its place, for the error.

    Raises:
        ValueRefused: It is not text of at most `MAX_NAME_BYTES` bytes that can be stored.
    """
    if not isinstance(value, str):
        raise _refused(path, f"{what} is text, not {type(value).__name__}")
    check_text(value, path)
    # A character is at most 4 bytes.
    if len(value) * 4 > MAX_NAME_BYTES and len(value.encode()) > MAX_NAME_BYTES:
        raise _refused(path, f"{what} has at most {MAX_NAME_BYTES} bytes in UTF-8")


def check_actor(actor_id: object) -> None:
    """Raise `ValueRefused` as `check_name` for an actor; `None` is a turn without one."""
    if actor_id is not None:
        check_name(actor_id, "an actor id", "/actor_id")


def check_process(process: object) -> None:
    """Raise `ValueRefused` as `check_name` for a process; `None`: it has no name."""
    if process is not None:
        check_name(process, "the name of a process", "/process")


def check_number(value: object, path: str, way_out: str, *, least: int | None = None) -> None:
    """
    Refuse what is not a whole number.

    Args:
        value: The value to check.
        path: Its place, for the error.
        way_out: What to pass instead, for the error.
        least: The smallest number that is meant; by default none is too small.

    Raises:
        ValueRefused: It is not a whole number, is below *least*, or has hundreds of digits.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refused(path, f"{type(value).__name__} is not a whole number: {way_out}")
    if least is not None and value < least:
        raise _refused(path, f"the number is below {least}: {way_out}")
    if value.bit_length() > _LONGEST_NUMBER:  # no error could name it
        raise _refused(path, f"the number is too large: {way_out}")


def check_after(after: object) -> None:
    """Raise `ValueRefused` unless it is a whole number."""
    if type(after) is not int:
        check_number(after, "/after", "pass the number of the last one that you have, or 0")


def check_after_name(after: object) -> None:
    """Raise `ValueRefused` unless it is text."""
    if not isinstance(after, str):
        way_out = 'pass the name of the last one that you have, or ""'
        raise _refused("/after", f"{type(after).__name__} is not text: {way_out}")


def check_version(version: object) -> None:
    """Raise `ValueRefused` unless it is a whole number, or `None` for the newest version."""
    if version is not None:
        check_number(version, "/version", "pass the number of a version, or None for the newest")


def check_turn(turn: object, path: str = "/turn") -> None:
    """Raise `ValueRefused` unless it is a whole number, or `None` for any turn."""
    if turn is not None:
        check_number(turn, path, "pass the number of a turn, or None for any")


def check_limit(limit: object, *, optional: bool = True) -> None:
    """Raise `ValueRefused` unless it is a whole number from 0, or `None` if *optional*."""
    if limit is None and optional:
        return
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise _refused("/limit", "a limit is a whole number from 0")


def is_plain(value: Any, depth: int) -> bool:
    """
    True if *value* can certainly be stored, decided quickly; false if it needs a closer check.

    Its length is not checked. It is *depth* levels deep in a stored value.

    Nearly all stored values are valid and made of Python's own types, so this names no place and
    builds no path. It must never be true of a value that `_check` would refuse.
    """
    kind = type(value)
    if kind is str:
        return "\0" not in value and (value.isascii() or is_unicode(value))
    if kind is dict:
        if depth > MAX_DEPTH:
            return False
        for key, item in value.items():
            if type(key) is not str or "\0" in key or not key.isascii():
                return False
            # Most members are short texts: no call for those.
            if type(item) is str and item.isascii():
                if "\0" in item:
                    return False
            elif not is_plain(item, depth + 1):
                return False
        return True
    if kind is list or kind is tuple:
        if depth > MAX_DEPTH:
            return False
        for item in value:  # noqa: SIM110 - `all` would make a generator
            if not is_plain(item, depth + 1):
                return False
        return True
    if kind is int:
        fits: bool = -MAX_INT <= value < MAX_INT
        return fits
    if kind is float:
        return math.isfinite(value)
    return value is None or value is True or value is False


def is_within_levels(value: Any, levels: int) -> bool:
    """True if JSON *value* is nested at most *levels* deep; looked at level by level."""
    level = [value] if isinstance(value, (list, Mapping)) else []
    for _ in range(levels):
        parts = [part.values() if isinstance(part, Mapping) else part for part in level]
        level = [item for part in parts for item in part if isinstance(item, (list, Mapping))]
        if not level:
            return True
    return False


def is_unicode(text: str) -> bool:
    """True if *text* holds no lone surrogate, so that it can be encoded."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(value: Any, path: str, depth: int) -> None:
    if isinstance(value, str):
        check_text(value, path)
    elif value is None or isinstance(value, bool):
        pass
    elif isinstance(value, int):
        if not -MAX_INT <= value < MAX_INT:
            raise _refused(path, "the integer does not fit 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(path, "the number must be finite")
    elif depth > MAX_DEPTH:
        raise _refused(path, f"nested deeper than {MAX_DEPTH} levels")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise _refused(path, f"object keys must be strings, not {type(key).__name__}")
            check_text(key, path)
            _check(item, f"{path}/{escape(key)}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check(item, f"{path}/{i}", depth + 1)
    else:
        raise _refused(path, f"{type(value).__name__} is not a JSON value")


def _refused(path: str, why: str) -> ValueRefused:
    """Name the place, never the value: it may be secret, huge or unprintable."""
    return ValueRefused(f"{path or 'value'}: {why}", path=path)


def escape(key: str) -> str:
    """A key as a step of a JSON pointer: RFC 6901, section 3."""
    return key.replace("~", "~0").replace("/", "~1")


def repair(text: str) -> str:
    """
    Text of a tool or a model that can be stored and sent; *text* itself if it can be.

    NUL and lone surrogates become U+FFFD.
    """
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return _joined(text)


def repair_piece(text: str) -> tuple[str, str]:
    """
    Make a piece of a growing text valid Unicode.

    Args:
        text: The piece, after the half that the piece before it left over.

    Returns:
        The piece, and the half of a character at its end, which waits for the next piece.
    """
    if "\ud800" <= text[-1:] <= "\udbff":
        return _joined(text[:-1]), text[-1]
    return _joined(text), ""


def _joined(text: str) -> str:
    """
    *text* as valid Unicode.

    Two halves of a character become that character: JSON writes one beyond U+FFFF as two
    surrogates, and a server may send each in a piece of its own. A lone one becomes U+FFFD.
    """
    if is_unicode(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def repair_json(value: Any, depth: int = 1) -> Any:
    """
    A storable copy of a JSON value from a tool or a model: text repaired, other values replaced by
    words.

    Returns *value* itself if it needs no repair.
    """
    if is_plain(value, depth):
        return value
    try:
        _check(value, "", depth)
    except ValueRefused:
        return _repaired(value, depth)
    return value


def _repaired(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return repair(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        fits = -MAX_INT <= value < MAX_INT if isinstance(value, int) else math.isfinite(value)
        return value if fits else f"<{type(value).__name__} that cannot be stored>"
    if depth > MAX_DEPTH:
        return "<nested too deep to be stored>"
    if isinstance(value, Mapping):
        return {
            repair(k if isinstance(k, str) else str(_repaired(k, depth + 1))): _repaired(
                v, depth + 1
            )
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_repaired(v, depth + 1) for v in value]
    return f"<{type(value).__name__} that cannot be stored>"
