"""
What the accounts of owners and tenants have spent in a day or a month.

A row of `spending` has the sums of one account in one period, and a row of `reservations` the most
that one running model call may use. Neither belongs to a context. Accounts that have no rows have
spent nothing, which is what all had before.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SUMS = "looopy_spending"
_HELD = "looopy_reservations"
_OF_TURNS = f"ix_{_HELD}_tenant_id_place_turn"
_ROOM = {"fillfactor": 50}  # each call updates the same rows


def upgrade() -> None:
    """Add the tables."""
    _create(
        _SUMS,
        _key("account"),
        _key("period"),
        *(_number(name) for name in ("tokens", "nanos", "held_tokens", "held_nanos")),
        key=("account", "period"),
        postgresql_with=_ROOM,
    )
    _create(
        _HELD,
        _key("reservation"),
        _key("place"),
        *(_number(name) for name in ("turn", "tokens", "nanos")),
        sa.Column("charges", sa.Text(), nullable=False),
        _number("made_at"),
        key=("reservation",),
    )
    op.create_index(_OF_TURNS, _HELD, ["tenant_id", "place", "turn"])


def downgrade() -> None:
    """Drop them: what was spent is forgotten."""
    op.drop_table(_HELD)
    op.drop_table(_SUMS)


def _key(name: str) -> sa.Column[Any]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _create(name: str, *columns: sa.Column[Any], key: tuple[str, ...], **options: Any) -> None:
    op.create_table(
        name,
        _key("tenant_id"),
        *columns,
        sa.PrimaryKeyConstraint("tenant_id", *key, name=f"pk_{name}"),
        sa.CheckConstraint("tenant_id <> ''", name=op.f(f"ck_{name}_tenant")),
        sqlite_with_rowid=False,
        **options,
    )
