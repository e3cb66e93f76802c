"""A compaction can be undone, looked into, and changed by a hook; its usage counts."""

from __future__ import annotations

import pytest
from tests.agent.history.test_compaction import FAST, shown, talk, too_long
from tests.agent.kit import Gate, collect

from looopy import Compaction, Hooks, LoopConfig
from looopy.errors import AgentBusy, AgentStateError, StoreConflict, ValueRefused
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.event import TurnWarning
from looopy.types.message import AssistantMessage, UserMessage
from looopy.types.summary import is_summary


def said(messages):
    """The texts of all messages but the summaries."""
    return [m.text for m in messages if not is_summary(m)]


async def test_undoing_shows_the_summarised_messages_again(stores, make_agent):
    """In this process, in one that had read the summary, and in the next one."""
    model = ScriptedProvider([text("A"), text("B"), text("sum"), text("C"), text("D"), text("E")])
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    other = await make_agent(model, stores=stores)  # it has read the newest turn alone
    event = await agent.undo_compact()
    assert (event.undoes, event.position, event.covers) == (5, 6, (1, 0))
    assert event in await stores.journal.events("ada")
    await talk(agent, "c?")
    assert shown(model.requests[3]) == ["a?", "A", "b?", "B", "c?"]
    await talk(other, "d?")
    assert shown(model.requests[4])[:5] == ["a?", "A", "b?", "B", "c?"]
    await talk(await make_agent(model, stores=stores), "e?")
    assert shown(model.requests[5])[:5] == ["a?", "A", "b?", "B", "c?"]
    assert await agent.undo_compact() is None


async def test_each_undoing_goes_one_summary_further_back(stores, make_agent):
    """Also where summaries follow on undone ones."""
    replies = [text("A"), text("B"), text("first"), text("C"), text("second"), text("D")]
    model = ScriptedProvider([*replies, text("third"), text("E"), text("F"), text("G"), text("H")])
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    await talk(agent, "c?")
    await agent.compact()
    assert (await agent.undo_compact()).covers == (1, 2)
    await talk(agent, "d?")
    head, *rest = shown(model.requests[5])
    assert "first" in head
    assert rest == ["b?", "B", "c?", "C", "d?"]
    await agent.compact()
    await talk(agent, "e?")
    assert "third" in shown(model.requests[7])[0]
    await agent.undo_compact()
    await talk(await make_agent(model, stores=stores), "f?")
    head, *rest = shown(model.requests[8])
    assert "first" in head
    assert rest == ["b?", "B", "c?", "C", "d?", "D", "e?", "E", "f?"]
    await agent.undo_compact()
    await talk(agent, "g?")
    assert shown(model.requests[9])[:4] == ["a?", "A", "b?", "B"]
    assert await agent.undo_compact() is None


async def test_far_back_messages_are_shown_again(stores, make_agent):
    """Though neither the undone summary nor the one before it is among the newest messages."""
    model = ScriptedProvider([text("first"), text("second"), text("C"), text("D")])
    many = [m for n in range(300) for m in (UserMessage(f"q{n}"), AssistantMessage(f"a{n}"))]
    await stores.messages.append("ada", many)
    config = LoopConfig(retry=FAST, history_tokens=1_000_000)
    agent = await make_agent(model, stores=stores, loop_config=config)
    await agent.compact(keep_turns=290)
    agent = await make_agent(model, stores=stores, loop_config=config)
    await agent.compact()
    agent = await make_agent(model, stores=stores, loop_config=config)
    assert len(agent._core.known.history) < 300
    await agent.undo_compact()
    await talk(agent, "c?")
    head, *rest = shown(model.requests[2])
    assert "first" in head
    assert rest == [*said(many[20:]), "c?"]
    await agent.undo_compact()
    await talk(agent, "d?")
    assert shown(model.requests[3])[:600] == said(many)


