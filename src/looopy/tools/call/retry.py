"""
Repeated calls: by looopy, after a temporary failure of a service, and by the model, if the tool
says so.

looopy repeats only calls of tools with effects `"none"` or `"idempotent"`. A repetition by the
model is a new call, which can use the result of the first one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from looopy.tools.base import Tool, ToolContext
from looopy.tools.call.results import error_text

_LONGEST_S = 10.0
_MAX_REASON_CHARS = 500


class RetryCall(Exception):
    """
    Raised by a tool: the model should call it again, otherwise.

    The text goes to the model. It does not count as one of the failures in a row that end a turn,
    but for calls beyond the tool's `max_retry_calls`.
    """


def is_transient(error: BaseException) -> bool:
    """
    True if the call may succeed in a moment: such as a broken connection, or a `retryable` error.
    """
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if getattr(error, "retryable", None) is True:
        return True
    # httpx and httpx2, without importing either: requests that never reached the server, or were
    # cut.
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("httpx")}
    return "TransportError" in kinds


async def execute(
    tool: Tool, arguments: Mapping[str, Any], context: ToolContext, limit: asyncio.Timeout
) -> Any:
    """
    Run the tool, and again after a temporary failure, as often as it allows.

    Args:
        limit: Covers all tries; after it there is no further try.

    Raises:
        Exception: The one of the last try.
    """
    tried = 0
    while True:
        try:
            returned = await tool.execute(arguments, context)
            return await returned if inspect.isawaitable(returned) else returned
        except Exception as error:
            if tried >= tool.retries or limit.expired() or not is_transient(error):
                raise
            reason = error_text(error)[:_MAX_REASON_CHARS]
        tried += 1
        context.report({"retry": tried, "of": tool.retries, "reason": reason})
        await asyncio.sleep(min(tool.retry_delay_s * 2 ** (tried - 1), _LONGEST_S))


def call_again(tool: Tool, why: str, *, allowed: bool) -> str:
    """The text of a `RetryCall` for the model."""
    if allowed:
        return f"{why}\nCorrect this and call {tool.name!r} again."
    return (
        f"{why}\n{tool.name!r} has asked for another try {tool.max_retry_calls} times already: do"
        " not call it again for this, and tell the user what went wrong."
    )
