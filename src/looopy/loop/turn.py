"""
One turn, from its first event to its last: stateless, and written like the algorithm.

    turn_start
    until the answer is complete or a limit ends the turn:
        one iteration: call the model, run the tools it asks for
    turn_end

`run_turn` is the primitive: an async generator of events and commit groups (see
`looopy.loop.outgoing`). `Agent` pulls it, and commits each group before it pulls the next one.
`AgentLoop` and `agent_loop` are the same without a store, for applications that keep their messages
elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from looopy.errors import BudgetExceeded, LimitExceeded, LooopyError, StoreError, foreign
from looopy.llm.provider import abilities_of
from looopy.llm.render import OUTCOME_UNKNOWN
from looopy.loop.compaction import relieve
from looopy.loop.given import Given, TurnPlan
from looopy.loop.guards import Guards, Verdict
from looopy.loop.incoming import AskedQueues
from looopy.loop.interrupt import CancelScope, TurnInterrupted
from looopy.loop.iteration import run_iteration
from looopy.loop.model_call import keep_partial
from looopy.loop.outgoing import Group, Out, Outgoing
from looopy.loop.output import Wanted
from looopy.loop.parts import Relief, Turn
from looopy.loop.pending import drop, requests_of
from looopy.loop.progress import NATURAL, Progress
from looopy.loop.tool_calls import skip_calls
from looopy.types.event import (
    ApprovalDecided,
    AuthRequired,
    InputRequired,
    MessageStart,
    TurnEnd,
    TurnError,
    TurnStart,
)
from looopy.types.message import StopReason
from looopy.types.state import Outcome, outcome_of
from looopy.types.storable import repair

_logger = logging.getLogger("looopy")


async def run_turn(
    given: Given, plan: TurnPlan, relief: Relief | None = relieve
) -> AsyncGenerator[Out, None]:
    """
    Run one turn.

    Args:
        plan: The beginning of the turn.
        relief: Makes room, once, if a request does not fit the model's window.

    Yields:
        Events to show at once, and groups to commit before the next pull. The first group opens the
        turn, the last one closes it. Exactly one `turn_end` is committed, even if the turn fails.
        If news refuses the last group (`Group.heard`), others follow.
    """
    config, inbox = given.config, given.inbox
    scope = CancelScope(given.context.cancel, config.turn_timeout_s)
    guards = Guards(config, given.spent, concluding=plan.concluding)
    spoken = bool(plan.delivered) and config.queue_mode == "one-at-a-time"
    abilities = abilities_of(given.provider)
    progress = Progress(guards, abilities, plan.run, plan.call_turn, spoken)
    wanted = Wanted.of(given.output_type, abilities)
    turn = Turn(given, plan, progress, Outgoing(given, progress), scope, wanted, relief)
    if isinstance(inbox, AskedQueues):
        inbox.failed = turn.hook_failed
    interrupted: BaseException | None = None
    refused = shows = False
    try:
        yield _open(turn)
        if plan.ends is not None:
            progress.end(plan.ends)
        while True:
            try:
                await _receive(turn, surely=refused)
                while progress.stop is None or progress.put_off:
                    if not (progress.open_calls or _may_call(turn)):
                        break
                    if not progress.in_iteration:
                        turn.begin_iteration()
                    outs = run_iteration(turn)
                    try:
                        async for out in outs:
                            shows = True
                            yield out
                            shows = False
                    finally:
                        await outs.aclose()
                    if turn.out.unsaved and inbox.asks_application:
                        shows = True
                        yield turn.out.close_group()
                        shows = False
                    await _receive(turn)
            except TurnInterrupted as exc:
                _stop_early(turn, exc.reason)
            except BudgetExceeded as exc:
                turn.give_up(Verdict(StopReason.BUDGET, exc.message), exc)
            except BaseException as exc:  # none leaves a turn open
                if shows and isinstance(exc, GeneratorExit):
                    raise  # the reader has closed this generator
                interrupted = _break_off(turn, exc)
            last = _close(turn)
            yield last
            if interrupted is not None:
                raise interrupted
            refused = inbox.refused()
            if not refused:
                return
            turn.out.reopen(last)
    finally:
        scope.close()


def _may_call(turn: Turn) -> bool:
    """Count a model call; false if a limit ends the turn. A guard may also only warn of one."""
    while (verdict := turn.progress.guards.before_model_call()) is not None:
        turn.give_up(verdict)
        if verdict.ends:
            return False
    return True


async def _receive(turn: Turn, *, surely: bool = False) -> None:
    """
    Take new messages: steering before a model call, follow-ups when the turn would end.

    If the store does not answer now, the next commit reports the news. *surely*: a commit has
    reported news, so an error of the store is raised.
    """
    progress, inbox = turn.progress, turn.given.inbox
    if progress.stop is None:
        if not (progress.spoken or progress.open_calls):
            await turn.steered()
    elif progress.stop in NATURAL:
        cancel = turn.given.context.cancel
        if cancel.reason is not None:
            raise TurnInterrupted(cancel.reason)
        try:
            queued = progress.queued or await inbox.steering()
            progress.queued = queued or await inbox.follow_ups()
        except StoreError:
            if surely:
                raise


def _break_off(turn: Turn, exc: BaseException) -> BaseException | None:
    """
    End the turn because of *exc*.

    Returns:
        The exception to raise once the turn is closed: asyncio's cancellation, or one that ends the
        program.
    """
    error = exc if isinstance(exc, Exception) else foreign(exc)
    if error is None and isinstance(exc, asyncio.CancelledError):
        turn.progress.end(StopReason.CANCELLED)
        return exc
    turn.log_failure("an exception ends the turn", exc)
    said = error or exc
    ours = said if isinstance(said, LooopyError) else LooopyError(str(said) or repr(said))
    turn.progress.end(StopReason.ERROR, _bare(ours))
    return exc if error is None else None


def _bare(error: LooopyError) -> LooopyError:
    """Take the tracebacks off an error that was logged: their frames hold the turn, and its end."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error


