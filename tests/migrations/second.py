"""A second migration, as a later version will bring one, with the real first one before it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from looopy.stores.sql import migrate
from looopy.stores.sql.postgres import driver, one_statement, rls  # noqa: F401 - loaded before the head is another
from looopy.stores.sql.sqlite import schema  # noqa: F401 - as above
from looopy.stores.sql.statements import HEAD

ROOT = Path(__file__).parents[2]
SECOND = "0002_colour"
_TEXT = """
import sqlalchemy as sa
from alembic import op

revision = "0002_colour"
down_revision = "{head}"


def upgrade():
    op.add_column("looopy_contexts", sa.Column("colour", sa.Text(), server_default="none"))
    op.execute("UPDATE looopy_contexts SET colour = context_id")
    {more}


def downgrade():
    op.drop_column("looopy_contexts", "colour")
"""


@contextlib.contextmanager
def second_migration(folder: Path, more: str = "pass") -> Iterator[None]:
    """
    Have this process be of a version whose head is `SECOND`.

    Args:
        folder: Where its migrations are written.
        more: A statement of Python at the end of its upgrade.
    """
    shutil.copytree(ROOT / "migrations", folder / "migrations")
    text = _TEXT.format(head=HEAD, more=more)
    (folder / "migrations" / "versions" / f"{SECOND}.py").write_text(text, encoding="utf-8")
    ini = shutil.copy(ROOT / "alembic.ini", folder)
    with mock.patch.object(migrate, "_ini", return_value=Path(ini)), _head(SECOND):
        yield


def first_head() -> contextlib.AbstractContextManager[None]:
    """Within `second_migration`: have this process be of the version before."""
    return _head(HEAD)


@contextlib.contextmanager
def _head(revision: str) -> Iterator[None]:
    ours = [m for name, m in sys.modules.items() if name.startswith("looopy.stores.sql")]
    with contextlib.ExitStack() as patched:
        for module in ours:
            if "HEAD" in vars(module):
                patched.enter_context(mock.patch.object(module, "HEAD", revision))
        patched.callback(one_statement._text.cache_clear)  # statements with the number of the head
        one_statement._text.cache_clear()
        yield


async def migrate_elsewhere(url: str, folder: Path) -> None:
    """Bring the database to `SECOND` in another process, which is of that version."""
    code = (
        "import pathlib, sys\n"
        "from looopy.stores.sql import migrate\n"
        "from tests.migrations.second import second_migration\n"
        "with second_migration(pathlib.Path(sys.argv[2])):\n"
        "    migrate.upgrade(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, url, str(folder)]
    done = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await done.wait() == 0
