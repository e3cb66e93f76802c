"""Errors as a client sees them."""

from __future__ import annotations

import logging

from looopy.server.feed import SlowReader
from looopy.server.problems import problem_of


def test_a_slow_reader_is_no_fault_of_the_server(caplog):
    """It is told so, and may come again; the log has no traceback of it."""
    with caplog.at_level(logging.ERROR):
        problem = problem_of(SlowReader("500 events wait for this reader"))
        assert not caplog.records
        assert problem_of(RuntimeError("a bug")).code == "internal_error"
    assert (problem.status, problem.code) == (503, "slow_reader")
    assert problem.headers == {"Retry-After": "1"}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
