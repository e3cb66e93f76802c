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
from dataclasses import replace
from typing import Any

from looopy.errors import AgentBusy, ArtifactNotFound, StoreConflict, StoreUnavailable
from looopy.stores import rows
from looopy.stores.bells import Bells
from looopy.stores.gate import dump
from looopy.stores.memory_context import (
    Place,
    StoredContext,
    StoredEntry,
    append,
    begin_turn,
    close_turn,
    context_record,
    insert_messages,
    interrupt,
    message_records,
    save_artifact,
)
from looopy.stores.memory_log import read_log
from looopy.stores.meta import to_us
from looopy.stores.names import (
    LINE_MESSAGE,
    artifact_write,
    busy_message,
    check_context_id,
    check_key,
    check_post,
    fenced,
    key_used,
    moved_on,
    no_context,
    no_entry,
)
from looopy.stores.records import (
    Claim,
    Claimed,
    Commit,
    Committed,
    ContextRecord,
    ContextState,
    Entry,
    EntryKind,
    InboxHead,
    InboxNews,
    MessageRecord,
    NewSummary,
    TurnRecord,
    Waiter,
)
from looopy.stores.stores import Stores
from looopy.types.artifact import Artifact, ArtifactKind
from looopy.types.event import AgentEvent, Compaction, HistoryCleared, utc_now
from looopy.types.message import Message, UserMessage


class MemoryBackend:
    """The contexts of all tenants; shared by the stores that are made on it."""

    def __init__(self) -> None:
        self.bells = Bells()
        self._contexts: dict[tuple[str, str], StoredContext] = {}
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
    def contexts(self) -> dict[tuple[str, str], StoredContext]:
        """All contexts by tenant and id."""
        if self._closed:
            raise StoreUnavailable("these stores are closed: open them again with `async with`")
        return self._contexts

    def get(self, tenant: str, context_id: str) -> StoredContext | None:
        """The context, or `None`."""
        return self.contexts.get((tenant, context_id))

    def make(self, tenant: str, context_id: str) -> StoredContext:
        """The context, created on first use."""
        check_context_id(context_id)
        found = self.contexts.get((tenant, context_id))
        if found is None:
            now = utc_now()
            found = self.contexts[tenant, context_id] = StoredContext(now, now)
        return found


class _Store:
    outlasts = True  # nothing is waited for

    def __init__(self, backend: MemoryBackend | None = None, tenant: str = "default") -> None:
        self.backend = backend or MemoryBackend()
        self.tenant = tenant

    def _get(self, context_id: str) -> StoredContext | None:
        return self.backend.get(self.tenant, context_id)

    def _ring(self, context_id: str, *, inbox: bool = False) -> None:
        self.backend.bells.ring(self.tenant, context_id, inbox=inbox)


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
        insert_messages(context, encoded, context.turn_count)
        context.raise_epoch()
        context.last_seq += encoded.seqs
        context.last_activity = utc_now()
        self._ring(context_id)
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
        return message_records(context.messages[start:stop])

    async def recent(self, context_id: str, *, limit: int) -> list[MessageRecord]:
        """The newest visible messages, oldest first."""
        context = self._get(context_id)
        if context is None:
            return []
        start = max(context.visible_from - 1, context.last_position - limit)
        return message_records(context.messages[start:])

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
        saved = save_artifact(self.backend.make(self.tenant, context_id), write)
        self._ring(context_id)
        return saved

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
        self._ring(context_id)


