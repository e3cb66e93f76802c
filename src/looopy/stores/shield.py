"""
Await a write to its end, even if its caller is cancelled.

A commit whose caller is gone is still a commit: its outcome has to be known before anything else.
`settle` runs any kind of work in a task of its own, and shields that task. The end of an event loop
cancels every task, this one too. The drivers of our stores carry out every operation that was
handed to them, so only the waiting could be cut short. `settle_write` needs no task: it leads the
store's coroutine itself, and no cancellation reaches the futures that it waits for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def settle(work: Awaitable[T], cancelled: Callable[[], object] | None = None) -> T:
    """
    Await *work* to its end, even if this task is cancelled.

    Args:
        cancelled: Called if the task is cancelled in between; the cancellation then ends here.
            `None`: it is raised once the work is over, because its origin (a timeout, a task group)
            expects it.
    """
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            if task.cancelled():
                raise
            if cancelled is None:
                interrupted = exc
            else:
                cancelled()
        except Exception:  # noqa: BLE001 - the work's own failure: result() raises it below
            break
    if interrupted is not None:
        raise interrupted from (None if task.cancelled() else task.exception())
    return task.result()


def answer(waiter: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    """Give *waiter* the error if there is one, else the result, unless it no longer waits."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)


def settle_write(
    work: Coroutine[Any, Any, T], cancelled: Callable[[], object], *, outlasts: bool
) -> Awaitable[T]:
    """
    Like `settle`, for a write of a turn.

    Args:
        outlasts: True if *work* waits only for a driver, which carries it out in any case.
    """
    return _led(work, cancelled) if outlasts else settle(work, cancelled)


@coroutine
def _led(work: Coroutine[Any, Any, T], cancelled: Callable[[], object]) -> Generator[Any, None, T]:
    """Lead *work* from one wait to the next, as a task would, and cut none of them short."""
    while True:
        try:
            awaited: asyncio.Future[Any] | None = work.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            yield None if awaited is None else _Uncut(awaited)  # `None`: as in `sleep(0)`
        except asyncio.CancelledError:
            if awaited is None or not awaited.cancelled():
                cancelled()
        except Exception:  # noqa: BLE001, S110 - the future's own: it raises in *work*, too
            pass


class _Uncut:
    """A future as its waiting task sees it: cancelling that task does not reach the future."""

    _asyncio_future_blocking = True  # thus a task knows a future

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.get_loop = future.get_loop
        self.add_done_callback = future.add_done_callback

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - as in a future
        """Do nothing: the task learns of its cancellation when the wait is over."""
        return False


class WriteLock:
    """
    Lets one write of a turn at a time be made and shown, in order of arrival.

    Waiting for it is a part of the write, and cut short as little.
    """

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, cancelled: Callable[[], object]) -> None:
        """
        Acquire the lock; release it in any case.

        Args:
            cancelled: Called if the task is cancelled in between; the cancellation then ends here.
        """
        if self._taken:
            await settle_write(self._wait(), cancelled, outlasts=True)
        self._taken = True

    async def _wait(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def give_back(self) -> None:
        """Pass the lock to the task that has waited longest."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._taken = False
