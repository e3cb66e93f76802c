"""A mark of the last write of a turn, by which one that was cut short is known again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column to contexts; there is no mark in rows that are there."""
    op.add_column("contexts", sa.Column("last_write", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("contexts", "last_write")
