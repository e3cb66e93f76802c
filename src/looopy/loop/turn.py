"""
One turn, from its first event to its last: stateless, and written like the algorithm.

    turn_start
    until the answer stands or a limit says stop:
        one iteration: call the model, run the tools it asks for
    turn_end

`run_turn` is the primitive: an async generator of events and commit groups (see
`looopy.loop.iteration`), which `Agent` pulls, committing each group before it goes on. `AgentLoop`
and `agent_loop` are the same without a store, for those who keep their messages elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence

from looopy.auth.redaction import Redactor
from looopy.auth.sealing import KeyRing
from looopy.errors import LimitExceeded, LooopyError, StoreError, foreign
from looopy.history.view import View
from looopy.llm.provider import LLMProvider
from looopy.llm.render import OUTCOME_UNKNOWN
from looopy.loop.compaction import relieve
from looopy.loop.guards import Guards, Spent
from looopy.loop.incoming import AskedQueues, Inbox
from looopy.loop.iteration import run_iteration
from looopy.loop.model_call import keep_partial
from looopy.loop.output import OutputType, Wanted
from looopy.loop.pending import drop
from looopy.loop.progress import Group, Out, Relief, Resumed, Turn, end_iteration
from looopy.loop.scope import CancelScope, TurnInterrupted
from looopy.loop.tool_calls import skip_calls
from looopy.tools.gather import ToolSource
from looopy.types.config import LoopConfig
from looopy.types.context import TurnContext
from looopy.types.event import (
    AuthRequired,
    InputRequired,
    MessageStart,
    TurnEnd,
    TurnError,
    TurnStart,
)
from looopy.types.message import Message, StopReason, ToolCall, UserMessage
from looopy.types.state import Outcome, PendingRequest, outcome_of
from looopy.types.storable import repair

_logger = logging.getLogger("looopy")


async def run_turn(
    provider: LLMProvider,
    sources: Sequence[ToolSource],
    config: LoopConfig,
    context: TurnContext,
    history: list[Message],
    prompts: Sequence[Message] = (),
    *,
    user_message: UserMessage | None = None,
    open_calls: Sequence[ToolCall] = (),
    call_turn: int | None = None,
    resumed: Mapping[str, Resumed] | None = None,
    keys: KeyRing | None = None,
    ends: StopReason | None = None,
    pending: Sequence[PendingRequest] = (),
    redactor: Redactor | None = None,
    inbox: Inbox | None = None,
    spoken: bool = False,
    view: View | None = None,
    output_type: OutputType | None = None,
    auto_compact: bool = False,
    spent: Spent | None = None,
    relief: Relief | None = relieve,
) -> AsyncGenerator[Out, None]:
    """
    Run one turn.

    Args:
        history: What was said before, oldest first; grows with the turn.
        prompts: What this turn adds first: results of calls that an earlier turn left open, then
            what the user says. They are announced, and are the first group's messages.
        user_message: Which of *prompts* is the user's, for `turn_start`.
        open_calls: Calls of the last assistant message to run before the model is asked again.
        call_turn: The turn that announced them.
        resumed: What was asked and answered about them, by call id.
        keys: Makes the keys that credentials are encrypted to; of this turn alone if not given.
        ends: End at once with this reason, after the first group: `input_required` or
            `auth_required`.
        pending: What the turn then waits for.
        redactor: Knows the turn's secrets; made of `context.auth_context` when not given.
        inbox: Where steering and follow-ups come from; `None` for nowhere.
        spoken: Among *prompts* is the one queued message that the model hears at a time.
        view: What the model was last shown of *history*, if that is kept from turn to turn.
        output_type: What the answer has to be; `None`: anything.
        auto_compact: Summarise a history of which the model would not be shown all.
        spent: What the context's turns have used before, for the budgets.
        relief: Makes room when a request does not fit the model's window, once.

    Yields:
        Events to show at once, and groups to commit before going on. The first group opens the
        turn, the last one closes it: whatever fails, exactly one `turn_end` is committed. A last
        group that gave way to news (`Group.heard`) is followed by others.
    """
    scope = CancelScope(context.cancel, config.turn_timeout_s)
    guards = Guards(config, spent or Spent())
    turn = Turn(context, provider, sources, config, history, scope, guards, open_calls, call_turn)
    turn.redactor = redactor or Redactor(context.auth_context)
    turn.call_ids.update(call.id for call in open_calls)
    turn.resumed, turn.keys = resumed or {}, keys or KeyRing()
    turn.relief = relief
    turn.inbox, turn.spoken, turn.view = inbox or turn.inbox, spoken, view or turn.view
    if isinstance(inbox, AskedQueues):
        inbox.failed = turn.warn_of_hook
    if output_type is not None:
        turn.wanted = Wanted.of(output_type, native=turn.abilities.structured_output)
    turn.auto_compact = auto_compact
    interrupted: BaseException | None = None
    refused = False
    try:
        yield _open(turn, prompts, user_message)
        turn.stop, turn.pending = ends, pending
        while True:
            try:
                await _hear(turn, surely=refused)
                while turn.stop is None:
                    if not turn.open_calls and (verdict := turn.guards.before_model_call()):
                        turn.give_up(verdict)
                        break
                    if not turn.in_iteration:
                        turn.begin_iteration()
                    outs = run_iteration(turn)
                    try:
                        async for out in outs:
                            yield out
                    finally:
                        await outs.aclose()
                    if turn.unsaved and turn.inbox.asks_application:
                        yield turn.close_group()
                    await _hear(turn)
            except TurnInterrupted as exc:
                _stop_early(turn, exc.reason)
            except GeneratorExit:
                raise
            except BaseException as exc:  # noqa: BLE001 - none leaves a turn open
                interrupted = _break_off(turn, exc)
            last = _close(turn)
            yield last
            if interrupted is not None:
                raise interrupted
            refused = turn.inbox.refused()
            if not refused:
                return
            turn.reopen(last)
    finally:
        scope.close()


_NATURAL = (StopReason.STOP, StopReason.LENGTH)


async def _hear(turn: Turn, *, surely: bool = False) -> None:
    """
    Take what came in: steering before a model call, follow-ups where the turn would end.

    A store that does not answer now is asked again by the next commit, which says if there is news;
    *surely* when it has said so.
    """
    if turn.stop is None and not (turn.spoken or turn.open_calls):
        await turn.steered()
    elif turn.stop in _NATURAL:
        if turn.context.cancel.reason is not None:
            raise TurnInterrupted(turn.context.cancel.reason)
        try:
            queued = turn.queued or await turn.inbox.steering()
            turn.queued = queued or await turn.inbox.follow_ups()
        except StoreError:
            if surely:
                raise
        if turn.queued:
            turn.stop, turn.answered = None, turn.stop


def _as_ours(exc: BaseException) -> LooopyError:
    return exc if isinstance(exc, LooopyError) else LooopyError(str(exc) or repr(exc))


def _break_off(turn: Turn, exc: BaseException) -> BaseException | None:
    """
    End the turn because of *exc*.

    Returns:
        What is to be raised once the turn is closed: asyncio's cancellation, or what wants the
        program to end.
    """
    error = exc if isinstance(exc, Exception) else foreign(exc)
    if error is None and isinstance(exc, asyncio.CancelledError):
        turn.stop = StopReason.CANCELLED
        return exc
    _logger.error("turn %s failed", turn.context.turn, exc_info=exc)
    turn.stop, turn.error = StopReason.ERROR, _as_ours(error or exc)
    return exc if error is None else None


def _stop_early(turn: Turn, reason: str) -> None:
    turn.stop = StopReason.CANCELLED
    if reason == "deadline":
        limit = turn.config.turn_timeout_s
        text = f"the turn took longer than {limit} s (LoopConfig.turn_timeout_s)"
        turn.stop = StopReason.DEADLINE
        turn.error = LimitExceeded(text, limit="turn_timeout_s", value=limit)


def _open(turn: Turn, prompts: Sequence[Message], user_message: UserMessage | None) -> Group:
    turn.emit(
        turn.make(
            TurnStart,
            user_message=user_message,
            continues=turn.context.continues,
        )
    )
    turn.begin_iteration()
    for message in prompts:
        turn.emit(turn.make(MessageStart, message=message))
        turn.append(message)
    return turn.close_group()


def _close(turn: Turn) -> Group:
    keep_partial(turn)
    stop = turn.stop or StopReason.ERROR
    if turn.open_calls and stop is StopReason.CANCELLED:  # a failed turn may still go on with them
        skip_calls(turn, turn.open_calls, OUTCOME_UNKNOWN)
    outcome = outcome_of(stop)
    if outcome not in (Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED):
        drop(turn)
        turn.queued = [one for one in turn.queued if one.number is None]  # others are in the inbox
        turn.say_queued()
    if turn.in_iteration:
        end_iteration(turn, None)
    if outcome is Outcome.INPUT_REQUIRED:
        turn.emit(turn.make(InputRequired, pending=tuple(turn.pending)))
    elif outcome is Outcome.AUTH_REQUIRED:
        turn.emit(turn.make(AuthRequired, pending=tuple(turn.pending)))
    elif outcome is Outcome.FAILED:
        error = turn.error or LooopyError(f"the turn failed: {stop}")
        text = repair(error.message)  # a server's words may be in it
        turn.emit(turn.make(TurnError, code=stop.value, text=text, error=error))
    end = turn.make(
        TurnEnd,
        outcome=outcome,
        stop_reason=stop,
        messages=tuple(turn.added),
        usage=turn.usage,
    )
    return turn.close(end, natural=stop in _NATURAL)
