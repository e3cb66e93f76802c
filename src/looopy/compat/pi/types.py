"""
pi's and pipy-agent's tools, events and state.

Messages, blocks, usage, thinking levels and stop reasons are not here: ours are theirs, field for
field. The ten events mean what pi means: its agent run is our turn, its turn is our iteration.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from looopy.compat.pi.abort import AbortSignal
from looopy.errors import InvalidTool
from looopy.llm.provider import LLMProvider
from looopy.types.config import LoopConfig
from looopy.types.message import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResultMessage,
    UserBlock,
)
from looopy.types.request import PartialMessage, StreamEvent, ThinkingLevel, ToolSpec

AgentMessage: TypeAlias = Message
Tool: TypeAlias = ToolSpec
QueueMode: TypeAlias = Literal["one-at-a-time", "all"]


@dataclass(slots=True)
class AgentToolResult:
    """
    The result of a tool, or a partial one while it runs.

    Attributes:
        content: Text and image blocks, for the model.
        details: JSON for programs and logs, never for the model.
    """

    content: Sequence[UserBlock] = field(default_factory=list)
    details: Any = None


AgentToolUpdateCallback: TypeAlias = Callable[[AgentToolResult], None]


class AgentTool:
    """
    A tool in pi's form: made by `@tool`, or a subclass that overrides `execute`.

    A subclass may set its fields as class attributes. Failure is an exception; its text is what the
    model sees.

    Args:
        name: 1 to 64 of `A-Z a-z 0-9 _ -`.
        description: For the model.
        parameters: JSON Schema of type object.
        label: For people.
        **options: Further options of `looopy.Tool`, such as `effects` or `timeout_s`.
    """

    name: str = ""
    description: str = ""
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}}
    label: str = ""

    def __init__(
        self,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        label: str | None = None,
        **options: Any,
    ) -> None:
        given = {
            "name": name,
            "description": description,
            "parameters": parameters,
            "label": label,
        }
        for key, value in given.items():
            if value is not None:
                setattr(self, key, value)
        self.options: Mapping[str, Any] = options

    async def execute(
        self,
        tool_call_id: str,
        params: dict[str, Any],
        signal: AbortSignal | None = None,
        on_update: AgentToolUpdateCallback | None = None,
    ) -> AgentToolResult:
        """
        Run one call.

        Args:
            tool_call_id: The model's name for it.
            params: Valid by `parameters`.
            signal: Set when the tool should stop.
            on_update: Shows a partial result.

        Raises:
            Exception: Any: the call failed.
        """
        raise NotImplementedError(f"tool {self.name!r} does not implement execute()")

    def to_tool(self) -> ToolSpec:
        """The tool as the model sees it: neither label nor code."""
        return ToolSpec(
            name=self.name, description=self.description, parameters=dict(self.parameters)
        )

    def __repr__(self) -> str:
        return f"<AgentTool {self.name}>"


class _FunctionTool(AgentTool):
    def __init__(self, function: Callable[..., Awaitable[Any]], **fields: Any) -> None:
        super().__init__(**fields)
        self.function = function

    async def execute(
        self,
        tool_call_id: str,
        params: dict[str, Any],
        signal: AbortSignal | None = None,
        on_update: AgentToolUpdateCallback | None = None,
    ) -> Any:
        return await self.function(tool_call_id, params, signal, on_update)


def tool(
    name: str, description: str, parameters: Mapping[str, Any], label: str = "", **options: Any
) -> Callable[[Callable[..., Awaitable[Any]]], AgentTool]:
    """
    Make an `AgentTool` of an async function of `(tool_call_id, params, signal, on_update)`.

    Args:
        name: See `AgentTool`, as for the others.
        label: The name, when empty.

    Raises:
        InvalidTool: The decorated object is not an async function.
    """

    def decorate(function: Callable[..., Awaitable[Any]]) -> AgentTool:
        if not inspect.iscoroutinefunction(function):
            raise InvalidTool(
                f"tool {name!r}: pi's @tool takes an `async def`; looopy.tool takes any function"
            )
        return _FunctionTool(
            function,
            name=name,
            description=description,
            parameters=parameters,
            label=label or name,
            **options,
        )

    return decorate


@dataclass(frozen=True, slots=True)
class AgentStartEvent:
    """A run begins: one prompt, up to the answer."""

    type: ClassVar[Literal["agent_start"]] = "agent_start"


@dataclass(frozen=True, slots=True)
class AgentEndEvent:
    """The run is over. `messages`: all that it added, prompts included."""

    type: ClassVar[Literal["agent_end"]] = "agent_end"
    messages: Sequence[AgentMessage] = ()


@dataclass(frozen=True, slots=True)
class TurnStartEvent:
    """One model call and its tools begin."""

    type: ClassVar[Literal["turn_start"]] = "turn_start"


@dataclass(frozen=True, slots=True)
class TurnEndEvent:
    """
    One model call and its tools are done.

    `message` is `None` if a run continued with tool calls that an earlier one had announced.
    """

    type: ClassVar[Literal["turn_end"]] = "turn_end"
    message: AssistantMessage | None = None
    tool_results: Sequence[ToolResultMessage] = ()


@dataclass(frozen=True, slots=True)
class MessageStartEvent:
    """A message begins; an assistant's is empty yet."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class MessageUpdateEvent:
    """The assistant's message grows. `assistant_event` is the provider's own event."""

    type: ClassVar[Literal["message_update"]] = "message_update"
    partial: PartialMessage
    assistant_event: StreamEvent

    @property
    def message(self) -> AssistantMessage:
        """The message so far: read it at once, because it keeps growing."""
        return self.partial.snapshot()


