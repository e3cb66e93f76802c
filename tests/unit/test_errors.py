"""The tree of errors is part of the public surface: shape, facts and pickling are pinned."""

import copy
import importlib.metadata
import json
import pickle
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from looopy import errors
from looopy.errors import LooopyError

TREE = """
LooopyError
  AgentError
    AccessDenied
    AgentStateError status=None action=None
      AgentBusy turn=None
      AgentNotStarted
      CannotContinue
    Fenced
    HostClosed
    IdempotencyConflict
    InputNotFound request_id=None
      AlreadyAnswered actor_id=None
      InputExpired expired_at=None
    TurnIncomplete outcome=None
    TurnMismatch expected=None actual=None
  ConfigurationError
    FactoryFailed context_id=None
    InvalidSkill file=None field=None
    InvalidTool
    MissingExtra extras=() command=
    MissingKey
    UnknownModel
  LLMError provider=None model=None retryable=False unbilled=False
    ContextOverflow unbilled=True limit_tokens=None
    HistoryRejected unbilled=True position=None
    InvalidLLMResponse
    LLMUnavailable retryable=True
    OutputInvalid tries=0
    RateLimited unbilled=True retryable=True retry_after_s=None
    UnsupportedContent unbilled=True mime_type=None
    UnsupportedOption unbilled=True option=None
  LimitExceeded limit=None value=None
    BudgetExceeded resets_at=None waits=False
  StoreError
    ArchiveRefused member=None line=None path=None
    ArtifactDamaged artifact_id=None version=None expected=None actual=None
    ArtifactNotFound
    CommitsLost
    ContextNotFound
    SchemaOutOfDate found=None expected=None
    StoreConflict expected=None actual=None artifact_id=None
    StoreUnavailable outcome_known=True
      StorageFull
    ValueRefused path=None
  ToolError tool_name=None call_id=None
    InvalidToolArguments
    ToolDenied
    ToolNotFound
    ToolServerError server=None outcome_known=True
      SignInFailed
    ToolTimeout
"""

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, LooopyError)
]


def _facts(cls):
    """The facts that a class declares itself, with their defaults."""
    return {n: v for n, v in vars(cls).items() if n[0] != "_"} if cls in ALL else {}


def _draw(cls, depth=0):
    facts = "".join(f" {name}={value}" for name, value in _facts(cls).items())
    lines = ["  " * depth + cls.__name__ + facts]
    for child in sorted(cls.__subclasses__(), key=lambda c: c.__name__):
        if child.__module__ == errors.__name__:
            lines += _draw(child, depth + 1)
    return lines


def test_the_tree_is_as_it_is_drawn():
    """Catching wide or narrow keeps meaning what it meant."""
    assert "\n".join(_draw(LooopyError)) == TREE.strip()


def test_the_docstring_names_every_error():
    """The drawing at the top of the module is whole."""
    assert [cls.__name__ for cls in ALL if cls.__name__ not in (errors.__doc__ or "")] == []


@pytest.mark.parametrize("cls", ALL)
def test_an_error_survives_pickling_and_copying(cls):
    """Errors cross process borders with message and facts."""
    error = cls("one sentence", path="/0/content", turn=7)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(again) is cls
        assert str(again) == again.message == "one sentence"
        assert again.facts == {"path": "/0/content", "turn": 7}
        assert (again.path, again.turn) == ("/0/content", 7)


@pytest.mark.parametrize("cls", ALL)
def test_a_fact_that_is_not_given_has_its_declared_default(cls):
    """Every declared fact can be read without asking whether it is there."""
    error = cls("one sentence")
    for base in cls.__mro__:
        for name in _facts(base):
            assert hasattr(error, name)


def test_retryable_errors_are_marked():
    """`retryable` is true for outages and rate limits, and can be set for one error."""
    assert errors.LLMUnavailable("down").retryable
    assert errors.RateLimited("slow").retryable
    assert not errors.HistoryRejected("no").retryable
    assert not errors.LLMUnavailable("gone", retryable=False).retryable


