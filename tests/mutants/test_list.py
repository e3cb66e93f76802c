"""The list of mutants stays true as the code moves; they are run by `nox -s mutants`."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from tests.mutants.__main__ import ROOT, edited
from tests.mutants.listed import MUTANTS
from tests.mutants.mutant import Edit


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_changes_is_there_exactly_once(mutant):
    """Each edit finds its place, changes something, and leaves Python behind."""
    texts = {edit.file: (ROOT / edit.file).read_text(encoding="utf-8") for edit in mutant.edits}
    for edit in mutant.edits:
        assert texts[edit.file].count(edit.old) == 1, edit
        texts[edit.file] = texts[edit.file].replace(edit.old, edit.new)
        assert edit.old != edit.new
    for file, text in texts.items():
        compile(text, file, "exec")


@pytest.mark.timeout(300)  # it imports every test there is
def test_every_test_that_has_to_kill_a_mutant_exists():
    """Each of the node ids is found by pytest."""
    node_ids = sorted({n for mutant in MUTANTS for n in mutant.killed_by})
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *node_ids],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]


def test_there_are_many_mutants_and_each_has_a_name_of_its_own():
    """At least the number that was promised, and none without a test."""
    assert len(MUTANTS) >= 20
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert all(mutant.killed_by and mutant.why for mutant in MUTANTS)


def test_an_edit_that_finds_no_place_is_refused_and_taken_back(tmp_path):
    """So that a mutant that changes nothing never counts as killed."""
    file = tmp_path / "a.py"
    file.write_text("one = 1\ntwo = 2\n")
    edits = (Edit("a.py", "one", "three"), Edit("a.py", "nothing", "something"))
    with pytest.raises(LookupError, match="0 times"), edited(tmp_path, edits):
        pytest.fail("it was made")
    assert file.read_text() == "one = 1\ntwo = 2\n"
