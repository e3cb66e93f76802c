"""Let time pass for the event loop of a test, instead of waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class _Time:
    """The clock of an event loop, some seconds ahead."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._ahead = 0.0

    def __call__(self) -> float:
        return self._time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


def advance(seconds: float) -> None:
    """
    Let *seconds* pass for the running event loop, before it looks at its timers again.

    A limit of a minute is then over at the moment that a test chooses, and not one that a busy
    machine chooses. The loop keeps the lead: it is the test's own. Code that has taken `loop.time`
    for itself before the first call does not see it pass: call `advance(0)` before that.
    """
    loop = asyncio.get_running_loop()
    time = loop.time
    if not isinstance(time, _Time):
        time = _Time(time)
        loop.time = time
    loop.call_soon(time.advance, seconds)
