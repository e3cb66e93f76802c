"""
Messages of a context, their blocks, and the usage of a model call.

The vocabulary is pipy-ai's and pi's, field for field and value for value, so that a message written
by either is one of ours: snake_case keys, values such as `toolResult` and `toolCall`, timestamps as
integer milliseconds since 1970. `looopy.types.message_json` reads and writes it.

Messages are frozen and never edited: the log is evidence. The request to a model is rendered from
it (`looopy.llm.render`).
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeAlias

from looopy.errors import ValueRefused
from looopy.types.constructors import quick
from looopy.types.dumping import Dumps


class StopReason(StrEnum):
    """
    Why a model stopped generating (the first six, pi's values, and `paused`), or why a turn ended.

    The next answer continues a `paused` one: the provider's server wants it back first.
    """

    STOP = "stop"
    LENGTH = "length"
    TOOL_USE = "toolUse"
    ERROR = "error"
    ABORTED = "aborted"
    SENSITIVE = "sensitive"
    PAUSED = "paused"
    MAX_ITERATIONS = "max_iterations"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TOOL_FAILURES = "max_tool_failures"
    DOOM_LOOP = "doom_loop"
    BUDGET = "budget"
    DEADLINE = "deadline"
    CONTENT_FILTER = "content_filter"
    CANCELLED = "cancelled"
    INPUT_REQUIRED = "input_required"
    AUTH_REQUIRED = "auth_required"
    INTERRUPTED = "interrupted"


def now_ms() -> int:
    """Milliseconds since 1970, UTC: the unit of message timestamps."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation(Dumps):
    """
    A source of a text, as the provider names it; ours, absent in pi.

    Attributes:
        url: Where the source is, if it has an address.
        title: Its title, or the name of the file.
        text: The cited passage, if the provider quotes it.
        raw: The citation as it came, which goes back to the model that made it.
    """

    url: str | None = None
    title: str | None = None
    text: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)


@quick
@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """
    A token of an answer and its probability; ours, absent in pi.

    Attributes:
        token: Its text. Several tokens may share one character.
        logprob: The natural logarithm of its probability; -9999.0 for one that is most unlikely.
        top: The likeliest tokens in its place, itself among them, without a `top` of their own.
    """

    token: str
    logprob: float
    top: Sequence["TokenLogprob"] = ()


@quick
@dataclass(frozen=True, slots=True)
class TextContent(Dumps):
    """
    A block of text. `text_signature` is opaque and replayed unchanged.

    `citations` are the sources of an answer's text.
    """

    type: ClassVar[str] = "text"
    text: str = ""
    _: KW_ONLY
    text_signature: str | None = None
    citations: Sequence[Citation] = ()


@quick
@dataclass(frozen=True, slots=True)
class ThinkingContent(Dumps):
    """
    A block of reasoning. `thinking_signature` is opaque and replayed unchanged.

    `redacted` means that the provider hid the reasoning: the signature then holds all of it,
    encrypted.
    """

    type: ClassVar[str] = "thinking"
    thinking: str = ""
    _: KW_ONLY
    thinking_signature: str | None = None
    redacted: bool = False


@dataclass(frozen=True, slots=True)
class ImageContent(Dumps):
    """An image: `data` in base64, or the `url` from which the provider loads it."""

    type: ClassVar[str] = "image"
    data: str = ""
    _: KW_ONLY
    mime_type: str = "image/png"
    url: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentContent(Dumps):
    """
    A document, such as a PDF: `data` in base64, or the `url` from which the provider loads it.

    `name` is the file's name, which the model may see. With `cite` the answer cites it, where the
    API does that. pi has no such block.
    """

    type: ClassVar[str] = "document"
    data: str = ""
    _: KW_ONLY
    mime_type: str = "application/pdf"
    url: str | None = None
    name: str | None = None
    cite: bool = False


@dataclass(frozen=True, slots=True)
class AudioContent(Dumps):
    """A recording, base64-encoded. pi has no such block."""

    type: ClassVar[str] = "audio"
    data: str = ""
    _: KW_ONLY
    mime_type: str = "audio/wav"