class InMemoryStateStore(_Store):
    """`StateStore` in a dictionary; see there for the contract."""

    def make_journal(self) -> InMemoryJournal:
        """The journal that goes with this store."""
        return InMemoryJournal(self.backend, self.tenant)

    async def load(self, context_id: str) -> ContextRecord | None:
        """The context, or `None`."""
        context = self._get(context_id)
        return None if context is None else context_record(context_id, context)

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
        self._ring(context_id)
        return context.version

    async def list(self, *, after: str = "", limit: int = 100) -> list[ContextRecord]:
        """Contexts by id."""
        names = sorted(c for t, c in self.backend.contexts if t == self.tenant and c > after)
        contexts = self.backend.contexts
        return [context_record(name, contexts[self.tenant, name]) for name in names[:limit]]

    async def delete(self, context_id: str) -> None:
        """Remove a context with everything in it."""
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        if context.open_turn is not None and context.lease_live:
            raise AgentBusy(busy_message(context.open_turn), turn=context.open_turn)
        del self.backend.contexts[self.tenant, context_id]
        self._ring(context_id, inbox=True)

    async def claim(self, claim: Claim) -> Claimed:
        """Own a context for a turn."""
        check_context_id(claim.context_id)
        encoded = rows.encode(claim.events)
        check_key(claim)
        state = None if claim.state is None else rows.state_column(claim.state)
        metadata = dump(dict(claim.metadata), "/metadata")
        found = self._get(claim.context_id)
        if found is not None and found.lease_live and found.holder != claim.displace:
            raise AgentBusy(busy_message(found.open_turn), turn=found.open_turn)
        actual = found.epoch if found else 0
        is_open = found is not None and found.open_turn is not None
        if actual != claim.expected_epoch or is_open != claim.recover:
            raise moved_on(claim.expected_epoch, actual)
        if found is not None and not claim.recover and found.has_earlier(claim.ticket):
            raise AgentBusy(LINE_MESSAGE)
        if found is not None and claim.key in found.keys:
            raise key_used()
        if found is not None:
            found.take_out(claim.delivered)
        elif claim.delivered:
            raise no_entry(claim.delivered[0])
        context = self.backend.make(self.tenant, claim.context_id)
        if claim.ticket is not None:
            context.places.pop(claim.ticket, None)
        context.raise_epoch()
        context.holder = claim.holder
        context.lease_until = time.monotonic() + claim.ttl_s
        if state is not None:
            context.state = state
        if claim.recover:
            claimed = Claimed(
                epoch=context.epoch,
                turn=context.open_turn or 0,
                first_seq=context.last_seq + 1,
                first_position=context.last_position + 1,
                inbox=context.inbox_head,
            )
        else:
            claimed = begin_turn(context, claim, encoded, metadata)
        self._ring(claim.context_id)
        return claimed

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
            self._ring(context_id, inbox=True)

    # --- the line ---

    async def join_line(self, context_id: str, holder: str, ttl_s: float) -> int:
        """Take a place at the end."""
        context = self.backend.make(self.tenant, context_id)
        context.places = {ticket: p for ticket, p in context.places.items() if p.alive}
        context.last_ticket += 1
        context.places[context.last_ticket] = Place(holder, time.monotonic() + ttl_s)
        self._ring(context_id)
        return context.last_ticket

    async def keep_place(self, context_id: str, ticket: int, ttl_s: float) -> bool:
        """Keep a place for longer."""
        context = self._get(context_id)
        place = context.places.get(ticket) if context else None
        if place is None:
            return False
        place.alive_until = time.monotonic() + ttl_s
        return True

    async def leave_line(self, context_id: str, ticket: int) -> None:
        """Give a place up."""
        context = self._get(context_id)
        if context is not None and context.places.pop(ticket, None) is not None:
            self._ring(context_id, inbox=True)

    async def line(self, context_id: str) -> Sequence[Waiter]:
        """Who waits, first come first."""
        context = self._get(context_id)
        return [
            Waiter(ticket=ticket, holder=place.holder, alive=place.alive)
            for ticket, place in (context.places.items() if context else ())
        ]


