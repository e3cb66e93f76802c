"""Threads for tools: bounded, reused, abandoned when hung, no hindrance to the process's end."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from looopy.tools import tool
from looopy.tools.function import threads as threads_module
from looopy.tools.function.threads import NOT_STARTED, ToolThreads, tool_threads


@contextmanager
def hanging(pool: ToolThreads, count: int) -> Iterator[list[asyncio.Task[None]]]:
    """Occupy *count* threads of *pool* until the block is left."""
    release = threading.Event()
    try:
        yield [
            asyncio.ensure_future(pool.run(lambda: release.wait() and None)) for _ in range(count)
        ]
    finally:
        release.set()


async def test_threads_are_reused() -> None:
    """One call after another needs one thread."""
    pool = ToolThreads()
    names = [await pool.run(lambda: threading.current_thread().name) for _ in range(20)]
    assert len(set(names)) == 1


async def test_calls_run_beside_each_other() -> None:
    """Each waits for all the others, so they must all be running."""
    pool = ToolThreads(4)
    barrier = threading.Barrier(4, timeout=10)
    await asyncio.gather(*(pool.run(barrier.wait) for _ in range(4)))


async def test_never_more_threads_than_the_limit() -> None:
    """Further calls wait their turn, in order, and all of them run."""
    pool = ToolThreads(2)
    names: list[str] = []
    order: list[int] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        with lock:
            order.append(number)
            names.append(threading.current_thread().name)

    await asyncio.gather(*(pool.run(functools.partial(work, n)) for n in range(50)))
    assert sorted(order) == list(range(50))
    assert len(set(names)) <= 2


async def test_a_call_that_waits_for_a_hung_thread_is_withdrawn_and_never_runs() -> None:
    """Its caller learns that it did not start."""
    pool = ToolThreads(1)
    ran: list[int] = []
    with hanging(pool, 1) as tasks:
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(pool.run(lambda: ran.append(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await waiting
        assert caught.value.__notes__ == [NOT_STARTED]
    await asyncio.gather(*tasks)
    assert await pool.run(lambda: "alive") == "alive"
    assert ran == []


async def test_a_running_call_that_is_cancelled_has_no_such_note() -> None:
    """It may still do what it was asked; what it returns then troubles nobody."""
    pool = ToolThreads(1)
    loop = asyncio.get_running_loop()
    troubles: list[object] = []
    loop.set_exception_handler(lambda _loop, trouble: troubles.append(trouble))
    started, release = asyncio.Event(), threading.Event()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait()

    task = asyncio.ensure_future(pool.run(work))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert not hasattr(caught.value, "__notes__")
    release.set()
    assert await pool.run(lambda: "next") == "next"  # the same thread, so the late result has come
    assert troubles == []


async def test_a_call_fails_without_running_if_every_thread_hangs(
    run: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends by its own timeout, and its text does not claim an unknown outcome."""
    pool = ToolThreads(1)
    monkeypatch.setattr(threads_module, "_threads", pool)
    ran: list[int] = []

    @tool(timeout_s=0.01)
    def act() -> None:
        ran.append(1)

    with hanging(pool, 1) as tasks:
        await asyncio.sleep(0)
        result = await run(act)  # type: ignore[operator]  # a fixture
        assert result.is_error
        assert "every tool thread was busy: the tool did not start" in result.text
        assert "unknown" not in result.text
    await asyncio.gather(*tasks)
    assert ran == []


async def test_the_default_executor_stays_free() -> None:
    """Hung tools do not stop what else needs a thread, such as looking up a host."""
    with hanging(ToolThreads(8), 8) as tasks:
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "free") == "free"
        names = {thread.name for thread in threading.enumerate()}
        assert sum(name.startswith("looopy-tool-") for name in names) >= 8
    await asyncio.gather(*tasks)


async def test_a_base_exception_in_a_thread_becomes_an_error() -> None:
    """The thread survives it."""
    pool = ToolThreads(1)
    with pytest.raises(RuntimeError, match="the tool raised SystemExit: bye"):
        await pool.run(lambda: sys.exit("bye"))
    assert await pool.run(lambda: 1) == 1


def test_a_pool_serves_one_event_loop_after_another() -> None:
    """Threads belong to the process, not to a loop."""
    pool = ToolThreads(1)
    for _ in range(3):
        assert asyncio.run(pool.run(lambda: 5)) == 5


def test_a_late_result_for_a_closed_loop_is_dropped() -> None:
    """Nobody waits any more; the thread goes on to the next call."""
    pool = ToolThreads(1)
    release = threading.Event()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await pool.run(release.wait)

    asyncio.run(give_up())
    release.set()
    assert asyncio.run(pool.run(lambda: 6)) == 6


async def test_no_thread_to_be_had_fails_only_that_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's limit is no reason to lose a slot."""
    pool = ToolThreads(1)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await pool.run(lambda: ran.append(1))
    await pool.run(lambda: ran.append(2))
    assert ran == [2]


def test_a_hung_tool_does_not_hold_up_the_end_of_the_process() -> None:
    """The interpreter exits though a tool never returns."""
    code = """
import asyncio, threading
from looopy.tools.function.threads import tool_threads

async def main():
    try:
        async with asyncio.timeout(0.01):
            await tool_threads().run(threading.Event().wait)
    except TimeoutError:
        print("gave up")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "gave up\n"
    assert done.stderr == ""


def test_there_is_one_pool_a_process_and_a_forked_child_makes_its_own() -> None:
    """The parent's threads do not exist in a child."""
    code = """
import asyncio, os
from looopy.tools.function.threads import tool_threads

async def work():
    return await tool_threads().run(os.getpid)

parent = asyncio.run(work())
child = os.fork()
if child == 0:
    os._exit(0 if asyncio.run(work()) == os.getpid() else 1)
print(parent == os.getpid(), os.waitpid(child, 0)[1])
"""
    assert tool_threads() is tool_threads()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True 0\n"


async def test_a_call_that_was_withdrawn_leaves_its_thread_to_the_next() -> None:
    """Or the pool takes itself for busier than it is, and makes a thread where one is idle."""
    pool = ToolThreads()
    first = await pool.run(lambda: threading.current_thread().name)
    ran: list[int] = []
    for n in range(3):
        with pool._wake:  # the idle thread cannot take it
            waiting = asyncio.ensure_future(pool.run(functools.partial(ran.append, n)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    names = [await pool.run(lambda: threading.current_thread().name) for _ in range(3)]
    assert set(names) == {first}
    assert ran == []
