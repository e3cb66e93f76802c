"""Calls that are made again: by us where that does no harm, by the model where the tool asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from looopy.errors import InvalidTool
from looopy.tools import RetryCall, Tool, ToolContext, tool
from looopy.tools.call.retry import is_transient
from looopy.types.message import ToolResultMessage

Run = Callable[..., Awaitable[ToolResultMessage]]
MakeContext = Callable[..., ToolContext]


class Busy(Exception):
    """Says itself that it will pass."""

    retryable = True


def failing(*errors: BaseException) -> Any:
    """A function that raises these, one a call, and then answers with the number of calls."""
    left = list(errors)

    async def look() -> int:
        look.calls += 1
        if left:
            raise left.pop(0)
        return look.calls

    look.calls = 0
    return look


@pytest.mark.parametrize("effects", ["none", "idempotent"])
async def test_a_failure_that_passes_is_tried_again(
    run: Run, make_context: MakeContext, effects: Any
) -> None:
    """And shown as progress; the model sees the result alone."""
    look = failing(ConnectionResetError("reset"), Busy("full"))
    shown: list[Any] = []
    one = tool(look, effects=effects, retries=2, retry_delay_s=0)
    result = await run(one, context=make_context(report=shown.append))
    assert (result.text, result.is_error, look.calls) == ("3", False, 3)
    assert shown == [
        {"retry": 1, "of": 2, "reason": "reset"},
        {"retry": 2, "of": 2, "reason": "full"},
    ]


async def test_the_last_failure_is_the_result(run: Run) -> None:
    """When there are no tries left, and at once when it will not pass."""
    look = failing(TimeoutError("slow"), ConnectionError("gone"))
    result = await run(tool(look, effects="none", retries=1, retry_delay_s=0))
    assert (result.is_error, result.text, look.calls) == (True, "gone", 2)
    look = failing(ValueError("no such city"))
    result = await run(tool(look, effects="none", retries=5, retry_delay_s=0))
    assert (result.is_error, result.text, look.calls) == (True, "no such city", 1)


async def test_the_tools_time_covers_all_tries(run: Run) -> None:
    """Nothing begins after it, though the tool makes something else of being stopped."""
    calls: list[int] = []

    @tool(effects="none", retries=3, retry_delay_s=0, timeout_s=0.01)
    async def slow() -> None:
        calls.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("cut") from None

    result = await run(slow)
    assert "timed out after 0.01 s" in result.text
    assert calls == [1]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (Busy(), True),
        (httpx.ConnectError("refused"), True),
        (httpx.ReadTimeout("slow"), True),
        (httpx.InvalidURL("bad"), False),
        (OSError("disk"), False),
        (ValueError("no"), False),
    ],
)
def test_temporary_failures_are_retried(error: BaseException, passes: bool) -> None:
    """Connections and timeouts, and what says so itself."""
    assert is_transient(error) is passes


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"retries": 1}, "effects"),
        ({"retries": -1, "effects": "none"}, "retries"),
        ({"retries": True, "effects": "none"}, "retries"),
        ({"max_retry_calls": 1.5}, "max_retry_calls"),
        ({"retry_delay_s": -1}, "retry_delay_s"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, word: str) -> None:
    """Above all: what has effects is not made again by itself."""
    with pytest.raises(InvalidTool, match=word):
        Tool(name="t", **options)


@pytest.mark.parametrize("sync", [False, True])
async def test_a_tool_may_ask_the_model_to_try_again(run: Run, sync: bool) -> None:
    """From the loop and from a thread; the reason and what to do are in the text."""

    async def search() -> str:
        raise RetryCall("the query matches nothing: use fewer words")

    def search_in_thread() -> str:
        raise RetryCall("the query matches nothing: use fewer words")

    result = await run(tool(search_in_thread if sync else search, name="search"))
    assert result.is_error
    assert result.text == (
        "the query matches nothing: use fewer words\nCorrect this and call 'search' again."
    )
    result = await run(tool(search, max_retry_calls=4), may_call_again=lambda _tool: False)
    assert "4 times already: do not call it again" in result.text


async def test_the_wait_between_tries_doubles_up_to_ten_seconds(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a tool may be tried: nobody waits an hour for the last one."""
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("looopy.tools.call.retry.asyncio.sleep", wait)
    look = failing(*[ConnectionError("gone")] * 8)
    result = await run(tool(look, effects="none", retries=8, retry_delay_s=0.5))
    assert (result.text, look.calls) == ("9", 9)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
