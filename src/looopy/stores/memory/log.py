"""
The log of a context in memory: its rows, read back as the events that they were.

All of its parts are kept in the order of their numbers, so a page is found by halving, and costs
only its own length. The rows are taken between two awaits and decoded after that. No row ever
changes, and clearing a context replaces the lists.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from itertools import chain
from operator import attrgetter

from looopy.stores.contexts.log import (
    LogPage,
    MessageRow,
    RecordRow,
    StoredMessage,
    events_of,
    fitting,
    is_little,
    off_loop,
)
from looopy.stores.memory.context import StoredContext
from looopy.stores.records import TurnRecord
from looopy.types.event import AgentEvent

_seq = attrgetter("seq")


async def read_log(
    context_id: str,
    context: StoredContext,
    after: int,
    limit: int | None,
    most_bytes: int | None = None,
) -> list[AgentEvent]:
    """
    The events with a `seq` over *after*, by `seq`, at most *limit*: the rest is not decoded.

    Args:
        most_bytes: Only so many that their rows have about so many bytes; see `LogPage.brief`.
    """
    most = context.last_seq if limit is None else limit
    if not most:
        return []
    first = bisect_right(context.messages, after, key=_seq)
    messages = context.messages[first : first + most]
    first = bisect_right(context.events, after, key=_seq)
    events = context.events[first : first + most]
    upto, brief = sys.maxsize, most_bytes is not None
    if most_bytes is not None:
        fits = fitting((len(m.body.encode()) for m in messages), most_bytes)
        more = fitting((len(e.body.encode()) for e in events), most_bytes)
        ends = [rows[n - 1].seq for rows, n in ((messages, fits), (events, more)) if n < len(rows)]
        upto = min(ends, default=upto)
        messages, events = messages[:fits], events[:more]
    first = bisect_right(context.turns, after, key=_end)
    begun = context.user_positions
    turns = [(t, begun.get(t.turn)) for t in context.turns[first : first + most]]
    # And the messages that these refer to: of a turn that began before, or was continued.
    referred = [t.first_position for t, _ in turns] + [e.position or sys.maxsize for e in events]
    referred += [p for _, p in turns if p is not None] + [m.position for m in messages[:1]]
    lowest = max(min(referred, default=1), context.visible_from)
    kept = context.messages[lowest - context.visible_from :]

    def message_at(position: int) -> MessageRow | None:
        place = position - lowest
        return kept[place] if 0 <= place < len(kept) else None

    page = LogPage(after, most, messages, events, turns, message_at, upto, brief)
    bodies = chain((m.body for m in messages), (e.body for e in events))
    little = is_little(len(messages) + len(events), bodies)
    return (await off_loop(events_of(context_id, page), little=little))[:most]


def _end(turn: TurnRecord) -> int:
    """The number after which no event of *turn* follows."""
    return sys.maxsize if turn.end_seq is None else turn.end_seq


def record_row(m: StoredMessage) -> RecordRow:
    """The fields of a message that `read_records` wants."""
    return m.position, m.turn, m.iteration, m.seq, m.body
