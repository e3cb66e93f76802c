"""
The writes of a turn: claim, commit, clear, and the append of messages outside a turn.

Each begins by updating the context's row under a condition. That update is the fence (a stale epoch
changes nothing), the lock and the source of numbers in one statement; what follows inserts rows
under the numbers it returned. Values were serialised before, so nothing but the database itself can
fail in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from looopy.stores import rules as names
from looopy.stores.artifacts.rows import StoredPart, placed_parts
from looopy.stores.contexts.lineage import decode_rewound
from looopy.stores.records import (
    ArtifactChange,
    ArtifactDeletion,
    ArtifactGrowth,
    ArtifactMoved,
    ArtifactWrite,
    Claim,
    Claimed,
    Commit,
    Committed,
    InboxNews,
    NewSummary,
)
from looopy.stores.rows import events as rows
from looopy.stores.rows.meta import from_us
from looopy.stores.rules import (
    MAY_FORCE,
    WAIT,
    busy,
    check_claim,
    commits_lost,
    fenced,
    key_used,
    made_artifact,
    moved_on,
    no_artifact,
    no_context,
    no_entry,
    queue_busy,
)
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Steps
from looopy.stores.sql.head import Head, inbox_head, peek
from looopy.stores.sql.store import as_us, bounded
from looopy.stores.sql.turns import stored_artifact
from looopy.types.artifact import Artifact
from looopy.types.event import Compaction, HistoryCleared, utc_now
from looopy.types.ranges import merged
from looopy.types.storable import dump

# --- claim ---


class ClaimRows(NamedTuple):
    """A claim with its values serialised."""

    claim: Claim
    encoded: rows.Rows
    params: Mapping[str, Any]


def encode_claim(key: Mapping[str, Any], claim: Claim) -> ClaimRows:
    """Serialise what a claim stores; `ValueRefused` if a value cannot be stored faithfully."""
    encoded = rows.encode(claim.events)
    check_claim(claim)
    params = {
        **key,
        "holder": claim.holder,
        "displace": claim.displace,
        "expected": bounded(claim.expected_epoch),
        "chance": names.first_epoch(),
        "ttl_us": as_us(claim.ttl_s),
        "actor": claim.actor_id,
        "state": None if claim.state is None else rows.state_column(claim.state),
        "metadata": dump(dict(claim.metadata), "/metadata"),
        "had_auth": int(claim.had_auth),
        "process": claim.process,
        "seqs": encoded.seqs,
        "count": len(encoded.messages),
        "delivered": len(claim.delivered),
        "ticket": None if claim.ticket is None else bounded(claim.ticket),
        "write": None,
    }
    if encoded.opening is None and not claim.recover:
        raise ValueError("a claim's events begin with a TurnStart")
    return ClaimRows(claim, encoded, params)


def claim_steps(given: ClaimRows) -> Steps[Claimed]:
    """Take the lease and, unless it is taken to recover, begin the turn; see `StateStore.claim`."""
    claim, encoded, _ = given
    statement = s.RECOVER if claim.recover else s.CLAIM
    while not (taken := (yield Query(statement, given.params))):
        yield from _make_claimable(given)
    epoch, turn, last_seq, last_position, *inbox = taken[0]
    if claim.ticket is not None:
        yield from drop_place(given.params)
    new = (0, 0) if claim.recover else (encoded.seqs, len(encoded.messages))
    claimed = Claimed(
        epoch=epoch,
        turn=turn,
        first_seq=last_seq - new[0] + 1,
        first_position=last_position - new[1] + 1,
        inbox=inbox_head(*inbox),
    )
    if encoded.opening is None or claim.recover:
        if claim.process is not None:
            yield Query(s.TAKE_TURN_OVER, {**given.params, "turn": turn})
        return claimed
    offset = encoded.opening.user_offset
    opened = {
        **given.params,
        "turn": turn,
        "epoch": epoch,
        "continues": encoded.opening.continues,
        "start_seq": claimed.first_seq,
        "first_position": claimed.first_position,
        "user_position": None if offset is None else claimed.first_position + offset,
        "started_at": encoded.opening.started_us,
    }
    yield Query(s.OPEN_TURN, opened)
    yield Query(s.UNINDEX, given.params)
    if claim.key is not None:
        named = {**given.params, "key": claim.key, "turn": turn, "input_hash": claim.input_hash}
        if not (yield Query(s.ADD_KEY, named)):
            raise key_used()
    if claim.delivered:
        yield from _take_entries(given.params, claim.delivered)
    yield from insert_rows(given.params, turn, encoded, claimed, None)
    return claimed


def _make_claimable(given: ClaimRows) -> Steps[None]:
    """
    Create the context if it was missing, or raise the error for the obstacle.

    With other writers at the same time, the obstacle may be gone by now; the claim is then to be
    tried again.
    """
    claim = given.claim
    head = yield from peek(given.params)
    if head is not None and head.lease_live and head.holder != claim.displace:
        raise busy(head.open_turn)
    if (
        head is not None
        and head.epoch == claim.expected_epoch
        and (head.open_turn is not None) == claim.recover
    ):
        if not claim.recover and (yield Query(s.IN_LINE, given.params)):
            raise queue_busy()
        return
    if head is not None or claim.expected_epoch != 0 or claim.recover:
        raise moved_on(claim.expected_epoch, head.epoch if head else 0)
    yield from create(given.params)


def create(key: Mapping[str, Any]) -> Steps[None]:
    """Make the row of a context, if there is none."""
    yield Query(s.CREATE, key)
    yield Query(s.UNINDEX, key)


def drop_place(params: Mapping[str, Any]) -> Steps[None]:
    """Give the place of `ticket` up, under the lock of the context's row."""
    if (yield Query(s.DROP_PLACE, params)):
        yield Query(s.MEASURE_LINE, params)


