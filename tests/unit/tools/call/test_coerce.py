"""`coerce=True`: what was meant is read, on a copy; what was not is refused as ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from looopy.errors import InvalidToolArguments
from looopy.tools import Tool, tool
from looopy.tools.call.coerce import coerce
from looopy.tools.schema import validate
from looopy.types.message import ToolResultMessage

Run = Callable[..., Awaitable[ToolResultMessage]]


def of(schema: dict[str, Any]) -> Tool:
    """A tool with one argument, `x`."""
    return Tool(name="t", parameters={"type": "object", "properties": {"x": schema}}, coerce=True)


@pytest.mark.parametrize(
    ("schema", "sent", "meant"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " -17 ", -17),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "9007199254740993", 9007199254740993),
        ({"type": "number"}, "2.5e3", 2500.0),
        ({"type": "number"}, ".5", 0.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, 0, False),
        ({"type": "string"}, 5, "5"),
        ({"type": "string"}, True, "true"),
        ({"type": ["integer", "null"]}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2, "3"], [1, 2, 3]),
        ({"type": "object", "properties": {"y": {"type": "number"}}}, {"y": "1.5"}, {"y": 1.5}),
    ],
)
def test_single_values_are_read_as_the_schema_wants_them(
    schema: dict[str, Any], sent: Any, meant: Any
) -> None:
    """Wherever they are; what the model wrote stays as it is."""
    given = {"x": sent}
    before = repr(given)
    made = coerce(of(schema), given)
    assert repr(made) == repr({"x": meant})
    assert repr(given) == before


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, "5.5"),
        ({"type": "integer"}, ""),
        ({"type": "integer"}, "nan"),
        ({"type": "integer"}, "1" * 5000),
        ({"type": "number"}, "1e999"),
        ({"type": "boolean"}, 2),
        ({"type": "boolean"}, "yes"),
        ({"type": "string"}, None),
        ({"type": "string"}, ["a"]),
        ({"type": "array", "items": {"type": "integer"}}, "1"),
        ({"type": "object"}, "{}"),
        ({"type": "integer", "minimum": 3}, "1"),
    ],
)
def test_an_ambiguous_value_is_not_coerced(schema: dict[str, Any], sent: Any) -> None:
    """The text is the one that uncoerced arguments get."""
    one = of(schema)
    with pytest.raises(InvalidToolArguments):
        validate(one, coerce(one, {"x": sent}))


def test_arguments_that_fit_are_the_same_object() -> None:
    """Nothing is copied for nothing; text stays text where text is allowed."""
    given = {"x": "5"}
    assert coerce(of({"anyOf": [{"type": "string"}, {"type": "integer"}]}), given) is given
    assert coerce(of({"enum": ["5"]}), given) is given


async def test_a_tool_asks_for_it(run: Run) -> None:
    """By default nothing is coerced."""

    def add(a: int, b: int, mode: Literal["fast", "slow"] = "fast") -> str:
        return f"{a + b} {mode}"

    assert (await run(tool(add, coerce=True), {"a": "1", "b": 2})).text == "3 fast"
    refused = await run(tool(add), {"a": "1", "b": 2})
    assert refused.is_error
    assert 'a: must be integer, not "1" (string)' in refused.text
