"""A large artifact leaves and enters in a little memory."""

from __future__ import annotations

import subprocess
import sys


def test_a_large_artifact_is_archived_in_little_memory():
    """By a process of its own, which fails over 64 MiB; the whole gigabyte is a benchmark."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.archives", "--mib=96"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "in: " in done.stdout
