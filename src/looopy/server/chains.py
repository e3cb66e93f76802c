"""Turns that belong together: one that continues another writes the same answer, for a UI."""

from __future__ import annotations

from looopy.stores.bundle import Stores
from looopy.stores.records import TurnRecord
from looopy.types.event import TurnStart
from looopy.types.message import UserMessage


async def record_of(stores: Stores, context_id: str, turn: int) -> TurnRecord | None:
    """The record of *turn*; `None` if there is no such turn."""
    found = await stores.journal.turns(context_id, after=turn - 1, limit=1)
    return found[0] if found and found[0].turn == turn else None


async def message_of(stores: Stores, context_id: str, turn: TurnRecord) -> UserMessage | None:
    """The user's message with which *turn* began; `None` if it continued, or was cleared."""
    found = await stores.journal.events(context_id, after=turn.start_seq - 1, limit=1)
    first = found[0] if found else None
    return first.user_message if isinstance(first, TurnStart) and first.turn == turn.turn else None


async def root_of(stores: Stores, context_id: str, turn: TurnRecord) -> TurnRecord:
    """The first of the turns that write one answer with *turn*: it began with a message."""
    while turn.continues is not None:
        if await message_of(stores, context_id, turn) is not None:
            break
        before = await record_of(stores, context_id, turn.continues)
        if before is None:
            break
        turn = before
    return turn


async def newest_with_root(
    stores: Stores, context_id: str, count: int
) -> tuple[TurnRecord | None, TurnRecord | None]:
    """The newest of *count* turns, and the first of those that write one answer with it."""
    newest = await record_of(stores, context_id, count)
    return newest, None if newest is None else await root_of(stores, context_id, newest)


async def last_of(stores: Stores, context_id: str, turn: TurnRecord) -> TurnRecord:
    """The last of the turns that write one answer with *turn*."""
    while (after := await record_of(stores, context_id, turn.turn + 1)) is not None:
        if after.continues is None or await message_of(stores, context_id, after) is not None:
            break
        turn = after
    return turn


async def begun_by(stores: Stores, context_id: str, position: int) -> TurnRecord | None:
    """The turn that the user's message at *position* began; `None` if it began none."""
    if position < 1:
        return None
    found = await stores.messages.records(context_id, after=position - 1, limit=1)
    if not found or found[0].position != position:
        return None
    turn = await record_of(stores, context_id, found[0].turn)
    if turn is None or await message_of(stores, context_id, turn) != found[0].message:
        return None
    return turn
