"""
Every statement of the SQL stores, as text that SQLite and Postgres both read.

No statement is built from values: names are constants, values are `:named` parameters. Each one is
bound to a tenant, so it never sees another tenant's rows. The update of the context's row comes
first in every write and assigns the numbers. That one row gives order, gaplessness and the fence
together, and its lock keeps other writers of the context out until the transaction ends.

SQLite keeps some rows in another way and replaces those statements: see `sqlite/statements.py`.

`now_us()` is the database's clock, see `driver.py`.
"""

from __future__ import annotations

from looopy.stores.rules import EPOCH_STEPS
from looopy.types.config import LONGEST_LEASE_S

HEAD = "0001_initial"
"""The newest revision in `migrations/`, known here so that opening a database needs no alembic."""

PREFIX = "looopy_"
"""The prefix of all our names: a database may hold the tables of an application as well."""

VERSION_TABLE = f"{PREFIX}version"
"""Where alembic keeps our revision: `alembic_version` is the application's."""


def at_head() -> str:
    """A condition: the schema is the one of this version. Not a constant, as `HEAD` is in tests."""
    return f"(SELECT version_num FROM {VERSION_TABLE} LIMIT 1) = '{HEAD}'"


# All there are, known here so that nothing has to load `tables.py` for their names.
TABLES = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("contexts", "turns", "messages", "events"),
        *("artifacts", "artifact_parts", "inbox", "turn_keys", "waiters"),
        *("context_index", "unindexed", "searched", "words", "lineage", "inner"),
        *("uploads", "spending", "reservations"),
    )
)

# The types of the parameters; those not named are whole numbers.
TEXTS = frozenset(
    {
        *("tenant", "context", "after_id", "holder", "displace", "actor", "state", "metadata"),
        *("outcome", "stop_reason", "usage", "role", "type", "meta", "body"),
        *("process", "recovered_by"),
        *("target", "rewound"),
        *("artifact", "kind", "other_kind", "media_type", "sha256", "data", "key", "input_hash"),
        "last_id",
        *("after_artifact", "blob", "description", "row_schema", "status"),
        *("tags", "label", "label1", "label2", "label3", "label4", "label5"),
        *("label6", "label7", "label8", "label9"),
        *("words", "contexts", "entries", "needles", "after_marked", "positions"),
        *("outer", "call"),
        *("account", "period", "reservation", "place", "charges", "day", "month"),
        *("oldest_day", "oldest_month"),
    }
)
BYTES = frozenset({"bytes"})

_LONGEST_US = int(LONGEST_LEASE_S * 1_000_000)


def _live(until: str) -> str:
    """
    A condition: the lease or place that lasts *until* then has not expired.

    A time further ahead than any lease lasts was written before the clock was set back. It would
    keep every other process out for that long, so it counts as expired.
    """
    return f"({until} > now_us() AND {until} <= now_us() + {_LONGEST_US})"


_THIS = "tenant_id = :tenant AND context_id = :context"

TURN_COLUMNS = (
    "t.turn, t.continues, t.actor_id, t.had_auth, t.outcome, t.stop_reason, t.start_seq, t.end_seq,"
    " t.first_position, t.last_position, t.started_at, t.ended_at, t.usage, t.metadata, t.process,"
    " t.recovered_by"
)
CONTEXT_COLUMNS = (
    "c.context_id, c.epoch, c.turn_count, c.last_position, c.last_seq, c.visible_from,"
    " c.cleared_seq,"
    f" c.holder, c.holder IS NOT NULL AND {_live('c.lease_until')}, c.lease_until, c.owner_actor,"
    " c.state, c.metadata,"
    " c.version, c.created_at, c.last_activity, c.inbox_last, c.inbox_waiting, c.cancel_turn,"
    " c.tags, c.rewound"
)
# The row of a context is looked up by a SELECT for one value. In a plain join, Postgres trusts an
# index on tenant and context alone as long as it has no statistics of the table, and compares every
# row that the context has.
_CONTEXT = (
    f"SELECT {CONTEXT_COLUMNS}, {TURN_COLUMNS} FROM looopy_contexts c"
    " LEFT JOIN looopy_turns t ON t.tenant_id = c.tenant_id AND t.context_id = c.context_id"
    " AND t.turn = {open_turn} WHERE c.tenant_id = :tenant"
)
_OPEN_TURN = f"(SELECT open_turn FROM looopy_contexts WHERE {_THIS})"

# --- contexts ---

LOAD_CONTEXT = f"{_CONTEXT.format(open_turn=_OPEN_TURN)} AND c.context_id = :context"

LIST_CONTEXTS = _CONTEXT.format(open_turn="c.open_turn") + (
    " AND c.context_id > :after_id ORDER BY c.context_id LIMIT :limit"
)

PEEK = (
    f"SELECT epoch, open_turn, holder IS NOT NULL AND {_live('lease_until')}, holder, version,"
    " turn_count, last_position, last_seq, visible_from, cleared_seq, state, owner_actor,"
    " inbox_last, inbox_waiting, cancel_turn, rewound"
    f" FROM looopy_contexts WHERE {_THIS}"
)

# For a write that decides by what it reads.
PEEK_LOCKED = f"{PEEK} /* FOR UPDATE */"

# For a write that reads what never changes until the context is cleared, redacted or deleted: these
# wait for it, and turns do not.
PEEK_HELD = f"{PEEK} /* FOR KEY SHARE */"

CREATE = (
    "INSERT INTO looopy_contexts (tenant_id, context_id, epoch, turn_count, last_position,"
    " last_seq, visible_from, cleared_seq, state, metadata, version, created_at, last_activity)"
    " VALUES (:tenant, :context, 0, 0, 0, 0, 1, 0, '{}', '{}', 0, now_us(), now_us())"
    " ON CONFLICT DO NOTHING"
)

RESTORE_CONTEXT = (
    "INSERT INTO looopy_contexts (tenant_id, context_id, epoch, turn_count, last_position,"
    " last_seq, visible_from, cleared_seq, open_turn, owner_actor, state, metadata, version,"
    " created_at, last_activity, inbox_last, inbox_waiting, tags, rewound) VALUES (:tenant,"
    " :context, :epoch, :turn_count, :last_position, :last_seq, :visible_from, :cleared_seq,"
    " :open_turn, :actor, :state, :metadata, :version, :created_at, :last_activity, :inbox_last,"
    " :inbox_waiting, :tags, :rewound) ON CONFLICT DO NOTHING RETURNING epoch"
)

SAVE_METADATA = (
    f"UPDATE looopy_contexts SET metadata = :metadata, version = version + 1 WHERE {_THIS}"
    " AND version = :version RETURNING version"
)

DELETE_CONTEXT = f"DELETE FROM looopy_contexts WHERE {_THIS}"

# --- the index of contexts ---

# A write that changes a fact of a listing marks the context as `unindexed`: in the same
# transaction, and after it has changed the row of the context. The end of a turn need not, because
# the mark of its claim stays until no turn is open. So a turn writes one short row, and none at all
# until the index is made again.
#
# A listing reads the marked contexts from their own rows, and the other ones from the index. Rows
# of the index are made beside it, for contexts without an open turn: see `contexts.py`. A context
# has a row under the label "", and one more for each of its labels (`listing.labels`), all with the
# same facts: a label can lead every index.

UNINDEX = (
    "INSERT INTO looopy_unindexed (tenant_id, context_id) VALUES (:tenant, :context)"
    " ON CONFLICT DO NOTHING"
)

