"""
How far a schema is from the one that this version needs, and what alembic was asked to do about it.
"""

from __future__ import annotations

from typing import Any

from looopy.errors import SchemaOutOfDate
from looopy.stores.sql.statements import HEAD, PREFIX, VERSION_TABLE

BEFORE = frozenset(f"{number:04}" for number in range(1, 12))
"""The schemas of clones before the first release: no migration begins at one of them."""

FIND_BEFORE = (
    "SELECT version_num FROM alembic_version"
    " WHERE CAST(version_num AS TEXT) IN ('0001', '0002', '0003')"
    " AND NOT EXISTS (SELECT 1 FROM contexts c JOIN messages m ON m.tenant_id = c.tenant_id"
    " AND m.context_id = c.context_id WHERE c.visible_from < 0)"
)
"""
The revision of a clone whose tables had no prefix yet, in a database without our table of versions.

The engine refuses the statement unless all of these tables and columns exist: then the tables are
an application's, or there are none.
"""


def out_of_date(found: str | None) -> SchemaOutOfDate:
    """The refusal to open a database whose schema is at *found*; `None`: it has no schema."""
    at = f"the database's schema is at {found}, this version needs {HEAD}"
    if found is None:
        at = f"the database has no schema yet, this version needs {HEAD}"
    advice = "run `looopy db upgrade --db URL`"
    if found in BEFORE:
        at = f"a clone of looopy from before the first release (schema {found}) made the database"
        advice = (
            "export its contexts with that clone (`looopy contexts export CONTEXT_ID... --to FILE"
            " --db URL`), and import the archive into a new database with this version (`looopy"
            " contexts import FILE --db NEW_URL`)"
        )
    elif is_newer(found):
        advice = "it was written by a newer one; upgrade looopy"
    return SchemaOutOfDate(f"{at}: {advice}", found=found, expected=HEAD)


def is_newer(found: str | None) -> bool:
    """True if a database at *found* was migrated by a newer version: revisions are numbered."""
    return found is not None and found not in BEFORE and found[:4] > HEAD[:4]


def options(dialect: str) -> dict[str, Any]:
    """The options that alembic needs for our schema on either engine."""
    from looopy.stores.sql import tables

    return {
        "target_metadata": tables.sqlite_metadata if dialect == "sqlite" else tables.metadata,
        "version_table": VERSION_TABLE,
        "include_name": _is_ours,
        "compare_server_default": True,
        "render_as_batch": dialect == "sqlite",
        "transactional_ddl": True,
    }


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """True if a comparison includes it: the tables of an application are left out."""
    return kind != "table" or (name is not None and name.startswith(PREFIX))


def moves() -> bool:
    """True if alembic was asked to move to a revision, and not only to look."""
    from alembic import context

    try:
        context.get_revision_argument()
    except KeyError:
        return False
    return True


def is_there() -> bool:
    """True if the database is at the revision that alembic was asked for."""
    from alembic import context

    return context.get_context().get_current_revision() == context.get_revision_argument()
