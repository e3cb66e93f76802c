"""
One context in memory: its rows, and the steps of a turn that change them.

`stores.py` and `journal.py` decide if something may be written; the functions here write it between
two awaits, so no reader sees half of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from looopy.errors import StoreUnavailable
from looopy.stores import rules as names
from looopy.stores.artifacts.rows import Version, check_growth
from looopy.stores.contexts.log import StoredEvent, StoredMessage
from looopy.stores.contexts.sub_contexts import InnerOf
from looopy.stores.memory.accounts import Accounts
from looopy.stores.notifier import Notifier
from looopy.stores.records import (
    ArtifactChange,
    ArtifactDeletion,
    ArtifactGrowth,
    ArtifactWrite,
    Claim,
    Claimed,
    ContextRecord,
    EntryKind,
    InboxHead,
    TurnRecord,
)
from looopy.stores.rows import events as rows
from looopy.stores.rows.meta import from_us
from looopy.stores.rules import WAIT, busy, check_context_id, no_artifact, no_context, no_entry
from looopy.types.artifact import Artifact, ArtifactStatus
from looopy.types.constructors import amended
from looopy.types.event import utc_now
from looopy.types.ranges import Range, merged


@dataclass(slots=True)
class StoredEntry:
    """A message that waits in the inbox."""

    kind: EntryKind
    actor_id: str | None
    created_us: int
    body: str


@dataclass(slots=True)
class Place:
    """A place in the queue, kept until `alive_until` of the monotonic clock."""

    holder: str
    alive_until: float

    @property
    def alive(self) -> bool:
        """True if it blocks later waiters."""
        return time.monotonic() < self.alive_until


@dataclass(slots=True)
class StoredContext:
    """
    A context with everything in it.

    `messages` begin at `visible_from`, rewound ones included. `inbox` is by number of the entry,
    `places` by ticket, both in order of arrival; `keys` has turn and hash of the input. `rewound`
    is in order of time. `history` identifies the contents: a fork remembers its `parent`'s, and a
    cleared context has another one. `inner_of` is the call that it works for.
    """

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
    tags: tuple[str, ...] = ()
    messages: list[StoredMessage] = field(default_factory=list)
    events: list[StoredEvent] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    user_positions: dict[int, int | None] = field(default_factory=dict)
    rewound: list[Range] = field(default_factory=list)
    history: object = field(default_factory=object)
    parent: tuple[str, object, int] | None = None
    inner_of: InnerOf | None = None
    artifacts: dict[str, list[Version]] = field(default_factory=dict)
    inbox_last: int = 0
    cancel_turn: int | None = None
    inbox: dict[int, StoredEntry] = field(default_factory=dict)
    keys: dict[str, tuple[int, str]] = field(default_factory=dict)
    last_ticket: int = 0
    places: dict[int, Place] = field(default_factory=dict)

    @property
    def last_position(self) -> int:
        """Position of the newest message; 0 for none."""
        return self.visible_from - 1 + len(self.messages)

    @property
    def hidden(self) -> tuple[Range, ...]:
        """The rewound positions."""
        return merged(self.rewound) if self.rewound else ()

    @property
    def lease_live(self) -> bool:
        """True if the lease has not expired."""
        return self.holder is not None and time.monotonic() < self.lease_until

    @property
    def inbox_head(self) -> InboxHead:
        """The state of the inbox."""
        return InboxHead(
            last=self.inbox_last, waiting=len(self.inbox), cancel_turn=self.cancel_turn
        )

    def raise_epoch(self) -> None:
        """Fence every owner of an earlier epoch."""
        # By one: unlike a database, this never goes back.
        self.epoch = self.epoch + 1 if self.epoch else names.first_epoch()

    def has_earlier(self, ticket: int | None) -> bool:
        """True if a waiter came before *ticket*; for `None`, if there is a waiter."""
        return any(
            place.alive and (ticket is None or earlier < ticket)
            for earlier, place in self.places.items()
        )

    def take_out(self, delivered: Sequence[int]) -> None:
        """Take entries out of the inbox, all or none; `StoreConflict` if one is not there."""
        wanted = list(delivered)
        for number in wanted:
            if number not in self.inbox or wanted.count(number) > 1:
                raise no_entry(number)
        for number in wanted:
            del self.inbox[number]


def context_record(context_id: str, context: StoredContext) -> ContextRecord:
    """The context without its messages."""
    turn = context.open_turn
    return ContextRecord(
        context_id=context_id,
        epoch=context.epoch,
        turn_count=context.turn_count,
        last_position=context.last_position,
        last_seq=context.last_seq,
        visible_from=context.visible_from,
        cleared_seq=context.cleared_seq,
        hidden=context.hidden,
        open_turn=None if turn is None else context.turns[turn - 1],
        holder=context.holder,
        lease_live=context.lease_live,
        lease_until=context.lease_until,
        owner_actor=context.owner_actor,
        tags=context.tags,
        inbox=context.inbox_head,
        state=rows.decode_state(context.state, context_id),
        metadata=rows.decode_object(context.metadata, f"the metadata of context {context_id}"),
        version=context.version,
        created_at=context.created_at,
        last_activity=context.last_activity,
    )


def begin_turn(context: StoredContext, claim: Claim, encoded: rows.Rows, metadata: str) -> Claimed:
    """Open the next turn with its first events."""
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
        inbox=context.inbox_head,
    )
    offset = opening.user_offset
    context.user_positions[claimed.turn] = (
        None if offset is None else claimed.first_position + offset
    )
    if claim.key is not None and claim.input_hash is not None:
        context.keys[claim.key] = (claimed.turn, claim.input_hash)
    context.turns.append(
        TurnRecord(
            turn=claimed.turn,
            continues=opening.continues,
            actor_id=claim.actor_id,
            had_auth=claim.had_auth,
            start_seq=claimed.first_seq,
            first_position=claimed.first_position,
            last_position=claimed.first_position - 1,
            started_at=from_us(opening.started_us),
            metadata=json.loads(metadata),
            process=claim.process,
        )
    )
    append(context, claimed.turn, encoded, None)
    return claimed


def take_turn_over(context: StoredContext, claim: Claim) -> None:
    """Note the process that recovers the open turn."""
    if context.open_turn is not None and claim.process is not None:
        taken = replace(context.turns[context.open_turn - 1], recovered_by=claim.process)
        context.turns[context.open_turn - 1] = taken


def append(
    context: StoredContext, turn: int, encoded: rows.Rows, assistant_position: int | None
) -> tuple[int, int]:
    """Add the rows of a commit under the next numbers; the first one, and the first position."""
    first_seq, first_position = context.last_seq + 1, context.last_position + 1
    insert_messages(context, encoded, turn)
    for row in encoded.events:
        offset = row.message_offset
        position = assistant_position if offset is None else first_position + offset
        context.events.append(
            StoredEvent(
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
    return first_seq, first_position


def change_artifact(context: StoredContext, change: ArtifactChange) -> Artifact:
    """Do what a commit asks for, and return the version it is about; errors as a commit."""
    check_change(context, change)
    if isinstance(change, ArtifactDeletion):
        return context.artifacts.pop(change.artifact_id)[-1].artifact
    if isinstance(change, ArtifactGrowth):
        return context.artifacts[change.artifact_id][-1].grow(change)
    return _save_artifact(context, change)


def change_artifacts(context: StoredContext, changes: Sequence[ArtifactChange]) -> list[Artifact]:
    """Like `change_artifact`, for several in order: all of them or none."""
    names = {change.artifact_id for change in changes}
    before = {
        name: [one.copy() for one in context.artifacts[name]]
        for name in names & context.artifacts.keys()
    }
    try:
        return [change_artifact(context, change) for change in changes]
    except BaseException:
        for name in names:
            context.artifacts.pop(name, None)
        context.artifacts.update(before)
        raise


def check_change(context: StoredContext | None, change: ArtifactChange) -> None:
    """Raise what `change_artifact` raises, and change nothing."""
    versions = context.artifacts.get(change.artifact_id) if context else None
    if isinstance(change, ArtifactDeletion) and not versions:
        raise no_artifact(change.artifact_id)
    if isinstance(change, ArtifactGrowth):
        check_growth(versions[-1].artifact if versions else None, change)


def _save_artifact(context: StoredContext, write: ArtifactWrite) -> Artifact:
    versions = context.artifacts.setdefault(write.artifact_id, [])
    if versions and (old := versions[-1]).artifact.status is ArtifactStatus.BUILDING:
        old.artifact = replace(old.artifact, status=ArtifactStatus.FAILED)
    newest = versions[-1].artifact if versions else None
    versions.append(Version.written(write, newest, context.turn_count))
    return versions[-1].artifact


def insert_messages(context: StoredContext, encoded: rows.Rows, turn: int) -> None:
    """Add messages under the next positions; the numbers of the log are raised by the caller."""
    first_position = context.last_position + 1
    for row in encoded.messages:
        context.messages.append(
            StoredMessage(
                position=first_position + row.offset,
                turn=turn,
                iteration=row.iteration,
                seq=context.last_seq + 1 + row.seq_offset,
                created_us=row.created_us,
                body=row.body,
                meta=row.meta,
            )
        )


def close_turn(context: StoredContext, closing: rows.TurnClosing, first_seq: int) -> None:
    """End the open turn, in a commit that has taken the numbers from *first_seq* on."""
    turn = context.open_turn
    if turn is None:
        raise ValueError("no turn is open")
    context.turns[turn - 1] = amended(
        context.turns[turn - 1],
        outcome=closing.outcome,
        stop_reason=closing.stop_reason,
        end_seq=first_seq + closing.seq_offset,
        last_position=context.last_position,
        ended_at=from_us(closing.ended_us),
        usage=closing.spent,
    )
    context.open_turn = None
    context.cancel_turn = None


def interrupt(context: StoredContext) -> None:
    """End the open turn as interrupted, with no results for open calls: they are hidden next."""
    context.last_seq += 1
    close_turn(context, rows.interrupted_now(), context.last_seq)


class Contexts:
    """The contexts of all tenants; shared by the stores that are made on it."""

    def __init__(self) -> None:
        self.notifier = Notifier()
        self._contexts: dict[tuple[str, str], StoredContext] = {}
        self._accounts: dict[str, Accounts] = {}
        self._closed = False

    async def open(self) -> None:
        """Allow use, again or for the first time; what was kept is still there."""
        self._closed = False

    async def close(self) -> None:
        """Refuse use from now on, as a closed database does."""
        self._closed = True

    @property
    def contexts(self) -> dict[tuple[str, str], StoredContext]:
        """All contexts by tenant and id."""
        self._check_open()
        return self._contexts

    def accounts_of(self, tenant: str) -> Accounts:
        """The accounts of a tenant, created on first use."""
        self._check_open()
        return self._accounts.setdefault(tenant, Accounts())

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("these stores are closed: open them again with `async with`")

    def make(self, tenant: str, context_id: str) -> StoredContext:
        """The context, created on first use."""
        check_context_id(context_id)
        found = self.contexts.get((tenant, context_id))
        if found is None:
            now = utc_now()
            found = self.contexts[tenant, context_id] = StoredContext(now, now)
        return found


class MemoryStore:
    """One store of one tenant; see the protocols for what each does."""

    outlasts = True  # nothing is waited for

    def __init__(self, backend: Contexts | None = None, tenant: str = "default") -> None:
        self.backend = backend or Contexts()
        self.tenant = tenant

    def _get(self, context_id: str) -> StoredContext | None:
        contexts = self.backend.contexts
        # A non-string id may be unhashable.
        return contexts.get((self.tenant, context_id)) if isinstance(context_id, str) else None

    def _inner(self, context_id: str) -> list[str]:
        """The contexts that work for a context, which need not exist."""
        return sorted(
            name
            for (tenant, name), one in self.backend.contexts.items()
            if tenant == self.tenant
            and one.inner_of is not None
            and one.inner_of.context_id == context_id
        )

    def _between_turns(self, context_id: str) -> StoredContext:
        """A context in which no turn is open."""
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        if context.open_turn is not None:
            raise busy(context.open_turn, WAIT)
        return context

    def _ring(self, context_id: str, *, inbox: bool = False) -> None:
        self.backend.notifier.notify(self.tenant, context_id, inbox=inbox)
