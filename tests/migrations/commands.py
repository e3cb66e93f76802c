"""Alembic's command line in this process: most of a process would be loading alembic."""

from __future__ import annotations

import contextlib
import io
from functools import partial
from pathlib import Path

import alembic.config
import pytest

ROOT = Path(__file__).parents[2]


def run_alembic(*words: str, cwd: Path = ROOT) -> tuple[int | str, str]:
    """Return its status and all that it printed."""
    said, status = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        # Where it prints is a default of its class, and so chosen when it was imported.
        patch.setattr(alembic.config, "Config", partial(alembic.config.Config, stdout=said))
        try:
            alembic.config.main(words, prog="alembic")
        except SystemExit as left:
            status = left.code or 0
    said.seek(0)
    return status, said.read()
