"""
One iteration: a model call, and the tools it asked for.

Written top to bottom as an async generator. What it yields is either one event that may be shown at
once (a delta, a report), or a `Group`: events that belong together, of which the durable ones are
committed before any is shown and before the generator goes on. A group closes before each model
call, before a tool runs, and at the end of the turn; so an effect in the world is always preceded
by its durable intent. While it holds the result of a tool, it also closes before code of the
application is awaited: a source that lists its tools, an approval's predicate, a hook.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from looopy.errors import OutputInvalid
from looopy.loop.incoming import Queued
from looopy.loop.model_call import call_model
from looopy.loop.output import FINAL_ANSWER, OutputRefused, Wanted, is_accepted
from looopy.loop.progress import Out, Turn, end_iteration
from looopy.loop.tool_calls import run_tools
from looopy.tools.gather import gather_tools
from looopy.types.event import TurnWarning
from looopy.types.message import AssistantMessage, StopReason, ToolCall, UserMessage


async def run_iteration(turn: Turn) -> AsyncGenerator[Out, None]:
    """Call the model once and run what it asks for; sets `turn.stop` when the turn is over."""
    if turn.unsaved:  # else it would be closed behind this: that is as many commits
        yield turn.close_group()
    with turn.scope:
        tools = await gather_tools(turn.sources, turn.context, turn.warn_of_tools)
    if turn.wanted is not None:
        tools = turn.wanted.offered(tools)
    assistant: AssistantMessage | None = None
    if turn.open_calls:
        calls, turn.open_calls = turn.open_calls, ()
    else:
        turn.call_turn = None  # what is called from now on is this turn's own
        turn.spoken = turn.spoken or bool(turn.queued)
        if turn.says:
            async for out in _say(turn):
                yield out
        else:  # as nearly always
            yield turn.close_group()
            turn.stop, turn.answered = turn.answered, None
        if not turn.spoken and await turn.steered():  # that commit brought news
            async for out in _say(turn):
                yield out
        turn.spoken = False
        if turn.stop is not None:  # what the turn went on for was withdrawn
            end_iteration(turn, None)
            return
        async for out in call_model(turn, tools):
            yield out
        assistant = turn.answer_of_model
        if turn.stop is not None or assistant is None:
            return
        turn.use(assistant.usage)
        turn.warn_of_cost()
        calls, turn.cut_call = assistant.tool_calls, _cut_call_of(assistant)
        turn.stop = _stop_of(assistant)
    if calls:
        turn.stop = None
        async for out in run_tools(turn, calls, tools):
            yield out
    judge_answer(turn, assistant)
    end_iteration(turn, assistant)


async def _say(turn: Turn) -> AsyncGenerator[Out, None]:
    """Say what is queued, but for what is withdrawn before it is stored."""
    said = tuple(turn.queued)
    while True:
        turn.say_queued()
        group = turn.close_group()
        yield group
        gone = turn.inbox.withdrawn()
        if not gone:
            break
        turn.unsay(group, said, gone)
        said = tuple(turn.queued)
    turn.stop, turn.answered = None if said else turn.answered, None


def _cut_call_of(assistant: AssistantMessage) -> str | None:
    """The call that an answer broke off in: its arguments may be short of some, even of all."""
    last = assistant.content[-1] if assistant.content else None
    is_cut = assistant.stop_reason in (StopReason.LENGTH, StopReason.SENSITIVE)
    return last.id if is_cut and isinstance(last, ToolCall) else None


def _stop_of(assistant: AssistantMessage) -> StopReason:
    """
    Why a turn ends whose last answer asks for no tool. A `toolUse` without a call is an answer.
    """
    if assistant.stop_reason is StopReason.LENGTH:
        return StopReason.LENGTH
    if assistant.stop_reason is StopReason.SENSITIVE:
        return StopReason.CONTENT_FILTER
    return StopReason.STOP


CUT = "it was cut off: give a shorter one"


def judge_answer(turn: Turn, assistant: AssistantMessage | None) -> None:
    """End the turn with an answer that fits; else have it go on, while it may."""
    wanted = turn.wanted
    if wanted is None or turn.asked:  # what a person says may change the answer
        return
    if any(is_accepted(result) for result in turn.results):
        turn.stop, turn.error = StopReason.STOP, None
        return
    given = [r for r in turn.results if r.tool_name == FINAL_ANSWER]
    if given and wanted.tool is not None:
        _refuse(turn, wanted, given[-1].text, asks=False)
    elif assistant is not None and turn.stop in (StopReason.STOP, StopReason.LENGTH):
        cut = turn.stop is StopReason.LENGTH
        try:
            wanted.type.read_text(assistant.text)
        except OutputRefused as error:
            _refuse(turn, wanted, CUT if cut else str(error), asks=True)
        else:
            turn.stop = StopReason.STOP


def _refuse(turn: Turn, wanted: Wanted, problem: str, *, asks: bool) -> None:
    wanted.tries += 1
    allowed = turn.config.max_output_retries + 1
    if wanted.tries >= allowed:
        turn.stop = StopReason.ERROR
        turn.error = OutputInvalid(
            f"the model gave no answer that fits output_type in {allowed} tries"
            f" (LoopConfig.max_output_retries). The last time: {problem}",
            tries=wanted.tries,
        )
        return
    text = f"answer {wanted.tries} of {allowed} does not fit output_type: {problem}"
    turn.emit(turn.make(TurnWarning, code="output_invalid", text=text))
    if asks:
        how = "as JSON alone" if wanted.tool is None else f"by calling the tool {FINAL_ANSWER}"
        turn.stop = None
        turn.queued = (
            Queued(UserMessage(f"Your answer does not fit: {problem}\nGive it again, {how}.")),
            *turn.queued,
        )
