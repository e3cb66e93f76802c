"""
A mark of the last write of a turn, by which one that was cut short is known again, and small files.

In SQLite a context gets a number, and the rows of its messages, turns and events lie under it; what
was a table of that name is a view of them, see `looopy/stores/sql/sqlite/statements.py`.

From here on `messages.meta` is a list of what is there, in place of an object with names; rows that
are there stay as they are, and going back gives the names back.
"""

from __future__ import annotations

import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_AT_ONCE = 500
_FIND = sa.text(
    "SELECT tenant_id, context_id, position, created_at, meta FROM looopy_messages"
    " WHERE (tenant_id, context_id, position) > (:tenant, :context, :position)"
    " AND meta LIKE '[%' ORDER BY tenant_id, context_id, position LIMIT :limit"
)
_CHANGE = sa.text(
    "UPDATE looopy_messages SET meta = :meta WHERE tenant_id = :tenant AND context_id = :context"
    " AND position = :position"
)


def upgrade() -> None:
    """Add a column to contexts; there is no mark in rows that are there."""
    if op.get_context().dialect.name == "sqlite":
        _under_numbers()
    else:
        op.add_column("looopy_contexts", sa.Column("last_write", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Drop it, and name again what is said of messages."""
    if op.get_context().dialect.name == "sqlite":
        _under_names()
    else:
        op.drop_column("looopy_contexts", "last_write")
    if context.is_offline_mode():
        return
    connection = op.get_bind()
    after: dict[str, Any] = {"tenant": "", "context": "", "position": 0}
    while found := connection.execute(_FIND, {**after, "limit": _AT_ONCE}).all():
        rows = [
            {"tenant": t, "context": c, "position": p, "meta": _named(json.loads(meta), created)}
            for t, c, p, created, meta in found
        ]
        connection.execute(_CHANGE, rows)
        after = {k: rows[-1][k] for k in after}


def _named(facts: list[int | None], created: int) -> str:
    before, delta, attempts, *ran = [*facts, *[None] * (3 - len(facts))]
    named: dict[str, Any] = {}
    if before is not None:
        named["started"] = created - before
    if delta is not None:
        named["first_delta_s"] = delta / 1_000_000
    if attempts is not None:
        named["attempts"] = attempts
    if ran:
        began, lasted, ended = ran
        named["ran"] = [
            None if began is None else created - began,
            (lasted or 0) / 1_000_000,
            created - (ended or 0),
        ]
    return json.dumps(named, separators=(",", ":"))


# --- the numbers of SQLite ---

# A row's key is the number of its context with a place behind it. A few rows are written before
# that of their context is: they have room beyond what its row allows.
_LAST = 2**32 - 1
_LAST_COUNT = 2**32 - 2**16 - 1
_COUNTERS = ("last_position", "last_seq", "turn_count")

# The columns of contexts: a text or a number, `?` where there may be none, and those of 0002.
_FACTS = (
    "epoch turn_count last_position last_seq visible_from cleared_seq open_turn? holder:text?"
    " lease_until? owner_actor:text? state:text metadata:text version created_at last_activity"
    " inbox_last=0 inbox_waiting=0 cancel_turn? last_ticket=0 line_until?"
)
_TURN = (
    "epoch continues? actor_id:text? had_auth outcome:text? stop_reason:text? start_seq end_seq?"
    " first_position last_position user_position? started_at ended_at? usage:text metadata:text"
)
_MESSAGE = "turn iteration seq role:text created_at meta:text? body:text"
_EVENT = "turn iteration type:text created_at position? body:text"

# What tells a row from the others of its context, and all that it says.
_TABLES = {
    "looopy_turns": ("turn", _TURN),
    "looopy_messages": ("position", _MESSAGE),
    "looopy_events": ("seq", _EVENT),
}
_ROWS = {
    "looopy_turns": (
        "looopy_turn_rows",
        _TURN.replace("usage:text metadata:text", "usage:text? metadata:text?"),
    ),
    "looopy_messages": ("looopy_message_rows", _MESSAGE.replace("role:text ", "")),
    "looopy_events": ("looopy_event_rows", _EVENT),
}

# What is left out of a row, and how it is told from the row.
_LEFT_OUT = {
    ("looopy_turns", "outcome"): (
        "NULLIF(r.outcome, 'completed')",
        "CASE WHEN r.end_seq IS NOT NULL THEN COALESCE(r.outcome, 'completed') END",
    ),
    ("looopy_turns", "stop_reason"): (
        "NULLIF(r.stop_reason, 'stop')",
        "CASE WHEN r.end_seq IS NOT NULL THEN COALESCE(r.stop_reason, 'stop') END",
    ),
    ("looopy_turns", "usage"): ("NULLIF(r.usage, '{}')", "COALESCE(r.usage, '{}')"),
    ("looopy_turns", "metadata"): ("NULLIF(r.metadata, '{}')", "COALESCE(r.metadata, '{}')"),
    ("looopy_messages", "role"): ("", "json_extract(r.body, '$.role')"),
}


def _under_numbers() -> None:
    _contexts_anew(numbered=True)
    for name, (place, facts) in _TABLES.items():
        rows, kept = _ROWS[name]
        _table(rows, "id:key", kept, key=("id",))
        names = _names(kept)
        values = ", ".join(_LEFT_OUT.get((name, n), (f"r.{n}", ""))[0] for n in names)
        op.execute(
            f"INSERT INTO {rows} (id, {', '.join(names)})"
            f" SELECT c.number << 32 | r.{place}, {values} FROM looopy_contexts c JOIN {name} r"
            " ON r.tenant_id = c.tenant_id AND r.context_id = c.context_id"
            f" ORDER BY c.number, r.{place}"
        )
        op.drop_table(name)
        told = ", ".join(f"{value} AS {n}" for n, value in _told(name, place, facts).items())
        op.execute(f"CREATE VIEW {name} AS SELECT {told}{_of_contexts(rows)}")
    deletes = " ".join(
        f"DELETE FROM {rows} WHERE id >= (OLD.number << 32) AND id <= (OLD.number << 32 | {_LAST});"
        for rows, _ in _ROWS.values()
    )
    op.execute(
        "CREATE TRIGGER looopy_rows_of_contexts AFTER DELETE ON looopy_contexts"
        f" BEGIN {deletes} END"
    )


def _under_names() -> None:
    op.execute("DROP TRIGGER looopy_rows_of_contexts")
    for name, (place, facts) in _TABLES.items():
        rows, _ = _ROWS[name]
        op.execute(f"DROP VIEW {name}")
        _table(
            name,
            "tenant_id:text context_id:text",
            f"{place} {facts}",
            key=("tenant_id", "context_id", place),
            of_contexts=True,
            clustered=name != "looopy_messages",
        )
        told = _told(name, place, facts)
        op.execute(
            f"INSERT INTO {name} ({', '.join(told)}) SELECT {', '.join(told.values())}"
            f"{_of_contexts(rows)} ORDER BY r.id"
        )
        op.drop_table(rows)
    _contexts_anew(numbered=False)


def _of_contexts(rows: str) -> str:
    """Contexts with their rows, in this order whatever is looked for."""
    its = f"r.id >= (c.number << 32) AND r.id <= (c.number << 32 | {_LAST})"
    return f" FROM looopy_contexts c CROSS JOIN {rows} r ON {its}"


def _told(name: str, place: str, facts: str) -> dict[str, str]:
    """What each column of a table is in terms of a context `c` and one of its rows `r`."""
    return {
        "tenant_id": "c.tenant_id",
        "context_id": "c.context_id",
        place: f"r.id & {_LAST}",
        **{n: _LEFT_OUT.get((name, n), ("", f"r.{n}"))[1] for n in _names(facts)},
    }


def _contexts_anew(*, numbered: bool) -> None:
    """Make the table anew: SQLite does not change the key of one that is there."""
    op.execute("CREATE TABLE looopy_contexts_before AS SELECT * FROM looopy_contexts")
    op.drop_table("looopy_contexts")
    id_of = "tenant_id:text context_id:text"
    if numbered:
        unique = sa.UniqueConstraint("tenant_id", "context_id", name="uq_looopy_contexts_tenant_id")
        checks = {
            "number": "number BETWEEN 1 AND 2147483647",
            **{name: f"{name} <= {_LAST_COUNT}" for name in _COUNTERS},
        }
        named = [
            sa.CheckConstraint(c, name=op.f(f"ck_looopy_contexts_{n}")) for n, c in checks.items()
        ]
        facts = f"{_FACTS} last_write?"
        more = (unique, *named)
        _table("looopy_contexts", f"number:key {id_of}", facts, *more, key=("number",), tenant=True)
    else:
        key = ("tenant_id", "context_id")
        _table("looopy_contexts", id_of, _FACTS, key=key, tenant=True, clustered=True)
    names = ", ".join(_names(f"{id_of} {_FACTS}"))
    op.execute(
        f"INSERT INTO looopy_contexts ({names}) SELECT {names} FROM looopy_contexts_before"
        " ORDER BY tenant_id, context_id"
    )
    op.drop_table("looopy_contexts_before")


def _names(facts: str) -> list[str]:
    return [re.split("[:=?]", fact)[0] for fact in facts.split()]


def _table(
    name: str,
    first: str,
    facts: str,
    *constraints: Any,
    key: tuple[str, ...],
    of_contexts: bool = False,
    tenant: bool = False,
    clustered: bool = False,
) -> None:
    made: list[Any] = [sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"), *constraints]
    if of_contexts or tenant:
        made.append(sa.CheckConstraint("tenant_id <> ''", name=op.f(f"ck_{name}_tenant")))
    if of_contexts:
        key_of = ["looopy_contexts.tenant_id", "looopy_contexts.context_id"]
        named = f"fk_{name}_looopy_contexts"
        here = ["tenant_id", "context_id"]
        made.append(sa.ForeignKeyConstraint(here, key_of, name=named, ondelete="CASCADE"))
    columns = [_column(fact) for fact in f"{first} {facts}".split()]
    op.create_table(name, *columns, *made, sqlite_with_rowid=not clustered)


def _column(fact: str) -> sa.Column[Any]:
    """A column by its fact, such as `holder:text?` or `inbox_last=0`."""
    (name,) = _names(fact)
    kind = sa.Text() if ":text" in fact else sa.Integer() if ":key" in fact else sa.BigInteger()
    default = "0" if "=" in fact else None
    return sa.Column(name, kind, nullable=fact.endswith("?"), server_default=default)
