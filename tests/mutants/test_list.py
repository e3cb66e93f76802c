"""The list of mutants stays true as the code moves; they are run by `nox -s mutants`."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import lru_cache

import pytest
from tests.ground import COLLECTED
from tests.mutants.__main__ import ROOT, edited
from tests.mutants.listed import MUTANTS
from tests.mutants.mutant import Edit


def test_the_text_that_a_mutant_changes_is_there_exactly_once():
    """Each edit finds its place and changes something; a run of mutants finds broken Python."""
    wrong = {}
    for mutant in MUTANTS:
        try:
            _make(mutant)
        except LookupError as error:
            wrong[mutant.name] = str(error)
    assert wrong == {}


def _make(mutant):
    texts = {}
    for edit in mutant.edits:
        path = edit.file(ROOT)
        before = texts.get(path) or _text(path)
        texts[path] = edit.made_in(before)
        if texts[path] == before:
            raise LookupError(f"{edit.place}: {edit.old} stays as it is")


@lru_cache
def _text(path):
    return path.read_text(encoding="utf-8")


@pytest.mark.timeout(300)  # alone, it imports every test there is
def test_every_test_that_has_to_kill_a_mutant_exists(request):
    """Each of the node ids is found by pytest; a run of all tests has found what there is."""
    here = {part for node_id in request.config.stash[COLLECTED] for part in _selecting(node_id)}
    node_ids = sorted({n for mutant in MUTANTS for n in mutant.killed_by} - here)
    if not node_ids:
        return
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", "", *node_ids],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]


def _selecting(node_id):
    """The ids that select the test *node_id*: its own, and without its parameters; its module's."""
    whole = node_id.partition("[")[0]
    return node_id, whole, whole.partition("::")[0], whole.rpartition("::")[0]


def test_a_test_is_selected_by_its_id_its_name_its_class_and_its_module():
    """And by no shorter one, as pytest has it."""
    assert list(_selecting("tests/test_a.py::TestA::test_b[c::d-[e]]")) == [
        "tests/test_a.py::TestA::test_b[c::d-[e]]",
        "tests/test_a.py::TestA::test_b",
        "tests/test_a.py",
        "tests/test_a.py::TestA",
    ]


def test_there_are_many_mutants_and_each_has_a_name_of_its_own():
    """At least the number that was promised, and none without a test."""
    assert len(MUTANTS) >= 20
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert all(mutant.killed_by and mutant.why for mutant in MUTANTS)


def test_an_edit_that_finds_no_place_is_refused_and_taken_back(tmp_path):
    """So that a mutant that changes nothing never counts as killed."""
    file = tmp_path / "a.py"
    file.write_text("one = 1\ntwo = 2\n")
    edits = (Edit("a", "one", "three"), Edit("a", "nothing", "something"))
    with pytest.raises(LookupError, match="0 times"), edited(tmp_path, edits):
        pytest.fail("it was made")
    assert file.read_text() == "one = 1\ntwo = 2\n"


SOURCE = """\
class A:
    limit: int = 1

    @property
    def go(self):
        if self.here:
            return call(
                self.one,
                self.two,
            )
        return call(self.one, self.two)

    def stay(self):
        def inner():
            return call(self.one, self.two)

        return inner


LIMIT = 1
if LIMIT:

    def either():
        return 1
else:

    def either():
        return 2
"""


@pytest.mark.parametrize(
    ("name", "old", "line"),
    [
        ("A.stay.inner", "call(self.one,self.two)", 15),
        ("A.stay", "return call( self.one, self.two, )", 15),
        ("A.go", "if self.here: return call(self.one, self.two)", 6),
        ("A.limit", "= 1", 2),
        ("LIMIT", "= 1", 20),
        ("either", "return 2", 28),
        ("A.go", "@property", 4),
    ],
)
def test_an_edit_finds_its_text_by_name_and_however_it_is_wrapped(name, old, line):
    """A nested function, a wrapped call, variables of a class and a module, one of two branches."""
    before, mark, _ = Edit(f"a:{name}", old, "HERE").made_in(SOURCE).partition("HERE")
    assert mark
    assert before.count("\n") + 1 == line


def test_lines_of_an_edit_are_indented_like_those_they_stand_for():
    """So that moving a function into a class does not break the mutants in it."""
    old = "if self.here: return call(self.one, self.two)"
    made = Edit("a:A.go", old, "if self.there:\n    return 1\nleave()").made_in(SOURCE)
    assert "        if self.there:\n            return 1\n        leave()\n" in made


@pytest.mark.parametrize(
    ("name", "old", "times"),
    [
        ("A.go", "call(self.one, self.two)", 2),
        ("A.go", "inner", 0),
        ("A.stay", "returncall", 0),
        ("A.stay", "return ca ll", 0),
        ("go", "return", 0),
        ("either", "return", 2),
        ("", "limit", 1),
    ],
)
def test_an_edit_is_made_in_one_place_or_not_at_all(name, old, times):
    """Words stay whole, and a name is looked for where it is defined."""
    edit = Edit(f"a:{name}", old, "")
    if times == 1:
        assert edit.made_in(SOURCE) == SOURCE.replace(old, "")
    else:
        with pytest.raises(LookupError, match=f"found {times} times in a:{name}"):
            edit.made_in(SOURCE)


def test_an_unknown_module_is_named(tmp_path):
    """By its name, before any file is changed."""
    with pytest.raises(LookupError, match="no module b:A"):
        Edit("b:A", "", "").file(tmp_path)
