"""The state of pi's agent, kept up to date by its own events."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from looopy.agent.agent import Agent
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
from looopy.errors import AgentStateError, ConfigurationError
from looopy.llm.provider import LLMProvider
from looopy.tools.gather import ToolSource
from looopy.types.dumping import Dumps
from looopy.types.message import AssistantMessage, Message
from looopy.types.request import PartialMessage, ThinkingLevel


@dataclass(slots=True)
class AgentState(Dumps):
    """
    The state of an agent. It is updated before listeners get the same event.

    Attributes:
        stream_message: The current answer, as far as it is written.
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

    def __dump__(self) -> dict[str, Any]:
        data = {one.name: getattr(self, one.name) for one in fields(self) if one.repr}
        return {**data, "stream_message": self.stream_message}

    def begin(self) -> None:
        """Take note that a run begins."""
        self.rest()
        self.is_streaming, self.error = True, None

    def rest(self) -> None:
        """Take note that nothing runs; the error of what did stays."""
        self.is_streaming, self._growing = False, None
        self.pending_tool_calls = set()

    def follow(self, event: AgentEvent, error: str | None) -> None:
        """Update from *event*; *error*: why the run failed, as far as it is known."""
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


_logger = logging.getLogger("looopy")


class Listeners:
    """Plain functions, called in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[AgentEvent], object]] = []

    def add(self, listener: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """
        Call *listener* with every event; returns a function that ends that.

        Raises:
            ConfigurationError: It is a coroutine function, which would never be awaited.
        """
        if inspect.iscoroutinefunction(listener):
            raise ConfigurationError("subscribe() takes a plain function: it is not awaited")
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def tell(self, event: AgentEvent, context_id: str) -> None:
        """Call every listener; a failure is logged, and affects neither the others nor the run."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                _logger.exception("a listener of agent %s failed", context_id)


class Mirror:
    """
    The messages in the context of *agent*, as far as this process has written or read them.

    Attributes:
        replaced: The list was replaced: the messages of the context are not to be read into it.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._held: list[Message] = []
        self.replaced = False

    def said(self, message: Message) -> None:
        """Count a message that a run has added; the list has it."""
        self._held.append(message)

    async def read(self, messages: list[Message]) -> None:
        """Put what the context holds at the beginning of *messages*."""
        before, self._held = self._held, list(await self._agent.get_messages())
        if not self.replaced and messages[: len(before)] == before:
            messages[: len(before)] = self._held

    async def write(self, messages: Sequence[Message]) -> bool:
        """
        Make the context hold *messages*; whether something else had to be hidden for it.

        Raises:
            AgentBusy: The context is in use.
            ValueRefused: A message cannot be stored.
        """
        held = self._held
        new = messages[len(held) :]
        other = len(messages) < len(held) or any(
            a is not b and a != b for a, b in zip(messages, held, strict=False)
        )
        if other:
            await self._agent.clear()
            self._held, new = [], messages
        self.replaced = False
        if new:
            await self.append(new)
            self._held += new
        return other

    async def append(self, messages: Sequence[Message]) -> None:
        """Store *messages* after the existing ones."""
        stores = self._agent.__stores__()
        if stores is None:
            raise AgentStateError("the agent was closed in between")
        await stores.messages.append(self._agent.context_id, messages)
