"""
A row that says what it should not, of an older version or changed by other hands, stops no read.

It is repaired where it can be, and stands as damaged where not; whatever else there is, in its
context and beside it, is read as before, and the context goes on.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest
from tests.postgres import as_driver, ask
from tests.shares import PSYCOPG

from looopy import Agent, open_stores, tool
from looopy.stores.records import ANY_CALL, EntryKind
from looopy.stores.rows.reading import DAMAGED
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.turns import CONTEXT, answer, begin, commit, ends, said, starts, user
from looopy.types.event import MessageEnd, TurnEnd, TurnStart, TurnWarning
from looopy.types.message import CustomMessage, StopReason, ToolCall
from looopy.types.state import Outcome

_NO_MESSAGES = {
    "no JSON": "{'role': 'user'}",
    "cut": '{"role":"user","content":"hel',
    "a list": "[]",
    "no role": '{"content":"hello"}',
    "a number as role": '{"role":5,"content":"hello"}',
    "nested too deep": "[" * 100_000,
    "empty": "",
}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _in_memory(stores):
    def damage(table, column, change, nth=1):
        context = stores.state.backend.contexts["default", CONTEXT]
        if table in ("messages", "events"):
            rows = getattr(context, table)
            row = rows[nth - 1]
            rows[nth - 1] = row._replace(**{column: change(getattr(row, column))})
            return
        row = context if table == "contexts" else list(context.inbox.values())[nth - 1]
        setattr(row, column, change(getattr(row, column)))

    return damage


def _in_file(path):
    own = {"messages": "message_rows", "events": "event_rows", "turns": "turn_rows"}

    def damage(table, column, change, nth=1):
        name, key = own.get(table, table), {"contexts": "number", "inbox": "entry"}.get(table, "id")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            found = connection.execute(f"SELECT {key}, {column} FROM looopy_{name} ORDER BY {key}")
            place, value = found.fetchall()[nth - 1]
            update = f"UPDATE looopy_{name} SET {column} = ? WHERE {key} = ?"
            connection.execute(update, (change(value), place))

    return damage


def _on_server(url):
    keys = {"messages": "position", "events": "seq", "turns": "turn", "inbox": "entry"}

    def damage(table, column, change, nth=1):
        key = keys.get(table, "context_id")
        found = ask(url, f"SELECT {key}, {column} FROM looopy_{table} ORDER BY {key}")
        place, value = found[nth - 1]
        ask(url, f"UPDATE looopy_{table} SET {column} = %s WHERE {key} = %s", change(value), place)

    return damage


@pytest.fixture(params=["memory", "sqlite", "asyncpg", PSYCOPG])
def backend(request):
    """On what."""
    return request.param


@pytest.fixture
def store_url(request, backend):
    """Where the stores are."""
    if backend == "memory":
        return "memory:"
    if backend == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_file')}"
    return as_driver(request.getfixturevalue("postgres"), backend)


@pytest.fixture
async def place(store_url, backend):
    """Open stores, and a function that changes a column of the nth row of a table by hand."""
    async with open_stores(store_url) as stores:
        if backend == "memory":
            yield stores, _in_memory(stores)
        elif backend == "sqlite":
            yield stores, _in_file(store_url.removeprefix("sqlite:///"))
        else:
            yield stores, _on_server(store_url.replace(f"+{backend}", ""))


async def _talk(stores, script, said_now="hello"):
    """One turn of an agent; its result."""
    agent = Agent(CONTEXT, llm_provider=ScriptedProvider(script), tools=[add], stores=stores)
    async with agent:
        return await agent.execute_turn(said_now)


async def _call(stores):
    """A turn with a call: its four messages."""
    result = await _talk(stores, [tool_call("add", a=1, b=2), text("3")])
    assert [m.role for m in result.messages] == ["user", "assistant", "toolResult", "assistant"]
    return list(result.messages)


def _with(change):
    """A change of a row's JSON."""

    def changed(body):
        data = json.loads(body)
        change(data)
        return json.dumps(data)

    return changed


def _set(**values):
    return _with(lambda data: data.update(values))


