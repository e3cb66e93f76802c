"""Searching in memory: without an index, each message is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from looopy.stores.contexts.listing import FOR_EVER
from looopy.stores.contexts.log import is_little, off_loop
from looopy.stores.contexts.search import Place, Searcher, SearchHit, Wanted
from looopy.stores.memory.context import MemoryStore
from looopy.stores.memory.fork import shown_messages
from looopy.stores.memory.log import record_row
from looopy.stores.rows.meta import to_us
from looopy.stores.rows.reading import decode_records

_CHUNK = 32


class InMemorySearcher(MemoryStore, Searcher):
    """See `ContextIndex.search` for the contract."""

    async def _is_of(self, context_id: str, owner: str | None) -> bool:
        context = self._get(context_id)
        return context is not None and owner in (None, context.owner_actor)

    async def _contexts(self, owner: str | None, after: Place | None, most: int) -> list[Place]:
        behind = after or Place(FOR_EVER, "")
        found = (
            Place(to_us(context.last_activity), context_id)
            for (tenant, context_id), context in self.backend.contexts.items()
            if tenant == self.tenant and owner in (None, context.owner_actor)
        )
        return sorted((place for place in found if place < behind), reverse=True)[:most]

    async def _likely(self, context_ids: Sequence[str], wanted: Wanted) -> Iterable[str]:  # noqa: ARG002 - any may
        return context_ids

    async def _below(
        self, context_id: str, wanted: Wanted, before: int | None, most: int
    ) -> list[SearchHit]:
        context = self._get(context_id)
        kept = [] if context is None else shown_messages(context, 0)[::-1]
        if before is not None:
            kept = [one for one in kept if one.position < before]
        hits: list[SearchHit] = []
        for start in range(0, len(kept), _CHUNK):
            if len(hits) >= most:
                break
            # A part at a time: all of a long context would hold up the event loop.
            part = [record_row(one) for one in kept[start : start + _CHUNK]]
            found = map(list, [wanted.hits(context_id, decode_records(part))])
            little = is_little(len(kept), (row[4] for row in part))
            hits += await off_loop(found, little=little)
        return hits[:most]