def _stop_early(turn: Turn, reason: str) -> None:
    if reason != "deadline":
        turn.progress.end(StopReason.CANCELLED)
        return
    limit = turn.given.config.turn_timeout_s
    text = f"the turn took longer than {limit} s (LoopConfig.turn_timeout_s)"
    error = LimitExceeded(text, limit="turn_timeout_s", value=limit)
    turn.progress.end(StopReason.DEADLINE, error)


def _open(turn: Turn) -> Group:
    plan, out = turn.plan, turn.out
    continues = turn.given.context.continues
    out.emit(TurnStart, user_message=plan.user_message, continues=continues)
    for facts in plan.decided:
        out.emit(ApprovalDecided, **facts)
    turn.begin_iteration()
    for message in plan.prompts:
        out.emit(MessageStart, message=message)
        turn.append(message)
    return out.close_group()


def _close(turn: Turn) -> Group:
    progress, out = turn.progress, turn.out
    keep_partial(turn)
    stop = progress.stop or StopReason.ERROR
    if progress.open_calls and stop is StopReason.CANCELLED:
        skip_calls(turn, progress.open_calls, OUTCOME_UNKNOWN)  # a failed turn leaves them open
    outcome = Outcome.INPUT_REQUIRED if progress.waits_for_room else outcome_of(stop)
    waits = outcome in (Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED)
    if not waits:
        drop(turn)
        # Messages with a number are still in the inbox.
        progress.queued = [one for one in progress.queued if one.number is None]
        turn.say_queued()
    if progress.in_iteration:
        turn.end_iteration(None)
    if waits:
        pending = tuple(requests_of(progress.asked) or turn.plan.pending)
        if outcome is Outcome.INPUT_REQUIRED:
            out.emit(InputRequired, pending=pending, reason=progress.waits_for)
        else:
            out.emit(AuthRequired, pending=pending)
    elif outcome is Outcome.FAILED:
        error = progress.error or LooopyError(f"the turn failed: {stop}")
        text = repair(error.message)  # it may quote a server
        out.emit(TurnError, code=stop.value, text=text, error=error)
        if not turn.given.is_replay:
            context = turn.given.context
            place = {"context_id": context.context_id, "turn": context.turn}
            said = "context %s, turn %s failed (%s): %s"
            _logger.warning(said, *place.values(), stop.value, text, extra=place)
    messages = tuple(progress.added)
    out.emit(TurnEnd, outcome=outcome, stop_reason=stop, messages=messages, usage=progress.usage)
    heard = turn.given.inbox.heard if stop in NATURAL else None  # else whatever comes, it ends
    return out.close_group(last=True, heard=heard)
