"""
The shares of a tenant and of an actor in the store: turns at once, and bytes.

Both are known from the store, so they count what every process on the database does. Turns that run
are looked up before each turn; within this process no two requests get the same place. Requests
that meet in different processes may each get the last one.

Bytes are counted now and then, in the background and page by page, because a sum of all rows would
cost more than the request that waits for it. So a tenant may go over its limit by what it stores
between two counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from time import monotonic

from looopy.errors import ConfigurationError, LooopyError
from looopy.server.gate.limits import Limits
from looopy.server.problems import Problem
from looopy.stores.base import ContextIndex
from looopy.stores.bundle import Stores

_logger = logging.getLogger("looopy")
_FIRST_S = 2.0  # how long a request waits for the first count of its tenant
_SHARE = 20  # a count rests so many times as long as it took
_PAGE = 32  # contexts that are measured in one transaction
_MOST_TENANTS = 10_000  # whose bytes are known; the others have not come for long


class Quotas:
    """
    The turns and bytes of tenants and actors.

    Args:
        limits: The limits of running turns and of stored bytes, and `count_bytes_s`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._beginning: dict[str, dict[object, tuple[str, str]]] = {}
        self._known: OrderedDict[str, _Bytes] = OrderedDict()

    @contextlib.asynccontextmanager
    async def turn(self, stores: Stores, actor_id: str, context_id: str) -> AsyncIterator[None]:
        """
        Hold a place for a turn that begins within the block.

        Raises:
            Problem: 429; all places of the tenant, or of the actor, are taken.
        """
        limits = self._limits
        bounds = (
            (limits.running_turns_per_tenant, None),
            (limits.running_turns_per_actor, actor_id),
        )
        if all(most is None for most, _ in bounds):
            yield
            return
        beginning, place = self._beginning.setdefault(stores.tenant, {}), object()
        before = list(beginning.values())  # they get their places first
        beginning[place] = (context_id, actor_id)
        try:
            for most, owner in bounds:
                if most is None:
                    continue
                found = set(await stores.contexts.running(owner=owner, limit=most + 1))
                found |= {name for name, actor in before if owner in (None, actor)}
                if len(found - {context_id}) >= most:
                    whose = "one tenant" if owner is None else "one actor"
                    raise limited(429, f"{most} turns at once are the limit of {whose}")
            yield
        finally:
            del beginning[place]
            if not beginning:
                self._beginning.pop(stores.tenant, None)

    async def space(self, stores: Stores, actor_id: str) -> None:
        """
        See if there is room for more.

        Raises:
            Problem: 429; the tenant, or the actor, has stored too much.
        """
        limits = self._limits
        if limits.stored_bytes_per_tenant is None and limits.stored_bytes_per_actor is None:
            return
        known = self._known.get(stores.tenant)
        if known is None:
            known = self._known[stores.tenant] = _Bytes(limits.count_bytes_s)
        self._known.move_to_end(stores.tenant)
        while len(self._known) > _MOST_TENANTS:
            self._known.popitem(last=False)
        by_owner = await known.of(stores.contexts)
        for most, found, whose in (
            (limits.stored_bytes_per_tenant, by_owner.total(), "tenant"),
            (limits.stored_bytes_per_actor, by_owner[actor_id], "actor"),
        ):
            if most is not None and found >= most:
                text = f"this {whose} has stored {found:,} bytes of {most:,}: erase some contexts"
                raise limited(429, text, after_s=known.next_s)

    def freed(self, tenant: str) -> None:
        """Note that something was erased: the next request has the bytes counted again."""
        if (known := self._known.get(tenant)) is not None:
            known.stale = True

    async def close(self) -> None:
        """Stop counting."""
        counts = [known.counting for known in self._known.values() if known.counting is not None]
        for counting in counts:
            counting.cancel()
        await asyncio.gather(*counts, return_exceptions=True)


class _Bytes:
    """
    The bytes of one tenant, by owner, as they were counted last.

    Attributes:
        counting: Counts them now, or `None`.
        stale: They are known to be fewer now.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._counted: Counter[str | None] | None = None
        self._due_at = 0.0
        self._unable: ConfigurationError | None = None
        self.counting: asyncio.Task[None] | None = None
        self.stale = False

    @property
    def next_s(self) -> float:
        """In how many seconds they are counted again."""
        return max(0.0, self._due_at - monotonic())

    async def of(self, index: ContextIndex) -> Counter[str | None]:
        """
        By owner; a count that is too old is repeated, and the old one is the answer.

        Raises:
            ConfigurationError: The stores do not count bytes.
        """
        wait = self._counted is None or self.stale
        if self.counting is None and (wait or monotonic() >= self._due_at):
            self.stale = False
            self.counting = asyncio.create_task(self._count(index))
        if wait and self.counting is not None:
            await asyncio.wait([self.counting], timeout=_FIRST_S)
        if self._unable is not None:
            raise self._unable
        return self._counted if self._counted is not None else Counter()

    async def _count(self, index: ContextIndex) -> None:
        began, after, found = monotonic(), "", Counter[str | None]()
        try:
            while page := await index.sizes(after=after, limit=_PAGE):
                for one in page:
                    found[one.owner] += one.bytes
                after = page[-1].context_id
                if len(page) < _PAGE:
                    break
            self._counted = found
        except ConfigurationError as error:
            self._unable = error
        except LooopyError as error:
            _logger.warning("the stored bytes of a tenant were not counted: %s", error)
        finally:
            now = monotonic()
            self._due_at = now + max(self._every_s, _SHARE * (now - began))
            self.counting = None


def limited(status: int, text: str, after_s: float = 1.0) -> Problem:
    """The problem of a caller who has enough, and when to come again."""
    return Problem(
        text,
        status=status,
        code="limit_exceeded",
        headers={"Retry-After": str(max(1, round(after_s)))},
    )
