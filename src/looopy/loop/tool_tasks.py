"""
The tool calls that run now: each in a task of its own, watched together.

Exclusive tools run alone; those marked `parallel` overlap, up to `LoopConfig.max_parallel_tools`.
One loop waits for their reports and their ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from looopy.llm.render import CANCELLED, OUTCOME_UNKNOWN, synthetic_result
from looopy.loop.approval import AskFirst, may_run, told_with
from looopy.loop.output import FinalAnswer
from looopy.loop.parts import Turn
from looopy.tools.asking import NeedsInput
from looopy.tools.base import Tool, ToolContext
from looopy.tools.call.hooks import ToolHooks
from looopy.tools.call.results import storable
from looopy.tools.call.run import CallRules, resolve_name, run_call
from looopy.types.constructors import amended
from looopy.types.event import AgentEvent, MessageUpdate, ToolExecutionUpdate, utc_now
from looopy.types.message import TextContent, ToolCall, ToolResultMessage, now_ms
from looopy.types.storable import repair, repair_json, repair_piece

_GRACE_S = 5.0  # how long the turn waits for a tool to stop


@dataclass(slots=True)
class Run:
    """One call that runs, or has run. `told`: a sentence for the model before the result."""

    call: ToolCall
    tool: Tool | None
    task: asyncio.Task[ToolResultMessage]
    started: datetime = field(default_factory=utc_now)
    overdue: ToolResultMessage | None = None
    told: str | None = None

    @property
    def over(self) -> bool:
        """True if there is a result, or no more waiting for one."""
        return self.overdue is not None or self.task.done()

    @property
    def asks(self) -> NeedsInput | None:
        """The tool's questions to a person, instead of a result."""
        task = self.task
        done = task.done() and not task.cancelled() and self.overdue is None
        error = task.exception() if done else None
        return error if isinstance(error, NeedsInput) else None

    def result(self) -> ToolResultMessage:
        """The call's result, which every store keeps, or a text about the missing result."""
        found = self._result()
        if self.told is None:
            return found
        return replace(found, content=(TextContent(self.told), *found.content))

    def _result(self) -> ToolResultMessage:
        task = self.task
        if self.overdue is not None:
            return storable(self.overdue)
        if task.done() and not task.cancelled() and task.exception() is None:
            return storable(task.result())
        harmless = self.tool is None or self.tool.effects == "none" or self.asks is not None
        text = CANCELLED if harmless else OUTCOME_UNKNOWN
        return synthetic_result(self.call, text, timestamp=now_ms())


