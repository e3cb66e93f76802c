"""
One turn, from its first event to its last: stateless, and written like the algorithm.

    turn_start
    until the answer stands or a limit says stop:
        one iteration: call the model, run the tools it asks for
    turn_end

`run_turn` is the primitive: an async generator of events and commit groups (see
`looopy.iteration`), which `Agent` pulls, committing each group before it goes on. `AgentLoop` and
`agent_loop` are the same without a store, for those who keep their messages elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from looopy.auth.redaction import Redactor
from looopy.auth.sealing import KeyRing
from looopy.cancellation import CancelScope, TurnInterrupted
from looopy.compaction import relieve
from looopy.errors import CannotContinue, LimitExceeded, LooopyError, StoreError, foreign
from looopy.guards import Guards, Spent
from looopy.history.open_calls import can_continue, unanswered
from looopy.history.view import View
from looopy.holding import drop
from looopy.iteration import run_iteration
from looopy.llm.provider import LLMProvider
from looopy.llm.render import OUTCOME_UNKNOWN
from looopy.model_call import keep_partial
from looopy.output import OutputType, Wanted
from looopy.queues import AskedQueues, GetMessages
from looopy.tool_calls import skip_calls
from looopy.tools.provider import ToolSource, wrap_tools
from looopy.turn import Group, Inbox, Out, Relief, Resumed, Turn, end_iteration
from looopy.types.config import LoopConfig
from looopy.types.context import AuthContext, CancelToken, SystemPrompt, TurnContext
from looopy.types.event import (
    AgentEvent,
    AuthRequired,
    InputRequired,
    MessageStart,
    TurnEnd,
    TurnError,
    TurnStart,
)
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.state import Outcome, PendingRequest, outcome_of
from looopy.types.storable import repair

if TYPE_CHECKING:
    from reactivex import Observable

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
    turn.wanted = None if output_type is None else Wanted.of(output_type, provider)
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


class AgentLoop:
    """
    Runs turns for somebody who keeps the messages: no store, no state between calls.

    Args:
        llm_provider: A provider, or a model name such as `"openai/gpt-5-mini"`.
        tools: Functions, `Tool`s or `ToolProvider`s.
    """

    def __init__(
        self,
        llm_provider: LLMProvider | str,
        tools: Sequence[ToolSource] = (),
        config: LoopConfig | None = None,
    ) -> None:
        from looopy.llm.resolve import resolve_provider

        self.llm_provider = resolve_provider(llm_provider)
        self.tools = wrap_tools(tools)
        self.config = config or LoopConfig()

    def execute_turn(
        self, messages: Sequence[Message], context: TurnContext
    ) -> Observable[AgentEvent]:
        """
        One turn over *messages* as a cold Observable: subscribing runs it, disposing cancels it.

        Args:
            messages: The history, oldest first; the last one is what the turn answers.

        Raises:
            CannotContinue: There is nothing to answer; at the call.
        """
        from looopy.streams import cold

        _require_something_to_answer(messages)
        return cold(lambda: self._events(messages, context))

    def _events(
        self, messages: Sequence[Message], context: TurnContext
    ) -> AsyncGenerator[AgentEvent, None]:
        history = list(messages)
        return _flat(
            context,
            lambda own: run_turn(
                self.llm_provider,
                self.tools,
                self.config,
                own,
                history,
                open_calls=unanswered(history),
            ),
        )


def agent_loop(
    prompts: str | Message | Sequence[Message],
    *,
    llm_provider: LLMProvider | str,
    messages: Sequence[Message] = (),
    tools: Sequence[ToolSource] = (),
    system_prompt: SystemPrompt = "",
    config: LoopConfig | None = None,
    auth_context: AuthContext | None = None,
    context: TurnContext | None = None,
    get_steering_messages: GetMessages | None = None,
    get_follow_up_messages: GetMessages | None = None,
) -> AsyncGenerator[AgentEvent, None]:
    """
    One turn as an async iterator of events, without a store.

    Args:
        prompts: What the user says: a string, a message, or several.
        messages: What was said before, oldest first; copied, never changed.
        context: Instead of the defaults; *system_prompt* and *auth_context* are then not looked at.
        get_steering_messages: Asked for what the user says meanwhile, before each model call and
            before each tool that has not started; see `LoopConfig.steering`. Sync or async; returns
            a message, several, or `None`. One that raises is a `warning` event.
        get_follow_up_messages: Likewise, where the turn would end; it then goes on.

    Returns:
        The events; `turn_end` is the last, its `messages` are the new ones, prompts included.
    """
    said = _as_messages(prompts)
    user = next((m for m in reversed(said) if isinstance(m, UserMessage)), None)
    context = context or _bare(system_prompt, auth_context)
    queues = AskedQueues(get_steering_messages, get_follow_up_messages)
    return _start(llm_provider, messages, said, user, tools, config, context, queues)


def agent_loop_continue(
    *,
    llm_provider: LLMProvider | str,
    messages: Sequence[Message],
    tools: Sequence[ToolSource] = (),
    system_prompt: SystemPrompt = "",
    config: LoopConfig | None = None,
    auth_context: AuthContext | None = None,
    context: TurnContext | None = None,
    get_steering_messages: GetMessages | None = None,
    get_follow_up_messages: GetMessages | None = None,
) -> AsyncGenerator[AgentEvent, None]:
    """
    As `agent_loop`, answering what *messages* already end in: a user message, tool results, open
    calls.

    Raises:
        CannotContinue: There is nothing to answer; at the call.
    """
    _require_something_to_answer(messages)
    context = context or _bare(system_prompt, auth_context)
    queues = AskedQueues(get_steering_messages, get_follow_up_messages)
    return _start(llm_provider, messages, (), None, tools, config, context, queues)


def _bare(system_prompt: SystemPrompt, auth_context: AuthContext | None) -> TurnContext:
    return TurnContext(context_id="loop", system_prompt=system_prompt, auth_context=auth_context)


def _start(
    llm_provider: LLMProvider | str,
    messages: Sequence[Message],
    prompts: Sequence[Message],
    user: UserMessage | None,
    tools: Sequence[ToolSource],
    config: LoopConfig | None,
    context: TurnContext,
    queues: AskedQueues,
) -> AsyncGenerator[AgentEvent, None]:
    loop = AgentLoop(llm_provider, tools, config)
    history = list(messages)
    return _flat(
        context,
        lambda own: run_turn(
            loop.llm_provider,
            loop.tools,
            loop.config,
            own,
            history,
            prompts,
            user_message=user,
            open_calls=() if prompts else unanswered(history),
            inbox=queues,
        ),
    )


async def _flat(
    context: TurnContext, start: Callable[[TurnContext], AsyncGenerator[Out, None]]
) -> AsyncGenerator[AgentEvent, None]:
    """
    The events of a turn, one by one.

    The turn has a token of its own. That of *context* belongs to the caller, who may run several
    turns with it: cancelling it cancels them all, and the deadline of one stops no other.
    """
    own = CancelToken()
    leave = context.cancel.on_cancel(lambda: own.cancel(context.cancel.reason or "cancelled"))
    try:
        async with aclosing(start(replace(context, cancel=own))) as outs:
            async for out in outs:
                if isinstance(out, Group):
                    for event in out.events:
                        yield event
                else:
                    yield out
    finally:
        leave()


def _as_messages(prompts: str | Message | Sequence[Message]) -> list[Message]:
    if isinstance(prompts, str):
        return [UserMessage(prompts)]
    if isinstance(prompts, (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)):
        return [prompts]
    return list(prompts)


def _require_something_to_answer(messages: Sequence[Message]) -> None:
    if not messages:
        raise CannotContinue("cannot continue: there are no messages", action="continue")
    if not can_continue(messages):
        raise CannotContinue(
            "cannot continue: the last message is an answer; say something instead",
            action="continue",
        )
