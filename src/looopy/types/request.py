"""
A call of a model: the request, its options, and the provider's stream events.

The twelve stream events are pi's: `start`, three of each of `text_*`, `thinking_*` and `toolcall_*`
(`start`, `delta`, `end`), `done` and `error`. Two more are ours: `servertool_start` and
`servertool_end`, about a tool that the provider's own server runs.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from looopy.types.constructors import quick
from looopy.types.context import PromptPart
from looopy.types.message import (
    AssistantMessage,
    Message,
    ServerToolCall,
    ServerToolResult,
    ToolCall,
)

TOOLS_LEFT_OUT: Final = "tools"
"""The code of the warning that a model does not get some of the tools."""


class ThinkingLevel(StrEnum):
    """How much a model may reason before it answers."""

    OFF = "off"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """
    A tool as a model sees it. `parameters` is a JSON Schema of type object.

    With `strict` the server holds the model to it; a provider that cannot ask for that refuses.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class LLMRequest:
    """
    One model call.

    Attributes:
        messages: Oldest first, valid for a provider (see `looopy.llm.render`). May be kept: neither
            the messages nor the sequence change later. Not always a list.
        tools: The tools that the model may call; may be empty.
        system_prompt: Empty for none.
        model: The provider's own name for the model; empty lets the provider choose.
        prompts: The parts of the system prompt and of the text after the messages, in order and
            with their texts: only parts with a name, a version or metadata.
        ephemeral: True if the last block of the last message belongs to this call alone. The next
            call will not have it, so a prompt cache should end before it.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    system_prompt: str = ""
    model: str = ""
    prompts: Sequence[PromptPart] = ()
    ephemeral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RateQuota:
    """
    One limit of a server, as the headers of a response report it.

    Attributes:
        kind: What it counts, and its period if the server names one: `requests`, `tokens`,
            `input_tokens`, `requests_day`.
        left: How many are left.
        limit: The most; `None`: not reported.
        resets_at: When all are back: aware, UTC; `None`: not reported.
    """

    kind: str
    left: int
    limit: int | None = None
    resets_at: datetime | None = None

    @property
    def is_low(self) -> bool:
        """True if at most a fifth is left."""
        return not self.left or (self.limit is not None and self.left * 5 <= self.limit)


class RateLimits(NamedTuple):
    """
    The limits that one response reports.

    Attributes:
        limits: In the order of the headers; () for a refusal without such headers.
        refused: The server refused the call because of a limit.
        retry_at: When it may be called again: aware, UTC; `None`: it names no time.
    """

    provider: str
    model: str
    limits: Sequence[RateQuota] = ()
    refused: bool = False
    retry_at: datetime | None = None


class Reroute(NamedTuple):
    """
    Another model answers than the one that was asked.

    Attributes:
        asked: Provider and model, such as `openai/gpt-5-mini`.
        answered: The same of the model that answers.
        by: `fallback`: a `FallbackProvider` called it; `server`: the server chose it.
        reason: Why; empty if the server does not give a reason.
    """

    asked: str
    answered: str
    by: Literal["fallback", "server"]
    reason: str = ""


Report: TypeAlias = RateLimits | Reroute


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """
    How a model call is made. `None` leaves the choice to the provider.

    Attributes:
        timeout_s: The longest that the call may take as a whole.
        connect_timeout_s: The longest wait for a connection.
        idle_timeout_s: The longest silence within an answer; before its first word a model may
            think three times as long.
        logprobs: Keep the log-probability of each token, with so many of the likeliest tokens in
            its place.
        key_of: Returns the API key for the name of a provider; used by a provider that calls
            several others. `api_key` is then not set.
        warn: Called with a code and a sentence that the user should see while the call runs; it
            becomes a `warning` event.
        report: Called with what a response says beside the answer; the loop makes events of it.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    thinking_level: ThinkingLevel | None = None
    thinking_budgets: Mapping[str, int] | None = None
    stop: Sequence[str] = ()
    seed: int | None = None
    logprobs: int | None = None
    tool_choice: str | None = None
    output_schema: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float | None = None
    connect_timeout_s: float | None = None
    idle_timeout_s: float | None = None
    key_of: Callable[[str], Awaitable[str | None]] | None = field(
        default=None, repr=False, compare=False
    )
    warn: Callable[[str, str], None] | None = field(default=None, repr=False, compare=False)
    report: Callable[[Report], None] | None = field(default=None, repr=False, compare=False)


class PartialMessage(Protocol):
    """An assistant message as it grows, shared by reference with every event of its stream."""

    @property
    def text(self) -> str:
        """The text so far."""
        ...

    def snapshot(self) -> AssistantMessage:
        """A frozen copy of what has come so far: completed and open blocks alike."""
        ...


StreamEventType: TypeAlias = Literal[
    "start",
    "text_start",
    "text_delta",
    "text_end",
    "thinking_start",
    "thinking_delta",
    "thinking_end",
    "toolcall_start",
    "toolcall_delta",
    "toolcall_end",
    "servertool_start",
    "servertool_end",
    "done",
    "error",
]


@quick
@dataclass(frozen=True, slots=True)
class StreamEvent:
    """
    One event of a provider's stream.

    Attributes:
        type: One of pi's twelve, or `servertool_start` or `servertool_end`.
        content_index: The block of the message it belongs to, counted from 0.
        delta: The new piece of text, thinking or argument JSON (`*_delta`), or the whole block
            (`*_end`).
        partial: The message so far, by reference; do not keep it beyond the event.
        tool_call: The finished call (`toolcall_end`), or one without arguments with the id and the
            name that the provider has sent (`toolcall_start`). The committed call may have another
            id: if it came without one, or if another call of the turn has it.
        server_tool: The tool that the provider's own server runs (`servertool_*`), as far as it is
            known.
        message: The final message (`done` and `error`).
        error: The failure (`error`); its type shows if trying again may help.
    """

    type: StreamEventType
    content_index: int = 0
    delta: str = ""
    partial: PartialMessage | None = None
    tool_call: ToolCall | None = None
    message: AssistantMessage | None = None
    error: Exception | None = None
    server_tool: ServerToolCall | ServerToolResult | None = None
