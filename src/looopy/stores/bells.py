"""
Who is told that a context has changed, so that nobody has to ask all the time.

A bell says only *look again*: the store is the truth. One that rings for nothing costs a look, one
that does not ring costs a delay, because whoever waits also looks from time to time
(`poll_s`). Writers of this process ring at once; how news of other processes comes in is the
business of each backend, which is told by `noticed` when there is somebody to bring them to.
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

    Attributes:
        noticed: Called with a context and true when its first listener comes, and with false when
            its last one goes. Set by who brings news from elsewhere.
    """

    def __init__(self, poll_s: float = 2.0) -> None:
        self.poll_s = poll_s
        self.noticed: Callable[[Key, bool], object] | None = None
        self._listeners: dict[Key, list[Listener]] = {}

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    @property
    def keys(self) -> list[Key]:
        """The contexts that somebody listens to."""
        return list(self._listeners)

    @contextmanager
    def listen(self, tenant: str, context_id: str, listener: Listener) -> Iterator[None]:
        """
        Have *listener* called whenever the context has changed, until the block is left.

        Look after this was entered, not before: then nothing falls between the look and the ring.
        """
        key = (tenant, context_id)
        listeners = self._listeners.setdefault(key, [])
        listeners.append(listener)
        try:
            if len(listeners) == 1:
                self._notice(key, here=True)
            yield
        finally:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[key]
                self._notice(key, here=False)

    def ring(self, tenant: str, context_id: str, *, inbox: bool) -> None:
        """Say that a context has changed, and whether its inbox may have."""
        for listener in tuple(self._listeners.get((tenant, context_id), ())):
            listener(inbox)

    def ring_all(self) -> None:
        """Say that any context may have changed, as after news that were missed."""
        for key in self.keys:
            self.ring(*key, inbox=True)

    def _notice(self, key: Key, *, here: bool) -> None:
        if self.noticed is not None:
            self.noticed(key, here)
