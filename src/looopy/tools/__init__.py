"""
Let the model act: the contract of a tool, and everything between a call and its result.

Each call gets exactly one result, whatever happens. The room may import `auth`, `types` and
`errors`, but neither `llm` nor `stores`: a tool writes artifacts through `ToolContext`. Importing
it loads no schema library; decorating a function does. Exports: the names in `__all__`.

- Contract: `provider` (`Tool`, `ToolContext`, `ToolResult`, `ToolProvider`).
- `function/`: a Python function becomes a tool. `sources/`: tools from elsewhere, such as MCP.
- `gather`: the tools of one turn, from all sources; refuses two of one name.
- `schema`: checks arguments against a JSON Schema. `call/`: runs one call.
- `asking`: a tool ends the turn with a question to a person (`NeedsInput`). `answering`: checks the
  answer.

Read `provider`, `function/decorator`, `gather`, `call/run`, `asking`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looopy.tools.asking import Ask, NeedsInput
    from looopy.tools.call.retry import RetryCall
    from looopy.tools.function.decorator import FunctionTool, tool
    from looopy.tools.gather import ToolSource, gather_tools
    from looopy.tools.provider import Tool, ToolContext, ToolProvider, ToolResult
    from looopy.tools.sources.a2a import RemoteAgent
    from looopy.tools.sources.agents import AgentTool
    from looopy.tools.sources.artifact import ArtifactTools
    from looopy.tools.sources.client import ClientTool, client_tool, request_input
    from looopy.tools.sources.mcp import MCPTools
    from looopy.tools.sources.skills import Skill, Skills

_HOME = {
    "AgentTool": "looopy.tools.sources.agents",
    "client_tool": "looopy.tools.sources.client",
    "request_input": "looopy.tools.sources.client",
    "ArtifactTools": "looopy.tools.sources.artifact",
    "Ask": "looopy.tools.asking",
    "ClientTool": "looopy.tools.sources.client",
    "FunctionTool": "looopy.tools.function.decorator",
    "MCPTools": "looopy.tools.sources.mcp",
    "NeedsInput": "looopy.tools.asking",
    "RetryCall": "looopy.tools.call.retry",
    "RemoteAgent": "looopy.tools.sources.a2a",
    "Skill": "looopy.tools.sources.skills",
    "Skills": "looopy.tools.sources.skills",
    "Tool": "looopy.tools.provider",
    "ToolContext": "looopy.tools.provider",
    "ToolProvider": "looopy.tools.provider",
    "ToolResult": "looopy.tools.provider",
    "ToolSource": "looopy.tools.gather",
    "gather_tools": "looopy.tools.gather",
    "tool": "looopy.tools.function.decorator",
}

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
    "ToolProvider",
    "ToolResult",
    "ToolSource",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
