"""
Measure other libraries with a harness that is not part of this repository, if it is installed.

Its folder has a `run.py` that keeps a venv for each peer below `$BENCH_HOME` and prints a JSON line
for each figure. Where other peers wait for the disk, those that do not are left out.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.catalogue import GOALS

NO_SYNC = ("strands",)
SYNCED = ("S1", "S2", "S5")
COMPARED = ("S1", "S2", "S3", "S5", "S6", "S7", "S8")  # S4 takes 25 s a peer, and has no such goal
_CPU = "client_cpu_ms_per_turn"


def home() -> Path:
    """The folder in which the harness keeps its venvs."""
    return Path(os.environ.get("BENCH_HOME", Path(tempfile.gettempdir()) / "looopy-bench"))


def installed() -> list[str]:
    """The peers that can be measured here, without the harness's own floor."""
    names = [path.name.removeprefix("venv-") for path in home().glob("venv-*")]
    return sorted(name for name in names if name != "floor")


def measure(harness: Path, scenario: str) -> list[dict[str, object]]:
    """Measure every installed peer in one scenario, on all its backends."""
    names = installed()
    if not names or scenario not in COMPARED:
        return []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(harness / "run.py"), "--only", ",".join(names)]
        command += ["--scenario", scenario, "--reps", "1", "--no-floor"]
        command += ["--out", str(Path(folder) / "rows.jsonl")]
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [row for row in rows if row["scenario"] == scenario and row["metric"] != "FAILED"]


def fastest(
    rows: list[dict[str, object]], scenario: str, backend: str, metric: str
) -> tuple[float, str] | None:
    """The best figure of any peer for a metric, and whose it is."""
    goal = next((g for g in GOALS if (g.scenario, g.metric) == (scenario, metric)), None)
    if goal is None:
        return None
    wanted = metric.removesuffix("_3_readers")
    of_cpu = scenario == "S5" and metric == _CPU  # the harness has throughput alone
    found = []
    for row in rows:
        peer, where, value = str(row["peer"]), str(row["backend"]), row["value"]
        if row["metric"] != ("turns_per_s" if of_cpu else wanted):
            continue
        if scenario in SYNCED and peer in NO_SYNC:
            continue
        if backend == "postgres" and not where.endswith("pg"):
            continue
        if backend == "sqlite" and where.endswith("pg"):
            continue
        assert isinstance(value, int | float)
        found.append((1000 / value if of_cpu else float(value), f"{peer} {where}"))
    if not found:
        return None
    return max(found) if goal.higher else min(found)
