"""
All tables: contexts and everything that is stored with them, and the accounts of budgets.

In SQLite a context has a number, and its messages, turns, events and words are stored under it.
Views give them the columns that a server's tables have; `looopy/stores/sql/sqlite/statements.py`
uses them.
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None

# A column is a number, or `name:key`, `name:text` and so on; `?` may be null, `=0` is a default.
_CONTEXT = (
    "epoch turn_count last_position last_seq visible_from cleared_seq open_turn? holder:text?"
    " lease_until? owner_actor:text? state:text metadata:text version created_at last_activity"
    " inbox_last=0 inbox_waiting=0 cancel_turn? last_ticket=0 queued_until? last_write? tags:text?"
    " rewound:text?"
)
_TURN = (
    "epoch continues? actor_id:text? had_auth outcome:text? stop_reason:text? start_seq end_seq?"
    " first_position last_position user_position? started_at ended_at? usage:text metadata:text"
    " process:text? recovered_by:text?"
)
_MESSAGE = "turn iteration seq role:text created_at meta:text? body:text"
_EVENT = "turn iteration type:text created_at position? body:text"

# These rows are updated often, and no index changes: the new version fits beside the old one.
_ROOM = {"fillfactor": 50}

# A row's key in SQLite is the number of its context, with its place in the lower half. Some rows
# are written before their context's row counts them, so the counters stay below the last place.
_LAST_PLACE = 2**32 - 1
_LAST_COUNT = 2**32 - 2**16 - 1
_COUNTERS = ("last_position", "last_seq", "turn_count")

# Columns that a row in SQLite lacks, or has only for an unusual value, and how a view finds them.
_FOUND = {
    "role": "json_extract(r.body, '$.role')",
    "outcome": "CASE WHEN r.end_seq IS NOT NULL THEN COALESCE(r.outcome, 'completed') END",
    "stop_reason": "CASE WHEN r.end_seq IS NOT NULL THEN COALESCE(r.stop_reason, 'stop') END",
    "usage": "COALESCE(r.usage, '{}')",
    "metadata": "COALESCE(r.metadata, '{}')",
}


def upgrade() -> None:
    """Make the tables."""
    if op.get_context().dialect.name == "sqlite":
        _make_rows_under_numbers()
    else:
        _of_tenants("contexts", "context_id:key", _CONTEXT, clustered=True, postgresql_with=_ROOM)
        _of_contexts("turns", "turn", _TURN, clustered=True)
        _of_contexts("messages", "position", _MESSAGE)
        _of_contexts("events", "seq", _EVENT, clustered=True)
        _of_contexts("words", "position", "words:words")
        op.create_index("ix_looopy_words_words", "looopy_words", ["words"], postgresql_using="gin")
    _of_contexts(
        "artifacts",
        "artifact_id:key version",
        "kind:text media_type:text status:text size sha256:text created_at turn data:text?"
        " bytes:bytes? description:text? metadata:text? row_schema:text? row_count=0 part_count=0",
    )
    _of_contexts(
        "artifact_parts",
        "artifact_id:key version part",
        "start size sha256:text first_row row_count blob:text? bytes:bytes?",
    )
    _index("artifact_parts", "sha256")
    _of_contexts("inbox", "entry", "kind:text actor_id:text? created_at body:text")
    _of_contexts("turn_keys", "key:key", "turn input_hash:text", clustered=True)
    _of_contexts("waiters", "ticket", "holder:text alive_until", clustered=True)
    _of_contexts("context_index", "label:key", "status:text touched due_at?", clustered=True)
    listed = ("label", "touched", "context_id")
    _index("context_index", *listed, name="all")
    _index("context_index", *listed, name="due", where="due_at IS NOT NULL")
    _of_contexts("unindexed", "", "", clustered=True)
    _of_contexts("searched", "", "upto", clustered=True)
    _of_contexts("lineage", "", "parent:key? position", clustered=True)
    _index("lineage", "parent")
    _of_contexts("inner", "", "outer_id:key call_key:key", clustered=True)
    _index("inner", "outer_id", "call_key", unique=True)
    _of_tenants("uploads", "blob:key", "holder:text held_until", clustered=True)
    _of_tenants(
        "spending",
        "account:key period:key",
        "tokens nanos held_tokens held_nanos unpriced=0 held_unpriced=0",
        clustered=True,
        postgresql_with=_ROOM,
    )
    _of_tenants(
        "reservations",
        "reservation:key",
        "place:key turn tokens nanos charges:text made_at unpriced=0",
        clustered=True,
    )
    _index("reservations", "place", "turn")


def downgrade() -> None:
    """Drop the tables with everything in them."""
    if op.get_context().dialect.name == "sqlite":
        for name in ("turns", "messages", "events", "words"):
            op.execute(f"DROP VIEW looopy_{name}")
        of_engine = "turn_rows message_rows event_rows word_rows"
    else:
        of_engine = "turns messages events words"
    of_both = "artifacts artifact_parts inbox turn_keys waiters context_index unindexed searched"
    of_both += " lineage inner uploads spending reservations"
    for name in (*of_both.split(), *of_engine.split(), "contexts"):
        op.drop_table(f"looopy_{name}")


# --- rows under numbers, in SQLite ---


def _make_rows_under_numbers() -> None:
    checks = {
        "tenant": "tenant_id <> ''",
        "number": "number BETWEEN 1 AND 2147483647",
        **{name: f"{name} <= {_LAST_COUNT}" for name in _COUNTERS},
    }
    _table(
        "contexts",
        "number:id",
        f"tenant_id:key context_id:key {_CONTEXT}",
        sa.UniqueConstraint("tenant_id", "context_id", name="uq_looopy_contexts_tenant_id"),
        *(_check("contexts", name, condition) for name, condition in checks.items()),
    )
    its = f"id >= ({{c}}.number << 32) AND {{r}}id <= ({{c}}.number << 32 | {_LAST_PLACE})"
    deletes = []
    for name, rows, place, facts in (
        ("turns", "turn_rows", "turn", _TURN),
        ("messages", "message_rows", "position", _MESSAGE),
        ("events", "event_rows", "seq", _EVENT),
    ):
        lacking = facts.replace("usage:text metadata:text", "usage:text? metadata:text?")
        _table(rows, "id:id", lacking.replace("role:text ", ""))
        columns = {place: f"r.id & {_LAST_PLACE}"}
        columns |= {n: _FOUND.get(n, f"r.{n}") for n in _names(facts)}
        _view(name, columns, rows, "r." + its.format(c="c", r="r."))
        deletes.append(f"DELETE FROM looopy_{rows} WHERE {its.format(c='OLD', r='')};")
    _table("word_rows", "number block word:text", "places:text", clustered=True)
    columns = {n: f"r.{n}" for n in ("block", "word", "places")}
    _view("words", columns, "word_rows", "r.number = c.number")
    deletes.append("DELETE FROM looopy_word_rows WHERE number = OLD.number;")
    op.execute(
        "CREATE TRIGGER looopy_rows_of_contexts AFTER DELETE ON looopy_contexts"
        f" BEGIN {' '.join(deletes)} END"
    )


def _view(name: str, columns: dict[str, str], rows: str, condition: str) -> None:
    """Contexts with their rows; the cross join has them read in this order by every query."""
    shown = {"tenant_id": "c.tenant_id", "context_id": "c.context_id", **columns}
    op.execute(
        f"CREATE VIEW looopy_{name} AS"
        f" SELECT {', '.join(f'{value} AS {column}' for column, value in shown.items())}"
        f" FROM looopy_contexts c CROSS JOIN looopy_{rows} r ON {condition}"
    )


# --- tables ---


def _of_tenants(
    name: str, key: str, facts: str, *constraints: Any, clustered: bool, **options: Any
) -> None:
    tenant = _check(name, "tenant", "tenant_id <> ''")
    key = f"tenant_id:key {key}"
    _table(name, key, facts, tenant, *constraints, clustered=clustered, **options)


def _of_contexts(name: str, key: str, facts: str, *, clustered: bool = False) -> None:
    context = sa.ForeignKeyConstraint(
        ["tenant_id", "context_id"],
        ["looopy_contexts.tenant_id", "looopy_contexts.context_id"],
        name=f"fk_looopy_{name}_looopy_contexts",
        ondelete="CASCADE",
    )
    _of_tenants(name, f"context_id:key {key}", facts, context, clustered=clustered)


def _table(
    name: str, key: str, facts: str, *constraints: Any, clustered: bool = False, **options: Any
) -> None:
    op.create_table(
        f"looopy_{name}",
        *(_column(fact) for fact in f"{key} {facts}".split()),
        sa.PrimaryKeyConstraint(*_names(key), name=f"pk_looopy_{name}"),
        *constraints,
        sqlite_with_rowid=not clustered,
        **options,
    )


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_looopy_{table}_{name}"))


def _index(
    table: str, *columns: str, name: str = "", where: str | None = None, unique: bool = False
) -> None:
    some = None if where is None else sa.text(where)
    op.create_index(
        f"ix_looopy_{table}_{name or '_'.join(('tenant_id', *columns))}",
        f"looopy_{table}",
        ["tenant_id", *columns],
        unique=unique,
        postgresql_where=some,
        sqlite_where=some,
    )


def _names(facts: str) -> list[str]:
    return [re.split("[:=?]", fact)[0] for fact in facts.split()]


_KINDS = {
    "id": sa.Integer(),
    "key": sa.Text().with_variant(sa.Text(collation="C"), "postgresql"),
    "text": sa.Text(),
    "bytes": sa.LargeBinary(),
    "words": TSVECTOR(),
}


def _column(fact: str) -> sa.Column[Any]:
    (name,) = _names(fact)
    kind = re.search(r":(\w+)", fact)
    return sa.Column(
        name,
        _KINDS[kind[1]] if kind else sa.BigInteger(),
        nullable=fact.endswith("?"),
        server_default="0" if fact.endswith("=0") else None,
    )
