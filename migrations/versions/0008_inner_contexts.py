"""
The contexts of agents that work for a call of another one's turn.

A row of `inner` says for which context, and for which call of it. Contexts that are not there are
nobody's, which is what all were before.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_INNER = "looopy_inner"
_OUTER = f"ix_{_INNER}_tenant_id_outer_id_call_key"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        _INNER,
        _key("tenant_id"),
        _key("context_id"),
        _key("outer_id"),
        _key("call_key"),
        sa.PrimaryKeyConstraint("tenant_id", "context_id", name=f"pk_{_INNER}"),
        sa.CheckConstraint("tenant_id <> ''", name=op.f(f"ck_{_INNER}_tenant")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "context_id"],
            ["looopy_contexts.tenant_id", "looopy_contexts.context_id"],
            name=f"fk_{_INNER}_looopy_contexts",
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(_OUTER, _INNER, ["tenant_id", "outer_id", "call_key"], unique=True)


def downgrade() -> None:
    """Drop it; the contexts stay."""
    op.drop_table(_INNER)


def _key(name: str) -> sa.Column[Any]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)
