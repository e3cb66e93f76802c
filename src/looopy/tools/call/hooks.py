"""
Calls the application's hooks around a tool call: `Hooks.before_tool_call` and `after_tool_call`.

A hook never ends a turn. If one fails before a call, the call is blocked, because the hook may
guard the tool; if one fails after a call, the result stays as it is. Both are reported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from looopy.errors import foreign
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.call.results import Answer, failure, to_answer
from looopy.tools.schema import validate
from looopy.types.config import Hooks
from looopy.types.message import ToolCall

T = TypeVar("T")
HookFailed: TypeAlias = Callable[[str, Exception], object]
"""Called with the name of a function of the application that failed, and its error."""
BLOCKED = "Tool execution was blocked"
UNJUDGED = "The tool did not run: the application failed to decide whether it may."


class ToolHooks:
    """
    The hooks around the calls of one turn.

    Args:
        failed: Called with the name of a hook that failed, and its error.
        decided: The decision of a `before_tool_call` that was called before the call was announced:
            arguments, or the result that replaces the call.
    """

    def __init__(
        self,
        hooks: Hooks | None = None,
        failed: HookFailed = lambda _name, _error: None,
        decided: Mapping[str, Any] | Answer | None = None,
    ) -> None:
        self._hooks = hooks or Hooks()
        self._failed = failed
        self._decided_before = decided

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The arguments that were decided before the call was announced; `None` if none were."""
        decided = self._decided_before
        return None if isinstance(decided, Answer) else decided

    def after_deciding(self, arguments: Mapping[str, Any] | Answer) -> ToolHooks:
        """These hooks, whose decision on a call is *arguments*."""
        return ToolHooks(self._hooks, self._failed, arguments)

    async def before(
        self, tool: Tool, call: ToolCall, context: ToolContext
    ) -> Mapping[str, Any] | Answer:
        """The arguments for *tool*, or the result that replaces the call."""
        if self._decided_before is not None:
            return self._decided_before
        hook = self._hooks.before_tool_call
        if hook is None:
            return call.arguments

        def read(said: Any) -> Mapping[str, Any] | Answer:
            decided = _decided(said, call)
            if not isinstance(decided, Answer):
                validate(tool, decided)
            return decided

        return await ask_hook(
            "before_tool_call",
            lambda: hook(call, context),
            read,
            default=failure(UNJUDGED),
            failed=self._failed,
        )

    async def after(self, call: ToolCall, answer: Answer, context: ToolContext) -> Answer:
        """*answer*, or the hook's replacement for it."""
        hook = self._hooks.after_tool_call
        if hook is None:
            return answer
        result = ToolResult(answer.blocks, answer.details, answer.is_error)
        try:
            return await ask_hook(
                "after_tool_call",
                lambda: hook(call, result, context),
                lambda said: to_answer(_changed(result, said)),
                default=answer,
                failed=self._failed,
            )
        except BaseException as error:
            # The tool has run: a failing hook must not lose its result.
            failed = foreign(error)
            if failed is None:
                raise
            self._failed("after_tool_call", failed)
            return answer


def _decided(said: Any, call: ToolCall) -> Mapping[str, Any] | Answer:
    if said is None:
        return call.arguments
    if said is False or isinstance(said, str):
        return failure(said or BLOCKED)
    if isinstance(said, ToolResult):
        return to_answer(said)
    if isinstance(said, Mapping):
        return dict(said)
    raise TypeError(
        "before_tool_call returns None, arguments, False, a reason or a ToolResult, not"
        f" {type(said).__name__}"
    )


def _changed(result: ToolResult, said: Any) -> ToolResult:
    if said is None or isinstance(said, ToolResult):
        return said or result
    if isinstance(said, Mapping):
        return replace(result, **said)
    raise TypeError(
        "after_tool_call returns None, a ToolResult or some of its fields, not"
        f" {type(said).__name__}"
    )


async def ask_hook(
    name: str,
    hook: Callable[[], Any],
    read: Callable[[Any], T],
    *,
    default: T,
    failed: HookFailed,
) -> T:
    """
    Call a function of the application, sync or async, which never ends a turn.

    Args:
        name: The name for *failed*.
        hook: The function with its arguments.
        read: Reads its value, or raises: then the function has failed.

    Returns:
        The result of *read*; *default* if the function failed.
    """
    try:
        return read(await value_of(hook()))
    except Exception as error:  # noqa: BLE001 - see above
        failed(name, error)
        return default


async def value_of(said: Any) -> Any:
    """The value that a function of the application returned, sync or async."""
    return await said if inspect.isawaitable(said) else said
