"""What a turn costs does not grow with the history."""

from __future__ import annotations

import sqlite3

import pytest
from tests.agent.kit import add
from tests.shares import split

from looopy import LoopConfig, UserMessage, tool
from looopy.agent.context import ContextView
from looopy.errors import LLMError
from looopy.history.window import visible
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.contracts.turns import answer
from looopy.testing.faults import SpyStores


async def fill(stores, exchanges):
    """A history of so many exchanges, 60 characters each."""
    for begin in range(0, exchanges, 500):
        batch = []
        for n in range(begin, min(begin + 500, exchanges)):
            batch += [UserMessage(f"question {n} " + "x" * 20), answer(f"answer {n} " + "y" * 20)]
        await stores.messages.append("ada", batch)


async def test_opening_a_long_context_reads_a_bounded_window(make_agent, stores):
    """Of 10,000 messages, what the model may be shown is read, and not the rest."""
    await fill(stores, 5_000)
    spy = SpyStores(stores)
    provider = ScriptedProvider([text("ok")])
    agent = await make_agent(
        provider, stores=spy.stores, loop_config=LoopConfig(max_messages=50, history_tokens=None)
    )
    await agent.execute_turn("now?")
    assert spy.of("records", "list") == []
    assert [options["limit"] for _, options in spy.of("recent")] == [50 + 32]
    assert len(provider.requests[0].messages) <= 50
    assert provider.requests[0].messages[-1].text == "now?"
    assert agent.state.turn_count == 1


async def test_the_window_grows_while_the_model_could_see_more(make_agent, stores):
    """By doubling, up to what fits; and no message is read twice."""
    await fill(stores, 1_000)
    spy = SpyStores(stores)
    provider = ScriptedProvider([text("ok")])
    agent = await make_agent(
        provider,
        stores=spy.stores,
        loop_config=LoopConfig(max_messages=600, history_tokens=None),
    )
    assert [options["limit"] for _, options in spy.of("recent")] == [256]
    pages = [(options["after"], options["limit"]) for _, options in spy.of("records")]
    assert pages == [(2000 - 512, 256), (2000 - 1024, 512)]
    await agent.execute_turn("now?")
    shown = provider.requests[0].messages
    assert 400 < len(shown) <= 600
    assert shown[:-1] == (await stores.messages.list("ada"))[-len(shown) - 1 : -2]


@pytest.mark.parametrize("exchanges", split([0, 128, 300], [1, 127, 129]))
@pytest.mark.parametrize("hidden", split([0, 50], [1]))
@pytest.mark.parametrize("most", [3, 300, 10_000, None])
async def test_every_message_within_the_window_is_read(
    make_agent, memory_stores, exchanges, hidden, most
):
    """However many there are, and wherever the visible part of them begins."""
    await fill(memory_stores, hidden)
    if hidden:
        await memory_stores.journal.clear("ada")
    await fill(memory_stores, exchanges)
    provider = ScriptedProvider([text("ok")])
    config = LoopConfig(max_messages=most, history_tokens=None)
    agent = await make_agent(provider, stores=memory_stores, loop_config=config)
    await agent.execute_turn("now?")
    said = [m.text for m in await memory_stores.messages.list("ada")][:-1]
    shown = [m.text for m in provider.requests[0].messages]
    assert shown == said[-len(shown) :]
    assert len(shown) >= min(len(said), 10_000 if most is None else most * 3 // 4)


async def test_a_whole_history_is_read_at_once(make_agent, stores):
    """Where the model sees all of it, in one question."""
    await fill(stores, 600)
    spy = SpyStores(stores)
    provider = ScriptedProvider([text("ok")])
    whole = LoopConfig(history_tokens=None)
    agent = await make_agent(provider, stores=spy.stores, loop_config=whole)
    assert (len(spy.of("recent")), len(spy.of("records"))) == (0, 1)
    await agent.execute_turn("now?")
    assert len(provider.requests[0].messages) == 1_201


async def test_a_history_cleared_while_it_is_read_is_not_mixed(memory_stores):
    """What was said since does not come before what was read already."""
    await fill(memory_stores, 600)
    before = await memory_stores.messages.list("ada")
    spy = SpyStores(memory_stores)

    async def clear_and_go_on(name, _):
        if name == "records":
            spy.hook = None
            await memory_stores.journal.clear("ada")
            await fill(memory_stores, 3)

    spy.hook = clear_and_go_on
    known = ContextView(spy.stores, "ada", LoopConfig(max_messages=600, history_tokens=None))
    await known.refresh({})
    assert known.history == before[-256:]
    await known.refresh({})
    assert known.history == await memory_stores.messages.list("ada")
    assert len(known.history) == 6


async def test_a_late_turn_writes_no_more_than_an_early_one(make_agent, sqlite_file):
    """The rows of turn 60 are as large as those of turn 10."""
    provider = ScriptedProvider(
        [reply for _ in range(64) for reply in (tool_call("add", a=1, b=2), text("3"))]
    )
    agent = await make_agent(provider, tools=[add], stores=f"sqlite:///{sqlite_file}")
    for _ in range(64):
        await agent.execute_turn("1 + 2?")
    await agent.shutdown()
    database = sqlite3.connect(sqlite_file)
    tables = [
        name
        for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        )
        if {"turn", "context_id"} <= {r[1] for r in database.execute(f"PRAGMA table_info({name})")}
    ]
    assert len(tables) >= 3

    def size(turn):
        total = 0
        for table in tables:
            for row in database.execute(f"SELECT * FROM {table} WHERE turn = ?", (turn,)):
                total += sum(len(v) for v in row if isinstance(v, str | bytes))
        return total

    early, late = size(10), size(60)
    context = database.execute("SELECT * FROM looopy_contexts").fetchone()
    database.close()
    assert early > 200
    assert late <= early * 1.1
    assert sum(len(v) for v in context if isinstance(v, str | bytes)) < 2_000


