"""
Whole contexts into the database: `ContextIndex.restore`.

All contexts of a call are one transaction: its first statement makes the row of a context, and
no other process sees that row before the commit. Bytes for a blob store are put there first. If
the process dies in between, they are orphans, as after any other write.

Reading and checking a log takes longer than storing it, and in a file no other process can write
during the transaction. So its rows are made before, in a thread, and wait in a temporary file.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any, Self, TypeAlias

from looopy.errors import StorageFull, StoreConflict
from looopy.stores import rules as names
from looopy.stores.artifacts.parts import INLINE_BYTES, Parts, stored_parts
from looopy.stores.artifacts.rows import StoredPart
from looopy.stores.contexts.lineage import rewound_column
from looopy.stores.contexts.log import StoredEvent, off_loop
from looopy.stores.contexts.snapshot import (
    RestoredContext,
    RestoredMessage,
    RestoredTurn,
    RestoredVersion,
    exists_already,
)
from looopy.stores.records import ArtifactMoved, ArtifactPart, ArtifactWrite
from looopy.stores.rows import events as rows
from looopy.stores.rows.meta import to_us
from looopy.stores.rows.writing import usage_text
from looopy.stores.sql import statements as s
from looopy.stores.sql.artifacts import SQLArtifactRows
from looopy.stores.sql.commit import add_part, add_parts
from looopy.stores.sql.driver import Driver, Query, Ring, Steps
from looopy.types.artifact import ArtifactKind
from looopy.types.storable import dump

_TRIES = 3
_MUCH = 256 * 1024  # characters of rows that wait
_AT_ONCE = 256  # rows that are read between two checks for a waiting reader
_Row: TypeAlias = tuple[bool, dict[str, Any]]
Staged: TypeAlias = Mapping[tuple[str, str, int], Sequence[ArtifactPart]]
"""The parts in a blob store, by context, artifact and version."""


async def restore(backend: Driver, tenant: str, contexts: Sequence[RestoredContext]) -> None:
    """Make contexts, all at once; see `ContextIndex.restore`."""
    if not contexts:
        return
    # One order for all, so that two restores at a time do not wait for each other in a circle.
    ordered = sorted(contexts, key=lambda one: one.record.context_id)
    with _Logs() as logs:
        await off_loop(logs.read(ordered), little=False)
        for attempt in range(_TRIES):
            staged = await _stage(backend, tenant, ordered, share=attempt == 0)
            work = partial(_restore_steps, tenant, ordered, staged, logs)
            first, *others = (one.record.context_id for one in ordered)
            ring = Ring(tenant, first, inbox=False, others=tuple(others))
            try:
                await backend.run(work, write=True, ring=ring)
            except ArtifactMoved:  # a blob that was to be shared is gone
                continue
            return
    raise StoreConflict("others keep removing the bytes to be shared: try again")


async def _stage(
    backend: Driver, tenant: str, contexts: Sequence[RestoredContext], *, share: bool
) -> Staged:
    if backend.blobs is None:
        return {}
    store = Parts(SQLArtifactRows(backend, tenant), tenant, backend.blobs)
    staged = {}
    for context in contexts:
        for version in context.versions():
            one = version.artifact
            if one.size > INLINE_BYTES:
                is_rows = one.kind is ArtifactKind.DATASET
                place = (context.record.context_id, one.artifact_id, one.version)
                staged[place] = await store.stage(version.content(0), is_rows=is_rows, share=share)
    return staged


def _restore_steps(
    tenant: str, contexts: Sequence[RestoredContext], staged: Staged, logs: _Logs
) -> Steps[None]:
    epoch = names.first_epoch()
    for number, context in enumerate(contexts):
        key = {"tenant": tenant, "context": context.record.context_id}
        if not (yield Query(s.RESTORE_CONTEXT, {**_context(context), **key, "epoch": epoch})):
            raise exists_already(context.record.context_id)
        for turn in context.turns():
            yield Query(s.RESTORE_TURN, {**_turn(turn), **key, "epoch": epoch})
        yield from _log_steps(key, logs.rows(number))
        for entry in context.entries:
            body = rows.entry_body(entry.message, entry.actor_id)
            params = {
                **key,
                "entry": entry.number,
                "kind": entry.kind.value,
                "actor": entry.actor_id,
                "created_at": to_us(entry.created_at),
                "body": body,
            }
            yield Query(s.RESTORE_ENTRY, params)
        for version in context.versions():
            yield from _version_steps(key, version, staged)
        if context.inner_of is not None:
            outer, call = context.inner_of
            yield Query(s.ADD_INNER, {**key, "outer": outer, "call": call})
        yield Query(s.UNINDEX, key)


def _log_steps(key: Mapping[str, Any], log: Iterator[_Row]) -> Steps[None]:
    """Add the rows of the log, many at once as long as they are short."""
    messages = _Rows(s.RESTORE_MESSAGES, s.ADD_MESSAGE)
    events = _Rows(s.RESTORE_EVENTS, s.ADD_EVENT)
    for is_message, values in log:
        yield from (messages if is_message else events).add(key, values)
    yield from messages.one_by_one(key)
    yield from events.one_by_one(key)


class _Logs:
    """The rows of logs, in memory as long as they are few, and else in a file without a name."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=_MUCH)  # noqa: SIM115 - closed at the end
        self._begins: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, contexts: Sequence[RestoredContext]) -> Iterator[list[None]]:
        """Read the logs of *contexts*, some rows at a time; or `StorageFull`."""
        for context in contexts:
            self._begins.append(self._file.tell())
            some: list[_Row] = []
            size = 0
            for one in context.log():
                some.append(_row(one))
                size += len(some[-1][1]["body"])
                if size > _MUCH or len(some) == _AT_ONCE:
                    self._keep(some)
                    yield []
                    some, size = [], 0
            self._keep(some)
            if some:
                self._keep([])

    def _keep(self, some: Sequence[_Row]) -> None:
        raw = marshal.dumps(list(some))
        try:
            self._file.write(len(raw).to_bytes(8, "big") + raw)
        except OSError as error:
            raise StorageFull(
                "there is no room for the rows of an import among temporary files: nothing was"
                " stored; set TMPDIR to a folder with room"
            ) from error

    def rows(self, number: int) -> Iterator[_Row]:
        """The rows of a log, in order: each with true if it is a message."""
        place = self._begins[number]
        while True:
            self._file.seek(place)
            size = int.from_bytes(self._file.read(8), "big")
            some: list[_Row] = marshal.loads(self._file.read(size))  # noqa: S302 - our own
            if not some:
                return
            place += 8 + size
            yield from some


