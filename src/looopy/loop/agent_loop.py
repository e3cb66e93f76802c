"""
`AgentLoop` and `agent_loop`: one turn without a store, for applications that keep their messages.

`cold` makes an Observable of a turn's generator: subscribing runs the turn, disposing cancels it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from reactivex import Observable
from reactivex.abc import DisposableBase, ObserverBase, SchedulerBase
from reactivex.disposable import Disposable

from looopy.auth.redaction import Redactor
from looopy.errors import CannotContinue
from looopy.history.open_calls import can_continue, unanswered
from looopy.history.view import View
from looopy.llm.provider import LLMProvider
from looopy.loop.given import Given, TurnPlan
from looopy.loop.incoming import AskedQueues, GetMessages, Inbox
from looopy.loop.outgoing import Group, Out
from looopy.loop.turn import run_turn
from looopy.tools.gather import ToolSource, wrap_tools
from looopy.types.config import LoopConfig
from looopy.types.constructors import suggesting
from looopy.types.context import AuthContext, CancelToken, SystemPrompt, TurnContext
from looopy.types.event import AgentEvent
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    ToolResultMessage,
    UserMessage,
)


@suggesting
class AgentLoop:
    """
    Runs turns for an application that keeps the messages: no store, no state between calls.

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
        self, messages: Sequence[Message], context: TurnContext | None = None
    ) -> Observable[AgentEvent]:
        """
        Run one turn over *messages* as a cold Observable: subscribing runs it, disposing cancels
        it.

        Args:
            messages: The history, oldest first; the turn answers the last one.
            context: `None`: one without credentials and system prompt.

        Raises:
            CannotContinue: At the call: the last message needs no answer.
        """
        _require_something_to_answer(messages)
        given = context or _bare("", None)
        return cold(lambda: _start(self, messages, (), given, Inbox()))


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
    Run one turn as an async iterator of events, without a store.

    Args:
        prompts: The user's input: a string, a message, or several.
        messages: The earlier messages, oldest first; copied, never changed.
        context: Instead of the defaults; *system_prompt* and *auth_context* are then ignored.
        get_steering_messages: Called for the user's messages during the turn, before each model
            call and before each tool that has not started; see `LoopConfig.steering`. Sync or
            async; returns a message, several, or `None`. If it raises, the turn emits a `warning`
            event.
        get_follow_up_messages: Likewise, before the turn would end; a message continues the turn.

    Returns:
        The events; `turn_end` is the last, its `messages` are the new ones, prompts included.
    """
    loop = AgentLoop(llm_provider, tools, config)
    context = context or _bare(system_prompt, auth_context)
    queues = AskedQueues(get_steering_messages, get_follow_up_messages)
    return _start(loop, messages, _as_messages(prompts), context, queues)


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
    Like `agent_loop`, for *messages* that end in something to answer: a user message, tool results,
    open calls.

    Raises:
        CannotContinue: At the call: the last message needs no answer.
    """
    _require_something_to_answer(messages)
    loop = AgentLoop(llm_provider, tools, config)
    context = context or _bare(system_prompt, auth_context)
    queues = AskedQueues(get_steering_messages, get_follow_up_messages)
    return _start(loop, messages, (), context, queues)


def _bare(system_prompt: SystemPrompt, auth_context: AuthContext | None) -> TurnContext:
    return TurnContext(context_id="loop", system_prompt=system_prompt, auth_context=auth_context)


def _start(
    loop: AgentLoop,
    messages: Sequence[Message],
    prompts: Sequence[Message],
    context: TurnContext,
    inbox: Inbox,
) -> AsyncGenerator[AgentEvent, None]:
    user = next((m for m in reversed(prompts) if isinstance(m, UserMessage)), None)
    history = list(messages)
    run = () if prompts else unanswered(history)

    def begin(own: TurnContext) -> AsyncGenerator[Out, None]:
        given = Given(
            context=own,
            provider=loop.llm_provider,
            sources=loop.tools,
            config=loop.config,
            redactor=Redactor(own.auth_context),
            view=View(history),
            inbox=inbox,
        )
        said = given.redactor.value(prompts)  # results among them may show a secret
        return run_turn(given, TurnPlan(prompts=said, user_message=user, run=run))

    return _flat(context, begin)


async def _flat(
    context: TurnContext, start: Callable[[TurnContext], AsyncGenerator[Out, None]]
) -> AsyncGenerator[AgentEvent, None]:
    """
    The events of a turn, one by one.

    The turn has its own token. The token of *context* belongs to the caller, who may run several
    turns with it. Cancelling that token cancels all of them, but the deadline of one turn stops no
    other.
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
            "cannot continue: the last message is an answer; send a message instead",
            action="continue",
        )


def cold(start: Callable[[], AsyncGenerator[AgentEvent, None]]) -> Observable[AgentEvent]:
    """
    An Observable that runs *start* for each subscription, as a task of the running loop.

    Disposing cancels the task. An exception of the generator goes to `on_error`.
    """

    def subscribe(
        observer: ObserverBase[AgentEvent], _scheduler: SchedulerBase | None = None
    ) -> DisposableBase:
        async def run() -> None:
            try:
                events = start()
                try:
                    async for event in events:
                        observer.on_next(event)
                finally:
                    await events.aclose()
            except asyncio.CancelledError:
                raise
            except Exception as exc:  # noqa: BLE001 - an Observable reports by on_error
                observer.on_error(exc)
            else:
                observer.on_completed()

        # The Disposable holds the task, and the task the observer: both live as long as the run.
        task = asyncio.get_running_loop().create_task(run(), name="looopy turn")

        def dispose() -> None:
            task.cancel()

        return Disposable(dispose)

    return Observable(subscribe)
