"""
A turn in its three parts: `given` (the input), `progress` (the state) and `out` (the output).

The methods of `Turn` are the steps that change more than one part, such as adding a message, which
is also an event.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from looopy.errors import ContextOverflow, LimitExceeded, StoreError
from looopy.llm.render import synthetic_result
from looopy.loop.given import NOTHING_ASKED, Given, Resumed, TurnPlan
from looopy.loop.guards import Verdict
from looopy.loop.incoming import Queued
from looopy.loop.interrupt import CancelScope, TurnInterrupted
from looopy.loop.outgoing import Group, Outgoing
from looopy.loop.output import Wanted
from looopy.loop.progress import Asked, Progress
from looopy.tools.asking import LockedOut
from looopy.tools.base import Tool
from looopy.tools.call.hooks import ask_hook, value_of
from looopy.types.constructors import quick
from looopy.types.event import (
    IterationEnd,
    IterationStart,
    MessageEnd,
    MessageStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    UsageReport,
    utc_now,
)
from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    Usage,
    now_ms,
)
from looopy.types.state import Outcome, outcome_of

_logger = logging.getLogger("looopy")

Relief: TypeAlias = "Callable[[Turn, ContextOverflow], Awaitable[bool]]"
"""
Makes room if a request does not fit the model's window, for example by compacting the history.

