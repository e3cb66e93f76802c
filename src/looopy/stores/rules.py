"""Rules that all backends share: valid ids and contents, and the errors that refuse others."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from looopy.errors import (
    AccessDenied,
    AgentBusy,
    ArtifactNotFound,
    CommitsLost,
    ContextNotFound,
    Fenced,
    LimitExceeded,
    StoreConflict,
    TurnMismatch,
    ValueRefused,
)
from looopy.stores.records import INBOX_LIMIT, ArtifactGrowth, ArtifactWrite, Claim, EntryKind
from looopy.types.artifact import Artifact, ArtifactKind, Content
from looopy.types.state import AgentStatus
from looopy.types.storable import (
    check_actor,
    check_media_type,
    check_number,
    check_process,
    check_text,
    dump,
    escape,
)

_CONTEXT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CONTROL = r"[\x00-\x1f\x7f-\x9f]"
_MAX_ARTIFACT_ID = 256
_MAX_KEY = 256
EPOCH_STEPS = 2**32
_BINARY = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_ROWS = "application/x-ndjson"
COLUMN_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "any": (),
}
"""The types of a dataset's columns; a value may also be null or absent."""


def first_epoch() -> int:
    """
    The first epoch of a context: a random number.

    A context may be deleted and another one made under its name. An owner of the old one may have
    been stopped for all that time and must not know an epoch of the new one, so the two do not both
    begin at 1.
    """
    return 1 + int.from_bytes(os.urandom(6), "big")


def next_epoch(epoch: int, chance: int) -> int:
    """
    The epoch after *epoch*: greater by a random step, or the first one.

    A store may go back to an earlier state, after a failover or from a backup, and another process
    then claims what this one had claimed. The two claims must not make the same epoch.

    Args:
        chance: From `first_epoch()`. The statement of a claim computes the same from it.
    """
    return epoch + 1 + (chance - 1) % EPOCH_STEPS if epoch else chance


def check_context_id(context_id: object) -> None:
    """Raise `ValueRefused` unless it is 1 to 128 of `A-Z a-z 0-9 . _ : -`."""
    if not is_context_id(context_id):
        shown = repr(context_id)
        if len(shown) > 80:  # enough to recognise it in an error
            shown = shown[:76] + "...'"
        raise ValueRefused(
            f"context id {shown} is not usable: 1 to 128 of A-Z a-z 0-9 . _ : -", path="/context_id"
        )


def is_context_id(context_id: object) -> bool:
    """True if a context may have this id; any other id is unknown to every read."""
    return isinstance(context_id, str) and _CONTEXT_ID.fullmatch(context_id) is not None


def check_artifact_id(artifact_id: object) -> None:
    """Raise `ValueRefused` unless it is 1 to 256 characters without control characters."""
    if (
        not isinstance(artifact_id, str)
        or not 1 <= len(artifact_id) <= _MAX_ARTIFACT_ID
        or re.search(_CONTROL, artifact_id)
    ):
        raise ValueRefused(
            "an artifact id is 1 to 256 characters, none of them a control character",
            path="/artifact_id",
        )
    check_text(artifact_id, "/artifact_id")


def is_artifact_id(artifact_id: object) -> bool:
    """True if an artifact may have this id; any other id is unknown to every read."""
    try:
        check_artifact_id(artifact_id)
    except ValueRefused:
        return False
    return True


def no_artifact(artifact_id: str, version: int | None = None) -> ArtifactNotFound:
    """The error for an artifact, or a version of it, that is not there."""
    of = "" if version is None else f" version {version} of"
    return ArtifactNotFound(f"there is no{of} artifact {artifact_id!r} in this context")


def made_artifact(
    write: ArtifactWrite, *, version: int, created_at: datetime, turn: int
) -> Artifact:
    """The artifact that *write* has become."""
    digest = write.sha256
    return Artifact(
        artifact_id=write.artifact_id,
        kind=write.kind,
        version=version,
        status=write.status,
        size=len(write.raw) if write.size is None else write.size,
        media_type=write.media_type,
        sha256=hashlib.sha256(write.raw).hexdigest() if digest is None else digest,
        created_at=created_at,
        turn=turn,
        description=write.description,
        metadata=json.loads(write.metadata) if write.metadata else {},
        columns=json.loads(write.columns) if write.columns else None,
        rows=write.rows,
    )


