"""The row of a context without what only its readers want, and the reading of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from looopy.stores.records import InboxHead
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Steps


class Head(NamedTuple):
    """The row of a context, without what only its readers want."""

    epoch: int
    open_turn: int | None
    lease_live: bool
    holder: str | None
    version: int
    turn_count: int
    last_position: int
    last_seq: int
    visible_from: int
    cleared_seq: int
    state: str
    owner_actor: str | None
    inbox_last: int
    inbox_waiting: int
    cancel_turn: int | None
    rewound: str | None

    @property
    def inbox(self) -> InboxHead:
        """The state of the inbox."""
        return inbox_head(self.inbox_last, self.inbox_waiting, self.cancel_turn)


def inbox_head(last: int, waiting: int, cancel_turn: int | None) -> InboxHead:
    """The state of the inbox from the last columns of a context's row."""
    return InboxHead(last=last, waiting=waiting, cancel_turn=cancel_turn)


def peek(key: Mapping[str, Any], *, lock: bool = False, hold: bool = False) -> Steps[Head | None]:
    """
    The row of a context, or `None`; *key* names tenant and context.

    Args:
        lock: Keep other writers out from here to the end of the transaction.
        hold: Keep those out alone that lock the row: turns continue.
    """
    found = yield Query(s.PEEK_LOCKED if lock else s.PEEK_HELD if hold else s.PEEK, key)
    return Head(*found[0]) if found else None
