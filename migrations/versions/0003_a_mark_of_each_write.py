"""
A mark of the last write of a turn, by which one that was cut short is known again.

From here on `messages.meta` is a list of what is there, in place of an object with names; rows that
are there stay as they are, and going back gives the names back.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_AT_ONCE = 500
_FIND = sa.text(
    "SELECT tenant_id, context_id, position, created_at, meta FROM messages"
    " WHERE (tenant_id, context_id, position) > (:tenant, :context, :position)"
    " AND meta LIKE '[%' ORDER BY tenant_id, context_id, position LIMIT :limit"
)
_CHANGE = sa.text(
    "UPDATE messages SET meta = :meta WHERE tenant_id = :tenant AND context_id = :context"
    " AND position = :position"
)


def upgrade() -> None:
    """Add a column to contexts; there is no mark in rows that are there."""
    op.add_column("contexts", sa.Column("last_write", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Drop it, and name again what is said of messages."""
    op.drop_column("contexts", "last_write")
    if context.is_offline_mode():
        return
    connection = op.get_bind()
    after: dict[str, Any] = {"tenant": "", "context": "", "position": 0}
    while found := connection.execute(_FIND, {**after, "limit": _AT_ONCE}).all():
        rows = [
            {"tenant": t, "context": c, "position": p, "meta": _named(json.loads(meta), created)}
            for t, c, p, created, meta in found
        ]
        connection.execute(_CHANGE, rows)
        after = {k: rows[-1][k] for k in after}


def _named(facts: list[int | None], created: int) -> str:
    before, delta, attempts, *ran = [*facts, *[None] * (3 - len(facts))]
    named: dict[str, Any] = {}
    if before is not None:
        named["started"] = created - before
    if delta is not None:
        named["first_delta_s"] = delta / 1_000_000
    if attempts is not None:
        named["attempts"] = attempts
    if ran:
        began, lasted, ended = ran
        named["ran"] = [
            None if began is None else created - began,
            (lasted or 0) / 1_000_000,
            created - (ended or 0),
        ]
    return json.dumps(named, separators=(",", ":"))
