"""The command of the campaign, for tests: in a process of its own, as a test runner has threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m tests.campaign` with *arguments*."""
    return subprocess.run(
        [sys.executable, "-m", "tests.campaign", *arguments],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
