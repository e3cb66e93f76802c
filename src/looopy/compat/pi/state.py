"""What pi's agent is and does now, brought up to date by its own events."""

from __future__ import annotations

from dataclasses import dataclass, field

from looopy.compat.pi.types import (
    AgentEndEvent,
    AgentEvent,
    AgentMessage,
    AgentTool,
    MessageEndEvent,
    MessageStartEvent,
    MessageUpdateEvent,
    ToolExecutionEndEvent,
    ToolExecutionStartEvent,
    TurnEndEvent,
)
from looopy.llm.provider import LLMProvider
from looopy.tools.gather import ToolSource
from looopy.types.message import AssistantMessage
from looopy.types.request import PartialMessage, ThinkingLevel


@dataclass(slots=True)
class AgentState:
    """
    What an agent is and does now. It is brought up to date before listeners hear of the same event.

    Attributes:
        stream_message: The answer that is being written, as far as it is.
        pending_tool_calls: Ids of calls that run.
        error: Why the last run failed.
    """

    system_prompt: str = ""
    model: str | LLMProvider = ""
    thinking_level: ThinkingLevel = ThinkingLevel.OFF
    tools: list[AgentTool | ToolSource] = field(default_factory=list)
    messages: list[AgentMessage] = field(default_factory=list)
    is_streaming: bool = False
    pending_tool_calls: set[str] = field(default_factory=set)
    error: str | None = None
    _growing: AssistantMessage | PartialMessage | None = field(default=None, repr=False)

    @property
    def stream_message(self) -> AssistantMessage | None:
        """See above."""
        growing = self._growing
        if growing is None or isinstance(growing, AssistantMessage):
            return growing
        return growing.snapshot()

    def begin(self) -> None:
        """Take note that a run begins."""
        self.rest()
        self.is_streaming, self.error = True, None

    def rest(self) -> None:
        """Take note that nothing runs; the error of what did stays."""
        self.is_streaming, self._growing = False, None
        self.pending_tool_calls = set()

    def follow(self, event: AgentEvent, error: str | None) -> None:
        """Take note of *event*; *error*: why the run failed, as far as it is known."""
        if isinstance(event, MessageStartEvent) and isinstance(event.message, AssistantMessage):
            self._growing = event.message
        elif isinstance(event, MessageUpdateEvent):
            self._growing = event.partial
        elif isinstance(event, MessageEndEvent):
            self._growing = None
            self.messages.append(event.message)
        elif isinstance(event, ToolExecutionStartEvent):
            self.pending_tool_calls.add(event.tool_call_id)
        elif isinstance(event, ToolExecutionEndEvent):
            self.pending_tool_calls.discard(event.tool_call_id)
        elif isinstance(event, (TurnEndEvent, AgentEndEvent)):
            self.error = error
            self.is_streaming = isinstance(event, TurnEndEvent)
