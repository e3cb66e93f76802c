"""The tools that can bring the weights of the local model."""

import importlib.util
import sys
from pathlib import Path

import pytest

from looopy.errors import ConfigurationError
from looopy.llm.local.installer import installers


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A process without uv on its path and without pip, in a folder."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("UV", raising=False)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "pip" else found(n))
    return tmp_path


def test_uv_is_recognised_by_its_own_output(bare, monkeypatch):
    """The README's first command gets uv into a folder, and runs looopy by it."""
    uv = bare / "uv"
    uv.write_text("#!/bin/sh\n", encoding="utf-8")
    uv.chmod(0o755)
    monkeypatch.setenv("UV", str(uv))
    [installer] = installers()
    assert installer(Path("requirements.txt"), Path("target"))[:3] == (str(uv), "pip", "install")


def test_without_a_package_tool_the_error_names_a_command_that_runs(bare, monkeypatch):
    """Also where `UV` names a file that is gone."""
    monkeypatch.setenv("UV", str(bare / "gone"))
    with pytest.raises(ConfigurationError, match="neither uv nor pip") as caught:
        installers()
    assert f"'{sys.executable} -m ensurepip'" in str(caught.value)