_OF_MARK = "c.tenant_id = u.tenant_id AND c.context_id = u.context_id"
# Not a join: for an empty table, that would be planned along half of the key.
TO_BE_INDEXED = (
    "SELECT u.context_id FROM looopy_unindexed u WHERE u.tenant_id = :tenant"
    " AND u.context_id > :after_id"
    f" AND (SELECT c.open_turn IS NULL FROM looopy_contexts c WHERE {_OF_MARK})"
    " ORDER BY u.context_id LIMIT :limit"
)

IN_CONTEXTS = "= ANY(ARRAY(SELECT json_array_elements_text(CAST(:contexts AS json))))"
"""A condition: an id is in the JSON array `:contexts`. SQLite has another one."""

# Their rows are locked: a turn that begins later sets the mark again. One that is beginning, or any
# other write, is not waited for.
TO_INDEX = (
    "SELECT context_id, owner_actor, last_activity, inbox_waiting, state, metadata, tags"
    f" FROM looopy_contexts WHERE tenant_id = :tenant AND context_id {IN_CONTEXTS}"
    " AND open_turn IS NULL /* FOR UPDATE SKIP LOCKED */"
)

# `[[context, label, status, touched, due], ...]`
INDEX = (
    "INSERT INTO looopy_context_index (tenant_id, context_id, label, status, touched, due_at)"
    " SELECT :tenant, e.value->>0, e.value->>1, e.value->>2, CAST(e.value->>3 AS bigint),"
    " CAST(e.value->>4 AS bigint) FROM json_array_elements(CAST(:entries AS json)) e(value)"
    " WHERE 1 = 1 ON CONFLICT (tenant_id, context_id, label) DO UPDATE SET"
    " status = excluded.status, touched = excluded.touched, due_at = excluded.due_at"
    " WHERE looopy_context_index.status <> excluded.status"
    " OR looopy_context_index.touched <> excluded.touched"
    " OR COALESCE(looopy_context_index.due_at, -1) <> COALESCE(excluded.due_at, -1) /* MANY */"
)

INDEXED = (
    "DELETE FROM looopy_unindexed WHERE tenant_id = :tenant"
    f" AND context_id {IN_CONTEXTS} /* MANY */"
)

LABELS = (
    "SELECT context_id, label FROM looopy_context_index WHERE tenant_id = :tenant"
    f" AND context_id {IN_CONTEXTS}"
)
DROP_LABEL = f"DELETE FROM looopy_context_index WHERE {_THIS} AND label = :label"

LAST_ACTIVITY = f"SELECT last_activity FROM looopy_contexts WHERE {_THIS}"

READ_TAGS = f"SELECT tags FROM looopy_contexts WHERE {_THIS} /* FOR UPDATE */"
SAVE_TAGS = f"UPDATE looopy_contexts SET tags = :tags WHERE {_THIS}"

_IS_LIVE = f"c.holder IS NOT NULL AND {_live('c.lease_until')}"
# A context with an open turn keeps its mark, so all running turns are in marked contexts.
RUNNING = (
    "SELECT u.context_id FROM looopy_unindexed u WHERE u.tenant_id = :tenant AND"
    f" (SELECT c.open_turn IS NOT NULL AND {_IS_LIVE}"
    " AND (:actor IS NULL OR c.owner_actor = :actor) FROM looopy_contexts c"
    f" WHERE {_OF_MARK}) ORDER BY u.context_id LIMIT :limit"
)
# A turn whose lease has expired does not count.
_STATUS = f"CASE WHEN i.status = 'busy' AND NOT ({_IS_LIVE}) THEN 'ready' ELSE i.status END"
_LABELLED = " AND ".join(
    f"(:label{n} IS NULL OR (SELECT l.label FROM looopy_context_index l WHERE l.tenant_id ="
    f" i.tenant_id AND l.context_id = i.context_id AND l.label = :label{n}) IS NOT NULL)"
    for n in range(1, 10)
)
# One condition with the status: SQLite sorts what it expects to be few rows.
_IS_MARKED = (
    "(SELECT u.context_id FROM looopy_unindexed u WHERE u.tenant_id = i.tenant_id"
    " AND u.context_id = i.context_id) IS NOT NULL"
)
_FIND = (
    f"SELECT {CONTEXT_COLUMNS}, {{turn}}, i.touched FROM looopy_context_index i"
    " CROSS JOIN looopy_contexts c LEFT JOIN {turns}"
    " WHERE i.tenant_id = :tenant AND i.label = :label"
    " AND c.tenant_id = i.tenant_id AND c.context_id = i.context_id"
    " AND i.touched >= :since AND (i.touched, i.context_id) < (:until, :after_id)"
    f" AND CASE WHEN {_IS_MARKED} THEN FALSE ELSE :status IS NULL OR {_STATUS} = :status END"
    f" AND {_LABELLED}{{more}} ORDER BY i.touched DESC, i.context_id DESC LIMIT :limit"
)
_TURNS = (
    "looopy_turns t ON t.tenant_id = c.tenant_id AND t.context_id = c.context_id"
    " AND t.turn = c.open_turn"
)
# Each walks another index; the columns before `touched` have to be compared with one value.
_WALKS = (
    "",
    (
        " AND i.due_at IS NOT NULL AND i.due_at <= now_us()"
        f" AND (c.open_turn IS NULL OR NOT ({_IS_LIVE}))"
    ),
)


def walks(turn_columns: str, turns: str) -> tuple[str, ...]:
    """The statements of the walks, with the open turn of each context joined in."""
    return tuple(_FIND.format(turn=turn_columns, turns=turns, more=m) for m in _WALKS)


FIND_ALL, FIND_DUE = walks(TURN_COLUMNS, _TURNS)
# Like `FIND_ALL`, without the columns that only a listing shows.
FIND_PLACES = (
    _FIND.format(turn="", turns="", more="")
    .replace(f"{CONTEXT_COLUMNS}, , i.touched", "i.context_id, i.touched")
    .replace(" LEFT JOIN  WHERE", " WHERE")
)

# Marked contexts that may be in a listing. Conditions that need JSON are left to the
# reader: tags and metadata have to contain each text of `:needles`, and a context without an open
# turn has any status but busy.
_RUNS = f"c.open_turn IS NOT NULL AND {_IS_LIVE}"
_MAY_BE_LISTED = (
    "c.last_activity >= :since AND (c.last_activity, c.context_id) < (:until, :after_id)"
    " AND (:actor IS NULL OR c.owner_actor = :actor)"
    " AND (:status IS NULL OR CASE WHEN c.open_turn IS NULL THEN :status <> 'busy'"
    f" WHEN {_IS_LIVE} THEN :status = 'busy' ELSE :status IN ('ready', 'waiting') END)"
    f" AND (:due = 0 OR NOT ({_RUNS}))"
    " AND (:needles = '[]' OR NOT EXISTS (SELECT 1 FROM"
    " json_array_elements_text(CAST(:needles AS json)) n(value)"
    " WHERE strpos(concat(c.tags, c.metadata), n.value) = 0))"
)
_MARKED = (
    f"SELECT {CONTEXT_COLUMNS}, {{turn}}, now_us(), c.last_activity FROM {{marks}} u"
    " {contexts} LEFT JOIN {turns} WHERE u.tenant_id = :tenant"
)
# Few of all that are marked: they are chosen before anything else is read.
_NEWEST_MARKS = (
    "(SELECT u.tenant_id, u.context_id FROM looopy_unindexed u {contexts}"
    f" WHERE u.tenant_id = :tenant AND {_MAY_BE_LISTED}"
    " ORDER BY c.last_activity DESC, c.context_id DESC LIMIT :limit)"
)
_MARKED_PLACES = (
    f"SELECT u.context_id, c.last_activity FROM looopy_unindexed u {{contexts}}"
    f" WHERE u.tenant_id = :tenant AND {_MAY_BE_LISTED}"
    " ORDER BY c.last_activity DESC, c.context_id DESC LIMIT :limit"
)
_NEXT_MARKS = (
    f" AND u.context_id > :after_marked AND {_MAY_BE_LISTED} ORDER BY u.context_id LIMIT :limit"
)


