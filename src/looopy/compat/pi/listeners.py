"""Who hears what a run says."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable

from looopy.compat.pi.types import AgentEvent
from looopy.errors import ConfigurationError

_logger = logging.getLogger("looopy")


class Listeners:
    """Plain functions, told in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[AgentEvent], object]] = []

    def add(self, listener: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """
        Tell *listener* every event; returns what ends that.

        Raises:
            ConfigurationError: It is a coroutine function, which nobody would await.
        """
        if inspect.iscoroutinefunction(listener):
            raise ConfigurationError("subscribe() takes a plain function: it is not awaited")
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def tell(self, event: AgentEvent, context_id: str) -> None:
        """Tell everybody; one that fails is logged, and harms neither the others nor the run."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                _logger.exception("a listener of agent %s failed", context_id)
