"""
All stores in dictionaries: the specification by example.

Every other backend behaves like this one, errors and order included; only durability differs
(nothing survives the process). Bodies are kept as the text that a database would keep, so what
cannot be stored elsewhere is refused here too. Every method does its work between two awaits, so
each is atomic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from looopy.errors import (
    AgentBusy,
    ArtifactNotFound,
    StoreConflict,
    StoreUnavailable,
)
from looopy.stores import rows
from looopy.stores.base import (
    ArtifactWrite,
    Claim,
    Claimed,
    Commit,
    Committed,
    ContextRecord,
    ContextState,
    MessageRecord,
    TurnRecord,
)
from looopy.stores.gate import dump
from looopy.stores.names import (
    artifact_write,
    busy_message,
    check_context_id,
    fenced,
    made_artifact,
    no_context,
)
from looopy.stores.stores import Stores
from looopy.types.artifact import Artifact, ArtifactKind
from looopy.types.event import AgentEvent, HistoryCleared, utc_now
from looopy.types.message import Message, StopReason
from looopy.types.state import Outcome


@dataclass(slots=True)
class _Message:
    position: int
    turn: int
    iteration: int
    seq: int
    created_us: int
    body: str
    meta: str | None


@dataclass(slots=True)
class _Event:
    seq: int
    turn: int
    iteration: int
    type: str
    created_us: int
    position: int | None
    body: str


@dataclass(slots=True)
class _Context:
    created_at: datetime
    last_activity: datetime
    epoch: int = 0
    turn_count: int = 0
    last_seq: int = 0
    visible_from: int = 1
    cleared_seq: int = 0
    open_turn: int | None = None
    holder: str | None = None
    lease_until: float = 0.0
    owner_actor: str | None = None
    state: str = "{}"
    metadata: str = "{}"
    version: int = 0
    messages: list[_Message] = field(default_factory=list)
    events: list[_Event] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    user_positions: dict[int, int] = field(default_factory=dict)
    artifacts: dict[str, list[tuple[Artifact, str | bytes]]] = field(default_factory=dict)

    @property
    def last_position(self) -> int:
        return len(self.messages)

    @property
    def lease_live(self) -> bool:
        return self.holder is not None and time.monotonic() < self.lease_until


class MemoryBackend:
    """The contexts of all tenants; shared by the stores that are made on it."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str, str], _Context] = {}
        self._closed = False

    def stores(self, tenant: str = "default") -> Stores:
        """The stores of one tenant."""
        return Stores(
            InMemoryMessageStore(self, tenant),
            InMemoryArtifactStore(self, tenant),
            InMemoryStateStore(self, tenant),
            InMemoryJournal(self, tenant),
            tenant=tenant,
            lifetime=self,
            bind=self.stores,
        )

    async def open(self) -> None:
        """Allow use, again or for the first time; what was kept is still there."""
        self._closed = False

    async def close(self) -> None:
        """Refuse use from now on, as a closed database does."""
        self._closed = True

    @property
    def contexts(self) -> dict[tuple[str, str], _Context]:
        """All contexts by tenant and id."""
        if self._closed:
            raise StoreUnavailable("these stores are closed: open them again with `async with`")
        return self._contexts

    def get(self, tenant: str, context_id: str) -> _Context | None:
        """The context, or `None`."""
        return self.contexts.get((tenant, context_id))

    def make(self, tenant: str, context_id: str) -> _Context:
        """The context, created on first use."""
        check_context_id(context_id)
        found = self.contexts.get((tenant, context_id))
        if found is None:
            now = utc_now()
            found = self.contexts[tenant, context_id] = _Context(now, now)
        return found


class _Store:
    def __init__(self, backend: MemoryBackend | None = None, tenant: str = "default") -> None:
        self.backend = backend or MemoryBackend()
        self.tenant = tenant

    def _get(self, context_id: str) -> _Context | None:
        return self.backend.get(self.tenant, context_id)


