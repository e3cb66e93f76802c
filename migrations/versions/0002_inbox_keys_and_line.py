"""An inbox for each context, names for turns, and a line of those who wait."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_COLUMNS = ("inbox_last", "inbox_waiting", "cancel_turn", "last_ticket", "line_until")
_COUNTS = {"inbox_last", "inbox_waiting", "last_ticket"}
_TABLES = ("looopy_inbox", "looopy_turn_keys", "looopy_waiters")


def upgrade() -> None:
    """Add columns to contexts, and three tables."""
    # Never in batch mode on SQLite: that makes the table anew, and dropping the old one takes every
    # row with it that refers to it.
    for name in _COLUMNS:
        op.add_column("looopy_contexts", _number(name, counts=name in _COUNTS))
    _create(
        "looopy_inbox",
        _number("entry"),
        _text("kind"),
        _text("actor_id", nullable=True),
        _number("created_at"),
        _text("body"),
        key="entry",
        clustered=False,
    )
    _create(
        "looopy_turn_keys",
        _key("key"),
        _number("turn"),
        _text("input_hash"),
        key="key",
        clustered=True,
    )
    _create(
        "looopy_waiters",
        _number("ticket"),
        _text("holder"),
        _number("alive_until"),
        key="ticket",
        clustered=True,
    )


def downgrade() -> None:
    """Drop them; what waits in an inbox is lost."""
    for name in reversed(_TABLES):
        op.drop_table(name)
    for name in reversed(_COLUMNS):
        op.drop_column("looopy_contexts", name)


def _create(name: str, *columns: sa.Column[Any], key: str, clustered: bool) -> None:
    op.create_table(
        name,
        _key("tenant_id"),
        _key("context_id"),
        *columns,
        sa.PrimaryKeyConstraint("tenant_id", "context_id", key, name=f"pk_{name}"),
        sa.CheckConstraint("tenant_id <> ''", name=op.f(f"ck_{name}_tenant")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "context_id"],
            ["looopy_contexts.tenant_id", "looopy_contexts.context_id"],
            name=f"fk_{name}_looopy_contexts",
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=not clustered,
    )


def _key(name: str) -> sa.Column[Any]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)


def _number(name: str, *, counts: bool | None = None) -> sa.Column[Any]:
    """A number; one that counts begins at 0 in rows that are there, any other may be missing."""
    return sa.Column(
        name, sa.BigInteger(), nullable=counts is False, server_default="0" if counts else None
    )


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=nullable)