@quick
@dataclass(frozen=True, slots=True)
class ToolCall(Dumps):
    """
    A model's request to run a tool.

    `arguments` is the JSON object it sent. If it sent anything else, `invalid_arguments` keeps that
    as sent (ours, absent in pi), and `arguments` is empty.
    """

    type: ClassVar[str] = "toolCall"
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    thought_signature: str | None = None
    invalid_arguments: str | None = None


@dataclass(frozen=True, slots=True)
class ServerToolCall(Dumps):
    """
    A tool that the provider's own server ran, such as its web search; ours, absent in pi.

    looopy runs nothing for it. `item` is the provider's block as it came, which goes back to the
    model that made it; a block that looopy does not know is one of these, named after its type.
    """

    type: ClassVar[str] = "serverToolCall"
    id: str = ""
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    item: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerToolResult(Dumps):
    """The result of a `ServerToolCall`, where the provider sends it as a block of its own."""

    type: ClassVar[str] = "serverToolResult"
    tool_call_id: str = ""
    tool_name: str = ""
    _: KW_ONLY
    item: Mapping[str, Any] = field(default_factory=dict)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Dumps):
    """
    US dollars.

    `complete` is false for a sum that lacks calls without a known price.
    """

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0
    total: float = 0.0
    complete: bool = True

    def __add__(self, other: "Cost") -> "Cost":
        if other is NO_COST:
            return self
        if self is NO_COST:
            return other
        return Cost(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            total=self.total + other.total,
            complete=self.complete and other.complete,
        )


NO_COST: Final = Cost()  # one for all, as it cannot be changed


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Dumps):
    """
    Tokens of one or more model calls. `input` leaves out the tokens that the cache served.

    `total_tokens` is the sum of the others if a provider leaves it out, because limits compare it.
    `reasoning` is a part of `output`: tokens of thought, as far as the provider counts them. `cost`
    is `None` if the price is unknown. Zero usage has a known cost of zero.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost: Cost | None = None
    reasoning: int = 0

    def __post_init__(self) -> None:
        if type(self.total_tokens) is not int or self.total_tokens:
            return
        into, out, read, wrote = self.input, self.output, self.cache_read, self.cache_write
        if type(into) is type(out) is type(read) is type(wrote) is int:  # others are refused later
            some = into | out | read | wrote
            if some > 0:  # other code refuses what is below zero
                object.__setattr__(self, "total_tokens", into + out + read + wrote)
            elif not some and self.cost is None:
                object.__setattr__(self, "cost", NO_COST)

    def __add__(self, other: "Usage") -> "Usage":
        if other is NO_USAGE:
            return self
        if self is NO_USAGE:
            return other
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            total_tokens=self.total_tokens + other.total_tokens,
            cost=_sum_of_costs(self, other),
            reasoning=self.reasoning + other.reasoning,
        )

    @property
    def is_priced(self) -> bool:
        """True if the whole cost is known."""
        return self.cost is not None and self.cost.complete


TOKENS: Final = ("input", "output", "cache_read", "cache_write", "total_tokens", "reasoning")
DOLLARS: Final = ("input", "output", "cache_read", "cache_write", "total")
"""The counts of a `Usage`, and the parts of a `Cost`."""


def _is_none(usage: Usage) -> bool:
    for count in (usage.total_tokens, usage.input, usage.output, usage.cache_read):
        if type(count) is not int or count:  # other code refuses a value that is not a number
            return False
    return type(usage.cache_write) is int and usage.cache_write == 0


def _sum_of_costs(one: Usage, other: Usage) -> Cost | None:
    if one.cost is not None and other.cost is not None:
        return one.cost + other.cost
    if _is_none(one):
        return other.cost
    if _is_none(other):
        return one.cost
    known = other.cost if one.cost is None else one.cost
    return None if known is None else replace(known, complete=False)


NO_USAGE: Final = Usage()


def _as_blocks(content: Any) -> tuple[Any, ...]:
    """A plain string becomes one text block, any other sequence its items."""
    if isinstance(content, str):
        return (TextContent(content),) if content else ()
    return _as_tuple(content)


def _as_tuple(content: Any) -> tuple[Any, ...]:
    if isinstance(content, (bytes, bytearray, Mapping)) or not isinstance(content, Iterable):
        raise ValueRefused(
            f"/content: must be text or a list of blocks, not {type(content).__name__}",
            path="/content",
        )
    return tuple(content)


UserBlock: TypeAlias = TextContent | ImageContent | DocumentContent | AudioContent


def url_of(block: UserBlock) -> str | None:
    """The URL from which a provider loads *block*; `None` if it brings its data."""
    return block.url if isinstance(block, (ImageContent, DocumentContent)) else None


AssistantBlock: TypeAlias = (
    TextContent | ThinkingContent | ToolCall | ServerToolCall | ServerToolResult
)


@quick
@dataclass(frozen=True, slots=True)
class UserMessage(Dumps):
    """A message of the user: a string, or blocks of text, images, documents and audio in order."""

    role: ClassVar[str] = "user"
    content: str | Sequence[UserBlock] = ""
    _: KW_ONLY
    timestamp: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        if not isinstance(self.content, (str, tuple)):
            object.__setattr__(self, "content", _as_tuple(self.content))

    @property
    def text(self) -> str:
        """The text alone, blocks joined by newlines."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(b.text for b in self.content if isinstance(b, TextContent))


