"""
The line of waiters for a context on SQL: places, each with the time until which it is kept.

The context's row has the latest of these times, so a claim reads the places only if the line may
have any. Each operation locks that row first, so the places that it then reads are not stale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from looopy.stores.records import Waiter
from looopy.stores.sql import statements as s
from looopy.stores.sql.commit import drop_place, peek
from looopy.stores.sql.driver import Query, Steps


def join_steps(params: Mapping[str, Any]) -> Steps[int]:
    """Take a place at the end, and drop the expired ones; see `StateStore.join_line`."""
    while not (taken := (yield Query(s.TAKE_TICKET, params))):
        yield Query(s.CREATE, params)
    ticket = int(taken[0][0])
    yield Query(s.DROP_DEAD_PLACES, params)
    yield Query(s.ADD_PLACE, {**params, "ticket": ticket})
    yield Query(s.MEASURE_LINE, params)
    return ticket


def keep_steps(params: Mapping[str, Any]) -> Steps[bool]:
    """Keep a place for longer; see `StateStore.keep_place`."""
    yield from peek(params, lock=True)
    if not (yield Query(s.KEEP_PLACE, params)):
        return False
    yield Query(s.MEASURE_LINE, params)
    return True


def leave_steps(params: Mapping[str, Any]) -> Steps[None]:
    """Give a place up; see `StateStore.leave_line`."""
    yield from peek(params, lock=True)
    yield from drop_place(params)


def read_line(params: Mapping[str, Any]) -> Steps[Sequence[Waiter]]:
    """The waiters, by ticket; see `StateStore.line`."""
    found = yield Query(s.LIST_LINE, params, alone=True)
    return [Waiter(ticket=t, holder=holder, alive=bool(alive)) for t, holder, alive in found]
