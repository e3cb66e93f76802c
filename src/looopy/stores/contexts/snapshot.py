"""
A whole context on its way out of one store and into another.

`ContextIndex.snapshot` returns what of a context changes later; messages, events and turns of a
context do not, so a reader takes them page by page up to the numbers in its record.
`ContextIndex.restore` takes whole contexts as rows. `looopy.stores.archive` is a file in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from looopy.errors import StoreConflict
from looopy.stores.contexts.log import StoredEvent, StoredMessage
from looopy.stores.contexts.sub_contexts import InnerOf
from looopy.stores.records import ContextRecord, Entry, TurnRecord
from looopy.types.artifact import Artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSnapshot:
    """
    A context as it was at one moment, without its log and without contents.

    Attributes:
        entries: The messages in its inbox, in order. They are read at once, because one that a turn
            took between two pages would be in neither the inbox nor the log; an actor has at most
            `INBOX_LIMIT` (256) of them.
        artifacts: All versions of all artifacts, by id and version.
        inner_of: The call that the context works for; see `looopy.stores.contexts.sub_contexts`.
    """

    record: ContextRecord
    entries: Sequence[Entry] = ()
    artifacts: Sequence[Artifact] = ()
    inner_of: InnerOf | None = None


class RestoredTurn(NamedTuple):
    """A turn, and the position of the message that it began with."""

    record: TurnRecord
    user_position: int | None


class RestoredMessage(NamedTuple):
    """The row of a message, and the role in its body."""

    row: StoredMessage
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredVersion:
    """
    A version of an artifact.

    Attributes:
        content: Its bytes from a place on, in pieces of at most 1 MiB; may be called repeatedly.
    """

    artifact: Artifact
    content: Callable[[int], Iterator[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredContext:
    """
    A context to restore, checked: its numbers fit together.

    Attributes:
        record: Its `context_id` is the id that the context gets. A restored context has a new
            epoch, no lease and no line, so those fields are not read.
        turns: Makes an iterator of all turns, in order. All three may be called repeatedly, and
            from a thread.
        log: Makes an iterator of the rows of messages and of all other events that have rows, by
            `seq`.
        versions: Makes an iterator of the versions of artifacts, by id and version.
        entries: The messages in its inbox, in order; they may be read repeatedly as well.
        inner_of: The call that it works for. Its context is restored by the same call.
    """

    record: ContextRecord
    turns: Callable[[], Iterable[RestoredTurn]]
    log: Callable[[], Iterable[RestoredMessage | StoredEvent]]
    versions: Callable[[], Iterable[RestoredVersion]]
    entries: Collection[Entry] = ()
    inner_of: InnerOf | None = None


def exists_already(context_id: str) -> StoreConflict:
    """The error of every backend for restoring a context under an id that is taken."""
    return StoreConflict(
        f"there is a context {context_id!r} already: nothing was restored; use new ids, or delete"
        " it first"
    )
