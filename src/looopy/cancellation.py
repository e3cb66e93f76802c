"""
Stop what a turn waits for, and nothing else.

A turn alternates between waits that may be cut short (a model, a tool) and steps that may not (a
commit). `CancelScope` marks the former: while one is entered, cancelling the turn's token
interrupts the current await; outside, the request waits for the next scope. So a cancel never lands
in the middle of a commit, and asyncio's own cancellation, which may, stays distinguishable from it.

Code of the application is called in there, and may raise a `CancelledError` that is nobody's: the
result of a task of its own that was cancelled. It is a failure like any other, and so is whatever
else is not an `Exception`, but for those that want the program to end.
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType

from looopy.alarms import after
from looopy.errors import foreign
from looopy.types.context import CancelToken


class TurnInterrupted(Exception):  # a signal inside the loop, never an error of a user's
    """The turn's token was cancelled, or its time ran out; `reason` says which."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CancelScope:
    """
    A re-enterable section in which a turn can be interrupted.

    One is made per turn and entered around each interruptible await. Entering is cheap enough to do
    so for every delta.

    Args:
        token: What is cancelled from outside.
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
        """Let go of the token and the timer."""
        self._unsubscribe()
        self._unsubscribe = _nothing  # what it was refers back to this
        if self._timer is not None:
            self._timer.cancel()

    def interrupt(self, reason: str) -> None:
        """
        Cut short the await that goes on, with *reason*, and nothing else: the turn itself may go
        on. Outside of an interruptible await it does nothing. Not for the turn's own task.
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
            raise failure from exc

    def _soon(self) -> None:
        # Never while the task itself runs: a cancel would then strike at its next await, wherever.
        self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()


def _nothing() -> None:
    """What is left to do for a scope that is closed."""
