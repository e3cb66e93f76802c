"""
Wake-up calls for waiters of a context, so that they need not poll all the time.

A notification means only *look again*: the store is the truth. A needless one costs a read, a
missing one a delay, because every waiter also polls (`poll_s`). Writers of this process notify at
once. Each backend brings news of other processes in its own way; `noticed` informs it when a
context has listeners.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TypeAlias

Key: TypeAlias = tuple[str, str]
"""Tenant and context."""

Listener: TypeAlias = Callable[[bool], object]
"""Called with whether the news may concern the inbox. It must be quick and must not raise."""


_MOST_REMOVED = 1024


class Notifier:
    """
    Listeners of one backend, for one event loop. Not thread-safe: notify and listen on the loop.

    Args:
        poll_s: How often a waiter should look without a notification.

    Attributes:
        noticed: Called with a context and true when its first listener comes, and with false when
            its last one leaves. Set by the part of a backend that brings news from elsewhere.
    """

    def __init__(self, poll_s: float = 2.0) -> None:
        self.poll_s = poll_s
        self.noticed: Callable[[Key, bool], object] | None = None
        self._listeners: dict[Key, list[Listener]] = {}
        self._removals: dict[Key, int] = {}
        self._numbers = count(1)

    @property
    def has_listeners(self) -> bool:
        """True if there is a listener."""
        return bool(self._listeners)

    @property
    def keys(self) -> list[Key]:
        """The contexts that have a listener."""
        return list(self._listeners)

    def listen(self, tenant: str, context_id: str, listener: Listener) -> Listening:
        """
        Have *listener* called whenever the context has changed, until the result is closed.

        Look after this call, not before it: then no change falls between the two.
        """
        key = (tenant, context_id)
        listeners = self._listeners.setdefault(key, [])
        listeners.append(listener)
        listening = Listening(partial(self._leave, key, listener))
        if len(listeners) == 1:
            try:
                self._notice(key, here=True)
            except BaseException:
                listening.close()
                raise
        return listening

    def _leave(self, key: Key, listener: Listener) -> None:
        listeners = self._listeners[key]
        listeners.remove(listener)
        if not listeners:
            del self._listeners[key]
            self._notice(key, here=False)

    def notify(self, tenant: str, context_id: str, *, inbox: bool) -> None:
        """Report that a context has changed, and whether its inbox may have."""
        for listener in tuple(self._listeners.get((tenant, context_id), ())):
            listener(inbox)

    def note_removal(self, tenant: str, context_id: str) -> None:
        """Remember that a context was deleted here: an agent that misses it lost nothing."""
        self._removals.pop((tenant, context_id), None)
        self._removals[tenant, context_id] = next(self._numbers)
        if len(self._removals) > _MOST_REMOVED:
            del self._removals[next(iter(self._removals))]

    def removal_of(self, tenant: str, context_id: str) -> int:
        """Greater after each deletion of the context here; 0 before, or if very many came since."""
        return self._removals.get((tenant, context_id), 0)

    def notify_all(self) -> None:
        """Report that any context may have changed, such as after missed news."""
        for key in self.keys:
            self.notify(*key, inbox=True)

    def _notice(self, key: Key, *, here: bool) -> None:
        if self.noticed is not None:
            self.noticed(key, here)


class Listening:
    """One listener of `Notifier.listen`; it also closes at the end of a `with` block."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def close(self) -> None:
        """Call the listener no more, and forget it; closing twice is harmless."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()