async def _assert_it_goes_on(stores):
    """Every read answers, the numbers of the log have no gaps, and the next turn completes."""
    result = await _talk(stores, [text("fine")], "again")
    assert result.outcome is Outcome.COMPLETED
    events = await stores.journal.events(CONTEXT)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    turns = await stores.journal.turns(CONTEXT)
    assert sum(isinstance(e, TurnStart) for e in events) == len(turns)
    assert sum(isinstance(e, TurnEnd) for e in events) == len(turns)
    count = await stores.messages.count(CONTEXT)
    assert len(await stores.messages.list(CONTEXT)) == count
    assert len(await stores.messages.recent(CONTEXT, limit=99)) == count
    assert [one.context_id for one in await stores.state.list()] == [CONTEXT]


@pytest.mark.parametrize(
    ("nth", "change"),
    [
        (1, _with(lambda data: data.update(timestamp=float(data["timestamp"])))),
        (2, _with(lambda data: data["content"][0].update(arguments='{"a": 1, "b": 2}'))),
        (2, _with(lambda data: data["usage"].update(input=float(data["usage"]["input"])))),
        (3, _set(is_error=0)),
        (4, _set(api="scripted", text=None, provider="scripted", error_message=None)),
    ],
    ids=["timestamp", "arguments", "tokens", "is_error", "more"],
)
async def test_a_field_of_another_type_is_repaired_as_it_is_read(place, nth, change):
    """The message is read as it was said, and so are all others."""
    stores, damage = place
    told = await _call(stores)
    damage("messages", "body", change, nth)
    assert await stores.messages.list(CONTEXT) == told
    assert [e.message for e in await stores.journal.events(CONTEXT) if e.type == "message_end"] == (
        told
    )
    await _assert_it_goes_on(stores)


@pytest.mark.parametrize("number", range(len(_NO_MESSAGES)), ids=_NO_MESSAGES)
async def test_a_row_that_is_no_message_stands_as_damaged(place, number, caplog):
    """It says its position and why, keeps its text, and hides no other; the log warns."""
    stores, damage = place
    body, nth = list(_NO_MESSAGES.values())[number], number % 4 + 1  # each of the four messages
    told = await _call(stores)
    damage("messages", "body", lambda _body: body, nth)
    found = await stores.messages.list(CONTEXT)
    assert found[: nth - 1] + found[nth:] == told[: nth - 1] + told[nth:]
    stands = found[nth - 1]
    assert isinstance(stands, CustomMessage)
    assert stands.role == DAMAGED
    assert stands.metadata["position"] == nth
    assert stands.metadata["body"] == body
    assert f"at position {nth} cannot be read" in stands.content
    assert f"at position {nth} cannot be read" in caplog.text
    ends = [e for e in await stores.journal.events(CONTEXT) if isinstance(e, MessageEnd)]
    assert [e.message for e in ends] == found
    await _assert_it_goes_on(stores)


async def test_no_model_is_shown_a_damaged_message(place):
    """The rest of the history is, with nothing in the place of what cannot be read."""
    stores, damage = place
    await _talk(stores, [text("one")], "first")
    damage("messages", "body", lambda _body: "?", 1)
    provider = ScriptedProvider([text("two")])
    async with Agent(CONTEXT, llm_provider=provider, stores=stores) as agent:
        await agent.execute_turn("second")
    assert [m.text for m in provider.requests[0].messages] == ["one", "second"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _state: '{"usage":{"input":7.0,"total_tokens":7.0}}', None),
        (lambda _state: "no JSON", "damaged"),
        (lambda _state: "[]", "damaged"),
        (lambda _state: '{"pending":[{"kind":"?"}],"usage":{"total_tokens":7}}', "damaged"),
        (lambda _state: '{"held":[5],"resumable":"x","output":[1]}', "damaged"),
    ],
    ids=["float tokens", "no JSON", "a list", "pending", "held"],
)
async def test_a_damaged_state_hides_no_context(place, change, why):
    """The tenant's contexts are listed, this one with what can be read, and its next turn runs."""
    stores, damage = place
    await _talk(stores, [text("one")])
    damage("contexts", "state", change)
    await stores.messages.append("other", [user("hi")])
    listed = await stores.state.list()
    assert [one.context_id for one in listed] == [CONTEXT, "other"]
    state = listed[0].state
    assert (state.error is not None) == (why is not None)
    if why is not None:
        assert why in state.error[1]
    if "total_tokens" in change(""):
        assert state.usage.total_tokens == 7
    await stores.state.delete("other")
    await _assert_it_goes_on(stores)


