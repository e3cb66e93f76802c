"""Forks and rewinds of an agent: branches of a conversation, and editing a question."""

from __future__ import annotations

import pytest

from looopy import Agent, LoopConfig, tool
from looopy.errors import AgentBusy, AgentNotStarted, AgentStateError, ContextNotFound, ValueRefused
from looopy.sync import Agent as BlockingAgent
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import AssistantMessage, UserMessage
from looopy.types.state import AgentStatus, Outcome
from looopy.types.summary import SUMMARY_ROLE


def echo(request):
    """The provider's answer: how many messages it saw, and the last question."""
    asked = [m.text for m in request.messages if isinstance(m, UserMessage)]
    return text(f"{len(request.messages)}: {asked[-1]}")


def texts(messages):
    return [m.text for m in messages if isinstance(m, UserMessage | AssistantMessage)]


def an_agent(context_id, stores, replies=echo, **options):
    provider = ScriptedProvider([replies], repeat=True)
    return Agent(context_id, llm_provider=provider, stores=stores, **options), provider


async def test_a_fork_continues_the_conversation(stores):
    """Its model sees the shared past; the parent's does not see what the fork adds."""
    agent, provider = an_agent("ada", stores)
    async with agent:
        await agent.execute_turn("one")
        await agent.execute_turn("two")
        state = await agent.fork("ada-2", at=2)
        assert (state.status, state.turn_count, state.usage.total_tokens) == ("ready", 1, 0)
        other, seen = an_agent("ada-2", stores)
        async with other:
            result = await other.execute_turn("other")
            assert (result.turn, result.text) == (2, "3: other")
            assert texts(await other.get_messages()) == ["one", "1: one", "other", "3: other"]
        assert texts(seen.requests[0].messages) == ["one", "1: one", "other"]
        await agent.execute_turn("three")
        assert texts(provider.requests[-1].messages) == ["one", "1: one", "two", "3: two", "three"]


async def test_a_question_is_edited_and_sent_again(stores):
    """The model sees the new one in the old one's place; the old one is listed and comes back."""
    agent, provider = an_agent("ada", stores)
    async with agent:
        for said in ("one", "two", "three"):
            await agent.execute_turn(said)
        event = await agent.rewind(2)
        assert event.covers == (3, 6)
        result = await agent.execute_turn("second")
        assert result.turn == 4
        assert texts(provider.requests[-1].messages) == ["one", "1: one", "second"]
        assert texts(await agent.get_messages()) == ["one", "1: one", "second", "3: second"]
        assert len(await agent.get_messages(include_hidden=True)) == 8
        await agent.fork("tail", at=6)
        again, seen = an_agent("tail", stores)
        async with again:
            await again.execute_turn("four")
        assert texts(seen.requests[0].messages) == [
            *("one", "1: one", "two", "3: two", "three", "5: three", "four")
        ]


async def test_a_rewind_is_undone(stores):
    """And the model sees what it saw before."""
    agent, provider = an_agent("ada", stores)
    async with agent:
        await agent.execute_turn("one")
        await agent.execute_turn("two")
        await agent.rewind(2)
        assert texts(await agent.get_messages()) == ["one", "1: one"]
        assert (await agent.undo_rewind()).undone
        await agent.execute_turn("three")
        assert texts(provider.requests[-1].messages) == ["one", "1: one", "two", "3: two", "three"]


async def test_an_agent_that_lives_elsewhere_learns_of_a_rewind(stores):
    """Its next turn is refused at first, and then begins with what is left."""
    agent, _ = an_agent("ada", stores)
    other, seen = an_agent("ada", stores)
    async with agent, other:
        await agent.execute_turn("one")
        await other.execute_turn("two")
        await agent.rewind(2)
        await other.execute_turn("three")
        assert texts(seen.requests[-1].messages) == ["one", "1: one", "three"]
        assert [m.position for m in await stores.messages.records("ada")] == [1, 2, 5, 6]


async def test_a_long_history_is_read_across_a_rewind(stores):
    """The hidden part is longer than what is read at once, and the model still sees all of it."""
    agent, _ = an_agent("ada", stores)
    async with agent:
        await agent.execute_turn("one")
        await stores.messages.append("ada", [UserMessage(f"a{n}") for n in range(400)])
        await agent.execute_turn("two")
        await stores.messages.append("ada", [UserMessage(f"b{n}") for n in range(700)])
        await agent.rewind(2)
        await stores.messages.append("ada", [UserMessage(f"c{n}") for n in range(300)])
        await agent.execute_turn("four")
    late, seen = an_agent("ada", stores, loop_config=LoopConfig(history_tokens=100_000))
    async with late:
        await late.execute_turn("five")
    assert texts(seen.requests[0].messages) == [
        *("one", "1: one", *(f"a{n}" for n in range(400)), *(f"c{n}" for n in range(300))),
        *("four", "703: four", "five"),
    ]


async def test_a_summary_of_before_serves_a_fork_and_a_rewound_context(stores):
    """Compaction covers the same part in all of them, and can be done again after a rewind."""
    agent, provider = an_agent("ada", stores)
    async with agent:
        for said in ("one", "two", "three"):
            await agent.execute_turn(said)
        await agent.compact()
        await agent.execute_turn("four")
        await agent.execute_turn("five")
        seen_before = provider.requests[-1].messages[:3]
        await agent.rewind(5)
        await agent.execute_turn("fifth")
        assert provider.requests[-1].messages[:3] == seen_before
        await agent.fork("ada-2")
        await agent.compact()
        kept = await agent.get_messages()
        assert [m.role for m in kept].count(SUMMARY_ROLE) == 2
    other, seen = an_agent("ada-2", stores)
    async with other:
        await other.execute_turn("six")
    assert seen.requests[0].messages[:3] == seen_before
    assert texts(seen.requests[0].messages)[-1] == "six"


