"""What the tests of migrations share."""

from __future__ import annotations

import pytest
from tests.shares import split


@pytest.fixture(params=split(["sqlite"], ["postgres"]))
def empty(request, tmp_path):
    """The URL of a database without a schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'chat.db'}"
    return request.getfixturevalue("fresh_postgres")
