"""Whole contexts out of the dictionaries and into them; see `looopy.stores.contexts.snapshot`."""

from __future__ import annotations

from looopy.stores import rules as names
from looopy.stores.artifacts.parts import INLINE_BYTES, stored_parts
from looopy.stores.artifacts.rows import Version
from looopy.stores.contexts.snapshot import (
    ContextSnapshot,
    RestoredContext,
    RestoredMessage,
    RestoredVersion,
)
from looopy.stores.memory.context import (
    StoredContext,
    StoredEntry,
    context_record,
)
from looopy.stores.rows import events as rows
from looopy.stores.rows.meta import to_us
from looopy.types.artifact import ArtifactKind
from looopy.types.storable import dump


def snapshot_of(context_id: str, context: StoredContext) -> ContextSnapshot:
    """All of a context that may change."""
    return ContextSnapshot(
        record=context_record(context_id, context),
        entries=[
            rows.decode_entry(number, e.kind, e.actor_id, e.created_us, e.body)
            for number, e in context.inbox.items()
        ],
        artifacts=[
            one.artifact for name in sorted(context.artifacts) for one in context.artifacts[name]
        ],
        inner_of=context.inner_of,
    )


def restored_context(given: RestoredContext) -> StoredContext:
    """The context that *given* describes, not yet visible."""
    record = given.record
    context = StoredContext(
        created_at=record.created_at,
        last_activity=record.last_activity,
        epoch=names.first_epoch(),
        turn_count=record.turn_count,
        last_seq=record.last_seq,
        visible_from=record.visible_from,
        cleared_seq=record.cleared_seq,
        open_turn=None if record.open_turn is None else record.open_turn.turn,
        owner_actor=record.owner_actor,
        state=rows.state_column(record.state),
        metadata=dump(dict(record.metadata), "/metadata"),
        version=record.version,
        tags=tuple(record.tags),
        rewound=list(record.hidden),
        inbox_last=record.inbox.last,
        inner_of=given.inner_of,
    )
    for turn in given.turns():
        context.turns.append(turn.record)
        if turn.user_position is not None:
            context.user_positions[turn.record.turn] = turn.user_position
    for one in given.log():
        if isinstance(one, RestoredMessage):
            context.messages.append(one.row)
        else:
            context.events.append(one)
    for entry in given.entries:
        body = rows.entry_body(entry.message, entry.actor_id)
        created = to_us(entry.created_at)
        context.inbox[entry.number] = StoredEntry(entry.kind, entry.actor_id, created, body)
    for version in given.versions():
        versions = context.artifacts.setdefault(version.artifact.artifact_id, [])
        versions.append(_version(version))
    return context


def _version(version: RestoredVersion) -> Version:
    one = version.artifact
    if one.kind is ArtifactKind.DATA and one.size <= INLINE_BYTES:
        return Version(one, b"".join(version.content(0)).decode(), b"")
    is_rows = one.kind is ArtifactKind.DATASET
    made = Version(one, None, b"")
    for part, tail in stored_parts(version.content(0), is_rows=is_rows):
        if part is None:
            made.tail = tail
        else:
            made.parts.append(part)
    return made
