"""Schemas in the form that a server enforces, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from looopy.llm.strict import NotStrict, has_strict, strict_schema
from looopy.loop.output import output_type_of
from looopy.tools.schema import without_nulls

_OPENAI = {
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum",
    "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maximum", "minItems",
    "minimum", "multipleOf", "pattern", "properties", "required", "title", "type",
}  # fmt: skip
_ANTHROPIC = _OPENAI - {
    "exclusiveMaximum", "exclusiveMinimum", "maxItems", "maximum", "minItems", "minimum",
    "multipleOf", "pattern",
}  # fmt: skip


class Kind(Enum):
    """One of two."""

    A = "a"
    B = "b"


class Part(BaseModel):
    """Some of everything that pydantic writes."""

    name: str = Field(min_length=1, max_length=20)
    count: int = Field(gt=0, le=10)
    kind: Kind = Kind.A
    note: str | None = None
    tags: list[str] = Field(default_factory=list, max_length=3)
    role: Literal["x", "y"] = "x"


class Whole(BaseModel):
    """With references."""

    first: Part
    rest: list[Part] = []
    other: Part | int = 1


class Tree(BaseModel):
    """One that refers to itself."""

    name: str
    children: list[Tree] = []


@dataclass
class Point:
    """A plain one."""

    x: int
    y: int = 0


def refused(schema, *, every=True, known=frozenset(_OPENAI)):
    """What a strict server would refuse, written apart from the code that makes schemas."""
    if isinstance(schema, list):
        return [one for item in schema for one in refused(item, every=every, known=known)]
    if not isinstance(schema, Mapping):
        return []
    found = [f"{name!r} is not permitted" for name in schema.keys() - known]
    if "$ref" in schema and len(schema) > 1:
        found.append("$ref cannot have keywords")
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            found.append("additionalProperties must be false")
        if every and set(schema.get("required", ())) != set(schema.get("properties", ())):
            found.append("required must name every property")
    for name in ("properties", "$defs"):
        for one in schema.get(name, {}).values():
            found += refused(one, every=every, known=known)
    return found + refused(
        [schema[n] for n in ("items",) if n in schema] + schema.get("anyOf", []),
        every=every,
        known=known,
    )


@pytest.mark.parametrize("kind", [Part, Whole, Tree, Point, list[Point], int | str, Kind])
def test_a_type_has_a_form_that_openai_enforces(kind):
    """Every property is required, and nothing is in it that is not known there."""
    made = strict_schema(output_type_of(kind).sent)
    assert refused(made) == []


@pytest.mark.parametrize("kind", [Part, Whole, Point, list[Point], int | str, Kind])
def test_a_type_has_a_form_that_anthropic_enforces(kind):
    """Limits are words there."""
    made = strict_schema(output_type_of(kind).sent, every=False, bounds=False)
    assert refused(made, every=False, known=_ANTHROPIC) == []


def test_an_optional_property_may_be_null():
    """And a limit that is not known there is told in words."""
    made = strict_schema(Part.model_json_schema())["properties"]
    assert made["tags"]["type"] == ["array", "null"]
    assert made["kind"] == {"anyOf": [{"$ref": "#/$defs/Kind"}, {"type": "null"}]}
    assert made["note"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert "maxLength: 20" in made["name"]["description"]
    assert made["count"]["exclusiveMinimum"] == 0


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (TypeAdapter(dict[str, int]).json_schema(), "its root"),
        ({"type": "object", "properties": {"a": {}}}, "/a"),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, "/a"),
        ({"type": "object", "properties": {}, "patternProperties": {"x": {}}}, "patternPropertie"),
        ({"type": "object", "properties": {"a": {"allOf": [{}, {}]}}}, "allOf"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, "/a/items"),
        ({"type": "string"}, "root"),
    ],
)
def test_a_schema_that_needs_open_objects_has_no_strict_form(schema, where):
    """The reason names the place."""
    assert not has_strict(schema)
    with pytest.raises(NotStrict, match=where):
        strict_schema(schema)


def test_anthropic_takes_no_schema_that_refers_to_itself():
    """OpenAI does."""
    schema = output_type_of(Tree).sent
    assert has_strict(schema)
    assert not has_strict(schema, every=False, bounds=False)


def test_a_null_for_an_optional_property_is_removed():
    """But not one that the type allows, nor one that it requires."""
    said = {
        "first": {"name": "a", "count": 1, "kind": None, "note": None, "tags": None, "role": None},
        "rest": [{"name": "b", "count": 2, "kind": "b", "note": None, "tags": ["t"], "role": "y"}],
        "other": None,
    }
    schema = Whole.model_json_schema()
    assert without_nulls(schema, said) == {
        "first": {"name": "a", "count": 1, "note": None},
        "rest": [{"name": "b", "count": 2, "kind": "b", "note": None, "tags": ["t"], "role": "y"}],
    }
    assert output_type_of(Whole).read(said).first.kind is Kind.A
    assert without_nulls(schema, {"first": None}) == {"first": None}
    assert without_nulls({}, {"a": None}) == {"a": None}


def test_pattern_that_looks_around_becomes_words():
    """OpenAI refuses it in an output schema, too; any other pattern stays."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^(?=x)"},
            "b": {"type": "string", "pattern": "^(?:x)"},
        },
        "additionalProperties": False,
    }
    a, b = strict_schema(schema, every=False)["properties"].values()
    assert a == {"type": "string", "description": "(pattern: ^(?=x))"}
    assert b == {"type": "string", "pattern": "^(?:x)"}
