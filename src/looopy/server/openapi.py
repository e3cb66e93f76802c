"""
The description of the HTTP API, as OpenAPI 3.1: `GET /openapi.json`.

It is made of the table of operations, their docstrings and the types of their fields. The
protocols describe themselves elsewhere: OpenAI's API, A2A, AG-UI and the AI SDK have their own
specifications.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import is_dataclass
from datetime import date
from enum import Enum
from types import NoneType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NotRequired,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import looopy
from looopy.server import models
from looopy.server.gate.fields import UNIONS, Shape, is_required
from looopy.server.gate.limits import Limits

Json: TypeAlias = dict[str, Any]
JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
_PLAIN: Final[Mapping[Any, Json]] = {
    Any: {},
    NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "format": "binary"},
    date: {"type": "string", "format": "date"},
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
}
_IN_PATH: Final[Shape] = {
    "context_id": models.ContextId,
    "turn": models.Number,
    "position": models.Number,
    "artifact_id": str,
}


class Media(dict[str, Any]):
    """The types of an answer by media type."""


class Operation(NamedTuple):
    """
    A route of the HTTP API, as it is served and described.

    Attributes:
        handler: Its docstring is the summary, and the description.
        answer: The type of the JSON of the answer, or `Media`; by default what the handler returns.
        body: The shape of the body, which is checked by it; `None`: it takes none.
        query: The parameters of the query, which are checked by it.
        headers: The headers that the handler reads itself.
        others: Answers of other statuses, as *answer*, or sentences.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    answer: Any = None
    status: int = 200
    body: Shape | None = None
    query: Shape = {}  # noqa: RUF012 - of a named tuple, which shares its defaults
    headers: Shape = {}  # noqa: RUF012 - as above
    others: Mapping[int, Any] = {}


def describe(operations: Iterable[Operation], limits: Limits) -> Json:
    """The OpenAPI description of *operations*, with *limits*."""
    schemas = _Schemas(limits)
    paths: dict[str, Json] = {}
    for one in operations:
        path = one.path.replace(":path}", "}")
        item = paths.setdefault(path, {})
        if named := re.findall(r"{(\w+)}", path):
            item["parameters"] = [schemas.parameter("path", name, _IN_PATH[name]) for name in named]
        item[one.method.lower()] = schemas.operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "looopy", "version": looopy.__version__},
        "security": [{"bearer": []}],
        "x-looopy-limits": {
            name: getattr(limits, name) for name in ("body_bytes", "message_bytes", "page")
        },
        "paths": paths,
        "components": {
            "schemas": schemas.named,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """Makes JSON Schemas of types; `named` are those of `TypedDict`s and dataclasses."""

    def __init__(self, limits: Limits) -> None:
        self.named: Json = {}
        self._limits = limits

    def operation(self, one: Operation) -> Json:
        """The description of an operation."""
        summary, _, about = (inspect.getdoc(one.handler) or "").partition("\n\n")
        made: Json = {"operationId": one.handler.__name__, "summary": summary}
        if about:
            made["description"] = " ".join(about.split())
        answer = one.answer or get_type_hints(one.handler, include_extras=True)["return"]
        made["responses"] = {
            str(one.status): self._answer(summary, answer),
            **{str(status): self._answer(summary, answer) for status, answer in one.others.items()},
            "default": self._answer("The request was refused.", models.Problem),
        }
        parameters = [
            *(self.parameter("query", name, kind) for name, kind in one.query.items()),
            *(self.parameter("header", name, kind) for name, kind in one.headers.items()),
        ]
        if parameters:
            made["parameters"] = parameters
        if one.body is not None:
            required = [name for name, kind in one.body.items() if is_required(kind)]
            schema = self._object(one.body, required, closed=True)
            made["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
        return made

    def parameter(self, place: str, name: str, kind: Any) -> Json:
        """The description of a parameter."""
        schema = self.of(kind)
        made: Json = {"name": name, "in": place}
        if place == "path":
            made["required"] = True
        if "description" in schema:
            made["description"] = schema.pop("description")
        if name == "limit":
            schema["maximum"] = self._limits.page
        return {**made, "schema": schema}

    def of(self, kind: Any, *, closed: bool = False) -> Json:
        """The schema of a type; *closed*: an object takes no other fields."""
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Annotated:
            notes = (("description", n) if isinstance(n, str) else n for n in parts[1:])
            return {**self.of(parts[0], closed=closed), **dict(notes)}
        if origin in UNIONS:
            return {"anyOf": [self.of(part, closed=closed) for part in parts]}
        if origin is Literal:
            return {"enum": list(parts)}
        if origin is list:
            return {"type": "array", "items": self.of(parts[0], closed=closed)}
        if origin is dict:
            return {"type": "object", "additionalProperties": True}
        if isinstance(kind, Mapping):
            return self._object(kind, list(kind), closed=closed)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [one.value for one in kind]}
        if is_typeddict(origin or kind) or is_dataclass(kind):
            return self._named(origin or kind, parts, closed=closed)
        return dict(_PLAIN[kind])

    def _named(self, kind: Any, parts: tuple[Any, ...], *, closed: bool) -> Json:
        name = "".join(part.__name__ for part in parts[:1]) + kind.__name__
        if name not in self.named:
            bound = dict(zip(getattr(kind, "__parameters__", ()), parts, strict=True))
            shape = get_type_hints(kind, include_extras=True)
            for field, one in shape.items():
                free = getattr(one, "__parameters__", ())
                found = one[tuple(bound[each] for each in free)] if free else one
                shape[field] = get_args(found)[0] if get_origin(found) is NotRequired else found
            required = [one for one in shape if one in getattr(kind, "__required_keys__", shape)]
            about = (inspect.getdoc(kind) or "").partition("\n\n")[0]
            schema = self._object(shape, required, closed=closed)
            self.named[name] = {"description": " ".join(about.split()), **schema}
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, shape: Shape, required: list[str], *, closed: bool) -> Json:
        made: Json = {
            "type": "object",
            "properties": {name: self.of(kind, closed=closed) for name, kind in shape.items()},
            "required": required,
        }
        return {**made, "additionalProperties": False} if closed else made

    def _answer(self, text: str, answer: Any) -> Json:
        if answer is NoneType or isinstance(answer, str):
            return {"description": text if answer is NoneType else answer}
        kinds = answer if isinstance(answer, Media) else Media({JSON: answer})
        content = {media: {"schema": self.of(kind)} for media, kind in kinds.items()}
        return {"description": text, "content": content}
