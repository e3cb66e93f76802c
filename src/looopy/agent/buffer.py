"""
Turns of an agent with `auto_save=False`: kept in memory, stored together when somebody asks for it.

Saving claims the context under the epoch that was loaded, so that a context which moved on is a
conflict and not an overwrite. Each turn is stored whole before the next; what is stored leaves the
buffer at once, and a saving that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from looopy.agent.context import Known
from looopy.errors import Fenced, StoreConflict, StoreError
from looopy.stores.owner import Owner
from looopy.stores.records import Claim, Claimed, Commit, ContextState
from looopy.stores.settle import settle
from looopy.types.event import AgentEvent, MessageEnd, TurnEnd
from looopy.types.message import AssistantMessage, Message


@dataclass(slots=True)
class BufferedTurn:
    """
    A turn that waits to be saved: what its claim says, and its durable events (none: not begun).

    `state` is what it left behind, known at its end. `claimed` is set once the claim is made; until
    the rest is committed too, it is half stored.
    """

    actor_id: str | None
    had_auth: bool
    metadata: Mapping[str, Any]
    events: list[AgentEvent] = field(default_factory=list)
    state: ContextState | None = None
    claimed: Claimed | None = None


def buffered_messages(turns: Sequence[BufferedTurn], *, after: int) -> list[Message]:
    """The messages of *turns*, but for the first *after*, oldest first."""
    events = (event for turn in turns for event in turn.events)
    messages = [event.message for event in events if isinstance(event, MessageEnd)]
    return messages[max(0, after) :]


async def save_turns(known: Known, turns: list[BufferedTurn], ttl_s: float) -> None:
    """
    Store *turns*, oldest first; each leaves the list when it is stored.

    Raises:
        StoreConflict: Another process has advanced the context; what is not stored is kept.
        AgentBusy: One uses it, or waits for it; likewise.
    """
    owner, state = Owner.new(), known.stores.state
    known.stale = True
    tickets: list[int] = []
    await known.heads_read()
    try:
        if len(turns) > 1:  # or whoever begins to wait while one is stored comes in between
            for turn in turns:
                if turn.claimed is None:
                    joining = state.join_line(known.context_id, owner.token(ttl_s), ttl_s)
                    tickets.append(await joining)
        while turns:
            await settle(_save_first(known, turns, owner, tickets, ttl_s))
    finally:
        owner.retire()  # from here on, a place that is left over is a dead one's
        with contextlib.suppress(StoreError):
            for ticket in tickets:
                await state.leave_line(known.context_id, ticket)


async def _save_first(
    known: Known, turns: list[BufferedTurn], owner: Owner, tickets: list[int], ttl_s: float
) -> None:
    """Store the oldest turn, and let it leave the list."""
    turn = turns[0]
    if not turn.events or not isinstance(turn.events[-1], TurnEnd):
        raise StoreConflict("a buffered turn has no end yet: let it end first")
    start, *rest = turn.events
    firsts: list[AgentEvent] = [start]
    while isinstance(rest[0], MessageEnd) and not isinstance(rest[0].message, AssistantMessage):
        firsts.append(rest.pop(0))
    claimed = turn.claimed  # by a saving that got no further
    if claimed is None:
        claimed = turn.claimed = await known.stores.state.claim(
            Claim(
                context_id=known.context_id,
                holder=owner.token(ttl_s),
                ttl_s=ttl_s,
                expected_epoch=known.saved_epoch,
                ticket=tickets[0] if tickets else None,
                events=firsts,
                actor_id=turn.actor_id,
                had_auth=turn.had_auth,
                metadata=turn.metadata,
            )
        )
        del tickets[:1]
    try:
        await known.stores.commit(
            Commit(
                context_id=known.context_id,
                epoch=claimed.epoch,
                turn=claimed.turn,
                events=rest,
                state=turn.state if len(turns) > 1 else known.state,  # which may be forgiven
                release=True,
            )
        )
    except Fenced as exc:
        raise StoreConflict("another process has ended the turn that was being saved") from exc
    known.saved_epoch = claimed.epoch
    turns.pop(0)
