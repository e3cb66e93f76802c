"""A tool's schema becomes one that a grammar can be made of."""

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.llm.local.schema import ANY_OBJECT, for_grammar

LEAF = st.one_of(
    st.just({"type": "string"}),
    st.just({"type": "integer", "minimum": 0}),
    st.just({"type": ["integer", "null"]}),
    st.just({"enum": ["a", 1, None]}),
    st.just({"const": "x"}),
    st.just({"type": "string", "pattern": "(?=a)b", "format": "email"}),
    st.just({"not": {"type": "string"}}),
    st.booleans().filter(bool),
)
NODE = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.builds(lambda one: {"type": "array", "items": one, "uniqueItems": True}, inner),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
        st.builds(lambda one: {"allOf": [one, {"type": "string"}]}, inner),
        st.builds(
            lambda one, two: {"type": "object", "properties": {"p": one, "q": two}}, inner, inner
        ),
    ),
    max_leaves=6,
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pq"), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(NODE, VALUE)
def test_the_grammar_accepts_each_value_that_the_schema_accepts(node, value):
    """Leaving a keyword out only ever allows more, keys that the schema does not name aside."""
    schema = {"type": "object", "properties": {"x": node}, "required": ["x"]}
    if jsonschema_rs.is_valid(schema, {"x": value}):
        assert jsonschema_rs.is_valid(for_grammar(schema), {"x": value})


def test_types_keys_choices_and_descriptions_are_kept():
    """They are what a grammar and a small model can use."""
    schema = {
        "type": "object",
        "title": "Args",
        "properties": {
            "title": {"type": "string", "description": "Of the book.", "minLength": 3},
            "kind": {"enum": ["a", "b"], "default": "a"},
        },
        "required": ["title"],
    }
    assert for_grammar(schema) == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "Of the book."},
            "kind": {"enum": ["a", "b"]},
        },
        "required": ["title"],
        "additionalProperties": False,
    }


def test_references_are_put_in_place():
    """The result needs no definitions."""
    schema = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/a~1b"}},
        "$defs": {"a/b": {"type": "object", "properties": {"x": {"type": "number"}}}},
    }
    assert for_grammar(schema)["properties"]["at"] == {
        "type": "object",
        "properties": {"x": {"type": "number"}},
        "additionalProperties": False,
    }


def test_a_schema_that_refers_to_itself_is_unrolled_once():
    """Below that, anything goes."""
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/tree"}},
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    }
    assert for_grammar(schema)["properties"]["tree"] == {"type": "array", "items": {}}


@pytest.mark.parametrize("ref", ["#/$defs/none", "other.json#/x", "#/type"])
def test_a_reference_to_nowhere_allows_anything(ref):
    """The arguments are validated afterwards in any case."""
    schema = {"type": "object", "properties": {"x": {"$ref": ref}}}
    assert for_grammar(schema)["properties"]["x"] == {}


def test_a_huge_schema_becomes_any_object():
    """A grammar of thousands of rules would take longer to build than the answer."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(600)}}
    assert for_grammar(schema) == ANY_OBJECT
    deep = {"type": "string"}
    for _ in range(30):
        deep = {"type": "array", "items": deep}
    assert for_grammar({"type": "object", "properties": {"x": deep}}) == ANY_OBJECT
