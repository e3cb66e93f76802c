"""
SQLite's replacements for some statements: messages, turns and events are under one number.

A row that is found by `(tenant_id, context_id, position)` costs a file those ids twice, in the row
and in its index, and a commit one more page. SQLite is neither partitioned nor sharded, so a
context has a number here. The key of its rows is that number followed by the place of the row: one
integer, by which SQLite finds a row without an index. The facts that nearly every turn shares are
left out as well.

The words of messages are under that number, too. A row has one word, and the places of the messages
with it among 1,024 that follow each other: `WORD_BITS` of their position. So a search reads a row
for each word and 1,024 messages, and a delete removes adjacent rows.

Only these statements use the tables `looopy_message_rows`, `looopy_turn_rows`, `looopy_event_rows`
and `looopy_word_rows`. For all other readers there are views, with the names and columns that the
tables have elsewhere (the words have the columns of this form).

Each statement reads the number from the row of the context, under its tenant, so it never sees
another context's rows; impossible places are compared, never added. The number of a deleted context
may be reused, because the trigger of `contexts` deletes all its rows in the same transaction. The
number proves nothing, and an owner of the old context is fenced by its epoch.
"""

from __future__ import annotations

import re

from looopy.stores.sql import statements as s

BITS = 32
LAST_PLACE = 2**BITS - 1
WORD_BITS = 10
"""The largest position, turn or `seq` that a key has room for; the row of a context checks it."""
_THIS = "tenant_id = :tenant AND context_id = :context"
_OWNER = "c.tenant_id = :tenant AND c.context_id = :context"


def _at(place: str) -> str:
    """The key of the row at a *place* that is known to be one."""
    return f"c.number << {BITS} | {place}"


def _given(name: str) -> str:
    """The key of the row at a given place, null where no row can be."""
    return f"CASE WHEN {name} BETWEEN 0 AND {LAST_PLACE} THEN {_at(name)} END"


def _place(key: str) -> str:
    return f"{key} & {LAST_PLACE}"


def _after(key: str, *places: str) -> str:
    """The keys of a context's rows after all *places*, which may be any numbers."""
    after = f"MIN(MAX({', '.join(places or (':after',))}, 0), {LAST_PLACE})"
    return f"{key} > ({_at(after)}) AND {key} <= ({_at(str(LAST_PLACE))})"


# All rows of a context in one of the tables.
_WITHIN = (
    f"id BETWEEN (SELECT {_at('0')} FROM looopy_contexts c WHERE {_OWNER})"
    f" AND (SELECT {_at(str(LAST_PLACE))} FROM looopy_contexts c WHERE {_OWNER})"
)


def _one(place: str) -> str:
    """The row of a context at a given place."""
    return f"id = (SELECT {_given(place)} FROM looopy_contexts c WHERE {_OWNER})"


# The facts of a finished turn, unless they are the usual ones.
_ENDED = "CASE WHEN t.end_seq IS NOT NULL THEN COALESCE(t.{0}, '{1}') END"
_TURN_COLUMNS = (
    f"{_place('t.id')}, t.continues, t.actor_id, t.had_auth,"
    f" {_ENDED.format('outcome', 'completed')}, {_ENDED.format('stop_reason', 'stop')},"
    " t.start_seq, t.end_seq, t.first_position, t.last_position, t.started_at, t.ended_at,"
    " COALESCE(t.usage, '{}'), COALESCE(t.metadata, '{}'), t.process, t.recovered_by"
)
_CONTEXT = (
    f"SELECT {s.CONTEXT_COLUMNS}, {_TURN_COLUMNS} FROM looopy_contexts c"
    f" LEFT JOIN looopy_turn_rows t ON t.id = ({_at('c.open_turn')}) WHERE c.tenant_id = :tenant"
)
_MESSAGES_AFTER = (
    f" FROM looopy_contexts c JOIN looopy_message_rows m ON {_after('m.id')} WHERE {_OWNER}"
    " ORDER BY m.id LIMIT :limit"
)
_RECORDS = (
    f"SELECT {_place('m.id')}, m.turn, m.iteration, m.seq, m.body FROM looopy_contexts c"
    f" JOIN looopy_message_rows m ON {_after('m.id', '{after}', 'c.visible_from - 1')} WHERE"
    f" {_OWNER} AND c.rewound IS NULL"
    " ORDER BY m.id LIMIT :limit"
)


