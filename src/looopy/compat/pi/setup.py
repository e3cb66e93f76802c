"""
pi's options, translated for our loop: the model, the tools, the hooks and the limits of a run.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from looopy.compat.pi.abort import AbortController, AbortSignal
from looopy.compat.pi.errors import NothingToContinue
from looopy.compat.pi.events import progress_of
from looopy.compat.pi.types import (
    AgentLoopConfig,
    AgentMessage,
    AgentTool,
    AgentToolResult,
    ConvertToLlmFn,
    GetApiKeyFn,
    ToolHookContext,
    TransformContextFn,
)
from looopy.errors import ConfigurationError, InvalidTool, UnknownModel
from looopy.llm.provider import Abilities, LLMProvider, abilities_of
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.gather import ToolSource, gather_tools
from looopy.types.config import Hooks, LoopConfig
from looopy.types.context import AuthContext
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions, ThinkingLevel

_logger = logging.getLogger("looopy")
_MESSAGES = (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)
_ROLES = ("user", "assistant", "toolResult")


def default_convert_to_llm(messages: Sequence[AgentMessage]) -> list[AgentMessage]:
    """The messages of *messages* that a model understands: user, assistant and tool results."""
    return [message for message in messages if message.role in _ROLES]


@dataclass(slots=True)
class RunOptions:
    """
    The options of a run; they do not change while it runs.

    Attributes:
        messages: The history as it grows, for the hooks around a tool call.
        queued: Waits until the queued messages are stored, before a step of the run is.
        answered: Called with each complete answer, before the loop gets it.
    """

    config: AgentLoopConfig
    signal: AbortSignal | None = None
    convert_to_llm: ConvertToLlmFn | None = None
    transform_context: TransformContextFn | None = None
    get_api_key: GetApiKeyFn | None = None
    messages: Callable[[], Sequence[AgentMessage]] = field(default=lambda: ())
    queued: Callable[[], Awaitable[object]] | None = None
    answered: Callable[[AssistantMessage], None] | None = None

    def loop_config(self) -> LoopConfig:
        """The limits, options and hooks of the run, as our loop takes them."""
        config = self.config
        loop, retry = config.loop, config.loop.retry
        if config.max_retry_delay_ms is not None:
            retry = replace(retry, max_server_delay_s=config.max_retry_delay_ms / 1000)
        reasoning = None if config.reasoning is ThinkingLevel.OFF else config.reasoning
        return replace(
            loop,
            retry=retry,
            steering=loop.steering if config.order == "0.58" else "after_batch",
            temperature=loop.temperature if config.temperature is None else config.temperature,
            max_tokens=loop.max_tokens if config.max_tokens is None else config.max_tokens,
            thinking_level=loop.thinking_level if reasoning is None else reasoning,
            hooks=self._hooks(loop.hooks),
        )

    def _hooks(self, given: Hooks) -> Hooks:
        config = self.config
        transform, key = self.transform_context, self.get_api_key

        def transformed(messages: list[AgentMessage]) -> Any:
            return messages if transform is None else transform(messages, self.signal)

        async def api_key(provider: str, auth_context: AuthContext | None) -> Any:
            found = None if key is None else key(provider)
            if inspect.isawaitable(found):
                found = await found
            if found is None and given.get_api_key is not None:
                found = given.get_api_key(provider, auth_context)
                found = await found if inspect.isawaitable(found) else found
            return config.api_key if found is None else found

        has_key = key is not None or config.api_key is not None
        return replace(
            given,
            transform_context=given.transform_context if transform is None else transformed,
            convert_to_llm=self.convert_to_llm or given.convert_to_llm,
            get_api_key=api_key if has_key else given.get_api_key,
            before_tool_call=self._before if config.before_tool_call else given.before_tool_call,
            after_tool_call=self._after if config.after_tool_call else given.after_tool_call,
        )

    def _about(self, call: ToolCall, **result: Any) -> ToolHookContext:
        messages = self.messages()
        said = (m for m in reversed(messages) if isinstance(m, AssistantMessage))
        return ToolHookContext(next(said, None), call, call.arguments, tuple(messages), **result)

    async def _before(self, call: ToolCall, _context: ToolContext) -> Any:
        hook = self.config.before_tool_call
        told = None if hook is None else hook(self._about(call), self.signal)
        told = await told if inspect.isawaitable(told) else told
        if isinstance(told, Mapping) and told.get("block"):
            return told.get("reason") or False
        return None

    async def _after(self, call: ToolCall, result: ToolResult, _context: ToolContext) -> Any:
        hook = self.config.after_tool_call
        if hook is None:
            return None
        content = result.content
        blocks = (TextContent(content),) if isinstance(content, str) else content
        shown = AgentToolResult(list(blocks), result.details)
        told = hook(self._about(call, result=shown, is_error=result.is_error), self.signal)
        return await told if inspect.isawaitable(told) else told


class ModelOf:
    """
    A provider for one run: pi's agent may change its model between runs.

    Args:
        options: The options of the run, at the time of the call.
        find: The provider of a configuration.
    """

    def __init__(
        self,
        options: Callable[[], RunOptions],
        find: Callable[[AgentLoopConfig], LLMProvider],
    ) -> None:
        self._options = options
        self._find = find

    @property
    def _current(self) -> LLMProvider:
        return self._find(self._options().config)

    @property
    def _abilities(self) -> Abilities:
        try:
            return abilities_of(self._current)
        except ConfigurationError:  # messages can be read without a model
            return Abilities()

    @property
    def name(self) -> str:
        """The provider's name."""
        return self._abilities.name

    @property
    def model(self) -> str:
        """The provider's name for it."""
        return self._abilities.model

    @property
    def window_tokens(self) -> int | None:
        """The size of the model's window, if known."""
        return self._abilities.window_tokens

    async def stream(
        self, request: LLMRequest, options: StreamOptions
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMProvider.stream`; with the options that are pi's."""
        given = self._options()
        config, queued, answered = given.config, given.queued, given.answered
        asked = replace(
            options,
            session_id=config.session_id,
            headers={**options.headers, **config.headers},
            thinking_budgets=config.thinking_budgets or options.thinking_budgets,
        )
        events = self._current.stream(request, asked)
        try:
            async for event in events:
                if queued is not None and event.type == "done":
                    await queued()
                if answered is not None and event.type == "done" and event.message is not None:
                    answered(event.message)
                yield event
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()


def find_provider(config: AgentLoopConfig, *, has_key: bool = False) -> LLMProvider:
    """
    The provider that *config* names.

    Args:
        has_key: A key comes with each call, so none has to be set.

    Raises:
        ConfigurationError: It names none; or its key, or its package, is missing.
    """
    from looopy.llm.resolve import resolve_provider

    model = config.model
    if not model and config.stream_fn is None:
        raise UnknownModel(
            "this agent has no model: name one, as in Agent(model='openai/gpt-5-mini') or"
            " agent.set_model(...)"
        )
    if config.stream_fn is not None:
        from looopy.llm.pipy import PipyProvider

        name = model if isinstance(model, str) else getattr(model, "model", "")
        pipy: LLMProvider = PipyProvider(name, config.stream_fn)
        return pipy
    named = isinstance(model, str) and not model.startswith("local")
    by_call = named and (has_key or config.api_key is not None)
    return resolve_provider(model, **({"api_key": config.api_key or ""} if by_call else {}))


class Models:
    """The providers that configurations name: each made once, and closed if it was made here."""

    def __init__(self) -> None:
        self._found: tuple[object, LLMProvider] | None = None
        self._made: list[LLMProvider] = []

    def find(self, config: AgentLoopConfig, *, has_key: bool = False) -> LLMProvider:
        """See `find_provider`."""
        wanted = (config.model, config.stream_fn)
        if self._found is None or self._found[0] != wanted:
            provider = find_provider(config, has_key=has_key)
            self._found = (wanted, provider)
            if provider is not config.model:
                self._made.append(provider)
        return self._found[1]

    async def aclose(self) -> None:
        """Close the ones that were made here."""
        made, self._made, self._found = self._made, [], None
        for provider in made:
            if (close := abilities_of(provider).aclose) is not None:
                await close()


class ToolsOf:
    """The run's tools: pi's agent may change them between runs."""

    def __init__(self, sources: Callable[[], Sequence[ToolSource]]) -> None:
        self._sources = sources

    async def list_tools(self) -> Sequence[Tool]:
        """The tools on offer now."""
        return list((await gather_tools(self._sources())).values())


class _PiTool(Tool):
    """An `AgentTool` as our loop runs it."""

    def __init__(
        self, tool: AgentTool, queued: Callable[[], Awaitable[object]] | None, *, parallel: bool
    ) -> None:
        if not callable(getattr(tool, "execute", None)):
            raise InvalidTool(f"tool {tool.name!r}: execute is an `async def`, and no other value")
        options = {"parallel": parallel, **tool.options}
        super().__init__(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            label=tool.label or None,
            **options,
        )
        self._tool = tool
        self._queued = queued

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        controller = AbortController()
        leave = context.cancel.on_cancel(controller.abort)
        try:
            returned: Any = self._tool.execute(
                context.tool_call_id,
                dict(arguments),
                controller.signal,
                lambda partial: context.report(progress_of(partial)),
            )
            if not inspect.isawaitable(returned):
                raise self._misused("is an `async def`")
            result: Any = await returned
        finally:
            leave()
        if not isinstance(getattr(result, "content", None), (list, tuple)):
            raise self._misused(
                f"returns AgentToolResult([TextContent(...)], details), not {type(result).__name__}"
            )
        if self._queued is not None:
            await self._queued()
        return ToolResult(tuple(result.content), result.details)

    def _misused(self, rule: str) -> InvalidTool:
        """The error for an `execute` that breaks a *rule*; the log gets it, as the model cannot."""
        error = InvalidTool(f"tool {self.name!r}: execute() {rule}")
        _logger.error("%s", error)
        return error


def tool_sources(
    tools: Sequence[AgentTool | ToolSource],
    config: AgentLoopConfig,
    queued: Callable[[], Awaitable[object]] | None = None,
) -> tuple[ToolSource, ...]:
    """Make pi's tools ours; what is ours already stays as it is."""
    return tuple(
        _PiTool(t, queued, parallel=config.overlaps) if isinstance(t, AgentTool) else t
        for t in tools
    )


def prompts_of(
    said: str | AgentMessage | Sequence[AgentMessage], images: Sequence[ImageContent] | None
) -> tuple[list[AgentMessage], UserMessage | None]:
    """The messages ahead of the turn of `prompt()`, and its message; or `NothingToContinue`."""
    if isinstance(said, str):
        return [], UserMessage([TextContent(said), *(images or ())])
    messages: list[AgentMessage] = [said] if isinstance(said, _MESSAGES) else list(said)
    if not messages:
        raise NothingToContinue("there is no message to send", action="prompt")
    last = messages[-1]
    return (messages[:-1], last) if isinstance(last, UserMessage) else (messages, None)
