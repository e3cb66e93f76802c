"""
A turn as its functions see it: what was given, what has happened so far, and what goes out.

Its methods are the steps that touch more than one of the three, such as a message, which enters the
history and is an event.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from looopy.errors import ContextOverflow, LimitExceeded, StoreError
from looopy.loop.given import NOTHING_ASKED, Given, Resumed, TurnPlan
from looopy.loop.guards import Verdict
from looopy.loop.incoming import Queued
from looopy.loop.outgoing import Group, Outgoing
from looopy.loop.output import Wanted
from looopy.loop.progress import Asked, Progress
from looopy.loop.scope import CancelScope, TurnInterrupted
from looopy.tools.call.hooks import ask_hook, value_of
from looopy.tools.provider import Tool
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
from looopy.types.maker import quick
from looopy.types.message import AssistantMessage, Message, ToolCall, ToolResultMessage
from looopy.types.state import Outcome, outcome_of

_logger = logging.getLogger("looopy")

Relief: TypeAlias = "Callable[[Turn, ContextOverflow], Awaitable[bool]]"
"""
Makes room when a request does not fit the model's window, such as by compacting the history.

Asked at most once a turn, between two model calls. It may emit events: they are committed before
the model is asked again. `True`: there is room, try again. `False`, or an error that it raises and
that is reported: the turn fails with the overflow.
"""


@quick
@dataclass(frozen=True, slots=True)
class Turn:
    """
    One turn as it runs.

    Attributes:
        scope: Where the turn can be interrupted.
        wanted: How the model is asked for an answer of a form; `None`: it is not.
        relief: Makes room when a request does not fit; `None`: the turn fails.
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
        """Report what the iteration used and close it."""
        progress, out = self.progress, self.out
        progress.in_iteration = False
        usage = progress.iteration_usage
        out.emit(UsageReport, usage=usage, turn_usage=progress.usage)
        results = tuple(progress.results)
        out.emit(IterationEnd, message=assistant, tool_results=results, usage=usage)

    def give_up(self, verdict: Verdict) -> None:
        """End the turn as a guard says."""
        self.out.warn(verdict.code, verdict.text)
        if verdict.stop is not None:
            failed = outcome_of(verdict.stop) is Outcome.FAILED
            error = LimitExceeded(verdict.text, limit=verdict.code) if failed else None
            self.progress.end(verdict.stop, error)

    # --- messages ------------------------------------------------------------------------------

    def append(self, message: Message, **facts: Any) -> None:
        """Add a message to the history, with its `message_end`."""
        progress, redactor = self.progress, self.given.redactor
        if not redactor.free:
            message = redactor.message(message)
        progress.history.append(message)
        progress.added.append(message)
        self.out.emit(MessageEnd, message=message, **facts)

    @property
    def says(self) -> bool:
        """Whether something is queued to be said, or said and not stored yet."""
        return bool(self.progress.queued or self.out.delivered)

    async def steered(self) -> bool:
        """Whether something is queued to be said before the next model call; taken if it is."""
        progress, inbox = self.progress, self.given.inbox
        if not progress.queued and inbox.arrived:
            with contextlib.suppress(StoreError):  # the next commit will tell, if it lasts
                progress.queued = await inbox.steering()
        return bool(progress.queued)

    def say_queued(self) -> None:
        """Say what is queued."""
        for message, number in self.progress.queued:
            self.out.emit(MessageStart, message=message)
            self.append(message)
            if number is not None:
                self.out.delivered.append(number)
        self.progress.queued = ()

    def unsay(self, group: Group, said: Sequence[Queued], gone: Collection[int]) -> None:
        """Take back *group*, which ended with what was *said*; what is not *gone* is queued."""
        self.progress.take_back(said, gone)
        self.out.take_back(group, len(said))

    # --- tool calls ----------------------------------------------------------------------------

    def resumed(self, call: ToolCall) -> Resumed:
        """What *call* brings along from an earlier turn."""
        return self.plan.resumed.get(call.id, NOTHING_ASKED)

    @property
    def origin(self) -> int:
        """The turn that announced the calls of this iteration."""
        earlier = self.progress.call_turn
        return self.given.context.turn if earlier is None else earlier

    def begin(self, call: ToolCall, tool: Tool | None) -> None:
        """Announce that *call* runs now; durable when it may have effects."""
        self._announce(call, has_effects=tool is not None and tool.effects != "none")

    def _announce(self, call: ToolCall, *, has_effects: bool) -> None:
        self.out.emit(
            ToolExecutionStart,
            tool_call_id=call.id,
            tool_name=call.name,
            args=call.arguments,
            has_effects=has_effects,
        )

    def answer(
        self,
        call: ToolCall,
        result: ToolResultMessage,
        *,
        started: datetime | None = None,
        announce: bool = False,
    ) -> None:
        """Add the one result of *call*; with *announce*, also the start it never had."""
        out = self.out
        if not self.given.redactor.free:
            result = self.given.redactor.value(result)
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

    def leave_open(self, asked: Asked) -> None:
        """Keep a call for a later turn, once somebody has answered."""
        self.progress.asked.append(asked)
        self.out.asks = True

    # --- warnings ------------------------------------------------------------------------------

    def warn_of_tools(self, text: str) -> None:
        """Say, once a turn, that tools are missing."""
        self.out.warn("tools_unavailable", text, once=text)

    def warn_of_cost(self) -> None:
        """Say, once a turn, that a budget of money cannot be kept."""
        text = self.progress.guards.unpriced()
        if text is not None:
            self.out.warn("cost_unknown", text, once=text)

    # --- hooks ---------------------------------------------------------------------------------

    async def ask(
        self, name: str, hook: Callable[..., Any] | None, *args: Any, default: Any
    ) -> Any:
        """The value of a hook; *default* if there is none, or if it fails, which is a warning."""
        if hook is None:
            return default

        async def interruptible() -> Any:
            with self.scope:
                return await value_of(hook(*args))

        return await ask_hook(
            name, interruptible, _unread, default=default, failed=self.hook_failed
        )

    def hook_failed(self, name: str, error: Exception) -> None:
        """
        Report a function of the application that failed; its text is for the log alone.

        Raises:
            TurnInterrupted: It did not fail: the turn was interrupted meanwhile.
        """
        if isinstance(error, TurnInterrupted):
            raise error
        _logger.error("hook %s failed", name, exc_info=error)
        self.out.warn("hook_failed", f"{name}: {type(error).__name__}")


def _unread(said: Any) -> Any:
    return said
