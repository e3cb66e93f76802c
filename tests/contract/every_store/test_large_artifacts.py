"""A large artifact passes through a little memory."""

from __future__ import annotations

import subprocess
import sys


def test_a_large_artifact_goes_in_and_out_in_little_memory(tmp_path):
    """By a process of its own, which fails over 64 MiB; the whole gigabyte is a benchmark."""
    place = tmp_path / "chat.db"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.artifacts", "--mib=96", f"--db=sqlite:///{place}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "out: " in done.stdout