Called at most once a turn, between two model calls. It may emit events: they are committed before
the next model call. `True`: there is room, try again. `False`, or an error, which is reported: the
turn fails with the overflow.
"""


@quick
@dataclass(frozen=True, slots=True)
class Turn:
    """
    One turn as it runs.

    Attributes:
        scope: The section in which the turn can be interrupted.
        wanted: The way to get a typed answer from the model; `None`: any answer will do.
        relief: Makes room if a request does not fit; `None`: the turn fails.
    """

    given: Given
    plan: TurnPlan
    progress: Progress
    out: Outgoing
    scope: CancelScope
    wanted: Wanted | None = None
    relief: Relief | None = None

    # --- iterations ----------------------------------------------------------------------------

    def begin_iteration(self) -> None:
        """Count and announce the next iteration."""
        self.progress.begin_iteration()
        self.out.emit(IterationStart)

    def end_iteration(self, assistant: AssistantMessage | None) -> None:
        """Report the usage of the iteration and close it."""
        progress, out = self.progress, self.out
        progress.in_iteration = False
        usage = progress.iteration_usage
        out.emit(UsageReport, usage=usage, turn_usage=progress.usage)
        results = tuple(progress.results)
        out.emit(IterationEnd, message=assistant, tool_results=results, usage=usage)

    def give_up(self, verdict: Verdict, error: LimitExceeded | None = None) -> None:
        """End the turn, or warn, by a guard's *verdict*; *error*: the one of a failed turn."""
        reason, text = verdict.reason, verdict.text
        self.out.warn(reason.value, text)
        if reason is StopReason.BUDGET and self.given.config.on_budget == "ask":
            self.progress.end(reason)
            self.progress.waits_for = text
        elif verdict.ends:
            failed = outcome_of(reason) is Outcome.FAILED
            error = error or LimitExceeded(text, limit=reason.value)
            self.progress.end(reason, error if failed else None)

    # --- messages ------------------------------------------------------------------------------

    def append(self, message: Message, **facts: Any) -> None:
        """Add a message without secrets to the history, with its `message_end`."""
        self.given.view.history.append(message)
        self.progress.added.append(message)
        self.out.emit(MessageEnd, message=message, **facts)

    @property
    def says(self) -> bool:
        """True if a message is queued, or was sent and is not stored yet."""
        return bool(self.progress.queued or self.out.delivered)

    async def steered(self) -> bool:
        """True if a message is queued for the next model call; takes it from the inbox first."""
        progress, inbox = self.progress, self.given.inbox
        if not progress.queued and inbox.arrived:
            with contextlib.suppress(StoreError):  # if it lasts, the next commit raises
                progress.queued = await inbox.steering()
        return bool(progress.queued)

    def say_queued(self) -> None:
        """Add the queued messages to the history."""
        for message, number in self.progress.queued:
            self.out.emit(MessageStart, message=message)
            self.append(message)
            if number is not None:
                self.out.delivered.append(number)
        self.progress.queued = ()

    def unsay(self, group: Group, said: Sequence[Queued], gone: Collection[int]) -> None:
        """Take back the last messages of *group*; all that are not *gone* are queued again."""
        del self.given.view.history[-len(said) :], self.progress.added[-len(said) :]
        self.progress.queued = [one for one in said if one.number not in gone]
        self.out.take_back(group, len(said))

    # --- tool calls ----------------------------------------------------------------------------

    def resumed(self, call: ToolCall) -> Resumed:
        """The answers that *call* has from an earlier turn."""
        return self.plan.resumed.get(call.id, NOTHING_ASKED)

    @property
    def origin(self) -> int:
        """The turn that announced the calls of this iteration."""
        earlier = self.progress.call_turn
        return self.given.context.turn if earlier is None else earlier

    def begin(self, call: ToolCall, tool: Tool | None) -> None:
        """Announce that *call* runs now; the event is durable if the call may have effects."""
        held = self.resumed(call).held
        edited = held is not None and held.args is not None
        has_effects = tool is not None and tool.effects != "none"
        self._announce(call, has_effects=has_effects, edited=edited)

    def _announce(self, call: ToolCall, *, has_effects: bool, edited: bool = False) -> None:
        self.out.emit(
            ToolExecutionStart,
            tool_call_id=call.id,
            tool_name=call.name,
            args=call.arguments,
            has_effects=has_effects,
            edited=edited,
        )

    def answer(
        self,
        call: ToolCall,
        result: ToolResultMessage,
        *,
        started: datetime | None = None,
        announce: bool = False,
    ) -> None:
        """Add the one result of *call*; with *announce*, also its missing start event."""
        out = self.out
        if announce:
            self._announce(call, has_effects=False)
        ended = utc_now()
        out.emit(
            ToolExecutionEnd,
            tool_call_id=call.id,
            tool_name=call.name,
            result=result,
            is_error=result.is_error,
            started=started,
            duration_s=0.0 if started is None else (ended - started).total_seconds(),
            timestamp=ended,
        )
        out.emit(MessageStart, message=result)
        self.append(result)
        self.progress.results.append(result)

    def excuse(self, call: ToolCall, text: str, **facts: Any) -> None:
        """Answer a call that has no result with *text*; *facts* as for `answer`."""
        self.answer(call, synthetic_result(call, text, timestamp=now_ms()), **facts)

    def charge(self, usage: Usage) -> None:
        """Count model calls of a tool's own; `ValueRefused` for any other value."""
        self.progress.guards.charge(usage)
        if self.given.meter is not None:
            self.given.meter.charge(usage)

    def leave_open(self, asked: Asked) -> None:
        """Keep a call for a later turn, which has the answers."""
        self.progress.asked.append(asked)
        self.out.asks = True

    def is_locked(self, call: ToolCall) -> bool:
        """True if *call*, left open by an earlier turn, may be of a tool that no source listed."""
        progress = self.progress
        return progress.call_turn is not None and call.name.startswith(tuple(progress.locked))

    # --- the log and warnings ------------------------------------------------------------------

    def log_failure(self, what: str, error: BaseException, **more: Any) -> None:
        """Log a failure of the application's code or a provider, with its place and traceback."""
        context = self.given.context
        place = {
            "context_id": context.context_id,
            "turn": context.turn,
            "iteration": self.progress.iteration,
            **more,
        }
        where = ", ".join(f"{name.removesuffix('_id')} {value}" for name, value in place.items())
        _logger.error("%s: %s", what, where, exc_info=error, extra=place)

    def warn_of_tools(self, text: str) -> None:
        """Warn, once a turn, that tools are missing."""
        if isinstance(text, LockedOut):
            self.progress.locked = (*self.progress.locked, text.prefix)
        self.out.warn("tools_unavailable", str(text), once=text)

    def warn_of_cost(self) -> None:
        """Warn, once a turn, that a budget of money cannot be kept."""
        text = self.progress.guards.unpriced()
        if text is not None:
            self.out.warn("cost_unknown", text, once=text)

    # --- hooks ---------------------------------------------------------------------------------

    async def ask(
        self, name: str, hook: Callable[..., Any] | None, *args: Any, default: Any
    ) -> Any:
        """The value of a hook; *default* if there is none, or, with a warning, if it fails."""
        if hook is None:
            return default

        async def interruptible() -> Any:
            with self.scope:
                return await value_of(hook(*args))

        return await ask_hook(
            name, interruptible, lambda said: said, default=default, failed=self.hook_failed
        )

    def hook_failed(self, name: str, error: Exception) -> None:
        """
        Report a failed function of the application; only the log gets its text.

        Raises:
            TurnInterrupted: It did not fail: the turn was interrupted.
        """
        if isinstance(error, TurnInterrupted):
            raise error
        self.log_failure(f"hook {name} failed", error)
        self.out.warn("hook_failed", f"{name}: {type(error).__name__}")
