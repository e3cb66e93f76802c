"""
Let the model act: the contract of a tool, and everything between a call and its result.

Each call gets exactly one result, whatever happens. The room may import `auth`, `types` and
`errors`, but neither `llm` nor `stores`: a tool writes artifacts through `ToolContext`. Importing
it loads no schema library; decorating a function does. Exports: the names in `__all__`.

- Contract: `base` (`Tool`, `ToolContext`, `ToolResult`, `ToolProvider`).
- `function/`: a Python function becomes a tool. `sources/`: tools from elsewhere, such as MCP.
- `gather`: the tools of one turn, from all sources; refuses two of one name.
- `schema`: checks arguments against a JSON Schema. `call/`: runs one call.
- `asking`: a tool ends the turn with a question to a person (`NeedsInput`). `answering`: checks the
  answer.

Read `base`, `function/decorator`, `gather`, `call/run`, `asking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.tools.asking import Ask, NeedsInput
    from looopy.tools.base import (
        Tool,
        ToolContext,
        ToolOptions,
        ToolProvider,
        ToolResult,
    )
    from looopy.tools.call.retry import RetryCall
    from looopy.tools.function.decorator import FunctionTool, tool
    from looopy.tools.gather import ToolSource, gather_tools
    from looopy.tools.sources.a2a import RemoteAgent
    from looopy.tools.sources.agents import AgentTool
    from looopy.tools.sources.artifact import ArtifactTools
    from looopy.tools.sources.client import ClientTool, client_tool, request_input
    from looopy.tools.sources.mcp import MCPTools
    from looopy.tools.sources.skills import Skill, Skills

__all__ = [
    "AgentTool",
    "ArtifactTools",
    "Ask",
    "client_tool",
    "ClientTool",
    "FunctionTool",
    "gather_tools",
    "MCPTools",
    "NeedsInput",
    "RemoteAgent",
    "request_input",
    "RetryCall",
    "Skill",
    "Skills",
    "Tool",
    "tool",
    "ToolContext",
    "ToolOptions",
    "ToolProvider",
    "ToolResult",
    "ToolSource",
]

_export(
    globals(),
    {
        ".asking": ("Ask", "NeedsInput"),
        ".base": ("Tool", "ToolContext", "ToolOptions", "ToolProvider", "ToolResult"),
        ".call.retry": ("RetryCall",),
        ".function.decorator": ("FunctionTool", "tool"),
        ".gather": ("ToolSource", "gather_tools"),
        ".sources.a2a": ("RemoteAgent",),
        ".sources.agents": ("AgentTool",),
        ".sources.artifact": ("ArtifactTools",),
        ".sources.client": ("ClientTool", "client_tool", "request_input"),
        ".sources.mcp": ("MCPTools",),
        ".sources.skills": ("Skill", "Skills"),
    },
)
