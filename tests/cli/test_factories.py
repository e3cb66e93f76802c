"""The factory that a person names on the command line."""

import sys

import pytest

from looopy import Agent
from looopy.cli.factories import load_factory
from looopy.errors import ConfigurationError

APP = """
from looopy import Agent
from looopy.testing import ScriptedProvider

LIMIT = 3

def build(context_id, stores):
    return Agent(context_id, llm_provider=ScriptedProvider([]), stores=stores)

class Apps:
    second = staticmethod(build)

async def other(context_id, stores):
    return build(context_id, stores)

def short(context_id):
    return None
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an application, as the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "an_app.py").write_text(APP, encoding="utf-8")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["an_app:build", "an_app.py:build", "an_app:Apps.second"])
def test_a_factory_is_found_from_the_current_directory(here, name):
    """As a module or as a file."""
    agent = load_factory(name)("mine", "memory:")
    assert isinstance(agent, Agent)
    assert agent.context_id == "mine"


def test_a_file_imports_the_modules_beside_it(here):
    """From any directory."""
    (here / "sub").mkdir()
    (here / "sub" / "app.py").write_text("from beside_it import build\n", encoding="utf-8")
    (here / "sub" / "beside_it.py").write_text(APP, encoding="utf-8")
    assert load_factory("sub/app.py:build")("mine", "memory:").context_id == "mine"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("an_app", "MODULE:FACTORY"),
        ("an_app:", "MODULE:FACTORY"),
        ("an_app:bu ild", "MODULE:FACTORY"),
        ("no-module:build", "MODULE:FACTORY"),
        ("no_such_app:build", "no module 'no_such_app'"),
        ("no_such.app:build", "no module 'no_such.app'"),
        ("missing.py:build", "missing.py"),
        ("an_app:bild", "it has build, other"),
        ("an_app:LIMIT", "not a function"),
        ("an_app:short", "(context_id, stores)"),
        ("broken:build", "broken.py, line 2"),
        ("needs:build", "No module named 'not_installed_here'"),
    ],
)
def test_a_bad_name_is_refused_with_the_way_out(here, name, says):
    """Before anything else happens."""
    (here / "broken.py").write_text("x = 1\nprint(y)\n", encoding="utf-8")
    (here / "needs.py").write_text("import not_installed_here\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        load_factory(name)
    assert says in str(refused.value)