async def test_a_fork_drops_pending_requests_and_can_request_them_again(stores):
    """The fork of a waiting context is ready; its call was not run, and is asked for again."""
    runs = []

    @tool(needs_approval=True)
    def pay(n: int) -> str:
        """Pay."""
        runs.append(n)
        return f"paid {n}"

    script = [tool_call("pay", n=3), text("done"), text("done")]
    agent = Agent("ada", llm_provider=ScriptedProvider(script), tools=[pay], stores=stores)
    async with agent:
        result = await agent.execute_turn("pay 3")
        assert result.outcome is Outcome.INPUT_REQUIRED
        state = await agent.fork("ada-2")
        assert (state.status, state.pending) == (AgentStatus.READY, ())
        provider = ScriptedProvider([text("done")])
        other = Agent("ada-2", llm_provider=provider, tools=[pay], stores=stores)
        async with other:
            asked = await other.execute_turn(None)
            assert asked.outcome is Outcome.INPUT_REQUIRED
            (request,) = asked.pending
            done = await other.execute_turn(None, inputs={request.request_id: True})
            assert done.outcome is Outcome.COMPLETED
        assert runs == [3]
        await agent.rewind(1)
        assert agent.state.status is AgentStatus.READY
        assert await agent.get_messages() == []


async def test_an_artifact_and_an_event_log_go_along(stores):
    """As they were at that place."""
    agent, _ = an_agent("ada", stores)
    async with agent:
        await agent.execute_turn("one")
        await stores.artifacts.save("ada", "a.txt", b"1")
        await agent.fork("ada-2")
        other, _ = an_agent("ada-2", stores)
        async with other:
            assert [a.artifact_id for a in await other.get_artifacts()] == ["a.txt"]
            await other.execute_turn("two")
        events = await stores.journal.events("ada-2")
        assert [e.seq for e in events] == list(range(1, 9))


async def test_misuse_is_refused_where_it_is_seen(memory_stores):
    """Not started, unknown, a bad place, a running turn, memory alone."""
    agent, _ = an_agent("ada", memory_stores)
    with pytest.raises(AgentNotStarted):
        await agent.fork("ada-2")
    async with agent:
        with pytest.raises(ContextNotFound):
            await agent.fork("ada-2")
        with pytest.raises(ContextNotFound):
            await agent.rewind(1)
        await agent.execute_turn("one")
        with pytest.raises(ValueRefused, match="within turn 1"):
            await agent.fork("ada-2", at=1)
        with pytest.raises(ValueRefused, match="no turn 2"):
            await agent.rewind(2)
        stream = agent.execute_turn("two")
        with pytest.raises(AgentBusy):
            await agent.rewind(1)
        await stream
    unsaved, _ = an_agent("b", memory_stores, auto_save=False)
    async with unsaved:
        for call in (unsaved.fork("c"), unsaved.rewind(1), unsaved.undo_rewind()):
            with pytest.raises(AgentStateError, match="auto_save"):
                await call


async def test_windows_step_on_in_a_fork_as_in_its_parent(stores):
    """A history that exceeds its window is cut in the same place in both."""
    config = LoopConfig(max_messages=8)
    agent, provider = an_agent("ada", stores, loop_config=config)
    async with agent:
        for n in range(9):
            await agent.execute_turn(f"question {n}")
        await agent.fork("ada-2")
        await agent.execute_turn("last")
    other, seen = an_agent("ada-2", stores, loop_config=config)
    async with other:
        await other.execute_turn("last")
    mine, theirs = provider.requests[-1].messages, seen.requests[-1].messages
    assert texts(mine) == texts(theirs)
    assert len(mine) < 19


def test_blocking_agents_fork_and_rewind(tmp_path):
    """By the same names."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    provider = ScriptedProvider([echo], repeat=True)
    with BlockingAgent("ada", llm_provider=provider, stores=url) as agent:
        agent.execute_turn("one")
        assert agent.fork("ada-2").turn_count == 1
        agent.rewind(1)
        agent.undo_rewind()
        assert texts(agent.get_messages()) == ["one", "1: one"]


async def test_a_summary_covers_only_visible_messages(stores):
    """Made after a rewind, asked for, undone, and in a fork: hidden messages are in none of it."""
    agent, provider = an_agent("ada", stores)
    async with agent:
        for said in ("one", "two", "three"):
            await agent.execute_turn(said)
        await agent.rewind(2)
        await agent.execute_turn("second")
        await agent.execute_turn("third")
        whole = texts(await agent.get_messages())
        event = await agent.compact()
        assert event.covers == (1, 8)
        assert texts(await agent.get_covered()) == whole[:4]
        assert texts(await agent.get_covered(after=1, limit=2)) == ["1: one", "second"]
        await agent.fork("ada-2")
        other, seen = an_agent("ada-2", stores)
        async with other:
            assert texts(await other.get_covered()) == whole[:4]
            await other.execute_turn("fourth")
        assert [m.role for m in seen.requests[0].messages] == ["user", "user", "assistant", "user"]
        assert await agent.undo_compact() is not None
        assert await agent.get_covered() == []
        await agent.execute_turn("fourth")
        assert texts(provider.requests[-1].messages) == [*whole, "fourth"]
        await agent.rewind(6)
        assert (await agent.compact()).covers == (1, 8)
        assert texts(await agent.get_covered()) == whole[:4]
