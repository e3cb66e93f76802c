"""
Agents that outlive their process.

    from looopy import Agent, open_stores, tool

Importing this package does no work: names are loaded when they are first used.

The rooms, lowest first; each imports only rooms before it, and its docstring says what each file
does:

- `errors` (the tree of errors), `types/` (frozen values), `auth/` (secrets)
- `llm/` (call a model), `tools/` (run a tool), `stores/` (remember): these do not know each other
- `history/` (what the model sees of the past), `loop/` (one turn, without a store)
- `agent/` (one conversation that outlives its process), `sync` (the same, blocking)
- `testing/` (test kit), `compat/` (names of other libraries), `cli/` (the command line)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.agent.agent import Agent
    from looopy.agent.stream import TurnStream
    from looopy.loop.agent_loop import AgentLoop, agent_loop, agent_loop_continue
    from looopy.stores.opening import open_stores
    from looopy.stores.stores import Stores
    from looopy.tools.base import Tool, ToolContext, ToolProvider, ToolResult
    from looopy.tools.function.decorator import tool
    from looopy.tools.sources.plugin import Plugin
    from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
    from looopy.types.config import Budget, Hooks, LoopConfig, RetryPolicy
    from looopy.types.context import AuthContext, CancelToken, PromptPart, TurnContext
    from looopy.types.event import (
        AgentEvent,
        ArtifactUpdate,
        AuthRequired,
        Compaction,
        HistoryCleared,
        InputRequired,
        IterationEnd,
        IterationStart,
        MessageEnd,
        MessageStart,
        MessageUpdate,
        StatusChange,
        ToolExecutionEnd,
        ToolExecutionStart,
        ToolExecutionUpdate,
        TurnEnd,
        TurnError,
        TurnStart,
        TurnWarning,
        UsageReport,
        event_to_json,
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
    from looopy.types.message_json import message_from_json, message_to_json
    from looopy.types.request import ThinkingLevel
    from looopy.types.result import ExecutedCall, IterationResult, TurnResult
    from looopy.types.state import (
        AgentState,
        AgentStatus,
        Outcome,
        PendingKind,
        PendingRequest,
    )

__all__ = [
    "Agent",
    "agent_loop",
    "agent_loop_continue",
    "AgentEvent",
    "AgentLoop",
    "AgentState",
    "AgentStatus",
    "Artifact",
    "ArtifactKind",
    "ArtifactStatus",
    "ArtifactUpdate",
    "AssistantMessage",
    "AuthContext",
    "AuthRequired",
    "Budget",
    "CancelToken",
    "Compaction",
    "Cost",
    "CustomMessage",
    "event_to_json",
    "ExecutedCall",
    "HistoryCleared",
    "Hooks",
    "ImageContent",
    "InputRequired",
    "IterationEnd",
    "IterationResult",
    "IterationStart",
    "LoopConfig",
    "Message",
    "message_from_json",
    "message_to_json",
    "MessageEnd",
    "MessageStart",
    "MessageUpdate",
    "open_stores",
    "Outcome",
    "PendingKind",
    "PendingRequest",
    "Plugin",
    "PromptPart",
    "RetryPolicy",
    "StatusChange",
    "StopReason",
    "Stores",
    "TextContent",
    "ThinkingContent",
    "ThinkingLevel",
    "tool",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolExecutionEnd",
    "ToolExecutionStart",
    "ToolExecutionUpdate",
    "ToolProvider",
    "ToolResult",
    "ToolResultMessage",
    "TurnContext",
    "TurnEnd",
    "TurnError",
    "TurnResult",
    "TurnStart",
    "TurnStream",
    "TurnWarning",
    "Usage",
    "UsageReport",
    "UserMessage",
]

_export(
    globals(),
    {
        ".agent.agent": ("Agent",),
        ".agent.stream": ("TurnStream",),
        ".loop.agent_loop": ("AgentLoop", "agent_loop", "agent_loop_continue"),
        ".stores.opening": ("open_stores",),
        ".stores.stores": ("Stores",),
        ".tools.base": ("Tool", "ToolContext", "ToolProvider", "ToolResult"),
        ".tools.function.decorator": ("tool",),
        ".tools.sources.plugin": ("Plugin",),
        ".types.artifact": ("Artifact", "ArtifactKind", "ArtifactStatus"),
        ".types.config": ("Budget", "Hooks", "LoopConfig", "RetryPolicy"),
        ".types.context": ("AuthContext", "CancelToken", "PromptPart", "TurnContext"),
        ".types.event": (
            "AgentEvent",
            "ArtifactUpdate",
            "AuthRequired",
            "Compaction",
            "HistoryCleared",
            "InputRequired",
            "IterationEnd",
            "IterationStart",
            "MessageEnd",
            "MessageStart",
            "MessageUpdate",
            "StatusChange",
            "ToolExecutionEnd",
            "ToolExecutionStart",
            "ToolExecutionUpdate",
            "TurnEnd",
            "TurnError",
            "TurnStart",
            "TurnWarning",
            "UsageReport",
            "event_to_json",
        ),
        ".types.message": (
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
        ".types.message_json": ("message_from_json", "message_to_json"),
        ".types.request": ("ThinkingLevel",),
        ".types.result": ("ExecutedCall", "IterationResult", "TurnResult"),
        ".types.state": ("AgentState", "AgentStatus", "Outcome", "PendingKind", "PendingRequest"),
    },
)