class InMemoryMessageStore(_Store):
    """`MessageStore` in a list; see there for the contract."""

    async def append(self, context_id: str, messages: Sequence[Message]) -> int:
        """Add messages to the end."""
        check_context_id(context_id)
        encoded = rows.message_rows(messages)
        found = self._get(context_id)
        if not messages:
            return found.last_position if found else 0
        if found is not None and found.open_turn is not None:
            raise AgentBusy(busy_message(found.open_turn), turn=found.open_turn)
        context = self.backend.make(self.tenant, context_id)
        _insert_messages(context, encoded, context.turn_count)
        context.epoch += 1
        context.last_seq += encoded.seqs
        context.last_activity = utc_now()
        return context.last_position

    async def records(
        self,
        context_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        include_hidden: bool = False,  # noqa: ARG002 - nothing else is hidden yet
    ) -> list[MessageRecord]:
        """Messages with their places."""
        context = self._get(context_id)
        if context is None:
            return []
        start = max(after, context.visible_from - 1, 0)
        stop = None if limit is None else start + limit
        return [_record(m) for m in context.messages[start:stop]]

    async def recent(self, context_id: str, *, limit: int) -> list[MessageRecord]:
        """The newest visible messages, oldest first."""
        context = self._get(context_id)
        if context is None:
            return []
        start = max(context.visible_from - 1, context.last_position - limit)
        return [_record(m) for m in context.messages[start:]]

    async def count(self, context_id: str, *, include_hidden: bool = False) -> int:  # noqa: ARG002 - as above
        """How many visible messages there are."""
        context = self._get(context_id)
        return 0 if context is None else context.last_position - context.visible_from + 1

    async def list(
        self,
        context_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        include_hidden: bool = False,
    ) -> list[Message]:
        """Messages over *after*, oldest first."""
        found = await self.records(
            context_id, after=after, limit=limit, include_hidden=include_hidden
        )
        return [r.message for r in found]


