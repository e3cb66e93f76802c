"""The tools that a first conversation has."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.cli.builtin_tools import BUILTIN_TOOLS, calculate, current_time, evaluate, wait
from looopy.tools.base import ToolContext
from looopy.types.context import CancelToken


def _context(report):
    return ToolContext(
        context_id="c",
        turn=1,
        tool_call_id="t",
        idempotency_key="k",
        report=report,
        cancel=CancelToken(),
    )


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("6*7", "42"),
        ("2**100", str(2**100)),
        ("(1 + 2) * -3", "-9"),
        ("7 // 2 + 7 % 4", "6"),
        ("0.1 + 0.2", "0.3"),
        ("sqrt(2) * sqrt(2)", "2"),
        ("round(2.567, 1)", "2.6"),
        ("max(1, 2, 3) + abs(-4)", "7"),
        ("pi", "3.14159265358979"),
    ],
)
async def test_arithmetic_is_calculated_as_written(expression, value):
    """Integers are exact, fractions have fifteen digits."""
    assert await calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("9**9**9**9", "too large"),
        ("2**0.5**-99999", "too large"),
        ("1/0", "division by zero"),
        ("(-1)**0.5", "not a real number"),
        ("2^8", r"use \*\*"),
        ("__import__('os').system('id')", "only numbers"),
        ("[1]*9", "only numbers"),
        ("'a'*9", "only numbers"),
        ("True + 1", "only numbers"),
        ("x", "only numbers"),
        ("round(1, 99)", "15 digits"),
        ("sqrt(1, 2)", "does not take 2"),
        ("1 +", "not an arithmetic"),
        ("", "not an arithmetic"),
        ("(" * 150 + ")" * 50, "not an arithmetic"),
        ("1" * 201, "at most 200"),
        ("1e999", "not a real number"),
    ],
)
def test_other_than_arithmetic_is_refused_with_the_reason(expression, why):
    """The model is told what to write instead."""
    with pytest.raises(ValueError, match=why):
        evaluate(expression)


@given(st.text("0123456789.+-*/%() ,eqrtsabminx", max_size=60))
def test_no_expression_does_more_than_calculate(expression):
    """Whatever is written, there is a number of bounded size, or a refusal."""
    try:
        value = evaluate(expression)
    except ValueError:
        return
    assert math.isfinite(value) if isinstance(value, float) else value.bit_length() <= 4096


async def test_the_time_is_returned_for_a_zone():
    """The zone's name and offset are part of the answer."""
    assert (await current_time("UTC")).endswith("UTC (UTC+0000)")
    assert "(UTC" in await current_time()


@pytest.mark.parametrize("zone", ["Nowhere/Land", "../../etc/passwd", "Europe", "a\0b", "/etc"])
async def test_an_unknown_zone_is_refused(zone):
    """What is no name of a zone is not looked up as a file either."""
    with pytest.raises(ValueError, match="no time zone"):
        await current_time(zone)


async def test_waiting_reports_and_ends(monkeypatch):
    """A long wait tells how far it is; the pauses are left out here."""
    reports, pauses = [], []

    async def pause(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    assert await wait(100, _context(reports.append)) == "Waited 100 seconds."
    assert reports == [0.2, 0.4, 0.6, 0.8]
    assert len(pauses) == 5
    assert 99 < pauses[-1] <= 100


@pytest.mark.parametrize("seconds", [-1, 601, math.inf, math.nan])
async def test_a_wait_out_of_bounds_is_refused(seconds):
    """Ten minutes are the most."""
    with pytest.raises(ValueError, match="from 0 to 600"):
        await wait(seconds, _context(print))


def test_the_schemas_are_small_enough_for_a_small_model():
    """All tools together take few tokens, and have no side effects."""
    from looopy.types.request import ToolSpec

    size = sum(len(str(tool.parameters)) + len(tool.description) for tool in BUILTIN_TOOLS)
    assert size < 1000
    assert all(isinstance(tool.spec, ToolSpec) for tool in BUILTIN_TOOLS)
    assert {tool.effects for tool in BUILTIN_TOOLS} <= {"none", "idempotent"}
