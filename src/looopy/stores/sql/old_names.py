"""
Databases of early versions, whose tables lack our prefix, and how they are renamed.

The first three schemas kept their revision in `alembic_version` and had tables such as `messages`:
names that an application has as well. Such a database is ours only if that table holds one of our
revisions and nothing else, and every table of that revision exists with our columns. Any other
`alembic_version` belongs to the application, and is neither read further nor touched. Every
migration of a database that is ours renames everything first, in the same transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from looopy.stores.sql.statements import NOTHING, OLD_VERSION_TABLE, PREFIX, VERSION_TABLE, Found

if TYPE_CHECKING:
    from sqlalchemy import Connection

_FIRST = ("contexts", "turns", "messages", "events", "artifacts")
_SECOND = (*_FIRST, "inbox", "turn_keys", "waiters")
_TABLES = {"0001": _FIRST, "0002": _SECOND, "0003": _SECOND}
_ROWS = ("turn_rows", "message_rows", "event_rows")  # from 0003 in SQLite
_TRIGGER = "rows_of_contexts"

_NEW = {
    OLD_VERSION_TABLE: VERSION_TABLE,
    **{name: f"{PREFIX}{name}" for name in (*_SECOND, *_ROWS, _TRIGGER)},
}
_OLD = "|".join(sorted(_NEW, key=len, reverse=True))
# A name in a statement, or one that is part of a constraint's: `fk_turns_contexts`.
_NAME = rf"\b(pk_|ck_|uq_|)({_OLD})(?=_tenant\b|_tenant_id\b|_pkc\b|\b)"
_CHECK = r"\bck_contexts_(?!tenant\b)"
_FOREIGN = rf"\bfk_({_OLD})_contexts\b"


Ask: TypeAlias = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a statement and returns its rows."""

# The columns by which ours are known, and those by which an `alembic_version` is: table, column.
_TABLES_SAID = ", ".join(f"'{name}'" for name in (*_SECOND, OLD_VERSION_TABLE))
_COLUMNS_SAID = "'tenant_id', 'context_id', 'visible_from', 'version_num'"
COLUMNS_IN_FILE = (
    "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c"  # noqa: S608 - made of constants
    f" WHERE m.name IN ({_TABLES_SAID}) AND c.name IN ({_COLUMNS_SAID})"
)
COLUMNS_ON_SERVER = (
    "SELECT c.relname::text, a.attname::text FROM pg_class c JOIN pg_attribute a"  # noqa: S608 - made of constants
    f" ON a.attrelid = c.oid WHERE c.relname IN ({_TABLES_SAID}) AND c.relkind IN ('r', 'p')"
    f" AND a.attname IN ({_COLUMNS_SAID}) AND pg_table_is_visible(c.oid)"
    " AND has_table_privilege(c.oid, 'SELECT')"
)
VERSIONS = f"SELECT version_num FROM {OLD_VERSION_TABLE}"  # noqa: S608 - a constant
_RENAMED = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - a constant
_THERE_IN_FILE = f"SELECT 1 FROM sqlite_master WHERE name = '{VERSION_TABLE}'"  # noqa: S608 - a constant
_THERE_ON_SERVER = f"SELECT 1 WHERE to_regclass('{VERSION_TABLE}') IS NOT NULL"


def find_in_file(ask: Ask) -> Found:
    """How far an SQLite file is."""
    return _find(ask, _THERE_IN_FILE, COLUMNS_IN_FILE)


def find_on_server(ask: Ask) -> Found:
    """How far a Postgres database is."""
    return _find(ask, _THERE_ON_SERVER, COLUMNS_ON_SERVER)


def _find(ask: Ask, there: str, columns: str) -> Found:
    if ask(there):
        rows = ask(_RENAMED)
        return Found(str(rows[0][0])) if rows else NOTHING
    found = by_table(ask(columns))
    if "version_num" not in found.get(OLD_VERSION_TABLE, ()):
        return NOTHING
    return recognised([str(row[0]) for row in ask(VERSIONS)], found)


def recognised(versions: Collection[str], columns: Mapping[str, Collection[str]]) -> Found:
    """
    The revision of a database of ours with old names, or `NOTHING`.

    Args:
        versions: Rows of `alembic_version`.
        columns: Result of `COLUMNS_IN_FILE` or `COLUMNS_ON_SERVER`, by table.
    """
    if len(versions) != 1:
        return NOTHING
    (version,) = versions
    ours = version in _TABLES and all(
        {"tenant_id", "context_id"} <= set(columns.get(name, ())) for name in _TABLES[version]
    )
    if not ours or "visible_from" not in columns["contexts"]:
        return NOTHING
    return Found(version, renamed=False)


def renamed(sql: str) -> str:
    """A statement, or a name, with ours in the place of the old ones."""
    sql = re.sub(_FOREIGN, lambda m: f"fk_{_NEW[m[1]]}_{PREFIX}contexts", sql)
    sql = re.sub(_CHECK, f"ck_{PREFIX}contexts_", sql)
    return re.sub(_NAME, lambda m: f"{m[1]}{_NEW[m[2]]}", sql)


def by_table(rows: Iterable[Sequence[str]]) -> dict[str, set[str]]:
    """The columns of each table, from rows of table and column."""
    found: dict[str, set[str]] = {}
    for table, column in rows:
        found.setdefault(table, set()).add(column)
    return found


def rename_in_file(connection: Connection) -> None:
    """
    Rebuild everything under its new name, constraints too, in an SQLite file that is ours.

    SQLite renames a table, but neither a constraint nor a view.
    """
    kinds = ("table", "view", "trigger")
    there = {
        name: (kind, sql)
        for kind, name, sql in connection.exec_driver_sql(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        )
        if name in _NEW and kind in kinds
    }
    for name in sorted(there, key=lambda name: kinds.index(there[name][0])):
        kind, sql = there[name]
        if kind == "table":
            connection.exec_driver_sql(renamed(sql))
            connection.exec_driver_sql(f'INSERT INTO {_NEW[name]} SELECT * FROM "{name}"')  # noqa: S608 - names of ours
    for name in sorted(there, key=lambda name: kinds.index(there[name][0]), reverse=True):
        connection.exec_driver_sql(f'DROP {there[name][0].upper()} "{name}"')
    for kind, sql in there.values():
        if kind != "table":
            connection.exec_driver_sql(renamed(sql))


_CONSTRAINTS = (
    "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass('{name}') ORDER BY 1"
)


def tables_of(found: Found) -> tuple[str, ...]:
    """The tables of a database from before, by the names they have there."""
    return (OLD_VERSION_TABLE, *_TABLES[found.revision or ""])


def rename_on_server(connection: Connection, found: Found) -> None:
    """Give the tables of a Postgres database that is ours, and their constraints, the new names."""
    for name in tables_of(found):
        asked = connection.exec_driver_sql(_CONSTRAINTS.format(name=name))
        for constraint in list(asked.scalars()):
            new = renamed(constraint)
            if new == constraint:  # as the server calls a column that is never null
                new = f"{_NEW[name]}{constraint.removeprefix(name)}"
            connection.exec_driver_sql(
                f'ALTER TABLE {name} RENAME CONSTRAINT "{constraint}" TO "{new}"'
            )
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {_NEW[name]}")
