"""Erasures on SQL; see `looopy.stores.erasing` for their order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from looopy.stores import rules as names
from looopy.stores.artifacts.parts import remove_unnamed
from looopy.stores.erasing import Candidate, Erasures, Gone, counted
from looopy.stores.rules import busy
from looopy.stores.sql import statements as s
from looopy.stores.sql.artifacts import SQLArtifactRows
from looopy.stores.sql.commit import Head, peek
from looopy.stores.sql.driver import Query, Steps
from looopy.stores.sql.store import SQLStore, bounded, can_exist, one_step

_random = random.SystemRandom()


class SQLErasures(SQLStore, Erasures):
    """See `ErasureRows`."""

    async def erase_rows(self, context_id: str, *, owner: str | None, force: bool) -> Gone | None:
        """Erase a context in one commit."""
        if not can_exist(context_id):
            return None
        key = self.params(context_id)
        work = partial(
            erase_steps, key, owner=owner, force=force, blobs=self.backend.blobs is not None
        )
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
        rows = SQLArtifactRows(self.backend, self.tenant)
        return await remove_unnamed(rows, self.tenant, self.backend.blobs, sorted(names))

    async def owned_by(
        self, actor_id: str, *, after: str, limit: int
    ) -> tuple[list[Candidate], str | None]:
        """Look at some contexts."""
        params = {
            "tenant": self.tenant,
            "actor": actor_id,
            "after_id": after,
            "limit": bounded(limit),
        }
        query = Query(s.PEOPLE, params, alone=True)
        found = await self.backend.run(partial(one_step, query), write=False)
        last = found[-1][0] if len(found) == limit else None
        return [
            Candidate(context_id, turn if live else None, rows)
            for context_id, owns, turn, live, rows in found
            if owns
        ], last

    async def scrub(self, *, keep_backups: bool) -> Sequence[Path]:
        """Wait until no file holds what was deleted."""
        return await self.backend.scrub(keep_backups=keep_backups)


def erase_steps(
    key: Mapping[str, object], *, owner: str | None, force: bool, blobs: bool
) -> Steps[Gone | None]:
    """
    Erase a context.

    Args:
        blobs: True if its artifacts may have parts in a blob store. Then the context stays, empty,
            until these are removed.
    """
    head = yield from peek(key, lock=True)
    if head is None or (owner is not None and head.owner_actor != owner):
        return None
    if head.open_turn is not None and head.lease_live and not force:
        raise busy(head.open_turn)
    ((artifacts, inbox, keys),) = yield Query(s.COUNT_CONTENT, key)
    counts = _counts(head, artifacts, inbox, keys)
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


def _counts(head: Head, artifacts: int, inbox: int, keys: int) -> Counter[str]:
    return counted(
        messages=head.last_position - head.visible_from + 1,
        last_seq=head.last_seq,
        cleared_seq=head.cleared_seq,
        turns=head.turn_count,
        artifacts=artifacts,
        inbox=inbox,
        keys=keys,
    )
