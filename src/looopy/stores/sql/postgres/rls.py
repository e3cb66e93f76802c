"""
Row-level security on Postgres: the server itself keeps the tenants apart.

Every statement of ours names its tenant. With row-level security a statement without one would
still see no other tenant's rows: each transaction begins by naming its tenant, and a policy on each
table compares. The setting ends with its transaction and is then empty, which matches no tenant, so
a connection carries nothing from one tenant to the next. A statement of a transaction without a
tenant fails, instead of finding no rows: a process that was connected before the policies were made
would take every context for a new one.

The policy holds for the tables' owner too (`FORCE`), but the owner could lift it: the application
connects as another role, and `secure` gives that role no more than it needs. A migration lifts the
force for the time of its own transaction, because it would not change rows that it does not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.errors import ConfigurationError
from looopy.stores.sql.driver import Query
from looopy.stores.sql.statements import TABLES, VERSION_TABLE

if TYPE_CHECKING:
    from sqlalchemy import Connection

SETTING = "looopy.tenant"
_POLICY = "looopy_tenant"
_SAID = f"current_setting('{SETTING}', true)"
_UNSAID = f"{SETTING} is not set"
# These words are not a number, so the server fails with them as soon as it looks for a row.
_CONDITION = (
    f"tenant_id = CASE WHEN {_SAID} <> '' THEN {_SAID}"
    f" ELSE CAST(CAST('{_UNSAID}' || COALESCE({_SAID}, '') AS integer) AS text) END"
)
UNSAID = "22P02"
"""The server's answer to a statement without a tenant: not a number."""
_GRANTED = "SELECT, INSERT, UPDATE, DELETE"
_NAMES = ", ".join(f"'{name}'" for name in sorted(TABLES))
_VERSION = f"SELECT version_num FROM {VERSION_TABLE} LIMIT 1"  # noqa: S608 - a constant
# The schema's revision, and each existing table of ours that hides rows from this role: superusers
# and some roles see all of them. One statement, because opening waits for it.
LOOK = Query(
    f"SELECT ({_VERSION}), c.relname::text FROM (SELECT) one LEFT JOIN pg_class c"  # noqa: S608 - made of constants
    f" ON c.relname IN ({_NAMES}) AND c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid)"
    " AND row_security_active(c.oid)",
    {},
    alone=True,
)
ABOVE = Query(
    "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user", {}, alone=True
)
"""True if no policy holds for this role."""


def unsafe(place: str, *, above: bool) -> ConfigurationError:
    """
    The refusal to use a database where some table shows this user every tenant's rows.

    Args:
        place: Host and database, for the message.
        above: The answer to `ABOVE`.
    """
    if above:
        return ConfigurationError(
            f"the user of the database {place} is above row-level security (a superuser, or"
            " BYPASSRLS): connect as the role that `looopy db secure` was given"
        )
    return ConfigurationError(
        f"row-level security is not on for all tables of the database {place}: have their"
        " owner run `looopy db secure --role ROLE --db URL`"
    )


def as_tenant(tenant: object) -> str:
    """
    The text after a BEGIN that limits the transaction to the rows of *tenant*.

    The name is sent in hexadecimal: it can hold no statement.
    """
    name = str(tenant or "").encode().hex()
    return f"; SELECT set_config('{SETTING}', convert_from(decode('{name}', 'hex'), 'UTF8'), true)"


# --- for the owner of the tables ---


def secure(connection: Connection, roles: list[str]) -> None:
    """
    Turn row-level security on for every existing table of ours, and let *roles* use them.

    May be run any number of times; afterwards the database has this version's policies.

    Raises:
        ConfigurationError: A role does not exist, or would bypass the policies.
    """
    from sqlalchemy import text

    for role in roles:
        _check_role(connection, role)
    quote = connection.dialect.identifier_preparer.quote_identifier
    for table in present(connection):
        name = quote(table)
        for statement in (
            f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY",
            f"DROP POLICY IF EXISTS {_POLICY} ON {name}",
            f"CREATE POLICY {_POLICY} ON {name} USING ({_CONDITION}) WITH CHECK ({_CONDITION})",
            *(f"GRANT {_GRANTED} ON {name} TO {quote(role)}" for role in roles),
        ):
            connection.execute(text(statement))
    schema = connection.execute(text("SELECT current_schema()")).scalar_one()
    for role in roles:
        connection.execute(text(f"GRANT USAGE ON SCHEMA {quote(schema)} TO {quote(role)}"))
        connection.execute(text(f"GRANT SELECT ON {VERSION_TABLE} TO {quote(role)}"))


def lift(connection: Connection) -> list[str] | None:
    """
    Let the owner of the tables see every row until the transaction ends, or `secure` comes.

    Returns:
        The roles that may use the tables; `None` when row-level security is off.
    """
    from sqlalchemy import text

    if not is_on(connection):
        return None
    granted = (
        "SELECT DISTINCT r.rolname FROM pg_class c CROSS JOIN aclexplode(c.relacl) a"
        " JOIN pg_roles r ON r.oid = a.grantee WHERE c.relname = 'looopy_contexts'"
        " AND pg_table_is_visible(c.oid) AND a.privilege_type = 'INSERT' AND r.oid <> c.relowner"
    )
    roles = [str(name) for name in connection.execute(text(granted)).scalars()]
    quote = connection.dialect.identifier_preparer.quote_identifier
    for table in present(connection):
        connection.execute(text(f"ALTER TABLE {quote(table)} NO FORCE ROW LEVEL SECURITY"))
    # A row that is still hidden is then an error, instead of being passed over.
    connection.execute(text("SET LOCAL row_security = off"))
    return roles


def is_on(connection: Connection) -> bool:
    """True if row-level security was turned on for our tables."""
    from sqlalchemy import text

    on = (
        "SELECT relname FROM pg_class WHERE relname = 'looopy_contexts' AND relrowsecurity"
        " AND pg_table_is_visible(oid)"
    )
    return connection.execute(text(on)).first() is not None


def present(connection: Connection) -> list[str]:
    """Our tables, as far as the schema has them."""
    from sqlalchemy import text

    from looopy.stores.sql.tables import metadata

    there = text("SELECT to_regclass(:name) IS NOT NULL")
    names = [table.name for table in metadata.sorted_tables]
    return [n for n in names if connection.execute(there, {"name": n}).scalar_one()]


def _check_role(connection: Connection, role: str) -> None:
    from sqlalchemy import text

    question = (
        "SELECT rolsuper OR rolbypassrls, pg_has_role(r.oid, t.relowner, 'MEMBER')"
        " FROM pg_roles r LEFT JOIN pg_class t ON t.oid = to_regclass('looopy_contexts')"
        " WHERE r.rolname = :role"
    )
    found = connection.execute(text(question), {"role": role}).first()
    if found is None:
        raise ConfigurationError(f"there is no role {role!r} on this server: create it first")
    above, owns = found
    if above or owns:
        why = "is a superuser, or has BYPASSRLS" if above else "owns the tables, or may become one"
        raise ConfigurationError(
            f"the role {role!r} {why}: row-level security would not hold it; use another one"
        )
