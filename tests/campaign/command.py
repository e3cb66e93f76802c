"""The command of the campaign, for tests: in a process of its own, as a test runner has threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def campaign(*arguments: str, server: str | None = None) -> subprocess.CompletedProcess[str]:
    """
    Run `python -m tests.campaign` with *arguments*.

    Args:
        arguments: As on the command line.
        server: The URL of a Postgres that runs already; `None`: it starts one if it needs it.
    """
    environment = dict(os.environ)
    if server is not None:
        environment["LOOOPY_TEST_PG"] = server
    return subprocess.run(
        [sys.executable, "-m", "tests.campaign", *arguments],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
