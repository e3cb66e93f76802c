"""
Tools of one turn, gathered from their sources: functions, providers, servers; names that collide
are refused.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from looopy.errors import ConfigurationError, InvalidTool, foreign
from looopy.tools.base import SharedToolProvider, Tool, ToolProvider, TurnToolProvider
from looopy.types.context import PromptPart, TurnContext, as_part

_logger = logging.getLogger("looopy")


async def prompts_of(sources: Sequence[object], context: TurnContext) -> list[PromptPart]:
    """The parts that *sources* bring, in their order; or `ConfigurationError`."""
    parts: list[PromptPart] = []
    for source in sources:
        ask = getattr(source, "system_prompts", None)
        if ask is None:
            continue
        try:
            brought = ask(context)
            brought = await brought if inspect.isawaitable(brought) else brought
        except Exception as error:
            raise _failed(f"the prompts of {type(source).__name__}", error) from error
        parts += [as_part(one) for one in brought]
    return parts


def _failed(what: str, error: Exception) -> ConfigurationError:
    # Its text may contain data of the application: only the kind of failure is reported.
    _logger.error("%s failed", what, exc_info=error)
    return ConfigurationError(f"{what} failed with {type(error).__name__}")


ToolSource: TypeAlias = Tool | ToolProvider | Callable[..., Any]


def wrap_tools(sources: Sequence[ToolSource]) -> tuple[Tool | ToolProvider, ...]:
    """
    *sources* with plain functions made into tools, once: reading a signature in each turn would
    cost too much.

    Raises:
        InvalidTool: A function has no possible schema, or a source has another type.
    """
    return tuple(_wrapped(source) for source in sources)


def _wrapped(source: ToolSource) -> Tool | ToolProvider:
    if isinstance(source, type) and (issubclass(source, Tool) or hasattr(source, "list_tools")):
        name = source.__name__
        raise InvalidTool(f"{name} is a class: pass an instance, as in tools=[{name}(...)]")
    if isinstance(source, (Tool, ToolProvider)):
        return source
    if hasattr(source, "as_tool"):
        raise InvalidTool("an agent is not a tool by itself: pass agent.as_tool()")
    if inspect.ismethod(source) and source.__name__ == "as_tool":
        raise InvalidTool("as_tool is called: pass agent.as_tool()")
    if callable(source):
        from looopy.tools.function.decorator import tool

        return tool(source)
    raise InvalidTool(f"{source!r} is not a tool: pass a function, a Tool or a ToolProvider")


class HeldTools:
    """The shared sources that one agent uses, from its start to its shutdown."""

    def __init__(self) -> None:
        self._held: dict[int, SharedToolProvider] = {}  # by identity

    def hold(self, sources: Sequence[object]) -> None:
        """Use *sources*, if it does not yet."""
        for source in sources:
            if id(source) not in self._held and isinstance(source, SharedToolProvider):
                source.acquire()
                self._held[id(source)] = source

    async def let_go(self) -> None:
        """Use none any more; one that fails to close is logged, and keeps none of the others."""
        held, self._held = self._held, {}
        for source in held.values():
            try:
                await source.release()
            except Exception:
                _logger.exception("a source of tools failed to close")


class UsesSources:
    """A tool or source with sources of its own, which each agent that uses it holds."""

    _sources: Sequence[Any] = ()
    _held: tuple[HeldTools, ...] = ()

    def acquire(self) -> None:
        """Hold its sources, once for each agent that uses it."""
        held = HeldTools()
        held.hold(self._sources)
        self._held = (*self._held, held)

    async def release(self) -> None:
        """Release its sources, once for each agent that stops using it."""
        if self._held:
            *rest, last = self._held
            self._held = tuple(rest)
            await last.let_go()


async def gather_tools(
    sources: Sequence[ToolSource],
    turn: TurnContext | None = None,
    warn: Callable[[str], object] = lambda _text: None,
    *,
    disabled: bool = False,
) -> dict[str, Tool]:
    """
    The enabled tools of *sources* by name, in order.

    Args:
        turn: The calling turn. Without one, a tool whose filter depends on the turn counts as
            enabled.
        warn: Called with the reason if a source offers less than it should.
        disabled: Also return the tools whose `is_enabled` is false.

    Raises:
        InvalidTool: Two tools share a name (case aside), or a source has another type. In a turn, a
            source that depends on it loses its tool instead: a server's list may change at any
            time, and must not end a conversation.
    """
    found: dict[str, Tool] = {}
    owners: dict[str, tuple[ToolSource, Tool]] = {}
    for source in sources:
        for one in await _tools_of(source, turn, warn):
            folded = one.name.casefold()
            if folded in owners:
                loser = _who_gives_way(owners[folded], (source, one), turn)
                warn(f"{loser.name!r} of one source is not offered: another tool has that name")
                if loser is one:
                    continue
                found.pop(loser.name, None)
            owners[folded] = (source, one)
            if disabled or _is_on(one, turn, warn):
                found[one.name] = one
    return found


def _who_gives_way(
    first: tuple[ToolSource, Tool], second: tuple[ToolSource, Tool], turn: TurnContext | None
) -> Tool:
    for source, one in (second, first):
        if turn is not None and isinstance(source, TurnToolProvider):
            return one
    raise InvalidTool(f"two tools are named {second[1].name!r}: rename one")


def _is_on(tool: Tool, turn: TurnContext | None, warn: Callable[[str], object]) -> bool:
    try:
        return is_enabled(tool.is_enabled, turn)
    except BaseException as error:
        if not isinstance(error, Exception) and foreign(error) is None:
            raise
        _logger.exception("is_enabled of tool %s failed", tool.name)
        warn(f"{tool.name!r} is not offered: its is_enabled failed with {type(error).__name__}")
        return False


def is_enabled(enabled: Callable[..., bool] | None, turn: TurnContext | None) -> bool:
    """The result of a filter: a function of the turn's context, or without arguments."""
    if enabled is None:
        return True
    if not _asks_for_context(enabled):
        return bool(enabled())
    return turn is None or bool(enabled(turn))


def _asks_for_context(enabled: Callable[..., bool]) -> bool:
    try:
        parameters = inspect.signature(enabled).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        one.kind is inspect.Parameter.VAR_POSITIONAL
        or (one.kind in by_position and one.default is inspect.Parameter.empty)
        for one in parameters
    )


async def _tools_of(
    source: ToolSource, turn: TurnContext | None, warn: Callable[[str], object]
) -> Sequence[Tool]:
    wrapped = _wrapped(source)
    if isinstance(wrapped, Tool):
        return (wrapped,)
    if turn is not None and isinstance(wrapped, TurnToolProvider):
        return await wrapped.list_for(turn, warn)
    try:
        listed = wrapped.list_tools()
        return await listed if inspect.isawaitable(listed) else listed
    except BaseException as error:
        failure = foreign(error)
        if failure is None:
            raise
        try:
            raise failure from error
        finally:
            del failure  # its traceback holds this frame
