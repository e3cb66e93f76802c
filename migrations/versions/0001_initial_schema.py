"""The first schema: contexts, and what goes with them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# In the order in which they are made; those that refer to another come after it.
_TABLES = (
    *("looopy_contexts", "looopy_turns", "looopy_messages", "looopy_events"),
    "looopy_artifacts",
)


def upgrade() -> None:
    """Make the tables."""
    _create(
        "looopy_contexts",
        _number("epoch"),
        _number("turn_count"),
        _number("last_position"),
        _number("last_seq"),
        _number("visible_from"),
        _number("cleared_seq"),
        _number("open_turn", nullable=True),
        _text("holder", nullable=True),
        _number("lease_until", nullable=True),
        _text("owner_actor", nullable=True),
        _text("state"),
        _text("metadata"),
        _number("version"),
        _number("created_at"),
        _number("last_activity"),
        key=(),
        clustered=True,
    )
    _create(
        "looopy_turns",
        _number("turn"),
        _number("epoch"),
        _number("continues", nullable=True),
        _text("actor_id", nullable=True),
        _number("had_auth"),
        _text("outcome", nullable=True),
        _text("stop_reason", nullable=True),
        _number("start_seq"),
        _number("end_seq", nullable=True),
        _number("first_position"),
        _number("last_position"),
        _number("user_position", nullable=True),
        _number("started_at"),
        _number("ended_at", nullable=True),
        _text("usage"),
        _text("metadata"),
        key=("turn",),
        clustered=True,
    )
    _create(
        "looopy_messages",
        _number("position"),
        _number("turn"),
        _number("iteration"),
        _number("seq"),
        _text("role"),
        _number("created_at"),
        _text("meta", nullable=True),
        _text("body"),
        key=("position",),
        clustered=False,
    )
    _create(
        "looopy_events",
        _number("seq"),
        _number("turn"),
        _number("iteration"),
        _text("type"),
        _number("created_at"),
        _number("position", nullable=True),
        _text("body"),
        key=("seq",),
        clustered=True,
    )
    _create(
        "looopy_artifacts",
        _key("artifact_id"),
        _number("version"),
        _text("kind"),
        _text("media_type"),
        _text("status"),
        _number("size"),
        _text("sha256"),
        _number("created_at"),
        _number("turn"),
        _text("data", nullable=True),
        sa.Column("bytes", sa.LargeBinary(), nullable=True),
        key=("artifact_id", "version"),
        clustered=False,
    )


def downgrade() -> None:
    """Drop all of it."""
    for name in reversed(_TABLES):
        op.drop_table(name)


def _create(name: str, *columns: sa.Column[Any], key: tuple[str, ...], clustered: bool) -> None:
    constraints: list[Any] = [
        sa.PrimaryKeyConstraint("tenant_id", "context_id", *key, name=f"pk_{name}"),
        sa.CheckConstraint("tenant_id <> ''", name=op.f(f"ck_{name}_tenant")),
    ]
    if name != "looopy_contexts":
        constraints.append(
            sa.ForeignKeyConstraint(
                ["tenant_id", "context_id"],
                ["looopy_contexts.tenant_id", "looopy_contexts.context_id"],
                name=f"fk_{name}_looopy_contexts",
                ondelete="CASCADE",
            )
        )
    op.create_table(
        name,
        _key("tenant_id"),
        _key("context_id"),
        *columns,
        *constraints,
        sqlite_with_rowid=not clustered,
        postgresql_with={"fillfactor": 50} if name == "looopy_contexts" else {},
    )


def _key(name: str) -> sa.Column[Any]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)


def _number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=nullable)
