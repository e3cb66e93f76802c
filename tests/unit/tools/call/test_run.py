"""Every announced call gets one result, whatever happens to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from looopy.tools import Tool, ToolContext, ToolResult, tool
from looopy.tools.asking import NeedsCredentials
from looopy.tools.call.run import resolve_name
from looopy.types.context import AuthContext
from looopy.types.message import ImageContent, TextContent, ToolResultMessage

Run = Callable[..., Awaitable[ToolResultMessage]]
MakeContext = Callable[..., ToolContext]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_result_answers_its_call(run: Run) -> None:
    """It carries the call's id and the tool's name."""
    result = await run(add, {"a": 1, "b": 2}, name="ADD")
    assert (result.tool_call_id, result.tool_name, result.text) == ("call-1", "add", "3")
    assert not result.is_error


async def test_a_subclass_of_tool_runs(run: Run) -> None:
    """`execute` is the whole contract."""

    class Echo(Tool):
        async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
            return ToolResult(f"{arguments['x']} {context.turn}", details={"n": 1})

    result = await run(Echo(name="echo"), {"x": "hi"})
    assert (result.text, result.details, result.is_error) == ("hi 3", {"n": 1}, False)
    assert "does not implement execute()" in (await run(Tool(name="bare"))).text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("add", "add"),
        ("ADD", "add"),
        (" Add ", "add"),
        ("Save", "Save"),
        ("SAVE", None),
        ("sub", None),
        ("", None),
    ],
)
def test_a_name_is_repaired_only_where_one_tool_can_be_meant(
    written: str, meant: str | None
) -> None:
    """Case alone is forgiven; a guess between two is not made."""
    assert resolve_name(written, ["add", "save", "Save"]) == meant


async def test_the_error_of_an_unknown_tool_has_close_names_and_all_names(run: Run) -> None:
    """The model can pick the right one at once."""
    result = await run(None, name="get_wether", known=("get_weather", "get_time", "add"))
    assert result.is_error
    assert result.tool_name == "get_wether"
    assert "There is no tool named 'get_wether'. Did you mean 'get_weather'" in result.text
    assert result.text.endswith("Available tools: get_weather, get_time, add.")
    assert (await run(None, name="x")).text.endswith("No tools are available.")


async def test_an_endless_unknown_name_is_shortened(run: Run) -> None:
    """So is an endless list of tools."""
    result = await run(None, name="x" * 100_000, known=tuple(f"t{i}" for i in range(60)))
    assert len(result.text) < 1000
    assert result.text.endswith("t49 and 10 more.")


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ('{"a": 1, "b"', "not valid JSON (Expecting ':' delimiter"),
        ("[1, 2]", "of type array"),
        ('"a"', "of type string"),
        ("null", "of type null"),
        ("", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 61 + "]" * 61, "nested deeper than 60 levels"),
        ('{"a": NaN}', "not valid JSON (NaN is not a JSON number)"),
        ('{"a": 9223372036854775808}', "too large: an integer does not fit 64 bits"),
        ("9" * 9_000, "too large: an integer does not fit 64 bits"),
        ('{"a": 1e999}', "too large: a number does not fit 64 bits"),
    ],
)
async def test_arguments_that_cannot_be_used_are_shown_back(
    run: Run, sent: str, problem: str
) -> None:
    """With what is wrong with them, shortened."""
    result = await run(add, invalid_arguments=sent)
    assert result.is_error
    assert problem in result.text
    assert f"Received: {sent[:100]}" in result.text
    assert len(result.text) < 1000


async def test_wrong_arguments_do_not_reach_the_function(run: Run) -> None:
    """They are an error result that lists the problems."""
    result = await run(add, {"a": "1", "c": 2})
    assert result.is_error
    assert 'a: must be integer, not "1" (string)' in result.text
    assert "b: required but missing" in result.text
    assert "c: unknown field; known fields: a, b" in result.text


async def test_arguments_too_deep_to_decode_are_refused(run: Run) -> None:
    """A result, not a crash."""

    @tool
    def keep(value: Any) -> str:
        return "ran"

    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(100_000):  # beyond what any version of Python reads
        inner["a"] = {}
        inner = inner["a"]
    result = await run(keep, {"value": deep})
    assert result.is_error
    assert "cannot be read as JSON" in result.text


class _Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such city"), "no such city"),
        (ValueError(), "ValueError"),
        (_Mute(), "_Mute (its message cannot be shown)"),
        (TimeoutError("the service is slow"), "the service is slow"),
        (KeyError("x"), "KeyError: 'x'"),
        (concurrent.futures.CancelledError("c"), "c"),
    ],
)
async def test_an_exception_becomes_an_error_result(
    run: Run, error: Exception, text: str, sync: bool
) -> None:
    """With the exception's own text, from the loop and from a thread alike."""

    async def fail() -> None:
        raise error

    def fail_in_thread() -> None:
        raise error

    result = await run(tool(fail_in_thread if sync else fail))
    assert (result.is_error, result.text) == (True, text)


