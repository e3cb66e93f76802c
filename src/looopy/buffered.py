"""
Turns of an agent with `auto_save=False`: kept in memory, stored together when somebody asks for it.

Saving claims the context under the epoch that was loaded, so that a context which moved on is a
conflict and not an overwrite. Each turn is stored whole before the next; what is stored leaves the
buffer at once, and a saving that was interrupted goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from looopy.errors import Fenced, StoreConflict
from looopy.known import Known
from looopy.stores.base import Claim, Claimed, Commit
from looopy.stores.owner import Owner
from looopy.types.event import AgentEvent, MessageEnd, TurnEnd
from looopy.types.message import AssistantMessage


@dataclass(slots=True)
class BufferedTurn:
    """
    A turn that waits to be saved: what its claim says, and its durable events (none: not begun).

    `claimed` is set once the claim is made; until the rest is committed too, it is half stored.
    """

    actor_id: str | None
    had_auth: bool
    metadata: Mapping[str, Any]
    events: list[AgentEvent] = field(default_factory=list)
    claimed: Claimed | None = None


async def save_turns(known: Known, turns: list[BufferedTurn], ttl_s: float) -> None:
    """
    Store *turns*, oldest first; each leaves the list when it is stored.

    Raises:
        StoreConflict: Another process has advanced the context; what is not stored is kept.
    """
    epoch, held = known.saved_epoch, None
    owner = Owner.new()
    try:
        while turns:
            epoch = await _save_turn(known, turns[0], owner, epoch, held, ttl_s)
            held = owner.token()
            turns.pop(0)
    finally:
        owner.retire()
    known.stale = True


async def _save_turn(
    known: Known,
    turn: BufferedTurn,
    owner: Owner,
    epoch: int,
    held: str | None,
    ttl_s: float,
) -> int:
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
                holder=owner.token(),
                ttl_s=ttl_s,
                expected_epoch=epoch,
                displace=held,
                events=firsts,
                actor_id=turn.actor_id,
                had_auth=turn.had_auth,
                metadata=turn.metadata,
            )
        )
    try:
        await known.stores.commit(
            Commit(
                context_id=known.context_id,
                epoch=claimed.epoch,
                turn=claimed.turn,
                events=rest,
                state=known.state,
                release=True,
            )
        )
    except Fenced as exc:
        raise StoreConflict("another process has ended the turn that was being saved") from exc
    known.saved_epoch = claimed.epoch
    return claimed.epoch
