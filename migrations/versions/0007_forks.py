"""
Contexts that share the past of another one, or hide a part of their own.

A row of `lineage` says up to where the rows of a context are those of another, and one of `instead`
where a fork finds an artifact that one of the two has deleted since. Contexts that are there have a
past of their own, which is what no row and no value mean.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from alembic.util import CommandError

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_LINEAGE = "looopy_lineage"
_INSTEAD = "looopy_instead"
_BUILDING = "ix_looopy_artifacts_building"
_NEEDED = "SELECT 1 FROM looopy_contexts WHERE past IS NOT NULL LIMIT 1"


def upgrade() -> None:
    """Add columns and two tables."""
    op.add_column("looopy_contexts", sa.Column("past", sa.Text(), nullable=True))
    op.add_column("looopy_contexts", sa.Column("forks", sa.BigInteger(), nullable=True))
    op.add_column("looopy_artifacts", sa.Column("forks", sa.BigInteger(), nullable=True))
    some = sa.text("status = 'building'")
    op.create_index(
        _BUILDING,
        "looopy_artifacts",
        ["tenant_id", "context_id"],
        postgresql_where=some,
        sqlite_where=some,
    )
    names = ("position", "seq", "turn", "number")
    counts = [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]
    depth = sa.Column("depth", sa.BigInteger(), nullable=False)
    _create(_LINEAGE, depth, _key("source"), *counts, key=("depth",))
    depth = sa.Column("depth", sa.BigInteger(), nullable=False)
    source = _key("source", null=True)
    _create(_INSTEAD, _key("artifact_id"), depth, source, key=("artifact_id", "depth"))


def downgrade() -> None:
    """Drop them, unless a context needs them."""
    removes_all = context.get_revision_argument() in (None, (), "base")
    if not (removes_all or context.is_offline_mode()):
        needed = op.get_bind().execute(sa.text(_NEEDED)).first()
        if needed is not None:
            raise CommandError(
                "some contexts are forks, or were rewound: delete or clear them before going back"
            )
    op.drop_table(_INSTEAD)
    op.drop_table(_LINEAGE)
    op.drop_index(_BUILDING, "looopy_artifacts")
    op.drop_column("looopy_artifacts", "forks")
    op.drop_column("looopy_contexts", "forks")
    op.drop_column("looopy_contexts", "past")


def _key(name: str, *, null: bool = False) -> sa.Column[Any]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=null)


def _create(name: str, *columns: sa.Column[Any], key: tuple[str, ...]) -> None:
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
    op.create_index(f"ix_{name}_tenant_id_source", name, ["tenant_id", "source"])