def marked(turn_columns: str, contexts: str, turns: str) -> tuple[str, str, str]:
    """
    The statements that read marked contexts, with the open turn of each one joined in.

    The first reads the newest, in any order, and the second one reads pages of all, by id. The last
    one reads only the places of the newest.
    """
    newest = _NEWEST_MARKS.format(contexts=contexts)
    parts = {"turn": turn_columns, "contexts": contexts, "turns": turns}
    return (
        _MARKED.format(**parts, marks=newest),
        _MARKED.format(**parts, marks="looopy_unindexed") + _NEXT_MARKS,
        _MARKED_PLACES.format(contexts=contexts),
    )


# Each row is looked up by its whole key, whatever the server knows of the tables.
NEWEST_MARKED, LIST_MARKED, MARKED_PLACES = marked(
    TURN_COLUMNS,
    f"CROSS JOIN LATERAL (SELECT * FROM looopy_contexts c WHERE {_OF_MARK} OFFSET 0) c",
    "LATERAL (SELECT * FROM looopy_turns t WHERE t.tenant_id = c.tenant_id"
    " AND t.context_id = c.context_id AND t.turn = c.open_turn OFFSET 0) t ON TRUE",
)

# --- the index of words ---

# A search first adds the messages that are not in the index yet, up to the newest: a turn writes
# nothing for it. `looopy_searched` has the position up to which a context was added, and each batch
# of messages raises it in its own transaction.
#
# On Postgres a message has a row with its words. A file has another form, see
# `sqlite/statements.py`. The words are JSON: `[[position, [word, ...]], ...]` to add, and
# `[[low, high], ...]` to find, where two different ones are all words with the beginning *low*.

# Up to where a context was added; a plain join would read all that Postgres has no statistics of.
_UPTO = (
    "(SELECT s.upto FROM looopy_searched s WHERE s.tenant_id = c.tenant_id"
    " AND s.context_id = c.context_id)"
)

TO_SEARCH = (
    f"SELECT c.created_at, c.visible_from, c.last_position, c.owner_actor, {_UPTO}"
    " FROM looopy_contexts c WHERE c.tenant_id = :tenant AND c.context_id = :context"
)

# Those of :contexts with messages that are not in the index.
NOT_SEARCHED = (
    "SELECT c.context_id FROM looopy_contexts c WHERE c.tenant_id = :tenant"
    f" AND c.context_id {IN_CONTEXTS}"
    f" AND c.last_position >= c.visible_from AND c.last_position > COALESCE({_UPTO}, 0)"
)

# No process can clear or delete the context before the words of its messages are there: both lock
# its row in a way that waits for this. A turn does not wait.
HOLD_CONTEXT = (
    "SELECT created_at, visible_from, last_position FROM looopy_contexts"
    f" WHERE {_THIS} /* FOR KEY SHARE */"
)

# If two searches run at the same time, one adds the messages.
RAISE_SEARCHED = (
    "INSERT INTO looopy_searched (tenant_id, context_id, upto) VALUES (:tenant, :context, :upto)"
    " ON CONFLICT (tenant_id, context_id) DO UPDATE SET upto = :upto"
    " WHERE looopy_searched.upto = :after RETURNING upto"
)

ADD_WORDS = (
    "INSERT INTO looopy_words (tenant_id, context_id, position, words)"
    " SELECT :tenant, :context, CAST(m.value->>0 AS bigint),"
    " array_to_tsvector(ARRAY(SELECT json_array_elements_text(m.value->1)))"
    " FROM json_array_elements(CAST(:words AS json)) m(value) /* MANY */"
)

FORGET_WORDS = f"DELETE FROM looopy_words WHERE {_THIS} /* MANY */"

# The words as a query of Postgres: each is quoted, so that none is an operator.
_QUOTED = r"replace(replace(q.value->>0, '\', '\\'), '''', '''''')"
_QUERY = (
    f"(SELECT CAST(string_agg('''' || {_QUOTED} || '''' ||"
    " CASE WHEN q.value->>0 = q.value->>1 THEN '' ELSE ':*' END, ' & ') AS tsquery)"
    " FROM json_array_elements(CAST(:words AS json)) q(value))"
)

# Where messages are that may have all the words, between two positions, the newest first.
FIND_WORDS = (
    "SELECT w.position FROM looopy_words w WHERE w.tenant_id = :tenant AND w.context_id = :context"
    f" AND w.position > :after AND w.position < :before AND w.words @@ {_QUERY}"
    " ORDER BY w.position DESC LIMIT :limit"
)

# The messages at some positions, a JSON array, the newest first.
LIST_AT = (
    f"SELECT position, turn, iteration, seq, body FROM looopy_messages WHERE {_THIS}"
    " AND position = ANY(ARRAY(SELECT CAST(json_array_elements_text(CAST(:positions AS json))"
    " AS bigint))) ORDER BY position DESC"
)

# Those of :contexts that may have such messages.
FIND_CONTEXTS = (
    "SELECT DISTINCT w.context_id FROM looopy_words w WHERE w.tenant_id = :tenant"
    f" AND w.context_id {IN_CONTEXTS} AND w.words @@ {_QUERY}"
)

# --- who may write ---

# The lease is free, expired, or its holder was proved dead.
_TAKEABLE = (
    f"{_THIS} AND epoch = :expected"
    f" AND (holder IS NULL OR NOT {_live('lease_until')} OR holder = :displace)"
)

# A waiter came before :ticket. Most contexts have no queue; then this reads only the context's row.
_QUEUED = (
    f"{_live('queued_until')} AND (:ticket IS NULL OR EXISTS (SELECT 1 FROM looopy_waiters w"
    " WHERE w.tenant_id = :tenant AND w.context_id = :context AND w.ticket < :ticket"
    f" AND {_live('w.alive_until')}))"
)

# Same as `names.next_epoch`.
_NEXT_EPOCH = (
    f"epoch = CASE WHEN epoch = 0 THEN :chance ELSE epoch + 1 + (:chance - 1) % {EPOCH_STEPS} END"
)

CLAIM = (
    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, holder = :holder, lease_until = now_us() + :ttl_us,"
    " turn_count = turn_count + 1, open_turn = turn_count + 1, last_seq = last_seq + :seqs,"
    " last_position = last_position + :count, owner_actor = COALESCE(owner_actor, :actor),"
    " inbox_waiting = inbox_waiting - :delivered, cancel_turn = NULL, last_write = :write,"
    " state = COALESCE(:state, state), last_activity = now_us()"
    f" WHERE {_TAKEABLE} AND open_turn IS NULL AND (queued_until IS NULL OR NOT ({_QUEUED}))"
    " RETURNING epoch, turn_count, last_seq, last_position, inbox_last, inbox_waiting, cancel_turn"
)

IN_LINE = f"SELECT epoch FROM looopy_contexts WHERE {_THIS} AND {_QUEUED}"


RECOVER = (
    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, holder = :holder, lease_until = now_us() +"
    " :ttl_us, state = COALESCE(:state, state)"
    f" WHERE {_TAKEABLE} AND open_turn IS NOT NULL"
    " RETURNING epoch, open_turn, last_seq, last_position, inbox_last, inbox_waiting, cancel_turn"
)

