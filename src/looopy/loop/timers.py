"""
Timers that most turns set and cancel, at a fifth of the price of the event loop's own.

A turn watches its lease, its inbox, its time limit and its model, and hardly ever does one of these
timers go off. The event loop makes two objects for each and compares them in Python. Here a timer
is an entry in a heap, and the loop has one timer for the earliest entry.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from contextvars import Context
from weakref import ref

_FEW = 100  # cancelled timers that may wait for their time


class Timer:
    """
    A call in the future, until it is made or cancelled.

    Attributes:
        due: By the clock of the event loop.
        call: `None` once it was made or cancelled.
    """

    __slots__ = ("_timers", "call", "due")

    def __init__(self, timers: _Timers, due: float, call: Callable[[], object] | None) -> None:
        self.due = due
        self.call = call
        self._timers = timers

    def cancel(self) -> None:
        """Make no call, and keep nothing that the call refers to."""
        if self.call is not None:
            self.call = None
            self._timers.settled()


class _Timers:
    """The timers of one event loop, which run in an empty context."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = ref(loop)  # the loop refers to this object
        self._waiting: list[tuple[float, int, Timer]] = []
        self._live = 0  # of these, how many are neither made nor cancelled
        self._numbers = itertools.count()
        self._sweep_above = _FEW
        self._next: asyncio.TimerHandle | None = None
        self._due = 0.0  # the time of `_next`

    def add(self, timer: Timer) -> None:
        due, waiting = timer.due, self._waiting
        self._live += 1
        if len(waiting) > self._sweep_above:
            waiting[:] = [one for one in waiting if one[2].call is not None]
            heapq.heapify(waiting)
            self._sweep_above = 2 * len(waiting) + _FEW
        heapq.heappush(waiting, (due, next(self._numbers), timer))
        if self._next is None or due < self._due:
            self._wait()

    def settled(self) -> None:
        """
        Count a timer that was cancelled, and keep none in the event loop without a live one.

        The event loop drops its cancelled timers, with the contexts that they refer to, only up to
        its first live one.
        """
        self._live -= 1
        if not self._live:
            self._waiting.clear()
            if self._next is not None:
                self._next.cancel()
                self._next = None

    def _wait(self) -> None:
        """Have the event loop call when the earliest timer is due."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        while self._waiting and self._waiting[0][2].call is None:
            heapq.heappop(self._waiting)
        loop = self.loop()
        if self._waiting and loop is not None:
            self._due = self._waiting[0][0]
            self._next = loop.call_at(self._due, self._ring, context=Context())

    def _ring(self) -> None:
        loop, waiting = self.loop(), self._waiting
        now = self._due if loop is None else max(self._due, loop.time())
        try:
            while waiting and waiting[0][0] <= now:
                timer = heapq.heappop(waiting)[2]
                call, timer.call = timer.call, None
                if call is not None:
                    self._live -= 1
                    call()
        finally:  # the loop reports the error of a call
            self._wait()


class _Here(threading.local):
    timers: _Timers | None = None


_here = _Here()


def after(seconds: float, call: Callable[[], object]) -> Timer:
    """
    Make the running event loop call *call* in so many *seconds*, in an empty context.

    Raises:
        RuntimeError: No event loop runs.
    """
    loop = asyncio.get_running_loop()
    timers = _here.timers
    if timers is None or timers.loop() is not loop:
        timers = _here.timers = _Timers(loop)
    timer = Timer(timers, loop.time() + seconds, call)
    timers.add(timer)
    return timer
