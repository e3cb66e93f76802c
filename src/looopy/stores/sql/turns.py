"""A context, a turn and a version of an artifact, from the columns of their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from looopy.stores.contexts.lineage import decode_rewound
from looopy.stores.records import ContextRecord, TurnRecord
from looopy.stores.rows import events as rows
from looopy.stores.rows.meta import from_us
from looopy.stores.sql.head import inbox_head
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.message import StopReason
from looopy.types.ranges import merged
from looopy.types.state import Outcome

_COLUMNS = (
    *("context_id", "epoch", "turn_count", "last_position", "last_seq", "visible_from"),
    *("cleared_seq", "holder", "lease_live", "lease_until", "owner_actor", "state", "metadata"),
    *("version", "created_at", "last_activity", "inbox_last", "inbox_waiting", "cancel_turn"),
    *("tags", "rewound"),
)
"""The names of `statements.CONTEXT_COLUMNS` here."""


def tags_column(text: str | None) -> tuple[str, ...]:
    """The tags of a context from the column of its row."""
    return () if text is None else tuple(json.loads(text))


def turn_record(row: Sequence[Any]) -> TurnRecord:
    """A turn from the columns of `statements.TURN_COLUMNS`."""
    return TurnRecord(
        turn=row[0],
        continues=row[1],
        actor_id=row[2],
        had_auth=bool(row[3]),
        outcome=rows.decode_end(Outcome, row[4]),
        stop_reason=rows.decode_end(StopReason, row[5]),
        start_seq=row[6],
        end_seq=row[7],
        first_position=row[8],
        last_position=row[9],
        started_at=from_us(row[10]),
        ended_at=None if row[11] is None else from_us(row[11]),
        usage=rows.decode_usage(row[12]),
        metadata=rows.decode_object(row[13], f"the metadata of turn {row[0]}"),
        process=row[14],
        recovered_by=row[15],
    )


def context_record(row: Sequence[Any]) -> ContextRecord:
    """A context from the columns of `statements.LOAD_CONTEXT`."""
    own, turn = dict(zip(_COLUMNS, row, strict=False)), row[len(_COLUMNS) :]
    context_id = own["context_id"]
    inbox = inbox_head(own.pop("inbox_last"), own.pop("inbox_waiting"), own.pop("cancel_turn"))
    own["hidden"] = merged(decode_rewound(own.pop("rewound")))
    own["lease_live"] = bool(own["lease_live"])
    own["lease_until"] = own["lease_until"] or 0
    own["state"] = rows.decode_state(own["state"], context_id)
    what = f"the metadata of context {context_id}"
    own["metadata"] = rows.decode_object(own["metadata"], what)
    own["tags"] = tags_column(own["tags"])
    own["created_at"] = from_us(own["created_at"])
    own["last_activity"] = from_us(own["last_activity"])
    open_turn = None if turn[0] is None else turn_record(turn)
    return ContextRecord(**own, inbox=inbox, open_turn=open_turn)


def stored_artifact(row: Sequence[Any], *, newest: bool = True) -> Artifact:
    """
    The artifact of the first columns of a row of `LIST_ARTIFACTS`, and others.

    Args:
        newest: False if it has a successor, and so will never be complete.
    """
    artifact_id, kind, version, status, size, media_type, sha256, created_us, turn = row[:9]
    description, metadata, columns, rows_ = row[9:13]
    if status == ArtifactStatus.BUILDING.value and not newest:
        status = ArtifactStatus.FAILED.value
    return Artifact(
        artifact_id=artifact_id,
        kind=ArtifactKind(kind),
        version=version,
        status=ArtifactStatus(status),
        size=size,
        media_type=media_type,
        sha256=sha256,
        created_at=from_us(created_us),
        turn=turn,
        description=description,
        metadata=json.loads(metadata) if metadata else {},
        columns=json.loads(columns) if columns else None,
        rows=rows_,
    )