COMMIT = (
    "UPDATE looopy_contexts SET last_seq = last_seq + :seqs, last_position = last_position +"
    " :count,"
    " holder = CASE WHEN :release = 1 THEN NULL ELSE holder END, lease_until = now_us() + :ttl_us,"
    " open_turn = CASE WHEN :closing = 1 THEN NULL ELSE open_turn END,"
    " inbox_waiting = inbox_waiting - :delivered, last_write = :write,"
    " cancel_turn = CASE WHEN :closing = 1 THEN NULL ELSE cancel_turn END,"
    " state = COALESCE(:state, state), last_activity = now_us()"
    f" WHERE {_THIS} AND epoch = :epoch AND holder IS NOT NULL AND last_seq >= :known_seq"
    " AND (:closing = 0 OR inbox_last <= :heard)"
    " RETURNING last_seq, last_position, inbox_last, inbox_waiting, cancel_turn"
)

RENEW = (
    f"UPDATE looopy_contexts SET lease_until = now_us() + :ttl_us WHERE {_THIS}"
    " AND epoch = :epoch AND holder IS NOT NULL RETURNING epoch"
)

RELEASE = f"UPDATE looopy_contexts SET holder = NULL WHERE {_THIS} AND epoch = :epoch"

LEAVE = f"UPDATE looopy_contexts SET state = :state WHERE {_THIS}"

# Outside a turn: by any process, while no turn is open.
APPEND = (
    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, last_seq = last_seq + :seqs,"
    " last_position = last_position + :count,"
    f" last_activity = now_us() WHERE {_THIS} AND open_turn IS NULL"
    " RETURNING turn_count, last_seq, last_position"
)

CLEAR = (
    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, holder = NULL, open_turn = NULL, last_seq = :seq,"
    " visible_from = last_position + 1, cleared_seq = :seq, state = :state, rewound = NULL,"
    " inbox_waiting = 0,"
    f" cancel_turn = NULL, last_activity = now_us() WHERE {_THIS} RETURNING epoch"
)

COMPACT = (
    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, last_seq = :seq, last_position = :position,"
    f" state = :state, last_activity = now_us() WHERE {_THIS} RETURNING epoch"
)

# --- turns ---

OPEN_TURN = (
    "INSERT INTO looopy_turns (tenant_id, context_id, turn, epoch, continues, actor_id, had_auth,"
    " start_seq, first_position, last_position, user_position, started_at, usage, metadata,"
    " process)"
    " VALUES (:tenant, :context, :turn, :epoch, :continues, :actor, :had_auth, :start_seq,"
    " :first_position, :first_position - 1, :user_position, :started_at, '{}', :metadata, :process)"
)

TAKE_TURN_OVER = f"UPDATE looopy_turns SET recovered_by = :process WHERE {_THIS} AND turn = :turn"

RESTORE_TURN = (
    "INSERT INTO looopy_turns (tenant_id, context_id, turn, epoch, continues, actor_id, had_auth,"
    " outcome, stop_reason, start_seq, end_seq, first_position, last_position, user_position,"
    " started_at, ended_at, usage, metadata, process, recovered_by) VALUES (:tenant, :context,"
    " :turn, :epoch, :continues,"
    " :actor, :had_auth, :outcome, :stop_reason, :start_seq, :end_seq, :first_position,"
    " :last_position, :user_position, :started_at, :ended_at, :usage, :metadata, :process,"
    " :recovered_by)"
)

CLOSE_TURN = (
    "UPDATE looopy_turns SET outcome = :outcome, stop_reason = :stop_reason, end_seq = :end_seq,"
    " last_position = :last_position, ended_at = :ended_at, usage = :usage"
    f" WHERE {_THIS} AND turn = :turn AND outcome IS NULL RETURNING turn"
)

LIST_TURNS = (
    f"SELECT {TURN_COLUMNS}, t.user_position FROM looopy_turns t"
    " WHERE t.tenant_id = :tenant AND t.context_id = :context AND t.turn > :after"
    " ORDER BY t.turn LIMIT :limit"
)

TURN_ACTOR = f"SELECT actor_id FROM looopy_turns WHERE {_THIS} AND turn = :turn"

ADD_KEY = (
    "INSERT INTO looopy_turn_keys (tenant_id, context_id, key, turn, input_hash)"
    " VALUES (:tenant, :context, :key, :turn, :input_hash) ON CONFLICT DO NOTHING RETURNING turn"
)

TURN_OF_KEY = f"SELECT turn, input_hash FROM looopy_turn_keys WHERE {_THIS} AND key = :key"

# --- the inbox ---

POST = (
    "UPDATE looopy_contexts SET inbox_last = inbox_last + 1, inbox_waiting = inbox_waiting + 1,"
    f" last_activity = now_us() WHERE {_THIS} RETURNING inbox_last"
)

ADD_ENTRY = (
    "INSERT INTO looopy_inbox (tenant_id, context_id, entry, kind, actor_id, created_at, body)"
    " VALUES (:tenant, :context, :entry, :kind, :actor, now_us(), :body)"
)

RESTORE_ENTRY = (
    "INSERT INTO looopy_inbox (tenant_id, context_id, entry, kind, actor_id, created_at, body)"
    " VALUES (:tenant, :context, :entry, :kind, :actor, :created_at, :body)"
)

COUNT_ENTRIES = (
    f"SELECT COUNT(*) FROM looopy_inbox WHERE {_THIS} AND COALESCE(actor_id, '') ="
    " COALESCE(:actor, '')"
)

TAKE_ENTRY = f"DELETE FROM looopy_inbox WHERE {_THIS} AND entry = :entry RETURNING entry"

WITHDRAW = (
    f"DELETE FROM looopy_inbox WHERE {_THIS} AND COALESCE(actor_id, '') = COALESCE(:actor, '')"
    " AND kind IN (:kind, :other_kind) RETURNING entry"
)

WITHDRAWN = (
    "UPDATE looopy_contexts SET inbox_last = inbox_last + 1, inbox_waiting = inbox_waiting - :taken"
    f" WHERE {_THIS}"
)

EMPTY_INBOX = f"DELETE FROM looopy_inbox WHERE {_THIS}"

LIST_INBOX = (
    "SELECT c.inbox_last, c.inbox_waiting, c.cancel_turn, i.entry, i.kind, i.actor_id,"
    " i.created_at, i.body FROM looopy_contexts c LEFT JOIN looopy_inbox i ON i.tenant_id ="
    " c.tenant_id AND i.context_id = c.context_id AND i.entry > :after"
    " WHERE c.tenant_id = :tenant AND c.context_id = :context ORDER BY i.entry"
)

ASK_CANCEL = (
    "UPDATE looopy_contexts SET cancel_turn = open_turn, inbox_last = inbox_last + 1"
    f" WHERE {_THIS} AND open_turn IS NOT NULL AND (:turn IS NULL OR open_turn = :turn)"
    " RETURNING open_turn"
)

# --- the queue ---

TAKE_TICKET = (
    f"UPDATE looopy_contexts SET last_ticket = last_ticket + 1 WHERE {_THIS} RETURNING last_ticket"
)

ADD_PLACE = (
    "INSERT INTO looopy_waiters (tenant_id, context_id, ticket, holder, alive_until)"
    " VALUES (:tenant, :context, :ticket, :holder, now_us() + :ttl_us)"
)

KEEP_PLACE = (
    f"UPDATE looopy_waiters SET alive_until = now_us() + :ttl_us WHERE {_THIS} AND ticket = :ticket"
    " RETURNING ticket"
)

DROP_PLACE = f"DELETE FROM looopy_waiters WHERE {_THIS} AND ticket = :ticket RETURNING ticket"

DROP_DEAD_PLACES = f"DELETE FROM looopy_waiters WHERE {_THIS} AND NOT {_live('alive_until')}"

