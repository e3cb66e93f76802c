"""
The names of pi and pipy-agent, over agents that outlive their process.

    from looopy.compat.pi import Agent, AgentToolResult, TextContent, tool

Code written for pi or pipy-agent runs with this import: the same ten events, queues, setters and
loop functions. With `stores=` a conversation is stored as well. See `docs/migrating.md`. The room
may import every room but `testing`, `sync` and `cli`.

- `agent`: pi's `Agent`. `state`: its state, kept up to date by its events. `queues`: steering and
  follow-ups. `loop`: pi's loop functions.
- `types`: pi's tools, events and options. `events`: our events become pi's. `setup`: pi's options
  become ours. `abort`: `AbortController`. `errors`: misuse.
- `sessions`: reads and writes pi's session files. `wire`: one message of such a file.

Exports: the names in `__all__`, loaded on first use. Read `types`, `events`, `agent`, `sessions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

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

_export(
    globals(),
    {
        ".abort": ("AbortController", "AbortError", "AbortSignal"),
        ".agent": ("Agent",),
        ".errors": ("AlreadyStreaming", "NothingToContinue"),
        ".loop": ("agent_loop", "agent_loop_continue"),
        ".sessions": ("Entry", "Session", "read_session", "write_session"),
        ".setup": ("default_convert_to_llm",),
        ".state": ("AgentState",),
        ".types": (
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
        "looopy.types.message": (
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
        "looopy.types.request": ("ThinkingLevel", "ToolSpec as Tool"),
    },
)