def _row(one: RestoredMessage | StoredEvent) -> _Row:
    if isinstance(one, RestoredMessage):
        values = {**one.row._asdict(), "role": one.role}
    else:
        values = one._asdict()
    values["created_at"] = values.pop("created_us")
    return isinstance(one, RestoredMessage), values


class _Rows:
    """Rows of one table that wait until there are enough for a statement."""

    def __init__(self, many: str, one: str) -> None:
        self._many = many
        self._one = one
        self._waiting: list[dict[str, Any]] = []
        self._size = 0

    def add(self, key: Mapping[str, Any], values: dict[str, Any]) -> Steps[None]:
        """Add a row, or have it wait."""
        self._waiting.append(values)
        self._size += len(values["body"])
        if self._size > _MUCH:
            yield from self.one_by_one(key)
        elif len(self._waiting) == s.AT_ONCE:
            numbered = {
                f"{name}_q{n}": value
                for n, row in enumerate(self._waiting, 1)
                for name, value in row.items()
            }
            yield Query(self._many, {**numbered, **key})
            self._waiting, self._size = [], 0

    def one_by_one(self, key: Mapping[str, Any]) -> Steps[None]:
        """Add all rows that wait."""
        for row in self._waiting:
            yield Query(self._one, {**row, **key})
        self._waiting, self._size = [], 0


def _context(context: RestoredContext) -> dict[str, Any]:
    record = context.record
    return {
        "turn_count": record.turn_count,
        "last_position": record.last_position,
        "last_seq": record.last_seq,
        "visible_from": record.visible_from,
        "cleared_seq": record.cleared_seq,
        "open_turn": None if record.open_turn is None else record.open_turn.turn,
        "actor": record.owner_actor,
        "state": rows.state_column(record.state),
        "metadata": dump(dict(record.metadata), "/metadata"),
        "version": record.version,
        "created_at": to_us(record.created_at),
        "last_activity": to_us(record.last_activity),
        "inbox_last": record.inbox.last,
        "inbox_waiting": len(context.entries),
        "tags": dump(list(record.tags)) if record.tags else None,
        "rewound": rewound_column(record.hidden),
    }


def _turn(turn: RestoredTurn) -> dict[str, Any]:
    record = turn.record
    return {
        "turn": record.turn,
        "continues": record.continues,
        "actor": record.actor_id,
        "had_auth": int(record.had_auth),
        "outcome": None if record.outcome is None else record.outcome.value,
        "stop_reason": None if record.stop_reason is None else record.stop_reason.value,
        "start_seq": record.start_seq,
        "end_seq": record.end_seq,
        "first_position": record.first_position,
        "last_position": record.last_position,
        "user_position": turn.user_position,
        "started_at": to_us(record.started_at),
        "ended_at": None if record.ended_at is None else to_us(record.ended_at),
        "usage": usage_text(record.usage),
        "metadata": dump(dict(record.metadata), "/metadata"),
        "process": record.process,
        "recovered_by": record.recovered_by,
    }


def _version_steps(key: Mapping[str, Any], version: RestoredVersion, staged: Staged) -> Steps[None]:
    one = version.artifact
    place = {**key, "artifact": one.artifact_id, "version": one.version}
    parts = staged.get((key["context"], one.artifact_id, one.version))
    text, tail, count = None, b"", 0
    if one.size <= INLINE_BYTES:
        tail = b"".join(version.content(0))
        if one.kind is ArtifactKind.DATA:
            text = tail.decode()
    elif parts is not None:
        write = ArtifactWrite(
            artifact_id=one.artifact_id, kind=one.kind, stored=b"", media_type="", parts=parts
        )
        tail = b"".join(version.content(sum(part.size for part in parts)))
        count = len(parts)
        yield from add_parts(place, write)
    else:
        for part, stored in _parts(version):
            if part is None:
                tail = stored
            else:
                count = part.part
                yield add_part(place, part)
    yield Query(
        s.RESTORE_ARTIFACT,
        {
            **place,
            "kind": one.kind.value,
            "media_type": one.media_type,
            "status": one.status.value,
            "size": one.size,
            "sha256": one.sha256,
            "created_at": to_us(one.created_at),
            "turn": one.turn,
            "data": text,
            "bytes": None if text is not None else tail,
            "description": one.description,
            "metadata": dump(dict(one.metadata), "/metadata") if one.metadata else None,
            "row_schema": None if one.columns is None else dump(dict(one.columns), "/columns"),
            "row_count": one.rows,
            "part_count": count,
        },
    )


def _parts(version: RestoredVersion) -> Iterator[tuple[StoredPart | None, bytes]]:
    """The parts that the database takes, one at a time, and last the tail."""
    is_rows = version.artifact.kind is ArtifactKind.DATASET
    return stored_parts(version.content(0), is_rows=is_rows)
