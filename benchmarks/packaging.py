"""S7: the cost of the import, and the packages of an install."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from benchmarks.import_time import BARE, FULL, cpu_s
from benchmarks.scenarios import Figures

ROOT = Path(__file__).parent.parent


def import_costs(runs: int = 7) -> Figures:
    """Milliseconds of the import over bare Python, CPU and wall, and its modules."""
    cpu_s(FULL)
    cpu = [(cpu_s(FULL) - cpu_s(BARE)) * 1e3 for _ in range(runs)]

    def wall(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - began) * 1e3

    full = [wall(FULL) for _ in range(runs)]
    code = f"{FULL}; import sys; print(len(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    return {
        "import_cpu_over_bare_python": statistics.median(cpu),
        "import_wall": statistics.median(full),
        "modules_imported": int(done.stdout),
    }


def packages() -> Figures:
    """How many packages the base install has, looopy included: the built wheel, a fresh venv."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        pins = there / "pins.txt"
        pins.write_text("\n".join(project["tool"]["uv"]["constraint-dependencies"]), "utf-8")
        python = there / "venv" / "bin" / "python"

        def uv(*args: object) -> str:
            command = ["uv", *map(str, args)]
            return subprocess.run(
                command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
            ).stdout

        uv("build", "--quiet", "--wheel", "--out-dir", there)
        (wheel,) = there.glob("*.whl")
        uv("venv", "--quiet", "--python", "3.11", there / "venv")
        uv("pip", "install", "--quiet", "--python", python, "--constraint", pins, wheel)
        listed = json.loads(uv("pip", "list", "--quiet", "--format", "json", "--python", python))
        size = sum(path.stat().st_size for path in (there / "venv").rglob("*") if path.is_file())
    return {"distributions": len(listed), "venv_mib": size / 2**20}
