"""
An index of the contexts, by which they are listed, and their tags.

It is a table of its own: the row of a context changes with every step of a turn, and stays without
an index that changes with it. The contexts that are there are marked; the first listing puts them
in.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_INDEX = "looopy_context_index"
_WALKS = {
    "all": None,
    "due": "due_at IS NOT NULL",
}
_MARKS = "looopy_unindexed"


def upgrade() -> None:
    """Make the table, and put every context into it."""
    op.add_column("looopy_contexts", sa.Column("tags", sa.Text(), nullable=True))
    _create(
        _INDEX,
        _key("label"),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("touched", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        key=("label",),
    )
    for name, where in _WALKS.items():
        some = None if where is None else sa.text(where)
        op.create_index(
            f"ix_{_INDEX}_{name}",
            _INDEX,
            ["tenant_id", "label", "touched", "context_id"],
            postgresql_where=some,
            sqlite_where=some,
        )
    _create(_MARKS)
    op.execute(
        f"INSERT INTO {_MARKS} (tenant_id, context_id)"
        " SELECT tenant_id, context_id FROM looopy_contexts"
    )


def downgrade() -> None:
    """Drop it; tags are lost."""
    op.drop_table(_MARKS)
    op.drop_table(_INDEX)
    op.drop_column("looopy_contexts", "tags")


def _key(name: str) -> sa.Column[Any]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)


def _create(name: str, *columns: sa.Column[Any], key: tuple[str, ...] = ()) -> None:
    op.create_table(
        name,
        _key("tenant_id"),
        _key("context_id"),
        *columns,
        sa.PrimaryKeyConstraint("tenant_id", "context_id", *key, name=f"pk_{name}"),
        sa.CheckConstraint("tenant_id <> ''", name=op.f(f"ck_{name}_tenant")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "context_id"],
            ["looopy_contexts.tenant_id", "looopy_contexts.context_id"],
            name=f"fk_{name}_looopy_contexts",
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=False,
    )
