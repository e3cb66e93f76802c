"""
pi's and pipy-agent's names, over agents that outlive their process.

    from looopy.compat.pi import Agent, AgentToolResult, TextContent, tool

What is written for pi or pipy-agent runs with this import in the place of theirs: the same ten
events, queues, setters and loop functions, over our loop and, with `stores=`, our stores. See
`docs/migrating.md`; the sessions that pi has written are read by `read_session`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looopy.compat.pi.abort import AbortController, AbortError, AbortSignal
    from looopy.compat.pi.agent import Agent
    from looopy.compat.pi.errors import AlreadyStreaming, NothingToContinue
    from looopy.compat.pi.loop import agent_loop, agent_loop_continue
    from looopy.compat.pi.sessions import Entry, Session, read_session, write_session
    from looopy.compat.pi.setup import default_convert_to_llm
    from looopy.compat.pi.state import AgentState
    from looopy.compat.pi.types import (
        AgentEndEvent,
        AgentEvent,
        AgentLoopConfig,
        AgentMessage,
        AgentStartEvent,
        AgentTool,
        AgentToolResult,
        AgentToolUpdateCallback,
        MessageEndEvent,
        MessageStartEvent,
        MessageUpdateEvent,
        ToolExecutionEndEvent,
        ToolExecutionStartEvent,
        ToolExecutionUpdateEvent,
        ToolHookContext,
        TurnEndEvent,
        TurnStartEvent,
        tool,
    )
    from looopy.types.message import (
        AssistantMessage,
        Cost,
        CustomMessage,
        ImageContent,
        Message,
        StopReason,
        TextContent,
        ThinkingContent,
        ToolCall,
        ToolResultMessage,
        Usage,
        UserMessage,
    )
    from looopy.types.request import ThinkingLevel
    from looopy.types.request import ToolSpec as Tool

_MODULES = {
    "compat.pi.abort": ("AbortController", "AbortError", "AbortSignal"),
    "compat.pi.agent": ("Agent",),
    "compat.pi.errors": ("AlreadyStreaming", "NothingToContinue"),
    "compat.pi.loop": ("agent_loop", "agent_loop_continue"),
    "compat.pi.sessions": ("Entry", "Session", "read_session", "write_session"),
    "compat.pi.setup": ("default_convert_to_llm",),
    "compat.pi.state": ("AgentState",),
    "compat.pi.types": (
        "AgentEndEvent",
        "AgentEvent",
        "AgentLoopConfig",
        "AgentMessage",
        "AgentStartEvent",
        "AgentTool",
        "AgentToolResult",
        "AgentToolUpdateCallback",
        "MessageEndEvent",
        "MessageStartEvent",
        "MessageUpdateEvent",
        "ToolExecutionEndEvent",
        "ToolExecutionStartEvent",
        "ToolExecutionUpdateEvent",
        "ToolHookContext",
        "TurnEndEvent",
        "TurnStartEvent",
        "tool",
    ),
    "types.message": (
        "AssistantMessage",
        "Cost",
        "CustomMessage",
        "ImageContent",
        "Message",
        "StopReason",
        "TextContent",
        "ThinkingContent",
        "ToolCall",
        "ToolResultMessage",
        "Usage",
        "UserMessage",
    ),
    "types.request": ("ThinkingLevel", "Tool"),
}
_HOME = {name: (module, name) for module, names in _MODULES.items() for name in names}
_HOME["Tool"] = ("types.request", "ToolSpec")

__all__ = [
    "AbortController",
    "AbortError",
    "AbortSignal",
    "Agent",
    "agent_loop",
    "agent_loop_continue",
    "AgentEndEvent",
    "AgentEvent",
    "AgentLoopConfig",
    "AgentMessage",
    "AgentStartEvent",
    "AgentState",
    "AgentTool",
    "AgentToolResult",
    "AgentToolUpdateCallback",
    "AlreadyStreaming",
    "AssistantMessage",
    "Cost",
    "CustomMessage",
    "default_convert_to_llm",
    "Entry",
    "ImageContent",
    "Message",
    "MessageEndEvent",
    "MessageStartEvent",
    "MessageUpdateEvent",
    "NothingToContinue",
    "read_session",
    "Session",
    "StopReason",
    "TextContent",
    "ThinkingContent",
    "ThinkingLevel",
    "Tool",
    "tool",
    "ToolCall",
    "ToolExecutionEndEvent",
    "ToolExecutionStartEvent",
    "ToolExecutionUpdateEvent",
    "ToolHookContext",
    "ToolResultMessage",
    "TurnEndEvent",
    "TurnStartEvent",
    "Usage",
    "UserMessage",
    "write_session",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = globals()[name] = getattr(import_module(f"looopy.{module}"), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