class ToolTaskGroup:
    """
    The calls of one iteration that run now; false if there are none.

    Args:
        tools: The tools on offer, by name.
        cut_call: The id of the call in which the model's answer broke off, if it did.
    """

    def __init__(self, turn: Turn, tools: dict[str, Tool], cut_call: str | None) -> None:
        self._turn = turn
        self._tools = tools
        self._cut_call = cut_call
        self._runs: list[Run] = []
        self._reports: deque[tuple[ToolCall, Any] | AgentEvent] = deque()
        self._reporting: set[str] = set()
        self._news = asyncio.Event()
        config = turn.given.config
        self._hooks = ToolHooks(config.hooks, turn.hook_failed)
        self._rules = CallRules(
            default_timeout_s=config.tool_timeout_s,
            max_result_bytes=config.max_result_bytes,
            known=tuple(tools),
            redactor=turn.given.redactor,
            grace_s=_GRACE_S,
        )
        self._decided: dict[str, ToolHooks] = {}  # by call id
        self._beside: set[str] = set()  # calls that began while their tool ran another one

    def __bool__(self) -> bool:
        return bool(self._runs)

    def tool_of(self, call: ToolCall) -> Tool | None:
        """The tool that the model named, if there is one."""
        name = resolve_name(call.name, self._tools)
        return None if name is None else self._tools.get(name)

    def takes(self, call: ToolCall, beside: Sequence[ToolCall]) -> bool:
        """True if *call* may start now, with those *beside* it that are about to."""
        others = [*(run.call for run in self._runs), *beside]
        if not others:
            return True
        room = len(others) < self._turn.given.config.max_parallel_tools
        return room and all(self._shares(one) for one in (call, *others))

    def _shares(self, call: ToolCall) -> bool:
        tool = self.tool_of(call)
        return tool is not None and tool.parallel

    def start(self, calls: Sequence[ToolCall]) -> None:
        """Run *calls*, whose start is stored."""
        for call in calls:
            task = asyncio.create_task(self._run_and_tell(call), name=f"looopy tool {call.name}")
            tool = self.tool_of(call)
            if any(run.tool is tool for run in self._runs if not run.over):
                self._beside.add(call.id)
            ran = self.as_it_runs(call).arguments
            told = told_with(self._turn.resumed(call), ran, self._turn.given.redactor)
            self._runs.append(Run(call, tool, task, told=told))
            task.add_done_callback(lambda _: self._news.set())

    def as_it_runs(self, call: ToolCall) -> ToolCall:
        """*call*, which may run; one that a person edited as a hook has changed it since."""
        held, hooks = self._turn.resumed(call).held, self._decided.get(call.id)
        edited = held is not None and held.args is not None
        if not edited or hooks is None or hooks.arguments is None:
            return call
        return replace(call, arguments=dict(hooks.arguments))

    def lacks_credentials(self, call: ToolCall) -> bool:
        """True if the credentials of the turn have expired, so that *call* must not run."""
        auth = self._turn.given.context.auth_context
        return auth is not None and auth.expired() and not self._is_ours(call)

    def _is_ours(self, call: ToolCall) -> bool:
        """True if the call's tool is looopy's own, and not one of the application."""
        return isinstance(self.tool_of(call), FinalAnswer)

    def asks_application(self, call: ToolCall) -> bool:
        """True if code of the application may be awaited before *call* is announced."""
        config, tool = self._turn.given.config, self.tool_of(call)
        if tool is None or call.id == self._cut_call:
            return False
        asked = tool.needs_approval is not False or call.id in self._turn.plan.resumed
        hooked = config.hooks.before_tool_call is not None
        doubted = config.on_doom_loop == "ask"
        prompted = callable(tool.approval_prompt) and (asked or doubted)
        return callable(tool.needs_approval) or prompted or (hooked and (asked or doubted))

    async def may_run(self, call: ToolCall) -> AskFirst | None:
        """The request to a person before *call* runs, or `None` if it needs none."""
        turn, tool = self._turn, self.tool_of(call)
        if tool is None or call.id == self._cut_call:  # it does not run
            return None
        doubted = turn.progress.guards.doubt_about(call) is not None
        if tool.needs_approval is False and call.id not in turn.plan.resumed and not doubted:
            return None
        with turn.scope:
            found = await may_run(turn, tool, call, self._context_of(call), self._hooks)
        if isinstance(found, AskFirst):
            return found
        if found is not None:
            self._decided[call.id] = found
        return None

    async def _run_and_tell(self, call: ToolCall) -> ToolResultMessage:
        result = await self._run(call)
        if call.id in self._reporting:
            with contextlib.suppress(asyncio.CancelledError):  # it is over, even if cancelled now
                await asyncio.sleep(0)  # its last report comes before its end
        self._news.set()  # the waiter runs one step later, when the task is done
        return result

    async def _run(self, call: ToolCall) -> ToolResultMessage:
        if (watch := self._turn.given.watch) is None:
            return await self._run_unwatched(call)
        tool = self.tool_of(call)
        watched = watch.tool_call(call, None if tool is None else tool.name)
        try:
            result = await self._run_unwatched(call)
        except BaseException as error:
            watched.left(error, waits=isinstance(error, NeedsInput))
            raise
        watched.answered(result)
        return result

    async def _run_unwatched(self, call: ToolCall) -> ToolResultMessage:
        turn, ours, context = self._turn, self._is_ours(call), self._context_of(call)
        guards = turn.progress.guards
        return await run_call(
            self.tool_of(call),
            call,
            amended(context, auth_context=None) if ours else context,
            self._rules,
            hooks=None if ours else self._decided.get(call.id, self._hooks),
            may_call_again=lambda tool: guards.may_call_again(
                call, tool.name, tool.max_retry_calls
            ),
            is_cut=call.id == self._cut_call,
            overdue=lambda result: self._leave_behind(call, result),
        )

    def _leave_behind(self, call: ToolCall, result: ToolResultMessage) -> None:
        """Continue without a tool that does not stop; *result* becomes the result of its call."""
        for run in self._runs:
            if run.call is call and not run.task.done():
                run.overdue = result
                self._news.set()

    def _context_of(self, call: ToolCall) -> ToolContext:
        turn, loop = self._turn, asyncio.get_running_loop()
        given, resumed = turn.given.context, turn.resumed(call)

        def push(progress: Any) -> None:
            self._reports.append((call, progress))
            self._news.set()

        def report(progress: Any) -> None:
            self._reporting.add(call.id)
            loop.call_soon_threadsafe(push, progress)

        halves: dict[str, str] = {}

        def show(event: AgentEvent) -> None:
            if isinstance(event, MessageUpdate) and (halves or not event.delta.isascii()):
                text = halves.pop(event.context_id, "") + event.delta
                text, half = repair_piece(text)
                if half:
                    halves[event.context_id] = half
                event = event if text == event.delta else replace(event, delta=text)
            own = call.id in self._beside
            self._reports.append(_elsewhere(turn, call, event, own_path=own))
            self._news.set()

        return ToolContext(
            context_id=given.context_id,
            turn=given.turn,
            tool_call_id=call.id,
            idempotency_key=f"{given.context_id}/{turn.origin}/{call.id}",
            auth_context=given.auth_context,
            artifacts=given.artifacts,
            report=report,
            show=show,
            charge=turn.charge,
            stores=given.stores,
            epoch=given.epoch,
            cancel=given.cancel,
            answers=resumed.answers,
            answered_by=resumed.answered_by,
            state=resumed.held.state if resumed.held is not None else None,
        )

    async def news(self) -> None:
        """Wait until a call has reported or is done."""
        await self._news.wait()
        self._news.clear()

    def reports(self) -> Iterator[AgentEvent]:
        """The reports and shown events since the last time."""
        while self._reports:
            news = self._reports.popleft()
            yield _progress(self._turn, *news) if isinstance(news, tuple) else news

    def done(self) -> Iterator[Run]:
        """The calls that are over, in order; each is removed once the caller has handled it."""
        for run in [run for run in self._runs if run.over]:
            yield run
            self._runs.remove(run)
            if not run.task.done():
                run.task.cancel()  # a second time; the turn no longer waits for it

    async def stop(self) -> Sequence[Run]:
        """Cancel the running calls; a result that arrives within the grace period counts."""
        stopped = self.let_go()
        running = {run.task for run in stopped if not run.task.done()}
        if running:
            with contextlib.suppress(asyncio.CancelledError):  # cancelled again: wait no longer
                await asyncio.wait(running, timeout=_GRACE_S)
        return stopped

    def let_go(self) -> Sequence[Run]:
        """Cancel the running calls, without waiting for them."""
        left, self._runs = self._runs, []
        for run in left:
            run.task.cancel()
        return left