@pytest.mark.parametrize("limits", split([{"history_tokens": 500}], [{"max_messages": 16}, {}]))
async def test_a_long_lived_agent_keeps_only_messages_within_the_window(
    make_agent, memory_stores, limits
):
    """However many turns: each request is what it would be with the whole history in memory."""
    config = LoopConfig(**{"history_tokens": None, **limits})
    provider = ScriptedProvider([text("yes")], repeat=True)
    agent = await make_agent(provider, stores=memory_stores, loop_config=config)
    for n in range(560):
        await agent.execute_turn(f"turn {n}")
    everything = await agent.get_messages()
    for turn in range(560):
        shown = visible(everything[: 2 * turn + 1], config)
        assert list(provider.requests[turn].messages) == shown
    kept = len(agent._core.known.history)
    assert kept <= 4 * 256 if limits else kept == 1120


async def test_the_history_is_cut_to_the_window_of_the_model(make_agent, memory_stores):
    """A provider that knows its window is sent what fits, now and after a restart."""
    provider = ScriptedProvider([text("x" * 400)], repeat=True)
    provider.window_tokens = 1000
    agent = await make_agent(provider, stores=memory_stores)
    for _ in range(10):
        await agent.execute_turn("y" * 400)
    sent = sum(len(message.text) for message in provider.requests[-1].messages)
    assert 1000 < sent < 3000
    provider.window_tokens = 100_000
    await fill(memory_stores, 800)
    again = await make_agent(provider, stores=memory_stores)
    await again.execute_turn("and now?")
    assert sum(len(message.text) for message in provider.requests[-1].messages) > 50_000


async def test_the_question_of_a_long_turn_is_read_again(make_agent, memory_stores):
    """However many messages a turn has added, what the user asked is shown after a restart."""
    calls = [tool_call("look", n=n) for n in range(140)]
    config = LoopConfig(max_messages=20, max_iterations=200, max_tool_calls=200)

    @tool(effects="none")
    def look(n: int) -> str:
        """Look."""
        return str(n)

    options = {"stores": memory_stores, "tools": [look], "loop_config": config}
    agent = await make_agent([*calls, failure(LLMError("no"))], **options)
    await agent.execute_turn("the question")
    provider = ScriptedProvider([text("the answer")])
    again = await make_agent(provider, **options)
    await again.execute_turn(None)
    assert provider.requests[0].messages[0].text == "the question"
