"""Arguments that do not fit are refused in words a model can act on."""

from __future__ import annotations

from typing import Any

import pytest

from looopy.errors import InvalidTool, InvalidToolArguments
from looopy.tools.base import Tool
from looopy.tools.schema import (
    _CACHE,
    MAX_RECEIVED_CHARS,
    check_schema,
    shorten,
    show_path,
    usable_schema,
    validate,
)


def make(properties: dict[str, Any], **rest: Any) -> Tool:
    """A tool with these fields."""
    schema = {"type": "object", "properties": properties, **rest}
    return Tool(name="probe", parameters=schema)


def refused(tool: Tool, arguments: dict[str, Any]) -> str:
    """The message that refuses *arguments*."""
    with pytest.raises(InvalidToolArguments) as caught:
        validate(tool, arguments)
    assert caught.value.tool_name == "probe"
    return str(caught.value)


def lines(tool: Tool, arguments: dict[str, Any]) -> list[str]:
    """Only the problems."""
    return [line[2:] for line in refused(tool, arguments).splitlines() if line.startswith("- ")]


def test_arguments_that_fit_pass() -> None:
    """Silence is consent."""
    validate(make({"a": {"type": "integer"}}), {"a": 1})
    validate(make({}), {"more": 1})  # a schema that does not forbid other fields allows them


def test_the_message_has_the_consequence_and_the_way_out() -> None:
    """A model must know that nothing ran, and that it may try again."""
    message = refused(make({}, required=["a"]), {"b": 1})
    assert message.startswith(
        "The arguments of 'probe' do not fit its schema; the tool did not run."
    )
    assert 'Received: {"b": 1}' in message
    assert message.endswith("Correct these and call the tool again.")


def test_every_missing_field_is_named() -> None:
    """One call mends all."""
    tool = make({"x": {"type": "object", "required": ["y"]}}, required=["a", "b"])
    assert sorted(lines(tool, {"x": {}})) == [
        "a: required but missing",
        "b: required but missing",
        "x.y: required but missing",
    ]


def test_an_unknown_field_is_named_beside_the_known_ones() -> None:
    """Most often it is a misspelling of one of them."""
    tool = make({"city": {}, "unit": {}}, additionalProperties=False)
    assert lines(tool, {"town": 1}) == ["town: unknown field; known fields: city, unit"]
    assert lines(make({}, additionalProperties=False), {"a": 1}) == ["a: unknown field"]


def test_allowed_values_are_listed() -> None:
    """A model cannot guess an enum."""
    tool = make({"unit": {"enum": ["c", "f", None]}, "v": {"const": 2}})
    assert lines(tool, {"unit": "kelvin", "v": 3}) == [
        'unit: must be one of "c", "f", null; not "kelvin" (string)',
        "v: must be 2, not 3 (integer)",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("3", '"3" (string)'),
        (1.5, "1.5 (number)"),
        (True, "true (boolean)"),
        (None, "null (null)"),
        ([1], "[1] (array)"),
        ({"a": 1}, '{"a": 1} (object)'),
    ],
)
def test_validation_coerces_no_value(value: Any, shown: str) -> None:
    """The schema that the model saw decides; a number in a string is no number."""
    tool = make({"n": {"type": "integer"}})
    assert lines(tool, {"n": value}) == [f"n: must be integer, not {shown}"]


def test_limits_are_stated() -> None:
    """The bound itself is in the message."""
    tool = make({"n": {"maximum": 5}, "s": {"minLength": 2}, "l": {"maxItems": 1}})
    problems = lines(tool, {"n": 9, "s": "x", "l": [1, 2]})
    assert problems[0] == "n: 9 is greater than the maximum of 5"
    assert all(part in " ".join(problems) for part in ("s: ", "l: ", "2 characters", "1 item"))


def test_places_are_written_as_a_model_would() -> None:
    """Dots for fields, brackets for positions."""
    tool = make(
        {"items": {"items": {"properties": {"name": {"type": "string"}}, "required": ["id"]}}}
    )
    assert sorted(lines(tool, {"items": [{"id": 1}, {"name": 2}]})) == [
        "items[1].id: required but missing",
        "items[1].name: must be string, not 2 (integer)",
    ]
    assert show_path([]) == "(arguments)"


def test_the_error_of_alternatives_explains_the_closest_one() -> None:
    """An object with a wrong field was meant as that object, not as null."""
    place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = make(
        {"where": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}}, **{"$defs": {"P": place}}
    )
    assert lines(tool, {"where": {}}) == ["where.city: required but missing"]
    assert lines(tool, {"where": 3}) == ["where: must be object or null, not 3 (integer)"]


def test_the_tag_chooses_the_alternative_that_is_explained() -> None:
    """The alternative whose constant fits is explained, though another has fewer mistakes."""
    cat = {
        "type": "object",
        "properties": {
            "kind": {"const": "cat"},
            "lives": {"type": "integer"},
            "n": {"type": "string"},
        },
        "required": ["kind", "lives", "n"],
    }
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}}}
    tool = make({"pet": {"oneOf": [dog, cat]}})
    assert lines(tool, {"pet": {"kind": "cat"}}) == [
        "pet.lives: required but missing",
        "pet.n: required but missing",
    ]


def test_a_value_that_fits_two_exclusive_alternatives_is_refused() -> None:
    """There is no mistake to list, yet there must be a line."""
    tool = make({"n": {"oneOf": [{"type": "number"}, {"type": "integer"}]}})
    (line,) = lines(tool, {"n": 1})
    assert line.startswith("n: 1 is valid under more than one")


