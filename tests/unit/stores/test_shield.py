"""Who waits for a write of a turn learns its outcome, whatever happens meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from looopy.stores.shield import WriteLock, settle_write


class Driver:
    """Gives answers when it is told to."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[str]] = []

    async def run(self) -> str:
        """One operation."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer

    async def asked(self, count: int) -> asyncio.Future[str]:
        """The answer that is waited for, once there were so many operations."""
        for _ in range(100):
            if len(self.answers) == count:
                return self.answers[-1]
            await asyncio.sleep(0)
        raise AssertionError(f"never were there {count} operations")


@pytest.fixture
async def driver():
    """See `Driver`."""
    return Driver()


async def test_a_cancellation_ends_with_the_outcome_of_the_write(driver):
    """The one who waits is told of it, as often as it happens, and goes on with the outcome."""
    told = []
    work = settle_write(driver.run(), lambda: told.append(True), outlasts=True)
    waiting = asyncio.create_task(work)
    answer = await driver.asked(1)
    for _ in range(2):
        waiting.cancel()
        await asyncio.sleep(0)
    assert not waiting.done()
    answer.set_result("written")
    assert await waiting == "written"
    assert told


async def test_a_write_of_several_operations_is_waited_for_to_its_last(driver):
    """A cancellation during the first one does not reach the second."""
    told = []

    async def both() -> list[str]:
        return [await driver.run(), await driver.run()]

    waiting = asyncio.create_task(settle_write(both(), lambda: told.append(True), outlasts=True))
    (await driver.asked(1)).set_result("one")
    waiting.cancel()
    (await driver.asked(2)).set_result("two")
    assert await waiting == ["one", "two"]
    assert told == [True]


async def test_a_write_may_let_others_go_on_and_wait_for_several_things():
    """It is cut short at none of its waits, whatever they are for."""
    told, reached = [], []

    async def work() -> str:
        await asyncio.sleep(0)
        reached.append("a turn of the event loop")
        await asyncio.gather(asyncio.sleep(0), asyncio.to_thread(list))
        reached.append("several tasks")
        return "written"

    waiting = asyncio.create_task(settle_write(work(), lambda: told.append(True), outlasts=True))
    await asyncio.sleep(0)
    async with asyncio.timeout(300):
        while not waiting.done():
            waiting.cancel()
            await asyncio.sleep(0)
    assert (await waiting, len(reached)) == ("written", 2)
    assert told


async def test_a_write_raises_the_error_of_its_driver(driver):
    """It may handle that; a future that the driver cancels is no cancellation of the task."""
    told = []

    async def work() -> list[str]:
        with pytest.raises(ValueError, match="refused"):
            await driver.run()
        with pytest.raises(asyncio.CancelledError):
            await driver.run()
        return [await driver.run()]

    waiting = asyncio.create_task(settle_write(work(), lambda: told.append(True), outlasts=True))
    (await driver.asked(1)).set_exception(ValueError("refused"))
    (await driver.asked(2)).cancel()
    (await driver.asked(3)).set_result("written")
    assert (await waiting, told) == (["written"], [])


async def test_a_write_that_is_given_up_ends(driver):
    """As a coroutine does that nobody awaits any more."""
    waiting = settle_write(driver.run(), list, outlasts=True)
    waiting.send(None)
    waiting.close()
    assert not driver.answers[0].done()


async def test_a_write_that_need_not_wait_is_made_at_once():
    """No turn of the event loop comes in between."""
    turns = []
    asyncio.get_running_loop().call_soon(turns.append, 1)

    async def work() -> str:
        return "written"

    assert await settle_write(work(), list, outlasts=True) == "written"
    assert turns == []


def test_the_end_of_the_event_loop_waits_for_a_write():
    """Every task is cancelled then; what a driver was given is carried out all the same."""
    outcome = []

    async def turn(answer: asyncio.Future[str]) -> None:
        async def work() -> str:
            return await answer

        outcome.append(await settle_write(work(), list, outlasts=True))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        task = loop.create_task(turn(answer))
        await asyncio.sleep(0)
        loop.call_later(0.01, answer.set_result, "written")
        outcome.append(task.done())

    asyncio.run(main())
    assert outcome == [False, "written"]


async def test_the_failure_of_a_write_is_its_outcome(driver):
    """Cancelled or not, the one who waits gets the error."""
    waiting = asyncio.create_task(settle_write(driver.run(), list, outlasts=True))
    answer = await driver.asked(1)
    waiting.cancel()
    await asyncio.sleep(0)
    answer.set_exception(OSError("no"))
    with pytest.raises(OSError, match="no"):
        await waiting


async def test_an_operation_outside_a_turn_is_abandoned_at_once_when_cancelled(driver):
    """A read, or what somebody calls on the stores themselves: the driver carries on alone."""
    waiting = asyncio.create_task(driver.run())
    answer = await driver.asked(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert answer.cancelled()


async def test_a_task_that_is_made_during_a_write_is_on_its_own(driver):
    """Its cancellation is its own, and none of the turn's."""
    told, others = [], []

    async def write() -> str:
        others.append(asyncio.create_task(driver.run()))
        return await driver.run()

    waiting = asyncio.create_task(settle_write(write(), lambda: told.append(True), outlasts=True))
    await driver.asked(2)
    others[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await others[0]
    assert told == []
    driver.answers[0].set_result("written")
    assert await waiting == "written"


async def test_operations_after_a_write_wait_as_before(driver):
    """The way of waiting ends with the write, also where that failed."""
    waiting = asyncio.create_task(settle_write(driver.run(), list, outlasts=True))
    (await driver.asked(1)).set_exception(OSError("no"))
    with pytest.raises(OSError, match="no"):
        await waiting

    async def write_and_read() -> None:
        await settle_write(driver.run(), list, outlasts=True)
        await driver.run()

    waiting = asyncio.create_task(write_and_read())
    (await driver.asked(2)).set_result("written")
    answer = await driver.asked(3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert answer.cancelled()


async def test_other_stores_are_shielded_by_a_task():
    """Work that waits for anything is not interrupted either."""
    open_, told = asyncio.Event(), []

    async def work() -> str:
        await open_.wait()
        return "written"

    waiting = asyncio.create_task(settle_write(work(), lambda: told.append(True), outlasts=False))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    open_.set()
    assert (await waiting, told) == ("written", [True])


async def test_the_end_of_the_event_loop_finds_an_operation_cut_short(driver):
    """A driver's own task was cancelled: there is no outcome, and that is raised."""
    waiting = asyncio.create_task(settle_write(driver.run(), list, outlasts=True))
    (await driver.asked(1)).set_exception(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_waiting_for_an_earlier_write_is_not_cut_short():
    """It is told of the cancellation, and has the lock in order of arrival."""
    lock, told, had = WriteLock(), [], []

    async def write(name):
        await lock.take(lambda: told.append(name))
        had.append(name)
        lock.give_back()

    await lock.take(list)
    waiting = [asyncio.create_task(write(name)) for name in "abc"]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.sleep(0)
    assert had == []
    lock.give_back()
    await asyncio.gather(*waiting)
    assert had == ["a", "b", "c"]
    assert told == ["a", "b"]
    await lock.take(list)
    lock.give_back()
