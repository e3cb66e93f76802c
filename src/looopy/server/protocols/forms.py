"""
Questions of a turn as forms, which MCP and ACP call elicitation, and the answers in them.

A form has flat fields alone. A question that needs more is not shown as one: it keeps waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from looopy.types.state import PendingKind, PendingRequest

_FLAT: Final = ("string", "number", "integer", "boolean")
_KEPT: Final = (
    "type", "title", "description", "enum", "format", "minimum", "maximum", "minLength",
    "maxLength", "default",
)  # fmt: skip
_VALUE: Final = "value"


def form_of(request: PendingRequest) -> dict[str, Any] | None:
    """The schema of a form that asks a question of a tool; `None` if it does not fit a form."""
    if request.kind is not PendingKind.INPUT or (fields := _fields(request)) is None:
        return None
    required = list(fields)
    if _is_object(request.schema) and request.schema is not None:
        required = [name for name in request.schema.get("required", ()) if name in fields]
    return {"type": "object", "properties": fields, "required": required}


def value_in(request: PendingRequest, content: Mapping[str, Any]) -> Any:
    """The answer to *request* in a form that was filled in."""
    return dict(content) if _is_object(request.schema) else content.get(_VALUE)


def _fields(request: PendingRequest) -> dict[str, Any] | None:
    if request.options:
        texts = all(isinstance(option, str) for option in request.options)
        several = request.schema is not None
        return (
            None
            if several or not texts
            else {_VALUE: {"type": "string", "enum": list(request.options)}}
        )
    if request.schema is None:
        return {_VALUE: {"type": "string"}}
    if not _is_object(request.schema):
        field = _field(request.schema)
        return None if field is None else {_VALUE: field}
    fields = {name: _field(one) for name, one in request.schema["properties"].items()}
    return {name: one for name, one in fields.items() if one} if all(fields.values()) else None


def _is_object(schema: Mapping[str, Any] | None) -> bool:
    return schema is not None and bool(schema.get("properties"))


def _field(schema: Any) -> dict[str, Any] | None:
    if not isinstance(schema, Mapping) or schema.get("type") not in _FLAT:
        return None
    return {name: schema[name] for name in _KEPT if name in schema}
