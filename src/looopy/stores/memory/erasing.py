"""Erasures in memory; see `looopy.stores.erasing`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from looopy.stores.erasing import Candidate, Erasures, Gone, Terms, counted
from looopy.stores.memory.context import MemoryStore, StoredContext
from looopy.stores.rows.events import decode_state
from looopy.stores.rows.meta import to_us
from looopy.stores.rules import busy


class InMemoryErasures(MemoryStore, Erasures):
    """See `ErasureRows`."""

    async def erase_rows(self, context_id: str, terms: Terms) -> Gone | None:
        """Erase a context."""
        context = self._get(context_id)
        if context is None or terms.owner not in (None, context.owner_actor):
            return None
        if terms.touched not in (None, to_us(context.last_activity)):
            return None
        if (turn := _running(context)) is not None and not terms.force:
            raise busy(turn)
        del self.backend.contexts[self.tenant, context_id]
        self._ring(context_id, inbox=True)
        return Gone(_counts(context))

    async def end_erasure(self, context_id: str, epoch: int) -> None:
        """Nothing: it is gone at once."""

    async def remove_blobs(self, names: Collection[str]) -> int:  # noqa: ARG002 - there are none
        """Nothing: parts lie in the context."""
        return 0

    async def counts_of(self, context_id: str) -> Counter[str] | None:
        """How much of each kind there is."""
        context = self._get(context_id)
        return None if context is None else _counts(context)

    async def candidate(self, context_id: str) -> Candidate | None:
        """One context."""
        context = self._get(context_id)
        return None if context is None else _candidate(context_id, context)

    async def candidates(self, *, after: str, limit: int) -> list[Candidate]:
        """Some contexts."""
        theirs = sorted(c for t, c in self.backend.contexts if t == self.tenant and c > after)
        return [
            _candidate(name, self.backend.contexts[self.tenant, name]) for name in theirs[:limit]
        ]

    async def backups(self, *, remove: bool) -> Sequence[Path]:  # noqa: ARG002 - as above
        """None: there are no files."""
        return ()

    async def scrub(self) -> None:
        """Nothing, as above."""


def _running(context: StoredContext) -> int | None:
    return context.open_turn if context.lease_live else None


def _candidate(context_id: str, context: StoredContext) -> Candidate:
    return Candidate(
        context_id,
        context.owner_actor,
        _running(context),
        to_us(context.last_activity),
        context.last_position + context.last_seq,
        bool(decode_state(context.state, context_id).pending),
    )


def _counts(context: StoredContext) -> Counter[str]:
    versions = [one for found in context.artifacts.values() for one in found]
    said = [m.body for m in context.messages] + [e.body for e in context.events]
    return counted(
        messages=len(context.messages),
        last_seq=context.last_seq,
        cleared_seq=context.cleared_seq,
        turns=context.turn_count,
        artifacts=len(context.artifacts),
        inbox=len(context.inbox),
        keys=len(context.keys),
        bytes=sum(len(body.encode()) for body in said)
        + sum(one.artifact.size for one in versions),
    )
