"""A warning names the cause when a request does not extend the one before it."""

from __future__ import annotations

import itertools

import pytest
from tests.agent.kit import add, look

from looopy import Hooks, LoopConfig, tool
from looopy.errors import HistoryRejected
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.event import TurnWarning


@pytest.fixture
def opened(memory_stores, make_agent):
    """Makes agents of one context, each of which collects its warnings of this kind."""

    async def opened(replies=None, *, name="scripted", **options):
        model = ScriptedProvider(replies or [text("No.")], repeat=True)
        model.model = name
        agent = await make_agent(model, stores=memory_stores, **options)
        agent.causes, agent.sent = [], model.requests

        def hear(event):
            if isinstance(event, TurnWarning) and event.code == "cache_broken":
                agent.causes.append(event.text.rpartition(": ")[2])

        agent.subscribe(hear)
        return agent

    return opened


async def test_a_conversation_that_only_grows_breaks_no_cache(opened):
    """With calls, over turns, in one agent and the next."""
    replies = [tool_call("look"), text("Seen."), text("Yes.")]
    for _ in range(3):
        agent = await opened(replies, tools=[look, add], system_prompt="Be brief.")
        await agent.execute_turn("a?")
        await agent.execute_turn("b?")
        assert agent.causes == []


@pytest.mark.parametrize("anew", [True, False])
async def test_changed_tools_prompt_and_model_are_named(opened, anew):
    """Also to an agent that did not send the last request, and only once."""
    first = await opened(tools=[look], system_prompt="Be brief.")
    await first.execute_turn("a?")
    agent = await opened(tools=[look, add], system_prompt=lambda _turn: prompt)
    prompt = "Be brief."
    await agent.execute_turn("b?")
    assert agent.causes == ["the tools"]
    if anew:
        agent = await opened(tools=[look, add], system_prompt=lambda _turn: prompt)
    agent.causes.clear()
    prompt = "Be long."
    await agent.execute_turn("c?")
    await agent.execute_turn("d?")
    assert agent.causes == ["the prompt"]
    await first.execute_turn("e?")
    assert first.causes == ["the tools, the prompt"]


async def test_an_equal_new_tool_does_not_break_the_cache(opened):
    """The bytes count, not the object."""

    def made():
        @tool(name="look", effects="none")
        def look() -> str:
            """Look, and change nothing."""
            return "seen"

        return look

    for _ in range(2):
        agent = await opened(tools=[made()])
        await agent.execute_turn("a?")
        assert agent.causes == []


async def test_another_model_has_another_cache(opened):
    """And knows nothing of what the first one was sent."""
    agent = await opened()
    await agent.execute_turn("a?")
    other = await opened(name="other")
    await other.execute_turn("b?")
    assert other.causes == ["the model"]


@pytest.mark.parametrize("hooks", [Hooks(), Hooks(transform_context=lambda messages: messages)])
async def test_a_window_that_moves_is_named(opened, hooks):
    """Once for each move, in whatever process it happens."""
    config = LoopConfig(max_messages=8, history_tokens=None, hooks=hooks)
    live = await opened(loop_config=config)
    shown = []
    for n in range(20):
        await live.execute_turn(f"{n}?")
        shown.append(live.sent[-1].messages[0].text)
    moves = len(set(shown)) - 1
    assert moves > 3
    assert live.causes == ["the window"] * moves
    first = shown[-1]
    for n in range(12):
        agent = await opened(loop_config=config)
        await agent.execute_turn(f"{n}?")
        head = agent.sent[-1].messages[0].text
        assert agent.causes == (["the window"] if head != first else [])
        first = head


@pytest.mark.parametrize("anew", [True, False])
async def test_a_rewind_and_a_fork_are_named_where_the_window_goes_back(opened, anew):
    """Where it stays, the messages before that place are repeated: no cache is lost."""
    config = LoopConfig(max_messages=8, history_tokens=None)
    agent = await opened(loop_config=config)
    for n in range(12):
        await agent.execute_turn(f"{n}?")
    await agent.fork("early", at=8)
    agent.causes.clear()
    before = agent.sent[-1].messages[0].text
    await agent.rewind(to=12)
    agent = await opened(loop_config=config) if anew else agent
    await agent.execute_turn("12!")
    assert (agent.sent[-1].messages[0].text, agent.causes) == (before, [])
    await agent.rewind(to=4)
    agent = await opened(loop_config=config) if anew else agent
    await agent.execute_turn("4!")
    assert agent.sent[-1].messages[0].text != before
    assert agent.causes == ["the rewind"]
    fork = await opened(loop_config=config, context_id="early")
    await fork.execute_turn("4.")
    assert fork.causes == ["the fork"]


async def test_a_turn_longer_than_the_window_moves_it_too(opened):
    """Its question stays, and its oldest calls go."""
    config = LoopConfig(max_messages=6, history_tokens=None, max_iterations=12)
    replies = [*(tool_call("add", a=n, b=n) for n in range(9)), text("done")]
    agent = await opened(replies, tools=[add], loop_config=config)
    await agent.execute_turn("a?")
    requests = agent.sent
    pairs = itertools.pairwise(requests)
    broken = sum(list(b.messages[: len(a.messages)]) != list(a.messages) for a, b in pairs)
    assert broken > 2
    assert agent.causes == ["the window"] * broken


async def test_a_summary_is_named(opened):
    """Once, by whoever sends it first."""
    agent = await opened([text("A"), text("B"), text("sum"), text("C")])
    await agent.execute_turn("a?")
    await agent.execute_turn("b?")
    await agent.compact()
    other = await opened()
    await other.execute_turn("c?")
    await other.execute_turn("d?")
    assert other.causes == ["the summary"]


async def test_a_cleared_history_does_not_break_the_cache(opened):
    """Who clears knows it."""
    agent = await opened(system_prompt="x")
    await agent.execute_turn("a?")
    await agent.clear()
    await agent.execute_turn("b?")
    other = await opened(system_prompt="x")
    await other.clear()
    await agent.start()
    await agent.execute_turn("c?")
    assert agent.causes == []


async def test_a_retry_without_thoughts_causes_no_warning(opened):
    """The request was refused, so it has no cache; the next one extends the one before."""
    refused = failure(HistoryRejected("no"))
    agent = await opened([text("A"), text("B"), text("sum"), text("C"), refused, text("D")])
    await agent.execute_turn("a?")
    await agent.execute_turn("b?")
    await agent.compact()
    await agent.execute_turn("c?")
    agent.causes.clear()
    await agent.execute_turn("d?")
    await agent.execute_turn("e?")
    assert agent.causes == []
