"""
Await a write to its end, even if its caller is cancelled.

A commit whose caller is gone is still a commit: its outcome has to be known before anything else.
`settle` shields any kind of work by a task of its own. Our stores need no such task: their drivers
carry out every operation that was handed to them, so only the waiting could be cut short.
`settle_write` tells them not to stop waiting, and they wait for an `Answer`, which no cancellation
interrupts. That saves a task and three rounds of the event loop for each commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
# The waiting task, and the callback for its cancellation. A task that is made in between inherits
# the variable, but is another task.
_waits: ContextVar[tuple[asyncio.Task[Any] | None, Callable[[], object]] | None] = ContextVar(
    "looopy_settle", default=None
)


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


async def settle_write(work: Awaitable[T], cancelled: Callable[[], object], *, outlasts: bool) -> T:
    """
    As `settle`, for a write of a turn.

    Args:
        outlasts: True if *work* waits only for answers made by `new_answer`.
    """
    if not outlasts:
        return await settle(work, cancelled)
    before = _waits.set((asyncio.current_task(), cancelled))
    try:
        return await work
    finally:
        _waits.reset(before)


def _told() -> Callable[[], object] | None:
    """The callback for a cancellation of this task; `None` outside of `settle_write`."""
    waits = _waits.get()
    if waits is None or waits[0] is not asyncio.current_task():
        return None
    return waits[1]


class Answer(asyncio.Future[T]):
    """
    A future that is awaited to its end: cancelling the waiting task does not reach it.

    Attributes:
        told: Called with that cancellation.
    """

    told: Callable[[], object]

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - as in the base
        """Do nothing; the task learns of its cancellation when the answer is there."""
        return False


def new_answer(loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
    """A future for a driver to resolve when an operation is over; await it by `outlast`."""
    told = _told()
    if told is None:
        return loop.create_future()
    answer: Answer[Any] = Answer(loop=loop)
    answer.told = told
    return answer


async def outlast(answer: asyncio.Future[T]) -> T:
    """
    Wait for *answer*; within `settle_write` until it is there, though this task is cancelled.

    Raises:
        asyncio.CancelledError: Outside of it; the operation is carried out all the same.
    """
    while True:
        try:
            return await answer
        except asyncio.CancelledError:
            if not isinstance(answer, Answer):
                raise
            answer.told()
            if answer.done():
                break
    found: T = answer.result()
    return found


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
        place: asyncio.Future[None] = new_answer(asyncio.get_running_loop())
        self._waiting.append(place)
        await outlast(place)

    def give_back(self) -> None:
        """Pass the lock to the task that has waited longest."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._taken = False
