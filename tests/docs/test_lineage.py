"""The lineage names every row once, and only modules and tests that there are."""

import re
import shutil
import subprocess

import pytest
from tests.docs import lineage_page
from tests.docs.lineage_page import ROOT, TEST, module_now, places_of_tests, refreshed

PAGE = lineage_page.PAGE.read_text(encoding="utf-8")
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


def _rows():
    """Each row as its four cells."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


ROWS = _rows()


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


def test_every_module_and_every_test_is_where_the_page_says():
    """If not: `python tests/docs/lineage_page.py` finds them again by their names and renames."""
    assert len({found for row in ROWS for found in TEST.findall(row[3])}) > 200
    assert len({row[2] for row in ROWS}) > 40
    assert refreshed(PAGE, places_of_tests(ROOT)) == PAGE


PLACES = {"test_one": ["tests/new/test_a.py"], "test_two": ["tests/b.py", "tests/c.py"]}


def test_a_test_that_moved_is_found_by_its_name():
    """And nobody writes its path; where several have the name, the page says which one it means."""
    page = "`tests/old/test_a.py::test_one` `tests/c.py::test_two`"
    assert refreshed(page, PLACES) == "`tests/new/test_a.py::test_one` `tests/c.py::test_two`"


@pytest.mark.parametrize("name", ["test_two", "test_three"])
def test_a_test_that_is_gone_or_ambiguous_is_refused(name):
    """By its name, with the files that it may be in."""
    with pytest.raises(LookupError, match=f"{name} is no longer in tests/old.py"):
        refreshed(f"`tests/old.py::{name}`", PLACES)


def test_a_module_that_moved_is_followed(tmp_path):
    """Through renames that are committed and one that is not; what is gone is said."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("needs git")

    def run(*arguments):
        names = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
        subprocess.run([git, *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    run("init")
    folder = tmp_path / "src" / "looopy"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("one = 1\ntwo = 2\n")
    (folder / "gone").write_text("three = 3\n")
    run("add", ".")
    run("commit", "-m", "Begin")
    run("mv", "src/looopy/a.py", "src/looopy/b.py")
    run("rm", "src/looopy/gone")
    run("commit", "-m", "Move")
    run("mv", "src/looopy/b.py", "src/looopy/c.py")
    assert module_now("a.py", tmp_path) == "c.py"
    assert module_now("c.py", tmp_path) == "c.py"
    with pytest.raises(LookupError, match="gone is gone"):
        module_now("gone", tmp_path)
