"""
In SQLite the rows of a context lie under its number, and in nobody's way.

That they are found by the context's own name alone, in one search; that they go with their context,
and whoever is given its number next finds nothing; that a number which has no room is refused; and
that those who read by hand see the tables that Postgres has.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from dataclasses import replace

import pytest

from looopy.errors import StorageFull
from looopy.stores import open_stores
from looopy.stores.records import NewSummary
from looopy.stores.sql import statements
from looopy.stores.sql.sqlite import connection as sqlite
from looopy.stores.sql.sqlite.statements import IN_SQLITE
from looopy.stores.sql.tables import metadata
from looopy.testing.contracts.turns import (
    CONTEXT,
    a_turn,
    answer,
    begin,
    commit,
    ends,
    said,
    starts,
    user,
)
from looopy.types.message import StopReason, ToolCall
from looopy.types.summary import summary_message

_CALL = ToolCall("call-1", "add", {"a": 1})
_TABLES = ("looopy_turns", "looopy_messages", "looopy_events")
_SEARCHES = (
    *(statements.NOT_SEARCHED, statements.FIND_CONTEXTS, statements.FIND_WORDS, statements.LIST_AT),
)
# They take JSON, which a server reads by functions of its own; `test_contexts.py` has their plans.
_OF_THE_INDEX = (
    *(statements.TO_INDEX, statements.LABELS, statements.INDEX, statements.INDEXED),
    *(statements.NEWEST_MARKED, statements.LIST_MARKED, statements.MARKED_PLACES),
)
_ROWS = ("looopy_turn_rows", "looopy_message_rows", "looopy_event_rows")
_NAMES = {
    sql: name
    for name, sql in vars(statements).items()
    if name.isupper() and name[0] != "_" and isinstance(sql, str) and sql[:1].isalpha()
}
_OWN = [
    pytest.param(old, new, id=_NAMES[old])
    for old, new in IN_SQLITE.items()
    if old not in (*_SEARCHES, *_OF_THE_INDEX, statements.ADD_WORDS, statements.FORGET_WORDS)
]
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


@contextlib.contextmanager
def _by_hand(path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("now_us", 0, lambda: 0)
        connection.create_function("octet_length", 1, len)  # of a server, or of a newer SQLite
        yield connection


def _dump(path):
    with _by_hand(path) as connection:
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in _ROWS}


async def _fill(stores, name):
    """A turn with a call, and an open one."""
    claimed = await begin(stores, context_id=name)
    events = [said(answer("", _CALL), context_id=name), starts(_CALL, context_id=name)]
    await commit(stores, claimed, events, context_id=name)
    over = [ends(StopReason.INTERRUPTED, context_id=name)]
    await commit(stores, claimed, over, context_id=name, release=True)
    return await begin(stores, claimed.epoch, context_id=name, ttl_s=0.0)


# --- the statements ---


def test_statements_about_rows_are_rewritten_for_sqlite():
    """There is no statement about turns, messages or events that would meet a view."""
    named = re.compile(rf"(FROM|JOIN|INTO|UPDATE) ({'|'.join(_TABLES)})\b")
    searched = {sql for sql in _NAMES if "looopy_words" in sql or "json_array" in sql}
    assert {sql for sql in _NAMES if named.search(sql)} | searched == set(IN_SQLITE)
    assert not any("looopy_words" in sql for sql in IN_SQLITE.values())
    assert not any(named.search(sql) for sql in IN_SQLITE.values())


@pytest.mark.parametrize(("old", "new"), _OWN)
def test_a_rewritten_statement_has_the_same_parameters_and_columns(old, new, sqlite_file):
    """The same parameters, the tenant and the context among them, and as many columns."""
    asked = set(_PARAMETER.findall(new))
    left = set(_PARAMETER.findall(old)) - asked
    assert {re.sub("_q[0-9]+$", "", one) for one in left} <= {"role"}
    assert asked <= set(_PARAMETER.findall(old))
    assert "tenant_id = :tenant" in new
    assert "context_id = :context" in new or ":after_id" in new  # of one context, or a page of them
    values = dict.fromkeys(set(_PARAMETER.findall(old)) | {"role"}, 1)
    with _by_hand(sqlite_file) as connection:
        columns = (
            [len(connection.execute(sql, values).description or ()) for sql in (old, new)]
            if not old.startswith(("INSERT", "UPDATE", "DELETE"))
            else [0, 0]
        )
    assert columns[0] == columns[1]


@pytest.mark.parametrize(("old", "new"), _OWN)
def test_a_row_is_found_by_its_key(old, new, sqlite_file):
    """By the name of its context and the place in it: nothing is read to find it, or sorted."""
    values = dict.fromkeys(_PARAMETER.findall(new), 1)
    with _by_hand(sqlite_file) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {new}", values).fetchall()
    steps = [step for *_, step in plan]
    assert any("contexts" in step and "(tenant_id=? AND context_id" in step for step in steps)
    found = [s for s in steps if "INTEGER PRIMARY KEY" in s]
    assert found or old.startswith("INSERT")
    made = "h$|halve$|v$|[0-9]+ CONSTANT ROWS"  # of the query, and not of the file
    wrong = [s for s in steps if re.match(f"SCAN (?!{made})|.*TEMP B-TREE|.*AUTOMATIC", s)]
    assert wrong == []


@pytest.mark.parametrize("old", _SEARCHES, ids=_NAMES.get)
def test_words_are_found_by_context_block_and_word(old, sqlite_file):
    """No table is read to its end, and no statement says another's parameters or tenant."""
    new = IN_SQLITE[old]
    assert set(_PARAMETER.findall(old)) == set(_PARAMETER.findall(new))
    assert "tenant_id = :tenant" in new
    values = dict.fromkeys(_PARAMETER.findall(new), "[]") | {"after": 0, "before": 9, "limit": 1}
    with _by_hand(sqlite_file) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {new}", values).fetchall()
    steps = [step for *_, step in plan]
    by_key = r"SEARCH [cl] USING .*\(tenant_id=\? AND context_id=\?\)"
    assert any(re.match(by_key, step) for step in steps)
    made = r"SCAN ([bfmpq]|blocks|whole|json_each)\b"  # of the query, and not of the file
    assert [s for s in steps if s.startswith("SCAN") and not re.match(made, s)] == []
    if "looopy_words" in old:
        assert any("number=? AND block=? AND word>? AND word<?" in s for s in steps)


