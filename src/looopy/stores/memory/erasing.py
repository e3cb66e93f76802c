"""Erasures in memory; see `looopy.stores.erasing`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from looopy.stores.erasing import Candidate, Erasures, Gone, counted
from looopy.stores.memory.context import MemoryStore, StoredContext
from looopy.stores.rules import busy


class InMemoryErasures(MemoryStore, Erasures):
    """See `ErasureRows`."""

    async def erase_rows(self, context_id: str, *, owner: str | None, force: bool) -> Gone | None:
        """Erase a context."""
        context = self._get(context_id)
        if context is None or (owner is not None and context.owner_actor != owner):
            return None
        if (turn := _running(context)) is not None and not force:
            raise busy(turn)
        del self.backend.contexts[self.tenant, context_id]
        self._ring(context_id, inbox=True)
        return Gone(
            counted(
                messages=len(context.messages),
                last_seq=context.last_seq,
                cleared_seq=context.cleared_seq,
                turns=context.turn_count,
                artifacts=len(context.artifacts),
                inbox=len(context.inbox),
                keys=len(context.keys),
            )
        )

    async def end_erasure(self, context_id: str, epoch: int) -> None:
        """Nothing: it is gone at once."""

    async def remove_blobs(self, names: Collection[str]) -> int:  # noqa: ARG002 - there are none
        """Nothing: parts lie in the context."""
        return 0

    async def owned_by(
        self, actor_id: str, *, after: str, limit: int
    ) -> tuple[list[Candidate], str | None]:
        """Look at some contexts."""
        theirs = sorted(c for t, c in self.backend.contexts if t == self.tenant and c > after)
        contexts = {name: self.backend.contexts[self.tenant, name] for name in theirs[:limit]}
        return [
            Candidate(name, _running(context), context.last_position + context.last_seq)
            for name, context in contexts.items()
            if context.owner_actor == actor_id
        ], theirs[limit - 1] if len(theirs) > limit else None

    async def scrub(self, *, keep_backups: bool) -> Sequence[Path]:  # noqa: ARG002 - as above
        """Nothing: there are no files."""
        return ()


def _running(context: StoredContext) -> int | None:
    return context.open_turn if context.lease_live else None