@quick
@dataclass(frozen=True, slots=True)
class AssistantMessage(Dumps):
    """
    An answer of the model: text, thinking and tool calls in order; a string becomes one text block.

    `response_id` is the provider's name for the answer, as its logs and its support know it.
    `logprobs` belong to its tokens, if `ModelOptions.logprobs` asked for them.
    """

    role: ClassVar[str] = "assistant"
    content: Sequence[AssistantBlock] = ()
    _: KW_ONLY
    api: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage = NO_USAGE
    stop_reason: StopReason = StopReason.STOP
    error_message: str | None = None
    timestamp: int = field(default_factory=now_ms)
    response_id: str | None = None
    logprobs: Sequence[TokenLogprob] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.content, tuple):
            object.__setattr__(self, "content", _as_blocks(self.content))

    @property
    def text(self) -> str:
        """The text alone, blocks joined by newlines."""
        return "\n".join(b.text for b in self.content if isinstance(b, TextContent))

    @property
    def citations(self) -> list[Citation]:
        """The sources of the text, in order."""
        return [c for b in self.content if isinstance(b, TextContent) for c in b.citations]

    @property
    def thinking_text(self) -> str:
        """The thinking alone, blocks joined by newlines."""
        return "\n".join(b.thinking for b in self.content if isinstance(b, ThinkingContent))

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The announced tool calls, in order."""
        return [b for b in self.content if isinstance(b, ToolCall)]


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultMessage(Dumps):
    """The result of a tool call. `details` is for programs and logs, never for the model."""

    role: ClassVar[str] = "toolResult"
    tool_call_id: str = ""
    tool_name: str = ""
    content: Sequence[UserBlock] = ()
    details: Any = None
    is_error: bool = False
    timestamp: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        if not isinstance(self.content, tuple):
            object.__setattr__(self, "content", _as_blocks(self.content))

    @property
    def text(self) -> str:
        """The text alone, blocks joined by newlines."""
        return "\n".join(b.text for b in self.content if isinstance(b, TextContent))


@dataclass(frozen=True, slots=True)
class CustomMessage(Dumps):
    """A message of the application's own role: stored with the rest, left out of model requests."""

    role: str
    content: Any = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    timestamp: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        if not isinstance(self.role, str) or self.role in ("", "user", "assistant", "toolResult"):
            shown = repr(self.role) if isinstance(self.role, str) else type(self.role).__name__
            raise ValueRefused(f"/role: {shown} is not the role of a custom message", path="/role")

    @property
    def text(self) -> str:
        """`content`, if it is text; else empty."""
        return self.content if isinstance(self.content, str) else ""


Message: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage | CustomMessage
Block: TypeAlias = UserBlock | AssistantBlock