class InMemoryArtifactStore(_Store):
    """`ArtifactStore` in a dictionary; see there for the contract."""

    async def save(
        self,
        context_id: str,
        artifact_id: str,
        content: bytes | str | Mapping[str, Any],
        *,
        kind: ArtifactKind | str | None = None,
        media_type: str | None = None,
    ) -> Artifact:
        """Save the next version."""
        check_context_id(context_id)
        write = artifact_write(artifact_id, content, kind, media_type)
        return _save_artifact(self.backend.make(self.tenant, context_id), write)

    async def load(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> bytes | dict[str, Any]:
        """Load a version, the newest by default."""
        context = self._get(context_id)
        for artifact, stored in reversed(context.artifacts.get(artifact_id, ()) if context else ()):
            if version is None or artifact.version == version:
                return json.loads(stored) if isinstance(stored, str) else stored
        raise _no_artifact(artifact_id, version)

    async def list(self, context_id: str) -> list[Artifact]:
        """The newest version of each."""
        context = self._get(context_id)
        if context is None:
            return []
        return [context.artifacts[name][-1][0] for name in sorted(context.artifacts)]

    async def delete(self, context_id: str, artifact_id: str) -> None:
        """Remove all versions."""
        context = self._get(context_id)
        if context is None or context.artifacts.pop(artifact_id, None) is None:
            raise _no_artifact(artifact_id, None)


class InMemoryStateStore(_Store):
    """`StateStore` in a dictionary; see there for the contract."""

    def make_journal(self) -> InMemoryJournal:
        """The journal that goes with this store."""
        return InMemoryJournal(self.backend, self.tenant)

    async def load(self, context_id: str) -> ContextRecord | None:
        """The context, or `None`."""
        context = self._get(context_id)
        return None if context is None else _context_record(context_id, context)

    async def save(self, context_id: str, metadata: Mapping[str, Any], *, version: int) -> int:
        """Replace the metadata."""
        check_context_id(context_id)
        text = dump(dict(metadata), "/metadata")
        found = self._get(context_id)
        actual = found.version if found else 0
        if actual != version:
            raise StoreConflict(
                "another writer has changed the metadata: load it again",
                expected=version,
                actual=actual,
            )
        context = self.backend.make(self.tenant, context_id)
        context.metadata = text
        context.version += 1
        return context.version

    async def list(self, *, after: str = "", limit: int = 100) -> list[ContextRecord]:
        """Contexts by id."""
        names = sorted(c for t, c in self.backend.contexts if t == self.tenant and c > after)
        contexts = self.backend.contexts
        return [_context_record(name, contexts[self.tenant, name]) for name in names[:limit]]

    async def delete(self, context_id: str) -> None:
        """Remove a context with everything in it."""
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        if context.open_turn is not None and context.lease_live:
            raise AgentBusy(busy_message(context.open_turn), turn=context.open_turn)
        del self.backend.contexts[self.tenant, context_id]

    async def claim(self, claim: Claim) -> Claimed:
        """Own a context for a turn."""
        check_context_id(claim.context_id)
        encoded = rows.encode(claim.events)
        state = None if claim.state is None else rows.state_column(claim.state)
        metadata = dump(dict(claim.metadata), "/metadata")
        found = self._get(claim.context_id)
        if found is not None and found.lease_live and found.holder != claim.displace:
            raise AgentBusy(busy_message(found.open_turn), turn=found.open_turn)
        actual = found.epoch if found else 0
        is_open = found is not None and found.open_turn is not None
        if actual != claim.expected_epoch or is_open != claim.recover:
            raise StoreConflict(
                "the context has moved on: load it again",
                expected=claim.expected_epoch,
                actual=actual,
            )
        context = self.backend.make(self.tenant, claim.context_id)
        context.epoch += 1
        context.holder = claim.holder
        context.lease_until = time.monotonic() + claim.ttl_s
        if state is not None:
            context.state = state
        if claim.recover:
            turn = context.open_turn or 0
            return Claimed(
                epoch=context.epoch,
                turn=turn,
                first_seq=context.last_seq + 1,
                first_position=context.last_position + 1,
            )
        return _begin_turn(context, claim, encoded, metadata)

    async def renew(self, context_id: str, epoch: int, ttl_s: float) -> bool:
        """Prolong the lease."""
        context = self._get(context_id)
        if context is None or context.epoch != epoch or context.holder is None:
            return False
        context.lease_until = time.monotonic() + ttl_s
        return True

    async def release(self, context_id: str, epoch: int) -> None:
        """Give the lease back."""
        context = self._get(context_id)
        if context is not None and context.epoch == epoch:
            context.holder = None


class InMemoryJournal(_Store):
    """`Journal` in lists; see there for the contract."""

    async def commit(self, commit: Commit) -> Committed:
        """Apply one step of a turn."""
        encoded = rows.encode(commit.events)
        state = None if commit.state is None else rows.state_column(commit.state)
        context = self._get(commit.context_id)
        if context is None or context.epoch != commit.epoch or context.holder is None:
            raise fenced(commit.context_id)
        if state is not None:
            context.state = state
        context.lease_until = time.monotonic() + commit.ttl_s
        artifact = None
        if commit.artifact is not None:
            artifact = _save_artifact(context, commit.artifact)
            encoded = rows.with_version(encoded, artifact.version)
        done = _append(context, commit.turn, encoded, commit.assistant_position)
        if encoded.closing is not None:
            _close_turn(context, encoded.closing, done)
        if commit.release:
            context.holder = None
        context.last_activity = utc_now()
        return replace(done, artifact=artifact)

    async def clear(self, context_id: str, *, force: bool = False) -> int:
        """Hide the history."""
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        if context.open_turn is not None:
            if not force:
                raise AgentBusy(busy_message(context.open_turn), turn=context.open_turn)
            _interrupt(context)
        covers = (context.visible_from, context.last_position)
        encoded = rows.encode([HistoryCleared(context_id=context_id, covers=covers)])
        _append(context, context.turn_count, encoded, None)
        context.epoch += 1
        context.holder = None
        context.visible_from = context.last_position + 1
        context.cleared_seq = context.last_seq
        context.artifacts.clear()
        kept = rows.decode_state(context.state)
        context.state = rows.state_column(ContextState(usage=kept.usage))
        context.last_activity = utc_now()
        return context.epoch

    async def events(
        self, context_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[AgentEvent]:
        """The durable events over *after*."""
        context = self._get(context_id)
        if context is None:
            return []
        after = max(after, context.cleared_seq - 1)
        found: list[AgentEvent] = []
        for m in context.messages:
            if m.seq > after:
                found += rows.decode_message_events(
                    context_id=context_id,
                    turn=m.turn,
                    position=m.position,
                    seq=m.seq,
                    iteration=m.iteration,
                    created_us=m.created_us,
                    body=m.body,
                    meta=m.meta,
                )
        for e in context.events:
            if e.seq > after:
                announced = None if e.position is None else _decode_at(context, e.position)
                found.append(
                    rows.decode_event(
                        context_id=context_id,
                        turn=e.turn,
                        seq=e.seq,
                        iteration=e.iteration,
                        type=e.type,
                        created_us=e.created_us,
                        body=e.body,
                        announced_by=announced,
                    )
                )
        for turn in context.turns:
            if turn.start_seq > after:
                position = context.user_positions.get(turn.turn)
                user = None if position is None else _decode_at(context, position)
                found.append(rows.decode_turn_start(context_id, turn, user))
            if turn.end_seq is not None and turn.end_seq > after:
                added = context.messages[turn.first_position - 1 : turn.last_position]
                iteration = max((m.iteration for m in added), default=0)
                messages = [rows.decode_message(m.body) for m in added]
                found.append(rows.decode_turn_end(context_id, turn, iteration, messages))
        return rows.in_order(found, after, limit)

    async def turns(self, context_id: str, *, after: int = 0, limit: int = 100) -> list[TurnRecord]:
        """The turns over *after*."""
        context = self._get(context_id)
        return [] if context is None else context.turns[max(after, 0) : max(after, 0) + limit]

    async def started_calls(self, context_id: str, turn: int) -> set[str]:
        """Which calls of a turn were started."""
        context = self._get(context_id)
        if context is None:
            return set()
        return {
            json.loads(e.body)["tool_call_id"]
            for e in context.events
            if e.turn == turn and e.type == "tool_execution_start"
        }


def _no_artifact(artifact_id: str, version: int | None) -> ArtifactNotFound:
    of = "" if version is None else f" version {version} of"
    return ArtifactNotFound(f"there is no{of} artifact {artifact_id!r} in this context")


def _record(m: _Message) -> MessageRecord:
    return MessageRecord(
        position=m.position,
        turn=m.turn,
        iteration=m.iteration,
        seq=m.seq,
        message=rows.decode_message(m.body),
    )


def _decode_at(context: _Context, position: int) -> Message:
    return rows.decode_message(context.messages[position - 1].body)


def _context_record(context_id: str, context: _Context) -> ContextRecord:
    turn = context.open_turn
    return ContextRecord(
        context_id=context_id,
        epoch=context.epoch,
        turn_count=context.turn_count,
        last_position=context.last_position,
        last_seq=context.last_seq,
        visible_from=context.visible_from,
        cleared_seq=context.cleared_seq,
        open_turn=None if turn is None else context.turns[turn - 1],
        holder=context.holder,
        lease_live=context.lease_live,
        owner_actor=context.owner_actor,
        state=rows.decode_state(context.state),
        metadata=json.loads(context.metadata),
        version=context.version,
        created_at=context.created_at,
        last_activity=context.last_activity,
    )


def _begin_turn(context: _Context, claim: Claim, encoded: rows.Rows, metadata: str) -> Claimed:
    opening = encoded.opening
    if opening is None:
        raise ValueError("a claim's events begin with a TurnStart")
    context.turn_count += 1
    context.open_turn = context.turn_count
    if context.owner_actor is None:
        context.owner_actor = claim.actor_id
    context.last_activity = utc_now()
    claimed = Claimed(
        epoch=context.epoch,
        turn=context.turn_count,
        first_seq=context.last_seq + 1,
        first_position=context.last_position + 1,
    )
    if opening.user_offset is not None:
        context.user_positions[claimed.turn] = claimed.first_position + opening.user_offset
    context.turns.append(
        TurnRecord(
            turn=claimed.turn,
            continues=opening.continues,
            actor_id=claim.actor_id,
            had_auth=claim.had_auth,
            start_seq=claimed.first_seq,
            first_position=claimed.first_position,
            last_position=claimed.first_position - 1,
            started_at=rows.from_us(opening.started_us),
            metadata=json.loads(metadata),
        )
    )
    _append(context, claimed.turn, encoded, None)
    return claimed


def _append(
    context: _Context, turn: int, encoded: rows.Rows, assistant_position: int | None
) -> Committed:
    first_seq, first_position = context.last_seq + 1, context.last_position + 1
    _insert_messages(context, encoded, turn)
    for row in encoded.events:
        offset = row.message_offset
        position = assistant_position if offset is None else first_position + offset
        context.events.append(
            _Event(
                seq=first_seq + row.seq_offset,
                turn=turn,
                iteration=row.iteration,
                type=row.type,
                created_us=row.created_us,
                position=position if row.type == "tool_execution_start" else None,
                body=row.body,
            )
        )
    context.last_seq += encoded.seqs
    return Committed(first_seq=first_seq, first_position=first_position)


def _save_artifact(context: _Context, write: ArtifactWrite) -> Artifact:
    versions = context.artifacts.setdefault(write.artifact_id, [])
    artifact = made_artifact(
        write,
        version=versions[-1][0].version + 1 if versions else 1,
        created_at=utc_now(),
        turn=context.turn_count,
    )
    versions.append((artifact, write.stored))
    return artifact


def _insert_messages(context: _Context, encoded: rows.Rows, turn: int) -> None:
    first_position = context.last_position + 1
    for row in encoded.messages:
        context.messages.append(
            _Message(
                position=first_position + row.offset,
                turn=turn,
                iteration=row.iteration,
                seq=context.last_seq + 1 + row.seq_offset,
                created_us=row.created_us,
                body=row.body,
                meta=row.meta,
            )
        )


def _close_turn(context: _Context, closing: rows.TurnClosing, done: Committed) -> None:
    turn = context.open_turn
    if turn is None:
        raise ValueError("no turn is open")
    context.turns[turn - 1] = replace(
        context.turns[turn - 1],
        outcome=Outcome(closing.outcome),
        stop_reason=StopReason(closing.stop_reason),
        end_seq=done.first_seq + closing.seq_offset,
        last_position=context.last_position,
        ended_at=rows.from_us(closing.ended_us),
        usage=rows.decode_usage(closing.usage),
    )
    context.open_turn = None


def _interrupt(context: _Context) -> None:
    """
    End the open turn as interrupted, without results for its open calls: they are hidden next.
    """
    context.last_seq += 1
    closing = rows.TurnClosing(
        0,
        Outcome.INTERRUPTED.value,
        StopReason.INTERRUPTED.value,
        "{}",
        rows.to_us(utc_now()),
    )
    _close_turn(context, closing, Committed(first_seq=context.last_seq, first_position=0))
