"""
The tool calls of an iteration: each gets exactly one result, in every case.

A group closes before a tool runs, so an effect in the world always follows its stored intent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field

from looopy._failpoints import reach
from looopy.errors import MissingExtra, ValueRefused
from looopy.llm.render import CANCELLED, NOT_STARTED, OUTCOME_UNKNOWN
from looopy.loop.guards import Verdict
from looopy.loop.interrupt import TurnInterrupted
from looopy.loop.outgoing import Out
from looopy.loop.parts import Turn
from looopy.loop.pending import (
    hold,
    hold_for_approval,
    hold_for_credentials,
    hold_for_sign_in,
    refusal_of,
    wait,
)
from looopy.loop.tool_tasks import ToolTaskGroup
from looopy.tools.base import Tool
from looopy.types.message import ToolCall

SKIPPED = "Skipped due to queued user message."


async def run_tools(
    turn: Turn, calls: Sequence[ToolCall], tools: dict[str, Tool], cut_call: str | None
) -> AsyncGenerator[Out, None]:
    """
    Run the calls; each gets exactly one result, in every case.

    They run one after the other, but neighbours that are marked `parallel` overlap. A result is
    stored as soon as it is available; the model sees the results in the order of the calls.

    Args:
        cut_call: The id of the call in which the model's answer broke off, if it did.
    """
    verdict = turn.progress.guards.on_batch(len(calls))
    if verdict is not None:
        skip_calls(turn, calls, verdict.text)
        turn.give_up(verdict)
        return
    tasks, rest = ToolTaskGroup(turn, tools, cut_call), _Rest(deque(calls))
    try:
        while True:
            saves_first = await _begin(turn, tasks, rest)
            if saves_first or rest.begun:
                yield turn.out.close_group()
            if rest.begun:  # from here on, their start is stored
                await _start(turn, tasks, rest)
            if saves_first:
                continue
            if not tasks:
                break
            with turn.scope:
                await tasks.news()
            for report in tasks.reports():
                yield report
            if (_answer_done(turn, tasks, rest) or turn.out.asks) and tasks:
                yield turn.out.close_group()
    except (TurnInterrupted, asyncio.CancelledError):
        for run in await tasks.stop():
            turn.answer(run.call, run.result(), started=run.started)
        _skip_begun(turn, rest, CANCELLED)
        skip_calls(turn, rest.calls, CANCELLED)
        raise
    except (Exception, KeyboardInterrupt, SystemExit):
        # An error of looopy or the application, not of a tool: the tools may have had their effect.
        for run in tasks.let_go():
            turn.excuse(run.call, OUTCOME_UNKNOWN)
        _skip_begun(turn, rest, NOT_STARTED)
        skip_calls(turn, rest.calls, NOT_STARTED)
        raise
    finally:
        tasks.let_go()  # if the caller has stopped pulling
    order = {call.id: i for i, call in enumerate(calls)}
    turn.progress.results.sort(key=lambda result: order.get(result.tool_call_id, 0))
    _deal_with(turn, rest)
    wait(turn)


def _deal_with(turn: Turn, rest: _Rest) -> None:
    """Answer the calls that will not start, or leave calls open that lack credentials."""
    if rest.told is None:
        for call in rest.calls:
            hold_for_credentials(turn, call)
        return
    text, verdict = rest.told
    skip_calls(turn, rest.calls, text)
    if verdict is not None:
        turn.give_up(verdict)


@dataclass(slots=True)
class _Rest:
    """
    Calls that have not started.

    Attributes:
        begun: Calls that were announced, and are about to start.
        told: Set once no other call will start: the text of their results, and the verdict that
            ends the turn.
    """

    calls: deque[ToolCall]
    begun: list[ToolCall] = field(default_factory=list)
    told: tuple[str, Verdict | None] | None = None


async def _begin(turn: Turn, tasks: ToolTaskGroup, rest: _Rest) -> bool:
    """
    Announce the calls that may start now; `_start` starts them.

    Returns:
        True if results have to be stored first, because code of the application comes next. It may
        take any time, and a kill during it would lose the results.
    """
    while rest.calls and rest.told is None and tasks.takes(rest.calls[0], rest.begun):
        call = rest.calls[0]
        if tasks.lacks_credentials(call):
            break
        asks = tasks.asks_application(call)
        if asks and tasks:
            break  # results that arrive in the meantime would wait as well
        if turn.out.unsaved and (asks or turn.given.inbox.asks_application):
            return True
        rest.told = await _refused(turn, call)
        if rest.told is not None:
            break
        tool, first, problem = tasks.tool_of(call), None, None
        if tool is None and turn.is_locked(call):
            rest.calls.popleft()
            hold_for_sign_in(turn, call)
            continue
        try:
            first = await tasks.may_run(call)
            if tool is not None and first is not None:
                hold_for_approval(turn, call, tool, first)
        except ValueRefused as error:
            problem = refusal_of(turn, call, error)
        rest.calls.popleft()
        held = turn.resumed(call).held
        if tool is None and held is not None and held.died:  # it may have had its effect
            problem = OUTCOME_UNKNOWN
        if problem is not None:
            skip_calls(turn, [call], problem)
        elif first is None:
            turn.begin(tasks.as_it_runs(call), tool)
            rest.begun.append(call)
    return False


async def _start(turn: Turn, tasks: ToolTaskGroup, rest: _Rest) -> None:
    """Start the announced calls, unless that commit brought news."""
    reach("B8")
    begun = rest.begun
    if await _steered(turn):
        rest.told = (SKIPPED, None)
        _skip_begun(turn, rest, SKIPPED)
    else:
        tasks.start(begun)
    rest.begun = []


def _skip_begun(turn: Turn, rest: _Rest, text: str) -> None:
    """Answer the announced calls that do not run."""
    begun, rest.begun = rest.begun, []
    for call in begun:
        turn.excuse(call, text)


def _answer_done(turn: Turn, tasks: ToolTaskGroup, rest: _Rest) -> bool:
    """Answer the calls that are over; return true if there was one."""
    answered = False
    for run in tasks.done():
        reach("B9")
        turn.out.unsaved = True
        if run.asks is None:
            turn.answer(run.call, run.result(), started=run.started)
        else:
            try:
                hold(turn, run.call, run.asks)
                continue
            except (ValueRefused, MissingExtra) as error:
                turn.excuse(run.call, refusal_of(turn, run.call, error), started=run.started)
        answered = True
        is_error = turn.progress.results[-1].is_error
        verdict = turn.progress.guards.after_tool_call(run.call, is_error=is_error)
        if verdict is not None and rest.told is None:
            rest.told = (NOT_STARTED, verdict)
    return answered


async def _refused(turn: Turn, call: ToolCall) -> tuple[str, Verdict | None] | None:
    """The text for *call* and later ones if they must not start, and a guard's verdict."""
    verdict = turn.progress.guards.before_tool_call(call)
    if verdict is not None and verdict.ends:
        return verdict.text, verdict
    if verdict is not None:
        turn.give_up(verdict)
    return (SKIPPED, None) if await _steered(turn) else None


async def _steered(turn: Turn) -> bool:
    """
    True if a message of the user replaces the calls that have not started.

    Calls of an earlier turn that this one continues are never replaced.
    """
    if turn.given.config.steering != "skip_remaining" or turn.progress.call_turn is not None:
        return False
    return await turn.steered()


def skip_calls(turn: Turn, calls: Collection[ToolCall], text: str) -> None:
    """Answer calls that do not run."""
    for call in calls:
        turn.excuse(call, text, announce=True)
