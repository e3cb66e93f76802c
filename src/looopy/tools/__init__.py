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
    from looopy.tools.asking import Ask as Ask
    from looopy.tools.asking import NeedsInput as NeedsInput
    from looopy.tools.base import Tool as Tool
    from looopy.tools.base import ToolContext as ToolContext
    from looopy.tools.base import ToolOptions as ToolOptions
    from looopy.tools.base import ToolProvider as ToolProvider
    from looopy.tools.base import ToolResult as ToolResult
    from looopy.tools.call.retry import RetryCall as RetryCall
    from looopy.tools.function.decorator import FunctionTool as FunctionTool
    from looopy.tools.function.decorator import tool as tool
    from looopy.tools.gather import ToolSource as ToolSource
    from looopy.tools.gather import gather_tools as gather_tools
    from looopy.tools.sources.a2a import RemoteAgent as RemoteAgent
    from looopy.tools.sources.agents import AgentTool as AgentTool
    from looopy.tools.sources.artifact import ArtifactTools as ArtifactTools
    from looopy.tools.sources.client import ClientTool as ClientTool
    from looopy.tools.sources.client import client_tool as client_tool
    from looopy.tools.sources.client import request_input as request_input
    from looopy.tools.sources.mcp import MCPTools as MCPTools
    from looopy.tools.sources.skills import Skill as Skill
    from looopy.tools.sources.skills import Skills as Skills

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