@pytest.mark.parametrize("error", [SystemExit("bye"), StopIteration("bye")])
async def test_a_tool_cannot_end_the_process_or_the_turn(run: Run, error: BaseException) -> None:
    """`sys.exit()` in a tool is a failed call."""

    async def leave() -> None:
        raise error

    def leave_in_thread() -> None:
        raise error

    for one in (tool(leave), tool(leave_in_thread)):
        result = await run(one)
        assert result.is_error
        assert result.text


async def test_a_returned_error_keeps_its_details(run: Run) -> None:
    """A tool that has facts to add returns instead of raising."""

    @tool
    def fail() -> ToolResult:
        return ToolResult("no", details={"code": 7}, is_error=True)

    result = await run(fail)
    assert (result.text, result.details, result.is_error) == ("no", {"code": 7}, True)


@pytest.mark.parametrize("value", [b"x", object()])
async def test_a_return_that_cannot_be_shown_is_an_error(run: Run, value: object) -> None:
    """The text says what to return instead."""
    result = await run(tool(lambda: value, name="give"))
    assert result.is_error
    assert "return text" in result.text


async def test_images_and_text_reach_the_result(run: Run) -> None:
    """As blocks, in order."""
    blocks = [TextContent("a chart"), ImageContent("aGk=")]
    result = await run(tool(lambda: blocks, name="draw"))
    assert result.content == tuple(blocks)


async def test_results_and_errors_are_cut_to_the_limit(run: Run) -> None:
    """The tool's own limit goes before the loop's."""

    def long() -> str:
        return "x" * 50

    def fail() -> None:
        raise ValueError("y" * 50)

    cut = await run(tool(long), max_result_bytes=20)
    assert cut.text == "x" * 20 + "\n[30 of 50 bytes were left out]"
    assert not cut.is_error
    assert (await run(tool(fail), max_result_bytes=20)).text.startswith("y" * 20 + "\n[30")
    own = await run(tool(long, max_result_bytes=40), max_result_bytes=20)
    assert own.text.startswith("x" * 40 + "\n[10")


async def test_a_slow_async_tool_is_stopped(run: Run) -> None:
    """It sees the cancellation, and the text names the seconds."""
    stopped = asyncio.Event()

    @tool(timeout_s=0.01)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    result = await run(slow)
    assert result.is_error
    assert "'slow' timed out after 0.01 s and was stopped" in result.text
    assert stopped.is_set()


async def test_the_loops_timeout_holds_where_the_tool_sets_none(run: Run) -> None:
    """And the tool's own holds where it does."""

    @tool
    async def slow() -> None:
        await asyncio.Event().wait()

    assert "after 0.01 s" in (await run(slow, timeout_s=0.01)).text


async def test_a_tool_that_fails_while_it_is_stopped_has_timed_out(run: Run) -> None:
    """What it made of the cancellation is not the reason."""

    @tool(timeout_s=0.01)
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("rolled back") from None

    assert "timed out after 0.01 s" in (await run(stubborn)).text


async def test_a_tool_that_finishes_while_it_is_stopped_has_finished(run: Run) -> None:
    """Its result is true, so it stands."""

    @tool(timeout_s=0.01)
    async def late() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "just in time"
        return "never"

    result = await run(late)
    assert (result.is_error, result.text) == (False, "just in time")


