"""Tools as each server takes them, and the model's calls as the tool takes them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strict_servers import bad_schema

from looopy.llm.dialects import Dialect, dialect_of
from looopy.llm.tool_schemas import ToolFitter
from looopy.types.message import AssistantMessage, ToolCall, UserMessage
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions, ToolSpec

OPENAI = dialect_of("https://api.openai.com/v1")
CLAUDE = dialect_of("", "anthropic", "claude-sonnet-5-5")
LOOKS = r"^(?!\.)[a-z]+$"


def deep(levels):
    """A schema nested so deep."""
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def spec(parameters, name="odd"):
    """A tool with such a schema."""
    return ToolSpec(name=name, description="", parameters=parameters)


def fitted(*specs, dialect=OPENAI, messages=(), told=None, **options):
    """A request as the server gets it."""
    told = [] if told is None else told
    asked = LLMRequest(messages=messages, tools=specs)
    warn = lambda code, text: told.append((code, text))  # noqa: E731
    return ToolFitter(dialect).fit(asked, StreamOptions(warn=warn, **options))


def schema_of(parameters, dialect=OPENAI):
    """The one schema that the server gets."""
    (tool,) = fitted(spec(parameters), dialect=dialect).request.tools
    return tool.parameters


def obj(**properties):
    """A schema of an object."""
    return {"type": "object", "properties": properties}


ODD = {
    "choices at the root": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "an enum at the root": {"type": "object", "enum": [{"a": 1}]},
    "a reference as the root": {"$ref": "#/$defs/A", "$defs": {"A": {"oneOf": [obj(), obj(b={})]}}},
    "odd keys": obj(**{"$top": {}, "filter[id]": obj(ä={}), "k" * 80: {}, "": {}}),
    "keys that become equal": obj(**{"a b": {}, "a_b": {}, "a-b": {}, "a/b": {}}),
    "arrays without items": obj(a={"type": "array"}, b={"type": ["array", "null"]}),
    "a tuple": obj(a={"type": "array", "prefixItems": [{"type": "integer"}]}),
    "an old tuple": obj(a={"type": "array", "items": [{"type": "array"}]}),
    "patterns that look around": obj(
        a={"type": "string", "pattern": LOOKS}, pattern={"type": "string"}
    ),
    "keys that look around": {"type": "object", "patternProperties": {LOOKS: {}}},
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        **obj(a={"minimum": 0, "exclusiveMinimum": True, "$ref": "#/definitions/A"}),
        "definitions": {"A": {"type": "array"}},
    },
    "a reference to another document": obj(a={"$ref": "https://example.com/x.json"}),
    "a missing definition": obj(a={"$ref": "#/$defs/none"}),
    "no type": {"properties": {"a": {}}},
    "several types": {"type": ["object", "null"]},
    "1,000 levels": deep(1000),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("dialect", [OPENAI, CLAUDE], ids=["openai", "anthropic"])
def test_odd_schema_is_mended(name, dialect):
    """The strict judge of that server takes it."""
    schema = schema_of(ODD[name], dialect)
    assert bad_schema(schema, lookaround=dialect.lookaround) is None
    json.dumps(schema)


@pytest.mark.parametrize(
    "schema", [obj(a={"type": "integer"}), obj(items={"type": "string"}, required={})]
)
def test_good_schema_stays_the_same_object(schema):
    """Nothing is copied, also where a property is called like a keyword."""
    asked = LLMRequest(messages=[UserMessage("x")], tools=[spec(schema)])
    assert ToolFitter(OPENAI).fit(asked, StreamOptions()).request is asked


def test_pattern_that_looks_around_becomes_words():
    """Where the server takes it, it stays."""
    odd = obj(a={"type": "string", "pattern": LOOKS, "description": "A name."})
    assert schema_of(odd)["properties"]["a"] == {
        "type": "string",
        "description": f"A name. (pattern: {LOOKS})",
    }
    assert schema_of(odd, CLAUDE)["properties"]["a"]["pattern"] == LOOKS


def test_wrapped_root_and_renamed_keys_are_mapped_back():
    """And calls in the history go out as the model wrote them."""
    odd = {"type": "object", "oneOf": [obj(**{"$top": {"type": "integer"}, "a": {}})]}
    plain = {"$top": 1, "a": [{"$top": 2}]}
    wrapped = {"input": {"_top": 1, "a": [{"_top": 2}]}}
    history = [UserMessage("x"), AssistantMessage([ToolCall("1", "odd", plain)])]
    made = fitted(spec(odd), messages=history)
    (call,) = made.request.messages[1].tool_calls
    assert call.arguments == wrapped
    for sent in (wrapped, wrapped["input"]):  # a model may forget the wrap
        said = ToolCall("2", "odd", sent)
        answer = AssistantMessage([said, ToolCall("3", "other", sent)])
        events = [
            StreamEvent("toolcall_end", tool_call=said),
            StreamEvent("done", message=answer),
        ]
        ended, done = made.restored(events)
        assert ended.tool_call.arguments == plain
        assert [c.arguments for c in done.message.tool_calls] == [plain, sent]


def test_broken_call_stays_as_the_model_wrote_it():
    """It has no arguments to map."""
    broken = ToolCall("1", "odd", {}, invalid_arguments="{")
    (event,) = fitted(spec(ODD["odd keys"])).restored([StreamEvent("x", tool_call=broken)])
    assert event.tool_call is broken


@pytest.mark.parametrize("schema", [{"properties": 5}, {"properties": ["a"]}, 7, None])
def test_tool_that_cannot_be_mended_is_left_out(schema):
    """The warning names it; the others go out."""
    told = []
    made = fitted(spec(schema), spec(obj(), "good"), told=told)
    assert [tool.name for tool in made.request.tools] == ["good"]
    ((code, text),) = told
    assert code == "tools"
    assert text.endswith(": odd")


def test_most_tools_of_a_server_are_kept():
    """Those that come first, and the one that the model has to call; the warning names the rest."""
    told = []
    specs = [spec(obj(), f"t{i}") for i in range(5000)]
    made = fitted(*specs, told=told, tool_choice="t4000")
    names = [tool.name for tool in made.request.tools]
    assert names == ["t4000", *(f"t{i}" for i in range(127))]
    ((_, text),) = told
    assert "4872 more are left out" in text
    assert "t127, " in text
    assert len(fitted(*specs, dialect=Dialect(max_tools=None)).request.tools) == 5000


def test_schema_is_mended_once():
    """The next request has the same object."""
    fitter, odd = ToolFitter(OPENAI), spec(ODD["odd keys"])
    asked = LLMRequest(messages=[UserMessage("x")], tools=[odd])
    first, second = (fitter.fit(asked, StreamOptions()).request.tools[0] for _ in range(2))
    assert first.parameters is second.parameters


VALUES = st.none() | st.integers() | st.text(max_size=3)
KEYS = st.text("ab_$ /", max_size=3)


@given(
    names=st.dictionaries(KEYS, VALUES, max_size=6), root=st.sampled_from(["none", "anyOf", "not"])
)
def test_any_keys_come_back(names, root):
    """Whatever the names: new ones are taken by the server, and each leads back to its own."""
    schema = obj(**{name: {} for name in names}) | ({} if root == "none" else {root: [{}]})
    made = fitted(
        spec(schema), messages=[UserMessage("x"), AssistantMessage([ToolCall("1", "odd", names)])]
    )
    assert bad_schema(made.request.tools[0].parameters, lookaround=False) is None
    (sent,) = made.request.messages[1].tool_calls
    (back,) = made.restored([StreamEvent("toolcall_end", tool_call=sent)])
    assert back.tool_call.arguments == names
