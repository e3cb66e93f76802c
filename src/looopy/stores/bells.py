"""
Who is told that a context has changed, so that nobody has to ask all the time.

A bell says only *look again*: the store is the truth. One that rings for nothing costs a look, one
that does not ring costs a delay, because whoever waits also looks from time to time
(`poll_s`). Writers of this process ring at once; how news of other processes comes in is the
business of each backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Key: TypeAlias = tuple[str, str]
"""Tenant and context."""

Listener: TypeAlias = Callable[[bool], object]
"""Called with whether the news may concern the inbox. It must be quick and must not raise."""


class Bells:
    """
    The bells of one backend, for one event loop. Not thread-safe: rung and heard on the loop.

    Args:
        poll_s: How often whoever waits should look without having been rung for.
        wanted: Called when the first listener comes, and when the last one goes; `keys` tells.
    """

    def __init__(self, poll_s: float = 2.0, wanted: Callable[[], object] | None = None) -> None:
        self.poll_s = poll_s
        self._wanted = wanted
        self._listeners: dict[Key, list[Listener]] = {}

    @property
    def keys(self) -> list[Key]:
        """The contexts that somebody listens to."""
        return list(self._listeners)

    @contextmanager
    def listen(self, tenant: str, context_id: str, listener: Listener) -> Iterator[None]:
        """Have *listener* called whenever the context has changed, until the block is left."""
        key = (tenant, context_id)
        first = not self._listeners
        self._listeners.setdefault(key, []).append(listener)
        if first and self._wanted is not None:
            self._wanted()
        try:
            yield
        finally:
            listeners = self._listeners[key]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[key]
            if not self._listeners and self._wanted is not None:
                self._wanted()

    def ring(self, tenant: str, context_id: str, *, inbox: bool) -> None:
        """Say that a context has changed, and whether its inbox may have."""
        for listener in tuple(self._listeners.get((tenant, context_id), ())):
            listener(inbox)

    def ring_all(self) -> None:
        """Say that any context may have changed, as after news that were missed."""
        for key in self.keys:
            self.ring(*key, inbox=True)
