"""
One iteration: a model call, and the tool calls of its answer.

It is an async generator, written top to bottom. It yields either one event that may be shown at
once (a delta, a report), or a `Group`: events that belong together. The caller commits the durable
events of a group before it shows any and before it pulls again.

A group closes before each model call, before a tool runs, and at the end of the turn. So every
effect in the world follows its stored intent. A group with the result of a tool also closes before
code of the application is awaited: a source that lists its tools, an approval's predicate, a hook.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from looopy.errors import OutputInvalid
from looopy.loop.incoming import Queued
from looopy.loop.model_call import call_model
from looopy.loop.outgoing import Out
from looopy.loop.output import (
    ASK_BY_TOOL,
    ASK_FOR_JSON,
    UNFIT,
    OutputRefused,
    Wanted,
    gave_none,
)
from looopy.loop.parts import Turn
from looopy.loop.progress import NATURAL
from looopy.loop.tool_calls import run_tools, skip_calls
from looopy.tools.base import Tool
from looopy.tools.call.run import resolve_name
from looopy.tools.gather import gather_tools
from looopy.types.message import AssistantMessage, StopReason, ToolCall, UserMessage
from looopy.types.result import FINAL_ANSWER, is_accepted


async def run_iteration(turn: Turn) -> AsyncGenerator[Out, None]:
    """Call the model once and run its tool calls; ends the turn's progress if the turn is over."""
    progress, out = turn.progress, turn.out
    if out.unsaved:  # else it closes later: the number of commits is the same
        yield out.close_group()
    tools, refused = await _offered(turn), progress.refused
    assistant: AssistantMessage | None = None
    cut_call: str | None = None
    if progress.open_calls:
        calls, progress.open_calls = progress.open_calls, ()
    else:
        progress.call_turn = None  # calls from now on are this turn's own
        progress.spoken = progress.spoken or bool(progress.queued)
        if turn.says:
            async for one in _say(turn):
                yield one
        elif out.waits:
            yield out.close_group()
        if not progress.spoken and await turn.steered():  # that commit brought news
            async for one in _say(turn):
                yield one
        progress.spoken = False
        if progress.stop is not None:  # the messages that continued the turn were withdrawn
            turn.end_iteration(None)
            return
        async for one in call_model(turn, tools):
            yield one
        assistant = progress.answer
        if progress.stop is not None or assistant is None:
            return
        progress.use(assistant.usage)
        turn.warn_of_cost()
        calls, cut_call = _on_offer(turn, assistant.tool_calls, tools), _cut_call_of(assistant)
    if calls:
        async for one in run_tools(turn, calls, tools, cut_call):
            yield one
    elif assistant is not None and assistant.stop_reason is not StopReason.PAUSED:
        progress.end(_STOPS.get(assistant.stop_reason, StopReason.STOP))
    judge_answer(turn, assistant)
    again = progress.stop is None and progress.refused > refused
    if progress.guards.concluding and not again and progress.stop in (None, *NATURAL):
        progress.end(StopReason.MAX_ITERATIONS)
    turn.end_iteration(assistant)


async def _offered(turn: Turn) -> dict[str, Tool]:
    """The tools for the next answer; of a turn that may only answer, those that take the answer."""
    given, tools = turn.given, dict[str, Tool]()
    if not turn.progress.guards.concluding:
        with turn.scope:
            tools = await gather_tools(given.sources, given.context, turn.warn_of_tools)
    return tools if turn.wanted is None else turn.wanted.offered(tools)


def _on_offer(
    turn: Turn, calls: Sequence[ToolCall], tools: Mapping[str, Tool]
) -> Sequence[ToolCall]:
    """The *calls* to run: of a turn that may only answer, none but those that take the answer."""
    if not turn.progress.guards.concluding:
        return calls
    wrong = [call for call in calls if resolve_name(call.name, tools) is None]
    skip_calls(turn, wrong, NO_TOOLS)
    return [call for call in calls if call not in wrong]


async def _say(turn: Turn) -> AsyncGenerator[Out, None]:
    """Say the queued messages, except those that are withdrawn before they are stored."""
    said = tuple(turn.progress.queued)
    while True:
        turn.say_queued()
        group = turn.out.close_group()
        yield group
        gone = turn.given.inbox.withdrawn()
        if not gone:
            break
        turn.unsay(group, said, gone)
        said = tuple(turn.progress.queued)
    if said:
        turn.progress.go_on()


def _cut_call_of(assistant: AssistantMessage) -> str | None:
    """The call in which an answer broke off: some or all of its arguments may be missing."""
    last = assistant.content[-1] if assistant.content else None
    is_cut = assistant.stop_reason in (StopReason.LENGTH, StopReason.SENSITIVE)
    return last.id if is_cut and isinstance(last, ToolCall) else None


# The end of a turn by its last answer, which has no tool call; any other stop reason is an answer.
_STOPS = {
    StopReason.LENGTH: StopReason.LENGTH,
    StopReason.SENSITIVE: StopReason.CONTENT_FILTER,
}
CUT = "it was cut off: give a shorter one"
NO_TOOLS = (
    "Not run: the turn has reached its limit of model calls, and the tool is not on offer any more."
)
"""The result of a call in an answer for which its tool was not offered."""


def judge_answer(turn: Turn, assistant: AssistantMessage | None) -> None:
    """End the turn if its answer fits; else continue it, within the limit of tries."""
    wanted, progress = turn.wanted, turn.progress
    if wanted is None or progress.asked:  # a person's answer may change the model's
        return
    if any(is_accepted(result) for result in progress.results):
        progress.end(StopReason.STOP)
        return
    given = [r for r in progress.results if r.tool_name == FINAL_ANSWER]
    if given and wanted.tool is not None:
        _refuse(turn, wanted, given[-1].text, asks=False)
    elif assistant is not None and progress.stop in NATURAL:
        cut = progress.stop is StopReason.LENGTH
        problem = "it calls a tool, which is not on offer any more" if assistant.tool_calls else ""
        try:
            wanted.type.read_text(assistant.text)
        except OutputRefused as error:
            problem = problem or str(error)
        if problem:
            _refuse(turn, wanted, CUT if cut else problem, asks=True)
        else:
            progress.end(StopReason.STOP)


def _refuse(turn: Turn, wanted: Wanted, problem: str, *, asks: bool) -> None:
    progress = turn.progress
    progress.refused += 1
    tries, allowed = progress.refused, turn.given.config.max_output_retries + 1
    if tries >= allowed:
        error = OutputInvalid(
            f"{gave_none(allowed)} (LoopConfig.max_output_retries). The last time: {problem}",
            tries=tries,
        )
        progress.end(StopReason.ERROR, error)
        return
    text = f"answer {tries} of {allowed} does not fit output_type: {problem}"
    turn.out.warn("output_invalid", text)
    if asks:
        how = ASK_FOR_JSON if wanted.tool is None else ASK_BY_TOOL
        progress.go_on()
        progress.queued = (
            Queued(UserMessage(f"{UNFIT}{problem}\n{how}")),
            *progress.queued,
        )
