"""
An end to waiting for a model, whoever provides it.

A provider watches its own connection, and knows best what went wrong. But one of somebody's own may
not look at the time at all, and then a silent server would hold the turn until the turn's own time
is up. So each call is watched over here as well, a little more patiently, at the cost of a timer
and of nothing while deltas come.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from looopy.alarms import Alarm, after
from looopy.cancellation import CancelScope, TurnInterrupted
from looopy.errors import LLMUnavailable

_LATER = 1.1  # so that a provider that watches itself is first to say what happened
_FIRST_FACTOR = 3  # before its first word a model may think longer


class Patience:
    """
    Interrupts one model call that takes too long, or in which nothing comes for too long.

    Args:
        scope: What the waiting is done in.
        heard: How many events have come; called now and then.
        idle_s: The longest silence; `None`: any.
        total_s: The longest call; `None`: any.
    """

    __slots__ = ("_heard", "_idle", "_idle_s", "_scope", "_seen", "_total", "_total_s")

    def __init__(
        self,
        scope: CancelScope,
        heard: Callable[[], int],
        *,
        idle_s: float | None,
        total_s: float | None,
    ) -> None:
        self._scope = scope
        self._heard = heard
        self._idle_s = idle_s
        self._total_s = total_s
        self._seen = 0
        self._total: Alarm | None = None
        self._idle: Alarm | None = None
        if total_s is not None:
            self._total = after(total_s * _LATER, partial(scope.interrupt, "total"))
        if idle_s is not None:
            self._idle = after(idle_s * _LATER * _FIRST_FACTOR, self._look)

    def close(self) -> None:
        """Stop watching."""
        if self._total is not None:
            self._total.cancel()
        if self._idle is not None:
            self._idle.cancel()

    def error(self, stop: BaseException, provider: str) -> LLMUnavailable | None:
        """What *stop* means if it was this that interrupted; else `None`."""
        reason = stop.reason if isinstance(stop, TurnInterrupted) else None
        who = provider or "the provider"
        if reason == "idle":
            text = f"{who} sent nothing for {self._idle_s:g} s (LoopConfig.llm_idle_timeout_s)"
        elif reason == "total":
            text = f"{who} did not answer within {self._total_s:g} s (LoopConfig.llm_timeout_s)"
        else:
            return None
        return LLMUnavailable(text, provider=provider)

    def _look(self) -> None:
        heard = self._heard()
        if heard == self._seen:
            self._scope.interrupt("idle")
        self._seen = heard
        again_s = (self._idle_s or 0) * _LATER
        self._idle = after(again_s, self._look)
