"""
The boundary between the logic of the SQL stores and the way statements reach a database.

Each operation is a generator that yields `Query` and is sent the rows: it does no I/O and knows no
database. A driver runs a whole generator inside one transaction, so the logic is written once.
SQLite runs it as one function on the thread of its connection (one hop for a commit instead of one
for each statement); a driver with a network in between may send the same statements in another way.

The statements are text that both dialects read, with `:named` parameters; a driver may replace one
by another statement with the same parameters and answer (`sqlite/statements.py`). Each driver
supplies one non-standard function, `now_us()`: the database's clock in microseconds since 1970. A
statement that has to lock its row before reading it ends in `/* FOR UPDATE */`, or another lock: a
comment in a database with one writer at a time, a clause elsewhere. One that may change any number
of rows ends in `/* MANY */`, so that no driver makes it return something for each row.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from looopy.errors import StoreUnavailable
from looopy.stores.blobs.base import Blobs
from looopy.stores.notifier import Notifier

T = TypeVar("T")

Rows: TypeAlias = list[tuple[Any, ...]]


class Query(NamedTuple):
    """
    One statement. `params` holds at least the names that the text uses.

    `alone` means that the operation is this one statement: a read then needs no transaction.
    """

    sql: str
    params: Mapping[str, Any]
    alone: bool = False


Steps: TypeAlias = Generator[Query, Rows, T]
"""The logic of one operation: it yields statements, is sent their rows, and returns the answer."""


class Ring(NamedTuple):
    """
    Listeners to notify when a write is done; see `Notifier.notify`.

    Attributes:
        others: Contexts of the tenant that the same write has changed.
    """

    tenant: str
    context_id: str
    inbox: bool
    others: Sequence[str] = ()


def may_have_written(error: BaseException | None) -> bool:
    """True if a write that ended with *error* may have changed something."""
    return error is None or not getattr(error, "outcome_known", True)


def elsewhere(what: str) -> StoreUnavailable:
    """The refusal to use connections of one event loop in another; nothing was written."""
    return StoreUnavailable(
        f"{what} were opened in another event loop: use them there, or open them again in this one"
    )


def refuse_strangers(place: object, pid: int, loop: object) -> None:
    """Raise `StoreUnavailable` unless process *pid* and *loop*, which opened *place*, use it."""
    if pid != os.getpid():
        raise StoreUnavailable(
            f"the stores of {place} were opened before this process was forked:"
            " open them again in the child"
        )
    if asyncio.get_running_loop() is not loop:
        raise elsewhere(f"the stores of {place}")


class Driver(Protocol):
    """
    Runs operations, each in one transaction of its own or as part of a greater one.

    Attributes:
        notifier: It notifies for each write that passes `ring`, and when another process or another
            driver has written. The same object before `open` and after `close`.
        blobs: Takes the large parts of artifacts; `None`: the database does.
    """

    notifier: Notifier
    blobs: Blobs | None

    async def open(self) -> None:
        """Connect; does nothing when connected, and may be called again after `close`."""
        ...

    async def run(
        self,
        work: Callable[[], Steps[T]],
        *,
        write: bool,
        ring: Ring | None = None,
        removes: bool = False,
    ) -> T:
        """
        Run one operation and return its answer.

        Args:
            work: Makes the generator. It may be called again if a first try wrote nothing, and its
                generator may be run on symbols instead of rows to see its statements. So it must
                have no effect but its statements and its answer.
            write: True if it may change rows; an operation that only reads sees one snapshot.
            ring: The contexts to notify of, here and in other processes, once the write was
                committed or may have been; also after its caller was cancelled.
            removes: True for a write that removes data, and so makes room on a full disk.

        Raises:
            StoreUnavailable: The database did not answer; `outcome_known` is true if nothing was
                written.
            StorageFull: The disk is full; nothing was written.
            LooopyError: The operation's own error; nothing was written.

        A write begins with the statement that locks the row of its context. If a connection breaks,
        the driver runs it again only if it certainly wrote nothing.

        When a write returns, it survives a killed process and a power cut. Cancelling the caller
        does not cancel the operation: it is carried out, and its answer is dropped.
        """
        ...

    async def backups(self, *, remove: bool) -> Sequence[Path]:
        """
        The copies that migrations have left beside the database; *remove*: remove them.

        Raises:
            StoreUnavailable: One cannot be removed.
        """
        ...

    async def scrub(self) -> None:
        """
        Wait until what was deleted is in no file that this driver writes.

        Raises:
            StoreUnavailable: Another process keeps the log from being emptied.
        """
        ...

    async def close(self) -> None:
        """Finish the accepted operations, then release all connections. May be called twice."""
        ...
