"""
Removals on a full disk.

SQLite writes before it frees: a deletion adds every page that it changes to the log, and the log
moves into the file before it is emptied. So a removal that finds the disk full gives the reserve
back, empties the log, and is tried again with few pages:

- The messages, events, turns and words of a context are *set aside*: the context gets another
  number, and a row that belongs to no tenant keeps the one that they are under. From that commit on
  no query reaches them. They are deleted in steps, and the log is emptied after each.
- Freed pages are not overwritten, which would write each of them to the log. They leave the file:
  it is made shorter, in steps as well.

A process that is killed on the way leaves a valid file, and the next one that opens it continues.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from looopy._failpoints import reach
from looopy.errors import SchemaOutOfDate
from looopy.stores.sql import statements as s
from looopy.stores.sql.sqlite import connection as sqlite
from looopy.stores.sql.sqlite.connection import Connection
from looopy.stores.sql.sqlite.schema import begin_write
from looopy.stores.sql.sqlite.statements import BITS, IN_SQLITE, LAST_PLACE

STEP = 256
"""The most rows that are deleted, and pages that are moved, in one step."""
_SPARE_PAGES = 64
_ASIDE = b"aside"  # the name of a tenant is text

Execute = Callable[[str, Mapping[str, Any]], sqlite3.Cursor]

# --- with few pages ---

# These begin to delete what a context holds.
_BEGINS = frozenset({IN_SQLITE[s.FORGET_MESSAGES], s.DELETE_CONTEXT})
_FREES = _BEGINS | {s.DELETE_ARTIFACT}
_COLUMNS = (
    "SELECT group_concat(name) FROM pragma_table_info('looopy_contexts')"
    " WHERE name NOT IN ('number', 'tenant_id', 'context_id')"
)
_OF = f"id BETWEEN :old << {BITS} AND :old << {BITS} | {LAST_PLACE}"
_MOVED = f"id = :new << {BITS} | (id & {LAST_PLACE})"
# In the place of a deletion that leaves something: what stays follows its context.
_STAYS = {
    IN_SQLITE[s.FORGET_EVENTS]: (
        f"UPDATE looopy_event_rows SET {_MOVED} WHERE {_OF} AND id & {LAST_PLACE} >= :seq"  # noqa: S608 - constants
    ),
    IN_SQLITE[s.FORGET_TURNS]: (
        f"UPDATE looopy_turn_rows SET {_MOVED}, metadata = NULL WHERE {_OF}"  # noqa: S608 - constants
    ),
}


@contextlib.contextmanager
def made(connection: Connection) -> Iterator[None]:
    """Make room for a removal, as long as this is open."""
    connection.reserve.free()
    connection.empty_log(wait=True)
    ((most,),) = connection.execute("PRAGMA max_page_count")
    connection.execute("PRAGMA temp_store = MEMORY")  # the disk of temporary files may be the same
    connection.execute(f"PRAGMA max_page_count = {most + _SPARE_PAGES}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA max_page_count = {most}")
        connection.execute("PRAGMA temp_store = DEFAULT")
        connection.execute("PRAGMA secure_delete = ON")


def sparing(connection: Connection) -> Execute:
    """Execute the statements of a removal, with few pages written."""
    numbers: dict[str, int] = {}
    shrinks = _shrinks(connection)

    def execute(sql: str, params: Mapping[str, Any]) -> sqlite3.Cursor:
        if sql in _BEGINS:
            numbers.update(_set_aside(connection, params))
        if sql in _FREES and shrinks:
            connection.execute("PRAGMA secure_delete = FAST")
        if numbers and sql in _STAYS:
            return connection.execute(_STAYS[sql], {**params, **numbers})
        return connection.execute(sql, params)

    return execute


def _set_aside(connection: Connection, params: Mapping[str, Any]) -> dict[str, int]:
    """Give the context another number; the old one and the new."""
    found = connection.execute(
        "SELECT number FROM looopy_contexts WHERE tenant_id = :tenant AND context_id = :context",
        params,
    ).fetchall()
    if not found:
        return {}
    old = {"old": found[0][0]}
    ((columns,),) = connection.execute(_COLUMNS)
    # Rows of other tables refer to the context by its name, which it has again at the commit.
    connection.execute("PRAGMA defer_foreign_keys = ON")
    connection.execute(
        "UPDATE looopy_contexts SET tenant_id = :aside, context_id = number WHERE number = :old",
        {**old, "aside": _ASIDE},
    )
    ((new,),) = connection.execute(
        f"INSERT INTO looopy_contexts (tenant_id, context_id, {columns}) SELECT :tenant, :context,"  # noqa: S608 - constants
        f" {columns} FROM looopy_contexts WHERE number = :old RETURNING number",
        {**params, **old},
    ).fetchall()
    connection.execute(
        "UPDATE looopy_contexts SET state = '{}', metadata = '{}', tags = NULL, rewound = NULL,"
        " open_turn = NULL WHERE number = :old",
        old,
    )
    return {**old, "new": new}


# --- tidying up ---

_ANY_ASIDE = "SELECT number FROM looopy_contexts WHERE tenant_id = :aside LIMIT 1"
_DELETIONS = [
    f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {which} LIMIT :limit)"  # noqa: S608 - constants
    for table, key, which in (
        ("looopy_message_rows", "id", _OF),
        ("looopy_event_rows", "id", _OF),
        ("looopy_turn_rows", "id", _OF),
        ("looopy_word_rows", "number, block, word", "number = :old"),
    )
]


def is_untidy(connection: Connection) -> bool:
    """True if there are rows that a process has set aside, and has not deleted."""
    return _aside(connection) is not None


def tidy_some(connection: Connection, patience_s: float, step: int = STEP) -> bool:
    """
    Delete some of the rows that were set aside, or else give some free pages back to the disk.

    Args:
        step: The most rows, or pages.

    Returns:
        True if there may be more to do.

    Raises:
        SchemaOutOfDate: Another process has migrated the file.
        sqlite3.Error: The file cannot be written.
    """
    number = _aside(connection)
    if number is not None and _in_a_write(connection, patience_s, _delete_some, number, step):
        return True
    ((free,),) = connection.execute("PRAGMA freelist_count")
    if free and _shrinks(connection):
        # `execute` would move one page: it takes one step of a statement without columns.
        script = f"PRAGMA incremental_vacuum({step})"
        sqlite.retry(lambda: connection.executescript(script), patience_s)
    elif number is not None:  # last, as it is the mark of a file that is not tidy
        _in_a_write(connection, patience_s, _forget, number)
    else:
        return False
    return True


def tidy(connection: Connection, patience_s: float) -> bool:
    """Do all of it, with an empty log before each step; true if something is left to do."""
    step = STEP
    while step:
        connection.empty_log(wait=True)
        try:
            if not tidy_some(connection, patience_s, step):
                return False
        except (SchemaOutOfDate, sqlite3.Error):
            step //= 4
    return True


def _aside(connection: Connection) -> int | None:
    found = connection.execute(_ANY_ASIDE, {"aside": _ASIDE}).fetchall()
    return found[0][0] if found else None


def _in_a_write(
    connection: Connection, patience_s: float, work: Callable[..., int], *args: int
) -> int:
    begin_write(connection, patience_s)
    try:
        done = work(connection, *args)
        sqlite.retry(lambda: connection.execute("COMMIT"), patience_s)
    except BaseException:
        if connection.in_transaction:  # SQLite ends it itself when the disk is full
            connection.execute("ROLLBACK")
        raise
    reach("E4")
    return done


def _delete_some(connection: Connection, number: int, step: int) -> int:
    done = 0
    for statement in _DELETIONS:
        done += connection.execute(statement, {"old": number, "limit": step - done}).rowcount
    return done


def _forget(connection: Connection, number: int) -> int:
    return connection.execute("DELETE FROM looopy_contexts WHERE number = ?", (number,)).rowcount


def _shrinks(connection: Connection) -> bool:
    """True if free pages can be given back; files of before cannot."""
    ((mode,),) = connection.execute("PRAGMA auto_vacuum")
    return bool(mode)