class InMemoryJournal(_Store):
    """`Journal` in lists; see there for the contract."""

    @property
    def bells(self) -> Bells:
        """Rung when a context has changed."""
        return self.backend.bells

    async def commit(self, commit: Commit) -> Committed:
        """Apply one step of a turn."""
        encoded = rows.encode(commit.events)
        state = None if commit.state is None else rows.state_column(commit.state)
        context = self._get(commit.context_id)
        if context is None or context.epoch != commit.epoch or context.holder is None:
            raise fenced(commit.context_id)
        closing = encoded.closing is not None
        if closing and commit.heard is not None and context.inbox_last > commit.heard:
            raise InboxNews(context.inbox_head)
        context.take_out(commit.delivered)
        if state is not None:
            context.state = state
        context.lease_until = time.monotonic() + commit.ttl_s
        artifact = None
        if commit.artifact is not None:
            artifact = save_artifact(context, commit.artifact)
            encoded = rows.with_version(encoded, artifact.version)
        done = append(context, commit.turn, encoded, commit.assistant_position)
        if encoded.closing is not None:
            close_turn(context, encoded.closing, done)
        if commit.release:
            context.holder = None
        context.last_activity = utc_now()
        self._ring(commit.context_id, inbox=closing or commit.release)
        return replace(done, artifact=artifact, inbox=context.inbox_head)

    async def clear(self, context_id: str, *, force: bool = False) -> int:
        """Hide the history."""
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        if context.open_turn is not None:
            if not force:
                raise AgentBusy(busy_message(context.open_turn), turn=context.open_turn)
            interrupt(context)
        covers = (context.visible_from, context.last_position)
        encoded = rows.encode([HistoryCleared(context_id=context_id, covers=covers)])
        append(context, context.turn_count, encoded, None)
        context.raise_epoch()
        context.holder = None
        context.visible_from = context.last_position + 1
        context.cleared_seq = context.last_seq
        context.artifacts.clear()
        context.inbox.clear()
        kept = rows.decode_state(context.state)
        context.state = rows.state_column(ContextState(usage=kept.usage))
        context.last_activity = utc_now()
        self._ring(context_id, inbox=True)
        return context.epoch

    async def compact(self, context_id: str, compaction: NewSummary) -> tuple[int, Compaction]:
        """Append a summary."""
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        if context.open_turn is not None:
            raise AgentBusy(busy_message(context.open_turn), turn=context.open_turn)
        if context.epoch != compaction.epoch:
            raise moved_on(compaction.epoch, context.epoch)
        made = compaction.events(
            context_id,
            turn=context.turn_count,
            last_position=context.last_position,
            visible_from=context.visible_from,
        )
        encoded = rows.encode(made)
        append(context, context.turn_count, encoded, None)
        context.raise_epoch()
        state = replace(rows.decode_state(context.state), summary=context.last_position)
        context.state = rows.state_column(state)
        context.last_activity = utc_now()
        self._ring(context_id)
        return context.epoch, replace(made[1], seq=context.last_seq)

    async def events(
        self, context_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[AgentEvent]:
        """The durable events over *after*."""
        context = self._get(context_id)
        if context is None:
            return []
        return read_log(context_id, context, max(after, context.cleared_seq - 1), limit)

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

    async def turn_of_key(self, context_id: str, key: str) -> tuple[int, str] | None:
        """Which turn was claimed with a key."""
        context = self._get(context_id)
        return None if context is None else context.keys.get(key)

    # --- the inbox ---

    async def post(
        self,
        context_id: str,
        kind: EntryKind,
        message: UserMessage,
        *,
        actor_id: str | None = None,
        expected_turn: int | None = None,
    ) -> int:
        """Put a message into the inbox."""
        check_context_id(context_id)
        body = rows.entry_body(message, actor_id)
        found = self._get(context_id)
        turn = found.open_turn if found else None
        check_post(
            open_turn=turn,
            belongs_to=(found.turns[turn - 1].actor_id if turn else found.owner_actor)
            if found
            else None,
            waiting=sum(e.actor_id == actor_id for e in found.inbox.values()) if found else 0,
            actor_id=actor_id,
            expected_turn=expected_turn,
        )
        context = self.backend.make(self.tenant, context_id)
        now = utc_now()
        context.inbox_last += 1
        context.inbox[context.inbox_last] = StoredEntry(kind, actor_id, to_us(now), body)
        context.last_activity = now
        self._ring(context_id, inbox=True)
        return context.inbox_last

    async def inbox(self, context_id: str, *, after: int = 0) -> tuple[InboxHead, list[Entry]]:
        """What waits over *after*."""
        context = self._get(context_id)
        if context is None:
            return InboxHead(), []
        return context.inbox_head, [
            rows.decode_entry(number, e.kind, e.actor_id, e.created_us, e.body)
            for number, e in context.inbox.items()
            if number > after
        ]

    async def withdraw(
        self, context_id: str, kind: EntryKind | None = None, *, actor_id: str | None = None
    ) -> int:
        """Take messages of an actor out again."""
        context = self._get(context_id)
        if context is None:
            return 0
        taken = [
            number
            for number, entry in context.inbox.items()
            if entry.actor_id == actor_id and kind in (None, entry.kind)
        ]
        for number in taken:
            del context.inbox[number]
        if taken:
            context.inbox_last += 1
            self._ring(context_id, inbox=True)
        return len(taken)

    async def ask_cancel(self, context_id: str, turn: int | None = None) -> int | None:
        """Ask the open turn to stop."""
        context = self._get(context_id)
        if context is None or context.open_turn is None or turn not in (None, context.open_turn):
            return None
        context.cancel_turn = context.open_turn
        context.inbox_last += 1
        self._ring(context_id, inbox=True)
        return context.open_turn


def _no_artifact(artifact_id: str, version: int | None) -> ArtifactNotFound:
    of = "" if version is None else f" version {version} of"
    return ArtifactNotFound(f"there is no{of} artifact {artifact_id!r} in this context")
