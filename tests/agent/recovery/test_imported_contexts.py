"""A conversation that was imported into another backend continues where it was."""

from __future__ import annotations

import pytest

from looopy import Agent, AuthContext, open_stores, tool
from looopy.stores import MemoryBackend, export_contexts, import_contexts
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.state import Outcome

WHO = AuthContext(actor_id="u1")


@pytest.fixture
async def sqlite(sqlite_file):
    """Where conversations begin."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        yield stores


@pytest.fixture
async def target(postgres):
    """Where they go."""
    async with open_stores(postgres) as stores:
        yield stores


async def test_a_pending_approval_is_asked_again_after_an_import(sqlite, target):
    """From SQLite to Postgres: the call runs once, with the arguments that were approved there."""
    paid = []

    @tool(needs_approval=True)
    async def pay(cents: int) -> str:
        """Pay somebody."""
        paid.append(cents)
        return f"paid {cents}"

    first = ScriptedProvider([text("hi"), tool_call("pay", cents=9)])
    async with Agent("ada", llm_provider=first, stores=sqlite, tools=[pay]) as agent:
        await agent.execute_turn("hello", auth_context=WHO)
        asked = await agent.execute_turn("pay", auth_context=WHO)
    assert asked.outcome is Outcome.INPUT_REQUIRED

    await import_contexts(target, export_contexts(sqlite, "ada"), owner="u1")

    second = ScriptedProvider([text("done"), text("bye")])
    async with Agent("ada", llm_provider=second, stores=target, tools=[pay]) as agent:
        assert (agent.state.pending, agent.state.interrupted_turn) == ((), 2)
        [request] = (await agent.execute_turn(None, WHO)).pending
        assert request.args == asked.pending[0].args
        answers = {request.request_id: True}
        result = await agent.execute_turn(None, inputs=answers, auth_context=WHO)
        assert (result.text, paid) == ("done", [9])
        assert (await agent.execute_turn("and now?", auth_context=WHO)).text == "bye"
        assert agent.state.turn_count == 5
    said = [m.text for m in second.requests[-1].messages if m.role == "user"]
    assert said == ["hello", "pay", "and now?"]


async def test_the_next_request_after_an_import_extends_the_last_one(sqlite):
    """Message for message, so a provider's cache still fits."""
    first = ScriptedProvider([text("one"), text("two")])
    async with Agent("ada", llm_provider=first, stores=sqlite) as agent:
        await agent.execute_turn("1")
        await agent.execute_turn("2")
    stores = MemoryBackend().stores()
    await import_contexts(stores, export_contexts(sqlite, "ada"), new_ids={"ada": "eve"})
    second = ScriptedProvider([text("three")])
    async with Agent("eve", llm_provider=second, stores=stores) as agent:
        events = [event async for event in agent.execute_turn("3")]
    before, after = first.requests[-1].messages, second.requests[-1].messages
    assert list(after[: len(before)]) == list(before)
    assert [event.code for event in events if event.type == "warning"] == []
