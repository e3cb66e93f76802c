"""
Questions of a turn as forms of MCP (elicitation), and the answers in them.

An approval is a form, too: MCP has no other way to ask the person.
"""

from __future__ import annotations

import json
from typing import Any

from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from looopy.server.protocols import forms
from looopy.types.approval import Approve, Deny
from looopy.types.state import PendingKind, PendingRequest


def form_of(request: PendingRequest) -> ElicitRequest | None:
    """The form that asks *request*; `None` if it does not fit a form."""
    schema = forms.form_of(request)
    message = request.prompt or f"{request.tool_name} waits for an answer."
    if request.kind is PendingKind.APPROVAL:
        schema = {
            "type": "object",
            "properties": {
                "approve": {"type": "boolean", "title": "Allow it?"},
                "note": {"type": "string", "title": "A note or a reason for the model"},
            },
            "required": ["approve"],
        }
        args = json.dumps(dict(request.args), ensure_ascii=False, indent=2, default=str)
        message = f"{message}\n{request.tool_name} {args}"
    if schema is None:
        return None
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
    return {request.request_id: forms.value_in(request, content)}
