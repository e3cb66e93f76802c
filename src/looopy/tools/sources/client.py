"""
Tools that run on the user's side: a person, or the user's program, supplies the result.

The call stays open with a pending request; the answer to that request is the tool's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looopy.tools.answering import is_tool_result
from looopy.tools.asking import Ask, NeedsInput
from looopy.tools.base import NeedsApproval, Tool, ToolContext, ToolResult
from looopy.tools.call.results import to_json_text
from looopy.tools.schema import check_schema
from looopy.types.state import PendingKind

_ANSWER = "answer"
_SCHEMAS: Mapping[str, Mapping[str, Any] | None] = {
    "confirmation": {"type": "boolean"},
    "clarification": {"type": "string", "minLength": 1},
    "selection": None,
    "data": None,
}


class RequestInput(Tool):
    """The tool `request_input`: the model asks the user, and the answer is the result."""

    def __init__(self) -> None:
        super().__init__(
            name="request_input",
            description=(
                "Ask the user a question when you cannot go on without the answer. The answer is"
                " the result of this call."
            ),
            parameters={
                "type": "object",
                "properties": {
                    "prompt": {
                        "type": "string",
                        "minLength": 1,
                        "description": "The question, in one sentence.",
                    },
                    "input_type": {
                        "enum": list(_SCHEMAS),
                        "default": "data",
                        "description": (
                            "confirmation: true or false; clarification: free text; selection: one"
                            " of `options`; data: a JSON value that fits `schema`"
                        ),
                    },
                    "options": {"type": "array", "description": "What to choose from."},
                    "schema": {"type": "object", "description": "JSON Schema of the answer."},
                },
                "required": ["prompt"],
                "additionalProperties": False,
            },
            label="Question",
            parallel=True,
            effects="none",
        )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """
        Return the answer if it has arrived.

        Raises:
            NeedsInput: The answer has not arrived yet.
            ValueError: A selection without options.
        """
        if _ANSWER in context.answers:
            return context.answers[_ANSWER]
        options = arguments.get("options", ())
        kind = arguments.get("input_type", "data")
        if kind == "selection" and not options:
            raise ValueError("a selection needs `options`: pass at least one")
        schema = _SCHEMAS[kind] or arguments.get("schema")
        raise NeedsInput([Ask(_ANSWER, PendingKind.INPUT, arguments["prompt"], schema, options)])


request_input = RequestInput()
"""Offered to the model when it is among an agent's tools."""


class ClientTool(Tool):
    """A tool that the user's side runs; `client_tool` makes it."""

    expires_s: float | None = None

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:  # noqa: ARG002 - the request shows them
        """Return the answer of the user's side, or raise `NeedsInput`."""
        if _ANSWER not in context.answers:
            prompt = f"Run {self.label}, and answer with its result."
            raise NeedsInput(
                [Ask(_ANSWER, PendingKind.CLIENT_TOOL, prompt, expires_s=self.expires_s)]
            )
        value = context.answers[_ANSWER]
        if not is_tool_result(value):
            return value
        content = value.get("content", "")
        return ToolResult(
            content if isinstance(content, str) else to_json_text(content),
            details=value.get("details"),
            is_error=value["is_error"],
        )


def client_tool(
    name: str,
    description: str = "",
    parameters: Mapping[str, Any] | None = None,
    *,
    label: str | None = None,
    needs_approval: NeedsApproval = False,
    expires_s: float | None = None,
) -> ClientTool:
    """
    Declare a tool that the user's side runs: a button, a camera, a local file.

    A call with valid arguments stays open with a request of kind `client_tool`, which has its
    `args`. `execute_turn(None, inputs={request_id: result})` answers it with any JSON value, or
    with `{"is_error": true, "content": "..."}`, as a `ToolResult`, if it failed.

    Args:
        name: See `Tool`, also for the other options.
        description: For the model.
        parameters: JSON Schema of type object.
        label: For people.
        needs_approval: Ask a person for approval before the request goes to the user's side.
        expires_s: After so many seconds the request can no longer be answered.

    Raises:
        InvalidTool: No provider would accept the tool.
    """
    made = ClientTool(
        name=name,
        description=description,
        parameters=parameters,
        label=label,
        parallel=True,
        effects="none",  # on this side: the user's side acts once, when it answers
        needs_approval=needs_approval,
        approval_expires_s=expires_s,
    )
    check_schema(made.parameters)
    made.expires_s = expires_s
    return made
