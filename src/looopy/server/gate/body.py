"""
Reads the JSON body of a request, and refuses what would harm: before it is read, or before it is
used.

A body is measured while it streams in. Its type has to be `application/json`, because a browser
sends any other type across origins without asking. Its values must be storable.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from looopy.errors import ValueRefused
from looopy.server.gate.limits import Limits
from looopy.server.problems import Problem
from looopy.types.storable import check, escape

# In a body without its escapes. Without its end, too: or each quote in such a text would be tried
# up to the end of the body.
_STRING = re.compile(r'"[^"]*+"?')
_LONG = 2_000_000  # characters; most servers refuse so many
_Placed: TypeAlias = tuple[Any, Any]
"""A value, and its place: the placed value around it with the key there, or `None`."""
_CLOSE = {"Connection": "close"}  # or the rest of the body would come as another request


async def read_json(request: Request, limits: Limits, *, may_miss: bool = False) -> dict[str, Any]:
    """
    The body of *request*: a JSON object whose values can be stored.

    Args:
        may_miss: A body without a byte is an empty object, however its header announces it.

    Raises:
        Problem: 415 for another type, 413 or 408 for a body that is too large or too slow, 400 for
            any other value; `path` names the place.
    """
    if not may_miss:
        _check_type(request)
    text = await _read(request, limits)
    if may_miss:
        if not text:
            return {}
        _check_type(request)
    if len(text) > _LONG:  # step by step, and the event loop runs between two of them
        return await asyncio.to_thread(_object_in, text, limits)
    return _object_in(text, limits)


def _object_in(text: str, limits: Limits) -> dict[str, Any]:
    _check_count(text, limits)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise too_deep(limits) from None
    except ValueError as error:
        raise Problem(f"the body is invalid JSON: {error}", code="invalid_json") from None
    _check_shape(value, limits)
    try:
        check(value)
    except ValueRefused as error:
        raise Problem(str(error), code="value_refused", path=error.path) from None
    if not isinstance(value, dict):
        raise Problem("the body must be a JSON object", code="invalid_request", path="")
    return value


def has_body(scope: Scope) -> bool:
    """True if a request announces a body after its header; it is not read for that."""
    headers = dict(scope["headers"])
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


def json_or_text(text: str) -> Any:
    """The value of a text that is JSON and can be stored; else the text itself."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        check(value)
    except (ValueError, ValueRefused, RecursionError):
        return text
    return value


def too_deep(limits: Limits, path: str | None = None) -> Problem:
    """The problem of a body with too many levels."""
    text = f"the body has more than {limits.json_depth} levels"
    return Problem(text, code="too_deep", path=path)


def _check_type(request: Request) -> None:
    kind, _, more = request.headers.get("content-type", "").partition(";")
    charset = more.strip().lower().removeprefix("charset=").strip('"')
    encoded = request.headers.get("content-encoding", "identity").lower() != "identity"
    if kind.strip().lower() != "application/json" or charset not in ("", "utf-8") or encoded:
        raise Problem(
            "send the body as Content-Type: application/json, in UTF-8 and not compressed",
            status=415,
            code="unsupported_media_type",
            headers=_CLOSE,
        )


async def _read(request: Request, limits: Limits) -> str:
    too_large = Problem(
        f"the body has more than {limits.body_bytes:,} bytes",
        status=413,
        code="too_large",
        headers=_CLOSE,
    )
    said = request.headers.get("content-length", "")
    if said.isascii() and said.isdigit() and (len(said) > 18 or int(said) > limits.body_bytes):
        raise too_large
    chunks, size = [], 0
    try:
        async with asyncio.timeout(limits.body_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.body_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise Problem(
            f"the body did not arrive within {limits.body_s:g} s",
            status=408,
            code="timeout",
            headers=_CLOSE,
        ) from None
    except ClientDisconnect:
        raise Problem("the client left before its body had arrived", code="disconnected") from None
    try:
        return b"".join(chunks).decode()
    except UnicodeDecodeError:
        raise Problem("the body is not valid UTF-8", code="invalid_json") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_count(text: str, limits: Limits) -> None:
    """
    Check how many values there are, before they are made: a small body can hold many.

    Parsing and checking hundreds of thousands of them would stop the event loop for a second.
    """
    if _most_values(text) <= limits.json_values:
        return
    bare = text.replace("\\\\", "").replace('\\"', "")
    if _most_values(_STRING.sub("", bare)) > limits.json_values:
        raise Problem(f"the body has more than {limits.json_values:,} values", code="too_deep")


def _most_values(text: str) -> int:
    return 1 + text.count(",") + text.count("[") + text.count("{")


def _check_shape(value: Any, limits: Limits) -> None:
    """Check levels and keys without recursion, level by level."""
    level: list[_Placed] = [(value, None)]
    for _ in range(limits.json_depth):
        below: list[_Placed] = []
        for one in level:
            found, _place = one
            if isinstance(found, dict):
                if len(found) > limits.json_keys:
                    text = f"an object has more than {limits.json_keys:,} keys"
                    raise Problem(text, code="too_deep", path=_path_of(one))
                parts: Iterable[tuple[Any, Any]] = found.items()
            else:
                parts = enumerate(found) if isinstance(found, list) else ()
            below += [(part, (one, key)) for key, part in parts if isinstance(part, (dict, list))]
        level = below
        if not level:
            return
    raise too_deep(limits, _path_of(level[0]))


def _path_of(placed: _Placed) -> str:
    """The JSON pointer of a value, made only for an error."""
    path, place = "", placed[1]
    while place is not None:
        path = f"/{escape(str(place[1]))}{path}"
        place = place[0][1]
    return path
