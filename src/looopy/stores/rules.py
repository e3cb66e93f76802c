"""Rules that all backends share: valid ids and contents, and the errors that refuse others."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from looopy.errors import (
    AccessDenied,
    AgentBusy,
    ArtifactNotFound,
    ContextNotFound,
    Fenced,
    LimitExceeded,
    StoreConflict,
    TurnMismatch,
    ValueRefused,
)
from looopy.stores.records import INBOX_LIMIT, ArtifactDeletion, ArtifactWrite, Claim
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.storable import MAX_BODY_BYTES, check_actor, check_text, dump

_CONTEXT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_ARTIFACT_ID = 256
_MAX_KEY = 256
_BINARY = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


def first_epoch() -> int:
    """
    The first epoch of a context: a number of its own.

    A context may be deleted and another one made under its name. An owner of the old one may have
    been stopped for all that time and must not know an epoch of the new one, so the two do not both
    begin at 1.
    """
    return 1 + int.from_bytes(os.urandom(6), "big")


def check_context_id(context_id: object) -> None:
    """
    Refuse what is no context id.

    Raises:
        ValueRefused: It is not 1 to 128 of `A-Z a-z 0-9 . _ : -`.
    """
    if not isinstance(context_id, str) or not _CONTEXT_ID.fullmatch(context_id):
        shown = repr(context_id)
        if len(shown) > 80:  # enough to recognise it in an error
            shown = shown[:76] + "...'"
        raise ValueRefused(
            f"context id {shown} is not usable: 1 to 128 of A-Z a-z 0-9 . _ : -", path="/context_id"
        )


def check_artifact_id(artifact_id: object) -> None:
    """
    Refuse what is no artifact id.

    Raises:
        ValueRefused: It is not 1 to 256 characters without control characters.
    """
    if (
        not isinstance(artifact_id, str)
        or not 1 <= len(artifact_id) <= _MAX_ARTIFACT_ID
        or _CONTROL.search(artifact_id)
    ):
        raise ValueRefused(
            "an artifact id is 1 to 256 characters, none of them a control character",
            path="/artifact_id",
        )
    check_text(artifact_id, "/artifact_id")


def artifact_write(
    artifact_id: str,
    content: bytes | str | Mapping[str, Any],
    kind: ArtifactKind | str | None,
    media_type: str | None,
) -> ArtifactWrite:
    """
    Decide how *content* is stored: its kind, JSON text or bytes, and its media type.

    Raises:
        ValueRefused: The id is not usable, the kind does not fit the content, or a value inside it
            cannot be stored.
    """
    check_artifact_id(artifact_id)
    actual, stored, media = _content(content, kind, media_type)
    return ArtifactWrite(artifact_id=artifact_id, kind=actual, stored=stored, media_type=media)


def artifact_deletion(artifact_id: str) -> ArtifactDeletion:
    """
    The deletion of an artifact.

    Raises:
        ArtifactNotFound: No artifact can have that id.
    """
    try:
        check_artifact_id(artifact_id)
    except ValueRefused:
        raise no_artifact(artifact_id) from None
    return ArtifactDeletion(artifact_id=artifact_id)


def no_artifact(artifact_id: str, version: int | None = None) -> ArtifactNotFound:
    """The error for an artifact, or a version of it, that is not there."""
    of = "" if version is None else f" version {version} of"
    return ArtifactNotFound(f"there is no{of} artifact {artifact_id!r} in this context")


def made_artifact(
    write: ArtifactWrite, *, version: int, created_at: datetime, turn: int
) -> Artifact:
    """The artifact that *write* has become."""
    return Artifact(
        artifact_id=write.artifact_id,
        kind=write.kind,
        version=version,
        status=ArtifactStatus.COMPLETE,
        size=len(write.raw),
        media_type=write.media_type,
        sha256=hashlib.sha256(write.raw).hexdigest(),
        created_at=created_at,
        turn=turn,
    )


def _content(
    content: bytes | str | Mapping[str, Any],
    kind: ArtifactKind | str | None,
    media_type: str | None,
) -> tuple[ArtifactKind, str | bytes, str]:
    is_data = isinstance(content, Mapping)
    try:
        wanted = ArtifactKind(kind) if kind is not None else None
    except ValueError:
        raise ValueRefused(f"{kind!r} is no artifact kind: file or data", path="/kind") from None
    actual = ArtifactKind.DATA if is_data else ArtifactKind.FILE
    if wanted not in (None, actual):
        raise ValueRefused(
            f"a {wanted} artifact cannot hold {type(content).__name__}:"
            " a file takes bytes or text, data takes a JSON object",
            path="/kind",
        )
    if media_type is not None:
        if not isinstance(media_type, str):
            raise ValueRefused(
                f"a media type is text, not {type(media_type).__name__}", path="/media_type"
            )
        check_text(media_type, "/media_type")
    if isinstance(content, Mapping):
        return actual, dump(content, "/content"), media_type or _JSON
    if isinstance(content, str):
        check_text(content, "/content")
        raw, default = content.encode(), _TEXT
    elif isinstance(content, (bytes, bytearray, memoryview)):
        raw, default = bytes(content), _BINARY
    else:
        raise ValueRefused(
            f"{type(content).__name__} is no artifact content: bytes, text or a JSON object",
            path="/content",
        )
    if len(raw) > MAX_BODY_BYTES:
        raise ValueRefused(
            f"/content: {len(raw):,} bytes are more than the {MAX_BODY_BYTES:,} of one save",
            path="/content",
        )
    return actual, raw, media_type or default


def busy(turn: int | None) -> AgentBusy:
    """The error of every backend for what cannot be done while a turn runs."""
    which = "a turn" if turn is None else f"turn {turn}"
    return AgentBusy(
        f"{which} is running on this context: wait for it, or use on_busy='wait'", turn=turn
    )


def line_busy() -> AgentBusy:
    """The error of every backend for a claim that no turn blocks, but the line does."""
    return AgentBusy(
        "somebody who came earlier waits for this context: wait as well, with on_busy='wait'"
    )


def check_claim(claim: Claim) -> None:
    """
    Refuse a claim by somebody without a usable name, or of a turn without one.

    Raises:
        ValueRefused: The actor has more than 512 bytes, or the key not 1 to 256 characters, or one
            of them cannot be stored.
    """
    check_actor(claim.actor_id)
    if claim.recover and (claim.key is not None or claim.delivered):
        raise ValueError("a claim that recovers begins no turn: it takes no key and no message")
    if claim.key is None:
        return
    if claim.input_hash is None:
        raise ValueError("a key needs the hash of its input")
    check_idempotency_key(claim.key)


def check_idempotency_key(key: object) -> None:
    """
    Refuse what cannot be an idempotency key.

    Raises:
        ValueRefused: It is not a text of 1 to 256 characters that can be stored.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= _MAX_KEY:
        raise ValueRefused(
            f"an idempotency key is a text of 1 to {_MAX_KEY} characters", path="/idempotency_key"
        )
    check_text(key, "/idempotency_key")


def can_name(key: str) -> bool:
    """True if a turn may have this key; any other key is unknown to every read."""
    try:
        check_idempotency_key(key)
    except ValueRefused:
        return False
    return True


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
        open_turn: The context's open turn, running or left behind.
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


def fenced(context_id: str) -> Fenced:
    """The error of every backend for a write under an epoch that has passed."""
    return Fenced(
        f"context {context_id!r} has moved on, this turn owns it no more: nothing was written"
    )
