"""
Leaves a provider alone that fails again and again.

Closed, calls go through. After so many failures in a row it opens: calls are refused for a while.
Then it is half open: one call is let through to see, and decides whether it closes or opens anew.
"""

from __future__ import annotations

from collections.abc import Callable


class Breaker:
    """
    Counts one provider's failures.

    Args:
        failures: How many in a row open it.
        cooldown_s: How long it then stays open.
        clock: In seconds, from anywhere.
    """

    __slots__ = ("_clock", "_cooldown_s", "_failures", "_limit", "_opened_at", "_trying")

    def __init__(self, failures: int, cooldown_s: float, clock: Callable[[], float]) -> None:
        self._limit = failures
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._failures = 0
        self._opened_at: float | None = None
        self._trying = False

    @property
    def wait_s(self) -> float:
        """How long until a call is let through; 0 when it is at once."""
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self._cooldown_s - self._clock())

    def enter(self) -> bool:
        """Whether a call may be made now. Whoever is let through says how it went, or `leave`s."""
        if self._opened_at is None:
            return True
        if self._trying or self.wait_s > 0:
            return False
        self._trying = True
        return True

    def leave(self) -> None:
        """The call came to no end that tells anything."""
        self._trying = False

    def succeeded(self) -> None:
        """The call was answered."""
        self._failures, self._opened_at, self._trying = 0, None, False

    def failed(self) -> bool:
        """The call failed; true if that opened it."""
        self._failures += 1
        self._trying = False
        opens = self._failures >= self._limit
        if opens:
            self._opened_at = self._clock()
        return opens
