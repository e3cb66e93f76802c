"""
The tokens of accounts whose price nobody knew, so that no sum of dollars seems complete.

Of what is there, that is known only for sums without any dollar.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_NEW = {
    "looopy_spending": ("unpriced", "held_unpriced"),
    "looopy_reservations": ("unpriced",),
}


def upgrade() -> None:
    """Add columns."""
    for table, names in _NEW.items():
        for name in names:
            column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
            op.add_column(table, column)
    for table, held in (("looopy_spending", ""), ("looopy_spending", "held_")):
        op.execute(
            f"UPDATE {table} SET {held}unpriced = {held}tokens"
            f" WHERE {held}nanos = 0 AND {held}tokens > 0"
        )
    op.execute("UPDATE looopy_reservations SET unpriced = tokens WHERE nanos = 0")


def downgrade() -> None:
    """Drop them."""
    for table, names in _NEW.items():
        for name in reversed(names):
            op.drop_column(table, name)
