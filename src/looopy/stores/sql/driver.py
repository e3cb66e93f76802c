"""
What separates the logic of the SQL stores from the way statements reach a database.

Each operation is a generator that yields `Query` and is sent the rows: it does no I/O and knows no
database. A driver runs a whole generator inside one transaction, so the logic is written once,
SQLite runs it as one function on the thread of its connection (one hop for a commit instead of one
for each statement), and a driver with a network in between may send the same statements in another
way.

The statements are text that both dialects read, with `:named` parameters; a driver may know another
one that asks and answers the same (`numbered.py`). One function is not
standard and is supplied by each driver: `now_us()`, the database's clock in microseconds since
1970. Where a row must be locked before it is looked at, a statement ends in `/* FOR UPDATE */`: a
comment where one transaction writes at a time, a clause elsewhere. One that may change any number
of rows ends in `/* MANY */`, so that no driver has it return something for each.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from looopy.errors import StoreUnavailable
from looopy.stores.bells import Bells

T = TypeVar("T")

Rows: TypeAlias = list[tuple[Any, ...]]


class Query(NamedTuple):
    """
    One statement. `params` holds at least the names that the text uses.

    `alone` says that the operation is this one statement: a read then needs no transaction.
    """

    sql: str
    params: Mapping[str, Any]
    alone: bool = False


Steps: TypeAlias = Generator[Query, Rows, T]
"""The logic of one operation: it yields statements, is sent their rows, and returns the answer."""


class Ring(NamedTuple):
    """Whom to ring for when a write is done: the listeners of a context; see `Bells.ring`."""

    tenant: str
    context_id: str
    inbox: bool


def may_have_written(error: BaseException | None) -> bool:
    """Whether a write that ended with *error* may have changed something."""
    return error is None or not getattr(error, "outcome_known", True)


def elsewhere(what: str) -> StoreUnavailable:
    """The refusal to use connections of one event loop in another; nothing was written."""
    return StoreUnavailable(
        f"{what} were opened in another event loop: use them there, or open them again in this one"
    )


class Driver(Protocol):
    """
    Runs operations, each in one transaction of its own or as part of a greater one.

    Attributes:
        bells: Rung for each write that names whom to ring for, and when another process or
            another driver has written. The same ones before `open` and after `close`.
    """

    bells: Bells

    async def open(self) -> None:
        """Connect; does nothing when connected, and may be called again after `close`."""
        ...

    async def run(
        self, work: Callable[[], Steps[T]], *, write: bool, ring: Ring | None = None
    ) -> T:
        """
        Run one operation and return its answer.

        Args:
            work: Makes the generator. It may be called again when a first try left nothing behind,
                and the generator be run on rows that are none, to see what it would ask: it has no
                effect but what it asks for and answers.
            write: Whether it may change rows; an operation that only reads sees one snapshot.
            ring: Whom to ring for once it was committed, here and in other processes, or may have
                been; also when nobody waits for the answer any more.

        Raises:
            StoreUnavailable: The database did not answer; `outcome_known` says whether nothing was
                written.
            StorageFull: The disk is full; nothing was written.
            LooopyError: What the operation itself raised; nothing was written.

        A write begins with the statement that locks the row of its context. Should a connection
        break, it is run again only when it is certain that nothing of it was written.

        When a write returns, it survives a killed process and a power cut. Cancelling the caller
        does not cancel the operation: it is carried out, and nobody hears of it.
        """
        ...

    async def close(self) -> None:
        """Finish what was asked for, then let everything go. May be called twice."""
        ...
