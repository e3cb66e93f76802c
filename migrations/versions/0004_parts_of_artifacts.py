"""Large artifacts in parts, datasets, and what is said of an artifact."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLE = "looopy_artifact_parts"
_TEXTS = ("description", "metadata", "row_schema")
_COUNTS = ("row_count", "part_count")


def upgrade() -> None:
    """Add columns to artifacts, and a table of their parts."""
    for name in _TEXTS:
        op.add_column("looopy_artifacts", sa.Column(name, sa.Text(), nullable=True))
    for name in _COUNTS:
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        op.add_column("looopy_artifacts", column)
    op.create_table(
        _TABLE,
        *(_key(name) for name in ("tenant_id", "context_id", "artifact_id")),
        *(_number(name) for name in ("version", "part", "start", "size")),
        sa.Column("sha256", sa.Text(), nullable=False),
        *(_number(name) for name in ("first_row", "row_count")),
        sa.Column("blob", sa.Text(), nullable=True),
        sa.Column("bytes", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint(
            "tenant_id", "context_id", "artifact_id", "version", "part", name=f"pk_{_TABLE}"
        ),
        sa.CheckConstraint("tenant_id <> ''", name=op.f(f"ck_{_TABLE}_tenant")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "context_id"],
            ["looopy_contexts.tenant_id", "looopy_contexts.context_id"],
            name=f"fk_{_TABLE}_looopy_contexts",
            ondelete="CASCADE",
        ),
    )
    op.create_index(f"ix_{_TABLE}_tenant_id_sha256", _TABLE, ["tenant_id", "sha256"])


def downgrade() -> None:
    """
    Drop them, with every version that the earlier schema cannot hold, and those before it.

    Such are versions in parts, those that are not complete, and datasets.
    """
    op.execute(
        "DELETE FROM looopy_artifacts WHERE EXISTS (SELECT 1 FROM looopy_artifacts n WHERE"
        " n.tenant_id = looopy_artifacts.tenant_id AND n.context_id = looopy_artifacts.context_id"
        " AND n.artifact_id = looopy_artifacts.artifact_id"
        " AND n.version >= looopy_artifacts.version AND (n.part_count > 0"
        " OR n.status <> 'complete' OR n.kind = 'dataset'))"
    )
    op.drop_table(_TABLE)
    for name in (*_COUNTS, *_TEXTS):
        op.drop_column("looopy_artifacts", name)


def _key(name: str) -> sa.Column[str]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)
