"""The common base of one tenant's stores on one driver: their parameters and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from looopy.stores.rules import is_context_id
from looopy.stores.sql.driver import Driver, Query, Ring, Rows, Steps
from looopy.types.config import LONGEST_LEASE_S

T = TypeVar("T")

NO_LIMIT = 2**63 - 1
"""The largest number both dialects hold."""

can_exist = is_context_id


class SQLStore:
    """
    One of the stores of a tenant.

    Args:
        backend: Open while the store is used; shared with the other stores.
        tenant: The owner of these contexts.
    """

    outlasts = True  # only the driver is waited for, and it carries out what it was given

    def __init__(self, backend: Driver, tenant: str = "default") -> None:
        self.backend = backend
        self.tenant = tenant

    def params(self, context_id: str, **others: Any) -> dict[str, Any]:
        """Parameters of a statement about *context_id*."""
        return {"tenant": self.tenant, "context": context_id, **others}

    async def _ask(self, statement: str, context_id: str, **others: Any) -> Rows:
        """The rows of one statement that reads; none for an id that no context can have."""
        if not can_exist(context_id):
            return []
        query = Query(statement, self.params(context_id, **others), alone=True)
        return await self.backend.run(partial(one_step, query), write=False)

    async def _look(
        self, work: Callable[[Mapping[str, Any]], Steps[Rows]], context_id: str
    ) -> Rows:
        """The rows of an operation that reads; none for an id that no context can have."""
        if not can_exist(context_id):
            return []
        return await self.backend.run(partial(work, self.params(context_id)), write=False)

    def write(
        self,
        work: Callable[[], Steps[T]],
        context_id: str,
        *,
        inbox: bool = False,
        removes: bool = False,
    ) -> Coroutine[Any, Any, T]:
        """
        Run an operation that changes *context_id*, and notify its waiters after the commit.

        Args:
            inbox: True if only those should look who run a turn of the context, or wait to.
            removes: See `Driver.run`.
        """
        ring = Ring(self.tenant, context_id, inbox)
        return self.backend.run(work, write=True, ring=ring, removes=removes)


def one_step(query: Query) -> Steps[Rows]:
    """An operation of one statement: its rows."""
    return (yield query)


def bounded(value: int | None) -> int:
    """*value* within what both dialects hold; `None` means no limit."""
    if value is None:
        return NO_LIMIT
    return value if -NO_LIMIT <= value <= NO_LIMIT else max(-NO_LIMIT, min(value, NO_LIMIT))


def after_id(after: str) -> str:
    """
    A text that a database takes, after which the same ids sort as after *after*.

    Ids are ASCII letters and less: any other character sorts after them, also one that no database
    takes, as DEL does. A text with a leading NUL sorts as if the NUL were missing.
    """
    return "".join(c if c.isascii() else "\x7f" for c in after.partition("\0")[0])


def as_us(seconds: float) -> int:
    """The seconds of a lease as whole microseconds; no more than any lease lasts."""
    return bounded(int(min(seconds, LONGEST_LEASE_S) * 1_000_000))
