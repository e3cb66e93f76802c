"""The limits and options of a turn: `LoopConfig` and what it is made of."""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from looopy.errors import ConfigurationError
from looopy.types.constructors import suggesting
from looopy.types.context import AuthContext
from looopy.types.message import Message, ToolCall
from looopy.types.request import ThinkingLevel

LONGEST_LEASE_S = 300.0
"""No lease lasts longer without being renewed, whatever it was asked for."""
LEAST_THINKING = 1024
"""The smallest budget for thinking: every provider that takes a budget refuses fewer tokens."""
MOST_LOGPROBS = 20
"""How many of the likeliest tokens a model call may ask for: OpenAI's limit."""
WINDOWS = ("owner_day", "owner_month", "tenant_day", "tenant_month")
"""The accounts and periods that a `Budget` may limit: the beginnings of its fields' names."""
# Compiled when a header is first checked, and kept by `re`.
_HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEADER_VALUE = r"[\t\x20-\x7e]*"


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """
    The usage at which a turn ends as `budget`; `None`: no limit. It is checked before each model
    call, so the call that reaches a limit is the last one.

    Attributes:
        tokens: The limit for one turn; its seconds are limited by `LoopConfig.turn_timeout_s`.
        cost_usd: The limit for one turn.
        context_tokens: The limit for all turns of the context, earlier ones included.
        context_cost_usd: Likewise.
        context_s: Seconds that turns of the context have run, together.
        owner_day_tokens: The limit for all contexts of one owner (`ContextRecord.owner_actor`) in a
            calendar day, UTC. Limits of a day or month hold across all processes on the stores. The
            most that a model call may use is reserved before it, and settled after it.
        owner_day_cost_usd, owner_month_tokens, owner_month_cost_usd: Likewise.
        tenant_day_tokens, tenant_day_cost_usd, tenant_month_tokens, tenant_month_cost_usd: The
            limits for all contexts of the stores' tenant together.
        unknown_cost: The effect of a limit in dollars if the price is unknown (no `prices` extra,
            an unlisted model, your own server). `"refuse"` does not start the agent, and ends a
            turn as `budget` if its model turns out to have no price; `"ignore"` counts such calls
            as free. An agent that works as a tool follows the word of the turn that it works for,
            where that turn's limits are concerned.
        has_windows: True if it limits a day or a month.
        has_limits: True if it limits anything.
    """

    tokens: int | None = None
    cost_usd: float | None = None
    context_tokens: int | None = None
    context_cost_usd: float | None = None
    context_s: float | None = None
    owner_day_tokens: int | None = None
    owner_day_cost_usd: float | None = None
    owner_month_tokens: int | None = None
    owner_month_cost_usd: float | None = None
    tenant_day_tokens: int | None = None
    tenant_day_cost_usd: float | None = None
    tenant_month_tokens: int | None = None
    tenant_month_cost_usd: float | None = None
    unknown_cost: Literal["refuse", "ignore"] = "refuse"
    has_windows: bool = field(init=False, repr=False, compare=False)
    has_limits: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _choose(self, "unknown_cost", ("refuse", "ignore"))
        for name in ("tokens", "context_tokens", *(f"{one}_tokens" for one in WINDOWS)):
            _check(self, name, least=0, whole=True, optional=True)
        for name in ("cost_usd", "context_cost_usd", *(f"{one}_cost_usd" for one in WINDOWS)):
            _check(self, name, least=0, optional=True)
        _check(self, "context_s", least=0, optional=True)
        limits = (f"{one}_{what}" for one in WINDOWS for what in ("tokens", "cost_usd"))
        has_windows = any(getattr(self, name) is not None for name in limits)
        object.__setattr__(self, "has_windows", has_windows)
        others = ("tokens", "cost_usd", "context_tokens", "context_cost_usd", "context_s")
        has_limits = has_windows or any(getattr(self, name) is not None for name in others)
        object.__setattr__(self, "has_limits", has_limits)

    @property
    def limits_money(self) -> bool:
        """True if any limit is in dollars."""
        limits = ("cost_usd", "context_cost_usd", *(f"{one}_cost_usd" for one in WINDOWS))
        return any(getattr(self, name) is not None for name in limits)


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """
    How often a failed model call is made again.

    Attributes:
        attempts: Retries after the first try; 0 turns them off.
        base_s: Wait before the first retry, doubling.
        cap_s: Longest own wait.
        max_server_delay_s: A longer delay asked for by the server fails at once; 0: no cap.
    """

    attempts: int = 3
    base_s: float = 2.0
    cap_s: float = 30.0
    max_server_delay_s: float = 60.0

    def __post_init__(self) -> None:
        _check(self, "attempts", least=0, whole=True)
        for name in ("base_s", "cap_s", "max_server_delay_s"):
            _check(self, name, least=0)


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """
    Functions of the application that the loop calls; each sync or async. If one raises, the turn
    reports it as a `warning` event and uses the default instead. The exception is
    `before_tool_call`: a call that it could not judge does not run.

    Attributes:
        before_tool_call: Receives the call, with valid arguments, and the `ToolContext`. `None`
            runs the call; a mapping runs it with these arguments instead (they are checked as
            well); a text or `False` blocks it with that reason; a `ToolResult` is used as its
            result. The log keeps the model's arguments.
        after_tool_call: Receives the call, its `ToolResult` and the `ToolContext`, and returns
            another `ToolResult`, or a mapping of the fields to change (`content`, `details`,
            `is_error`); `None` leaves it. Called for each call that ran, also if it failed.
        transform_context: Messages to messages, before each model call; the stored log is
            untouched.
        convert_to_llm: Selects the messages that the provider may see; default: user, assistant and
            tool results.
        get_api_key: Provider name and auth context to a key, per model call.
        on_compact: Receives the messages that a summary replaces and its text, before it is stored,
            and returns another text; `None` leaves it.
    """

    before_tool_call: Callable[[ToolCall, Any], Any] | None = None
    after_tool_call: Callable[[ToolCall, Any, Any], Any] | None = None
    transform_context: Callable[[list[Message]], Any] | None = None
    convert_to_llm: Callable[[list[Message]], Any] | None = None
    get_api_key: Callable[[str, AuthContext | None], Any] | None = None
    on_compact: Callable[[list[Message], str], Any] | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            hook = getattr(self, one.name)
            if hook is not None and not callable(hook):
                raise ConfigurationError(
                    f"Hooks.{one.name} takes a function, not {type(hook).__name__}"
                )


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """
    Options of the model calls of an agent or of one turn. Unset fields change nothing.

    Attributes:
        model: The provider's own name for another model; empty: the provider's.
        tool_choice: `"auto"`, `"none"`, `"required"`, or the name of a tool. The last two hold for
            the first model call of a turn: a model that has to use a tool each time never answers.
        stop: Texts that end an answer.
        seed: Makes answers repeatable where the server can.
        logprobs: Keep the log-probability of each token in `AssistantMessage.logprobs`, with so
            many of the likeliest tokens in its place: 0 to 20.
        strict_tools: The server holds the model to the schemas of all tools (`True`) or of those
            named. `False` and `None`: of none.
        headers: Sent with each request, over ours. looopy keeps values that look like credentials
            out of everything that it stores or shows.
        extra_body: Fields of each request's body, over ours and the provider's; `tools` and
            `include` come after them.

    Raises:
        ConfigurationError: A value is out of its range.
    """

    model: str = ""
    tool_choice: str | None = None
    stop: Sequence[str] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    logprobs: int | None = None
    strict_tools: bool | Sequence[str] | None = None
    thinking_level: ThinkingLevel | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _check(self, "temperature", least=0, optional=True)
        _check(self, "max_tokens", least=1, whole=True, optional=True)
        _check(self, "seed", least=-(2**63), whole=True, optional=True)
        _check(self, "logprobs", least=0, whole=True, optional=True)
        if (self.logprobs or 0) > MOST_LOGPROBS:
            raise ConfigurationError(f"ModelOptions.logprobs is at most {MOST_LOGPROBS}")
        _choose(self, "thinking_level", (None, *ThinkingLevel))
        _check_headers(self.headers)
        _check_body(self.extra_body)
        strict = self.strict_tools
        if not (strict is None or isinstance(strict, bool)) and (
            isinstance(strict, str)
            or not isinstance(strict, Sequence)
            or not all(isinstance(one, str) for one in strict)
        ):
            raise ConfigurationError(
                "ModelOptions.strict_tools takes True, False or a list of tools, such as ['search']"
            )
        if (
            not isinstance(self.stop, Collection)
            or isinstance(self.stop, str)
            or not all(isinstance(one, str) and one for one in self.stop)
        ):
            raise ConfigurationError("ModelOptions.stop takes a list of texts, such as ['END']")
        if not isinstance(self.model, str):
            raise ConfigurationError("ModelOptions.model takes the name of a model")
        if self.tool_choice is not None and not isinstance(self.tool_choice, str):
            raise ConfigurationError(
                "ModelOptions.tool_choice takes 'auto', 'none', 'required' or the name of a tool"
            )

    def over(self, other: "ModelOptions") -> "ModelOptions":
        """These options, and *other*'s where these are not set."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: value for name, value in mine.items() if value not in (None, "", (), {}, [])}
        for name in ("headers", "extra_body"):
            if name in given:
                given[name] = {**getattr(other, name), **given[name]}
        return replace(other, **given)


def model_options(value: Any) -> ModelOptions:
    """The `ModelOptions` that *value* means: options, a mapping, None; or `ConfigurationError`."""
    if value is None:
        return ModelOptions()
    if isinstance(value, ModelOptions):
        return value
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"options takes ModelOptions(...), not {type(value).__name__}")
    known = [f.name for f in fields(ModelOptions)]
    for name in value:
        if name not in known:
            import difflib  # only a mistake needs it

            near = difflib.get_close_matches(str(name), known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ConfigurationError(f"no option of a model call is named {name!r}: {meant}")
    return ModelOptions(**value)


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """
    Limits and choices of a turn. Seconds end in `_s`; `None` means no limit if it is allowed.

    Attributes:
        max_iterations: Model calls in one turn; `None`: limited only by the other limits.
        on_max_iterations: The effect of `max_iterations`. `"stop"` ends the turn without an answer.
            `"answer"` makes one more call, without tools, which asks for an answer with what is
            known by then. Both end as completed, with the stop reason `max_iterations`.
        max_tool_calls: Tool calls in one turn.
        max_tool_calls_per_iteration: Calls in one model answer; if it has more, no call runs.
        max_tool_failures: Failed calls in a row that end the turn.
        max_parallel_tools: How many calls of tools marked `parallel` may run at once.
        max_output_retries: How often the model may repeat an answer that does not fit
            `output_type`.
        doom_loop_threshold: How often the same call may come in a row before `on_doom_loop` acts.
        on_doom_loop: `"warn"` lets the call run, `"ask"` has a person approve it first, `"stop"`
            ends the turn.
        on_budget: The effect of a used-up `budget`: `"stop"` ends the turn as failed, `"ask"` as
            `input_required`, without a request. In both cases `execute_turn(None)` continues it
            once there is room, for example with a higher limit.
        llm_timeout_s: The longest that one model call may take.
        llm_connect_timeout_s: The longest wait for a connection; `None`: the provider's own limit.
        llm_idle_timeout_s: The longest silence within an answer, three times that before its first
            word; `None`: the provider's own limit.
        steering: The effect of a steering message on calls that have not started: `skip_remaining`
            answers them as skipped, `after_batch` runs them first.
        queue_mode: How many queued messages the turn takes at a time: `one-at-a-time`, or `all`.
        follow_up_mode: Likewise for follow-ups; `None`: as `queue_mode`.
        max_messages: How many messages of the history the model sees; `None`: all.
        lease_ttl_s: How long an owner in another process that stopped renewing keeps a context, and
            half as long again; at most 300.
        busy_timeout_s: How long `on_busy="wait"` waits.
        max_result_bytes: How much of one tool result the model sees, in UTF-8 bytes.
        options: More options of each model call; they win over options of the same name here.
        thinking_budgets: Tokens for thinking by level, such as `{"high": 20_000}`, for models that
            think by a budget; `None`, or a missing level: the provider's own.

    Raises:
        ConfigurationError: A value is out of its range.
    """

    max_iterations: int | None = 25
    on_max_iterations: Literal["stop", "answer"] = "stop"
    max_tool_calls: int = 64
    max_tool_calls_per_iteration: int = 16
    max_tool_failures: int = 3
    max_parallel_tools: int = 8
    max_output_retries: int = 2
    doom_loop_threshold: int = 3
    on_doom_loop: Literal["warn", "ask", "stop"] = "warn"
    on_budget: Literal["stop", "ask"] = "stop"
    tool_timeout_s: float | None = 60.0
    llm_timeout_s: float | None = 600.0
    llm_connect_timeout_s: float | None = None
    llm_idle_timeout_s: float | None = None
    turn_timeout_s: float | None = 1800.0
    budget: Budget = field(default_factory=Budget)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    steering: Literal["skip_remaining", "after_batch"] = "skip_remaining"
    queue_mode: Literal["one-at-a-time", "all"] = "one-at-a-time"
    follow_up_mode: Literal["one-at-a-time", "all"] | None = None
    max_messages: int | None = None
    history_tokens: int | Literal["auto"] | None = "auto"
    lease_ttl_s: float = 10.0
    busy_timeout_s: float = 30.0
    max_result_bytes: int = 1024 * 1024
    temperature: float | None = None
    max_tokens: int | None = None
    thinking_level: ThinkingLevel | None = None
    thinking_budgets: Mapping[str, int] | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    hooks: Hooks = field(default_factory=Hooks)

    def __post_init__(self) -> None:
        for name, kind in (
            *(("budget", Budget), ("retry", RetryPolicy), ("hooks", Hooks)),
            ("options", ModelOptions),
        ):
            if not isinstance(getattr(self, name), kind):
                raise ConfigurationError(f"LoopConfig.{name} takes a {kind.__name__}(...)")
        _check(self, "max_iterations", least=1, whole=True, optional=True)
        for name in (
            "max_tool_calls",
            "max_tool_calls_per_iteration",
            "max_tool_failures",
            "max_parallel_tools",
            "doom_loop_threshold",
            "max_result_bytes",
        ):
            _check(self, name, least=1, whole=True)
        _check(self, "max_output_retries", least=0, whole=True)
        for name in (
            "tool_timeout_s",
            "llm_timeout_s",
            "llm_connect_timeout_s",
            "llm_idle_timeout_s",
            "turn_timeout_s",
        ):
            _check(self, name, least=0, above=True, optional=True)
        _check(self, "lease_ttl_s", least=0, above=True)
        if self.lease_ttl_s > LONGEST_LEASE_S:
            raise ConfigurationError(
                f"LoopConfig.lease_ttl_s must be at most {LONGEST_LEASE_S:.0f}: a lease is renewed"
                " while its turn runs, however long that takes"
            )
        _check(self, "busy_timeout_s", least=0)
        _check(self, "max_messages", least=1, whole=True, optional=True)
        if self.history_tokens != "auto":
            _check(self, "history_tokens", least=1, whole=True, optional=True)
        _check(self, "max_tokens", least=1, whole=True, optional=True)
        _check(self, "temperature", least=0, optional=True)
        _choose(self, "on_doom_loop", ("warn", "ask", "stop"))
        _choose(self, "on_budget", ("stop", "ask"))
        _choose(self, "on_max_iterations", ("stop", "answer"))
        _, max_tokens, _ = self.sampling
        if self.budget.has_windows and max_tokens is None:
            raise ConfigurationError(
                "LoopConfig.budget limits a day or a month, for which the most that a call may use"
                " is reserved before it: set LoopConfig.max_tokens, the longest answer"
            )
        _choose(self, "steering", ("skip_remaining", "after_batch"))
        _choose(self, "queue_mode", ("one-at-a-time", "all"))
        _choose(self, "follow_up_mode", (None, "one-at-a-time", "all"))
        _choose(self, "thinking_level", (None, *ThinkingLevel))
        _check_budgets(self.thinking_budgets)

    @property
    def sampling(self) -> tuple[float | None, int | None, ThinkingLevel | None]:
        """
        The temperature, the longest answer and the thinking level of each model call: each from
        `options`, or where that does not set it, from the field of its name here.
        """
        asked = self.options
        return (
            self.temperature if asked.temperature is None else asked.temperature,
            self.max_tokens if asked.max_tokens is None else asked.max_tokens,
            self.thinking_level if asked.thinking_level is None else asked.thinking_level,
        )


def _check(
    part: object,
    name: str,
    *,
    least: int,
    above: bool = False,
    whole: bool = False,
    optional: bool = False,
) -> None:
    """Refuse a limit that would not limit: no number, not finite, or below *least*."""
    value = getattr(part, name)
    if value is None and optional:
        return
    if isinstance(value, int if whole else (int, float)) and not isinstance(value, bool):
        enough = value > least if above else value >= least
        if enough and value != math.inf:
            return
    raise ConfigurationError(
        f"{type(part).__name__}.{name} must be a {'whole ' if whole else ''}number"
        f" {'above' if above else 'of at least'} {least}{', or None' if optional else ''}"
    )


def _check_headers(headers: Any) -> None:
    """Refuse what no HTTP request can hold; the error shows no value."""
    if not isinstance(headers, Mapping):
        raise ConfigurationError("ModelOptions.headers takes a mapping")
    for name, value in headers.items():
        if not isinstance(name, str) or not re.fullmatch(_HEADER_NAME, name):
            raise ConfigurationError(f"ModelOptions.headers: {name!r} is not the name of a header")
        if not isinstance(value, str) or not re.fullmatch(_HEADER_VALUE, value):
            raise ConfigurationError(
                f"ModelOptions.headers: the value of {name!r} must be text of ASCII characters"
                " without line breaks"
            )


def _check_body(body: Any) -> None:
    if not isinstance(body, Mapping):
        raise ConfigurationError("ModelOptions.extra_body takes a mapping")
    try:
        json.dumps(dict(body), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"ModelOptions.extra_body is not JSON: {error}") from None


def _check_budgets(budgets: Mapping[str, int] | None) -> None:
    levels = [str(level) for level in ThinkingLevel if level != ThinkingLevel.OFF]
    if budgets is None:
        return
    if isinstance(budgets, Mapping) and all(
        level in levels
        and isinstance(tokens, int)
        and not isinstance(tokens, bool)
        and tokens >= LEAST_THINKING
        for level, tokens in budgets.items()
    ):
        return
    raise ConfigurationError(
        f"LoopConfig.thinking_budgets maps levels ({', '.join(levels)}) to whole numbers of at"
        f" least {LEAST_THINKING}"
    )


def _choose(part: object, name: str, choices: Sequence[str | None]) -> None:
    if getattr(part, name) not in choices:
        raise ConfigurationError(
            f"{type(part).__name__}.{name} must be one of"
            f" {', '.join('None' if c is None else repr(str(c)) for c in choices)}"
        )
