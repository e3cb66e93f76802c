"""
Turns of an agent with `auto_save=False`: kept in memory, and stored together on request.

Saving claims the context under the epoch that was loaded. So a context that another process has
advanced raises a conflict and is not overwritten. Each turn is stored whole before the next. A
stored turn leaves the buffer at once, and an interrupted save continues where it stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from looopy.agent.context import Known
from looopy.errors import ArtifactNotFound, Fenced, StoreConflict, StoreError
from looopy.stores.owner import Owner
from looopy.stores.records import (
    ArtifactChange,
    ArtifactMoved,
    Claim,
    Claimed,
    Commit,
    ContextState,
)
from looopy.stores.shield import settle
from looopy.types.event import AgentEvent, ApprovalDecided, MessageEnd, TurnEnd
from looopy.types.message import AssistantMessage, Message


@dataclass(slots=True)
class BufferedTurn:
    """
    A turn that waits to be saved: the arguments of its claim, and its durable events (empty: not
    begun).

    `changes` are those of artifacts, one for each `ArtifactUpdate` among the events. `state` is the
    state it leaves, known at its end. `claimed` is set once the claim is made; until the rest is
    committed too, the turn is half stored.
    """

    actor_id: str | None
    had_auth: bool
    metadata: Mapping[str, Any]
    events: list[AgentEvent] = field(default_factory=list)
    changes: list[ArtifactChange] = field(default_factory=list)
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
        StoreConflict: Another process has advanced the context; turns that are not stored are kept.
        AgentBusy: Another process uses the context, or waits for it; likewise.
    """
    owner, state = Owner.new(), known.stores.state
    known.stale = True
    tickets: list[int] = []
    await known.heads_read()
    try:
        if len(turns) > 1:  # else a new waiter could get in between two of them
            for turn in turns:
                if turn.claimed is None:
                    joining = state.join_line(known.context_id, owner.token(ttl_s), ttl_s)
                    tickets.append(await joining)
        while turns:
            await settle(_save_first(known, turns, owner, tickets, ttl_s))
    finally:
        owner.retire()  # from here on, a remaining place counts as a dead waiter's
        with contextlib.suppress(StoreError):
            for ticket in tickets:
                await state.leave_line(known.context_id, ticket)


def _is_of_claim(event: AgentEvent) -> bool:
    """True if an event that follows `turn_start` was made before the turn ran."""
    if isinstance(event, MessageEnd):
        return not isinstance(event.message, AssistantMessage)
    return isinstance(event, ApprovalDecided)


async def _save_first(
    known: Known, turns: list[BufferedTurn], owner: Owner, tickets: list[int], ttl_s: float
) -> None:
    """Store the oldest turn, and let it leave the list."""
    turn = turns[0]
    if not turn.events or not isinstance(turn.events[-1], TurnEnd):
        raise StoreConflict("a buffered turn has no end yet: let it end first")
    start, *rest = turn.events
    firsts: list[AgentEvent] = [start]
    while _is_of_claim(rest[0]):
        firsts.append(rest.pop(0))
    claimed = turn.claimed  # set by an earlier save that was interrupted
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
                artifacts=tuple(turn.changes),
                state=turn.state if len(turns) > 1 else known.state,  # its error may be cleared
                release=True,
            )
        )
    except Fenced as exc:
        raise StoreConflict("another process has ended the turn that was being saved") from exc
    except (ArtifactMoved, ArtifactNotFound) as exc:
        raise StoreConflict(
            "an artifact was changed outside of this agent, or its parts have waited half a day:"
            " the turn that changed it cannot be saved"
        ) from exc
    known.saved_epoch = claimed.epoch
    turns.pop(0)
    if not turns:
        known.staged = None