def grown_artifact(artifact: Artifact, growth: ArtifactGrowth) -> Artifact:
    """The *artifact* after *growth*."""
    return replace(
        artifact,
        status=growth.status,
        size=growth.size,
        sha256=growth.sha256,
        rows=growth.rows,
    )


E = TypeVar("E", bound=StrEnum)


def artifact_filter(kinds: type[E], value: object, path: str) -> E | None:
    """A kind or status as the enum's member, `None` for `None`; or `ValueRefused`."""
    if value is None:
        return None
    try:
        return kinds(str(value))
    except ValueError:
        known = ", ".join(kinds)
        raise ValueRefused(f"{value!r} is not one of: {known}", path=path) from None


def checked_content(
    content: Content,
    kind: ArtifactKind | str | None,
    media_type: str | None,
    columns: Mapping[str, str] | None,
) -> tuple[ArtifactKind, str | bytes, str, int]:
    """
    Kind, JSON text or bytes, media type, and number of rows, of the content of an artifact.

    Raises:
        ValueRefused: The kind does not fit the content, or a value inside it cannot be stored.
    """
    wanted = artifact_filter(ArtifactKind, kind, "/kind")
    actual = _kind_of(content)
    if wanted not in (None, actual):
        raise ValueRefused(
            f"a {wanted} artifact cannot hold {type(content).__name__}: a file takes bytes or text,"
            " data takes a JSON object, a dataset takes a list of rows",
            path="/kind",
        )
    if media_type is not None:
        check_media_type(media_type, "/media_type")
    if isinstance(content, Mapping):
        return actual, dump(content, "/content"), media_type or _JSON, 0
    if actual is ArtifactKind.DATASET:
        lines, rows = checked_rows(content, check_columns(columns), "/content")
        return actual, lines, media_type or _ROWS, rows
    default = _TEXT if isinstance(content, str) else _BINARY
    return actual, checked_chunk(content, "/content"), media_type or default, 0


def _kind_of(content: object) -> ArtifactKind:
    if isinstance(content, Mapping):
        return ArtifactKind.DATA
    if isinstance(content, (str, bytes, bytearray, memoryview)):
        return ArtifactKind.FILE
    if isinstance(content, (list, tuple)):
        return ArtifactKind.DATASET
    raise ValueRefused(
        f"{type(content).__name__} is not artifact content: bytes, text, a JSON object or a list of"
        " rows",
        path="/content",
    )


def checked_chunk(chunk: object, path: str = "/chunk") -> bytes:
    """A piece of a file as bytes; `ValueRefused` unless it is bytes or storable text."""
    if isinstance(chunk, str):
        check_text(chunk, path)
        return chunk.encode()
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return bytes(chunk)
    raise ValueRefused(f"a file takes bytes or text, not {type(chunk).__name__}", path=path)


def check_columns(columns: object) -> Mapping[str, str]:
    """Raise `ValueRefused` unless it is a mapping of names to types, and not empty."""
    known = ", ".join(COLUMN_TYPES)
    if not isinstance(columns, Mapping) or not columns:
        raise ValueRefused(
            f'a dataset needs columns with types ({known}), such as {{"name": "string"}}',
            path="/columns",
        )
    for name, kind in columns.items():
        if not isinstance(name, str) or not name:
            raise ValueRefused("the name of a column is a text", path="/columns")
        check_text(name, "/columns")
        if kind not in COLUMN_TYPES:
            path = f"/columns/{escape(name)}"
            raise ValueRefused(f"{kind!r} is not a type of a column: {known}", path=path)
    return columns


