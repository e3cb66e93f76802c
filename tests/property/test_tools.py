"""Properties of tools: what a model may send, and what it is shown."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from looopy.errors import InvalidToolArguments
from looopy.tools import Tool, ToolContext, tool
from looopy.tools.call.coerce import coerce
from looopy.tools.call.results import limit_blocks, to_answer
from looopy.tools.call.run import CallRules, run_call
from looopy.tools.schema import validate
from looopy.types.context import CancelToken
from looopy.types.message import ImageContent, TextContent, ToolCall

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


class Level(enum.Enum):
    """Two of them."""

    LOW = "low"
    HIGH = 2


@dataclasses.dataclass
class Item:
    """Something with parts."""

    name: str
    size: int | None
    level: Level
    parts: list[tuple[int, str]]
    seen: dict[str, dt.date]


_received: list[Item] = []


@tool
async def _take(item: Item) -> None:
    _received.append(item)


@given(st.lists(st.text() | st.text("aü€😀")), st.integers(1, 60))
def test_a_limited_result_is_a_marked_prefix(texts: list[str], limit: int) -> None:
    """Never more bytes than allowed besides the markers, never half a character."""
    blocks = limit_blocks([TextContent(text) for text in texts], limit)
    kept = 0
    for block, text in zip(blocks, texts, strict=True):
        assert isinstance(block, TextContent)
        if block.text != text:
            head, _, marker = block.text.rpartition("\n[")
            assert marker.endswith("bytes were left out]")
            assert text.startswith(head)
        else:
            head = text
        kept += len(head.encode("utf-8", "surrogatepass"))
    assert kept <= limit
    if sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) <= limit:
        assert [block.text for block in blocks if isinstance(block, TextContent)] == texts


@given(JSON)
def test_any_json_value_is_shown_as_itself(value: Any) -> None:
    """What is not text can be read back."""
    blocks = to_answer(value).blocks
    if value == "":
        assert blocks == ()
        return
    (block,) = blocks
    assert not isinstance(block, ImageContent)
    assert (block.text if isinstance(value, str) else json.loads(block.text)) == value


@given(st.from_type(Item))
def test_a_value_of_a_type_is_accepted_by_its_schema_and_reaches_the_function(item: Item) -> None:
    """Schema and decoder never disagree."""
    _received.clear()
    arguments = {"item": TypeAdapter(Item).dump_python(item, mode="json")}
    result = _call(_take, arguments)
    assert not result.is_error, result.text
    assert _received == [item]


@given(st.dictionaries(st.text(), JSON))
def test_any_arguments_at_all_get_one_result(arguments: dict[str, Any]) -> None:
    """A model may send what it likes."""
    result = _call(_take, arguments)
    assert result.tool_call_id == "call"
    assert result.is_error


_WRITTEN = st.one_of(
    JSON,
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.sampled_from(["true", "False", " 7 ", "1e3", "-", "+5", "0x10", "١"]),
)
_KINDS = st.sampled_from(["integer", "number", "boolean", "string", "null", "array", "object"])


@given(
    st.dictionaries(st.sampled_from("abc"), st.one_of(_WRITTEN, st.lists(_WRITTEN, max_size=3))),
    st.dictionaries(st.sampled_from("abc"), st.lists(_KINDS, min_size=1, max_size=3, unique=True)),
)
def test_coercion_changes_only_refused_values(
    arguments: dict[str, Any], types: dict[str, list[str]]
) -> None:
    """What the model wrote stays; a value changes only from a wrong type to a right one."""
    properties: dict[str, Any] = {
        name: {"type": kinds, "items": {"type": "integer"}} for name, kinds in types.items()
    }
    one = Tool(name="t", parameters={"type": "object", "properties": properties}, coerce=True)
    before = json.dumps(arguments)
    made = coerce(one, arguments)
    assert json.dumps(arguments) == before
    assert made.keys() == arguments.keys()
    again = coerce(one, made)
    assert json.dumps(again) == json.dumps(made)
    for name, value in made.items():
        old = arguments[name]
        if isinstance(value, (list, dict)) or (type(value) is type(old) and value == old):
            continue
        validate(one, {name: value})
        with pytest.raises(InvalidToolArguments):
            validate(one, {name: old})


def _call(one: Any, arguments: dict[str, Any]) -> Any:
    context = ToolContext(
        context_id="c", turn=1, tool_call_id="call", idempotency_key="k", cancel=CancelToken()
    )
    rules = CallRules(default_timeout_s=None, max_result_bytes=10_000, known=())
    return asyncio.run(run_call(one, ToolCall("call", one.name, arguments), context, rules))