def test_long_values_are_shortened() -> None:
    """A model that sent a book need not read it again."""
    message = refused(make({"n": {"type": "integer"}}), {"n": "x" * 100_000})
    assert len(message) < MAX_RECEIVED_CHARS + 500
    assert "more characters)" in message


def test_many_problems_are_counted() -> None:
    """The first ten are enough to begin with."""
    tool = make({}, required=[f"f{i}" for i in range(25)])
    problems = lines(tool, {})
    assert len(problems) == 11
    assert problems[-1] == "and 15 more"


def test_arguments_that_cannot_be_json_are_refused() -> None:
    """Text that is no Unicode: a result, not a crash."""
    tool = make({"s": {"enum": ["a"]}})
    assert "cannot be read as JSON" in refused(tool, {"s": "\ud800"})


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "properties.a.type"),
        ({"type": "object", "properties": []}, "properties"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "properties.a.pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}}, "nowhere"),
        ({"type": "object", "properties": {"a": object()}}, "object"),
    ],
)
def test_a_schema_that_is_none_is_refused_with_the_place(
    schema: dict[str, Any], where: str
) -> None:
    """At the decorator, not when a model first calls."""
    with pytest.raises(InvalidTool, match="not a valid JSON Schema") as caught:
        check_schema(schema)
    assert where in str(caught.value)


def test_a_reference_to_another_document_is_not_fetched() -> None:
    """A schema from elsewhere must not make this process call anyone."""
    with pytest.raises(InvalidTool, match="is another document"):
        check_schema({"type": "object", "properties": {"a": {"$ref": "https://example.invalid/a"}}})


def test_a_schema_may_name_an_older_draft() -> None:
    """Tools from elsewhere are written for draft 7."""
    tool = Tool(
        name="probe",
        parameters={
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": {"$ref": "#/definitions/A"}},
            "definitions": {"A": {"type": "integer"}},
        },
    )
    assert lines(tool, {"a": "x"}) == ['a: must be integer, not "x" (string)']


def test_a_schema_is_compiled_once_a_tool() -> None:
    """And again when the tool is given another."""
    tool = make({"a": {"type": "integer"}})
    validate(tool, {"a": 1})
    compiled = vars(tool)[_CACHE]
    validate(tool, {"a": 2})
    assert vars(tool)[_CACHE] is compiled
    tool.parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    validate(tool, {"a": "x"})


def test_anything_can_be_shown_shortened() -> None:
    """A message about a bad value must not fail on it."""
    circle: list[Any] = []
    circle.append(circle)
    assert shorten(circle) == "a list that cannot be shown"
    assert shorten("x" * 10, 4) == "xxxx... (6 more characters)"


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"minimum": 0, "exclusiveMinimum": True}, {"exclusiveMinimum": 0}),
        ({"maximum": 9, "exclusiveMaximum": False}, {"maximum": 9}),
        (
            {"type": "array", "items": [{"type": "int"}], "additionalItems": False},
            {"type": "array", "prefixItems": [{}], "items": False},
        ),
        ({"type": "string", "pattern": r"[\w-\.]+"}, {"type": "string"}),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "any", "divisibleBy": 2}, {"multipleOf": 2}),
        ({"anyOf": [{"type": "str"}, {"type": "null"}]}, {"anyOf": [{}, {"type": "null"}]}),
        ({"dependencies": {"a": ["b"], "c": {}}}, {"dependentRequired": {"a": ["b"]}}),
        ({"properties": {"pattern": {"enum": "x"}}}, {"properties": {"pattern": {}}}),
        ({"patternProperties": {r"[\w-\.]": {}, "b": {}}}, {"patternProperties": {"b": {}}}),
        ({"required": [1]}, {}),
        (5, {}),
    ],
)
def test_odd_keyword_of_a_server_costs_the_keyword(schema: Any, made: dict[str, Any]) -> None:
    """And not the tool; an older word becomes today's."""
    given = {"type": "object", "properties": {"p": schema, "q": {"type": "string"}}}
    usable = usable_schema(given)
    if "dependencies" in (schema if isinstance(schema, dict) else ()):
        made = {**made, "dependentSchemas": {"c": {}}}
    assert usable == {"type": "object", "properties": {"p": made, "q": {"type": "string"}}}
    check_schema(usable)


def test_usable_schema_is_the_same_object_if_nothing_is_odd() -> None:
    """A property may have the name of a keyword."""
    given = {"type": "object", "properties": {"id": {"type": "string"}, "items": {}}}
    assert usable_schema(given) is given


def test_definitions_of_an_older_draft_are_found() -> None:
    """Under their new name, and the reference leads there."""
    given = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/A"}},
        "definitions": {"A": {"type": "integer"}},
    }
    tool = Tool(name="probe", parameters=usable_schema(given))
    assert tool.parameters["$defs"] == {"A": {"type": "integer"}}
    assert lines(tool, {"a": "x"}) == ['a: must be integer, not "x" (string)']


@pytest.mark.parametrize(
    "schema", [{"$ref": "https://example.com/x.json"}, {"$ref": "#/$defs/none"}]
)
def test_reference_that_leads_nowhere_is_refused(schema: dict[str, Any]) -> None:
    """The arguments that it stands for are unknown."""
    with pytest.raises(InvalidTool):
        usable_schema({"type": "object", "properties": {"a": schema}})


def test_schema_of_a_thousand_levels_is_cut() -> None:
    """The deepest levels take any value."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(1000):
        deep = {"type": "object", "properties": {"a": deep}}
    tool = Tool(name="probe", parameters=usable_schema(deep))
    validate(tool, {"a": {"a": {}}})
    assert lines(tool, {"a": 5}) == ["a: must be object, not 5 (integer)"]
