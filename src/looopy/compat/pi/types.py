"""
pi's and pipy-agent's tools, events and state.

Messages, blocks, usage, thinking levels and stop reasons are not here: ours are theirs, field for
field. The ten events mean what pi means: its agent run is our turn, its turn is our iteration.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from looopy.compat.pi.abort import AbortSignal
from looopy.errors import ConfigurationError, InvalidTool
from looopy.llm.anthropic.format import THINKING_BUDGETS
from looopy.llm.provider import LLMProvider
from looopy.types.config import LoopConfig
from looopy.types.dumping import Dumps
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
AssistantMessageEvent: TypeAlias = StreamEvent
QueueMode: TypeAlias = Literal["one-at-a-time", "all"]
Order: TypeAlias = Literal["0.58", "1.6"]


@dataclass(slots=True)
class AgentToolResult(Dumps):
    """
    The result of a tool, or a partial one while it runs.

    Attributes:
        content: Text and image blocks, for the model.
        details: JSON for programs and logs, never for the model.
    """

    content: Sequence[UserBlock] = field(default_factory=list)
    details: Any = None


AgentToolUpdateCallback: TypeAlias = Callable[[AgentToolResult], None]


class AgentTool(Dumps):
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

    def __dump__(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "label": self.label,
        }

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
class AgentStartEvent(Dumps):
    """A run begins: one prompt, up to the answer."""

    type: ClassVar[Literal["agent_start"]] = "agent_start"


@dataclass(frozen=True, slots=True)
class AgentEndEvent(Dumps):
    """The run is over. `messages`: all that it added, prompts included."""

    type: ClassVar[Literal["agent_end"]] = "agent_end"
    messages: Sequence[AgentMessage] = ()


@dataclass(frozen=True, slots=True)
class TurnStartEvent(Dumps):
    """One model call and its tools begin."""

    type: ClassVar[Literal["turn_start"]] = "turn_start"


@dataclass(frozen=True, slots=True)
class TurnEndEvent(Dumps):
    """
    One model call and its tools are done.

    `message` is `None` if a run continued with tool calls that an earlier one had announced.
    """

    type: ClassVar[Literal["turn_end"]] = "turn_end"
    message: AssistantMessage | None = None
    tool_results: Sequence[ToolResultMessage] = ()


@dataclass(frozen=True, slots=True)
class MessageStartEvent(Dumps):
    """A message begins; an assistant's is empty yet."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class MessageUpdateEvent(Dumps):
    """The assistant's message grows. `assistant_event` is the provider's own event."""

    type: ClassVar[Literal["message_update"]] = "message_update"
    partial: PartialMessage
    assistant_event: StreamEvent

    @property
    def message(self) -> AssistantMessage:
        """The message so far: read it at once, because it keeps growing."""
        return self.partial.snapshot()

    def __dump__(self) -> dict[str, Any]:
        said = self.assistant_event
        event = {one.name: getattr(said, one.name) for one in fields(said) if one.name != "partial"}
        event["error"] = None if said.error is None else str(said.error)
        return {"type": self.type, "message": self.message, "assistant_event": event}


@dataclass(frozen=True, slots=True)
class MessageEndEvent(Dumps):
    """A message is final, and stored."""

    type: ClassVar[Literal["message_end"]] = "message_end"
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class ToolExecutionStartEvent(Dumps):
    """A tool is about to run, or would have."""

    type: ClassVar[Literal["tool_execution_start"]] = "tool_execution_start"
    tool_call_id: str
    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolExecutionUpdateEvent(Dumps):
    """A running tool shows a partial result."""

    type: ClassVar[Literal["tool_execution_update"]] = "tool_execution_update"
    tool_call_id: str
    tool_name: str
    partial_result: AgentToolResult | None = None


@dataclass(frozen=True, slots=True)
class ToolExecutionEndEvent(Dumps):
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


class ThinkingBudgets(dict[str, int], Dumps):
    """
    Thinking tokens by level, as `ThinkingBudgets(low=2048)`: a dictionary of those given.

    Each level is an attribute too; one that was not given has pi's default.
    """

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

    def __getattr__(self, level: str) -> int:
        if level not in THINKING_BUDGETS:
            raise AttributeError(f"thinking budgets have no level {level!r}")
        return self.get(level, THINKING_BUDGETS[level])

    def __dump__(self) -> dict[str, int]:
        return {**THINKING_BUDGETS, **self}


ToolHook: TypeAlias = Callable[[ToolHookContext, AbortSignal | None], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoopConfig(Dumps):
    """
    How a run calls the model and its tools.

    Attributes:
        model: A name as `looopy.llm.resolve_provider` takes it, or a provider.
        stream_fn: pi's stream function, or the module `pipy_ai`: see `looopy.llm.PipyProvider`.
        reasoning: `OFF` and `None` ask for none.
        max_retry_delay_ms: A longer delay asked for by the server fails at once; 0: no cap.
        tool_execution: `"parallel"`: tools overlap. By default `"sequential"`; with order 1.6
            `"parallel"`, as in pi.
        order: The release of pi whose order of events and steering the run has: see
            `looopy.compat.pi.order`.
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
    tool_execution: Literal["sequential", "parallel"] | None = None
    order: Order = "0.58"
    before_tool_call: ToolHook | None = None
    after_tool_call: ToolHook | None = None
    stream_fn: Any = None
    loop: LoopConfig = field(default_factory=LoopConfig)

    def __post_init__(self) -> None:
        if self.tool_execution not in (None, "sequential", "parallel"):
            raise ConfigurationError("tool_execution must be 'sequential' or 'parallel'")
        if self.order not in ("0.58", "1.6"):
            raise ConfigurationError("order must be '0.58' or '1.6'")

    @property
    def overlaps(self) -> bool:
        """True if tools overlap."""
        return (self.tool_execution or _TOOLS_OF[self.order]) == "parallel"


_TOOLS_OF: Mapping[Order, str] = {"0.58": "sequential", "1.6": "parallel"}
