"""
Reads the log of a context as it grows, in whatever process.

`follow` yields every durable event exactly once, in order, from any process. It also ends the turn
of a process that died, so that every accepted turn gets its last event. `watch_turn` makes a view
of one turn from it, such as the turn of an idempotency key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from looopy.agent.broadcast import Broadcast
from looopy.agent.context import ContextView
from looopy.agent.lease import left_in_s
from looopy.agent.result import Tally
from looopy.agent.state import error_of
from looopy.agent.wait_queue import watching
from looopy.errors import ContextNotFound, LooopyError
from looopy.loop.output import OutputType
from looopy.stores.bundle import Stores
from looopy.stores.pages import Portion, messages_in
from looopy.stores.records import ContextState, TurnRecord
from looopy.stores.rules import commits_lost
from looopy.tools.gather import ToolSource, gather_tools
from looopy.types.config import LoopConfig
from looopy.types.event import AgentEvent, HistoryCleared, TurnEnd
from looopy.types.message import StopReason
from looopy.types.result import TurnResult
from looopy.types.state import Outcome

_PAGE = 500
_SHOWN_S = 0.005  # after a notification, a turn of this process shows what it has just stored


async def follow(
    stores: Stores,
    context_id: str,
    after: int | Awaitable[int] | None,
    *,
    idle: Callable[[], bool],
    end_dead_turn: Callable[[], Awaitable[int]],
    longest_s: float,
    seen: Callable[[], int] | None = None,
) -> AsyncGenerator[AgentEvent, None]:
    """
    The durable events of a context: the stored ones, then new ones, from any process.

    Args:
        after: Start after this `seq`, such as the one that `ContextView.head` is reading; `None`
            for the head at the first iteration.
        idle: Returns true if no turn of this agent runs: then an open one may be a dead process's.
        end_dead_turn: Ends such a turn, and returns the newest `seq` before it.
        longest_s: The longest pause between two checks for such a turn.
        seen: Returns the newest `seq` that the caller has got from elsewhere: events up to that one
            are not read.

    Raises:
        ContextNotFound: The context was deleted, or *after* is beyond its head, so that no event
            would ever follow.
        CommitsLost: The store lacks the newest event that this has yielded, and has another one.
        StoreUnavailable: The store did not answer; continue after the last `seq`.
    """
    with watching(stores, context_id) as watch:
        if after is None:
            record = await stores.state.load(context_id)
            after = record.last_seq if record else 0
        elif not isinstance(after, int):
            after = await after
        clock = asyncio.get_running_loop().time
        look_at = clock()
        portion = Portion(_PAGE)
        last: AgentEvent | None = None
        while True:
            if idle() and clock() >= look_at:
                look_at = clock() + min(longest_s, watch.poll_s)
                if await end_dead_turn() < after:
                    raise ContextNotFound(
                        f"this context has no event {after}: it was deleted, or the number is"
                        " another's; follow it from 0 or from its head"
                    )
            if seen is not None:
                after = max(after, seen())
            again = last is not None and last.seq == after  # it may be another one by now
            found = await stores.journal.events(
                context_id, after=after - again, limit=portion.rows + again
            )
            if last is not None and again and found and found[0].seq == after:
                if (found[0].type, found[0].timestamp) != (last.type, last.timestamp):
                    raise commits_lost(context_id)
                del found[0]
            portion.took(len(found), messages_in(found))
            for event in found:
                after, last = event.seq or after, event
                yield event
            if not found:
                await watch.news(longest_s)
                if seen is not None:
                    await asyncio.sleep(_SHOWN_S)


async def end_dead_turn(
    known: ContextView, config: LoopConfig, sources: Sequence[ToolSource]
) -> int:
    """End the turn of a process that died, if there is one; return the newest `seq`."""
    state = known.stores.state
    record = await state.load(known.context_id)
    is_open = record is not None and record.open_turn is not None
    if record is not None and is_open and await left_in_s(state, record, config.lease_ttl_s) == 0:
        reading = ContextView(known.stores, known.context_id, config)
        await reading.refresh(await gather_tools(sources))
        known.stale = True
    return record.last_seq if record else 0


async def watch_turn(
    stores: Stores,
    context_id: str,
    turn: int,
    broadcast: Broadcast,
    events: Callable[[int], AsyncGenerator[AgentEvent, None]],
    output_type: OutputType | None,
) -> TurnResult:
    """
    Show the durable events of an accepted turn, to its end, and return its result.

    Args:
        events: Follows the log after a `seq`.
    """
    broadcast.accept(turn)
    record = await _record(stores, context_id, turn)
    tally = Tally()
    async with aclosing(events(record.start_seq - 1)) as log:
        async for event in log:
            if event.turn == turn and not isinstance(event, HistoryCleared):
                tally.see([event])
                broadcast.push(event)
                if isinstance(event, TurnEnd):
                    break
            else:
                record = await _record(stores, context_id, turn)
                if record.end_seq is not None and (event.seq or 0) > record.end_seq:
                    break  # cleared in the meantime: its own events are hidden
    return await _result(stores, context_id, turn, tally, output_type)


async def _record(stores: Stores, context_id: str, turn: int) -> TurnRecord:
    found = await stores.journal.turns(context_id, after=turn - 1, limit=1)
    if not found:
        raise LooopyError(f"turn {turn} is not there any more: its context was deleted")
    return found[0]


async def _result(
    stores: Stores, context_id: str, turn: int, tally: Tally, output_type: OutputType | None
) -> TurnResult:
    record = await _record(stores, context_id, turn)
    context = await stores.state.load(context_id)
    state = ContextState()  # unless the turn is the last one, its state is no longer stored
    if context is not None and context.turn_count == turn:
        state = context.state
    tally.artifacts = [a for a in await stores.artifacts.list(context_id) if a.turn == turn]
    name, text = state.error or ("LooopyError", "the turn failed")
    return tally.result(
        turn,
        record.outcome or Outcome.INTERRUPTED,
        record.stop_reason or StopReason.INTERRUPTED,
        usage=record.usage,
        pending=state.pending,
        error=error_of(name, tally.failure.text if tally.failure else text),
        output_type=output_type,
    )
