"""
The processes of a turn: which one ran it, and which one took it over.

Turns that are there have no value: nobody noted their processes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_NEW = ("process", "recovered_by")
_PLACE = 2**32 - 1
_COLUMNS = {
    "tenant_id": "c.tenant_id",
    "context_id": "c.context_id",
    "turn": f"r.id & {_PLACE}",
    **{name: f"r.{name}" for name in ("epoch", "continues", "actor_id", "had_auth")},
    "outcome": "CASE WHEN r.end_seq IS NOT NULL THEN COALESCE(r.outcome, 'completed') END",
    "stop_reason": "CASE WHEN r.end_seq IS NOT NULL THEN COALESCE(r.stop_reason, 'stop') END",
    **{name: f"r.{name}" for name in ("start_seq", "end_seq", "first_position", "last_position")},
    **{name: f"r.{name}" for name in ("user_position", "started_at", "ended_at")},
    "usage": "COALESCE(r.usage, '{}')",
    "metadata": "COALESCE(r.metadata, '{}')",
}


def upgrade() -> None:
    """Add two columns."""
    if op.get_context().dialect.name != "sqlite":
        for name in _NEW:
            op.add_column("looopy_turns", sa.Column(name, sa.Text(), nullable=True))
        return
    op.execute("DROP VIEW looopy_turns")
    for name in _NEW:
        op.add_column("looopy_turn_rows", sa.Column(name, sa.Text(), nullable=True))
    _make_view(*_NEW)


def downgrade() -> None:
    """Drop them."""
    if op.get_context().dialect.name != "sqlite":
        for name in reversed(_NEW):
            op.drop_column("looopy_turns", name)
        return
    op.execute("DROP VIEW looopy_turns")
    for name in reversed(_NEW):
        op.drop_column("looopy_turn_rows", name)
    _make_view()


def _make_view(*more: str) -> None:
    """SQLite's view of the turns, under the names that they have elsewhere."""
    columns = {**_COLUMNS, **{name: f"r.{name}" for name in more}}
    told = ", ".join(f"{value} AS {name}" for name, value in columns.items())
    op.execute(
        f"CREATE VIEW looopy_turns AS SELECT {told} FROM looopy_contexts c"
        " CROSS JOIN looopy_turn_rows r"
        f" ON r.id >= (c.number << 32) AND r.id <= (c.number << 32 | {_PLACE})"
    )
