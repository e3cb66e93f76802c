"""A cancel request stops what a turn waits for, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from looopy.loop import interrupt
from looopy.loop.interrupt import CancelScope, TurnInterrupted, within
from looopy.types.context import CancelToken


async def waits(scope, started):
    """Wait in the scope for ever."""
    with scope:
        started.set()
        await asyncio.Event().wait()


async def test_a_cancelled_token_interrupts_the_wait():
    """As `TurnInterrupted`, with the token's reason; the task itself is not cancelled."""
    token, started = CancelToken(), asyncio.Event()
    scope = CancelScope(token)

    async def turn():
        with pytest.raises(TurnInterrupted) as caught:
            await waits(scope, started)
        await asyncio.sleep(0)
        return caught.value.reason, asyncio.current_task().cancelling()

    task = asyncio.create_task(turn())
    await started.wait()
    token.cancel("enough")
    assert await task == ("enough", 0)


async def test_code_between_two_scopes_is_not_interrupted():
    """A step that may not be cut short runs to its end; the next scope is not entered."""
    token, scope = CancelToken(), None
    scope = CancelScope(token)
    done = []

    async def turn():
        with scope:
            await asyncio.sleep(0)
        token.cancel()
        for n in range(5):
            await asyncio.sleep(0)
            done.append(n)
        with pytest.raises(TurnInterrupted), scope:
            done.append("never")

    await asyncio.create_task(turn())
    assert done == [0, 1, 2, 3, 4]


async def test_a_task_that_is_cancelled_stays_cancelled():
    """The cancellation of asyncio is not taken for the token's, alone or together with it."""
    for also_token in (False, True):
        token, started = CancelToken(), asyncio.Event()
        task = asyncio.create_task(waits(CancelScope(token), started))
        await started.wait()
        if also_token:
            token.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_time_runs_out_as_a_deadline():
    """The timer cancels the token with that reason."""
    token = CancelToken()
    scope = CancelScope(token, timeout_s=0)
    with pytest.raises(TurnInterrupted) as caught:
        await waits(scope, asyncio.Event())
    assert caught.value.reason == token.reason == "deadline"


async def test_a_closed_scope_lets_go_of_token_and_timer():
    """Nothing happens to a task that once was in it."""
    token = CancelToken()
    scope = CancelScope(token, timeout_s=0)
    scope.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert token.reason is None
    token.cancel()
    await asyncio.sleep(0)


async def test_an_error_in_the_scope_passes():
    """As it is, also when the token was cancelled in the same moment."""
    token = CancelToken()
    scope = CancelScope(token)

    def fail():
        with scope:
            token.cancel()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()


def test_a_token_calls_its_callbacks_once_in_order():
    """The first reason stands; a failing callback harms no other; late ones are told at once."""
    token, heard = CancelToken(), []
    token.on_cancel(lambda: heard.append(1))

    def bad():
        raise RuntimeError("bad callback")

    token.on_cancel(bad)
    leave = token.on_cancel(lambda: heard.append(2))
    token.on_cancel(lambda: heard.append(3))
    leave()
    leave()
    assert not token.cancelled
    token.cancel("first")
    token.cancel("second")
    assert token.reason == "first"
    assert heard == [1, 3]
    token.on_cancel(lambda: heard.append(4))()
    assert heard == [1, 3, 4]


async def test_one_wait_is_cut_short_and_the_turn_continues():
    """The reason is given once; the token knows nothing of it."""
    token = CancelToken()
    scope = CancelScope(token)
    asyncio.get_running_loop().call_soon(scope.interrupt, "idle")
    with pytest.raises(TurnInterrupted) as caught, scope:
        await asyncio.Event().wait()
    assert caught.value.reason == "idle"
    assert token.reason is None
    with scope:
        await asyncio.sleep(0)
    token.cancel("enough")
    with pytest.raises(TurnInterrupted) as caught, scope:
        await asyncio.Event().wait()
    assert caught.value.reason == "enough"


async def test_an_interrupt_without_a_wait_has_no_effect():
    """An interruption that comes too late is none, also later."""
    scope = CancelScope(CancelToken())
    scope.interrupt("idle")
    with scope:
        await asyncio.sleep(0)


async def test_limited_work_gets_a_timer_only_if_it_waits(monkeypatch):
    """It runs to its end either way, through any number of waits and errors of these."""
    timers, said = [], []
    make = interrupt.after
    monkeypatch.setattr(interrupt, "after", lambda *args: timers.append(args) or make(*args))

    async def work(*waits):
        for wait in waits:
            try:
                await wait
            except OSError as error:
                said.append(error)
        said.append("done")

    await within(60.0, work())
    assert (said, timers) == (["done"], [])
    failed = asyncio.get_running_loop().create_future()
    error = OSError("away")
    asyncio.get_running_loop().call_soon(failed.set_exception, error)
    await within(60.0, work(failed, asyncio.sleep(0)))
    assert said == ["done", error, "done"]
    assert [args[0] for args in timers] == [60.0]


async def test_limited_work_that_takes_longer_is_cancelled():
    """It may clean up; its own errors are raised, before and after its first wait."""
    cleaned = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(TurnInterrupted, match="deadline"):
        await within(0.001, work())
    assert cleaned == [True]

    async def breaks(*waits):
        for wait in waits:
            await wait
        raise OSError("broken")

    for waits in ((), (asyncio.sleep(0),)):
        with pytest.raises(OSError, match="broken"):
            await within(60.0, breaks(*waits))
