"""
The schema as SQLAlchemy tables: a reference for readers, which a test compares with `migrations/`.

Nothing on the hot path imports this module: SQLAlchemy takes longer to load than a restarted
process has to accept its first turn. Reads and writes are text in `statements.py`.

Every key begins with `(tenant_id, context_id)`, except in accounts and uploads, so the
tables can be partitioned and sharded by it; no number comes from a sequence, no order from a
timestamp. Times are integer microseconds since 1970, UTC; JSON is text, kept as it was written.
Rows are found by primary key alone, but for the parts of artifacts and words: an event by the turn
whose range of `seq` holds it, so no other index has to be written. Forks have one, by which their
parent finds them.

In SQLite, tables of short rows are clustered by their key: one page to write instead of two. SQLite
keeps turns, messages and events under the number of their context (`sqlite_metadata`), with views
that look like the tables here: see `sqlite/statements.py`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

from looopy.stores.sql.statements import PREFIX

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = MetaData(naming_convention=_NAMES)
sqlite_metadata = MetaData(naming_convention=_NAMES)

# Code-point order on both dialects: SQLite compares bytes of UTF-8 anyway.
_key = Text().with_variant(Text(collation="C"), "postgresql")


# Every commit updates the row of its context, and no index changes: with room on its page the new
# version of the row goes beside the old one.
_ROOM = {"fillfactor": 50}


def _table(name: str, *columns: Column[Any], key: tuple[str, ...], clustered: bool) -> Table:
    """A table whose key begins with tenant and context, and whose rows go with their context."""
    constraints: list[Any] = [
        PrimaryKeyConstraint("tenant_id", "context_id", *key),
        CheckConstraint("tenant_id <> ''", name="tenant"),
    ]
    if name != "contexts":
        constraints.append(
            ForeignKeyConstraint(
                ["tenant_id", "context_id"],
                [f"{PREFIX}contexts.tenant_id", f"{PREFIX}contexts.context_id"],
                ondelete="CASCADE",
            )
        )
    return Table(
        f"{PREFIX}{name}",
        metadata,
        Column("tenant_id", _key, nullable=False),
        Column("context_id", _key, nullable=False),
        *columns,
        *constraints,
        sqlite_with_rowid=not clustered,
        postgresql_with=_ROOM if name == "contexts" else {},
    )


def _number(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    return Column(name, BigInteger, nullable=null, server_default=default)


def _text(name: str, *, null: bool = False) -> Column[Any]:
    return Column(name, Text, nullable=null)


contexts = _table(
    "contexts",
    _number("epoch"),
    _number("turn_count"),
    _number("last_position"),
    _number("last_seq"),
    _number("visible_from"),
    _number("cleared_seq"),
    _number("open_turn", null=True),
    _text("holder", null=True),
    _number("lease_until", null=True),
    _text("owner_actor", null=True),
    _text("state"),
    _text("metadata"),
    _number("version"),
    _number("created_at"),
    _number("last_activity"),
    _number("inbox_last", default="0"),
    _number("inbox_waiting", default="0"),
    _number("cancel_turn", null=True),
    _number("last_ticket", default="0"),
    _number("queued_until", null=True),
    _number("last_write", null=True),
    _text("tags", null=True),
    _text("rewound", null=True),
    key=(),
    clustered=True,
)

turns = _table(
    "turns",
    _number("turn"),
    _number("epoch"),
    _number("continues", null=True),
    _text("actor_id", null=True),
    _number("had_auth"),
    _text("outcome", null=True),
    _text("stop_reason", null=True),
    _number("start_seq"),
    _number("end_seq", null=True),
    _number("first_position"),
    _number("last_position"),
    _number("user_position", null=True),
    _number("started_at"),
    _number("ended_at", null=True),
    _text("usage"),
    _text("metadata"),
    _text("process", null=True),
    _text("recovered_by", null=True),
    key=("turn",),
    clustered=True,
)

# The body comes last in each row, so that what precedes it is read without it.
messages = _table(
    "messages",
    _number("position"),
    _number("turn"),
    _number("iteration"),
    _number("seq"),
    _text("role"),
    _number("created_at"),
    _text("meta", null=True),
    _text("body"),
    key=("position",),
    clustered=False,
)

events = _table(
    "events",
    _number("seq"),
    _number("turn"),
    _number("iteration"),
    _text("type"),
    _number("created_at"),
    _number("position", null=True),
    _text("body"),
    key=("seq",),
    clustered=True,
)

artifacts = _table(
    "artifacts",
    Column("artifact_id", _key, nullable=False),
    _number("version"),
    _text("kind"),
    _text("media_type"),
    _text("status"),
    _number("size"),
    _text("sha256"),
    _number("created_at"),
    _number("turn"),
    _text("data", null=True),
    Column("bytes", LargeBinary, nullable=True),
    _text("description", null=True),
    _text("metadata", null=True),
    _text("row_schema", null=True),
    _number("row_count", default="0"),
    _number("part_count", default="0"),
    key=("artifact_id", "version"),
    clustered=False,
)

# The one index beside the primary keys: equal content is found by its hash, in all contexts of a
# tenant, and so are the rows that name a blob. Nothing but large artifacts has rows here.
artifact_parts = _table(
    "artifact_parts",
    Column("artifact_id", _key, nullable=False),
    _number("version"),
    _number("part"),
    _number("start"),
    _number("size"),
    _text("sha256"),
    _number("first_row"),
    _number("row_count"),
    _text("blob", null=True),
    Column("bytes", LargeBinary, nullable=True),
    key=("artifact_id", "version", "part"),
    clustered=False,
)
Index(None, artifact_parts.c.tenant_id, artifact_parts.c.sha256)

# Blobs that a process has written, or is writing, for a row to come: others may not remove them.
uploads = Table(
    f"{PREFIX}uploads",
    metadata,
    Column("tenant_id", _key, nullable=False),
    Column("blob", _key, nullable=False),
    _text("holder"),
    _number("held_until"),
    PrimaryKeyConstraint("tenant_id", "blob"),
    CheckConstraint("tenant_id <> ''", name="tenant"),
    sqlite_with_rowid=False,
)

inbox = _table(
    "inbox",
    _number("entry"),
    _text("kind"),
    _text("actor_id", null=True),
    _number("created_at"),
    _text("body"),
    key=("entry",),
    clustered=False,
)

turn_keys = _table(
    "turn_keys",
    Column("key", _key, nullable=False),
    _number("turn"),
    _text("input_hash"),
    key=("key",),
    clustered=True,
)

waiters = _table(
    "waiters",
    _number("ticket"),
    _text("holder"),
    _number("alive_until"),
    key=("ticket",),
    clustered=True,
)

# The labels of contexts in listings, apart from their rows, which have no index that changes.
context_index = _table(
    "context_index",
    Column("label", _key, nullable=False),
    _text("status"),
    _number("touched"),
    _number("due_at", null=True),
    key=("label",),
    clustered=True,
)

# The contexts whose rows in the index are out of date.
unindexed = _table("unindexed", key=(), clustered=True)

# Up to which position the words of a context's messages are in the next table.
searched = _table("searched", _number("upto"), key=(), clustered=True)

words = _table(
    "words",
    _number("position"),
    Column("words", TSVECTOR, nullable=False),
    key=("position",),
    clustered=False,
)
Index(None, words.c.words, postgresql_using="gin")


def _walk(name: str, where: str | None = None) -> None:
    some = None if where is None else text(where)
    Index(
        f"ix_{PREFIX}context_index_{name}",
        *(context_index.c[c] for c in ("tenant_id", "label", "touched", "context_id")),
        postgresql_where=some,
        sqlite_where=some,
    )


_walk("all")
_walk("due", where="due_at IS NOT NULL")
# Where each fork was made; its parent is null once that was deleted or cleared.
lineage = _table(
    "lineage",
    Column("parent", _key, nullable=True),
    _number("position"),
    key=(),
    clustered=True,
)
Index(None, lineage.c.tenant_id, lineage.c.parent)

# For which call of which context an agent that is a tool works in this one. It is found by the
# call, which has one such context.
inner = _table(
    "inner",
    Column("outer_id", _key, nullable=False),
    Column("call_key", _key, nullable=False),
    key=(),
    clustered=True,
)
Index(None, inner.c.tenant_id, inner.c.outer_id, inner.c.call_key, unique=True)

# The use of an owner's or the tenant's account in a day or a month, and what running
# calls may still use. An account outlives the contexts that it paid for.
spending = Table(
    f"{PREFIX}spending",
    metadata,
    Column("tenant_id", _key, nullable=False),
    Column("account", _key, nullable=False),
    Column("period", _key, nullable=False),
    _number("tokens"),
    _number("nanos"),
    _number("held_tokens"),
    _number("held_nanos"),
    _number("unpriced", default="0"),
    _number("held_unpriced", default="0"),
    PrimaryKeyConstraint("tenant_id", "account", "period"),
    CheckConstraint("tenant_id <> ''", name="tenant"),
    sqlite_with_rowid=False,
    postgresql_with=_ROOM,
)

# The most that one running call may use, until it is known how much it has used.
reservations = Table(
    f"{PREFIX}reservations",
    metadata,
    Column("tenant_id", _key, nullable=False),
    Column("reservation", _key, nullable=False),
    Column("place", _key, nullable=False),
    _number("turn"),
    _number("tokens"),
    _number("nanos"),
    _text("charges"),
    _number("made_at"),
    _number("unpriced", default="0"),
    PrimaryKeyConstraint("tenant_id", "reservation"),
    CheckConstraint("tenant_id <> ''", name="tenant"),
    sqlite_with_rowid=False,
)
Index(None, reservations.c.tenant_id, reservations.c.place, reservations.c.turn)


# --- SQLite's own ---

# The largest number of a context, and of what it counts: see `sqlite/statements.py`.
_LAST_NUMBER = 2**31 - 1
_LAST_COUNT = 2**32 - 2**16 - 1


def _like(table: Table, *without: str, may_lack: tuple[str, ...] = ()) -> list[Column[Any]]:
    return [
        Column(
            column.name,
            column.type,
            nullable=bool(column.nullable) or column.name in may_lack,
            server_default=column.server_default,
        )
        for column in table.columns
        if column.name not in without
    ]


def _rows(name: str, table: Table, *without: str, may_lack: tuple[str, ...] = ()) -> Table:
    """The rows of *table*, each under the number of its context and its place in it."""
    return Table(
        f"{PREFIX}{name}",
        sqlite_metadata,
        Column("id", Integer, nullable=False),
        *_like(table, "tenant_id", "context_id", *without, may_lack=may_lack),
        PrimaryKeyConstraint("id"),
    )


Table(
    f"{PREFIX}contexts",
    sqlite_metadata,
    Column("number", Integer, nullable=False),
    *_like(contexts),
    PrimaryKeyConstraint("number"),
    UniqueConstraint("tenant_id", "context_id"),
    CheckConstraint("tenant_id <> ''", name="tenant"),
    CheckConstraint(f"number BETWEEN 1 AND {_LAST_NUMBER}", name="number"),
    *(
        CheckConstraint(f"{name} <= {_LAST_COUNT}", name=name)
        for name in ("last_position", "last_seq", "turn_count")
    ),
)
turn_rows = _rows("turn_rows", turns, "turn", may_lack=("usage", "metadata"))
message_rows = _rows("message_rows", messages, "position", "role")
event_rows = _rows("event_rows", events, "seq")
word_rows = Table(
    f"{PREFIX}word_rows",
    sqlite_metadata,
    _number("number"),
    _number("block"),
    _text("word"),
    _text("places"),
    PrimaryKeyConstraint("number", "block", "word"),
    sqlite_with_rowid=False,
)
for _shared in (
    *(artifacts, artifact_parts, uploads, inbox, turn_keys, waiters),
    *(context_index, unindexed, searched, lineage, inner, spending, reservations),
):
    _shared.to_metadata(sqlite_metadata)
