"""
A database that goes back to an earlier state while processes have it open.

So does a standby that is promoted without the newest commits, and a backup that is restored.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg


class GoingBack:
    """
    The database of a URL of looopy.

    `keep()` remembers its rows, and `go_back()` restores them.
    """

    def __init__(self, url: str) -> None:
        self._file = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else None
        self._server = "" if self._file else re.sub(r"\+\w+", "", url, count=1)
        self._kept: dict[str, bytes] = {}

    def keep(self) -> None:
        """Remember all rows as they are now."""
        if self._file is not None:
            with closing(sqlite3.connect(self._file)) as now, closing(self._backup()) as kept:
                now.backup(kept)
            return
        with psycopg.connect(self._server) as now:
            for table in self._tables(now):
                with now.cursor().copy(f"COPY {table} TO STDOUT") as out:
                    self._kept[table] = b"".join(map(bytes, out))

    def go_back(self) -> None:
        """Replace all rows by the remembered ones."""
        if self._file is not None:
            with closing(sqlite3.connect(self._file)) as now, closing(self._backup()) as kept:
                kept.backup(now)
            return
        with psycopg.connect(self._server) as now:
            now.execute("SET session_replication_role = replica")  # rows of any table first
            for table in self._tables(now):
                now.execute(f"DELETE FROM {table}")
                with now.cursor().copy(f"COPY {table} FROM STDIN") as into:
                    into.write(self._kept[table])

    def _backup(self) -> sqlite3.Connection:
        assert self._file is not None
        return sqlite3.connect(self._file.with_suffix(".kept"))

    @staticmethod
    def _tables(connection: psycopg.Connection) -> list[str]:
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE"
            " 'looopy\\_%' AND tablename <> 'looopy_version'"
        )
        return [name for (name,) in found]
