"""Parameters and examples of which a part is left to `nox -s long`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

PSYCOPG = pytest.param("psycopg", marks=pytest.mark.long)
"""
The second driver, as a parameter of a test that is not about drivers.

Both run the same statements. So each change runs such a test over asyncpg, the driver of a URL that
names none, and the long run over psycopg.
"""


def split(every_run: Iterable[Any], long_run: Iterable[Any]) -> list[Any]:
    """Parameters of a test or fixture: those of every run, then those of `nox -s long`."""
    values = (value if isinstance(value, tuple) else (value,) for value in long_run)
    return [*every_run, *(pytest.param(*value, marks=pytest.mark.long) for value in values)]


def examples(every_run: int) -> int:
    """How many examples a property is tried with; `LOOOPY_EXAMPLES`, as the long run sets it."""
    return int(os.environ.get("LOOOPY_EXAMPLES", every_run))
