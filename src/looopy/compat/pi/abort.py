"""
pi's means to stop: a controller asks, and every holder of its signal is notified, once.

Ours is `CancelToken`; this is its interface in pi.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_logger = logging.getLogger("looopy")


class AbortError(Exception):
    """The error of `AbortSignal.throw_if_aborted()`."""


class AbortSignal:
    """Shows if, and when, somebody asked to stop. Not thread-safe."""

    __slots__ = ("_aborted", "_callbacks")

    def __init__(self) -> None:
        self._aborted = False
        self._callbacks: list[Callable[[], object]] = []

    @property
    def aborted(self) -> bool:
        """True once somebody has asked."""
        return self._aborted

    def on_abort(self, callback: Callable[[], object]) -> Callable[[], None]:
        """
        Call *callback* when somebody asks, at once if it has happened; returns what unsubscribes
        it.

        Callbacks run in the order in which they came; one that fails is logged and harms no other.
        """
        if self._aborted:
            _call(callback)
            return lambda: None
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe

    def throw_if_aborted(self) -> None:
        """
        Stop here if somebody asked.

        Raises:
            AbortError: Somebody has.
        """
        if self._aborted:
            raise AbortError("the operation was aborted")

    def _abort(self) -> None:
        if self._aborted:
            return
        self._aborted = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)


class AbortController:
    """Asks to stop. Asking again does nothing."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self) -> None:
        """Ask every holder of the signal to stop."""
        self.signal._abort()  # noqa: SLF001 - the other half of the same thing


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        _logger.exception("an abort callback failed")