# After each of these, in the same transaction: until when the queue has a waiter.
MEASURE_LINE = (
    "UPDATE looopy_contexts SET queued_until = (SELECT MAX(w.alive_until) FROM looopy_waiters w"
    f" WHERE w.tenant_id = :tenant AND w.context_id = :context) WHERE {_THIS}"
)

LIST_LINE = (
    f"SELECT ticket, holder, {_live('alive_until')} FROM looopy_waiters WHERE {_THIS} ORDER BY"
    " ticket"
)

# --- messages ---

ADD_MESSAGE = (
    "INSERT INTO looopy_messages (tenant_id, context_id, position, turn, iteration, seq, role,"
    " created_at, meta, body) VALUES (:tenant, :context, :position, :turn, :iteration, :seq, :role,"
    " :created_at, :meta, :body)"
)

AT_ONCE = 24
"""The number of rows of a statement that adds many."""


def values_at_once(*names: str) -> str:
    """A list of `AT_ONCE` rows, whose parameters have these names and a number after them."""
    return ", ".join(
        f"({', '.join(f':{name}_q{n}' for name in names)})" for n in range(1, AT_ONCE + 1)
    )


MESSAGE_VALUES = (*("position", "turn", "iteration", "seq", "role", "created_at", "meta", "body"),)
RESTORE_MESSAGES = (
    "INSERT INTO looopy_messages (tenant_id, context_id, position, turn, iteration, seq, role,"
    " created_at, meta, body) SELECT :tenant, :context, v.* FROM"
    f" (VALUES {values_at_once(*MESSAGE_VALUES)}) v"
)

_MESSAGES_AFTER = (
    f" FROM looopy_messages WHERE {_THIS} AND position > :after ORDER BY position LIMIT :limit"
)

LIST_MESSAGES = f"SELECT position, turn, iteration, seq, created_at, meta, body{_MESSAGES_AFTER}"

# Without the columns that only events need. Cleared messages are left out here as well, so that
# opening a context need not read its row first. For a context that hides a part, this finds
# nothing: then its row is read, see `fork.py`.
_RECORDS = (
    f"SELECT position, turn, iteration, seq, body FROM looopy_messages WHERE {_THIS} AND position >"
    " (SELECT CASE WHEN c.visible_from > {after} THEN c.visible_from - 1 ELSE {after} END"
    " FROM looopy_contexts c WHERE c.tenant_id = :tenant AND c.context_id = :context"
    " AND c.rewound IS NULL) ORDER BY position LIMIT :limit"
)
LIST_RECORDS = _RECORDS.format(after=":after")
LIST_NEWEST = _RECORDS.format(after="(c.last_position - :limit)")
LIST_RANGE = f"SELECT position, turn, iteration, seq, body{_MESSAGES_AFTER}"
LIST_SIZES = f"SELECT OCTET_LENGTH(body){_MESSAGES_AFTER}"

# --- events ---

ADD_EVENT = (
    "INSERT INTO looopy_events (tenant_id, context_id, seq, turn, iteration, type, created_at,"
    " position, body)"
    " VALUES (:tenant, :context, :seq, :turn, :iteration, :type, :created_at, :position, :body)"
)

EVENT_VALUES = ("seq", "turn", "iteration", "type", "created_at", "position", "body")
RESTORE_EVENTS = (
    "INSERT INTO looopy_events (tenant_id, context_id, seq, turn, iteration, type, created_at,"
    " position, body) SELECT :tenant, :context, v.* FROM"
    f" (VALUES {values_at_once(*EVENT_VALUES)}) v"
)

LIST_EVENTS = (
    "SELECT seq, turn, iteration, type, created_at, position, body FROM looopy_events"
    f" WHERE {_THIS} AND seq > :after ORDER BY seq LIMIT :limit"
)
LIST_EVENT_SIZES = (
    f"SELECT OCTET_LENGTH(body) FROM looopy_events WHERE {_THIS} AND seq > :after ORDER BY seq"
    " LIMIT :limit"
)

STARTED_CALLS = (
    "SELECT body FROM looopy_events WHERE tenant_id = :tenant AND context_id = :context AND seq >"
    " (SELECT t.start_seq FROM looopy_turns t WHERE t.tenant_id = :tenant AND t.context_id ="
    " :context AND t.turn = :turn) AND turn = :turn AND type = 'tool_execution_start'"
)

# `seq` rises with the position of messages and with the number of turns, so a row is found from its
# `seq` by halving the range: twice as many reads by primary key as the range has binary digits, and
# no second index.
_IS_OVER = (
    "(SELECT r.{seq} FROM {table} r WHERE r.tenant_id = :tenant AND r.context_id = :context"
    " AND r.{key} = (h.low + h.high) / 2) > :after"
)
_HALVE = (
    "WITH RECURSIVE halve(low, high) AS (SELECT CAST(:low AS BIGINT), CAST(:high AS BIGINT)"
    f" UNION ALL SELECT CASE WHEN {_IS_OVER} THEN h.low ELSE (h.low + h.high) / 2 + 1 END,"
    f" CASE WHEN {_IS_OVER} THEN (h.low + h.high) / 2 ELSE h.high END"
    " FROM halve h WHERE h.low < h.high)"
    " SELECT low FROM halve WHERE low = high"
)

# The first position, or turn, from :low up to :high (itself beyond the last) whose `seq` is over
# :after.
FIND_POSITION = _HALVE.format(table="looopy_messages", key="position", seq="seq")
FIND_TURN = _HALVE.format(table="looopy_turns", key="turn", seq="start_seq")

# --- artifacts ---

_ARTIFACT = (
    "{0}artifact_id, {0}kind, {0}version, {0}status, {0}size, {0}media_type, {0}sha256,"
    " {0}created_at, {0}turn, {0}description, {0}metadata, {0}row_schema, {0}row_count"
)
# Versions have no gaps: the newest is the one without a next.
_NEWEST = (
    "(SELECT n.version FROM looopy_artifacts n WHERE n.tenant_id = a.tenant_id"
    " AND n.context_id = a.context_id AND n.artifact_id = a.artifact_id"
    " AND n.version = a.version + 1) IS NULL"
)
_ARTIFACTS = "looopy_artifacts a WHERE a.tenant_id = :tenant AND a.context_id = :context"
_VERSION = f"{_THIS} AND artifact_id = :artifact AND version = :version"

SAVE_ARTIFACT = (
    "INSERT INTO looopy_artifacts (tenant_id, context_id, artifact_id, version, kind, media_type,"
    " status, size, sha256, created_at, turn, data, bytes, description, metadata, row_schema,"
    " row_count, part_count) SELECT :tenant, :context, :artifact, 1 + COALESCE("
    f"(SELECT MAX(a.version) FROM {_ARTIFACTS} AND a.artifact_id = :artifact), 0),"
    " :kind, :media_type, :status, :size, :sha256, now_us(), turn_count, :data, :bytes,"
    " :description, :metadata, :row_schema, :row_count, :part_count"
    f" FROM looopy_contexts WHERE {_THIS}"
    " RETURNING version, created_at, turn"
)

RESTORE_ARTIFACT = (
    "INSERT INTO looopy_artifacts (tenant_id, context_id, artifact_id, version, kind, media_type,"
    " status, size, sha256, created_at, turn, data, bytes, description, metadata, row_schema,"
    " row_count, part_count) VALUES (:tenant, :context, :artifact, :version, :kind, :media_type,"
    " :status, :size, :sha256, :created_at, :turn, :data, :bytes, :description, :metadata,"
    " :row_schema, :row_count, :part_count)"
)

