"""Empty databases to measure in, on the disk of this machine, at full durability."""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

_SYNCED = ("fsync=on", "full_page_writes=on", "synchronous_commit=on")


class Targets:
    """
    Gives out databases.

    Args:
        folder: Where SQLite files go.
        admin: A URL of a Postgres user who may create databases; `None` without Postgres.
    """

    def __init__(self, folder: Path, admin: str | None) -> None:
        self._folder = folder
        self._admin = admin
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def fresh(self, backend: str) -> Iterator[str]:
        """The URL of an empty database, gone afterwards."""
        number = next(self._numbers)
        if backend == "sqlite":
            path = self._folder / f"bench-{number}.db"
            yield f"sqlite:///{path}"
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
        elif backend == "postgres":
            from tests.postgres import ask

            assert self._admin is not None
            name = f"looopy_bench_{os.getpid()}_{number}"
            ask(self._admin, f"CREATE DATABASE {name}")
            yield urlsplit(self._admin)._replace(path=f"/{name}").geturl()
            ask(self._admin, f"DROP DATABASE {name} WITH (FORCE)")
        else:
            yield "memory:"


@contextlib.contextmanager
def targets(*, postgres: bool) -> Iterator[Targets]:
    """A folder, and a server that syncs each commit: that of `LOOOPY_TEST_PG`, or one of ours."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="looopy-bench-")))
        admin = os.environ.get("LOOOPY_TEST_PG") if postgres else None
        if postgres and not admin:
            from tests.postgres import Server

            server = Server(*_SYNCED)
            server.start()
            stack.callback(server.remove)
            admin = server.url("postgres")
        yield Targets(folder, admin)
