"""
The limits of one turn: counted here, decided here, no I/O.

Each guard ends the turn with its own `stop_reason` or warns; none acts silently.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from looopy.types.context import LoopConfig
from looopy.types.message import StopReason, ToolCall, Usage

_LONGEST_CYCLE = 4  # calls in a circle that counts as a doom loop


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a guard found.

    Attributes:
        stop: End the turn with this reason, or `None` to go on with a warning.
        code: The guard's name.
        text: One sentence for a human.
    """

    stop: StopReason | None
    code: str
    text: str


@dataclass(slots=True)
class Guards:
    """Counts what one turn does against its `LoopConfig`."""

    config: LoopConfig
    iterations: int = 0
    tool_calls: int = 0
    failures: int = 0
    usage: Usage = field(default_factory=Usage)
    _calls: list[str] = field(default_factory=list)
    _warned: bool = False

    def before_model_call(self) -> Verdict | None:
        """Asked before each model call: may there be another?"""
        limit = self.config.max_iterations
        if self.iterations >= limit:
            return Verdict(
                StopReason.MAX_ITERATIONS,
                "max_iterations",
                f"the turn ended after {limit} model calls (LoopConfig.max_iterations)",
            )
        budget = self.config.budget
        if budget.tokens is not None and self.usage.total_tokens >= budget.tokens:
            return Verdict(
                StopReason.BUDGET,
                "budget",
                f"the turn has used {self.usage.total_tokens} of {budget.tokens} tokens",
            )
        if budget.cost_usd is not None and self.usage.cost.total >= budget.cost_usd:
            return Verdict(
                StopReason.BUDGET,
                "budget",
                f"the turn has cost {self.usage.cost.total:.4f} of {budget.cost_usd:.4f} dollars",
            )
        self.iterations += 1
        return None

    def on_batch(self, size: int) -> Verdict | None:
        """Asked with the number of calls that one answer announces."""
        limit = self.config.max_tool_calls_per_iteration
        if size <= limit:
            return None
        return Verdict(
            StopReason.MAX_TOOL_CALLS,
            "max_tool_calls",
            f"{size} tool calls in one answer are more than the {limit} allowed"
            " (LoopConfig.max_tool_calls_per_iteration): none was run",
        )

    def before_tool_call(self, call: ToolCall) -> Verdict | None:
        """Asked before each call: may it run? A verdict without `stop` is a warning, and it may."""
        limit = self.config.max_tool_calls
        if self.tool_calls >= limit:
            return Verdict(
                StopReason.MAX_TOOL_CALLS,
                "max_tool_calls",
                f"the turn ended after {limit} tool calls (LoopConfig.max_tool_calls)",
            )
        self.tool_calls += 1
        return self._doom_loop(call)

    def after_tool_call(self, *, is_error: bool) -> Verdict | None:
        """Told of each result: too many failures in a row?"""
        self.failures = self.failures + 1 if is_error else 0
        limit = self.config.max_tool_failures
        if self.failures < limit:
            return None
        return Verdict(
            StopReason.MAX_TOOL_FAILURES,
            "max_tool_failures",
            f"{limit} tool calls in a row failed (LoopConfig.max_tool_failures)",
        )

    def _doom_loop(self, call: ToolCall) -> Verdict | None:
        """Whether the calls go round in a circle: one call again and again, or a few in turn."""
        arguments = call.invalid_arguments or json.dumps(call.arguments, sort_keys=True)
        threshold = self.config.doom_loop_threshold
        self._calls.append(f"{call.name}\0{arguments}")
        del self._calls[: -threshold * _LONGEST_CYCLE]
        length = next((n for n in range(1, _LONGEST_CYCLE + 1) if self._goes_round(n)), None)
        if length is None:
            self._warned = False
            return None
        stops = self.config.on_doom_loop == "stop"
        if not stops and self._warned:
            return None  # said once for each circle
        self._warned = True
        what = f"called {call.name!r}" if length == 1 else f"made the same {length} calls"
        return Verdict(
            StopReason.DOOM_LOOP if stops else None,
            "doom_loop",
            f"the model {what} {threshold} times running with the same arguments",
        )

    def _goes_round(self, length: int) -> bool:
        """Whether the newest calls are the same *length* ones, `doom_loop_threshold` times over."""
        calls = self._calls[-length * self.config.doom_loop_threshold :]
        whole = len(calls) == length * self.config.doom_loop_threshold
        return whole and calls == calls[:length] * self.config.doom_loop_threshold