# --- rows go with their context ---


@pytest.mark.parametrize("by_hand", [False, True])
async def test_the_rows_of_a_context_go_with_it(sqlite_file, by_hand):
    """All of them and no others, also where somebody deletes it who enforces no foreign keys."""
    around = ("ada-1", "ada-3")
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        for name in around:
            await _fill(stores, name)
        before = _dump(sqlite_file)
        assert all(before.values())
        await stores.state.delete("ada-3")
        await _fill(stores, CONTEXT)
        await _fill(stores, "ada-3")
        after = _dump(sqlite_file)
        assert all(len(after[name]) > len(before[name]) for name in _ROWS)
        if not by_hand:
            await stores.state.delete(CONTEXT)
        else:
            with _by_hand(sqlite_file) as connection:
                connection.execute("DELETE FROM looopy_contexts WHERE context_id = ?", (CONTEXT,))
        left = _dump(sqlite_file)
        assert {name: len(rows) for name, rows in left.items()} == {
            name: len(rows) for name, rows in before.items()
        }
        for name in around:
            assert len(await stores.journal.events(name)) == 7
            assert len(await stores.messages.list(name)) == 3


async def test_a_reused_number_finds_no_row_of_the_deleted_context(sqlite_file):
    """And what is written there is met under the new name alone."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        await _fill(stores, "old")
        with _by_hand(sqlite_file) as connection:
            ((number,),) = connection.execute("SELECT number FROM looopy_contexts").fetchall()
        await stores.state.delete("old")
        assert await stores.messages.append("new", [user("first")]) == 1
        with _by_hand(sqlite_file) as connection:
            found = connection.execute("SELECT number FROM looopy_contexts").fetchall()
        assert found == [(number,)]
        assert await stores.messages.list("new") == [user("first")]
        assert await stores.journal.turns("new") == []
        assert len(await stores.journal.events("new")) == 1
        assert await stores.messages.list("old") == []


@pytest.mark.parametrize("turn", [2**32 + 1, 1 - 2**32, 0, -1])
async def test_a_turn_that_there_cannot_be_is_not_closed(sqlite_file, turn):
    """Nor is that of the context beside this one, which its number leads to."""
    names = ("before", CONTEXT, "behind")
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        held = {name: await begin(stores, context_id=name) for name in names}
        with pytest.raises(ValueError, match="not open"):
            await commit(stores, replace(held[CONTEXT], turn=turn), [ends()])
        for name in names:
            (still,) = await stores.journal.turns(name)
            assert still.outcome is None


# --- no room ---


@pytest.mark.parametrize(
    ("column", "what", "refused"),
    [
        ("last_position", "messages", ["turn", "append", "compact"]),
        ("last_seq", "events", ["turn", "append", "compact", "clear"]),
        ("turn_count", "turns", ["turn"]),
    ],
)
async def test_a_full_context_refuses_rows(sqlite_file, column, what, refused):
    """Four billion rows: no row is put where those of the next context are."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        await a_turn(stores)
        await stores.messages.append("next", [user("neighbour")])
        with _by_hand(sqlite_file) as connection:
            connection.execute(
                f"UPDATE looopy_contexts SET {column} = ? WHERE context_id = ?",
                (2**32 - 2**16 - 1, CONTEXT),
            )
        before = _dump(sqlite_file), await stores.state.load(CONTEXT)
        new = NewSummary(message=summary_message("in short", kept=0), epoch=1)
        writes = {
            "turn": lambda: begin(stores, 1),
            "append": lambda: stores.messages.append(CONTEXT, [user("more")]),
            "compact": lambda: stores.journal.compact(CONTEXT, new),
            "clear": lambda: stores.journal.clear(CONTEXT),
        }
        for name in refused:
            with pytest.raises(StorageFull, match=f"4 billion {what}: begin a new one") as told:
                await writes[name]()
            assert told.value.outcome_known
        assert (_dump(sqlite_file), await stores.state.load(CONTEXT)) == before
        assert await stores.messages.list("next") == [user("neighbour")]


