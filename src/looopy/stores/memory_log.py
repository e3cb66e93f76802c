"""
The log of a context in memory: what it stored, read back as the events that said it.

All of its parts are kept in the order of their numbers, so a page is found by halving, and costs
what it holds, however long the log is.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from operator import attrgetter, itemgetter

from looopy.stores import rows
from looopy.stores.memory_context import StoredContext, StoredEvent, StoredMessage
from looopy.stores.reading import read_message
from looopy.stores.records import TurnRecord
from looopy.types.event import AgentEvent
from looopy.types.message import Message

_seq = attrgetter("seq")


def read_log(
    context_id: str, context: StoredContext, after: int, limit: int | None
) -> list[AgentEvent]:
    """The events with a `seq` over *after*, by `seq`, at most *limit*: the rest is not decoded."""
    most = context.last_seq if limit is None else limit
    first = bisect_right(context.messages, after, key=_seq)
    found: list[tuple[int, Callable[[], list[AgentEvent]]]] = [
        (m.seq, partial(_message_events, context_id, m))
        for m in context.messages[first : first + most]
    ]
    first = bisect_right(context.events, after, key=_seq)
    found += [
        (e.seq, partial(_event, context_id, context, e))
        for e in context.events[first : first + most]
    ]
    first = bisect_right(context.turns, after, key=_end)
    for turn in context.turns[first : first + most]:
        found.append((turn.start_seq, partial(_turn_start, context_id, context, turn)))
        if turn.end_seq is not None:
            found.append((turn.end_seq, partial(_turn_end, context_id, context, turn)))
    found.sort(key=itemgetter(0))
    events: list[AgentEvent] = []
    for seq, decode in found:
        if len(events) >= most:
            break
        if seq > after:  # else it began a turn that ends behind
            # A message may bring an event that is one number below its own.
            events += [e for e in decode() if e.seq is None or e.seq > after]
    return events[:most]


def _end(turn: TurnRecord) -> int:
    """The number behind which nothing of *turn* is told."""
    return sys.maxsize if turn.end_seq is None else turn.end_seq


def _message_events(context_id: str, m: StoredMessage) -> list[AgentEvent]:
    return rows.decode_message_events(
        context_id=context_id,
        turn=m.turn,
        position=m.position,
        seq=m.seq,
        iteration=m.iteration,
        created_us=m.created_us,
        body=m.body,
        meta=m.meta,
    )


def _event(context_id: str, context: StoredContext, e: StoredEvent) -> list[AgentEvent]:
    event = rows.decode_event(
        context_id=context_id,
        turn=e.turn,
        seq=e.seq,
        iteration=e.iteration,
        type=e.type,
        created_us=e.created_us,
        body=e.body,
        announced_by=None if e.position is None else _message_at(context, e.position),
    )
    return [event]


def _turn_start(context_id: str, context: StoredContext, turn: TurnRecord) -> list[AgentEvent]:
    position = context.user_positions.get(turn.turn)
    user = None if position is None else _message_at(context, position)
    return [rows.decode_turn_start(context_id, turn, user)]


def _turn_end(context_id: str, context: StoredContext, turn: TurnRecord) -> list[AgentEvent]:
    before = context.visible_from
    added = context.messages[turn.first_position - before : turn.last_position - before + 1]
    iteration = max((m.iteration for m in added), default=0)
    messages = [read_message(m.body, position=m.position) for m in added]
    return [rows.decode_turn_end(context_id, turn, iteration, messages)]


def _message_at(context: StoredContext, position: int) -> Message:
    return read_message(context.messages[position - context.visible_from].body, position=position)