def _take_entries(key: Mapping[str, Any], delivered: Sequence[int]) -> Steps[None]:
    for number in delivered:
        if not (yield Query(s.TAKE_ENTRY, {**key, "entry": bounded(number)})):
            raise no_entry(number)


# --- commit ---


class CommitRows(NamedTuple):
    """A commit with its values serialised."""

    commit: Commit
    encoded: rows.Rows
    params: Mapping[str, Any]


def encode_commit(key: Mapping[str, Any], commit: Commit) -> CommitRows:
    """Serialise what a commit stores; `ValueRefused` if a value cannot be stored faithfully."""
    encoded = rows.encode(commit.events)
    params = {
        **key,
        "epoch": bounded(commit.epoch),
        "release": int(commit.release),
        "ttl_us": as_us(commit.ttl_s),
        "closing": int(encoded.closing is not None),
        "state": None if commit.state is None else rows.state_column(commit.state),
        "seqs": encoded.seqs,
        "count": len(encoded.messages),
        "delivered": len(commit.delivered),
        "heard": bounded(commit.heard),
        "known_seq": commit.known_seq,
        "write": None,
    }
    return CommitRows(commit, encoded, params)


def commit_steps(given: CommitRows) -> Steps[Committed]:
    """Apply one step of a turn, or raise why it is refused; see `Journal.commit`."""
    commit, encoded, _ = given
    passed = yield Query(s.COMMIT, given.params)
    if not passed:
        head = yield from peek(given.params)
        if commit.known_seq > (head.last_seq if head else 0):
            raise commits_lost(commit.context_id)
        if head is None or head.epoch != given.params["epoch"] or head.holder is None:
            raise fenced(commit.context_id)
        raise InboxNews(head.inbox)
    last_seq, last_position, *inbox = passed[0]
    done = Committed(
        first_seq=last_seq - encoded.seqs + 1,
        first_position=last_position - len(encoded.messages) + 1,
        inbox=inbox_head(*inbox),
    )
    if commit.delivered:
        yield from _take_entries(given.params, commit.delivered)
    artifact = None
    if commit.artifact is not None:
        artifact = yield from change_artifact(given.params, commit.artifact)
        encoded = rows.with_artifacts(encoded, [artifact])
    if commit.artifacts:
        changed = []
        for change in commit.artifacts:
            one = yield from change_artifact(given.params, change)
            changed.append(one)
        encoded = rows.with_artifacts(encoded, changed)
    yield from insert_rows(given.params, commit.turn, encoded, done, commit.assistant_position)
    if (closing := encoded.closing) is not None:
        end_seq = done.first_seq + closing.seq_offset
        yield from _close_turn(given.params, commit.turn, closing, end_seq, last_position)
    return done if artifact is None else replace(done, artifact=artifact)


def change_artifact(key: Mapping[str, Any], change: ArtifactChange) -> Steps[Artifact]:
    """Do what a commit asks for, and return the version it is about; errors as a commit."""
    if isinstance(change, ArtifactDeletion):
        return (yield from _delete_artifact(key, change))
    if isinstance(change, ArtifactGrowth):
        return (yield from _grow_artifact(key, change))
    return (yield from _save_artifact(key, change))


