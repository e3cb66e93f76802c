"""pipy-ai's `stream` and `astream`: one call of a model, over our providers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from looopy.compat.pi.setup import find_provider
from looopy.compat.pi.types import AgentLoopConfig, AssistantMessageEvent
from looopy.errors import ConfigurationError
from looopy.llm.pipy import Context, SimpleStreamOptions
from looopy.llm.provider import LLMProvider, abilities_of
from looopy.llm.render import render
from looopy.types.request import LLMRequest, StreamOptions, ThinkingLevel


async def astream(
    model: str | LLMProvider, context: Context, options: SimpleStreamOptions | None = None
) -> AsyncGenerator[AssistantMessageEvent, None]:
    """
    Call a model once and yield the events of its answer; nothing is tried again.

    Args:
        model: A name as `looopy.llm.resolve_provider` takes it, or a provider.

    Yields:
        pi's events. `done` and `error` are last and have the `message`; on `error`, `error` is the
        exception, which is not raised.

    Raises:
        ConfigurationError: The model's name, key or package, at the first event.
    """
    asked = options or SimpleStreamOptions()
    provider = find_provider(AgentLoopConfig(model=model, api_key=asked.api_key))
    abilities = abilities_of(provider)
    level = None if asked.reasoning is None else ThinkingLevel(asked.reasoning)
    request = LLMRequest(
        messages=render(context.messages, provider=abilities.name, model=abilities.model),
        tools=tuple(context.tools or ()),
        system_prompt=context.system_prompt or "",
    )
    given = StreamOptions(
        temperature=asked.temperature,
        max_tokens=asked.max_tokens,
        thinking_level=None if level is ThinkingLevel.OFF else level,
        thinking_budgets=asked.thinking_budgets,
        session_id=asked.session_id,
        headers=asked.headers or {},
        api_key=asked.api_key,
    )
    events = provider.stream(request, given)
    try:
        async for event in events:
            yield event
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
        if provider is not model and abilities.aclose is not None:
            await abilities.aclose()


def stream(
    model: str | LLMProvider, context: Context, options: SimpleStreamOptions | None = None
) -> Iterator[AssistantMessageEvent]:
    """
    Like `astream`, for code without an event loop.

    Raises:
        ConfigurationError: As `astream`; or an event loop runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigurationError("stream() would block the event loop: use astream()")
    return _blocking(astream(model, context, options))


def _blocking(
    events: AsyncGenerator[AssistantMessageEvent, None],
) -> Iterator[AssistantMessageEvent]:
    with asyncio.Runner() as runner:  # it closes *events* as well
        while True:
            try:
                event = runner.run(anext(events))
            except StopAsyncIteration:
                return
            yield event
