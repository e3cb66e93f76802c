"""`looopy db`: bring a database's schema up or down, or say how far it is."""

from __future__ import annotations

from looopy.cli.paths import default_url, make_data_folder, shown_place
from looopy.cli.terminal import Terminal


def upgrade(url: str | None, revision: str) -> int:
    """Migrate up to *revision*; a database that is not there is made."""
    from looopy.stores.sql import migrate

    if url is None:
        make_data_folder()
    target = url or default_url()
    migrate.upgrade(target, revision)
    return _say_where(target)


def downgrade(url: str | None, revision: str) -> int:
    """Migrate down to *revision*."""
    from looopy.stores.sql import migrate

    target = url or default_url()
    migrate.downgrade(target, revision)
    return _say_where(target)


def check(url: str | None) -> int:
    """Say which schema the database has: status 0 when it is the one this version needs."""
    from looopy.stores.sql import migrate

    target = url or default_url()
    found, expected = migrate.check(target)
    if found == expected:
        Terminal().line(f"{shown_place(target)} is up to date: its schema is {expected}.")
        return 0
    Terminal().error(
        f"the schema of {shown_place(target)} is {found or 'nothing'}, this version needs"
        f" {expected}"
    )
    return 1


def sql(url: str | None) -> int:
    """Print the statements that make the schema from nothing."""
    from looopy.stores.sql import migrate

    Terminal().write(migrate.sql(url or default_url()))
    return 0


def _say_where(url: str) -> int:
    from looopy.stores.sql import migrate

    found, _ = migrate.check(url)
    Terminal().line(f"The schema of {shown_place(url)} is now {found or 'nothing'}.")
    return 0
