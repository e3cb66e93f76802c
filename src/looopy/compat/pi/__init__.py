"""
The names of pi and pipy-agent, over agents that outlive their process.

    from looopy.compat.pi import Agent, AgentToolResult, TextContent, tool

Code written for pi or pipy-agent runs with this import: the same ten events, queues, setters and
loop functions. With `stores=` a conversation is stored as well. See `docs/migrating.md`. The room
may import every room but `testing`, `sync` and `cli`.

- `agent`: pi's `Agent`. `state`: its state, kept up to date by its events. `queues`: steering and
  follow-ups. `loop`: pi's loop functions.
- `types`: pi's tools, events and options. `events`: our events become pi's. `setup`: pi's options
  become ours. `streaming`: pipy-ai's `stream` and `astream`. `abort`: `AbortController`. `errors`:
  misuse.
- `order`: differences between releases of pi.
- `sessions`: reads and writes pi's session files. `wire`: one message of such a file.

Exports: the names in `__all__`, loaded on first use. Read `types`, `events`, `agent`, `sessions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy import __version__ as __version__
from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.compat.pi.abort import AbortController as AbortController
    from looopy.compat.pi.abort import AbortError as AbortError
    from looopy.compat.pi.abort import AbortSignal as AbortSignal
    from looopy.compat.pi.agent import Agent as Agent
    from looopy.compat.pi.errors import AlreadyStreaming as AlreadyStreaming
    from looopy.compat.pi.errors import NothingToContinue as NothingToContinue
    from looopy.compat.pi.loop import agent_loop as agent_loop
    from looopy.compat.pi.loop import agent_loop_continue as agent_loop_continue
    from looopy.compat.pi.sessions import Entry as Entry
    from looopy.compat.pi.sessions import Session as Session
    from looopy.compat.pi.sessions import read_session as read_session
    from looopy.compat.pi.sessions import write_session as write_session
    from looopy.compat.pi.setup import default_convert_to_llm as default_convert_to_llm
    from looopy.compat.pi.state import AgentState as AgentState
    from looopy.compat.pi.streaming import astream as astream
    from looopy.compat.pi.streaming import stream as stream
    from looopy.compat.pi.types import AgentEndEvent as AgentEndEvent
    from looopy.compat.pi.types import AgentEvent as AgentEvent
    from looopy.compat.pi.types import AgentLoopConfig as AgentLoopConfig
    from looopy.compat.pi.types import AgentMessage as AgentMessage
    from looopy.compat.pi.types import AgentStartEvent as AgentStartEvent
    from looopy.compat.pi.types import AgentTool as AgentTool
    from looopy.compat.pi.types import AgentToolResult as AgentToolResult
    from looopy.compat.pi.types import AgentToolUpdateCallback as AgentToolUpdateCallback
    from looopy.compat.pi.types import AssistantMessageEvent as AssistantMessageEvent
    from looopy.compat.pi.types import MessageEndEvent as MessageEndEvent
    from looopy.compat.pi.types import MessageStartEvent as MessageStartEvent
    from looopy.compat.pi.types import MessageUpdateEvent as MessageUpdateEvent
    from looopy.compat.pi.types import ThinkingBudgets as ThinkingBudgets
    from looopy.compat.pi.types import Tool as Tool
    from looopy.compat.pi.types import ToolExecutionEndEvent as ToolExecutionEndEvent
    from looopy.compat.pi.types import ToolExecutionStartEvent as ToolExecutionStartEvent
    from looopy.compat.pi.types import ToolExecutionUpdateEvent as ToolExecutionUpdateEvent
    from looopy.compat.pi.types import ToolHookContext as ToolHookContext
    from looopy.compat.pi.types import TurnEndEvent as TurnEndEvent
    from looopy.compat.pi.types import TurnStartEvent as TurnStartEvent
    from looopy.compat.pi.types import tool as tool
    from looopy.llm.pipy import Context as Context
    from looopy.llm.pipy import SimpleStreamOptions as SimpleStreamOptions
    from looopy.types.message import AssistantMessage as AssistantMessage
    from looopy.types.message import Cost as Cost
    from looopy.types.message import CustomMessage as CustomMessage
    from looopy.types.message import ImageContent as ImageContent
    from looopy.types.message import Message as Message
    from looopy.types.message import StopReason as StopReason
    from looopy.types.message import TextContent as TextContent
    from looopy.types.message import ThinkingContent as ThinkingContent
    from looopy.types.message import ToolCall as ToolCall
    from looopy.types.message import ToolResultMessage as ToolResultMessage
    from looopy.types.message import Usage as Usage
    from looopy.types.message import UserMessage as UserMessage
    from looopy.types.request import ThinkingLevel as ThinkingLevel

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
        ".streaming": ("astream", "stream"),
        ".types": (
            "AgentEndEvent",
            "AgentEvent",
            "AgentLoopConfig",
            "AgentMessage",
            "AgentStartEvent",
            "AgentTool",
            "AgentToolResult",
            "AgentToolUpdateCallback",
            "AssistantMessageEvent",
            "MessageEndEvent",
            "MessageStartEvent",
            "MessageUpdateEvent",
            "ThinkingBudgets",
            "Tool",
            "ToolExecutionEndEvent",
            "ToolExecutionStartEvent",
            "ToolExecutionUpdateEvent",
            "ToolHookContext",
            "TurnEndEvent",
            "TurnStartEvent",
            "tool",
        ),
        "looopy.llm.pipy": ("Context", "SimpleStreamOptions"),
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
        "looopy.types.request": ("ThinkingLevel",),
    },
)
