"""The page about performance names what the program measures; its figures come from the program."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "performance.md"
TEXT = PAGE.read_text(encoding="utf-8")
BEGIN, END = (
    "<!-- figures: made by `python -m benchmarks --page`, not by hand -->",
    "<!-- end of figures -->",
)
SMALL = """
import asyncio, json, tempfile
from benchmarks import scale, worker
NUMBERS = {"fill": 20, "S3": 20, "S4": 201, "S5": 2, "late": 12, "idle": 2}
with tempfile.TemporaryDirectory() as folder:
    for name, number in NUMBERS.items():
        database = "S3" if name == "fill" else name
        url = f"sqlite:///{folder}/{database}.db"
        print(json.dumps([name, worker.run("looopy", name, "sqlite", url, number)]))
    many = asyncio.run(scale.many_contexts(folder, 20, few=10, rounds=2))
    print(json.dumps(["many", many]))
"""
"""The scenarios that know tables or contexts by name, each as small as it can be."""


def _ask(code):
    """What a line of Python prints where `benchmarks` can be imported."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_every_scenario_is_described():
    """Each name of the catalogue is in the first column of the table, and nothing else is."""
    table = TEXT.partition("| scenario | what happens |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)
    described = [name for cell in cells for name in cell.split(", ")]
    listed = _ask("from benchmarks.catalogue import SCENARIOS\nprint(*SCENARIOS, sep='\\n')")
    assert described == listed


def test_scenarios_find_their_figures():
    """They name tables and columns of the present schema, and all that was said is there."""
    figures = dict(map(json.loads, _ask(SMALL)))
    assert figures["S3"]["model_saw@20"] == 21
    assert figures["S4"]["bytes_over_bodies"] > 1
    assert figures["S4"]["messages_missing"] == figures["S5"]["messages_missing"] == 0
    assert figures["many"]["contexts"] == 20
    assert figures["late"]["late_over_early"] > 0
    assert "kib_per_started_agent" in figures["idle"]


def test_the_figures_stand_between_marks_and_are_made_by_the_program():
    """Between the marks is a table with the columns of the program, or that there are none."""
    between = TEXT.partition(BEGIN)[2].partition(END)[0].strip()
    assert TEXT.count(BEGIN) == TEXT.count(END) == 1
    columns = _ask("from benchmarks.report import HEAD\nprint(' | '.join(HEAD))")[0]
    assert between.startswith("None yet:") or f"| {columns} |" in between


def test_the_pictures_are_small_and_shown():
    """Each below 60 KB; none that no page shows."""
    pictures = sorted((ROOT / "docs").rglob("*.png"))
    assert all(path.stat().st_size < 60_000 for path in pictures)
    assert all(f"]({path.relative_to(ROOT / 'docs').as_posix()})" in TEXT for path in pictures)