def checked_rows(
    rows: object, columns: Mapping[str, str], path: str = "/chunk"
) -> tuple[bytes, int]:
    """
    Rows of a dataset as JSON lines, and how many they are.

    Raises:
        ValueRefused: They are not rows, or break the columns; `path` names the row and the column.
    """
    if not isinstance(rows, (list, tuple)):
        if isinstance(rows, (str, bytes)) and not rows:  # no chunk at all
            return b"", 0
        raise ValueRefused(f"a dataset takes a list of rows, not {type(rows).__name__}", path=path)
    lines = []
    for number, row in enumerate(rows):
        place = f"{path}/{number}"
        if not isinstance(row, Mapping):
            raise ValueRefused(f"a row is an object, not {type(row).__name__}", path=place)
        for name, value in row.items():
            _check_cell(columns, name, value, place)
        lines.append(dump(dict(row), place) + "\n")
    return "".join(lines).encode(), len(lines)


def _check_cell(columns: Mapping[str, str], name: object, value: object, place: str) -> None:
    kind = columns.get(name) if isinstance(name, str) else None
    if kind is None:
        known = ", ".join(columns)
        raise ValueRefused(f"{name!r} is not a column of this dataset: {known}", path=place)
    types = COLUMN_TYPES[kind]
    is_truth = isinstance(value, bool) and kind != "boolean"
    if types and value is not None and (is_truth or not isinstance(value, types)):
        path = f"{place}/{escape(str(name))}"
        a_kind = f"an {kind}" if kind == "integer" else f"a {kind}"
        raise ValueRefused(f"{path}: a value of this column is {a_kind}, or null", path=path)


WAIT = "wait for it, and try again"
MAY_FORCE = "wait for it, or end it with force=True"


def busy(turn: int | None, way_out: str = "wait for it, or use on_busy='wait'") -> AgentBusy:
    """
    The error of every backend for what cannot be done while a turn runs.

    Args:
        way_out: What the caller can do; by default it is one that begins a turn.
    """
    which = "a turn" if turn is None else f"turn {turn}"
    return AgentBusy(f"{which} is running on this context: {way_out}", turn=turn)


def queue_busy() -> AgentBusy:
    """The error of every backend for a claim that no turn blocks, but the queue does."""
    return AgentBusy("other turns are queued for this context: join the queue with on_busy='wait'")


def check_claim(claim: Claim) -> None:
    """
    Refuse a claim without a usable name of its actor, process or turn.

    Raises:
        ValueRefused: The actor or the process has more than 512 bytes, or the key not 1 to 256
            characters, or one of them cannot be stored.
    """
    check_actor(claim.actor_id)
    check_process(claim.process)
    if claim.recover and (claim.key is not None or claim.delivered):
        raise ValueError("a claim that recovers begins no turn: it takes no key and no message")
    if claim.key is None:
        return
    if claim.input_hash is None:
        raise ValueError("a key needs the hash of its input")
    check_idempotency_key(claim.key)


def check_idempotency_key(key: object) -> None:
    """Raise `ValueRefused` unless it is a storable text of 1 to 256 characters."""
    if not isinstance(key, str) or not 1 <= len(key) <= _MAX_KEY:
        raise ValueRefused(
            f"an idempotency key is a text of 1 to {_MAX_KEY} characters", path="/idempotency_key"
        )
    check_text(key, "/idempotency_key")


def check_post_key(key: object, input_hash: object, expected_turn: int | None) -> None:
    """Raise `ValueRefused` unless a message without a key, or with one for a turn, is posted."""
    if key is None and input_hash is None:
        return
    check_idempotency_key(key)
    if not isinstance(input_hash, str):
        raise ValueRefused("a key needs the hash of what it names", path="/input_hash")
    if expected_turn is None:
        raise ValueRefused("a key needs the turn that the message is for", path="/expected_turn")


def can_name(key: str) -> bool:
    """True if a turn may have this key; any other key is unknown to every read."""
    try:
        check_idempotency_key(key)
    except ValueRefused:
        return False
    return True


def check_lease(epoch: object, ttl_s: object = 0) -> None:
    """Raise `ValueRefused` unless they are the epoch of a claim and a time, in seconds from 0."""
    check_number(epoch, "/epoch", "pass the epoch of the claim")
    check_ttl(ttl_s)


