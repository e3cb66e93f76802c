"""`ContextIndex` in memory: every context is looked at, and the newest are sorted out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Unpack

from looopy.stores.base import ContextIndex
from looopy.stores.contexts.listing import (
    ContextSize,
    Lister,
    Listing,
    check_owner,
    check_tags,
    meets,
    new_tags,
)
from looopy.stores.contexts.log import check_page
from looopy.stores.contexts.search import Conditions, SearchPage
from looopy.stores.contexts.snapshot import ContextSnapshot, RestoredContext, exists_already
from looopy.stores.contexts.sub_contexts import InnerOf, check_link
from looopy.stores.memory.context import context_record
from looopy.stores.memory.erasing import InMemoryErasures, size_of
from looopy.stores.memory.log import read_log
from looopy.stores.memory.restore import restored_context, snapshot_of
from looopy.stores.records import ContextRecord
from looopy.stores.rows.meta import to_us
from looopy.stores.rules import fenced, no_context
from looopy.types.event import AgentEvent
from looopy.types.storable import check_after_name, check_limit


class InMemoryContextIndex(InMemoryErasures, Lister, ContextIndex):
    """See `ContextIndex` for the contract."""

    async def matching(self, wanted: Listing) -> Sequence[tuple[int, ContextRecord]]:
        all_of_them = (
            context_record(context_id, context)
            for (tenant, context_id), context in self.backend.contexts.items()
            if tenant == self.tenant
        )
        found = [(to_us(one.last_activity), one) for one in all_of_them if meets(one, wanted)]
        found.sort(key=lambda one: (one[0], one[1].context_id), reverse=True)
        return found[: wanted.limit + 1]

    async def running(self, *, owner: str | None = None, limit: int = 50) -> list[str]:
        check_owner(owner)
        check_limit(limit, optional=False)
        found = [
            context_id
            for (tenant, context_id), one in self.backend.contexts.items()
            if tenant == self.tenant
            and one.open_turn is not None
            and one.lease_live
            and owner in (None, one.owner_actor)
        ]
        return sorted(found)[:limit]

    async def sizes(self, *, after: str = "", limit: int = 32) -> list[ContextSize]:
        check_after_name(after)
        check_limit(limit, optional=False)
        contexts = self.backend.contexts
        names = sorted(name for tenant, name in contexts if tenant == self.tenant and name > after)
        found = ((name, contexts[self.tenant, name]) for name in names[:limit])
        return [ContextSize(name, one.owner_actor, size_of(one)) for name, one in found]

    async def search(self, query: str, **conditions: Unpack[Conditions]) -> SearchPage:
        from looopy.stores.memory.search import InMemorySearcher  # a turn needs none of it

        searcher = InMemorySearcher(self.backend, self.tenant)
        return await searcher.search(query, **conditions)

    async def tag(
        self, context_id: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> tuple[str, ...]:
        adds, removes = check_tags(add, "/add"), check_tags(remove, "/remove")
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        context.tags = new_tags(context.tags, adds, removes)
        self._ring(context_id)
        return context.tags

    async def enclose(
        self, context_id: str, *, outer: str, call: str, epoch: int | None = None
    ) -> str:
        check_link(context_id, outer, call)
        if epoch is not None:
            owner = self._get(outer)
            if owner is None or owner.epoch != epoch:
                raise fenced(outer)
        for name in await self.inner(outer, call=call):
            return name
        if self._get(context_id) is None:
            made = self.backend.make(self.tenant, context_id)
            if not self._inner(context_id):
                made.inner_of = InnerOf(outer, call)
        return context_id

    async def inner(self, context_id: str, *, call: str | None = None) -> list[str]:
        contexts = self.backend.contexts
        found = [(name, contexts[self.tenant, name].inner_of) for name in self._inner(context_id)]
        return [name for name, link in found if call is None or (link and link.call == call)]

    async def snapshot(self, context_id: str) -> ContextSnapshot:
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        return snapshot_of(context_id, context)

    async def log_page(
        self, context_id: str, *, after: int = 0, limit: int = 100, most_bytes: int = 2**20
    ) -> Sequence[AgentEvent]:
        check_page(after, limit, most_bytes)
        context = self._get(context_id)
        if context is None:
            return []
        start = max(after, context.cleared_seq - 1)
        return await read_log(context_id, context, start, limit, most_bytes)

    async def restore(self, contexts: Sequence[RestoredContext]) -> None:
        made = {}
        for one in contexts:
            context_id = one.record.context_id
            if self._get(context_id) is not None or context_id in made:
                raise exists_already(context_id)
            made[context_id] = await asyncio.to_thread(restored_context, one)
        for context_id in made:
            if self._get(context_id) is not None:
                raise exists_already(context_id)
        for context_id, context in made.items():
            self.backend.contexts[self.tenant, context_id] = context
            self._ring(context_id)