# Only what was built on is replaced: a longer version, or one with a successor, is left alone.
GROW_ARTIFACT = (
    "UPDATE looopy_artifacts SET status = :status, size = :size, sha256 = :sha256, bytes = :bytes,"
    f" row_count = :row_count, part_count = :part_count WHERE {_VERSION} AND status = 'building'"
    " AND size = :size_before AND (SELECT n.version FROM looopy_artifacts n WHERE n.tenant_id ="
    " :tenant AND n.context_id = :context AND n.artifact_id = :artifact"
    f" AND n.version = :version + 1) IS NULL RETURNING {_ARTIFACT.format('')}"
)

ADD_PART = (
    "INSERT INTO looopy_artifact_parts (tenant_id, context_id, artifact_id, version, part, start,"
    " size, sha256, first_row, row_count, blob, bytes) VALUES (:tenant, :context, :artifact,"
    " :version, :part, :start, :size, :sha256, :first_row, :row_count, :blob, :bytes)"
)

_PEEK_ARTIFACT = (
    f"SELECT {_ARTIFACT.format('a.')}, {_NEWEST}, a.data, a.bytes, a.part_count"
    f" FROM {_ARTIFACTS} AND a.artifact_id = :artifact"
)
PEEK_ARTIFACT = (
    f"{_PEEK_ARTIFACT} AND a.version >= :low AND a.version <= :high ORDER BY a.version DESC LIMIT 1"
)
PEEK_COMPLETE = f"{_PEEK_ARTIFACT} AND a.status = 'complete' ORDER BY a.version DESC LIMIT 1"

LIST_ARTIFACTS = (
    f"SELECT {_ARTIFACT.format('a.')} FROM {_ARTIFACTS} AND a.artifact_id > :after_artifact"
    f" AND {_NEWEST} AND (:turn IS NULL OR a.turn = :turn) AND (:kind IS NULL OR a.kind = :kind)"
    " AND (:status IS NULL OR a.status = :status) ORDER BY a.artifact_id LIMIT :limit"
)

LIST_VERSIONS = (
    f"SELECT {_ARTIFACT.format('a.')}, {_NEWEST} FROM {_ARTIFACTS} AND a.artifact_id = :artifact"
    " ORDER BY a.version"
)

LIST_ALL_VERSIONS = (
    f"SELECT {_ARTIFACT.format('a.')}, {_NEWEST} FROM {_ARTIFACTS} ORDER BY a.artifact_id,"
    " a.version"
)

LIST_PARTS = (
    "SELECT part, start, size, sha256, first_row, row_count, blob, bytes FROM looopy_artifact_parts"
    f" WHERE {_VERSION} AND part > :after ORDER BY part LIMIT :limit"
)

PART_AT = (
    f"SELECT MAX(part) FROM looopy_artifact_parts WHERE {_VERSION}"
    " AND start <= :start AND first_row <= :row"
)

DELETE_ARTIFACT = (
    f"DELETE FROM looopy_artifacts WHERE {_THIS} AND artifact_id = :artifact RETURNING"
    f" {_ARTIFACT.format('')}"
)

DELETE_PARTS = (
    f"DELETE FROM looopy_artifact_parts WHERE {_THIS} AND artifact_id = :artifact /* MANY */"
)

DELETE_ARTIFACTS = f"DELETE FROM looopy_artifacts WHERE {_THIS}"
DELETE_ALL_PARTS = f"DELETE FROM looopy_artifact_parts WHERE {_THIS} /* MANY */"

# --- blobs ---

LIST_BLOBS = f"SELECT DISTINCT blob FROM looopy_artifact_parts WHERE {_THIS} AND blob IS NOT NULL"
BLOBS_OF_ARTIFACT = f"{LIST_BLOBS} AND artifact_id = :artifact"

_BLOB = (
    "SELECT blob FROM looopy_artifact_parts WHERE tenant_id = :tenant AND sha256 = :sha256"
    " AND {0} LIMIT 1"
)
FIND_BLOB = _BLOB.format("size = :size AND blob IS NOT NULL")
NAMED_BLOB = _BLOB.format("blob = :blob")
# A name that no row of a part has yet is held by a row of an upload. The commit that names the blob
# takes that row away, and is refused if it is missing. A removal of the blob takes it away
# first. So either the commit or the removal finds nothing to take.
HOLD_UPLOAD = (
    "INSERT INTO looopy_uploads (tenant_id, blob, holder, held_until)"
    " VALUES (:tenant, :blob, :holder, now_us() + :ttl_us) RETURNING blob"
)
RENEW_UPLOAD = (
    "UPDATE looopy_uploads SET held_until = now_us() + :ttl_us"
    " WHERE tenant_id = :tenant AND blob = :blob RETURNING blob"
)
TAKE_UPLOAD = "DELETE FROM looopy_uploads WHERE tenant_id = :tenant AND blob = :blob RETURNING blob"
UPLOAD_OF = (
    "SELECT holder, held_until > now_us() FROM looopy_uploads"
    " WHERE tenant_id = :tenant AND blob = :blob /* FOR UPDATE */"
)
DROP_OLD_UPLOADS = (
    "DELETE FROM looopy_uploads WHERE tenant_id = :tenant AND held_until < now_us() - :ttl_us"
    " /* MANY */"
)

# The row that another one takes the name from may not be deleted before both are committed. A row
# that is being deleted counts as gone: waiting for it could be waiting in a circle.
HOLD_BLOB = f"{NAMED_BLOB} /* FOR KEY SHARE SKIP LOCKED */"

# --- clearing ---

FORGET_MESSAGES = f"DELETE FROM looopy_messages WHERE {_THIS} /* MANY */"
FORGET_EVENTS = f"DELETE FROM looopy_events WHERE {_THIS} AND seq < :seq /* MANY */"
FORGET_TURNS = (
    f"UPDATE looopy_turns SET metadata = '{{}}' WHERE {_THIS} AND metadata <> '{{}}' /* MANY */"
)

# --- forks ---

# A fork copies all that its parent had up to a place, in a statement a table. `lineage` has a row
# for each fork: its parent, null once that is gone, and the position up to which it was copied.

FORK = (
    "INSERT INTO looopy_contexts (tenant_id, context_id, epoch, turn_count, last_position,"
    " last_seq, visible_from, cleared_seq, owner_actor, state, metadata, version, created_at,"
    " last_activity, tags, rewound) SELECT tenant_id, :target, :chance, :turn, :position, :seq,"
    " visible_from, cleared_seq, owner_actor, :state, metadata, version, now_us(), now_us(), tags,"
    f" :rewound FROM looopy_contexts WHERE {_THIS} ON CONFLICT DO NOTHING RETURNING epoch"
)

_COPIED_TURN = (
    "turn, epoch, continues, actor_id, had_auth, outcome, stop_reason, start_seq, end_seq,"
    " first_position, last_position, user_position, started_at, ended_at, usage, metadata, process,"
    " recovered_by"
)
COPY_TURNS = (
    f"INSERT INTO looopy_turns (tenant_id, context_id, {_COPIED_TURN})"
    f" SELECT tenant_id, :target, {_COPIED_TURN} FROM looopy_turns"
    f" WHERE {_THIS} AND turn <= :turn /* MANY */"
)

_COPIED_MESSAGE = ", ".join(MESSAGE_VALUES)
COPY_MESSAGES = (
    f"INSERT INTO looopy_messages (tenant_id, context_id, {_COPIED_MESSAGE})"
    f" SELECT tenant_id, :target, {_COPIED_MESSAGE} FROM looopy_messages"
    f" WHERE {_THIS} AND position <= :position /* MANY */"
)

_COPIED_EVENT = ", ".join(EVENT_VALUES)
COPY_EVENTS = (
    f"INSERT INTO looopy_events (tenant_id, context_id, {_COPIED_EVENT})"
    f" SELECT tenant_id, :target, {_COPIED_EVENT} FROM looopy_events"
    f" WHERE {_THIS} AND seq <= :seq /* MANY */"
)

