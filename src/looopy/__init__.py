"""
Agents that outlive their process.

    from looopy import Agent, open_stores, tool

Importing this package does no work: names are loaded when they are first used.

The rooms, lowest first; each imports only rooms before it, and its docstring says what each file
does:

- `_failpoints` (places where a test kills a process), `errors` (the tree of errors), `types/`
  (frozen values), `auth/` (secrets), `telemetry/` (logs, traces and metrics)
- `llm/` (call a model), `tools/` (run a tool), `stores/` (remember): these do not know each other
- `history/` (what the model sees of the past), `loop/` (one turn, without a store)
- `agent/` (one conversation that outlives its process), `replay/` (a stored turn again)
- `sync` (an agent without `await`), `server/` (many conversations, over HTTP and other protocols),
  `testing/` (test kit), `compat/` (names of other libraries)
- `cli/` (the command line)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

__version__ = "0.1.0"

if TYPE_CHECKING:
    from looopy.agent.agent import Agent as Agent
    from looopy.agent.stream import TurnStream as TurnStream
    from looopy.loop.agent_loop import AgentLoop as AgentLoop
    from looopy.loop.agent_loop import agent_loop as agent_loop
    from looopy.loop.agent_loop import agent_loop_continue as agent_loop_continue
    from looopy.stores.bundle import Stores as Stores
    from looopy.stores.opening import open_stores as open_stores
    from looopy.tools.base import Tool as Tool
    from looopy.tools.base import ToolContext as ToolContext
    from looopy.tools.base import ToolProvider as ToolProvider
    from looopy.tools.base import ToolResult as ToolResult
    from looopy.tools.function.decorator import tool as tool
    from looopy.tools.sources.plugin import Plugin as Plugin
    from looopy.types.approval import Approve as Approve
    from looopy.types.approval import Deny as Deny
    from looopy.types.artifact import Artifact as Artifact
    from looopy.types.artifact import ArtifactKind as ArtifactKind
    from looopy.types.artifact import ArtifactStatus as ArtifactStatus
    from looopy.types.config import Budget as Budget
    from looopy.types.config import Hooks as Hooks
    from looopy.types.config import LoopConfig as LoopConfig
    from looopy.types.config import ModelOptions as ModelOptions
    from looopy.types.config import RetryPolicy as RetryPolicy
    from looopy.types.context import AuthContext as AuthContext
    from looopy.types.context import CancelToken as CancelToken
    from looopy.types.context import PromptPart as PromptPart
    from looopy.types.context import TurnContext as TurnContext
    from looopy.types.event import AgentEvent as AgentEvent
    from looopy.types.event import ApprovalDecided as ApprovalDecided
    from looopy.types.event import ArtifactUpdate as ArtifactUpdate
    from looopy.types.event import AuthRequired as AuthRequired
    from looopy.types.event import Compaction as Compaction
    from looopy.types.event import HistoryCleared as HistoryCleared
    from looopy.types.event import HistoryRewound as HistoryRewound
    from looopy.types.event import InputRequired as InputRequired
    from looopy.types.event import IterationEnd as IterationEnd
    from looopy.types.event import IterationStart as IterationStart
    from looopy.types.event import MessageEnd as MessageEnd
    from looopy.types.event import MessageStart as MessageStart
    from looopy.types.event import MessageUpdate as MessageUpdate
    from looopy.types.event import ModelRerouted as ModelRerouted
    from looopy.types.event import RateLimit as RateLimit
    from looopy.types.event import ServerToolEnd as ServerToolEnd
    from looopy.types.event import ServerToolStart as ServerToolStart
    from looopy.types.event import StatusChange as StatusChange
    from looopy.types.event import ToolExecutionEnd as ToolExecutionEnd
    from looopy.types.event import ToolExecutionStart as ToolExecutionStart
    from looopy.types.event import ToolExecutionUpdate as ToolExecutionUpdate
    from looopy.types.event import TurnEnd as TurnEnd
    from looopy.types.event import TurnError as TurnError
    from looopy.types.event import TurnStart as TurnStart
    from looopy.types.event import TurnWarning as TurnWarning
    from looopy.types.event import UsageReport as UsageReport
    from looopy.types.event import event_to_json as event_to_json
    from looopy.types.message import AssistantMessage as AssistantMessage
    from looopy.types.message import AudioContent as AudioContent
    from looopy.types.message import Citation as Citation
    from looopy.types.message import Cost as Cost
    from looopy.types.message import CustomMessage as CustomMessage
    from looopy.types.message import DocumentContent as DocumentContent
    from looopy.types.message import ImageContent as ImageContent
    from looopy.types.message import Message as Message
    from looopy.types.message import ServerToolCall as ServerToolCall
    from looopy.types.message import ServerToolResult as ServerToolResult
    from looopy.types.message import StopReason as StopReason
    from looopy.types.message import TextContent as TextContent
    from looopy.types.message import ThinkingContent as ThinkingContent
    from looopy.types.message import ToolCall as ToolCall
    from looopy.types.message import ToolResultMessage as ToolResultMessage
    from looopy.types.message import Usage as Usage
    from looopy.types.message import UserMessage as UserMessage
    from looopy.types.message_json import message_from_json as message_from_json
    from looopy.types.message_json import message_to_json as message_to_json
    from looopy.types.request import ThinkingLevel as ThinkingLevel
    from looopy.types.result import ExecutedCall as ExecutedCall
    from looopy.types.result import IterationResult as IterationResult
    from looopy.types.result import TurnResult as TurnResult
    from looopy.types.state import AgentState as AgentState
    from looopy.types.state import AgentStatus as AgentStatus
    from looopy.types.state import Outcome as Outcome
    from looopy.types.state import PendingKind as PendingKind
    from looopy.types.state import PendingRequest as PendingRequest

_export(
    globals(),
    {
        ".agent.agent": ("Agent",),
        ".agent.stream": ("TurnStream",),
        ".loop.agent_loop": ("AgentLoop", "agent_loop", "agent_loop_continue"),
        ".stores.bundle": ("Stores",),
        ".stores.opening": ("open_stores",),
        ".tools.base": ("Tool", "ToolContext", "ToolProvider", "ToolResult"),
        ".tools.function.decorator": ("tool",),
        ".tools.sources.plugin": ("Plugin",),
        ".types.approval": ("Approve", "Deny"),
        ".types.artifact": ("Artifact", "ArtifactKind", "ArtifactStatus"),
        ".types.config": ("Budget", "Hooks", "LoopConfig", "ModelOptions", "RetryPolicy"),
        ".types.context": ("AuthContext", "CancelToken", "PromptPart", "TurnContext"),
        ".types.event": (
            "AgentEvent",
            "ApprovalDecided",
            "ArtifactUpdate",
            "AuthRequired",
            "Compaction",
            "HistoryCleared",
            "HistoryRewound",
            "InputRequired",
            "IterationEnd",
            "IterationStart",
            "MessageEnd",
            "MessageStart",
            "MessageUpdate",
            "ModelRerouted",
            "RateLimit",
            "StatusChange",
            "ServerToolEnd",
            "ServerToolStart",
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
            "AudioContent",
            "Citation",
            "Cost",
            "CustomMessage",
            "DocumentContent",
            "ImageContent",
            "Message",
            "ServerToolCall",
            "ServerToolResult",
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
