"""
An index of the words of messages, by which they are searched.

It is empty: a search adds the messages that are not in it. In SQLite the words lie under the number
of their context, as its messages do.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_UPTO = "looopy_searched"
_WORDS = "looopy_words"
_ROWS = "looopy_word_rows"
_TRIGGER = "looopy_words_of_contexts"


def upgrade() -> None:
    """Make the tables."""
    _create(_UPTO, sa.Column("upto", sa.BigInteger(), nullable=False), clustered=True)
    if op.get_context().dialect.name != "sqlite":
        _create(
            _WORDS,
            sa.Column("position", sa.BigInteger(), nullable=False),
            sa.Column("words", TSVECTOR, nullable=False),
            key=("position",),
        )
        op.create_index(f"ix_{_WORDS}_words", _WORDS, ["words"], postgresql_using="gin")
        return
    op.create_table(
        _ROWS,
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("word", sa.Text(), nullable=False),
        sa.Column("places", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", "block", "word", name=f"pk_{_ROWS}"),
        sqlite_with_rowid=False,
    )
    op.execute(
        f"CREATE VIEW {_WORDS} AS SELECT c.tenant_id AS tenant_id, c.context_id AS context_id,"
        " r.block AS block, r.word AS word, r.places AS places"
        f" FROM looopy_contexts c CROSS JOIN {_ROWS} r ON r.number = c.number"
    )
    op.execute(
        f"CREATE TRIGGER {_TRIGGER} AFTER DELETE ON looopy_contexts"
        f" BEGIN DELETE FROM {_ROWS} WHERE number = OLD.number; END"
    )


def downgrade() -> None:
    """Drop them; the next search after an upgrade adds all messages again."""
    if op.get_context().dialect.name == "sqlite":
        op.execute(f"DROP TRIGGER {_TRIGGER}")
        op.execute(f"DROP VIEW {_WORDS}")
        op.drop_table(_ROWS)
    else:
        op.drop_table(_WORDS)
    op.drop_table(_UPTO)


def _key(name: str) -> sa.Column[Any]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)


def _create(
    name: str, *columns: sa.Column[Any], key: tuple[str, ...] = (), clustered: bool = False
) -> None:
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
        sqlite_with_rowid=not clustered,
    )
