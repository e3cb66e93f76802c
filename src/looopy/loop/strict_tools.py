"""
Tools whose schemas the server enforces: chosen by `ModelOptions.strict_tools`, read back plainly.

A strict schema requires every property, so a model writes null for one that it would leave out.
Such nulls are not part of the call: they go as soon as the answer arrives, before it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from looopy.errors import InvalidTool
from looopy.tools.base import Tool
from looopy.tools.schema import without_nulls
from looopy.types.constructors import amended
from looopy.types.message import AssistantMessage, ToolCall
from looopy.types.request import ToolSpec


def strict_specs(
    tools: Mapping[str, Tool], wanted: bool | Sequence[str] | None, *, few: bool = False
) -> tuple[ToolSpec, ...]:
    """
    The tools as a model sees them, the *wanted* strict.

    Args:
        few: These are not all tools of the turn.

    Raises:
        InvalidTool: A name is unknown.
    """
    if not wanted:
        return tuple(tool.spec for tool in tools.values())
    names = tools.keys() if wanted is True else wanted
    for name in names:
        if name not in tools and not few:
            known = ", ".join(tools) or "there are none"
            text = f"strict_tools names {name!r}, which is not a tool of this turn: {known}"
            raise InvalidTool(text)
    return tuple(
        replace(tool.spec, strict=True) if name in names else tool.spec
        for name, tool in tools.items()
    )


def without_strict_nulls(message: AssistantMessage, specs: Sequence[ToolSpec]) -> AssistantMessage:
    """*message* without the nulls that only a strict schema put into its calls."""
    strict = {spec.name: spec.parameters for spec in specs if spec.strict}
    if not any(call.name in strict for call in message.tool_calls):
        return message
    blocks = tuple(
        amended(block, arguments=without_nulls(strict[block.name], block.arguments))
        if isinstance(block, ToolCall) and block.name in strict
        else block
        for block in message.content
    )
    return replace(message, content=blocks)