# A version that had a next one when the fork was made is over, whether the fork has that or not.
# The rows are held: until the parts are copied, no turn of the parent may delete the artifact.
_COPIED_ARTIFACT = (
    "size, sha256, created_at, turn, data, bytes, description, metadata, row_schema, row_count,"
    " part_count"
)
COPY_ARTIFACTS = (
    "INSERT INTO looopy_artifacts (tenant_id, context_id, artifact_id, version, kind, media_type,"
    f" status, {_COPIED_ARTIFACT}) SELECT tenant_id, :target, artifact_id, version, kind,"
    f" media_type, CASE WHEN status = 'building' AND NOT ({_NEWEST}) THEN 'failed' ELSE status END,"
    f" {_COPIED_ARTIFACT} FROM {_ARTIFACTS} AND a.turn <= :turn /* FOR KEY SHARE */"
)
_COPIED_PART = "part, start, size, sha256, first_row, row_count, blob, bytes"
# Those that the copied version knows: the other one may have grown meanwhile.
COPY_PARTS = (
    "INSERT INTO looopy_artifact_parts (tenant_id, context_id, artifact_id, version,"
    f" {_COPIED_PART}) SELECT tenant_id, :target, artifact_id, version, {_COPIED_PART}"
    f" FROM looopy_artifact_parts p WHERE {_THIS} AND part <= (SELECT a.part_count"
    " FROM looopy_artifacts a WHERE a.tenant_id = p.tenant_id AND a.context_id = :target"
    " AND a.artifact_id = p.artifact_id AND a.version = p.version) /* MANY */"
)

LINK = (
    "INSERT INTO looopy_lineage (tenant_id, context_id, parent, position)"
    " VALUES (:tenant, :target, :context, :position)"
)
PARENT_OF = f"SELECT parent, position FROM looopy_lineage WHERE {_THIS}"
LIST_FORKS = (
    "SELECT context_id, position FROM looopy_lineage"
    " WHERE tenant_id = :tenant AND parent = :context ORDER BY context_id"
)
DROP_LINK = f"DELETE FROM looopy_lineage WHERE {_THIS} /* MANY */"
# A later context of this name is not their parent.
UNLINK_FORKS = (
    "UPDATE looopy_lineage SET parent = NULL WHERE tenant_id = :tenant AND parent = :context"
    " /* MANY */"
)

NEWEST_COMPACTION = (
    f"SELECT seq, body FROM looopy_events WHERE {_THIS} AND seq <= :seq"
    " AND type = 'compaction' ORDER BY seq DESC LIMIT 1"
)

REWIND = (
    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, last_seq = :seq, state = :state,"
    f" rewound = :rewound, last_activity = now_us() WHERE {_THIS} RETURNING epoch"
)

# --- inner contexts ---

# A row is made together with the row of its context, and goes with it: nothing else writes here.

MAKE_INNER = f"{CREATE} RETURNING context_id"
ADD_INNER = (
    "INSERT INTO looopy_inner (tenant_id, context_id, outer_id, call_key)"
    " VALUES (:tenant, :context, :outer, :call) ON CONFLICT DO NOTHING"
)
INNER_FOR = (
    "SELECT n.context_id FROM looopy_inner n WHERE n.tenant_id = :tenant"
    " AND n.outer_id = :outer AND n.call_key = :call"
)
INNER_OF = (
    "SELECT n.context_id FROM looopy_inner n WHERE n.tenant_id = :tenant"
    " AND n.outer_id = :context ORDER BY n.context_id"
)
OUTER_OF = f"SELECT outer_id, call_key FROM looopy_inner WHERE {_THIS}"

# --- erasing ---

COUNT_CONTENT = (
    f"SELECT (SELECT COUNT(*) FROM looopy_artifacts WHERE {_THIS} AND version = 1),"
    f" (SELECT COUNT(*) FROM looopy_inbox WHERE {_THIS}),"
    f" (SELECT COUNT(*) FROM looopy_turn_keys WHERE {_THIS}),"
    f" CAST((SELECT COALESCE(SUM(size), 0) FROM looopy_artifacts WHERE {_THIS})"
    f" + (SELECT COALESCE(SUM(OCTET_LENGTH(body)), 0) FROM looopy_messages WHERE {_THIS})"
    f" + (SELECT COALESCE(SUM(OCTET_LENGTH(body)), 0) FROM looopy_events WHERE {_THIS}) AS BIGINT)"
    f" FROM looopy_contexts WHERE {_THIS}"
)

OWNERS = (
    "SELECT c.context_id, c.owner_actor FROM looopy_contexts c WHERE c.tenant_id = :tenant"
    " AND c.context_id > :after_id ORDER BY c.context_id LIMIT :limit"
)

# A context whose blobs have to go first stays until then, as if it had just been made, but for its
# epoch and its owner. Its parts keep the names of the blobs, where no reader and no sharer finds
# them.
HIDE_PARTS = (
    "UPDATE looopy_artifact_parts SET version = version - :offset, sha256 = '', bytes = NULL"
    f" WHERE {_THIS} AND sha256 <> '' /* MANY */"
)
EMPTY_CONTEXT = (
    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, holder = NULL, open_turn = NULL, turn_count = 0,"
    " last_position = 0, last_seq = 0, visible_from = 1, cleared_seq = 0, state = '{}',"
    " metadata = '{}', tags = NULL, inbox_waiting = 0, cancel_turn = NULL, queued_until = NULL,"
    " rewound = NULL,"
    f" created_at = now_us() WHERE {_THIS} RETURNING epoch"
)
# Unless something happened in it since.
DELETE_EMPTY = f"{DELETE_CONTEXT} AND epoch = :epoch"
DROP_HIDDEN = f"DELETE FROM looopy_artifact_parts WHERE {_THIS} AND sha256 = '' /* MANY */"

DELETE_EVENTS = f"DELETE FROM looopy_events WHERE {_THIS} /* MANY */"
DELETE_TURNS = f"DELETE FROM looopy_turns WHERE {_THIS} /* MANY */"
DELETE_KEYS = f"DELETE FROM looopy_turn_keys WHERE {_THIS} /* MANY */"
DELETE_PLACES = f"DELETE FROM looopy_waiters WHERE {_THIS} /* MANY */"
DELETE_SEARCHED = f"DELETE FROM looopy_searched WHERE {_THIS} /* MANY */"
DELETE_LABELS = f"DELETE FROM looopy_context_index WHERE {_THIS} /* MANY */"

CONTENT = {
    f"{PREFIX}messages": FORGET_MESSAGES,
    f"{PREFIX}events": DELETE_EVENTS,
    f"{PREFIX}turns": DELETE_TURNS,
    f"{PREFIX}artifacts": DELETE_ARTIFACTS,
    f"{PREFIX}artifact_parts": HIDE_PARTS,
    f"{PREFIX}inbox": EMPTY_INBOX,
    f"{PREFIX}turn_keys": DELETE_KEYS,
    f"{PREFIX}waiters": DELETE_PLACES,
    f"{PREFIX}context_index": DELETE_LABELS,
    f"{PREFIX}searched": DELETE_SEARCHED,
    f"{PREFIX}words": FORGET_WORDS,
    f"{PREFIX}lineage": DROP_LINK,
}
"""
Every table that holds content of a context beside its row, and how an erasure empties it.

Deleting the row of the context deletes the rows of all of them as well.
"""

_CANDIDATE = (
    f"SELECT c.context_id, c.owner_actor, c.open_turn, {_IS_LIVE}, c.last_activity,"
    " c.last_position + c.last_seq, c.state,"
    " (SELECT n.outer_id FROM looopy_inner n WHERE n.tenant_id = c.tenant_id"
    " AND n.context_id = c.context_id)"
    " FROM looopy_contexts c WHERE c.tenant_id = :tenant"
)
CANDIDATE = f"{_CANDIDATE} AND c.context_id = :context"
CANDIDATES = f"{_CANDIDATE} AND c.context_id > :after_id ORDER BY c.context_id LIMIT :limit"

