"""What the suites say of a store whose context differs from that of the memory store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from looopy.testing.contracts.turns import answer
from looopy.testing.contracts.walk import difference
from looopy.types.event import MessageEnd
from looopy.types.message import Usage

WHEN = datetime(2026, 11, 23, tzinfo=UTC)


def test_the_field_that_differs_is_named():
    """An event with another field is not only lost and found: its author learns which it is."""
    end = MessageEnd(context_id="", turn=1, seq=2, message=answer("hi"), usage=Usage(input=3))
    others = replace(end, usage=None, timestamp=WHEN)
    said = difference({"events": [others]}, {"events": [end]}).splitlines()
    assert said[0] == "  lost of events: event 2 (message_end) of turn 1"
    assert said[2].startswith(
        "  event 2 (message_end) of turn 1 has another usage: expected Usage(input=3,"
    )
    assert said[2].endswith("found None")
    assert len(said) == 3
