"""Clearing what is queued: gone before it is said, or said; never both, and nothing besides."""

from __future__ import annotations

import pytest
from tests.agent.kit import Gate, assert_whole, collect, types

from looopy import AuthContext, LoopConfig
from looopy.errors import AgentNotStarted, AgentStateError, CannotContinue, ValueRefused
from looopy.stores.records import Commit, EntryKind
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.event import TurnEnd

ADA = AuthContext("ada")


async def said(agent) -> list[str]:
    """What is in the history, as role and text."""
    return [f"{m.role}: {m.text}" for m in await agent.get_messages()]


async def test_each_queue_is_cleared_by_itself_or_both(make_agent, stores):
    """From any agent on the context; what is counted is gone."""
    agent = await make_agent([text("hi"), text("1")], stores=stores)
    aside = await make_agent(stores=stores)
    assert not await agent.has_queued_messages()
    await agent.execute_turn("hello")
    for number in range(2):
        await agent.steer(f"s{number}")
        await agent.follow_up(f"f{number}")
    assert await aside.has_queued_messages()
    assert await aside.clear_queue("steer") == 2
    assert await aside.clear_queue("steer") == 0
    assert await agent.has_queued_messages()
    assert await agent.clear_queue("follow_up") == 2
    assert not await aside.has_queued_messages()
    await agent.steer("s")
    await agent.follow_up("f")
    assert await agent.clear_queue() == 2
    with pytest.raises(CannotContinue):
        await agent.execute_turn(None)
    await agent.steer("this one")
    await agent.execute_turn(None)
    assert (await said(agent))[2:] == ["user: this one", "assistant: 1"]
    await assert_whole(stores)


async def test_an_actor_clears_only_their_own_messages(make_agent, stores):
    """Nobody takes back what another has said."""
    agent = await make_agent(stores=stores)
    await agent.steer("nobody's")
    await agent.steer("ada's", ADA)
    assert await agent.clear_queue(None, AuthContext("bob")) == 0
    assert not await agent.has_queued_messages(AuthContext("bob"))
    assert await agent.clear_queue(None, ADA) == 1
    assert await agent.has_queued_messages()
    assert not await agent.has_queued_messages(ADA)


async def test_messages_not_yet_taken_by_a_running_turn_are_cleared(make_agent, stores):
    """Though it has looked at it: a follow-up waits in it while the tool runs."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("one"), text("two")], tools=[gate.tool], stores=stores
    )
    aside = await make_agent(stores=stores)
    await agent.follow_up("too late")
    await agent.steer("first")
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    assert await aside.clear_queue() == 1
    await aside.follow_up("instead")
    gate.open.set()
    await stream
    assert await said(agent) == [
        "user: go",
        "user: first",
        "assistant: ",
        "toolResult: through",
        "assistant: one",
        "user: instead",
        "assistant: two",
    ]
    await assert_whole(stores)


async def test_a_message_cleared_before_its_commit_is_not_delivered(make_agent, stores):
    """The turn has taken two messages; one is withdrawn before they are stored."""
    spy = SpyStores(stores)
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("ok")],
        tools=[gate.tool],
        stores=spy.stores,
    )
    aside = await make_agent(stores=stores)
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await aside.steer("wait")
    cleared = []

    async def clear(name, commit) -> None:
        if isinstance(commit, Commit) and commit.delivered and not cleared:
            cleared.append(await aside.clear_queue("steer"))

    spy.hook = clear
    gate.open.set()
    events = await collect(stream)
    assert cleared == [1]
    assert (await said(agent))[2:] == ["toolResult: through", "assistant: ok"]
    assert "wait" not in str([m.text for m in agent._core.resources.provider.requests[-1].messages])
    assert types(events).count("turn_end") == 1
    assert [e.message.text for e in events if e.type == "message_start"][-1] == ""
    await assert_whole(stores)


async def test_a_turn_continued_for_a_cleared_message_ends_without_a_model_call(make_agent, stores):
    """Its answer stood before, and stands again."""
    spy = SpyStores(stores)
    provider = ScriptedProvider([text("one"), text("two")])
    agent = await make_agent(provider, stores=spy.stores)
    aside = await make_agent(stores=stores)

    async def meddle(name, commit) -> None:
        if not isinstance(commit, Commit):
            return
        if isinstance(commit.events[-1], TurnEnd) and not cleared:
            await aside.follow_up("and?")
        if commit.delivered:
            cleared.append(await aside.clear_queue("follow_up"))

    cleared = []
    spy.hook = meddle
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert cleared == [1]
    assert (result.text, result.stop_reason) == ("one", "stop")
    assert len(provider.requests) == 1
    assert [i.message.text for i in result.iterations] == ["one"]
    assert await said(agent) == ["user: go", "assistant: one"]
    assert types(events)[-1] == "turn_end"
    spy.hook = None
    assert (await agent.execute_turn("next")).text == "two"
    await assert_whole(stores)


async def test_a_message_queued_after_clearing_is_delivered(make_agent, stores):
    """`queue_mode="all"`: two were withdrawn at the commit that says them, and one came again."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [text("hi"), text("ok")], stores=spy.stores, loop_config=LoopConfig(queue_mode="all")
    )
    await agent.execute_turn("hello")
    await agent.steer("a")
    await agent.steer("b", ADA)
    await agent.steer("c", ADA)

    async def clear(name, commit) -> None:
        if isinstance(commit, Commit) and commit.delivered and not cleared:
            cleared.append(await stores.journal.withdraw("ada", actor_id="ada"))
            await stores.journal.post(
                "ada", EntryKind.STEER, commit.events[-1].message, actor_id="ada"
            )

    cleared = []
    spy.hook = clear
    await agent.execute_turn("go", ADA)
    assert cleared == [2]
    heard = [line for line in await said(agent) if line.startswith("user")]
    assert heard == ["user: hello", "user: go", "user: c"]
    await assert_whole(stores)


async def test_misuse_is_named(make_agent, stores):
    """Not started, or kept in memory alone."""
    agent = await make_agent(stores=stores, start=False)
    for ask in (agent.clear_queue, agent.has_queued_messages):
        with pytest.raises(AgentNotStarted):
            await ask()
    buffered = await make_agent(context_id="eve", stores=stores, auto_save=False)
    with pytest.raises(AgentStateError):
        await buffered.clear_queue()
    assert not await buffered.has_queued_messages()


async def test_clear_queue_refuses_another_kind(make_agent, stores):
    """A text that names neither queue removes nothing."""
    agent = await make_agent(stores=stores)
    await agent.steer("s")
    for kind in ("steering", "STEER", "", 0, []):
        with pytest.raises(ValueRefused, match="kind is 'steer', 'follow_up' or None"):
            await agent.clear_queue(kind)
    assert await agent.clear_queue() == 1