async def test_turns_and_clearing_meanwhile(stores, make_agent):
    """A running turn refuses it; after clearing there is nothing to undo."""
    gate = Gate()
    model = ScriptedProvider([text("A"), text("B"), text("sum"), tool_call("gate"), text("C")])
    agent = await make_agent(model, stores=stores, tools=[gate.tool])
    other = await make_agent([], stores=stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    turn = agent.execute_turn("c?")
    await gate.entered.wait()
    for one in (agent, other):
        with pytest.raises(AgentBusy):
            await one.undo_compact()
    gate.open.set()
    await turn
    await agent.clear()
    assert await agent.undo_compact() is None
    assert await agent.get_covered() == []


async def test_two_that_undo_at_once_undo_one_summary(stores, make_agent):
    """The second learns that another summary counts by now."""
    model = ScriptedProvider([text("A"), text("B"), text("sum")])
    agent = await make_agent(model, stores=stores)
    other = await make_agent([], stores=stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    await other.start()
    compact = other._core.known.stores.journal.compact

    async def late(*args):
        other._core.known.stores.journal.__dict__.pop("compact", None)
        await agent.undo_compact()
        return await compact(*args)

    other._core.known.stores.journal.compact = late
    try:
        with pytest.raises(StoreConflict):
            await other.undo_compact()
    finally:
        other._core.known.stores.journal.__dict__.pop("compact", None)
    assert await other.undo_compact() is None


async def test_the_summarised_messages_can_be_read(stores, make_agent):
    """All that is shown through it alone: the summary that counts, or any other."""
    model = ScriptedProvider([text("A"), text("B"), text("sum"), text("C"), text("sum2")])
    agent = await make_agent(model, stores=stores)
    assert await agent.get_covered() == []
    await talk(agent, "a?", "b?")
    await agent.compact()
    assert said(await agent.get_covered()) == ["a?", "A"]
    await talk(agent, "c?")
    await agent.compact()
    other = await make_agent([], stores=stores)
    assert said(await other.get_covered()) == ["a?", "A", "b?", "B"]
    assert said(await other.get_covered(5)) == ["a?", "A"]
    assert said(await other.get_covered(after=1, limit=2)) == ["A", "b?"]
    assert await other.get_covered(5, after=2) == []
    await agent.undo_compact()
    assert said(await other.get_covered()) == ["a?", "A"]
    for position in (0, -1, 1, 99):
        with pytest.raises(ValueRefused) as refused:
            await other.get_covered(position)
        assert refused.value.path == "/position"


async def test_the_usage_of_a_summary_counts(stores, make_agent):
    """In the state of the context, in any process."""
    model = ScriptedProvider([text("A"), text("B"), text("sum")])
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    before = agent.state.usage
    await agent.compact()
    spent = agent.state.usage.total_tokens - before.total_tokens
    assert spent > 0
    again = await make_agent([], stores=stores)
    assert again.state.usage == agent.state.usage
    await agent.undo_compact()
    assert agent.state.usage == again.state.usage


async def test_a_turn_between_two_reads_moves_no_cut(stores, make_agent):
    """The history is newer than the record then; the summary covers what it speaks for."""
    model = ScriptedProvider([text("A"), text("B"), text("sum"), text("D")])
    agent = await make_agent(model, stores=stores)
    other = await make_agent([text("C")], stores=stores)
    await talk(agent, "a?", "b?")
    state = agent._core.known.stores.state
    load = state.load

    async def late(context_id):
        state.__dict__.pop("load", None)
        found = await load(context_id)
        await talk(other, "c?")
        return found

    state.load = late
    assert (await agent.compact()).covers == (1, 4)
    await talk(agent, "d?")
    assert shown(model.requests[-1])[1:] == ["c?", "C", "d?"]


@pytest.mark.parametrize("inside", [True, False])
async def test_a_hook_gets_the_summarised_messages_and_may_change_the_text(
    memory_stores, make_agent, inside
):
    """Between two turns and in one; its text is stored, and shown to the model."""
    seen = []

    async def on_compact(messages, summary):
        seen.append(([m.text for m in messages], summary))
        return f"{summary} And the door is green."

    replies = [text("A"), text("B"), *([too_long()] if inside else []), text("sum"), text("C")]
    model = ScriptedProvider(replies)
    config = LoopConfig(retry=FAST, hooks=Hooks(on_compact=on_compact))
    agent = await make_agent(model, stores=memory_stores, loop_config=config)
    await talk(agent, "a?", "b?")
    if not inside:
        await agent.compact()
    await talk(agent, "c?")
    (one,) = seen
    assert one == (["a?", "A", "b?", "B"] if inside else ["a?", "A"], "sum")
    assert shown(model.requests[-1])[0].endswith("sum And the door is green.")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("value", [None, "", 7, ValueError("no")])
async def test_a_hook_that_returns_no_text_keeps_the_summary(
    memory_stores, make_agent, inside, value
):
    """If it raises, the summary is stored all the same, and a turn warns."""

    def on_compact(_messages, _summary):
        if isinstance(value, Exception):
            raise value
        return value

    replies = [text("A"), text("B"), *([too_long()] if inside else []), text("sum"), text("C")]
    config = LoopConfig(retry=FAST, hooks=Hooks(on_compact=on_compact))
    agent = await make_agent(replies, stores=memory_stores, loop_config=config)
    await talk(agent, "a?", "b?")
    if not inside:
        assert isinstance(await agent.compact(), Compaction)
    events = await collect(agent.execute_turn("c?"))
    codes = {e.code for e in events if isinstance(e, TurnWarning)} - {"cache_broken"}
    assert codes == ({"hook_failed"} if inside and isinstance(value, Exception) else set())
    (summary,) = [m for m in await agent.get_messages() if is_summary(m)]
    assert summary.text == "sum"


async def test_undoing_is_refused_without_saving(make_agent):
    """As nothing is summarised."""
    agent = await make_agent([], auto_save=False)
    with pytest.raises(AgentStateError, match="auto_save"):
        await agent.undo_compact()