async def test_damaged_metadata_is_read_as_empty(place, caplog):
    """The context is listed and loaded with empty metadata, and the log names it."""
    stores, damage = place
    await _talk(stores, [text("one")])
    damage("contexts", "metadata", lambda _metadata: '["no object"]')
    record = await stores.state.load(CONTEXT)
    assert record.metadata == {}
    assert f"the metadata of context {CONTEXT} cannot be read" in caplog.text
    await _assert_it_goes_on(stores)


@pytest.mark.parametrize("body", ["no JSON", "[]", "{}", '{"surprise":1}'])
async def test_a_damaged_event_is_a_warning_in_its_place(place, body):
    """It has the event's number; the events around it are as they were."""
    stores, damage = place
    await _call(stores)
    before = await stores.journal.events(CONTEXT)
    damage("events", "body", lambda _body: body)
    after = await stores.journal.events(CONTEXT)
    (place_of,) = [i for i, e in enumerate(before) if e.type == "tool_execution_start"]
    warning = after[place_of]
    assert isinstance(warning, TurnWarning)
    assert (warning.seq, warning.code) == (before[place_of].seq, DAMAGED)
    assert after[:place_of] + after[place_of + 1 :] == before[:place_of] + before[place_of + 1 :]
    await _assert_it_goes_on(stores)


async def test_an_event_of_an_unknown_type_is_a_warning_in_its_place(place):
    """As a newer version may have written it."""
    stores, damage = place
    await _call(stores)
    damage("events", "type", lambda _type: "from_the_future")
    found = [e for e in await stores.journal.events(CONTEXT) if isinstance(e, TurnWarning)]
    assert [e.code for e in found] == [DAMAGED]
    assert "from_the_future" in found[0].text
    await _assert_it_goes_on(stores)


async def test_a_call_whose_start_cannot_be_read_counts_as_started(place):
    """A tool with an effect is not run a second time because a row is damaged."""
    stores, damage = place
    claimed = await begin(stores)
    call = ToolCall("call-1", "add", {"a": 1, "b": 2})
    await commit(stores, claimed, [said(answer("", call)), starts(call)])
    await commit(stores, claimed, [ends(StopReason.INTERRUPTED)], release=True)
    damage("events", "body", lambda _body: "{}")
    assert await stores.journal.started_calls(CONTEXT, 1) == {ANY_CALL}
    runs = []

    @tool(name="add")
    def counted(a: int, b: int) -> int:
        runs.append((a, b))
        return a + b

    provider = ScriptedProvider([text("fine")])
    async with Agent(CONTEXT, llm_provider=provider, tools=[counted], stores=stores) as agent:
        await agent.execute_turn(None)
    assert runs == []


async def test_a_damaged_message_leaves_the_inbox(place):
    """It is said as one that cannot be read, and those behind it are heard."""
    stores, damage = place
    await _talk(stores, [text("one")])
    for words in ("first", "second"):
        await stores.journal.post(CONTEXT, EntryKind.STEER, user(words))
    damage("inbox", "body", lambda _body: "no JSON")
    provider = ScriptedProvider([text("two"), text("three")])
    async with Agent(CONTEXT, llm_provider=provider, stores=stores) as agent:
        await agent.execute_turn(None)
        heard = [m.text for m in await agent.get_messages() if m.role == "user"]
    assert heard == ["hello", "[message 1 of the inbox cannot be read]", "second"]
    assert (await stores.journal.inbox(CONTEXT))[1] == []


@pytest.mark.parametrize("backend", ["sqlite", "asyncpg"], indirect=True)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("outcome", "vanished"),
        ("stop_reason", "bored"),
        ("usage", '{"input":1.5}'),
        ("usage", "no JSON"),
        ("metadata", "[1]"),
    ],
)
async def test_a_damaged_turn_hides_no_other(place, column, value):
    """Turns, log and context are read; how the turn ended is then not known."""
    stores, damage = place
    await _call(stores)
    damage("turns", column, lambda _value: value)
    (turn,) = await stores.journal.turns(CONTEXT)
    if column in ("outcome", "stop_reason"):
        assert getattr(turn, column).value == "interrupted"
    await _assert_it_goes_on(stores)


async def test_facts_beside_a_message_may_be_damaged(place):
    """The message is there; only when its call began is lost."""
    stores, damage = place
    told = await _call(stores)
    damage("messages", "meta", lambda _meta: '{"ran": 5', 2)
    found = [e for e in await stores.journal.events(CONTEXT) if isinstance(e, MessageEnd)]
    assert [e.message for e in found] == told
    assert found[1].started is None
    await _assert_it_goes_on(stores)
