"""`ContextIndex` on SQL: pages of one index, and the labels of a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from looopy.stores.base import ContextIndex
from looopy.stores.inner import InnerOf, check_link
from looopy.stores.listing import (
    ContextSize,
    Lister,
    Listing,
    check_owner,
    check_tags,
    facts,
    labels,
    new_tags,
)
from looopy.stores.log import check_page, events_of, off_loop, read_rows
from looopy.stores.records import ContextRecord
from looopy.stores.rows import events as rows
from looopy.stores.rules import fenced, no_context
from looopy.stores.search import Conditions, SearchPage
from looopy.stores.snapshot import ContextSnapshot, RestoredContext
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.erasing import SQLErasures
from looopy.stores.sql.head import peek
from looopy.stores.sql.inherited import all_versions
from looopy.stores.sql.journal import read_log
from looopy.stores.sql.restore import restore
from looopy.stores.sql.store import after_id, bounded, can_exist, one_step
from looopy.stores.sql.turns import context_record, stored_artifact, tags_column
from looopy.types.event import AgentEvent
from looopy.types.storable import check_after_name, check_limit, dump

_ARTIFACT_COLUMNS = 13
_AT_ONCE = 32  # contexts that are locked together
_MOST_UNINDEXED = 1_000  # contexts whose rows are read to find the turns that run


class SQLContextIndex(SQLErasures, Lister, ContextIndex):
    """See `ContextIndex` for the contract."""

    async def matching(self, wanted: Listing) -> Sequence[tuple[int, ContextRecord]]:
        read = await self._listed(wanted)
        return await read_rows(read, lambda row: (int(row[-1]), context_record(row[:-1])))

    async def _listed(self, wanted: Listing) -> Rows:
        await self._bring_up()
        query = Query(_walk(wanted), self._params(wanted), alone=True)
        return await self.backend.run(partial(one_step, query), write=False)

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
            **conditions,
        }

    async def running(self, *, owner: str | None = None, limit: int = 50) -> list[str]:
        check_owner(owner)
        check_limit(limit, optional=False)
        key: dict[str, Any] = {"tenant": self.tenant}
        if await self.backend.run(partial(_are_many_unindexed, key), write=False):
            await self._bring_up()
        query = Query(s.RUNNING, {**key, "actor": owner, "limit": bounded(limit)}, alone=True)
        found = await self.backend.run(partial(one_step, query), write=False)
        return [context_id for (context_id,) in found]

    async def sizes(self, *, after: str = "", limit: int = 32) -> list[ContextSize]:
        check_after_name(after)
        check_limit(limit, optional=False)
        key = {"tenant": self.tenant, "after_id": after_id(after), "limit": bounded(limit)}
        return await self.backend.run(partial(_sizes, key), write=False)

    async def search(self, query: str, **conditions: Unpack[Conditions]) -> SearchPage:
        from looopy.stores.sql.search import SQLSearcher  # a turn needs none of it

        searcher = SQLSearcher(self.backend, self.tenant, self._listed)
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

    async def _bring_up(self) -> None:
        """Bring the index up to date."""
        after: str | None = ""
        if await self.backend.run(partial(_is_indexed, {"tenant": self.tenant}), write=False):
            return
        while after is not None:
            work = partial(index_steps, {"tenant": self.tenant, "after_id": after})
            after = await self.backend.run(work, write=True)


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
    head = yield from peek(key)
    if head is not None and head.past is not None:
        versions = yield from all_versions(key, head)
    else:
        versions = [
            stored_artifact(row, newest=bool(row[_ARTIFACT_COLUMNS]))
            for row in (yield Query(s.LIST_ALL_VERSIONS, key))
        ]
    link = yield Query(s.OUTER_OF, key)
    return ContextSnapshot(
        inner_of=InnerOf(*link[0]) if link else None,
        record=context_record(found[0]),
        entries=[rows.decode_entry(*row[3:]) for row in waiting if row[3] is not None],
        artifacts=versions,
    )


def _walk(wanted: Listing) -> str:
    """The statement whose index leaves out most of the other contexts."""
    return s.FIND_DUE if wanted.due else s.FIND_ALL


def index_steps(key: Mapping[str, Any]) -> Steps[str | None]:
    """Index some contexts with an id over `after_id`; returns the last id, or `None` after all."""
    found = yield Query(s.UNINDEXED, {**key, "context": None, "limit": _AT_ONCE})
    for (context_id,) in found:
        params = {**key, "context": context_id}
        row = yield Query(s.TO_INDEX, params)
        if not row:  # it was deleted
            continue
        open_turn, owner, touched, waiting, state, metadata, tags = row[0]
        known = facts(
            open_turn=open_turn, waiting=waiting, state=rows.decode_state(state, context_id)
        )
        params |= {"touched": touched, **known._asdict()}
        yield Query(s.INDEX, params)
        named = rows.decode_object(metadata, f"the metadata of context {context_id}")
        of_it = labels(owner, known.status, tags_column(tags), named)
        yield from _index_labels(params, of_it)
        if open_turn is None:
            yield Query(s.INDEXED, params)
    return found[-1][0] if len(found) == _AT_ONCE else None


def _index_labels(params: Mapping[str, Any], wanted: set[str]) -> Steps[None]:
    found = {label for (label,) in (yield Query(s.LABELS, params))}
    for label in sorted(found - wanted):
        yield Query(s.DROP_LABEL, {**params, "label": label})
    yield Query(s.INDEX_LABELS, params)
    for label in sorted(wanted - found):
        yield Query(s.ADD_LABEL, {**params, "label": label})


def _sizes(key: Mapping[str, Any]) -> Steps[list[ContextSize]]:
    found = []
    for context_id, owner in (yield Query(s.OWNERS, key)):
        counts = yield Query(s.COUNT_CONTENT, {**key, "context": context_id})
        if counts:
            found.append(ContextSize(context_id, owner, int(counts[0][3])))
    return found


def _are_many_unindexed(key: Mapping[str, Any]) -> Steps[bool]:
    params = {**key, "most": _MOST_UNINDEXED}
    return bool((yield Query(s.ARE_MANY_UNINDEXED, params, alone=True)))


def _is_indexed(params: Mapping[str, Any]) -> Steps[bool]:
    return not (yield Query(s.IS_INDEXED, params, alone=True))