def _save_artifact(key: Mapping[str, Any], write: ArtifactWrite) -> Steps[Artifact]:
    """Save the next version; `ContextNotFound` without a context."""
    is_text = isinstance(write.stored, str)
    unversioned = made_artifact(write, version=0, created_at=utc_now(), turn=0)
    params = {
        "tenant": key["tenant"],
        "context": key["context"],
        "artifact": write.artifact_id,
        "kind": write.kind.value,
        "media_type": write.media_type,
        "status": write.status.value,
        "size": unversioned.size,
        "sha256": unversioned.sha256,
        "data": write.stored if is_text else None,
        "bytes": None if is_text else write.stored,
        "description": write.description,
        "metadata": write.metadata,
        "row_schema": write.columns,
        "row_count": write.rows,
        "part_count": len(write.parts),
    }
    saved = yield Query(s.SAVE_ARTIFACT, params)
    if not saved:
        raise no_context(key["context"])
    version, created_us, turn = saved[0]
    yield from add_parts({**params, "version": version}, write)
    return replace(unversioned, version=version, created_at=from_us(created_us), turn=turn)


def _grow_artifact(key: Mapping[str, Any], growth: ArtifactGrowth) -> Steps[Artifact]:
    params = {
        "tenant": key["tenant"],
        "context": key["context"],
        "artifact": growth.artifact_id,
        "version": growth.version,
        "status": growth.status.value,
        "size": growth.size,
        "size_before": growth.size_before,
        "sha256": growth.sha256,
        "bytes": growth.tail,
        "row_count": growth.rows,
        "part_count": growth.part_count,
    }
    grown = yield Query(s.GROW_ARTIFACT, params)
    if not grown:
        raise ArtifactMoved
    yield from add_parts(params, growth)
    return stored_artifact(grown[0])


def add_parts(params: Mapping[str, Any], change: ArtifactWrite | ArtifactGrowth) -> Steps[None]:
    """Add the rows of the new parts; `ArtifactMoved` if a blob may have been removed."""
    base = {name: params[name] for name in ("tenant", "context", "artifact", "version")}
    named: set[str | None] = {None}
    for part, row in zip(change.parts, placed_parts(change), strict=True):
        if row.blob not in named:
            named.add(row.blob)
            blob = {"tenant": base["tenant"], "sha256": row.sha256, "blob": row.blob}
            if not (yield Query(s.HOLD_BLOB if part.shared else s.TAKE_UPLOAD, blob)):
                raise ArtifactMoved
        yield add_part(base, row)


def add_part(version: Mapping[str, Any], part: StoredPart) -> Query:
    """Add the row of a part to a version, which its four keys name."""
    columns = part._asdict()
    columns |= {"row_count": columns.pop("rows"), "bytes": columns.pop("data")}
    return Query(s.ADD_PART, {**version, **columns})


def _delete_artifact(key: Mapping[str, Any], change: ArtifactDeletion) -> Steps[Artifact]:
    """Remove all versions of an artifact, and return the newest; or `ArtifactNotFound`."""
    artifact_id = change.artifact_id
    named = {**key, "artifact": artifact_id}
    blobs = yield Query(s.BLOBS_OF_ARTIFACT, named)
    gone = yield Query(s.DELETE_ARTIFACT, named)
    yield Query(s.DELETE_PARTS, named)
    if not gone:
        raise no_artifact(artifact_id)
    change.freed[:] = [str(name) for (name,) in blobs]  # of this try alone
    return max(map(stored_artifact, gone), key=lambda artifact: artifact.version)


def _close_turn(
    key: Mapping[str, Any], turn: int, closing: rows.TurnClosing, end_seq: int, last_position: int
) -> Steps[None]:
    params = {
        **key,
        "turn": turn,
        "outcome": closing.outcome.value,
        "stop_reason": closing.stop_reason.value,
        "end_seq": end_seq,
        "last_position": last_position,
        "ended_at": closing.ended_us,
        "usage": closing.usage,
    }
    if not (yield Query(s.CLOSE_TURN, params)):
        raise ValueError(f"turn {turn} is not open")


def insert_rows(
    key: Mapping[str, Any],
    turn: int,
    encoded: rows.Rows,
    numbers: Claimed | Committed,
    assistant_position: int | None,
) -> Steps[None]:
    """Add messages and events under their *numbers*."""
    base = {"tenant": key["tenant"], "context": key["context"], "turn": turn}
    for message in encoded.messages:
        params = {
            **base,
            "position": numbers.first_position + message.offset,
            "iteration": message.iteration,
            "seq": numbers.first_seq + message.seq_offset,
            "role": message.role,
            "created_at": message.created_us,
            "meta": message.meta,
            "body": message.body,
        }
        yield Query(s.ADD_MESSAGE, params)
    for event in encoded.events:
        position = None
        if event.type == "tool_execution_start":
            offset = event.message_offset
            position = assistant_position if offset is None else numbers.first_position + offset
        params = {
            **base,
            "seq": numbers.first_seq + event.seq_offset,
            "iteration": event.iteration,
            "type": event.type,
            "created_at": event.created_us,
            "position": position,
            "body": event.body,
        }
        yield Query(s.ADD_EVENT, params)


