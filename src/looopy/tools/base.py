"""
The contract of a tool, between the loop, which announces and runs calls, and the tool's author.

A tool is described once, for the model (`name`, `description`, `parameters`) and for the loop
(timeout, effects, handling after a crash). Failure is an exception; its text becomes the error
result that the model sees.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, runtime_checkable

from looopy.errors import InvalidTool, ValueRefused
from looopy.tools.asking import Ask, NeedsInput
from looopy.types.artifact import ArtifactWriter
from looopy.types.auth import AuthRequest
from looopy.types.constructors import quick, unknown_option
from looopy.types.context import AuthContext, CancelToken, TurnContext
from looopy.types.event import AgentEvent
from looopy.types.message import Usage, UserBlock
from looopy.types.request import ToolSpec
from looopy.types.state import PendingKind

Effects: TypeAlias = Literal["none", "idempotent", "external"]
OnResume: TypeAlias = Literal["rerun", "ask", "fail"]
Report: TypeAlias = Callable[[Any], None]
NeedsApproval: TypeAlias = (
    "bool | Callable[[Mapping[str, Any], ToolContext], bool | Awaitable[bool]]"
)
ApprovalPrompt: TypeAlias = str | Callable[[Mapping[str, Any]], str | Awaitable[str]]
Enabled: TypeAlias = Callable[[], bool] | Callable[[TurnContext], bool]
_logger = logging.getLogger("looopy")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """
    The result of a tool.

    Attributes:
        content: Blocks of text, images, documents and audio for the model; a plain string becomes
            one text block.
        details: For programs and logs; must be JSON. The model never sees it.
        is_error: The call failed; the model sees it as an error.
    """

    content: str | Sequence[UserBlock] = ""
    details: Any = None
    is_error: bool = False


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """
    The context of a running tool.

    Attributes:
        idempotency_key: Stable for this call, also when it runs again after a crash: pass it to
            services that deduplicate. It names context, turn and call.
        auth_context: Credentials of this turn; never keep them.
        artifacts: Writes artifacts of this context, or `None` in a bare loop.
        report: Show progress (any JSON value; a number from 0 to 1 is a fraction). Callable from
            threads.
        show: Show an event of another agent that works for this call, in the stream of the turn and
            nowhere else: it is not stored, loses its `seq` and has a `path`, by default
            `("tool:NAME",)`. From the event loop only.
        charge: Count the usage of a model call of the tool's own against the turn's budget.
        stores: The stores of the context, for a tool that keeps contexts of its own; `None` in a
            bare loop.
        epoch: See `TurnContext`.
        cancel: Set when a long-running tool should stop.
        answers: The answers to this call so far, by the key of the question.
        answered_by: The actors who gave them, where they are not the turn's own.
        state: The `state` of the last `NeedsInput` that the tool raised.
    """

    context_id: str
    turn: int
    tool_call_id: str
    idempotency_key: str
    auth_context: AuthContext | None = None
    artifacts: ArtifactWriter | None = None
    report: Report = lambda _progress: None
    show: Callable[[AgentEvent], None] = lambda _event: None
    charge: Callable[[Usage], None] = lambda _usage: None
    stores: Any = field(default=None, repr=False)
    epoch: int | None = field(default=None, repr=False)
    cancel: CancelToken
    answers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    answered_by: Mapping[str, str] = field(default_factory=dict, repr=False)
    state: Any = field(default=None, repr=False)
    _asked: list[str] = field(default_factory=list, repr=False)

    @property
    def credentials(self) -> Mapping[str, Any]:
        """Those of this turn, by name; empty without an auth context. Never keep them."""
        return {} if self.auth_context is None else self.auth_context.credentials

    def ask(
        self,
        prompt: str,
        *,
        key: str = "",
        kind: PendingKind = PendingKind.INPUT,
        schema: Mapping[str, Any] | type[Any] | None = None,
        options: Sequence[Any] = (),
        expires_s: float | None = None,
        auth: AuthRequest | None = None,
    ) -> Awaitable[Any]:
        """
        Ask a person, and return the answer.

        Without an answer the call ends here and stays open, and the turn ends. After the answer,
        the tool runs again from its first line, and this returns the value. Do everything that must
        not happen twice after the last question.

        Args:
            prompt: One sentence for the person who answers.
            key: Identifies the question when the tool runs again; the prompt by default.
            kind: See `Ask`, as for all that follow.
            schema: JSON Schema of the value, or a pydantic model: the answer stays plain JSON.
            options: The choices.
            expires_s: After so many seconds it can no longer be answered.
            auth: The requested credentials. Use them within the call, and keep them nowhere.

        Raises:
            NeedsInput: The answer is not there yet: do not catch this.
            ValueRefused: The question is invalid; it is logged, as the model cannot help it.
            InvalidTool: The tool is not an `async def`, and so cannot wait for the answer.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            why = "context.ask() is awaited: a tool that asks must be `async def`"
            _logger.error("a question of a tool cannot be asked: %s", why)  # noqa: TRY400 - a trace says no more
            raise InvalidTool(why) from None
        question = {
            "kind": kind,
            "prompt": prompt,
            "schema": schema,
            "options": options,
            "expires_s": expires_s,
            "auth": auth,
        }
        return self._ask(key or prompt, question)

    async def _ask(self, key: str, question: Mapping[str, Any]) -> Any:
        self._asked.append(key)
        if (times := self._asked.count(key)) > 1:
            key = f"{key} #{times}"
        if key in self.answers:
            return self.answers[key]
        try:
            asked = NeedsInput([Ask(key, **question)], self.state)
        except ValueRefused as error:
            _logger.error("a question of a tool cannot be asked: %s", error)  # noqa: TRY400 - a trace says no more
            raise
        raise asked


