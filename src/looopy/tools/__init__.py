"""
Let the model act: what a tool is, and how a function becomes one.

Importing this package loads no schema library; decorating a function does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looopy.tools.agents import AgentTool
    from looopy.tools.artifact import ArtifactTools
    from looopy.tools.asking import Ask, NeedsInput
    from looopy.tools.client import ClientTool, client_tool, request_input
    from looopy.tools.function import FunctionTool, tool
    from looopy.tools.mcp import MCPTools
    from looopy.tools.provider import (
        Tool,
        ToolContext,
        ToolProvider,
        ToolResult,
        ToolSource,
        gather_tools,
    )
    from looopy.tools.remote import RemoteAgent
    from looopy.tools.retrying import RetryCall
    from looopy.tools.skills import Skill, Skills

_HOME = {
    "AgentTool": "looopy.tools.agents",
    "client_tool": "looopy.tools.client",
    "request_input": "looopy.tools.client",
    "ArtifactTools": "looopy.tools.artifact",
    "Ask": "looopy.tools.asking",
    "ClientTool": "looopy.tools.client",
    "FunctionTool": "looopy.tools.function",
    "MCPTools": "looopy.tools.mcp",
    "NeedsInput": "looopy.tools.asking",
    "RetryCall": "looopy.tools.retrying",
    "RemoteAgent": "looopy.tools.remote",
    "Skill": "looopy.tools.skills",
    "Skills": "looopy.tools.skills",
    "Tool": "looopy.tools.provider",
    "ToolContext": "looopy.tools.provider",
    "ToolProvider": "looopy.tools.provider",
    "ToolResult": "looopy.tools.provider",
    "ToolSource": "looopy.tools.provider",
    "gather_tools": "looopy.tools.provider",
    "tool": "looopy.tools.function",
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
