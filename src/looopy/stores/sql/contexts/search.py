"""
Searching on SQL: bring the index of words up to date, then read the messages that it proposes.

The index of a context is brought up to date in batches, each a read, work in a thread, and one
transaction. A batch is bounded by messages and by bytes, and its thread lets the event loop run
every few milliseconds; of several searches of one event loop, one makes words at a time. The
transaction writes only if the context is still the one that was read, and no other
search has added these messages: so two searches add each message once, and a killed one leaves
whole batches. No batch follows a clear or a delete that it has not seen, so it writes no word of a
message that is gone.

Where a batch cannot be written, on a standby or a full disk, the search reads the messages that the
index lacks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from looopy.errors import StoreError
from looopy.stores.contexts.listing import Listing
from looopy.stores.contexts.log import is_little, off_loop
from looopy.stores.contexts.search import Place, Searcher, SearchHit, Wanted, searched_text
from looopy.stores.contexts.words import UNITS_AT_ONCE, bounded_words, index_pieces
from looopy.stores.rows.reading import decode_records, read_message
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Driver, Query, Rows, Steps
from looopy.stores.sql.fork import shown_ranges
from looopy.stores.sql.store import NO_LIMIT, SQLStore, bounded, can_exist, one_step

_BATCH = 256  # messages that are added in one transaction
_BATCH_BYTES = 262_144  # of their rows; or one message that is longer
_CHUNK = 32  # messages that a thread takes at a time
_CHUNK_CHARACTERS = 16_384  # of rows of which it makes words at a time
_FIRST_REACH = 4_096  # positions that are searched at first; then four times as many
_PROPOSED = 64  # messages that are read at a time
_PLACES = 4_096  # places of messages that are looked for at once, after the first ones
_making: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class _Unread(NamedTuple):
    """
    The messages of a context that are not in its index: the next batch of their rows.

    Attributes:
        created_at, visible_from: As they were read. The context has others if it is another one of
            the same name, or was cleared.
        searched: Up to where the messages were added, as it is stored.
    """

    created_at: int
    visible_from: int
    searched: int
    rows: Rows


class SQLSearcher(SQLStore, Searcher):
    """
    See `ContextIndex.search` for the contract.

    Args:
        backend, tenant: See `SQLStore`.
        places: Reads the ids of the contexts of a listing, and their places in it.
    """

    def __init__(
        self, backend: Driver, tenant: str, places: Callable[[Listing], Awaitable[Rows]]
    ) -> None:
        super().__init__(backend, tenant)
        self._places = places
        self._writes = True  # false once the database has refused to

    async def _is_of(self, context_id: str, owner: str | None) -> bool:
        found = await self._ask(s.TO_SEARCH, context_id)
        return bool(found) and (owner is None or found[0][3] == owner)

    async def _contexts(self, owner: str | None, after: Place | None, most: int) -> list[Place]:
        listing = Listing(
            owner=owner,
            status=None,
            tags=(),
            metadata={},
            active_since=None,
            active_before=None,
            due=False,
            after=None,
            limit=most,
        )
        if after is not None:
            listing.begin_after(*after)
        found = await self._places(listing)
        return [Place(int(row[-1]), row[0]) for row in found[:most]]

    async def _likely(self, context_ids: Sequence[str], wanted: Wanted) -> Iterable[str]:
        if not context_ids:
            return ()
        names = json.dumps(context_ids)
        behind = await self._ask_of(s.NOT_SEARCHED, contexts=names)
        unread = {name for (name,) in behind if await self._add_all(name) < NO_LIMIT}
        words = _spans(wanted)
        rows = await self._ask_of(s.FIND_CONTEXTS, contexts=names, words=words)
        return unread.union(name for (name,) in rows)

    async def _ask_of(self, statement: str, **params: Any) -> Rows:
        query = Query(statement, {"tenant": self.tenant, **params}, alone=True)
        return await self.backend.run(partial(one_step, query), write=False)

    async def _below(
        self, context_id: str, wanted: Wanted, before: int | None, most: int
    ) -> list[SearchHit]:
        if not can_exist(context_id):
            return []
        indexed = await self._add_all(context_id)
        work = partial(shown_ranges, self.params(context_id))
        hits: list[SearchHit] = []
        for first, last in reversed(await self.backend.run(work, write=False)):
            end = last + 1 if before is None else min(before, last + 1)
            later = self._all(context_id, max(first, indexed + 1), end)
            earlier = self._found(context_id, wanted, first, min(end, indexed + 1), most)
            for part in (later, earlier):
                async for found in part:
                    hits += await self._hits(context_id, wanted, found)
                    if len(hits) >= most:
                        return hits[:most]
        return hits

    async def _all(self, context_id: str, first: int, end: int) -> AsyncIterator[Rows]:
        """All messages of a range, the newest first: none of them is in the index."""
        while end > first:
            after = max(first - 1, end - 1 - _PROPOSED)
            params = {"after": after, "limit": end - 1 - after}
            found = await self._ask_of(s.LIST_RANGE, context=context_id, **params)
            yield [row for row in reversed(found) if row[0] < end]
            end = after + 1

    async def _found(
        self, context_id: str, wanted: Wanted, first: int, end: int, most: int
    ) -> AsyncIterator[Rows]:
        """The messages that the index of a context proposes in a range, the newest first."""
        phrases = any(len(term.wanted) > 1 for term in wanted.terms)
        proposed = _PROPOSED if phrases else min(_PROPOSED, most)
        high, reached, limit = end, _FIRST_REACH, proposed
        while high > first:
            low = max(first, high - reached)
            found = await self._ask_of(
                s.FIND_WORDS,
                context=context_id,
                words=_spans(wanted),
                after=low - 1,
                before=high,
                limit=limit,
            )
            places = [int(position) for (position,) in found]
            for start in range(0, len(places), proposed):
                positions = json.dumps(places[start : start + proposed])
                yield await self._ask_of(s.LIST_AT, context=context_id, positions=positions)
            if len(places) == limit:
                high = places[-1]
            else:
                high, reached = low, reached * 4
            limit = _PLACES  # few messages are hits: look for many at once

    async def _hits(self, context_id: str, wanted: Wanted, found: Rows) -> list[SearchHit]:
        def part(start: int) -> list[SearchHit]:
            rows: Any = found[start : start + _CHUNK]
            return list(wanted.hits(context_id, decode_records(rows)))

        parts = map(part, range(0, len(found), _CHUNK))
        return await off_loop(parts, little=is_little(len(found), (row[4] for row in found)))

    # --- the index ---

    async def _add_all(self, context_id: str) -> int:
        """
        Bring the index of a context up to date, if the database takes writes.

        Returns:
            The position up to which the index has all messages; `NO_LIMIT`: it lacks none.
        """
        while True:
            read = partial(_read_unread, self.params(context_id))
            unread = await self.backend.run(read, write=False)
            if unread is None:
                return NO_LIMIT
            if self._writes:
                words = await _make_words(unread.rows)
                add = partial(_add, self.params(context_id), unread, f"[{','.join(words)}]")
                try:
                    await self.backend.run(add, write=True)
                    continue
                except StoreError:  # a standby, a full disk: the rest of this search only reads
                    self._writes = False
            return max(unread.searched, unread.visible_from - 1)


def _spans(wanted: Wanted) -> str:
    return json.dumps(wanted.spans, ensure_ascii=False)


async def _make_words(found: Rows) -> list[str]:
    if is_little(len(found), (row[4] for row in found)):
        return await off_loop(_words(found), little=True)
    # Several threads that compute would share the interpreter with the loop.
    async with _making.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await off_loop(_words(found), little=False, in_turns=True)


def _words(found: Rows) -> Iterator[list[str]]:
    """A JSON text for each message, a few milliseconds of work at a time."""
    done: list[str] = []
    taken = 0
    for row in found:
        text = searched_text(read_message(row[4], position=row[0]))
        words: set[str] = set()
        for piece in index_pieces(text):
            words |= piece
            if len(text) > UNITS_AT_ONCE:
                yield done
                done, taken = [], 0
        done.append(json.dumps([row[0], sorted(bounded_words(words))], ensure_ascii=False))
        taken += len(row[4])
        if taken >= _CHUNK_CHARACTERS:
            yield done
            done, taken = [], 0
    yield done


def _read_unread(key: dict[str, Any]) -> Steps[_Unread | None]:
    found = yield Query(s.TO_SEARCH, key)
    if not found:
        return None
    created_at, visible_from, last_position, _, searched = found[0]
    searched = searched or 0
    if last_position <= max(searched, visible_from - 1):
        return None
    after = max(searched, visible_from - 1)
    sizes = yield Query(s.LIST_SIZES, {**key, "after": after, "limit": _BATCH})
    rows = yield Query(s.LIST_RANGE, {**key, "after": after, "limit": _batch(sizes)})
    if not rows:
        return None
    return _Unread(created_at, visible_from, searched, rows)


def _batch(sizes: Rows) -> int:
    """How many of the messages with these sizes are added together."""
    before = accumulate((size for (size,) in sizes), initial=0)
    return sum(1 for _, size in zip(sizes, before, strict=False) if size < _BATCH_BYTES)


def _add(key: dict[str, Any], unread: _Unread, words: str) -> Steps[None]:
    """Add a batch, unless the context has changed in a way that makes it wrong."""
    last = int(unread.rows[-1][0])
    held = yield Query(s.HOLD_CONTEXT, key)
    if not held or held[0][:2] != (unread.created_at, unread.visible_from) or held[0][2] < last:
        return
    upto = {"upto": last, "after": bounded(unread.searched)}
    if (yield Query(s.RAISE_SEARCHED, {**key, **upto})):
        yield Query(s.ADD_WORDS, {**key, "words": words})