class ToolOptions(TypedDict, total=False):
    """Options of `@tool`, which it hands on to `Tool`; see there for each."""

    label: str | None
    timeout_s: float | None
    parallel: bool
    effects: Effects
    on_resume: OnResume | None
    needs_approval: NeedsApproval
    approval_expires_s: float | None
    approval_prompt: ApprovalPrompt | None
    is_enabled: Enabled | None
    max_result_bytes: int | None
    coerce: bool
    retries: int
    retry_delay_s: float
    max_retry_calls: int


_UNSAFE_RETRIES: Final = (
    "retries makes calls again, which its effects do not allow: set effects='none' or 'idempotent',"
    " or raise RetryCall to leave it to the model"
)


class Tool:
    """
    A tool that a model may call. Make one with `@tool`, or subclass and override `execute`.

    Args:
        name: 1 to 64 of `A-Z a-z 0-9 _ -`.
        description: For the model: what it does and when to use it.
        parameters: JSON Schema of type object.
        label: For people; the name by default.
        timeout_s: `None`: the loop's `tool_timeout_s`.
        parallel: May run beside other parallel tools; otherwise it runs alone.
        effects: `"none"` (read only), `"idempotent"` (repeating is harmless), `"external"`
            (repeating may do harm).
        on_resume: The handling of a call whose process died while it ran: `"rerun"` it, `"ask"` a
            person, or `"fail"`: the model sees that the outcome is unknown. Default: rerun, or fail
            for external.
        needs_approval: A person allows each call before it runs: always, or if this function of the
            arguments and the `ToolContext`, sync or async, returns true. If the function fails, the
            person is asked.
        approval_expires_s: After so many seconds a request can no longer be approved; `None`:
            never.
        approval_prompt: The question to the person: text, or a function of the arguments, sync or
            async, that returns it. `None`, or if the function fails: a sentence of looopy's.
        is_enabled: Offered to the model only if this returns true: a function of the `TurnContext`,
            or without arguments, called in each iteration.
        max_result_bytes: `None`: the loop's.
        coerce: Accept numbers and truth values that the model wrote as text, and the reverse, if
            the schema wants them; otherwise they are refused.
        retries: How often looopy repeats a call after a temporary failure (a broken connection, a
            timeout of its own, an error with `retryable`). Not for external effects.
        retry_delay_s: Seconds before the first of these, doubling.
        max_retry_calls: How often in a turn `RetryCall` asks the model to call again.

    Raises:
        InvalidTool: A name, schema or option that no provider would take.
    """

    _spec: ToolSpec | None = None  # one for all requests, until a part of it is replaced

    def __init__(
        self,
        *,
        name: str,
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
        parallel: bool = False,
        effects: Effects = "external",
        on_resume: OnResume | None = None,
        needs_approval: NeedsApproval = False,
        approval_expires_s: float | None = None,
        approval_prompt: ApprovalPrompt | None = None,
        is_enabled: Enabled | None = None,
        max_result_bytes: int | None = None,
        coerce: bool = False,
        retries: int = 0,
        retry_delay_s: float = 0.5,
        max_retry_calls: int = 2,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidTool(
                f"tool name {name!r} is not usable: 1 to 64 letters, digits, '_' or '-'"
            )
        empty = {"type": "object", "properties": {}}
        schema = empty if parameters is None else dict(parameters)
        self.name = name
        self.description = description
        self.parameters: Mapping[str, Any] = schema
        self.label = label or name
        self.timeout_s = timeout_s
        self.parallel = parallel
        self.effects: Effects = effects
        self.on_resume: OnResume = on_resume or ("fail" if effects == "external" else "rerun")
        self.needs_approval = needs_approval
        self.approval_expires_s = approval_expires_s
        self.approval_prompt = approval_prompt
        self.is_enabled = is_enabled
        self.max_result_bytes = max_result_bytes
        self.coerce = coerce
        self.retries = _count(name, "retries", retries)
        self.retry_delay_s = retry_delay_s
        self.max_retry_calls = _count(name, "max_retry_calls", max_retry_calls)
        self._check_options()

    def _check_options(self) -> None:
        prompt, approval = self.approval_prompt, self.needs_approval
        is_text = isinstance(prompt, str) and bool(prompt.strip())
        for fits, text in (
            (
                self.parameters.get("type") == "object",
                "parameters must be a JSON Schema of type object",
            ),
            (
                self.effects in ("none", "idempotent", "external"),
                "effects must be 'none', 'idempotent' or 'external'",
            ),
            (
                self.on_resume in ("rerun", "ask", "fail"),
                "on_resume must be 'rerun', 'ask' or 'fail'",
            ),
            (_is_duration(self.timeout_s), "timeout_s must be more than 0 seconds"),
            (
                _is_duration(self.approval_expires_s),
                "approval_expires_s must be more than 0 seconds",
            ),
            (
                isinstance(approval, bool) or callable(approval),
                "needs_approval must be a bool, or a function of the arguments and the ToolContext",
            ),
            (
                prompt is None or is_text or callable(prompt),
                "approval_prompt must be text, or a function of the arguments",
            ),
            (
                not isinstance(self.retry_delay_s, bool) and 0 <= self.retry_delay_s < 1e9,
                "retry_delay_s must be at least 0 seconds",
            ),
            (
                not self.retries or self.effects != "external",
                _UNSAFE_RETRIES,
            ),
        ):
            if not fits:
                raise InvalidTool(f"tool {self.name!r}: {text}")

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        name, text, schema, spec = self.name, self.description, self.parameters, self._spec
        if (
            spec is None
            or spec.name is not name
            or spec.description is not text
            or spec.parameters is not schema
        ):
            spec = self._spec = ToolSpec(name=name, description=text, parameters=schema)
        return spec

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """
        Run one call with validated *arguments*; whatever is returned is wrapped as a `ToolResult`.

        Raises:
            Exception: Any; the text becomes the error result the model sees.
        """
        raise NotImplementedError(f"tool {self.name!r} does not implement execute()")

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


def _is_duration(seconds: object) -> bool:
    """True for `None` and for seconds above 0."""
    if isinstance(seconds, bool):
        return False
    return seconds is None or (isinstance(seconds, (int, float)) and seconds > 0)


def refuse_unknown(function: str, options: Collection[str], known: Collection[str]) -> None:
    """
    Refuse an option that *function* does not take, as Python does for a parameter.

    Raises:
        TypeError: The message names the option, and the one that was probably meant.
    """
    said = unknown_option(function, options, known)
    if said is not None:
        raise TypeError(said)


def _count(tool: str, option: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidTool(f"tool {tool!r}: {option} must be a whole number of at least 0")
    return value


@runtime_checkable
class ToolProvider(Protocol):
    """
    A source of tools. `list_tools` is called once per iteration; names must not collide.

    A source that talks to a server may have more methods, all optional. `list_for(turn, warn)` is
    called in a turn instead (see `TurnToolProvider`). `system_prompts(turn)`, sync or async,
    returns parts of the system prompt. `acquire()` and `release()` are called when an agent begins
    and ceases to use it (see `SharedToolProvider`).

    A source may set the attribute `is_local` to `True` if `list_tools` needs no server and lists
    the same tools in every turn: a replay then compares its tools and its prompts.
    """

    def list_tools(self) -> Sequence[Tool] | Awaitable[Sequence[Tool]]:
        """The tools on offer now."""
        ...


@runtime_checkable
class TurnToolProvider(ToolProvider, Protocol):
    """A source whose tools depend on the turn, such as on its credentials."""

    async def list_for(self, turn: TurnContext, warn: Callable[[str], object]) -> Sequence[Tool]:
        """
        The tools on offer in *turn*.

        Args:
            warn: Called with the reason if a tool cannot be offered; the turn shows it as a
                warning, and continues.
        """
        ...


@runtime_checkable
class SharedToolProvider(Protocol):
    """A source that holds connections: open while an agent uses it."""

    def acquire(self) -> None:
        """An agent begins to use it; does not wait. As often as `release()`."""
        ...

    async def release(self) -> None:
        """An agent ceases to use it; after the last one it releases its resources."""
        ...