# --- outside a turn ---


def between_turns(key: Mapping[str, Any]) -> Steps[Head]:
    """Lock a context in which no turn is open; or `ContextNotFound`, or `AgentBusy`."""
    head = yield from peek(key, lock=True)
    if head is None:
        raise no_context(key["context"])
    if head.open_turn is not None:
        raise busy(head.open_turn, WAIT)
    return head


def append_steps(key: Mapping[str, Any], encoded: rows.Rows) -> Steps[int]:
    """Add messages while no turn is open; see `MessageStore.append`."""
    if not encoded.messages:
        head = yield from peek(key)
        return head.last_position if head else 0
    numbers_of = {"seqs": encoded.seqs, "count": len(encoded.messages)}
    params = {**key, **numbers_of, "chance": names.first_epoch()}
    while not (added := (yield Query(s.APPEND, params))):
        head = yield from peek(key)
        if head is None:
            yield from create(key)
        elif head.open_turn is not None:  # else it was closed in between
            raise busy(head.open_turn, WAIT)
    turn, last_seq, last_position = added[0]
    last_position = int(last_position)
    numbers = Committed(
        first_seq=last_seq - encoded.seqs + 1,
        first_position=last_position - len(encoded.messages) + 1,
    )
    yield from insert_rows(key, turn, encoded, numbers, None)
    yield Query(s.UNINDEX, key)
    return last_position


def compact_steps(
    key: Mapping[str, Any], context_id: str, new: NewSummary
) -> Steps[tuple[int, Compaction]]:
    """Append a summary between two turns; see `Journal.compact`."""
    head = yield from between_turns(key)
    if head.epoch != new.epoch:
        raise moved_on(new.epoch, head.epoch)
    made = new.events(
        context_id,
        turn=head.turn_count,
        last_position=head.last_position,
        visible_from=head.visible_from,
        hidden=merged(decode_rewound(head.rewound)),
    )
    encoded = rows.encode(made)
    position = head.last_position + 1
    numbers = Committed(first_seq=head.last_seq + 1, first_position=position)
    yield from insert_rows(key, head.turn_count, encoded, numbers, None)
    state = rows.state_with_summary(head.state, position, new)
    seq = head.last_seq + encoded.seqs
    params = {**key, "seq": seq, "position": position, "state": state}
    yield Query(s.UNINDEX, key)
    done = yield Query(s.COMPACT, {**params, "chance": names.first_epoch()})
    return int(done[0][0]), replace(made[1], seq=seq)


def interrupt_turn(key: Mapping[str, Any], head: Head, seq: int) -> Steps[None]:
    """End the open turn as interrupted."""
    if head.open_turn is not None:
        closing = rows.interrupted_now()
        yield from _close_turn(key, head.open_turn, closing, seq, head.last_position)


def clear_steps(
    key: Mapping[str, Any], context_id: str, *, force: bool, blobs: bool
) -> Steps[tuple[int, list[str]]]:
    """
    Hide the history and fence the current owner; see `Journal.clear`.

    Args:
        blobs: True if large parts of artifacts are outside of the database.

    Returns:
        The new epoch, and the names of the blobs that may be free now.
    """
    head = yield from peek(key, lock=True)
    if head is None:
        raise no_context(context_id)
    seq = head.last_seq + 1
    if head.open_turn is not None:
        if not force:
            raise busy(head.open_turn, MAY_FORCE)
        # Its open calls get no results: they are hidden next.
        yield from interrupt_turn(key, head, seq)
        seq += 1
    freed = [name for (name,) in (yield Query(s.LIST_BLOBS, key))] if blobs else []
    yield Query(s.DROP_LINK, key)
    yield Query(s.UNLINK_FORKS, key)
    covers = (head.visible_from, head.last_position)
    encoded = rows.encode([HistoryCleared(context_id=context_id, covers=covers)])
    numbers = Committed(first_seq=seq, first_position=0)
    yield from insert_rows(key, head.turn_count, encoded, numbers, None)
    yield Query(s.UNINDEX, key)
    state = rows.state_after_clear(head.state, forced=head.open_turn is not None)
    cleared = yield Query(
        s.CLEAR, {**key, "seq": seq, "state": state, "chance": names.first_epoch()}
    )
    # Last: no new row may take over one of their pages, with remains of deleted rows.
    yield Query(s.FORGET_MESSAGES, key)
    yield Query(s.FORGET_WORDS, key)
    yield Query(s.FORGET_EVENTS, {**key, "seq": seq})
    yield Query(s.FORGET_TURNS, key)
    yield Query(s.DELETE_ARTIFACTS, key)
    yield Query(s.DELETE_ALL_PARTS, key)
    yield Query(s.EMPTY_INBOX, key)
    return int(cleared[0][0]), freed
