"""
Erasing contexts: the order of its steps, which every backend shares.

A context is erased in one commit, so nobody ever reads half of it. If it has blobs, that commit
leaves an empty context which still names them; they are removed, and then the context is. A process
that is killed on the way leaves such a context, and the next erasure of it ends the work.

Many contexts are erased a few at a time. Afterwards the log of the database is emptied, and the
copies that migrations have left are removed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from looopy._failpoints import reach
from looopy.errors import AgentBusy
from looopy.stores.records import Erased
from looopy.types.storable import check_name

_AT_ONCE = 32
_ROWS_AT_ONCE = 20_000
_PAGE = 500


class Gone(NamedTuple):
    """
    The content of a context that was erased.

    Attributes:
        counts: How much of each kind of `Erased`.
        blobs: Their names, to be removed next.
        epoch: Of the empty context that names them; `None` if the context is gone.
    """

    counts: Counter[str]
    blobs: Sequence[str] = ()
    epoch: int | None = None


class Candidate(NamedTuple):
    """
    A context that may be erased.

    Attributes:
        running: The turn that runs on it, or `None`.
        rows: About how many rows it has.
    """

    context_id: str
    running: int | None
    rows: int


def counted(
    *, messages: int, last_seq: int, cleared_seq: int, turns: int, **others: int
) -> Counter[str]:
    """The counts of a context; the log begins at the newest event that says that it was cleared."""
    events = last_seq - max(cleared_seq - 1, 0)
    return Counter(messages=messages, events=events, turns=turns, **others)


class ErasureRows(Protocol):
    """The rows of one tenant's contexts, which a backend supplies."""

    async def erase_rows(self, context_id: str, *, owner: str | None, force: bool) -> Gone | None:
        """
        Erase a context in one commit; `None` if there is none, or it has another owner.

        Raises:
            AgentBusy: A turn runs on it, and *force* is false.
        """
        ...

    async def end_erasure(self, context_id: str, epoch: int) -> None:
        """Remove an empty context whose blobs are gone, unless it was used since."""
        ...

    async def remove_blobs(self, names: Collection[str]) -> int:
        """Remove those blobs that no artifact has any more, and count them."""
        ...

    async def owned_by(
        self, actor_id: str, *, after: str, limit: int
    ) -> tuple[list[Candidate], str | None]:
        """
        Look at *limit* contexts with an id over *after*.

        Returns:
            Those that belong to *actor_id*, and the last id; `None` if there are no more.
        """
        ...

    async def scrub(self, *, keep_backups: bool) -> Sequence[Path]:
        """
        Wait until no file of the database holds what was deleted.

        Returns:
            The copies that migrations have left; removed, unless they are to be kept.

        Raises:
            StoreUnavailable: Something keeps the log from being emptied.
        """
        ...


class Erasures(ErasureRows):
    """The public methods; see `ContextIndex`. A backend adds those of `ErasureRows`."""

    async def erase(
        self,
        context_id: str,
        *,
        owner: str | None = None,
        force: bool = False,
        keep_backups: bool = False,
    ) -> Erased:
        """Erase a context."""
        if owner is not None:
            check_name(owner, "an owner", "/owner")
        counts: Counter[str] = Counter()
        gone = await _erase_some(self, [context_id], owner=owner, force=force, counts=counts)
        return await _report(self, gone, counts, keep_backups=keep_backups)

    async def erase_person(
        self, actor_id: str, *, force: bool = False, keep_backups: bool = False
    ) -> Erased:
        """Erase what belongs to a person."""
        check_name(actor_id, "a person", "/actor_id")
        found: list[Candidate] = []
        after: str | None = ""
        while after is not None:
            page, after = await self.owned_by(actor_id, after=after, limit=_PAGE)
            found += page
        running = [one for one in found if one.running is not None]
        if running and not force:
            first = running[0]
            raise AgentBusy(
                f"turn {first.running} of {first.context_id!r} is running, and {len(running) - 1}"
                " others of this person: nothing was erased; `force` ends them",
                turn=first.running,
            )
        counts: Counter[str] = Counter()
        gone: list[str] = []
        for names in batches(found):
            gone += await _erase_some(self, names, owner=actor_id, force=force, counts=counts)
        return await _report(self, gone, counts, keep_backups=keep_backups)


def batches(found: Sequence[Candidate]) -> Iterator[list[str]]:
    """The ids of *found*, as many at a time as are erased together."""
    names: list[str] = []
    rows = 0
    for one in found:
        if names and (len(names) == _AT_ONCE or rows + one.rows > _ROWS_AT_ONCE):
            yield names
            names, rows = [], 0
        names.append(one.context_id)
        rows += one.rows
    if names:
        yield names


async def _erase_some(
    rows: ErasureRows,
    names: Sequence[str],
    *,
    owner: str | None,
    force: bool,
    counts: Counter[str],
) -> list[str]:
    """Erase contexts at once, each in a commit of its own; the ids of those that there were."""
    # A driver makes several commits at once where that is cheaper.
    answers = await asyncio.gather(
        *(rows.erase_rows(name, owner=owner, force=force) for name in names),
        return_exceptions=True,
    )
    found = {
        name: gone for name, gone in zip(names, answers, strict=True) if isinstance(gone, Gone)
    }
    reach("E1")
    blobs = {blob for gone in found.values() for blob in gone.blobs}
    counts["blobs"] += await rows.remove_blobs(blobs)
    reach("E2")
    for name, gone in found.items():
        counts.update(gone.counts)
        if gone.epoch is not None:
            await rows.end_erasure(name, gone.epoch)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return list(found)


async def _report(
    rows: ErasureRows, gone: Sequence[str], counts: Counter[str], *, keep_backups: bool
) -> Erased:
    reach("E3")
    copies = [str(copy) for copy in await rows.scrub(keep_backups=keep_backups)]
    found: dict[str, Any] = {**counts, "context_ids": tuple(gone)}
    if keep_backups:
        return Erased(**found, backups_left=tuple(copies))
    return Erased(**found, backups=len(copies))
