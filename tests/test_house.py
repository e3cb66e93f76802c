"""What holds for every file of the repository: nothing of one machine, no secrets, whole links."""

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = {"", ".cfg", ".ini", ".json", ".mako", ".md", ".py", ".sh", ".toml", ".txt", ".yaml"}


def _tracked():
    """Every text file that is committed; without git, every one that is not made by a tool."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
        paths = [ROOT / name for name in listed if name]
    else:
        paths = [
            path
            for path in ROOT.rglob("*")
            if not {".venv", ".nox", "dist", "build", "__pycache__"} & set(path.parts)
        ]
    return sorted(path for path in paths if path.is_file() and path.suffix in TEXT)


SOURCE = ROOT / "src" / "looopy"
FILES = _tracked()
PYTHON = [path for path in FILES if path.suffix == ".py"]
MARKDOWN = [path for path in FILES if path.suffix == ".md"]


def _name(path):
    return path.relative_to(ROOT).as_posix()


def _found(pattern, files=FILES):
    """Places where *pattern* matches, as `file:line: text`."""
    return [
        f"{_name(path)}:{number}: {line.strip()[:120]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]


# The patterns are put together so that they do not find themselves.
HOSTS = "|".join(
    ["py" + r"pi\.org", "python" + r"hosted\.org", "registry\\.npm" + "js", "crates" + r"\.io"]
)
PATHS = r"(?<![\w.}])/(?:root|work|home/[a-z]\w*|Users/[a-z]\w*)(?:/|\b)"
SECRETS = "|".join(
    [
        "sk" + r"-(?:ant-\w+-|ant-|proj-)?[A-Za-z0-9_]{24,}",
        "gh" + r"[pousr]_[A-Za-z0-9]{30,}",
        "AK" + r"IA[0-9A-Z]{16}",
        "xo" + r"x[abpr]-[A-Za-z0-9-]{10,}",
        "-----BEGIN [A-Z ]*PRIVATE " + "KEY",
    ]
)


def test_no_file_names_a_registry():
    """Where packages come from is the user's configuration, not ours."""
    assert _found(HOSTS) == []


def test_no_file_holds_a_path_of_one_machine():
    """What works only where it was written does not work."""
    assert _found(PATHS) == []


def test_no_file_holds_a_secret():
    """Nothing that looks like a key of a provider or a host is committed."""
    assert _found(SECRETS) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (HOSTS, "see https://py" + "pi.org/simple"),
        (PATHS, 'open("/ro' + 'ot/x")'),
        (PATHS, "cd /ho" + "me/ada"),
        (SECRETS, "key = 'sk" + "-ant-" + "a1" * 20 + "'"),
    ],
)
def test_the_patterns_match_their_examples(pattern, line):
    """A check that can find nothing holds nothing."""
    assert re.search(pattern, line)


def test_the_checks_read_the_files_of_the_library():
    """The list is not empty by accident."""
    names = {_name(path) for path in FILES}
    assert {"src/looopy/errors.py", "README.md", "pyproject.toml", ".ci/run"} <= names


def test_an_ignored_type_names_the_rule_and_the_reason():
    """`type: ignore[code]` is followed by its reason."""
    bare = [
        place
        for place in _found(r"#\s*type:\s*ignore", PYTHON)
        if not re.search(r"ignore\[[a-z, -]+\]\s+[-#(]*\s*\w+", place)
    ]
    assert [place for place in bare if "tests/test_house.py" not in place] == []


@cache
def _tests():
    """The name and the tree of each test: a list, because it takes seconds to make."""
    return list(_parsed())


def _parsed():
    for path in PYTHON:
        if path.is_relative_to(ROOT / "tests") and path.name.startswith("test_"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(
                    node, ast.FunctionDef | ast.AsyncFunctionDef
                ) and node.name.startswith("test_"):
                    yield f"{_name(path)}::{node.name}", node


def test_a_test_is_a_sentence_with_a_fact():
    """Its name is at least three words, its docstring one statement."""
    vague = [
        name
        for name, node in _tests()
        if node.name.count("_") < 3 or not (ast.get_docstring(node) or "").strip().endswith(".")
    ]
    assert vague == []


def test_a_package_names_its_modules_in_its_docstring():
    """`name` for a module, `name/` for a package: a reader finds the file without opening it."""
    unnamed = []
    for door in (path for path in PYTHON if path.name == "__init__.py" and SOURCE in path.parents):
        text = ast.get_docstring(ast.parse(door.read_text(encoding="utf-8"))) or ""
        modules = {path.stem for path in PYTHON if path.parent == door.parent}
        packages = {f"{path.parent.name}/" for path in PYTHON if path.parent.parent == door.parent}
        unnamed += [
            f"{_name(door.parent)}: {name}"
            for name in sorted((modules - {"__init__", "__main__"}) | packages)
            if f"`{name}`" not in text
        ]
    assert unnamed == []


def test_a_unit_test_has_the_name_of_its_module():
    """`unit/loop/test_guards.py`, or `test_guards_WORD.py`, is about `loop/guards.py`."""
    unit = ROOT / "tests" / "unit"
    strange = []
    for path in (path for path in PYTHON if unit in path.parents and path.stem.startswith("test_")):
        words = path.stem.split("_")[1:]
        module = SOURCE / path.parent.relative_to(unit)
        names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        if not any((module / f"{name}.py").exists() or (module / name).is_dir() for name in names):
            strange.append(_name(path))
    assert strange == []


def test_no_test_sleeps_to_wait():
    """A test waits for what it waits for; only `sleep(0)` gives the loop a turn."""
    sleeping = [
        f"{name}:{node.lineno}"
        for name, test in _tests()
        for node in ast.walk(test)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("time", "asyncio")
        and not (isinstance(node.args[0], ast.Constant) and node.args[0].value in (0, 3600))
    ]
    assert sleeping == []


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def _anchors(path):
    headings = re.findall(r"^#+\s+(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_docs_leads_somewhere():
    """Files and headings that are linked to exist."""
    broken = []
    for path in MARKDOWN:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists() or (anchor and anchor not in _anchors(there)):
                broken.append(f"{_name(path)}: {target}")
    assert broken == []


def test_decisions_are_numbered_and_have_their_three_parts():
    """One page each: context, decision, consequences; none is lost, and no number is used twice."""
    folder = ROOT / "docs" / "decisions"
    records = sorted(folder.glob("[0-9]*.md"))
    page = (folder / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^(\d+)\. \[.*\]\((.*)\)$", page, re.MULTILINE)
    assert [path.name for path in records] == [name for _, name in listed]
    numbers = list(range(1, len(records) + 1))
    assert [int(number) for number, _ in listed] == numbers
    assert [int(path.name[:4]) for path in records] == numbers
    for path in records:
        text = path.read_text(encoding="utf-8")
        parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert parts == ["Context", "Decision", "Consequences"], path.name
        assert len(text.splitlines()) <= 70, f"{path.name} is more than a page"


def test_every_fragment_of_the_changelog_has_a_known_kind():
    """A fragment with a wrong name would be lost at the release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    towncrier = project["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in towncrier["type"]}
    for path in (ROOT / "changes").iterdir():
        if path.name != "README.md":
            assert re.fullmatch(rf"[\w+-]+\.({'|'.join(kinds)})\.md", path.name), path.name
    changelog = (ROOT / towncrier["filename"]).read_text(encoding="utf-8")
    assert towncrier["start_string"] in changelog