def _copy(table: str, columns: str, upto: str) -> str:
    """Copy the rows of a context up to a place to another one, under the same places."""
    return (
        f"INSERT INTO {table} (id, {columns}) SELECT n.number << {BITS} | ({_place('r.id')}),"
        f" {', '.join(f'r.{name}' for name in columns.split(', '))} FROM looopy_contexts c"
        " CROSS JOIN looopy_contexts n ON n.tenant_id = :tenant AND n.context_id = :target"
        f" CROSS JOIN {table} r ON r.id BETWEEN ({_at('0')}) AND ({_at(upto)}) WHERE {_OWNER}"
    )


# As in `statements.py`, with keys in the place of places; their sum may be more than a number.
_HALVE = (
    "WITH RECURSIVE halve(low, high) AS (SELECT"
    f" {_at(':low')}, {_at(':high')} FROM looopy_contexts c WHERE {_OWNER}"
    " UNION ALL"
    " SELECT CASE WHEN r.{seq} > :after THEN h.low ELSE h.low + (h.high - h.low) / 2 + 1 END,"
    " CASE WHEN r.{seq} > :after THEN h.low + (h.high - h.low) / 2 ELSE h.high END"
    " FROM halve h JOIN {table} r ON r.id = h.low + (h.high - h.low) / 2 WHERE h.low < h.high)"
    f" SELECT {_place('low')} FROM halve WHERE low = high"
)
_NAMED = "(SELECT value FROM json_each(:contexts))"
_NEEDLES = "json_each(:needles) n"
_ENTRIES = "json_each(:entries) e"
_HOLDS = "instr(COALESCE(c.tags, '') || c.metadata, "
_IN_BLOCK = "w.number = b.number AND w.block = b.block"
_IS_WANTED = "w.word >= json_extract(q.value, '$[0]') AND w.word <= json_extract(q.value, '$[1]')"
# A word that no message of a block has.
_LACKS = (
    "SELECT 1 FROM json_each(:words) q WHERE NOT EXISTS (SELECT 1 FROM looopy_word_rows w"
    f" WHERE {_IN_BLOCK} AND {_IS_WANTED})"
)
_MESSAGE_VALUES = [name for name in s.MESSAGE_VALUES if name != "role"]
IN_SQLITE = {
    s.LOAD_CONTEXT: f"{_CONTEXT} AND c.context_id = :context",
    **dict(
        zip(
            (s.FIND_ALL, s.FIND_DUE),
            s.walks(_TURN_COLUMNS, f"looopy_turn_rows t ON t.id = ({_at('c.open_turn')})"),
            strict=True,
        )
    ),
    **dict(
        zip(
            (s.NEWEST_MARKED, s.LIST_MARKED, s.MARKED_PLACES),
            (
                text.replace(
                    "json_array_elements_text(CAST(:needles AS json)) n(value)", _NEEDLES
                ).replace("strpos(concat(c.tags, c.metadata), ", _HOLDS)
                for text in s.marked(
                    _TURN_COLUMNS,
                    "CROSS JOIN looopy_contexts c ON c.tenant_id = u.tenant_id"
                    " AND c.context_id = u.context_id",
                    f"looopy_turn_rows t ON t.id = ({_at('c.open_turn')})",
                )
            ),
            strict=True,
        )
    ),
    s.TO_INDEX: s.TO_INDEX.replace(s.IN_CONTEXTS, f"IN {_NAMED}"),
    s.LABELS: s.LABELS.replace(s.IN_CONTEXTS, f"IN {_NAMED}"),
    s.INDEXED: s.INDEXED.replace(s.IN_CONTEXTS, f"IN {_NAMED}"),
    s.INDEX: re.sub(
        r"(?:CAST\()?e\.value->>(\d)(?: AS bigint\))?",
        r"json_extract(e.value, '$[\1]')",
        s.INDEX.replace("json_array_elements(CAST(:entries AS json)) e(value)", _ENTRIES),
    ),
    s.LIST_CONTEXTS: (
        f"{_CONTEXT} AND c.context_id > :after_id ORDER BY c.context_id LIMIT :limit"
    ),
    # --- turns ---
    s.OPEN_TURN: (
        "INSERT INTO looopy_turn_rows (id, epoch, continues, actor_id, had_auth, start_seq,"
        " first_position, last_position, user_position, started_at, metadata, process)"
        f" SELECT {_at(':turn')}, :epoch, :continues, :actor, :had_auth, :start_seq,"
        " :first_position, :first_position - 1, :user_position, :started_at,"
        f" NULLIF(:metadata, '{{}}'), :process FROM looopy_contexts c WHERE {_OWNER}"
    ),
    s.RESTORE_TURN: (
        "INSERT INTO looopy_turn_rows (id, epoch, continues, actor_id, had_auth, outcome,"
        " stop_reason, start_seq, end_seq, first_position, last_position, user_position,"
        " started_at, ended_at, usage, metadata, process, recovered_by)"
        f" SELECT {_at(':turn')}, :epoch, :continues, :actor, :had_auth,"
        " NULLIF(:outcome, 'completed'), NULLIF(:stop_reason, 'stop'), :start_seq, :end_seq,"
        " :first_position, :last_position, :user_position, :started_at, :ended_at,"
        " NULLIF(:usage, '{}'), NULLIF(:metadata, '{}'), :process, :recovered_by"
        f" FROM looopy_contexts c WHERE {_OWNER}"
    ),
    s.TAKE_TURN_OVER: (
        f"UPDATE looopy_turn_rows SET recovered_by = :process WHERE {_one(':turn')}"
    ),
    s.CLOSE_TURN: (
        "UPDATE looopy_turn_rows SET outcome = NULLIF(:outcome, 'completed'),"
        " stop_reason = NULLIF(:stop_reason, 'stop'), end_seq = :end_seq,"
        " last_position = :last_position, ended_at = :ended_at, usage = NULLIF(:usage, '{}')"
        f" WHERE id = (SELECT {_given(':turn')} FROM looopy_contexts c WHERE {_OWNER})"
        f" AND end_seq IS NULL RETURNING {_place('id')}"
    ),
    s.LIST_TURNS: (
        f"SELECT {_TURN_COLUMNS}, t.user_position FROM looopy_contexts c"
        f" JOIN looopy_turn_rows t ON {_after('t.id')} WHERE {_OWNER} ORDER BY t.id LIMIT :limit"
    ),
    s.TURN_ACTOR: (
        "SELECT t.actor_id FROM looopy_contexts c"
        f" JOIN looopy_turn_rows t ON t.id = ({_given(':turn')}) WHERE {_OWNER}"
    ),
    # --- messages ---
    s.ADD_MESSAGE: (
        "INSERT INTO looopy_message_rows (id, turn, iteration, seq, created_at, meta, body)"
        f" SELECT {_at(':position')}, :turn, :iteration, :seq, :created_at, :meta, :body"
        f" FROM looopy_contexts c WHERE {_OWNER}"
    ),
    s.LIST_MESSAGES: (
        f"SELECT {_place('m.id')}, m.turn, m.iteration, m.seq, m.created_at, m.meta, m.body"
        f"{_MESSAGES_AFTER}"
    ),
    s.LIST_RECORDS: _RECORDS.format(after=":after"),
    s.LIST_RANGE: (f"SELECT {_place('m.id')}, m.turn, m.iteration, m.seq, m.body{_MESSAGES_AFTER}"),
    s.LIST_SIZES: f"SELECT LENGTH(CAST(m.body AS BLOB)){_MESSAGES_AFTER}",
    s.LIST_NEWEST: _RECORDS.format(after="c.last_position - :limit"),
    s.RESTORE_MESSAGES: (
        "INSERT INTO looopy_message_rows (id, turn, iteration, seq, created_at, meta, body)"
        f" SELECT {_at('v.column1')}, v.column2, v.column3, v.column4, v.column5, v.column6,"
        f" v.column7 FROM (VALUES {s.values_at_once(*_MESSAGE_VALUES)}) v"
        f" JOIN looopy_contexts c WHERE {_OWNER}"
    ),
    # --- events ---
    s.RESTORE_EVENTS: (
        "INSERT INTO looopy_event_rows (id, turn, iteration, type, created_at, position, body)"
        f" SELECT {_at('v.column1')}, v.column2, v.column3, v.column4, v.column5, v.column6,"
        f" v.column7 FROM (VALUES {s.values_at_once(*s.EVENT_VALUES)}) v"
        f" JOIN looopy_contexts c WHERE {_OWNER}"
    ),
    s.ADD_EVENT: (
        "INSERT INTO looopy_event_rows (id, turn, iteration, type, created_at, position, body)"
        f" SELECT {_at(':seq')}, :turn, :iteration, :type, :created_at, :position, :body"
        f" FROM looopy_contexts c WHERE {_OWNER}"
    ),
    s.LIST_EVENTS: (
        f"SELECT {_place('e.id')}, e.turn, e.iteration, e.type, e.created_at, e.position, e.body"
        f" FROM looopy_contexts c JOIN looopy_event_rows e ON {_after('e.id')} WHERE {_OWNER}"
        " ORDER BY e.id LIMIT :limit"
    ),
    s.LIST_EVENT_SIZES: (
        "SELECT LENGTH(CAST(e.body AS BLOB))"
        f" FROM looopy_contexts c JOIN looopy_event_rows e ON {_after('e.id')} WHERE {_OWNER}"
        " ORDER BY e.id LIMIT :limit"
    ),
    s.STARTED_CALLS: (
        "SELECT e.body FROM looopy_contexts c"
        f" JOIN looopy_turn_rows t ON t.id = ({_given(':turn')})"
        f" JOIN looopy_event_rows e ON e.id > ({_at('t.start_seq')})"
        f" AND e.id <= ({_at(str(LAST_PLACE))})"
        f" WHERE {_OWNER} AND e.turn = :turn AND e.type = 'tool_execution_start'"
    ),
    # --- clearing ---
    s.FORGET_MESSAGES: f"DELETE FROM looopy_message_rows WHERE {_WITHIN}",
    s.FORGET_EVENTS: f"DELETE FROM looopy_event_rows WHERE {_WITHIN} AND id & {LAST_PLACE} < :seq",
    s.FORGET_TURNS: (
        f"UPDATE looopy_turn_rows SET metadata = NULL WHERE {_WITHIN} AND metadata IS NOT NULL"
    ),
    # --- erasing ---
    s.COUNT_CONTENT: (
        s.COUNT_CONTENT.replace("OCTET_LENGTH(body)", "LENGTH(CAST(body AS BLOB))")
        .replace(f"looopy_messages WHERE {_THIS}", f"looopy_message_rows WHERE {_WITHIN}")
        .replace(f"looopy_events WHERE {_THIS}", f"looopy_event_rows WHERE {_WITHIN}")
    ),
    s.DELETE_EVENTS: f"DELETE FROM looopy_event_rows WHERE {_WITHIN}",
    s.DELETE_TURNS: f"DELETE FROM looopy_turn_rows WHERE {_WITHIN}",
    s.SPOKE_IN: (
        "SELECT c.context_id FROM looopy_contexts c JOIN looopy_turn_rows t"
        f" ON t.id BETWEEN ({_at('0')}) AND ({_at(str(LAST_PLACE))})"
        " WHERE c.tenant_id = :tenant AND c.context_id > :after_id AND c.context_id <= :last_id"
        " AND t.actor_id = :actor UNION ALL SELECT i.context_id FROM looopy_inbox i"
        " WHERE i.tenant_id = :tenant AND i.actor_id = :actor"
        " AND i.context_id > :after_id AND i.context_id <= :last_id"
    ),
    s.TURNS_OF: (
        f"SELECT {_place('t.id')}, t.first_position, t.last_position, t.start_seq, t.end_seq"
        " FROM looopy_contexts c JOIN looopy_turn_rows t"
        f" ON t.id BETWEEN ({_at('0')}) AND ({_at(str(LAST_PLACE))})"
        f" WHERE {_OWNER} AND t.actor_id = :actor ORDER BY t.id LIMIT :limit"
    ),
    s.EVENTS_OF: (
        f"SELECT {_place('e.id')}, e.type, e.body FROM looopy_contexts c JOIN looopy_event_rows e"
        f" ON {_after('e.id')} WHERE {_OWNER} AND {_place('e.id')} <= :seq AND e.turn = :turn"
        " ORDER BY e.id"
    ),
    s.ARTIFACT_UPDATES: (
        f"SELECT {_place('e.id')}, e.turn, e.body FROM looopy_contexts c"
        f" JOIN looopy_event_rows e ON {_after('e.id')}"
        f" WHERE {_OWNER} AND {_place('e.id')} <= :seq AND e.type = 'artifact_update' ORDER BY e.id"
    ),
    s.COMPACTIONS: (
        f"SELECT e.body FROM looopy_contexts c JOIN looopy_event_rows e ON {_after('e.id')}"
        f" WHERE {_OWNER} AND e.type = 'compaction' ORDER BY e.id"
    ),
    s.REDACT_MESSAGE: f"UPDATE looopy_message_rows SET body = :body WHERE {_one(':position')}",
    s.REDACT_EVENT: f"UPDATE looopy_event_rows SET body = :body WHERE {_one(':seq')}",
    s.REDACT_TURN: f"UPDATE looopy_turn_rows SET metadata = NULL WHERE {_one(':turn')}",
    s.FORGET_ACTOR: f"UPDATE looopy_turn_rows SET actor_id = NULL WHERE {_one(':turn')}",
    # --- the index of words ---
    s.NOT_SEARCHED: (
        "SELECT c.context_id FROM looopy_contexts c WHERE c.tenant_id = :tenant"
        f" AND c.context_id IN {_NAMED} AND c.last_position >= c.visible_from"
        " AND c.last_position > COALESCE((SELECT s.upto FROM looopy_searched s"
        " WHERE s.tenant_id = c.tenant_id AND s.context_id = c.context_id), 0)"
    ),
    s.ADD_WORDS: (
        # Each message is parsed once, and not again for each of its words.
        "WITH m(position, words) AS MATERIALIZED (SELECT json_extract(value, '$[0]'),"
        " json_extract(value, '$[1]') FROM json_each(:words))"
        " INSERT INTO looopy_word_rows (number, block, word, places)"
        f" SELECT c.number, m.position >> {WORD_BITS} AS block, w.value AS word,"
        f" group_concat(m.position & {2**WORD_BITS - 1})"
        " FROM looopy_contexts c CROSS JOIN m CROSS JOIN json_each(m.words) w"
        f" WHERE {_OWNER} GROUP BY block, word"
        " ON CONFLICT (number, block, word) DO UPDATE SET places = places || ',' || excluded.places"
    ),
    s.FORGET_WORDS: (
        "DELETE FROM looopy_word_rows WHERE number ="
        f" (SELECT c.number FROM looopy_contexts c WHERE {_OWNER})"
    ),
    s.FIND_WORDS: (
        "WITH RECURSIVE blocks(number, block) AS ("
        f"SELECT c.number, MIN(:before - 1, c.last_position) >> {WORD_BITS}"
        f" FROM looopy_contexts c WHERE {_OWNER} UNION ALL"
        f" SELECT number, block - 1 FROM blocks WHERE block > :after >> {WORD_BITS}),"
        " whole(number, block) AS MATERIALIZED (SELECT b.number, b.block FROM blocks b"
        f" WHERE NOT EXISTS ({_LACKS})),"
        f" found(number, position) AS (SELECT b.number, b.block << {WORD_BITS} | p.value"
        " FROM json_each(:words) q CROSS JOIN whole b"
        f" CROSS JOIN looopy_word_rows w ON {_IN_BLOCK} AND {_IS_WANTED}"
        " CROSS JOIN json_each('[' || w.places || ']') p"
        " GROUP BY 1, 2 HAVING COUNT(DISTINCT q.key) = json_array_length(:words))"
        " SELECT f.position FROM found f WHERE f.position > :after AND f.position < :before"
        " ORDER BY f.position DESC LIMIT :limit"
    ),
    s.LIST_AT: (
        f"SELECT {_place('m.id')}, m.turn, m.iteration, m.seq, m.body FROM looopy_contexts c"
        " CROSS JOIN json_each(:positions) p CROSS JOIN looopy_message_rows m"
        f" ON m.id = ({_at('p.value')}) WHERE {_OWNER} ORDER BY m.id DESC"
    ),
    s.FIND_CONTEXTS: (
        "WITH RECURSIVE blocks(number, context_id, block) AS ("
        f"SELECT c.number, c.context_id, c.last_position >> {WORD_BITS}"
        f" FROM looopy_contexts c WHERE c.tenant_id = :tenant AND c.context_id IN {_NAMED}"
        " UNION ALL SELECT number, context_id, block - 1 FROM blocks WHERE block > 0)"
        f" SELECT DISTINCT b.context_id FROM blocks b WHERE NOT EXISTS ({_LACKS})"
    ),
    # --- forks ---
    s.NEWEST_COMPACTION: (
        f"SELECT {_place('e.id')}, e.body FROM looopy_contexts c JOIN looopy_event_rows e"
        f" ON e.id BETWEEN ({_at('0')}) AND ({_at(':seq')}) WHERE {_OWNER}"
        " AND e.type = 'compaction' ORDER BY e.id DESC LIMIT 1"
    ),
    s.COPY_TURNS: _copy(
        "looopy_turn_rows",
        "epoch, continues, actor_id, had_auth, outcome, stop_reason, start_seq, end_seq,"
        " first_position, last_position, user_position, started_at, ended_at, usage, metadata,"
        " process, recovered_by",
        ":turn",
    ),
    s.COPY_MESSAGES: _copy(
        "looopy_message_rows", "turn, iteration, seq, created_at, meta, body", ":position"
    ),
    s.COPY_EVENTS: _copy(
        "looopy_event_rows", "turn, iteration, type, created_at, position, body", ":seq"
    ),
    # --- places by seq ---
    s.FIND_POSITION: _HALVE.format(table="looopy_message_rows", seq="seq"),
    s.FIND_TURN: _HALVE.format(table="looopy_turn_rows", seq="start_seq"),
}
"""SQLite's replacement of a statement, with the same parameters and columns."""