@dataclass(frozen=True, slots=True)
class MessageEndEvent:
    """A message is final, and stored."""

    type: ClassVar[Literal["message_end"]] = "message_end"
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class ToolExecutionStartEvent:
    """A tool is about to run, or would have."""

    type: ClassVar[Literal["tool_execution_start"]] = "tool_execution_start"
    tool_call_id: str
    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolExecutionUpdateEvent:
    """A running tool shows a partial result."""

    type: ClassVar[Literal["tool_execution_update"]] = "tool_execution_update"
    tool_call_id: str
    tool_name: str
    partial_result: AgentToolResult | None = None


@dataclass(frozen=True, slots=True)
class ToolExecutionEndEvent:
    """A tool call has its result."""

    type: ClassVar[Literal["tool_execution_end"]] = "tool_execution_end"
    tool_call_id: str
    tool_name: str
    result: AgentToolResult | None = None
    is_error: bool = False


AgentEvent: TypeAlias = (
    AgentStartEvent
    | AgentEndEvent
    | TurnStartEvent
    | TurnEndEvent
    | MessageStartEvent
    | MessageUpdateEvent
    | MessageEndEvent
    | ToolExecutionStartEvent
    | ToolExecutionUpdateEvent
    | ToolExecutionEndEvent
)

ConvertToLlmFn: TypeAlias = Callable[[list[AgentMessage]], Any]
TransformContextFn: TypeAlias = Callable[[list[AgentMessage], AbortSignal | None], Any]
GetApiKeyFn: TypeAlias = Callable[[str], Any]
GetMessagesFn: TypeAlias = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class ToolHookContext:
    """
    The argument of `before_tool_call` and `after_tool_call`.

    Attributes:
        messages: The history up to the call.
        result: The result of the call; `None` before it.
    """

    assistant_message: AssistantMessage | None
    tool_call: ToolCall
    args: Mapping[str, Any]
    messages: Sequence[AgentMessage] = ()
    result: AgentToolResult | None = None
    is_error: bool = False


class ThinkingBudgets(dict[str, int]):
    """Thinking tokens by level, as `ThinkingBudgets(low=2048)`: a dictionary of those given."""

    def __init__(
        self,
        *,
        minimal: int | None = None,
        low: int | None = None,
        medium: int | None = None,
        high: int | None = None,
    ) -> None:
        given = {"minimal": minimal, "low": low, "medium": medium, "high": high}
        super().__init__({level: tokens for level, tokens in given.items() if tokens is not None})


ToolHook: TypeAlias = Callable[[ToolHookContext, AbortSignal | None], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoopConfig:
    """
    How a run calls the model and its tools.

    Attributes:
        model: A name as `looopy.llm.resolve_provider` takes it, or a provider.
        stream_fn: pi's stream function, or the module `pipy_ai`: see `looopy.llm.PipyProvider`.
        reasoning: `OFF` and `None` ask for none.
        max_retry_delay_ms: A longer delay asked for by the server fails at once; 0: no cap.
        tool_execution: `"parallel"`: tools overlap.
        before_tool_call: May return `{"block": True, "reason": ...}`.
        after_tool_call: May return the changed ones of `content`, `details` and `is_error`.
        loop: Limits that pi does not have.
    """

    model: str | LLMProvider
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning: ThinkingLevel | None = None
    session_id: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    thinking_budgets: Mapping[str, int] | None = None
    max_retry_delay_ms: int | None = None
    tool_execution: Literal["sequential", "parallel"] = "sequential"
    before_tool_call: ToolHook | None = None
    after_tool_call: ToolHook | None = None
    stream_fn: Any = None
    loop: LoopConfig = field(default_factory=LoopConfig)
