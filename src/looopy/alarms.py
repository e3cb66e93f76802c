"""
Timers that are set for every turn and hardly ever go off.

A lease has to be renewed, a silent model given up, a tool stopped: each wait of a turn has such a
limit, and nearly all of them are taken back within milliseconds. A timer of the event loop is a
handle with a context in a heap that has to be tidied; here setting one is an entry in a list of our
own, and taking it back a mark. Of the event loop itself there is one timer, for the earliest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from heapq import heapify, heappop, heappush

_TIDY_ABOVE = 64  # alarms that were taken back, from which on they are looked for


class Alarm:
    """
    One call at a later time; `cancel()` takes it back.

    Attributes:
        when: By the clock of the event loop, in seconds.
    """

    __slots__ = ("_alarms", "_call", "when")

    def __init__(self, alarms: _Alarms, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self._alarms = alarms
        self._call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Take it back; harmless when it has gone off."""
        if self._call is not None:
            self._call = None
            self._alarms.fewer()

    def take(self) -> Callable[[], object] | None:
        """What is to be called, if it was not taken back."""
        call, self._call = self._call, None
        return call


def after(seconds: float, call: Callable[[], object]) -> Alarm:
    """
    Have *call* called by the running event loop in so many *seconds*, in an empty context.

    Raises:
        RuntimeError: No event loop runs.
    """
    loop = asyncio.get_running_loop()
    alarms: _Alarms | None = getattr(_here, "alarms", None)
    if alarms is None or alarms.loop is not loop:
        alarms = _here.alarms = _Alarms(loop)
    return alarms.set(seconds, call)


_here = threading.local()


class _Alarms:
    """Those of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._heap: list[tuple[float, int, Alarm]] = []
        self._count = 0
        self._gone = 0  # in the heap, and taken back
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, call: Callable[[], object]) -> Alarm:
        """Add one."""
        when = self.loop.time() + seconds
        alarm = Alarm(self, when, call)
        self._count += 1
        heappush(self._heap, (when, self._count, alarm))
        self._wait(when)
        return alarm

    def fewer(self) -> None:
        """Take notice that one was taken back."""
        self._gone += 1
        if self._gone > _TIDY_ABOVE and self._gone * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2]._call is not None]  # noqa: SLF001
            heapify(self._heap)
            self._gone = 0

    def _wait(self, when: float) -> None:
        """See that the event loop's timer goes off at *when*, or before."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        # Else what is called would inherit the context of whoever set the earliest.
        self._timer = self.loop.call_at(when, self._ring, when, context=Context())

    def _ring(self, due: float) -> None:
        """Call what is due, and wait for the rest."""
        self._timer = None
        now = max(due, self.loop.time())  # the event loop may be a little early
        while self._heap and self._heap[0][0] <= now:
            call = heappop(self._heap)[2].take()
            if call is None:
                self._gone -= 1
                continue
            try:
                call()
            except Exception as error:  # noqa: BLE001 - as the event loop does: it harms no other
                self.loop.call_exception_handler({"message": "an alarm failed", "exception": error})
        if self._heap:
            self._wait(self._heap[0][0])
