"""What users import is pinned: listed, sorted, reachable, and cheap until it is used."""

import ast
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import looopy

PACKAGES = [
    "looopy",
    "looopy.auth",
    "looopy.compat.pi",
    "looopy.llm",
    "looopy.replay",
    "looopy.server",
    "looopy.stores",
    "looopy.telemetry",
    "looopy.testing",
    "looopy.tools",
]
ELSEWHERE = {"looopy", "looopy.compat.pi"}
"""Packages whose names are those of others: of all rooms, and of pi."""
DOCUMENTED = {
    *PACKAGES,
    "looopy.errors",
    "looopy.stores.codec",
    "looopy.stores.defaults",
    "looopy.stores.contexts.spending",
    "looopy.sync",
    "looopy.testing.faults",
    "looopy.testing.plain_stores",
    "looopy.testing.replays",
    "looopy.testing.stores",
}
ROOT = Path(__file__).parent.parent
IMPORT = re.compile(r"^ *from (looopy[a-z_.]*) import (\([^)]*\)|[^(#\n]+)", re.MULTILINE)
PINNED = {
    "Agent",
    "AgentLoop",
    "AuthContext",
    "LoopConfig",
    "Stores",
    "Tool",
    "ToolContext",
    "ToolProvider",
    "ToolResult",
    "TurnContext",
    "TurnResult",
    "TurnStream",
    "agent_loop",
    "agent_loop_continue",
    "open_stores",
    "tool",
}
HEAVY = {
    "aiosqlite",
    "alembic",
    "anthropic",
    "fastapi",
    "httpx",
    "a2a",
    "httpx2",
    "jsonschema_rs",
    "mcp",
    "openai",
    "pydantic",
    "sqlalchemy",
    "starlette",
    "xllamacpp",
}


def _typed(name):
    """The names of ours that type checkers see: imported at the top or under `TYPE_CHECKING`."""
    tree = ast.parse(Path(importlib.import_module(name).__file__).read_text(encoding="utf-8"))
    blocks = [tree.body]
    conditions = [node for node in tree.body if isinstance(node, ast.If)]
    blocks += [node.body for node in conditions if "TYPE_CHECKING" in ast.dump(node.test)]
    return {
        alias.asname or alias.name
        for body in blocks
        for node in body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("looopy.")
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_")
    }


def test_the_pinned_names_are_there():
    """The names that the README and the architecture promise."""
    assert sorted(PINNED - set(looopy.__all__)) == []


def test_the_names_are_sorted_without_regard_to_case():
    """One looks a name up by its letters."""
    assert looopy.__all__ == sorted(looopy.__all__, key=str.casefold)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_can_be_used_and_is_typed(package):
    """Lazy exports hide nothing: from the interpreter, from `dir()` or from type checkers."""
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) - {"__version__"} == _typed(package)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_each_public_name_has_one_home():
    """A name is in one documented package, and the root shows the same object."""
    homes = {}
    for package in set(PACKAGES) - ELSEWHERE:
        module = importlib.import_module(package)
        for name in module.__all__:
            homes.setdefault(name, []).append(package)
            at = str(getattr(getattr(module, name), "__module__", package))
            assert at.startswith((package, "looopy.types.")) or "." not in at, (name, at)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
    for name in set(homes).intersection(looopy.__all__):
        assert getattr(looopy, name) is getattr(importlib.import_module(homes[name][0]), name)


def test_no_public_name_stands_for_two_things():
    """Whoever reads a name in the documentation finds one class or function of that name."""
    defined = {}
    for package in set(PACKAGES) - {"looopy.compat.pi"}:  # whose names are pi's
        module = importlib.import_module(package)
        for name in module.__all__:
            defined.setdefault(name, set()).add(id(getattr(module, name)))
    assert [name for name, ids in defined.items() if len(ids) > 1] == []


def test_documentation_imports_from_documented_modules():
    """What a page or an example imports is public."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py")]
    found = {
        (module, name.strip().partition(" as ")[0])
        for page in pages
        for module, names in IMPORT.findall(page.read_text(encoding="utf-8"))
        for name in names.strip("()").replace("\n", " ").split(",")
        if name.strip()
    }
    assert found
    assert sorted({module for module, _ in found} - DOCUMENTED) == []
    for module, name in sorted(found):
        public = getattr(importlib.import_module(module), "__all__", None)
        assert public is None or name in public, (module, name)


def test_importing_looopy_loads_nothing_heavy():
    """The two names that every program begins with pay for no SDK, framework or ORM."""
    code = (
        "import json, sys\n"
        "from looopy import Agent, open_stores\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(HEAVY & set(json.loads(out.stdout))) == []


def test_the_version_is_that_of_the_distribution():
    """The package's metadata is built from it."""
    assert looopy.__version__ == importlib.metadata.version("looopy")