async def test_a_slow_sync_tool_has_an_unknown_outcome_and_its_late_result_is_dropped(
    run: Run,
) -> None:
    """A thread cannot be stopped; nobody may claim that it did nothing."""
    release, done = threading.Event(), threading.Event()

    @tool(timeout_s=0.5)  # within which its thread has started, however busy the machine
    def slow() -> str:
        release.wait()
        done.set()
        return "late"

    result = await run(slow)
    assert result.is_error
    assert "may still be running: its outcome is unknown" in result.text
    release.set()
    assert done.wait(10)
    assert (await run(add, {"a": 1, "b": 1})).text == "2"


async def test_cancellation_passes_through(run: Run) -> None:
    """The loop that cancelled decides what the call's result is."""
    started = asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(run(wait))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_cancelling_a_sync_call_returns_at_once(run: Run) -> None:
    """The thread runs on, the caller does not wait for it."""
    loop = asyncio.get_running_loop()
    started, release = asyncio.Event(), threading.Event()

    @tool
    def wait() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait()

    task = asyncio.ensure_future(run(wait))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()


async def test_something_else_that_was_cancelled_is_only_an_error(run: Run) -> None:
    """A turn must not end because a task that a tool shares was cancelled by its owner."""

    @tool
    async def share() -> None:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    result = await run(share)
    assert result.is_error
    assert "was cancelled" in result.text


async def test_expired_credentials_stop_the_call_before_it_starts(
    run: Run, make_context: MakeContext
) -> None:
    """It has no result: it waits for fresh ones."""
    ran: list[int] = []

    @tool
    def act() -> None:
        ran.append(1)

    now = datetime.now(UTC)
    old = AuthContext("ada", credentials={"token": "s3cret"}, expires_at=now - timedelta(seconds=1))
    with pytest.raises(NeedsCredentials) as raised:
        await run(act, context=make_context(auth_context=old))
    assert "s3cret" not in str(raised.value)
    assert ran == []
    valid = AuthContext("ada", expires_at=now + timedelta(days=1))
    assert not (await run(act, context=make_context(auth_context=valid))).is_error
    assert ran == [1]


async def test_progress_arrives_on_the_loop_in_order_and_before_the_result(
    run: Run, make_context: MakeContext
) -> None:
    """From a thread as from the loop."""
    shown: list[tuple[Any, str]] = []

    def report(progress: Any) -> None:
        shown.append((progress, threading.current_thread().name))

    @tool
    def blocking(context: ToolContext) -> None:
        context.report(0.5)
        context.report("nearly")

    @tool
    async def quick(context: ToolContext) -> None:
        context.report({"step": 1})

    await run(blocking, context=make_context(report=report))
    await run(quick, context=make_context(report=report))
    assert shown == [
        (0.5, "MainThread"),
        ("nearly", "MainThread"),
        ({"step": 1}, "MainThread"),
    ]


async def test_progress_after_the_end_of_a_call_is_dropped(
    run: Run, make_context: MakeContext
) -> None:
    """An abandoned thread must not speak into a later turn."""
    shown: list[Any] = []
    began, release, done = threading.Event(), threading.Event(), threading.Event()

    @tool(timeout_s=0.01)
    def slow(context: ToolContext) -> None:
        began.set()
        release.wait()
        context.report("late")
        done.set()

    while not began.is_set():  # a busy machine need not come to it in so short a time
        await run(slow, context=make_context(report=shown.append))
    release.set()
    assert done.wait(10)
    await run(add, {"a": 1, "b": 1})  # whatever the thread sent has arrived before this returns
    await asyncio.sleep(0)
    assert shown == []


async def test_a_failing_listener_does_not_fail_the_tool(
    run: Run, make_context: MakeContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Progress is for onlookers."""

    def report(_progress: Any) -> None:
        raise RuntimeError("nobody home")

    @tool
    async def act(context: ToolContext) -> str:
        context.report(1)
        return "done"

    result = await run(act, context=make_context(report=report))
    assert (result.is_error, result.text) == (False, "done")
    assert "progress failed" in caplog.text


async def test_context_variables_reach_a_thread(run: Run) -> None:
    """As they would reach a coroutine."""
    variable = contextvars.ContextVar("variable", default="unset")

    @tool
    def read() -> str:
        return variable.get()

    variable.set("set")
    assert (await run(read)).text == "set"
