"""
Checks the fields of a body, and reads those of a query, by the types that describe them.

A shape has the type of each field by its name, with the notes of `looopy.server.models`. A field of
a body is required unless its type takes `None`; each parameter of a query may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

from starlette.requests import Request

from looopy.server.problems import Problem
from looopy.types.storable import escape

Shape: TypeAlias = Mapping[str, Any]
UNIONS: Final = (Union, UnionType)
_WORDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    str: "text",
    dict: "an object",
    Any: "a value",
}


def invalid(path: str, text: str) -> Problem:
    """The problem of a field at *path*; *text* goes on from its name."""
    return Problem(f"{path[1:]} {text}", code="invalid_request", path=path)


def check_body(body: Mapping[str, Any], shape: Shape, path: str = "") -> None:
    """
    Refuse a body with a field that is unknown, missing or of another type.

    Raises:
        Problem: 400 `unknown_field` or `invalid_request`; `path` names the field.
    """
    for name in body:
        if name not in shape:
            raise Problem(
                f"unknown field {name!r}: this request takes {', '.join(sorted(shape)) or 'none'}",
                code="unknown_field",
                path=f"{path}/{escape(name)}",
            )
    for name, kind in shape.items():
        if name not in body and is_required(kind):
            raise invalid(f"{path}/{name}", f"is missing: {_words(kind)}")
        if not _fits(body.get(name), kind):
            raise invalid(f"{path}/{name}", f"must be {_words(kind)}")
        for one in alternatives(kind):
            if is_typeddict(one) and isinstance(body.get(name), dict):
                check_body(body[name], one.__annotations__, f"{path}/{name}")


def is_required(kind: Any) -> bool:
    """True if a field of a body has to be there."""
    return kind is Any or not _fits(None, kind)


def read_query(request: Request, shape: Shape) -> dict[str, Any]:
    """
    The parameters of the query that are there, as values of their types.

    Raises:
        Problem: 400 `invalid_request`; `path` names the parameter.
    """
    if not shape or not request.scope["query_string"]:
        return {}
    given = request.query_params
    return {
        name: _read(given.getlist(name), kind, f"/{name}")
        for name, kind in shape.items()
        if name in given
    }


def whole(text: str, path: str) -> int:
    """
    The number that a *text* is, such as a part of an address.

    Raises:
        Problem: 400 `invalid_request`.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise invalid(path, "must be a whole number")
    return int(text)


def alternatives(kind: Any) -> list[Any]:
    """The types of a union, or the one type, without notes."""
    if get_origin(kind) is Annotated:
        return alternatives(get_args(kind)[0])
    if get_origin(kind) in UNIONS:
        return [one for part in get_args(kind) for one in alternatives(part)]
    return [kind]


def _fits(value: Any, kind: Any) -> bool:
    return any(_is(value, one) for one in alternatives(kind))


def _is(value: Any, kind: Any) -> bool:
    origin = dict if is_typeddict(kind) else get_origin(kind) or kind
    if origin is list:
        return isinstance(value, list) and all(_fits(one, get_args(kind)[0]) for one in value)
    return origin is Any or type(value) is origin  # a bool is no number


def _words(kind: Any) -> str:
    return " or ".join(_word(one) for one in alternatives(kind) if one is not NoneType)


def _word(kind: Any) -> str:
    if get_origin(kind) is list:
        return f"a list of {_words(get_args(kind)[0]).removeprefix('an ')}s"
    if is_typeddict(kind):
        return f"an object with {', '.join(kind.__annotations__)}"
    return _WORDS[get_origin(kind) or kind]


def _read(texts: Sequence[str], kind: Any, path: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is list:
        return [_read([text], parts[0], path) for text in texts]
    text = texts[-1]
    if origin is Annotated:
        value = _read(texts, parts[0], path)
        least = next((note[1] for note in parts[1:] if note[0] == "minimum"), None)
        if least is not None and value < least:
            raise invalid(path, f"must be a number from {least}")
        return value
    if origin is Literal:
        if text not in parts:
            raise invalid(path, f"must be one of {', '.join(parts)}")
    elif kind is int:
        return whole(text, path)
    elif kind is bool:
        if text not in ("true", "false"):
            raise invalid(path, "must be true or false")
        return text == "true"
    elif kind is date:
        try:
            return date.fromisoformat(text)
        except ValueError:
            raise invalid(path, "must be a date such as 2026-11-23") from None
    return text
