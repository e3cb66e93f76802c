"""The lineage names every row once, and only modules and tests that there are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "lineage.md").read_text(encoding="utf-8")
RANGES = {
    "P": [(1, 14), (20, 25), (30, 42), (50, 74), (80, 97)],
    "L": [(1, 28), (30, 52), (60, 90)],
    "M": [(1, 16)],
    "F": [(1, 16)],
    "D": [(1, 16), (20, 25), (30, 39)],
    "V": [
        (1, 11),
        (20, 29),
        (35, 46),
        (50, 54),
        (60, 63),
        (70, 73),
        (80, 86),
        (90, 92),
    ],
    "K": [(1, 10), (20, 28), (30, 50), (60, 72), (80, 83)],
    "R": [(1, 32)],
}
TEST = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(test_\w+)`")


def _rows():
    """Each row as its four cells."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


ROWS = _rows()


def _functions(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_row_is_there_once_and_in_order():
    """None is missing, none is double, none is made up."""
    expected = [
        f"{letter}{number}"
        for letter, ranges in RANGES.items()
        for first, last in ranges
        for number in range(first, last + 1)
    ]
    assert [row[0] for row in ROWS] == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_where_it_is_or_why_it_is_not(row):
    """Four cells; what is here has a test, what is not has a reason."""
    _, what, where, shown = row
    assert what
    assert where
    if where == "not here":
        assert len(what.split()) >= 3  # a reason, not a shrug
    elif where != "not yet":
        assert re.fullmatch(r"`[\w/]+\.py`(, `[\w/]+\.py`)*", where)
        assert TEST.search(shown)
    assert not TEST.sub("", shown).strip()


def test_every_module_that_is_named_exists():
    """Below `src/looopy`."""
    named = {path for row in ROWS for path in re.findall(r"`([\w/]+\.py)`", row[2])}
    assert len(named) > 40
    assert [path for path in sorted(named) if not (ROOT / "src" / "looopy" / path).is_file()] == []


def test_every_test_that_is_named_exists():
    """As a function of that file."""
    named = {found for row in ROWS for found in TEST.findall(row[3])}
    assert len(named) > 200
    files = {path: _functions(path) for path in sorted({path for path, _ in named})}
    assert [f"{path}::{name}" for path, name in sorted(named) if name not in files[path]] == []
