"""
The inbox of a context on SQL: messages to a running turn, from any process.

The context's row counts the messages and names the turn that is to stop. So the commit of a step
gets the news from a statement that it runs anyway. A message is a row of its own, and leaves in the
commit that puts it into the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looopy.stores.records import INBOX_LIMIT, Entry, InboxHead
from looopy.stores.rows import events as rows
from looopy.stores.rules import check_post
from looopy.stores.sql import statements as s
from looopy.stores.sql.commit import peek
from looopy.stores.sql.driver import Query, Steps


def post_steps(params: Mapping[str, Any], expected_turn: int | None) -> Steps[int]:
    """Put a message into the inbox under the next number; see `Journal.post`."""
    while True:
        head = yield from peek(params, lock=True)
        turn = head.open_turn if head else None
        belongs_to = head.owner_actor if head else None
        if turn is not None:
            ((belongs_to,),) = yield Query(s.TURN_ACTOR, {**params, "turn": turn})
        waiting = head.inbox_waiting if head else 0
        if waiting >= INBOX_LIMIT:  # they may have several actors
            ((waiting,),) = yield Query(s.COUNT_ENTRIES, params)
        check_post(
            open_turn=turn,
            belongs_to=belongs_to,
            waiting=waiting,
            actor_id=params["actor"],
            expected_turn=expected_turn,
        )
        if head is not None:
            break
        yield Query(s.CREATE, params)
    ((number,),) = yield Query(s.POST, params)
    yield Query(s.ADD_ENTRY, {**params, "entry": number})
    return int(number)


def read_inbox(params: Mapping[str, Any]) -> Steps[tuple[InboxHead, list[Entry]]]:
    """The head and what waits, of one moment; see `Journal.inbox`."""
    found = yield Query(s.LIST_INBOX, params, alone=True)
    if not found:
        return InboxHead(), []
    last, waiting, cancel_turn = found[0][:3]
    head = InboxHead(last=last, waiting=waiting, cancel_turn=cancel_turn)
    return head, [rows.decode_entry(*row[3:]) for row in found if row[3] is not None]


def withdraw_steps(params: Mapping[str, Any]) -> Steps[int]:
    """Take messages of an actor out again; see `Journal.withdraw`."""
    if (yield from peek(params, lock=True)) is None:
        return 0
    taken = len((yield Query(s.WITHDRAW, params)))
    if taken:
        yield Query(s.WITHDRAWN, {**params, "taken": taken})
    return taken


def cancel_steps(params: Mapping[str, Any]) -> Steps[int | None]:
    """Ask the open turn to stop; see `Journal.ask_cancel`."""
    asked = yield Query(s.ASK_CANCEL, params)
    return int(asked[0][0]) if asked else None
