"""
How far a schema is from the one that this version needs, and what alembic was asked to do about it.
"""

from __future__ import annotations

from typing import Any

from looopy.errors import SchemaOutOfDate
from looopy.stores.sql.statements import HEAD, PREFIX, VERSION_TABLE, Found


def out_of_date(found: Found) -> SchemaOutOfDate:
    """The refusal to open a database that is at *found*."""
    advice = "run `looopy db upgrade --db URL`"
    if is_newer(found.revision):
        advice = "it was written by a newer one; upgrade looopy"
    at = f"the database's schema is at {found}"
    if found.revision is None:
        at = "the database has no schema yet"
    return SchemaOutOfDate(
        f"{at}, this version needs {HEAD}: {advice}",
        found=found.revision,
        expected=HEAD,
    )


def is_newer(found: str | None) -> bool:
    """True if a database at *found* was migrated by a newer version: revisions are numbered."""
    return found is not None and found[: len(HEAD)] > HEAD


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
