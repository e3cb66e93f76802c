"""
A pytest plugin that lets nothing run but the copy: looopy and its tests are those of this folder.

Without it a mutant would be tested on the tree that is installed, and survive or not by chance.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ELSEWHERE = 70


def pytest_configure(config: pytest.Config) -> None:
    """Leave when looopy would come from somewhere else."""
    from tests.agent import kit

    import looopy

    for module in (looopy, kit):
        found = Path(str(module.__file__)).resolve()
        if not found.is_relative_to(config.rootpath.resolve()):
            pytest.exit(f"{module.__name__} is imported from elsewhere: {found}", ELSEWHERE)