def check_left_as(epoch: object, status: object) -> None:
    """Raise `ValueRefused` unless they are the epoch of a claim, and how an agent may be left."""
    check_number(epoch, "/epoch", "pass the epoch of the claim")
    if status not in (AgentStatus.PAUSED, AgentStatus.SHUTDOWN, AgentStatus.READY):
        raise ValueRefused("an agent is left as paused, shutdown or ready", path="/status")


def check_queue_place(ticket: object, ttl_s: object = 0) -> None:
    """Raise `ValueRefused` unless they are a ticket and a time, in seconds from 0."""
    check_number(ticket, "/ticket", "pass the ticket of join_wait_queue()")
    check_ttl(ttl_s)


def check_ttl(ttl_s: object) -> None:
    """Raise `ValueRefused` unless it is a number of seconds from 0."""
    if not isinstance(ttl_s, (int, float)) or isinstance(ttl_s, bool) or not ttl_s >= 0:
        shown = ttl_s if isinstance(ttl_s, float) else type(ttl_s).__name__
        raise ValueRefused(f"{shown} is not a time: pass seconds, at least 0", path="/ttl_s")


def entry_kind(kind: object) -> EntryKind:
    """The kind of a message in the inbox as the enum's member; or `ValueRefused`."""
    try:
        return EntryKind(str(kind))
    except ValueError:
        known = ", ".join(EntryKind)
        raise ValueRefused(f"{kind!r} is not one of: {known}", path="/kind") from None


def check_post(
    *,
    open_turn: int | None,
    belongs_to: str | None,
    waiting: int,
    actor_id: str | None,
    expected_turn: int | None,
) -> None:
    """
    Decide if a message may enter an inbox.

    Args:
        open_turn: The context's open turn, running or left by a dead process.
        belongs_to: The actor of the open turn; if no turn is open, the owner of the context.
        waiting: How many messages of this actor the inbox holds.

    Raises:
        AccessDenied: It belongs to another actor.
        TurnMismatch: The expected turn is not open.
        LimitExceeded: It is full.
    """
    if belongs_to != actor_id and (open_turn is not None or belongs_to is not None):
        raise AccessDenied(
            f"this {'turn' if open_turn else 'context'} is another actor's: pass an auth_context of"
            " the same actor"
        )
    if expected_turn not in (None, open_turn):
        raise TurnMismatch(
            f"turn {expected_turn} is not the one that runs",
            expected=expected_turn,
            actual=open_turn,
        )
    if waiting >= INBOX_LIMIT:
        raise LimitExceeded(
            f"{INBOX_LIMIT} messages of this actor already wait in this context: run a turn of that"
            " actor, which takes them",
            limit="inbox",
            value=INBOX_LIMIT,
        )


def moved_on(expected: int, actual: int) -> StoreConflict:
    """The error of every backend for a claim under an epoch, or of a turn, that is not there."""
    return StoreConflict(
        "the context has moved on: load it again", expected=expected, actual=actual
    )


def metadata_changed(expected: int, actual: int) -> StoreConflict:
    """The error of every backend for metadata that are to replace a version that is not there."""
    return StoreConflict(
        "another writer has changed the metadata: load it again", expected=expected, actual=actual
    )


def key_used() -> StoreConflict:
    """The error of every backend for a claim under a key that names a turn already."""
    return StoreConflict("the key names another turn already: look it up")


def no_entry(number: int) -> StoreConflict:
    """The error of every backend for delivering a message that is not in the inbox."""
    return StoreConflict(f"message {number} is not in the inbox any more: read it again")


def no_context(context_id: str) -> ContextNotFound:
    """The error of every backend for a context that is not there, or is another tenant's."""
    return ContextNotFound(f"there is no context {context_id!r}")


def commits_lost(context_id: str) -> CommitsLost:
    """The error of every backend, and of an agent, for a context that lacks what it had stored."""
    return CommitsLost(
        f"the store lacks the newest commits of context {context_id!r}: it went back to an earlier"
        " state (a failover to a standby that was behind, or a restored backup), or the context was"
        " deleted; nothing was written: look at what the store has, and send the message again"
    )


def fenced(context_id: str) -> Fenced:
    """The error of every backend for a write under an epoch that has passed."""
    return Fenced(
        f"context {context_id!r} has moved on, this turn owns it no more: nothing was written"
    )
