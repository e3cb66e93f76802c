"""
No value of a wrong type bricks a context.

Each field of each public type that is stored is given each wrong value: of a caller it is refused,
with its place and before anything is written; of a model or a tool it is repaired. In both cases
every read answers afterwards, and the next turn runs.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import json
import os
from contextlib import suppress
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.postgres import as_driver
from tests.shares import examples

from looopy import Agent, open_stores, tool
from looopy.errors import LooopyError, ValueRefused
from looopy.stores.records import EntryKind
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools.base import ToolResult
from looopy.types import message as public
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    Citation,
    Cost,
    CustomMessage,
    DocumentContent,
    ImageContent,
    ServerToolCall,
    ServerToolResult,
    TextContent,
    ThinkingContent,
    TokenLogprob,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_json import message_to_json
from looopy.types.request import StreamEvent
from looopy.types.state import Outcome

RUNS = examples(40)
SHARE = 1 if "LOOOPY_EXAMPLES" in os.environ else 8  # each field gets one value of so many


class Odd:
    """An object that resists being looked at."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __bool__(self):
        raise RuntimeError("no truth")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = None


WRONG = (
    *(None, True, False, 0, 1, -1, 1.5, 2.0, float("nan"), float("inf"), 10**30, 1j),
    *("", "x", "12", "true", '{"a": 1}', "[1]", "\0", "\ud800", b"x", b"\xff", bytearray(b"y")),
    *([], ["a"], [TextContent("a")], [5], {}, {"a": 1}, {5: 6}, {"a": {1}}, (1,), {1}, range(3)),
    *(object(), Odd(), len, TextContent, Usage(), Cost(), TextContent("t"), UserMessage("u")),
    *(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), iter(()), Exception("e")),
)
VALUES = st.sampled_from(WRONG) | st.recursive(
    st.sampled_from(WRONG[:23]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
STORED = [
    kind
    for _, kind in inspect.getmembers(public, inspect.isclass)
    if is_dataclass(kind) and kind.__module__ == public.__name__
]
PLACES = [(kind, one.name) for kind in STORED for one in fields(kind)]
_GIVEN = {
    AudioContent: {"data": "AAAA", "mime_type": "audio/wav"},
    DocumentContent: {"data": "AAAA", "mime_type": "application/pdf"},
    ToolCall: {"id": "c", "name": "add", "arguments": {"a": 1}},
    TokenLogprob: {"token": "a", "logprob": -1.0},
    ServerToolCall: {"id": "s", "name": "web_search", "arguments": {"q": "x"}, "item": {}},
    ServerToolResult: {"tool_call_id": "s", "tool_name": "web_search", "item": {}},
    CustomMessage: {"role": "note"},
    ToolResultMessage: {"tool_call_id": "c", "tool_name": "add", "content": "3"},
}
_SPOKEN = {
    UserMessage: lambda m: m,
    AssistantMessage: lambda m: m,
    ToolResultMessage: lambda m: m,
    CustomMessage: lambda m: m,
    ImageContent: lambda b: UserMessage([TextContent("look"), b]),
    DocumentContent: lambda b: UserMessage([TextContent("read"), b]),
    AudioContent: lambda b: UserMessage([TextContent("hear"), b]),
    TextContent: lambda b: UserMessage([TextContent("see"), b]),
    ThinkingContent: lambda b: AssistantMessage([b, TextContent("a")]),
    ToolCall: lambda b: AssistantMessage([TextContent("a"), b]),
    ServerToolCall: lambda b: AssistantMessage([b, TextContent("a")]),
    ServerToolResult: lambda b: AssistantMessage([b, TextContent("a")]),
    Citation: lambda c: AssistantMessage([TextContent("a", citations=[c])]),
    TokenLogprob: lambda o: AssistantMessage("a", logprobs=[o]),
    Usage: lambda u: AssistantMessage("a", usage=u),
    Cost: lambda c: AssistantMessage("a", usage=Usage(input=1, cost=c)),
}


def made(kind, field, value):
    """One of *kind* with *value* in *field*, also where its constructor refuses that."""
    given = dict(_GIVEN.get(kind, {}))
    if kind in (AssistantMessage, UserMessage):
        given["content"] = "hello"
    try:
        return kind(**{**given, field: value})
    except ValueRefused:
        one = kind(**given)
        object.__setattr__(one, field, value)
        return one


def as_json(messages):
    """What *messages* say, with tuples as the lists that they become."""
    return [json.loads(json.dumps(message_to_json(m), default=dict)) for m in messages]


def test_every_stored_type_has_a_place_in_a_message():
    """A type that is added to the messages is tried here too."""
    assert set(_SPOKEN) == set(STORED)
    assert len(PLACES) > 40


async def everything_is_read(stores, context_id):
    """Every read of the context and of the tenant answers."""
    await stores.messages.list(context_id)
    await stores.messages.recent(context_id, limit=99)
    await stores.journal.turns(context_id)
    events = await stores.journal.events(context_id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    await stores.journal.inbox(context_id)
    await stores.state.list()


async def appended(stores, kind, field, value):
    """What is appended comes out equal, or is refused with its place and nothing is written."""
    told = _SPOKEN[kind](made(kind, field, value))
    good = UserMessage("good")
    before = await stores.messages.list("appended")
    refused = None
    try:
        await stores.messages.append("appended", [good, told])
    except ValueRefused as error:
        refused = error
    found = await stores.messages.list("appended")
    if refused is None:
        assert as_json(found[len(before) :]) == as_json([good, told])
        assert [type(m) for m in found[len(before) :]] == [UserMessage, type(told)]
        await everything_is_read(stores, "appended")
    else:
        assert refused.path.startswith("/1")
        assert found == before


async def said(stores, kind, field, value):
    """A user's message is stored as it is, or refused before a turn begins."""
    told = _SPOKEN[kind](made(kind, field, value))
    if not isinstance(told, UserMessage):
        return
    agent = Agent("said", llm_provider=ScriptedProvider([text("ok")], repeat=True), stores=stores)
    async with agent:
        before = await agent.get_messages()
        try:
            await agent.execute_turn(told)
        except ValueRefused:
            assert await agent.get_messages() == before
        else:
            found = (await agent.get_messages())[len(before)]
            assert as_json([found]) == as_json([told])
        with suppress(ValueRefused):
            await agent.steer(told)
        with suppress(ValueRefused):
            await stores.journal.post("said", EntryKind.FOLLOW_UP, told)
        await everything_is_read(stores, "said")


class Says:
    """A model that ends its stream with this very message, and then with `fine`."""

    name, model = "says", "says-1"

    def __init__(self, message=None):
        self.message = message

    async def stream(self, request, options=None):
        """Its message."""
        told, self.message = self.message, None
        yield StreamEvent("done", message=told or AssistantMessage("fine"))


async def answered(stores, kind, field, *values):
    """A model's answer is repaired, or fails the turn; the next turn completes."""
    provider = Says()

    @tool
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    async with Agent("answered", llm_provider=provider, tools=[add], stores=stores) as agent:
        for value in values:
            part = made(kind, field, value)
            told = _SPOKEN[kind](part)
            if isinstance(told, UserMessage):
                told = AssistantMessage([TextContent("see"), part])
            provider.message = told
            result = await agent.execute_turn("hello")
            assert result.outcome in (Outcome.COMPLETED, Outcome.FAILED)
        await everything_is_read(stores, "answered")
    async with Agent("answered", llm_provider=Says(), stores=stores) as again:
        assert (await again.execute_turn("again")).outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("kind", "field", "value", "kept"),
    [
        (Usage, "input", 12.0, 12),
        (Usage, "output", 7.9, 8),
        (AssistantMessage, "timestamp", 1_700_000_000_000.5, 1_700_000_000_000),
        (ToolCall, "arguments", '{"a": 2}', {"a": 2}),
    ],
)
async def test_the_meaning_of_a_value_of_a_wrong_type_is_kept(kind, field, value, kept):
    """The turn completes with the value that was meant; it is not refused when it is stored."""
    stores = open_stores("memory:")
    provider = Says(_SPOKEN[kind](made(kind, field, value)))

    @tool
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    agent = Agent("meant", llm_provider=provider, tools=[add], stores=stores)
    async with stores, agent:
        result = await agent.execute_turn("hello")
        assert result.outcome is Outcome.COMPLETED, result.error
        answer = next(m for m in await agent.get_messages() if isinstance(m, AssistantMessage))
    part = {Usage: answer.usage, ToolCall: answer.content[-1]}.get(kind, answer)
    assert repr(getattr(part, field)) == repr(kept)


async def returned(stores, kind, field, value):
    """A tool's result is repaired or becomes an error result; the turn completes."""

    @tool(name="add")
    def answers_oddly() -> ToolResult:
        """Answer oddly."""
        if kind is ToolResult:
            return ToolResult(**{"content": "o", field: value})
        return ToolResult([TextContent("see"), made(kind, field, value)])

    script = [tool_call("add"), text("fine")]
    provider = ScriptedProvider(script, repeat=True)
    tools = [answers_oddly]
    async with Agent("returned", llm_provider=provider, tools=tools, stores=stores) as agent:
        result = await agent.execute_turn("hello")
        assert result.outcome is Outcome.COMPLETED
        answers = [m for m in result.messages if isinstance(m, ToolResultMessage)]
        assert [type(m.is_error) for m in answers] == [bool]
        found = (await stores.messages.list("returned"))[-len(result.messages) :]
        assert as_json(found) == as_json(result.messages)
        await everything_is_read(stores, "returned")


_BLOCKS = (TextContent, ImageContent, DocumentContent, AudioContent)
WAYS = {
    "appended": (appended, PLACES),
    "said": (said, [p for p in PLACES if p[0] in (UserMessage, *_BLOCKS)]),
    "answered": (answered, [p for p in PLACES if p[0] is not CustomMessage]),
    "returned": (
        returned,
        [
            *((ToolResult, one.name) for one in fields(ToolResult)),
            *(p for p in PLACES if p[0] in _BLOCKS),
        ],
    ),
}


@pytest.fixture
def url(request, tmp_path):
    """Where the stores are."""
    kind = request.param
    if kind == "memory":
        return "memory:"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'types.db'}"
    return as_driver(request.getfixturevalue("postgres"), kind)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("way", WAYS)
def test_each_wrong_value_in_each_field(way):
    """Each value in some fields, each field with some values; all pairs in a long search."""
    act, places = WAYS[way]

    async def run():
        async with open_stores("memory:") as stores:
            for number, (kind, field) in enumerate(places):
                values = WRONG[number % SHARE :: SHARE]
                if act is answered:
                    await act(stores, kind, field, *values)
                else:
                    for value in values:
                        await act(stores, kind, field, value)
                with suppress(LooopyError):
                    await stores.state.delete(way)

    asyncio.run(run())


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("url", "runs"),
    [
        ("memory", RUNS),
        ("sqlite", RUNS),
        ("asyncpg", RUNS // 10),
        pytest.param("psycopg", RUNS // 10, marks=pytest.mark.long),
    ],
    indirect=["url"],
)
def test_a_message_reads_back_equal_from_every_store(url, runs):
    """Whatever value of whatever field, whichever way it comes."""
    with asyncio.Runner() as runner:
        stores = open_stores(url)
        runner.run(stores.__aenter__())
        cases = st.sampled_from(sorted(WAYS)).flatmap(
            lambda way: st.tuples(st.just(way), st.sampled_from(WAYS[way][1]), VALUES)
        )

        @settings(max_examples=runs)
        @given(case=cases)
        def try_it(case):
            way, (kind, field), value = case
            runner.run(WAYS[way][0](stores, kind, field, value))

        try:
            try_it()
        finally:
            runner.run(stores.__aexit__(None, None, None))
