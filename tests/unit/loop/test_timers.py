"""Timers go off in order, once, unless they were taken back."""

import asyncio
from contextvars import ContextVar

import pytest
from tests.loop_time import advance

from looopy.loop.timers import after

VAR = ContextVar("VAR", default="nobody")


class Log(list):
    """What went off; `wait` is there when *count* have."""

    def __init__(self):
        super().__init__()
        self._more = asyncio.Event()

    def say(self, word):
        def call():
            self.append(word)
            self._more.set()

        return call

    async def wait(self, count):
        async with asyncio.timeout(10):
            while len(self) < count:
                self._more.clear()
                await self._more.wait()
        return list(self)


async def test_they_go_off_in_the_order_of_their_times():
    """Whatever the order in which they were set; equal times in the order they were set in."""
    log = Log()
    for seconds, word in ((40.0, "d"), (20.0, "b"), (0.0, "a"), (20.0, "c")):
        after(seconds, log.say(word))
    advance(41)
    for _ in range(3):
        await asyncio.sleep(0)
    assert log == ["a", "b", "c", "d"]


async def test_a_cancelled_timer_does_not_fire():
    """Before, or by one that goes off just before it; taking back twice is harmless."""
    log = Log()
    first, last = after(0.0, log.say("x")), after(0.01, log.say("end"))
    first.cancel()
    first.cancel()
    doomed = []
    after(0.002, lambda: [one.cancel() for one in doomed])
    doomed.append(after(0.002, log.say("y")))
    assert await log.wait(1) == ["end"]
    last.cancel()


async def test_a_timer_may_set_another_timer():
    """Also one that is due before those that wait already."""
    log = Log()
    after(60.0, log.say("last"))
    after(0.001, lambda: after(0.001, log.say("first")))
    assert await log.wait(1) == ["first"]
    advance(61)
    for _ in range(3):
        await asyncio.sleep(0)
    assert log == ["first", "last"]


async def test_a_failing_timer_does_not_affect_the_others():
    """The event loop's handler is told."""
    log, told = Log(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, facts: told.append(facts))
    after(0.0, lambda: {}["missing"])
    after(0.0, log.say("after it"))
    assert await log.wait(1) == ["after it"]
    assert [type(facts["exception"]) for facts in told] == [KeyError]


async def test_timers_run_in_an_empty_context():
    """A trace or a credential of one turn is none of another's."""
    log = Log()
    VAR.set("somebody")

    def tell():
        log.say(VAR.get())()

    after(0.0, tell)
    assert await log.wait(1) == ["nobody"]


async def test_those_that_were_taken_back_are_forgotten():
    """Turns set thousands for an hour ahead; not all of them may stay."""
    log = Log()
    kept = [after(3600, log.say("late")) for _ in range(3)]
    for _ in range(2000):
        after(3600, log.say("x")).cancel()
    await asyncio.sleep(0)
    assert len(asyncio.get_running_loop()._scheduled) < 200
    after(0.001, log.say("still"))
    assert await log.wait(1) == ["still"]
    for one in kept:
        one.cancel()


def test_each_event_loop_has_its_own():
    """One that was closed with a timer set keeps nobody waiting."""

    async def one(seconds):
        log = Log()
        after(3600, log.say("never"))
        after(seconds, log.say("now"))
        return await log.wait(1)

    assert asyncio.run(one(0.0)) == ["now"]
    assert asyncio.run(one(0.001)) == ["now"]


def test_without_an_event_loop_there_is_an_error():
    """As for everything of asyncio."""
    with pytest.raises(RuntimeError):
        after(1, print)
