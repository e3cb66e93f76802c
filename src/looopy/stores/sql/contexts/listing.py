"""
`ContextIndex` on SQL: pages of one index, the contexts that it lacks, and the labels of a context.

A listing only reads. Contexts whose rows in the index are out of date have a mark (`UNINDEX`), and
the listing reads these contexts themselves: all with an open turn, and all that changed since
the index was made. Beside the listing, and at most once a second, a task brings the index up to
date for contexts without an open turn. It waits for no other write, and may fail or be cut short:
then the next listing reads these contexts once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack
from weakref import WeakKeyDictionary

from looopy.errors import StoreError
from looopy.stores.base import ContextIndex
from looopy.stores.contexts.listing import (
    ContextSize,
    Lister,
    Listing,
    check_owner,
    check_tags,
    facts,
    labels,
    meets,
    new_tags,
)
from looopy.stores.contexts.log import check_page, events_of, off_loop, read_rows
from looopy.stores.contexts.search import Conditions, SearchPage
from looopy.stores.contexts.snapshot import ContextSnapshot, RestoredContext
from looopy.stores.contexts.sub_contexts import InnerOf, check_link
from looopy.stores.records import ContextRecord
from looopy.stores.rows import events as rows
from looopy.stores.rules import fenced, no_context
from looopy.stores.sql import statements as s
from looopy.stores.sql.contexts.erasing import SQLErasures
from looopy.stores.sql.contexts.restore import restore
from looopy.stores.sql.driver import Driver, Query, Rows, Steps
from looopy.stores.sql.head import peek
from looopy.stores.sql.journal import read_log
from looopy.stores.sql.store import after_id, bounded, can_exist, one_step
from looopy.stores.sql.turns import context_record, stored_artifact, tags_column
from looopy.types.event import AgentEvent
from looopy.types.state import AgentStatus
from looopy.types.storable import check_after_name, check_limit, dump

_ARTIFACT_COLUMNS = 13
_AT_ONCE = 64  # contexts that are indexed together
_READ_AT_ONCE = 128  # marked contexts that are compared with a listing between two reads
_REST_S = 1.0  # between two tries to bring an index up to date
_TURN = len(s.CONTEXT_COLUMNS.split(", "))  # the column of the open turn
_resting: WeakKeyDictionary[Driver, set[str]] = WeakKeyDictionary()  # tenants, by driver


class _Listed(NamedTuple):
    """
    The rows of a listing: the columns of a context, then its place in the order.

    Attributes:
        lags: True if the index lacks a context that could be in it.
    """

    rows: Rows
    lags: bool


class SQLContextIndex(SQLErasures, Lister, ContextIndex):
    """See `ContextIndex` for the contract."""

    async def matching(self, wanted: Listing) -> Sequence[tuple[int, ContextRecord]]:
        found = await self._listed(wanted)
        return await read_rows(found, lambda row: (int(row[-1]), context_record(row)))

    async def _listed(self, wanted: Listing) -> Rows:
        found = await self.backend.run(partial(_find, wanted, self._params(wanted)), write=False)
        if found.lags:
            self._index_soon()
        return found.rows

    async def _places(self, wanted: Listing) -> Rows:
        """The ids of the contexts of a listing by owner, and their places, in order."""
        work = partial(_find_places, wanted, self._params(wanted))
        found = await self.backend.run(work, write=False)
        self._index_soon()
        return found

    def _params(self, wanted: Listing) -> dict[str, Any]:
        conditions: dict[str, Any] = {f"label{n}": None for n in range(1, 10)}
        conditions |= {f"label{n}": label for n, label in enumerate(wanted.labels) if n}
        return {
            "tenant": self.tenant,
            "label": wanted.labels[0],
            "status": wanted.status,
            "since": bounded(wanted.since),
            "until": bounded(wanted.until),
            "after_id": wanted.after_id,
            "limit": bounded(wanted.limit + 1),
            "actor": wanted.owner,
            "due": int(wanted.due),
            "needles": json.dumps(wanted.needles, ensure_ascii=False),
            **conditions,
        }

    async def running(self, *, owner: str | None = None, limit: int = 50) -> list[str]:
        check_owner(owner)
        check_limit(limit, optional=False)
        params = {"tenant": self.tenant, "actor": owner, "limit": bounded(limit)}
        query = Query(s.RUNNING, params, alone=True)
        found = await self.backend.run(partial(one_step, query), write=False)
        self._index_soon()  # the fewer marks, the fewer contexts are looked at
        return [context_id for (context_id,) in found]

    async def sizes(self, *, after: str = "", limit: int = 32) -> list[ContextSize]:
        check_after_name(after)
        check_limit(limit, optional=False)
        key = {"tenant": self.tenant, "after_id": after_id(after), "limit": bounded(limit)}
        return await self.backend.run(partial(_sizes, key), write=False)

    async def search(self, query: str, **conditions: Unpack[Conditions]) -> SearchPage:
        from looopy.stores.sql.contexts.search import SQLSearcher  # a turn needs none of it

        searcher = SQLSearcher(self.backend, self.tenant, self._places)
        return await searcher.search(query, **conditions)

    async def tag(
        self, context_id: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> tuple[str, ...]:
        adds, removes = check_tags(add, "/add"), check_tags(remove, "/remove")
        if not can_exist(context_id):
            raise no_context(context_id)
        key = self.params(context_id)

        def work() -> Steps[tuple[str, ...]]:
            found = yield Query(s.READ_TAGS, key)
            if not found:
                raise no_context(context_id)
            before = tags_column(found[0][0])
            after = new_tags(before, adds, removes)
            if after != before:
                yield Query(s.SAVE_TAGS, {**key, "tags": dump(list(after)) if after else None})
                yield Query(s.UNINDEX, key)
            return after

        return await self.write(work, context_id)

    async def enclose(
        self, context_id: str, *, outer: str, call: str, epoch: int | None = None
    ) -> str:
        check_link(context_id, outer, call)
        key = self.params(context_id, outer=outer, call=call)
        held = None if epoch is None else bounded(epoch)
        return await self.write(partial(_enclose_steps, key, held), context_id)

    async def inner(self, context_id: str, *, call: str | None = None) -> list[str]:
        if call is None:
            found = await self._ask(s.INNER_OF, context_id)
        else:
            found = await self._ask(s.INNER_FOR, context_id, outer=context_id, call=call)
        return [name for (name,) in found]

    async def snapshot(self, context_id: str) -> ContextSnapshot:
        if not can_exist(context_id):
            raise no_context(context_id)
        work = partial(_snapshot, self.params(context_id), context_id)
        return await self.backend.run(work, write=False)

    async def log_page(
        self, context_id: str, *, after: int = 0, limit: int = 100, most_bytes: int = 2**20
    ) -> Sequence[AgentEvent]:
        check_page(after, limit, most_bytes)
        if not can_exist(context_id):
            return []
        bounds = bounded(after), bounded(limit), most_bytes
        work = partial(read_log, self.params(context_id), *bounds)
        pages = await self.backend.run(work, write=False)
        parts = (part for page in pages for part in events_of(context_id, page))
        return (await off_loop(parts, little=False))[:limit]

    async def restore(self, contexts: Sequence[RestoredContext]) -> None:
        await restore(self.backend, self.tenant, contexts)

    def _index_soon(self) -> None:
        """Bring the index up to date beside the caller, unless that was tried a moment ago."""
        resting = _resting.setdefault(self.backend, set())
        if self.tenant not in resting:
            resting.add(self.tenant)
            task = asyncio.create_task(self._index())
            task.add_done_callback(partial(_rest, resting, self.tenant))

    async def _index(self) -> None:
        with contextlib.suppress(StoreError):  # a reader needs no index; the next one tries again
            await self.index()

    async def index(self) -> None:
        """Bring the index up to date for all contexts without an open turn that no write holds."""
        key, after = {"tenant": self.tenant}, ""
        while True:
            params = {**key, "after_id": after, "limit": _AT_ONCE}
            query = Query(s.TO_BE_INDEXED, params, alone=True)
            found = await self.backend.run(partial(one_step, query), write=False)
            if not found:
                return
            after = found[-1][0]
            names = [context_id for (context_id,) in found]
            await self.backend.run(partial(_index_steps, key, names), write=True)


def _rest(resting: set[str], tenant: str, task: asyncio.Task[None]) -> None:
    task.get_loop().call_later(_REST_S, resting.discard, tenant)


def _enclose_steps(key: Mapping[str, Any], epoch: int | None) -> Steps[str]:
    """Make a context that works for a call; see `ContextIndex.enclose`."""
    if epoch is not None:
        head = yield from peek({**key, "context": key["outer"]}, lock=True)
        if head is None or head.epoch != epoch:
            raise fenced(key["outer"])
    if not (found := (yield Query(s.INNER_FOR, key))):
        made = yield Query(s.MAKE_INNER, key)
        if made:
            yield Query(s.UNINDEX, key)
            # A context that others work for already could otherwise be inside of itself.
            if not (yield Query(s.INNER_OF, key)):
                yield Query(s.ADD_INNER, key)
        found = yield Query(s.INNER_FOR, key)
    return str(found[0][0]) if found else str(key["context"])


def _snapshot(key: Mapping[str, Any], context_id: str) -> Steps[ContextSnapshot]:
    """Read all of a context that may change; see `ContextIndex.snapshot`."""
    found = yield Query(s.LOAD_CONTEXT, key)
    if not found:
        raise no_context(context_id)
    waiting = yield Query(s.LIST_INBOX, {**key, "after": 0})
    versions = yield Query(s.LIST_ALL_VERSIONS, key)
    link = yield Query(s.OUTER_OF, key)
    return ContextSnapshot(
        inner_of=InnerOf(*link[0]) if link else None,
        record=context_record(found[0]),
        entries=[rows.decode_entry(*row[3:]) for row in waiting if row[3] is not None],
        artifacts=[stored_artifact(row, newest=bool(row[_ARTIFACT_COLUMNS])) for row in versions],
    )


def _walk(wanted: Listing) -> str:
    """The statement whose index leaves out most of the other contexts."""
    return s.FIND_DUE if wanted.due else s.FIND_ALL


def _find(wanted: Listing, params: Mapping[str, Any]) -> Steps[_Listed]:
    """The contexts of a listing, in the index or not, as of one moment."""
    most = wanted.limit + 1
    unindexed: list[tuple[Any, ...]] = []
    lags = False
    if wanted.needles or wanted.due or wanted.status not in (None, AgentStatus.BUSY):
        after: str | None = ""
        while after is not None:
            more = {"after_marked": after, "limit": _READ_AT_ONCE}
            found = yield Query(s.LIST_MARKED, {**params, **more})
            after = found[-1][0] if len(found) == _READ_AT_ONCE else None
            lags = lags or _lags(found)
            met = (row for row in found if meets(context_record(row), wanted, row[-2]))
            unindexed = _newest([*unindexed, *met], most)
    else:  # the columns of a row decide
        unindexed += yield Query(s.NEWEST_MARKED, params)
        lags = _lags(unindexed)
    indexed = yield Query(_walk(wanted), params)
    return _Listed(_newest([*unindexed, *indexed], most), lags)


def _find_places(wanted: Listing, params: Mapping[str, Any]) -> Steps[Rows]:
    marked = yield Query(s.MARKED_PLACES, params)
    indexed = yield Query(s.FIND_PLACES, params)
    return _newest([*marked, *indexed], wanted.limit + 1)


def _lags(found: Rows) -> bool:
    return any(row[_TURN] is None for row in found)


def _newest(found: Iterable[tuple[Any, ...]], most: int) -> list[tuple[Any, ...]]:
    return heapq.nlargest(most, found, key=lambda row: (row[-1], row[0]))


def _index_steps(key: Mapping[str, Any], names: Sequence[str]) -> Steps[None]:
    """Make the rows of the index of those contexts that no other write holds."""
    found = yield Query(s.TO_INDEX, {**key, "contexts": json.dumps(names)})
    entries: dict[tuple[str, str], tuple[str, int, int | None]] = {}
    for context_id, owner, touched, waiting, state, metadata, tags in found:
        state_of_it = rows.decode_state(state, context_id)
        known = facts(open_turn=None, waiting=waiting, state=state_of_it)
        named = rows.decode_object(metadata, f"the metadata of context {context_id}")
        for label in {"", *labels(owner, known.status, tags_column(tags), named)}:
            entries[context_id, label] = known.status, int(touched), known.due
    held = {**key, "contexts": json.dumps([row[0] for row in found])}
    for context_id, label in (yield Query(s.LABELS, held)):
        if (context_id, label) not in entries:
            yield Query(s.DROP_LABEL, {**key, "context": context_id, "label": label})
    rows_of_it = [[*place, *fact] for place, fact in sorted(entries.items())]
    yield Query(s.INDEX, {**key, "entries": json.dumps(rows_of_it, ensure_ascii=False)})
    yield Query(s.INDEXED, held)


def _sizes(key: Mapping[str, Any]) -> Steps[list[ContextSize]]:
    found = []
    for context_id, owner in (yield Query(s.OWNERS, key)):
        counts = yield Query(s.COUNT_CONTENT, {**key, "context": context_id})
        if counts:
            found.append(ContextSize(context_id, owner, int(counts[0][3])))
    return found
