"""Turns that belong together: one that continues another writes the same answer, for a UI."""

from __future__ import annotations

import asyncio
import json

from looopy.stores.bundle import Stores
from looopy.stores.pages import Portion
from looopy.stores.records import TurnRecord
from looopy.types.event import TurnStart
from looopy.types.message import UserMessage
from looopy.types.message_json import message_to_json

_PAGE = 50


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
    """The newest of *count* turns, and the first turn that writes one answer with it."""
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


async def newest_part(
    stores: Stores, context_id: str, most: int, before: int | None = None
) -> TurnRecord | None:
    """
    The first turn of the newest ones whose messages have at most *most* bytes as JSON.

    It begins with a message. It may be the only one, however long.

    Args:
        before: Of those before this turn.

    Returns:
        `None` if all of them fit.
    """
    record = await stores.state.load(context_id)
    if record is None:
        return None
    end = None if before is None else await record_of(stores, context_id, before)
    below = record.last_position + 1 if end is None else end.first_position
    portion = Portion(_PAGE)
    while below > 1:
        after = max(0, below - 1 - portion.rows)
        page = await stores.messages.records(context_id, after=after, limit=below - 1 - after)
        found = [one for one in page if one.position < below]
        portion.took(len(found), (one.message for one in found))
        for one in reversed(found):
            most -= len(json.dumps(message_to_json(one.message), default=str))
            if most < 0:
                first = await _begins(stores, context_id, one.turn + 1, before)
                alone = first is not None and first.first_position <= record.visible_from
                return None if alone else first
            await asyncio.sleep(0)
        below = after + 1
    return None


async def _begins(
    stores: Stores, context_id: str, number: int, before: int | None
) -> TurnRecord | None:
    """The first turn from *number* on that begins with a message; else the last one that does."""
    while before is None or number < before:
        turn = await record_of(stores, context_id, number)
        if turn is None:
            break
        if await message_of(stores, context_id, turn) is not None:
            return turn
        number += 1
    last = await record_of(stores, context_id, number - 1)
    return None if last is None else await root_of(stores, context_id, last)
