"""
Measure the cost of `from looopy import Agent, open_stores` over bare Python.

CPU seconds of child processes, not wall time, so that a busy machine shows the same; bare and full
runs alternate and the medians are compared. The promise is at most 0.25 s.

    python benchmarks/import_time.py [RUNS] [--check]
"""

import os
import resource
import statistics
import subprocess
import sys

LIMIT_S = 0.25
BARE = "pass"
FULL = "from looopy import Agent, open_stores"


def cpu_s(code: str) -> float:
    """User and system CPU seconds of one child that runs *code*."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print both medians, their difference and their ratio; with `--check` fail over the limit."""
    runs = next((int(a) for a in sys.argv[1:] if a.isdecimal()), 10)
    cpu_s(FULL)  # compiles what is not compiled yet
    pairs = [(cpu_s(BARE), cpu_s(FULL)) for _ in range(runs)]
    bare = statistics.median(pair[0] for pair in pairs)
    full = statistics.median(pair[1] for pair in pairs)
    print(f"bare {bare:.3f} s, looopy {full:.3f} s of CPU (median of {runs})")
    print(f"difference {full - bare:.3f} s, ratio {full / bare:.1f}; the promise is {LIMIT_S} s")
    return int("--check" in sys.argv and full - bare > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