def test_not_found_is_also_a_key_error_with_a_plain_message():
    """`KeyError` would print the message in quotes."""
    error = errors.ContextNotFound("no context 'ada'")
    assert isinstance(error, KeyError)
    assert str(error) == "no context 'ada'"


METADATA = """Metadata-Version: 2.4
Name: looopy
Version: 0.0.1
Requires-Dist: pydantic>=2
Requires-Dist: asyncpg>=0.31; extra == 'postgres'
Requires-Dist: psycopg[binary]<4,>=3.2; extra == "postgres"
Requires-Dist: joserfc>=1.6; extra == 'auth'
"""
PACKAGES = '"asyncpg>=0.31" "psycopg[binary]<4,>=3.2" "joserfc>=1.6"'


@pytest.fixture
def advice(tmp_path):
    """What a new environment under `tmp_path` is told, which has looopy from *origin*."""

    def ask(origin=None, *, pip=False, uv=False):
        made = tmp_path / ".venv"
        major, minor, *_ = sys.version_info
        site = made / "lib" / f"python{major}.{minor}" / "site-packages"
        looopy = site / "looopy-0.0.1.dist-info"
        for folder in (looopy, made / "bin"):
            folder.mkdir(parents=True)
        base = Path(sys._base_executable).resolve()
        (made / "bin" / "python").symlink_to(base)
        alone = f"home = {base.parent}\ninclude-system-site-packages = false\n"
        (made / "pyvenv.cfg").write_text(alone)
        (looopy / "METADATA").write_text(METADATA)
        if origin is not None:
            (looopy / "direct_url.json").write_text(json.dumps(origin))
        (site / "errors_of_looopy.py").write_bytes(Path(errors.__file__).read_bytes())
        if pip:
            (site / "pip.py").touch()
        programs = tmp_path / "programs"
        programs.mkdir()
        if uv:
            (programs / "uv").symlink_to("/bin/true")
        code = "import errors_of_looopy as e; print(e.how_to_install('postgres', 'auth'))"
        python = made / "bin" / "python"
        env = {"PATH": str(programs)}
        told = subprocess.run([python, "-I", "-c", code], env=env, capture_output=True, check=True)
        return told.stdout.decode().strip(), python

    return ask


@pytest.mark.parametrize("uv", [True, False])
def test_a_missing_extra_of_a_clone_is_synced(tmp_path, advice, uv):
    """Beside the extras that are there, by the uv on the path or the one of the README."""
    told, _ = advice({"url": tmp_path.as_uri(), "dir_info": {"editable": True}}, uv=uv)
    program = "uv" if uv else ".uv/bin/uv"
    assert told == f"{program} sync --inexact --extra postgres --extra auth"


def test_a_missing_extra_of_a_project_is_added_by_its_packages(tmp_path, advice):
    """Wherever the project has looopy from; a later `uv sync` keeps them."""
    (tmp_path / "uv.lock").touch()
    told, _ = advice({"url": "file:///clone", "dir_info": {"editable": True}}, pip=True, uv=True)
    assert told == f"uv add {PACKAGES}"


@pytest.mark.parametrize("pip", [True, False])
def test_a_missing_extra_without_uv_is_installed_by_pip(advice, pip):
    """By the interpreter that misses it; one without pip gets that first."""
    told, python = advice(pip=pip)
    first = "" if pip else f'"{python}" -m ensurepip && '
    assert told == f'{first}"{python}" -m pip install {PACKAGES}'


def test_a_missing_extra_of_an_environment_of_uv_is_installed_by_uv(tmp_path, advice):
    """Into that environment, whichever is active."""
    wheel = {"url": "file:///looopy-0.0.1-py3-none-any.whl", "archive_info": {}}
    told, _ = advice(wheel, uv=True)
    assert told == f'uv pip install --python "{tmp_path / ".venv"}" {PACKAGES}'


def test_a_missing_extra_of_a_bare_tree_names_its_list(monkeypatch):
    """A tree on the path has no metadata to read."""
    monkeypatch.setattr(importlib.metadata, "distribution", Mock(side_effect=_not_installed))
    assert errors.how_to_install("auth") == "install what pyproject.toml lists under auth"


def _not_installed(name):
    raise importlib.metadata.PackageNotFoundError(name)
