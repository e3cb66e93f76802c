"""pi's loop functions over our loop: its parameters, its ten events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from looopy.compat.pi.abort import AbortSignal
from looopy.compat.pi.errors import NothingToContinue
from looopy.compat.pi.events import Translator
from looopy.compat.pi.order import Polls, announced
from looopy.compat.pi.setup import ModelOf, RunOptions, find_provider, tool_sources
from looopy.compat.pi.types import (
    AgentEvent,
    AgentLoopConfig,
    AgentMessage,
    AgentTool,
    ConvertToLlmFn,
    GetApiKeyFn,
    GetMessagesFn,
    TransformContextFn,
)
from looopy.history.open_calls import can_continue
from looopy.loop.agent_loop import agent_loop as our_agent_loop
from looopy.loop.agent_loop import agent_loop_continue as our_agent_loop_continue
from looopy.tools.gather import ToolSource
from looopy.types.context import AuthContext, CancelToken, TurnContext
from looopy.types.event import AgentEvent as OurEvent
from looopy.types.event import MessageEnd


def agent_loop(
    prompts: Sequence[AgentMessage],
    *,
    system_prompt: str = "",
    messages: Sequence[AgentMessage] | None = None,
    tools: Sequence[AgentTool | ToolSource] | None = None,
    config: AgentLoopConfig,
    signal: AbortSignal | None = None,
    convert_to_llm: ConvertToLlmFn | None = None,
    transform_context: TransformContextFn | None = None,
    get_api_key: GetApiKeyFn | None = None,
    get_steering_messages: GetMessagesFn | None = None,
    get_follow_up_messages: GetMessagesFn | None = None,
    auth_context: AuthContext | None = None,
) -> AsyncGenerator[AgentEvent, None]:
    """
    One agent run over *prompts*, as pi's events; keeps nothing.

    Args:
        prompts: The new messages.
        messages: The earlier messages; copied, never changed.
        signal: Stops the run.
        convert_to_llm: Selects the messages that the model may see; sync or async, as all below.
        transform_context: Messages and the signal to messages, before each model call.
        get_api_key: The provider's name to a key, per model call; else `config.api_key`.
        get_steering_messages: Called as often as in the pi of `config.order`: at the start, after
            each turn, and in 0.58 after each tool, or before parallel ones.
        get_follow_up_messages: Called when the run would end.
        auth_context: Ours: for tools and hooks of this run.

    Raises:
        NothingToContinue: *prompts* is empty; raised at the call, as the other error.
        ConfigurationError: The model's name, key or package.
    """
    if not prompts:
        raise NothingToContinue("there is no message to send", action="prompt")
    options = RunOptions(config, signal, convert_to_llm, transform_context, get_api_key)
    queues = (get_steering_messages, get_follow_up_messages)
    return _run(options, messages or (), prompts, system_prompt, tools, auth_context, queues)


def agent_loop_continue(
    *,
    system_prompt: str = "",
    messages: Sequence[AgentMessage],
    tools: Sequence[AgentTool | ToolSource] | None = None,
    config: AgentLoopConfig,
    signal: AbortSignal | None = None,
    convert_to_llm: ConvertToLlmFn | None = None,
    transform_context: TransformContextFn | None = None,
    get_api_key: GetApiKeyFn | None = None,
    get_steering_messages: GetMessagesFn | None = None,
    get_follow_up_messages: GetMessagesFn | None = None,
    auth_context: AuthContext | None = None,
) -> AsyncGenerator[AgentEvent, None]:
    """
    Like `agent_loop`, but answers the end of *messages*; sends no events for them.

    Raises:
        NothingToContinue: *messages* is empty, or ends with an answer; raised at the call.
    """
    require_tail(messages)
    options = RunOptions(config, signal, convert_to_llm, transform_context, get_api_key)
    queues = (get_steering_messages, get_follow_up_messages)
    return _run(options, messages, (), system_prompt, tools, auth_context, queues)


def require_tail(messages: Sequence[AgentMessage]) -> None:
    """Refuse to continue from nothing, or from an answer that stands."""
    if not messages:
        raise NothingToContinue("Cannot continue: no messages", action="continue")
    if not can_continue(messages):
        raise NothingToContinue("Cannot continue from assistant message", action="continue")


def _run(
    options: RunOptions,
    messages: Sequence[AgentMessage],
    prompts: Sequence[AgentMessage],
    system_prompt: str,
    tools: Sequence[AgentTool | ToolSource] | None,
    auth_context: AuthContext | None,
    queues: tuple[GetMessagesFn | None, GetMessagesFn | None],
) -> AsyncGenerator[AgentEvent, None]:
    history, config = list(messages), options.config
    if config.order == "1.6":
        prompts = announced(messages, prompts, system_prompt, tools or ())
    polls = None if queues[0] is None else Polls(queues[0], config)
    options.answered = None if polls is None else polls.answered
    provider = find_provider(options.config, has_key=options.get_api_key is not None)
    options.messages = lambda: history
    token = CancelToken()
    context = TurnContext(
        context_id=options.config.session_id or "loop",
        system_prompt=system_prompt,
        auth_context=auth_context,
        cancel=token,
    )
    common: dict[str, Any] = {
        "llm_provider": ModelOf(lambda: options, lambda _config: provider),
        "messages": history,
        "tools": tool_sources(tools or (), options.config),
        "config": options.loop_config(),
        "context": context,
        "get_steering_messages": polls,
        "get_follow_up_messages": queues[1],
    }
    events = our_agent_loop(prompts, **common) if prompts else our_agent_loop_continue(**common)
    return _translated(events, token, options, history, polls)


async def _translated(
    events: AsyncGenerator[OurEvent, None],
    token: CancelToken,
    options: RunOptions,
    history: list[AgentMessage],
    polls: Polls | None,
) -> AsyncGenerator[AgentEvent, None]:
    translator, signal = Translator.of_run(options.config), options.signal
    leave = signal.on_abort(token.cancel) if signal is not None else None
    try:
        async with aclosing(events):
            async for event in events:
                if polls is not None:
                    polls.saw(event)
                if isinstance(event, MessageEnd):
                    history.append(event.message)
                for said in translator.of(event):
                    yield said
    finally:
        if leave is not None:
            leave()
