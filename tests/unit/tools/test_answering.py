"""Whether a value answers a request, and what a refusal shows of it."""

from __future__ import annotations

import pytest

from looopy.auth import AuthRequest
from looopy.errors import ValueRefused
from looopy.tools.answering import check_answer
from looopy.types.state import PendingKind, PendingRequest

SECRET = "tok-4711-abcdef"
TOKEN = {"type": "object", "properties": {"token": {"type": "integer"}}, "required": ["token"]}


def asked(kind, **given):
    """A request."""
    common = {"tool_name": "ask", "args": {}, "tool_call_id": "c1", "turn": 1}
    return PendingRequest(request_id="r1", kind=kind, **common, **given)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"schema": TOKEN}, {"token": SECRET}),
        ({"schema": {"type": "integer"}}, SECRET),
        ({"options": ("one", "two")}, SECRET),
        ({"schema": TOKEN}, {SECRET: 1}),
    ],
)
def test_a_credential_that_is_refused_is_not_shown(given, value):
    """Neither in the text, nor in what it was raised from, nor in the path."""
    with pytest.raises(ValueRefused) as caught:
        check_answer(asked(PendingKind.AUTH, **given), value)
    seen = caught.value
    while seen is not None:
        if not seen.__suppress_context__ or seen is caught.value:
            assert SECRET not in f"{seen} {seen!r} {getattr(seen, 'facts', '')}"
        seen = seen.__cause__
    assert caught.value.__suppress_context__
    assert caught.value.path == "/inputs/r1"


def test_an_opened_credential_that_is_refused_is_not_shown():
    """One that was sent encrypted, and does not fit what was asked for."""
    request = asked(PendingKind.AUTH, schema=TOKEN, auth=AuthRequest(type="pat"))
    with pytest.raises(ValueRefused) as caught:
        check_answer(request, {"token": SECRET}, opened=True)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "value", "path"),
    [
        ({"schema": TOKEN}, {"token": "three"}, "/inputs/r1/token"),
        ({"options": ("one", "two")}, "three", "/inputs/r1"),
    ],
)
def test_an_answer_that_is_no_secret_is_shown_with_its_place(given, value, path):
    """Who answers has to see what was wrong."""
    with pytest.raises(ValueRefused, match="three") as caught:
        check_answer(asked(PendingKind.INPUT, **given), value)
    assert caught.value.path == path
