"""Erasures on SQL; see `looopy.stores.erasing` for their order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from looopy.stores import rules as names
from looopy.stores.artifacts.parts import remove_unnamed
from looopy.stores.erasing import Candidate, Erasures, Gone, Terms, counted
from looopy.stores.log import read_rows
from looopy.stores.rows import events as rows
from looopy.stores.rules import busy
from looopy.stores.sql import statements as s
from looopy.stores.sql.artifacts import SQLArtifactRows
from looopy.stores.sql.commit import Head, peek
from looopy.stores.sql.driver import Query, Steps
from looopy.stores.sql.store import SQLStore, bounded, can_exist, one_step

_random = random.SystemRandom()


class SQLErasures(SQLStore, Erasures):
    """See `ErasureRows`."""

    async def erase_rows(self, context_id: str, terms: Terms) -> Gone | None:
        """Erase a context in one commit."""
        if not can_exist(context_id):
            return None
        has_blobs = self.backend.blobs is not None
        work = partial(erase_steps, self.params(context_id), terms, blobs=has_blobs)
        return await self.write(work, context_id, inbox=True)

    async def end_erasure(self, context_id: str, epoch: int) -> None:
        """Remove an empty context."""
        key = self.params(context_id, epoch=epoch)

        def work() -> Steps[None]:
            yield from peek(key, lock=True)
            yield Query(s.DELETE_EMPTY, key)
            yield Query(s.DROP_HIDDEN, key)  # if it was used since

        await self.write(work, context_id, inbox=True)

    async def remove_blobs(self, names: Collection[str]) -> int:
        """Remove those that no artifact has any more."""
        artifacts = SQLArtifactRows(self.backend, self.tenant)
        return await remove_unnamed(artifacts, self.tenant, self.backend.blobs, sorted(names))

    async def counts_of(self, context_id: str) -> Counter[str] | None:
        """How much of each kind there is."""
        key = self.params(context_id)

        def work() -> Steps[Counter[str] | None]:
            head = yield from peek(key)
            return None if head is None else (yield from _counts(key, head))

        return await self.backend.run(work, write=False)

    async def candidate(self, context_id: str) -> Candidate | None:
        """One context."""
        found = await self._ask(s.CANDIDATE, context_id)
        return _candidate(found[0]) if found else None

    async def candidates(self, *, after: str, limit: int) -> list[Candidate]:
        """Some contexts."""
        params = {"tenant": self.tenant, "after_id": after, "limit": bounded(limit)}
        query = Query(s.CANDIDATES, params, alone=True)
        found = await self.backend.run(partial(one_step, query), write=False)
        return await read_rows(found, _candidate)

    async def backups(self, *, remove: bool) -> Sequence[Path]:
        """The copies that migrations have left."""
        return await self.backend.backups(remove=remove)

    async def scrub(self) -> None:
        """Wait until no file holds what was deleted."""
        await self.backend.scrub()


def _candidate(row: Sequence[Any]) -> Candidate:
    context_id, owner, turn, live, touched, size, state = row
    waits = bool(rows.decode_state(state, context_id).pending)
    return Candidate(context_id, owner, turn if live else None, touched, size, waits)


def erase_steps(key: Mapping[str, Any], terms: Terms, *, blobs: bool) -> Steps[Gone | None]:
    """
    Erase a context.

    Args:
        blobs: True if its artifacts may have parts in a blob store. Then the context stays, empty,
            until these are removed.
    """
    head = yield from peek(key, lock=True)
    if head is None or terms.owner not in (None, head.owner_actor):
        return None
    if terms.touched is not None:
        ((_, _, touched, *_),) = yield Query(s.TO_INDEX, key)
        if touched != terms.touched:
            return None
    if head.open_turn is not None and head.lease_live and not terms.force:
        raise busy(head.open_turn)
    counts = yield from _counts(key, head)
    del counts["blobs"]  # others may share them
    named = (yield Query(s.LIST_BLOBS, key)) if blobs else ()
    if not named:
        yield Query(s.DELETE_CONTEXT, key)
        return Gone(counts)
    params = {**key, "offset": _random.randrange(2**32, 2**62), "birth": names.first_epoch()}
    for statement in s.CONTENT.values():
        yield Query(statement, params)
    ((epoch,),) = yield Query(s.EMPTY_CONTEXT, params)
    yield Query(s.UNINDEX, key)
    return Gone(counts, [name for (name,) in named], epoch)


def _counts(key: Mapping[str, Any], head: Head) -> Steps[Counter[str]]:
    ((artifacts, inbox, keys, blobs, size),) = yield Query(s.COUNT_CONTENT, key)
    return counted(
        messages=head.last_position - head.visible_from + 1,
        last_seq=head.last_seq,
        cleared_seq=head.cleared_seq,
        turns=head.turn_count,
        artifacts=artifacts,
        inbox=inbox,
        keys=keys,
        blobs=blobs,
        bytes=size,
    )
