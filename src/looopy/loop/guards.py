"""
The limits of one turn, and of its context: counted and decided here, without I/O.

Each guard ends the turn with its own `stop_reason` or warns; no guard acts silently.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from looopy.types.config import LoopConfig
from looopy.types.constructors import quick
from looopy.types.message import NO_USAGE, StopReason, ToolCall, Usage
from looopy.types.message_check import check_usage

_write = json.JSONEncoder(sort_keys=True).encode
_LONGEST_CYCLE = 4  # calls in a circle that counts as a doom loop


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The finding of a guard.

    Attributes:
        reason: The guard's name.
        text: One sentence for a human.
        ends: True if the turn ends with this reason; else it warns and continues.
    """

    reason: StopReason
    text: str
    ends: bool = True


@quick
@dataclass(frozen=True, slots=True)
class Spent:
    """The usage of the context's earlier turns: tokens, cost, seconds."""

    usage: Usage = NO_USAGE
    seconds: float = 0.0


@dataclass(slots=True)
class Guards:
    """
    Counts the actions of one turn against its `LoopConfig`.

    Attributes:
        spent: The usage of earlier turns of the context.
        clock: Seconds from an arbitrary start.
        usage: The usage of the turn's own model calls.
        charged: The usage of the model calls that its tools made.
        concluding: True once the turn may only answer: `max_iterations` is reached, and no tool
            runs any more.
    """

    config: LoopConfig
    spent: Spent = field(default_factory=Spent)
    clock: Callable[[], float] = time.monotonic
    iterations: int = 0
    tool_calls: int = 0
    failures: int = 0
    usage: Usage = NO_USAGE
    charged: Usage = NO_USAGE
    concluding: bool = False
    _calls: list[str] = field(default_factory=list)
    _warned: bool = False
    _again: dict[str, int] = field(default_factory=dict)
    _excused: set[str] = field(default_factory=set)
    _doubts: dict[str, str] = field(default_factory=dict)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def charge(self, usage: Usage) -> None:
        """Count the usage of a tool; `ValueRefused` for any other value."""
        check_usage(usage, "/usage")
        self.charged += usage

    def before_model_call(self) -> Verdict | None:
        """Count a model call, unless a limit forbids it; called until it has none."""
        limit = self.config.max_iterations
        if limit is not None and self.iterations >= limit and not self.concluding:
            self.concluding = self.config.on_max_iterations == "answer"
            text = f"the turn ended after {limit} model calls (LoopConfig.max_iterations)"
            if self.concluding:
                text = (
                    f"the turn has made {limit} model calls (LoopConfig.max_iterations): the model"
                    " is asked for an answer without tools"
                )
            return Verdict(StopReason.MAX_ITERATIONS, text, ends=not self.concluding)
        used_up = self._used_up()
        if used_up is not None:
            return Verdict(StopReason.BUDGET, used_up)
        self.iterations += 1
        return None

    def _used_up(self) -> str | None:
        """The message for a used-up budget of the turn or of its context."""
        budget, spent = self.config.budget, self.spent
        if not budget.has_limits:
            return None
        usage = self.usage + self.charged
        whole = spent.usage + usage
        tokens = whole.total_tokens
        if (unpriced := self.unpriced()) is not None:
            return unpriced
        cost_usd = 0.0 if usage.cost is None else usage.cost.total
        cost = 0.0 if whole.cost is None else whole.cost.total
        seconds = spent.seconds + self.clock() - self._began
        for name, limit, used, text in (
            ("tokens", budget.tokens, usage.total_tokens, "the turn has used {} of {} tokens"),
            ("cost_usd", budget.cost_usd, cost_usd, "the turn has cost {} of {} dollars"),
            ("context_tokens", budget.context_tokens, tokens, "{} of {} tokens are used"),
            ("context_cost_usd", budget.context_cost_usd, cost, "{} of {} dollars are spent"),
            ("context_s", budget.context_s, seconds, "turns have taken {} of {} seconds"),
        ):
            if limit is not None and used >= limit:
                what = text.format(_number(used), _number(limit))
                where = "in this context " if name.startswith("context_") else ""
                return f"{where}{what} (Budget.{name})"
        return None

    def unpriced(self) -> str | None:
        """The message for a budget of money that cannot be kept, because a price is unknown."""
        budget = self.config.budget
        unlimited = budget.cost_usd is None and budget.context_cost_usd is None
        if unlimited or budget.unknown_cost == "ignore":
            return None
        usage = self.usage + self.charged
        for name, limit, used in (
            ("cost_usd", budget.cost_usd, usage),
            ("context_cost_usd", budget.context_cost_usd, self.spent.usage + usage),
        ):
            if limit is not None and not used.is_priced:
                return (
                    f"what was used has no known price, so Budget.{name} cannot be kept: name its"
                    " prices (price_as of the provider), or count it as nothing with"
                    ' Budget(unknown_cost="ignore")'
                )
        return None

    def on_batch(self, size: int) -> Verdict | None:
        """Check the number of calls that one answer announces."""
        limit = self.config.max_tool_calls_per_iteration
        if size <= limit:
            return None
        return Verdict(
            StopReason.MAX_TOOL_CALLS,
            f"{size} tool calls in one answer are more than the {limit} allowed"
            " (LoopConfig.max_tool_calls_per_iteration): none was run",
        )

    def before_tool_call(self, call: ToolCall) -> Verdict | None:
        """Check if *call* may run. A verdict without `stop` is a warning, and the call runs."""
        limit = self.config.max_tool_calls
        if self.tool_calls >= limit:
            return Verdict(
                StopReason.MAX_TOOL_CALLS,
                f"the turn ended after {limit} tool calls (LoopConfig.max_tool_calls)",
            )
        self.tool_calls += 1
        return self._doom_loop(call)

    def may_call_again(self, call: ToolCall, tool: str, limit: int) -> bool:
        """Check if *tool* may make the model call it again, at most *limit* times a turn."""
        self._again[tool] = self._again.get(tool, 0) + 1
        if self._again[tool] > limit:
            return False
        self._excused.add(call.id)
        return True

    def after_tool_call(self, call: ToolCall, *, is_error: bool) -> Verdict | None:
        """Count a result: stop after too many failures in a row."""
        if call.id in self._excused:
            return None
        self.failures = self.failures + 1 if is_error else 0
        limit = self.config.max_tool_failures
        if self.failures < limit:
            return None
        return Verdict(
            StopReason.MAX_TOOL_FAILURES,
            f"{limit} tool calls in a row failed (LoopConfig.max_tool_failures)",
        )

    def _doom_loop(self, call: ToolCall) -> Verdict | None:
        """Find calls in a circle: one call again and again, or a few in turn."""
        arguments = call.invalid_arguments or _write(call.arguments)
        threshold = self.config.doom_loop_threshold
        self._calls.append(f"{call.name.strip().casefold()}\0{arguments}")
        del self._calls[: -threshold * _LONGEST_CYCLE]
        lengths = range(1, len(self._calls) // threshold + 1)
        length = next((n for n in lengths if self._goes_round(n)), None)
        if length is None:
            self._warned = False
            return None
        stops, asks = (self.config.on_doom_loop == how for how in ("stop", "ask"))
        if self._warned and not stops and not asks:
            return None  # warned once for each circle
        self._warned = True
        what = f"called {call.name!r}" if length == 1 else f"made the same {length} calls"
        text = f"the model {what} {threshold} times running with the same arguments"
        if asks:
            self._doubts[call.id] = text
        return Verdict(StopReason.DOOM_LOOP, text, ends=stops)

    def doubt_about(self, call: ToolCall) -> str | None:
        """The reason to ask a person before *call* runs, if there is one."""
        return self._doubts.get(call.id)

    def _goes_round(self, length: int) -> bool:
        """True if the newest calls are the same *length* ones, `doom_loop_threshold` times over."""
        calls = self._calls[-length * self.config.doom_loop_threshold :]
        whole = len(calls) == length * self.config.doom_loop_threshold
        return whole and calls == calls[:length] * self.config.doom_loop_threshold


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4f}"
