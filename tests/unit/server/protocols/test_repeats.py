"""Keys of requests that come again."""

from __future__ import annotations

from typing import Any

import pytest

from looopy.server.protocols.repeats import decided, digest


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"r-1": True}, {"r-1": True}, True),
        ({"r-1": True}, {"r-1": False}, False),
        ({"r-1": True}, {"r-2": True}, False),
        ({"r-1": {"approved": True, "note": "a"}}, {"r-1": {"approved": True}}, False),
        ({"r-1": "a secret of Ada"}, {"r-1": "another one"}, True),
        ({"r-1": {"token": "a secret of Ada"}}, {"r-1": {"token": "another"}}, True),
        ({"r-1": {"approved": "yes"}}, {"r-1": {"approved": "no"}}, True),
    ],
)
def test_the_key_of_answers_includes_decisions_but_no_credential(
    one: Any, other: Any, same: bool
) -> None:
    """A digest of a credential is stored nowhere, because it could be guessed from it."""
    assert (digest(decided(one)) == digest(decided(other))) is same