# --- redacting: an actor in the contexts of others ---

SPOKE_IN = (
    "SELECT t.context_id FROM looopy_turns t WHERE t.tenant_id = :tenant AND t.actor_id = :actor"
    " AND t.context_id > :after_id AND t.context_id <= :last_id UNION ALL"
    " SELECT i.context_id FROM looopy_inbox i WHERE i.tenant_id = :tenant AND i.actor_id = :actor"
    " AND i.context_id > :after_id AND i.context_id <= :last_id"
)
TURNS_OF = (
    "SELECT t.turn, t.first_position, t.last_position, t.start_seq, t.end_seq FROM looopy_turns t"
    " WHERE t.tenant_id = :tenant AND t.context_id = :context AND t.actor_id = :actor"
    " ORDER BY t.turn LIMIT :limit"
)
EVENTS_OF = (
    f"SELECT seq, type, body FROM looopy_events WHERE {_THIS} AND seq > :after AND seq <= :seq"
    " AND turn = :turn ORDER BY seq"
)
ARTIFACT_UPDATES = (
    f"SELECT seq, turn, body FROM looopy_events WHERE {_THIS} AND seq > :after AND seq <= :seq"
    " AND type = 'artifact_update' ORDER BY seq"
)
BORN_ARTIFACTS = f"SELECT artifact_id, turn FROM looopy_artifacts WHERE {_THIS} AND version = 1"
COMPACTIONS = (
    f"SELECT body FROM looopy_events WHERE {_THIS} AND seq > :after AND type = 'compaction'"
    " ORDER BY seq"
)
REDACT_MESSAGE = f"UPDATE looopy_messages SET body = :body WHERE {_THIS} AND position = :position"
REDACT_EVENT = f"UPDATE looopy_events SET body = :body WHERE {_THIS} AND seq = :seq"
REDACT_TURN = f"UPDATE looopy_turns SET metadata = '{{}}' WHERE {_THIS} AND turn = :turn"
FORGET_ACTOR = f"UPDATE looopy_turns SET actor_id = NULL WHERE {_THIS} AND turn = :turn"
FORGET_KEYS = f"DELETE FROM looopy_turn_keys WHERE {_THIS} AND turn = :turn /* MANY */"
COUNT_KEYS = f"SELECT COUNT(*) FROM looopy_turn_keys WHERE {_THIS} AND turn = :turn"
HIDE_VERSION = (
    "UPDATE looopy_artifact_parts SET version = version - :offset, sha256 = '', bytes = NULL"
    f" WHERE {_VERSION} /* MANY */"
)
# In a dataset, and in a data artifact, nothing is a valid content.
REDACT_VERSION = (
    "UPDATE looopy_artifacts SET status = 'failed', size = 0, sha256 = :sha256, row_count = 0,"
    " part_count = 0, data = CASE WHEN kind = 'data' THEN '{}' END,"
    " bytes = CASE WHEN kind = 'data' THEN NULL ELSE :bytes END,"
    " row_schema = CASE WHEN kind = 'dataset' THEN '{}' END, description = NULL, metadata = NULL"
    f" WHERE {_VERSION}"
)
HIDDEN_BLOBS = f"{LIST_BLOBS} AND sha256 = ''"
# A process that has this context in memory takes it for another one, and reads all of it again: by
# its age, or, if it made the context itself and does not know that, by its version.
REDACTED = (
    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, created_at = created_at + 1, version = version + 1,"
    " holder = NULL,"
    " open_turn = CASE WHEN :closing = 1 THEN NULL ELSE open_turn END, last_seq = :seq,"
    f" state = :state WHERE {_THIS} RETURNING epoch"
)

NOTHING_MORE = "SELECT 1 WHERE 1 = 0"
"""Ends an erasure: like those below it has the log emptied, which may still hold what they left."""

ERASING = frozenset(
    {
        *(NOTHING_MORE, CLEAR, DELETE_CONTEXT, DELETE_ARTIFACT, WITHDRAW),
        *(EMPTY_CONTEXT, DELETE_EMPTY, REDACTED),
    }
)
"""Statements that delete data on request: it should then vanish from the file as well."""

# --- what accounts have spent ---

NOW = "SELECT now_us()"

ADD_RESERVATION = (
    "INSERT INTO looopy_reservations (tenant_id, reservation, place, turn, tokens, nanos,"
    " unpriced, charges, made_at)"
    " VALUES (:tenant, :reservation, :place, :turn, :tokens, :nanos, :unpriced, :charges, :now)"
    " ON CONFLICT DO NOTHING RETURNING turn"
)
_RESERVED = " RETURNING tokens, nanos, unpriced, charges"
TAKE_RESERVATION = (
    "DELETE FROM looopy_reservations WHERE tenant_id = :tenant AND reservation = :reservation"
    f"{_RESERVED}"
)
TAKE_EARLIER = (
    "DELETE FROM looopy_reservations WHERE tenant_id = :tenant AND place = :place AND turn < :turn"
    f"{_RESERVED}"
)
_SUMS = ("tokens", "nanos", "unpriced", "held_tokens", "held_nanos", "held_unpriced")
_ADDED = ", ".join(f"{name} = looopy_spending.{name} + :{name}" for name in _SUMS)
SPEND = (
    f"INSERT INTO looopy_spending (tenant_id, account, period, {', '.join(_SUMS)})"
    f" VALUES (:tenant, :account, :period, {', '.join(f':{name}' for name in _SUMS)})"
    f" ON CONFLICT (tenant_id, account, period) DO UPDATE SET {_ADDED}"
    f" RETURNING {', '.join(_SUMS)}"
)
SETTLE = (
    f"UPDATE looopy_spending SET {_ADDED}"
    " WHERE tenant_id = :tenant AND account = :account AND period = :period"
)
SPENT = (
    f"SELECT period, {', '.join(_SUMS)} FROM looopy_spending"
    " WHERE tenant_id = :tenant AND account = :account AND period IN (:day, :month)"
    " ORDER BY period"
)
ACCOUNTS = (
    f"SELECT account, period, {', '.join(_SUMS)} FROM looopy_spending"
    " WHERE tenant_id = :tenant AND account > :account AND period IN (:day, :month)"
    " ORDER BY account, period LIMIT :limit"
)
RESERVATIONS = (
    "SELECT reservation, place, turn, tokens, nanos, unpriced, charges, made_at"
    " FROM looopy_reservations WHERE tenant_id = :tenant AND reservation > :reservation"
    " AND tokens + nanos > 0 ORDER BY reservation LIMIT :limit"
)
HELD = (
    "SELECT tokens, nanos, unpriced, charges FROM looopy_reservations"
    " WHERE tenant_id = :tenant AND reservation = :reservation AND tokens + nanos > 0"
    " /* FOR UPDATE */"
)
EMPTY_RESERVATION = (
    "UPDATE looopy_reservations SET tokens = 0, nanos = 0, unpriced = 0"
    " WHERE tenant_id = :tenant AND reservation = :reservation"
)
DROP_OLD_SUMS = (
    "DELETE FROM looopy_spending WHERE tenant_id = :tenant AND account = :account"
    " AND (period < :oldest_day OR (period >= 'm' AND period < :oldest_month)) /* MANY */"
)
DROP_OLD_RESERVATIONS = (
    "DELETE FROM looopy_reservations WHERE tenant_id = :tenant AND made_at < :before /* MANY */"
)
