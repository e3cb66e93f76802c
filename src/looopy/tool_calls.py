"""
The tools of an iteration: run in order, each with exactly one result, whatever happens.

A group closes before a tool runs, so an effect in the world is always preceded by its durable
intent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from looopy._failpoints import reach
from looopy.cancellation import TurnInterrupted
from looopy.errors import ValueRefused
from looopy.llm.render import CANCELLED, NOT_STARTED, OUTCOME_UNKNOWN, synthetic_result
from looopy.stores.gate import dump, repair, repair_json
from looopy.tools.executor import resolve_name, run_call
from looopy.tools.provider import Tool, ToolContext
from looopy.turn import Out, Turn
from looopy.types.event import (
    AgentEvent,
    ToolExecutionUpdate,
    TurnWarning,
    utc_now,
)
from looopy.types.message import (
    ImageContent,
    ToolCall,
    ToolResultMessage,
    now_ms,
)

SKIPPED = "Skipped due to queued user message."
_MAX_DETAILS_CHARS = 1024 * 1024  # as JSON
_GRACE_S = 5.0  # how long a tool may take to stop before it is left behind


async def run_tools(
    turn: Turn, calls: Sequence[ToolCall], tools: dict[str, Tool]
) -> AsyncGenerator[Out, None]:
    """Run the calls in order; each gets exactly one result, whatever happens."""
    verdict = turn.guards.on_batch(len(calls))
    if verdict is not None:
        skip_calls(turn, calls, verdict.text)
        turn.give_up(verdict)
        return
    for i, call in enumerate(calls):
        verdict = turn.guards.before_tool_call(call)
        if verdict is not None and verdict.stop is not None:
            skip_calls(turn, calls[i:], verdict.text)
            turn.give_up(verdict)
            return
        if verdict is not None:
            turn.emit(turn.make(TurnWarning, code=verdict.code, text=verdict.text))
        if await _steered(turn):
            skip_calls(turn, calls[i:], SKIPPED)
            return
        name = resolve_name(call.name, tools)
        tool = tools.get(name) if name is not None else None
        turn.begin(call, tool)
        yield turn.close_group()  # from here on the call is known to have started
        reach("B8")
        if await _steered(turn):  # the commit brought the news
            turn.answer(call, synthetic_result(call, SKIPPED, timestamp=now_ms()))
            skip_calls(turn, calls[i + 1 :], SKIPPED)
            return
        try:
            async for out in _run_tool(turn, call, tool, tools):
                yield out
        except (TurnInterrupted, asyncio.CancelledError):
            skip_calls(turn, calls[i + 1 :], CANCELLED)
            raise
        except Exception:  # of ours, not of the tool: it may have had its effect all the same
            turn.answer(call, synthetic_result(call, OUTCOME_UNKNOWN, timestamp=now_ms()))
            skip_calls(turn, calls[i + 1 :], NOT_STARTED)
            raise
        verdict = turn.guards.after_tool_call(is_error=turn.results[-1].is_error)
        if verdict is not None:
            skip_calls(turn, calls[i + 1 :], NOT_STARTED)
            turn.give_up(verdict)
            return


async def _steered(turn: Turn) -> bool:
    """
    Whether the user has said something that the calls which have not started give way to.

    Calls of an earlier turn, which this one was asked to go on with, give way to nothing.
    """
    if turn.config.steering != "skip_remaining" or turn.call_turn is not None:
        return False
    return await turn.steered()


def skip_calls(turn: Turn, calls: Sequence[ToolCall], text: str) -> None:
    """Answer calls that do not run."""
    for call in calls:
        result = synthetic_result(call, text, timestamp=now_ms())
        turn.answer(call, result, announce=True)


async def _run_tool(
    turn: Turn, call: ToolCall, tool: Tool | None, tools: dict[str, Tool]
) -> AsyncGenerator[Out, None]:
    started = utc_now()
    reports: list[Any] = []
    reported = asyncio.Event()
    loop = asyncio.get_running_loop()

    def push(progress: Any) -> None:
        reports.append(progress)
        reported.set()

    def report(progress: Any) -> None:
        loop.call_soon_threadsafe(push, progress)

    origin = turn.call_turn if turn.call_turn is not None else turn.context.turn
    context = ToolContext(
        context_id=turn.context.context_id,
        turn=turn.context.turn,
        tool_call_id=call.id,
        idempotency_key=f"{turn.context.context_id}/{origin}/{call.id}",
        auth_context=turn.context.auth_context,
        artifacts=turn.context.artifacts,
        report=report,
        cancel=turn.context.cancel,
    )
    running = asyncio.create_task(
        run_call(
            tool,
            call,
            context,
            default_timeout_s=turn.config.tool_timeout_s,
            max_result_bytes=turn.config.max_result_bytes,
            known=tuple(tools),
            redactor=turn.redactor,
        ),
        name=f"looopy tool {call.name}",
    )
    running.add_done_callback(lambda _: reported.set())
    try:
        while not running.done():
            with turn.scope:
                await reported.wait()
            reported.clear()
            while reports:
                yield _progress(turn, call, reports.pop(0))
    except (TurnInterrupted, asyncio.CancelledError):
        result = await _stop_tool(running, call, tool)
        turn.answer(call, _storable(result), started=started)
        raise
    finally:
        running.cancel()  # when nobody pulls any more; does nothing to one that is done
    reach("B9")
    turn.answer(call, _storable(_result_of(running, call, tool)), started=started)


async def _stop_tool(
    running: asyncio.Task[ToolResultMessage], call: ToolCall, tool: Tool | None
) -> ToolResultMessage:
    """
    Cancel a running tool; what it still returns within the grace period counts, else what is known.
    """
    if not running.done():
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # asked again: wait no longer
            await asyncio.wait({running}, timeout=_GRACE_S)
    return _result_of(running, call, tool)


def _result_of(
    running: asyncio.Task[ToolResultMessage], call: ToolCall, tool: Tool | None
) -> ToolResultMessage:
    """The call's result, or what is known of one that has none."""
    if running.done() and not running.cancelled() and running.exception() is None:
        return running.result()
    harmless = tool is None or tool.effects == "none"
    return synthetic_result(call, CANCELLED if harmless else OUTCOME_UNKNOWN, timestamp=now_ms())


def _progress(turn: Turn, call: ToolCall, value: Any) -> AgentEvent:
    progress = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer may be larger than any float
            progress = float(value)
    return turn.make(
        ToolExecutionUpdate,
        tool_call_id=call.id,
        tool_name=call.name,
        progress=progress,
        partial_result=value if progress is None else None,
    )


def _storable(result: ToolResultMessage) -> ToolResultMessage:
    """The result with text and details that every store keeps."""
    content = tuple(
        block if isinstance(block, ImageContent) else replace(block, text=repair(block.text))
        for block in result.content
    )
    # Not compared with what it was: the tool's own values may not be comparable.
    return replace(result, content=content, details=_details(repair_json(result.details)))


def _details(value: Any) -> Any:
    """Details that fit; a finished tool's result must not be lost for what no model reads."""
    if value is None:
        return None
    try:
        if len(dump(value)) <= _MAX_DETAILS_CHARS:
            return value
    except ValueRefused:
        pass  # larger still: what else is refused was repaired before
    return {"omitted": "the details were too large to be stored"}
