"""
Questions of a turn as forms of MCP (elicitation), and the answers in them.

A form has flat fields alone. A question that needs more is not shown as one: it keeps waiting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from looopy.types.approval import Approve, Deny
from looopy.types.state import PendingKind, PendingRequest

_FLAT: Final = ("string", "number", "integer", "boolean")
_KEPT: Final = (
    "type", "title", "description", "enum", "format", "minimum", "maximum", "minLength",
    "maxLength", "default",
)  # fmt: skip
_VALUE: Final = "value"


def form_of(request: PendingRequest) -> ElicitRequest | None:
    """The form that asks *request*; `None` if it does not fit a form."""
    if (fields := _fields(request)) is None:
        return None
    schema = {"type": "object", "properties": fields, "required": _required(request, fields)}
    message = request.prompt or f"{request.tool_name} waits for an answer."
    if request.kind is PendingKind.APPROVAL:
        args = json.dumps(dict(request.args), ensure_ascii=False, indent=2, default=str)
        message = f"{message}\n{request.tool_name} {args}"
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def answer_in(request: PendingRequest, result: ElicitResult) -> dict[str, Any]:
    """The answer by request id; empty if the person gave none."""
    content = result.content or {}
    if result.action == "cancel":
        return {}
    if request.kind is PendingKind.APPROVAL:
        note = content.get("note")
        said = note if isinstance(note, str) and note else None
        if result.action == "accept" and content.get("approve") is True:
            return {request.request_id: Approve(note=said)}
        return {request.request_id: Deny(reason=said)}
    if result.action != "accept":
        return {}
    value: Any = content if _is_object(request.schema) else content.get(_VALUE)
    return {request.request_id: value}


def _fields(request: PendingRequest) -> dict[str, Any] | None:
    if request.kind is PendingKind.APPROVAL:
        return {
            "approve": {"type": "boolean", "title": "Allow it?"},
            "note": {"type": "string", "title": "A note or a reason for the model"},
        }
    if request.kind is not PendingKind.INPUT:
        return None
    if request.options:
        texts = all(isinstance(option, str) for option in request.options)
        several = request.schema is not None
        return None if several or not texts else {
            _VALUE: {"type": "string", "enum": list(request.options)}
        }
    if request.schema is None:
        return {_VALUE: {"type": "string"}}
    if not _is_object(request.schema):
        field = _field(request.schema)
        return None if field is None else {_VALUE: field}
    fields = {name: _field(one) for name, one in request.schema["properties"].items()}
    return None if None in fields.values() else dict(fields)


def _required(request: PendingRequest, fields: Mapping[str, Any]) -> list[str]:
    if request.kind is PendingKind.APPROVAL:
        return ["approve"]
    if _is_object(request.schema) and request.schema is not None:
        return [name for name in request.schema.get("required", ()) if name in fields]
    return list(fields)


def _is_object(schema: Mapping[str, Any] | None) -> bool:
    return schema is not None and bool(schema.get("properties"))


def _field(schema: Any) -> dict[str, Any] | None:
    if not isinstance(schema, Mapping) or schema.get("type") not in _FLAT:
        return None
    return {name: schema[name] for name in _KEPT if name in schema}
