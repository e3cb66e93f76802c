"""Who is called with the events of an agent; one that raises is logged and harms nobody."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from looopy.broadcast import guarded
from looopy.errors import ConfigurationError
from looopy.types.event import AgentEvent


class Subscribers:
    """
    Callbacks, called in the order in which they came.

    Args:
        name: Of the agent, for the log.

    Attributes:
        present: Whether there is one: nobody else need be told of an event.
    """

    def __init__(self, name: str) -> None:
        self._failed = f"a subscriber of agent {name} failed"
        self._callbacks: dict[object, Callable[[AgentEvent], object]] = {}
        self.present = False

    def add(self, callback: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """
        Call *callback* from now on; what is returned ends that.

        Raises:
            ConfigurationError: It is a coroutine function.
        """
        if inspect.iscoroutinefunction(callback):
            raise ConfigurationError(
                "subscribe() takes a plain function: it is called, not awaited;"
                " start a task in it, or read events() with `async for`"
            )
        key = object()
        self._callbacks[key] = callback
        self.present = True

        def remove() -> None:
            self._callbacks.pop(key, None)
            self.present = bool(self._callbacks)

        return remove

    def tell(self, event: AgentEvent) -> None:
        """Call those that are there now; they may come and go meanwhile."""
        for callback in tuple(self._callbacks.values()):
            guarded(self._failed, callback, event)
