"""
Limits of a wait: cancelling cuts it short, a silent model is given up, with timers for both.

A turn alternates between waits that may be cut short (a model, a tool) and steps that may not (a
commit). `CancelScope` marks the waits. Inside it, cancelling the turn's token interrupts the
current await; outside, the request waits for the next scope. So a cancel never interrupts a commit.
And asyncio's own cancellation, which may interrupt one, stays distinguishable from it.

`Patience` ends the wait for a model of any provider. A provider watches its own connection, and the
loop waits a little longer. `within` limits any other wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from types import TracebackType, coroutine
from typing import Any

from looopy.errors import LLMUnavailable, foreign
from looopy.loop.timers import Timer, after
from looopy.types.context import CancelToken


class TurnInterrupted(Exception):  # a signal inside the loop, never an error for a user
    """The turn's token was cancelled, or its time has run out; `reason` is which."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CancelScope:
    """
    A re-enterable section in which a turn can be interrupted.

    One is made per turn and entered around each interruptible await. Entering is cheap enough for
    every delta.

    Args:
        token: The token that cancels the turn.
        timeout_s: Seconds from now after which the turn is interrupted with the reason `deadline`.
    """

    def __init__(self, token: CancelToken, timeout_s: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._token = token
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._fired = False
        self._reason: str | None = None  # of an interruption that is not the token's
        self._unsubscribe = token.on_cancel(self._soon)
        self._timer = (
            None if timeout_s is None else after(timeout_s, partial(token.cancel, "deadline"))
        )

    def close(self) -> None:
        """Release the token and the timer."""
        self._unsubscribe()
        self._unsubscribe = lambda: None  # the old value refers back to this object
        if self._timer is not None:
            self._timer.cancel()

    def interrupt(self, reason: str) -> None:
        """
        Cut short the current await, with *reason*, and nothing else: the turn itself may continue.
        Outside of an interruptible await it does nothing. Not for the turn's own task.
        """
        if self._task is not None and not self._fired:
            self._reason = reason
            self._fire()

    def __enter__(self) -> None:
        if self._token.reason is not None:
            raise TurnInterrupted(self._token.reason)
        self._fired = False
        task = self._task = asyncio.current_task(self._loop)
        self._cancelling = 0 if task is None else task.cancelling()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if (
            self._fired
            and task is not None
            and task.uncancel() <= self._cancelling
            and exc_type is asyncio.CancelledError
        ):
            reason, self._reason = self._token.reason or self._reason or "cancelled", None
            raise TurnInterrupted(reason) from exc
        if exc is not None and (failure := foreign(exc, cancelling=self._cancelling)) is not None:
            try:
                raise failure from exc
            finally:
                del failure  # its traceback holds this frame

    def _soon(self) -> None:
        # Never while the task itself runs: the cancel would interrupt its next await, in or out of
        # a scope.
        self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()


async def within(seconds: float, work: Awaitable[object]) -> None:
    """
    Await *work*, for so many seconds at most; only work that waits gets a timer.

    Raises:
        TurnInterrupted: It took longer, and was cancelled.
    """
    steps = work.__await__()
    try:
        waits_for = next(steps)
    except StopIteration:
        return
    scope = CancelScope(CancelToken(), seconds)
    try:
        with scope:
            await _rest(steps, waits_for)
    finally:
        scope.close()


@coroutine
def _rest(steps: Generator[Any, Any, object], waits_for: Any) -> Generator[Any, Any, None]:
    """Lead *steps*, which have come to their first wait, to their end."""
    with suppress(StopIteration):
        while True:
            try:
                yield waits_for
            except BaseException as stop:  # noqa: BLE001 - theirs to handle
                waits_for = steps.throw(stop)
            else:
                waits_for = next(steps)


_LATER = 1.1  # so that a provider that watches itself reports first
_FIRST_FACTOR = 3  # before its first output a model may think longer


class Patience:
    """
    Interrupts one model call that takes too long, or is silent for too long.

    Args:
        scope: The scope of the wait.
        heard: Returns the number of events so far; called now and then.
        idle_s: The longest silence; `None`: no limit.
        total_s: The longest call; `None`: no limit.
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
        self._total: Timer | None = None
        self._idle: Timer | None = None
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
        """The error for *stop* if this object interrupted the call; else `None`."""
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
