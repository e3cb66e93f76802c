"""
Tools to break things on purpose: stores that fail on demand, and the failpoints of a turn.

`arm("B7:2")` sets a failpoint of this process; `looopy._failpoints` lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from looopy._failpoints import NAMES, FailpointReached, arm
from looopy.stores.bundle import Stores

__all__ = ["NAMES", "Afterwards", "FailpointReached", "SpyStores", "arm"]


_LEASE = ("claim", "renew", "release", "leave")
_LINE = ("join_wait_queue", "keep_place", "leave_wait_queue", "wait_queue")
_LOG = ("commit", "clear", "events", "turns", "started_calls", "turn_of_key")
_INBOX = ("post", "inbox", "withdraw", "ask_cancel")


class Afterwards(Exception):  # a word to the spy, never an error of a store
    """Raised by a hook: the call is carried out, and then fails with *error* all the same."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class SpyStores:
    """
    A wrapper around stores and their journal: counts, records, delays and fails.

    Args:
        stores: The wrapped stores; give `spy.stores` to an agent instead.

    Attributes:
        calls: Name and argument of each call, in order, such as `("commit", Commit(...))`.
        done: Names of the calls that the stores have carried out.
        hook: Called with name and argument before each call. It may raise (`Afterwards` lets the
            stores do it first), be a coroutine function, or return a value, which is then the
            answer instead of the stores' own.
    """

    def __init__(self, stores: Stores) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.done: list[str] = []
        self.hook: Any = None
        self.stores = Stores(
            _before(self, stores.messages, ("records", "recent", "list", "count")),
            _before(self, stores.artifacts, ("save", "load", "list")),
            _before(self, stores.state, (*_LEASE, *_LINE, "load", "save")),
            _before(self, stores.journal, (*_LOG, *_INBOX)),
            tenant=stores.tenant,
        )

    def of(self, *names: str) -> list[Any]:
        """The arguments of calls with these names."""
        return [argument for name, argument in self.calls if name in names]

    @property
    def writes(self) -> int:
        """Claims and commits that were made."""
        return sum(1 for name in self.done if name in ("claim", "commit"))


def _before(spy: SpyStores, inner: Any, names: Sequence[str]) -> Any:
    return _Proxy(spy, inner, names)


class _Proxy:
    outlasts = False  # a hook may wait for anything

    def __init__(self, spy: SpyStores, inner: Any, names: Sequence[str]) -> None:
        self._spy, self._inner, self._names = spy, inner, names

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if name not in self._names:
            return inner

        async def call(*args: Any, **options: Any) -> Any:
            argument = args[0] if len(args) == 1 and not options else (args, options)
            self._spy.calls.append((name, argument))
            late: Exception | None = None
            if self._spy.hook is not None:
                try:
                    made = self._spy.hook(name, argument)
                    if asyncio.iscoroutine(made):
                        made = await made
                except Afterwards as wish:
                    made, late = None, wish.error
                if made is not None:
                    return made
            value = await inner(*args, **options)
            self._spy.done.append(name)
            if late is not None:
                raise late
            return value

        return call
