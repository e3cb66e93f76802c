"""
Turns of an agent with `auto_save=False`: kept in memory, and stored together on request.

Saving claims the context under the epoch that was loaded. So a context that another process has
advanced raises a conflict and is not overwritten. Each turn is stored whole before the next. A
stored turn leaves the buffer at once, and an interrupted save continues where it stopped.

A turn that changed an artifact is claimed only if its changes still fit. If the artifact is changed
in the short time between the claim and the commit, the turn is half stored: the next save commits
the rest, or `abandon` leaves it to the next process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from looopy.agent.context import ContextView
from looopy.errors import ArtifactNotFound, Fenced, StoreConflict, StoreError
from looopy.stores.owner import Owner
from looopy.stores.records import (
    ArtifactChange,
    ArtifactDeletion,
    ArtifactMoved,
    ArtifactWrite,
    Claim,
    Claimed,
    Commit,
    ContextState,
)
from looopy.stores.shield import settle
from looopy.telemetry.process import process_name
from looopy.types.artifact import ArtifactStatus
from looopy.types.event import AgentEvent, ApprovalDecided, ArtifactUpdate, MessageEnd, TurnEnd
from looopy.types.message import AssistantMessage, Message


@dataclass(slots=True)
class BufferedTurn:
    """
    A turn that waits to be saved: the arguments of its claim, and its durable events (empty: not
    begun).

    `changes` of artifacts are one for each `ArtifactUpdate` among the events. `state` is the state
    after it, known at its end. `claimed` is set once the claim is made; until the rest is
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


async def save_turns(
    known: ContextView, turns: list[BufferedTurn], ttl_s: float, without: Collection[str] = ()
) -> None:
    """
    Store *turns*, oldest first; each leaves the list when it is stored. See `Agent.save_state`.

    Args:
        without: Artifacts whose changes are not stored.
    """
    owner, state = Owner.new(), known.stores.state
    known.stale = True
    tickets: list[int] = []
    await known.heads_read()
    try:
        if len(turns) > 1:  # else a new waiter could get in between two of them
            for turn in turns:
                if turn.claimed is None:
                    joining = state.join_wait_queue(known.context_id, owner.token(ttl_s), ttl_s)
                    tickets.append(await joining)
        while turns:
            await settle(_save_first(known, turns, owner, tickets, ttl_s, without))
    finally:
        owner.retire()  # from here on, a remaining place counts as a dead waiter's
        with contextlib.suppress(StoreError):
            for ticket in tickets:
                await state.leave_wait_queue(known.context_id, ticket)


def _is_of_claim(event: AgentEvent) -> bool:
    """True if an event that follows `turn_start` was made before the turn ran."""
    if isinstance(event, MessageEnd):
        return not isinstance(event.message, AssistantMessage)
    return isinstance(event, ApprovalDecided)


async def abandon(known: ContextView, turns: Sequence[BufferedTurn]) -> None:
    """Let others end the half-stored one of *turns* at once; it will not be saved."""
    if turns and (claimed := turns[0].claimed) is not None:
        with contextlib.suppress(StoreError):  # else they wait until the lease is over
            await known.stores.state.release(known.context_id, claimed.epoch)


async def _save_first(
    known: ContextView,
    turns: list[BufferedTurn],
    owner: Owner,
    tickets: list[int],
    ttl_s: float,
    without: Collection[str],
) -> None:
    """Store the oldest turn, and let it leave the list."""
    turn = turns[0]
    if not turn.events or not isinstance(turn.events[-1], TurnEnd):
        raise StoreConflict("a buffered turn has no end yet: let it end first")
    changes = [change for change in turn.changes if change.artifact_id not in without]
    start, *rest = (
        event
        for event in turn.events
        if not isinstance(event, ArtifactUpdate) or event.artifact_id not in without
    )
    updates = [event for event in rest if isinstance(event, ArtifactUpdate)]
    firsts: list[AgentEvent] = [start]
    while _is_of_claim(rest[0]):
        firsts.append(rest.pop(0))
    claimed = turn.claimed  # set by an earlier save that was interrupted
    if claimed is None:
        moved = await _moved(known, changes, updates)
        if moved is not None:
            raise _conflict(moved)
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
                process=process_name(),
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
                artifacts=tuple(changes),
                state=turn.state if len(turns) > 1 else known.state,  # its error may be cleared
                release=True,
            )
        )
    except Fenced as exc:
        raise StoreConflict("another process has ended the turn that was being saved") from exc
    except (ArtifactMoved, ArtifactNotFound) as exc:
        moved = await _moved(known, changes, updates)
        raise _conflict(moved or changes[0].artifact_id) from exc
    known.saved_epoch = claimed.epoch
    turns.pop(0)
    if not turns:
        known.staged = None


async def _moved(
    known: ContextView, changes: Sequence[ArtifactChange], updates: Sequence[ArtifactUpdate]
) -> str | None:
    """
    The first artifact to which the *changes* of a turn, reported by *updates*, no longer fit.

    The bytes of the others are held for the commit.
    """
    if known.staged is not None and (lost := await known.staged.renew(changes)) is not None:
        return lost
    newest: dict[str, tuple[int, bool, int] | None] = {}
    for change, update in zip(changes, updates, strict=True):
        name = change.artifact_id
        if name not in newest:
            newest[name] = await _newest(known, name)
        version, builds, size = newest[name] or (0, False, 0)
        if isinstance(change, ArtifactDeletion):
            if version != update.version:  # also where another writer has saved a version since
                return name
            newest[name] = None
            continue
        building = change.status is ArtifactStatus.BUILDING
        if isinstance(change, ArtifactWrite):
            size = len(change.raw) if change.size is None else change.size
            newest[name] = version + 1, building, size
        elif (version, builds, size) != (change.version, True, change.size_before):
            return name
        else:
            newest[name] = version, building, change.size
    return None


async def _newest(known: ContextView, artifact_id: str) -> tuple[int, bool, int] | None:
    """The newest stored version: its number, whether it is being built, and its size."""
    try:
        found = await known.stores.artifacts.get(known.context_id, artifact_id)
    except ArtifactNotFound:
        return None
    return found.version, found.status is ArtifactStatus.BUILDING, found.size


def _conflict(artifact_id: str) -> StoreConflict:
    return StoreConflict(
        f"artifact {artifact_id!r} was changed outside of this agent, or its parts have waited for"
        " more than a day, so the turn that changed it is not saved: `save_state(without="
        f"[{artifact_id!r}])` saves it without these changes, and `shutdown()` drops all that is"
        " not saved",
        artifact_id=artifact_id,
    )
