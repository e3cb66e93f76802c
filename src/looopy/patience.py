"""
An end to waiting for a model, whoever provides it.

A provider watches its own connection, and knows best what went wrong. But one of somebody's own may
not look at the time at all, and then a silent server would hold the turn until the turn's own time
is up. So each call is watched over here as well, a little more patiently, at the cost of a timer
and of nothing while deltas come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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

    __slots__ = ("_began", "_heard", "_idle_s", "_loop", "_scope", "_seen", "_timers", "_total_s")

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
        loop = self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if total_s is not None:
            self._timers["total"] = loop.call_later(total_s * _LATER, scope.interrupt, "total")
        if idle_s is not None:
            first_s = idle_s * _LATER * _FIRST_FACTOR
            self._timers["idle"] = loop.call_later(first_s, self._look)

    def close(self) -> None:
        """Stop watching."""
        for timer in self._timers.values():
            timer.cancel()

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
        self._timers["idle"] = self._loop.call_later(again_s, self._look)
