"""
A limit for the time that a server may take to answer on one connection.

A server limits its own statements. That does not help if its answer never arrives: a proxy hangs, a
firewall forgot the connection, a machine lost its network without closing. So each answer has a
limit here too, a little longer than the server's own. After that the connection is cut, and the
waiting command fails as after any other cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LATE_S = 1.0


class Watch:
    """
    Cuts a connection whose answer does not arrive in time.

    One timer serves many answers. An answer sets and clears a number, and the timer is moved only
    when it fires too early, so that a statement costs no timer of its own.

    Args:
        cut: Ends the connection, so that its reader fails.

    Attributes:
        expired: True if it was cut.
    """

    __slots__ = ("_cut", "_due", "_loop", "_timer", "expired")

    def __init__(self, cut: Callable[[], None]) -> None:
        self._cut = cut
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.expired = False

    def begin(self, within_s: float) -> None:
        """Expect an answer within so many seconds."""
        self._due = due = self._loop.time() + within_s
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._look)
        elif self._timer.when() > due:
            self._timer.cancel()
            self._timer = self._loop.call_at(due, self._look)

    def end(self) -> None:
        """Expect no answer any more."""
        self._due = None

    def close(self) -> None:
        """Stop watching the connection."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        timer, self._timer = self._timer, None
        if self._due is None or timer is None:
            return
        now = self._loop.time()
        if now - timer.when() > _LATE_S:
            # This process stood still itself: the answer may be there, but unread.
            self._due = max(self._due, now + _LATE_S)
        if now < self._due:
            self._timer = self._loop.call_at(self._due, self._look)
            return
        self.expired = True
        self._cut()
