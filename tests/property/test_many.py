"""The long search by hand goes through what it says, and says what it found."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from tests.property import many


def test_a_share_of_the_long_search(capsys):
    """Histories that show something are counted, and none of their requests is refused."""
    assert many.main(60, "a share") == 0
    assert capsys.readouterr().out.startswith("60 histories, ")


def test_a_failure_is_reported_with_its_seed(capsys, monkeypatch):
    """So that it can be looked at again."""
    monkeypatch.setattr(many, "one", lambda seed: (True, [seed]))
    assert many.main(2, "x") == 1
    assert "x/1: ['x/1']" in capsys.readouterr().out


def test_an_unknown_strategy_is_an_error():
    """A new kind in the strategies would otherwise go unnoticed."""
    with pytest.raises(TypeError, match="no dice"):
        many.Dice("x")(st.text())