def _progress(turn: Turn, call: ToolCall, value: Any) -> AgentEvent:
    progress = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer may be larger than any float
            progress = float(value) if math.isfinite(value) else None
    if not isinstance(value, int):  # JSON has any integer
        value = repair_json(value)
    return turn.out.make(
        ToolExecutionUpdate,
        tool_call_id=call.id,
        tool_name=call.name,
        progress=progress,
        partial_result=value if progress is None else None,
    )


def _elsewhere(
    turn: Turn, call: ToolCall, event: AgentEvent, *, own_path: bool = False
) -> AgentEvent:
    """An event of another agent as this turn shows it; *own_path*: the path names the call."""
    first, *inner = event.path or (f"tool:{call.name}",)
    first = f"{first}#{call.id}" if own_path else first
    changes: dict[str, Any] = {"path": (first, *inner), "seq": None}
    for one in fields(event):
        if type(value := getattr(event, one.name)) is str and not value.isascii():
            changes[one.name] = repair(value)  # a tool may have made the event
    redactor = turn.given.redactor
    if not redactor.free:
        for one in fields(event):
            value = changes.get(one.name, getattr(event, one.name))
            if redactor.shows(value):
                by_reference = one.name in ("event", "partial")
                changes[one.name] = None if by_reference else redactor.value(value)
    return amended(event, **changes)
