"""
pi's means to stop: a controller asks, and every holder of its signal is notified, once.

Ours is `CancelToken`; this is its interface in pi.
"""

from __future__ import annotations

from collections.abc import Callable

from looopy.types.context import CancelToken


class AbortError(Exception):
    """The error of `AbortSignal.throw_if_aborted()`."""


class AbortSignal:
    """A request to stop, and its callbacks. Not thread-safe."""

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = CancelToken()

    @property
    def aborted(self) -> bool:
        """True once the run was asked to stop."""
        return self._token.cancelled

    def on_abort(self, callback: Callable[[], object]) -> Callable[[], None]:
        """
        Call *callback* at a request to stop, at once if there was one; returns its unsubscriber.

        Callbacks run in the order in which they came; one that fails is logged and harms no other.
        """
        return self._token.on_cancel(callback)

    def throw_if_aborted(self) -> None:
        """
        Stop here if that was requested.

        Raises:
            AbortError: It was.
        """
        if self.aborted:
            raise AbortError("the operation was aborted")


class AbortController:
    """Asks to stop. Asking again does nothing."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self) -> None:
        """Ask every holder of the signal to stop."""
        self.signal._token.cancel()  # noqa: SLF001 - the other half of the same thing
