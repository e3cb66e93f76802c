"""
A real PgBouncer before a real Postgres, for the tests of poolers.

`LOOOPY_TEST_PGBOUNCER` names its binary; otherwise it is looked for where systems put it. Debian
and Ubuntu have it as `apt-get install pgbouncer`, macOS as `brew install pgbouncer`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import psycopg

MISSING = (
    "no PgBouncer: apt-get install pgbouncer (or brew install pgbouncer), or name its binary in"
    " LOOOPY_TEST_PGBOUNCER"
)
_PATIENCE_S = 30.0
_PORT = 6432  # of the name of a socket in a folder of our own


def binary() -> str | None:
    """Where PgBouncer is; `None` where it is not installed."""
    given = os.environ.get("LOOOPY_TEST_PGBOUNCER")
    return given or shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


class Bouncer:
    """
    A PgBouncer that runs inside a `with` block.

    Args:
        url: Of the database behind it.
        mode: `session` or `transaction`.
        settings: More of its configuration.
    """

    def __init__(self, url: str, mode: str, **settings: object) -> None:
        self._upstream = urlsplit(url)
        self._settings = {"pool_mode": mode, "default_pool_size": 2, **settings}
        self._folder = Path(tempfile.mkdtemp(prefix="lpb-"))

    @property
    def url(self) -> str:
        """The URL of the same database, through here."""
        query = urlencode({"host": self._folder, "port": _PORT})
        return f"postgresql://postgres@/{self._upstream.path[1:]}?{query}"

    def __enter__(self) -> Self:
        found = binary()
        assert found is not None, MISSING
        user: dict[str, object] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        configuration = self._folder / "pgbouncer.ini"
        configuration.write_text(self._configuration(), encoding="utf-8")
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [found, configuration], stdout=log, stderr=log, cwd=self._folder, **user
            )
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(_PATIENCE_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self) -> str:
        """What it said."""
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def _configuration(self) -> str:
        given = self._upstream
        facts = {
            "host": parse_qs(given.query).get("host", [given.hostname])[0],
            "port": given.port or 5432,
            "user": given.username or "postgres",
            "password": quote(given.password or ""),
        }
        database = " ".join(f"{name}={value}" for name, value in facts.items() if value)
        settings = {
            "listen_addr": "",
            "listen_port": _PORT,
            "unix_socket_dir": self._folder,
            "auth_type": "any",
            **self._settings,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        return "\n".join(["[databases]", f"* = {database}", "[pgbouncer]", *lines, ""])