async def test_a_full_file_refuses_contexts(sqlite_file):
    """Two billion contexts: no number is given that a key has no bits for."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        await a_turn(stores)
        with _by_hand(sqlite_file) as connection:
            connection.execute("UPDATE looopy_contexts SET number = 2147483647")
            connection.execute(
                "UPDATE looopy_message_rows SET id = (2147483647 << 32) | (id & 4294967295)"
            )
        with pytest.raises(StorageFull, match="another context: begin a new file") as told:
            await stores.messages.append("one-more", [user("hello")])
        assert told.value.outcome_known
        assert [c.context_id for c in await stores.state.list()] == [CONTEXT]
        assert len(await stores.messages.list(CONTEXT)) == 2  # the largest number works


def test_storage_full_is_raised_only_for_a_full_disk(tmp_path):
    """A row without a tenant is refused too, and that is no matter of room."""
    path = tmp_path / "chat.db"
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for what, full in (("number", True), ("tenant", False)):
            name = f"ck_looopy_contexts_{what}"
            connection.execute(f"CREATE TABLE {name} (x, CONSTRAINT {name} CHECK (x > 0))")
            with pytest.raises(sqlite3.IntegrityError) as raw:
                connection.execute(f"INSERT INTO {name} VALUES (0)")
            assert isinstance(sqlite.translate(raw.value, path), StorageFull) is full


# --- by hand ---


async def test_views_show_the_tables_of_a_server(sqlite_file):
    """Columns of the same names in the same order, holding what the stores tell."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        for name in ("other", CONTEXT):
            await _fill(stores, name)
        records = await stores.messages.records(CONTEXT)
        turns = await stores.journal.turns(CONTEXT)
    with _by_hand(sqlite_file) as connection:
        connection.row_factory = sqlite3.Row
        found = {}
        for name in _TABLES:
            asked = f"SELECT * FROM {name} WHERE context_id = ?"
            found[name] = [dict(row) for row in connection.execute(asked, (CONTEXT,))]
            assert list(found[name][0]) == [c.name for c in metadata.tables[name].columns]
            plan = connection.execute(f"EXPLAIN QUERY PLAN {asked}", (CONTEXT,)).fetchall()
            assert any("INTEGER PRIMARY KEY (rowid>? AND rowid<?)" in row[3] for row in plan)
    shown = [(m["position"], m["turn"], m["seq"], m["role"]) for m in found["looopy_messages"]]
    assert shown == [(r.position, r.turn, r.seq, r.message.role) for r in records]
    assert [(t["turn"], t["outcome"], t["stop_reason"]) for t in found["looopy_turns"]] == [
        (t.turn, t.outcome, t.stop_reason) for t in turns
    ]
    assert [(t["usage"], t["metadata"]) for t in found["looopy_turns"]] == [("{}", "{}")] * 2
    assert [(e["seq"], e["type"], e["position"]) for e in found["looopy_events"]] == [
        (4, "tool_execution_start", 2)
    ]


@pytest.mark.parametrize("way", ["vacuum", "text"])
async def test_a_rewritten_file_has_the_same_content(sqlite_file, tmp_path, way):
    """By `VACUUM`, which the page on stores advises, or as text: keys are values, not places."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        for name in ("gone", CONTEXT, "other"):
            await _fill(stores, name)
        await stores.state.delete("gone")
        before = [await stores.journal.events(name) for name in (CONTEXT, "other")]
    place = sqlite_file
    with _by_hand(sqlite_file) as connection:
        if way == "vacuum":
            connection.execute("VACUUM")
        else:
            place = tmp_path / "anew.db"
            with contextlib.closing(sqlite3.connect(place)) as anew:
                anew.executescript("\n".join(connection.iterdump()))
    async with open_stores(f"sqlite:///{place}") as stores:
        assert [await stores.journal.events(name) for name in (CONTEXT, "other")] == before
        await stores.state.delete(CONTEXT)
        assert await stores.journal.events("other") == before[1]
    assert [len(rows) for rows in _dump(place).values()] == [2, 3, 1]
