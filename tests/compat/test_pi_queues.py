"""pi's queues, where a run or an agent is about to end."""

import asyncio

import pytest
from tests.compat.kit import FAST, Gate, heard

from looopy import AuthContext, open_stores
from looopy.compat import pi
from looopy.errors import StoreUnavailable
from looopy.testing import ScriptedProvider, text, tool_call


@pytest.fixture
async def make(tmp_path):
    """Make agents of one context on SQLite; none is left open."""
    made = []
    async with open_stores(f"sqlite:///{tmp_path / 'pi.db'}") as stores:

        def agent(*replies, **options):
            options = {"stores": stores, "context_id": "ada", "loop_config": FAST, **options}
            made.append(pi.Agent(ScriptedProvider(replies), **options))
            return made[-1]

        yield agent
        for agent in made:
            agent.abort()
            await agent.close()


def spoken(agent):
    """What was said, in its order."""
    return [message.text for message in agent.state.messages]


def at(agent, kind, act):
    """Do *act* at the first event of that kind that is about an answer."""

    def listener(event):
        message = getattr(event, "message", None)
        if event.type == kind and (message is None or message.role == "assistant"):
            leave()
            act()

    leave = agent.subscribe(listener)


async def test_the_last_queued_message_outlives_the_agent(make, monkeypatch):
    """Nobody has awaited that it is stored, and the agent is closed at once."""
    async with make(text("a")) as first:
        await first.prompt("hi")
        steer = first.looopy.steer

        async def slowly(*args, **options):
            for _ in range(100):  # closing takes fewer steps of the event loop
                await asyncio.sleep(0)
            return await steer(*args, **options)

        monkeypatch.setattr(first.looopy, "steer", slowly)
        first.follow_up("later")
        first.steer("now")
    second = make()
    await second.load()
    assert await second.looopy.has_queued_messages()
    _, entries = await second.looopy._core.resources.stores.journal.inbox("ada")
    assert [entry.message.text for entry in entries] == ["later", "now"]


async def test_closing_raises_for_unstored_messages(make, monkeypatch):
    """And lets go of the stores all the same."""
    agent = make(text("a"))
    await agent.prompt("hi")

    async def post(*_args, **_options):
        raise StoreUnavailable("gone")

    with monkeypatch.context() as broken:
        broken.setattr(agent.looopy, "steer", post)
        agent.steer("now")
        with pytest.raises(StoreUnavailable):
            await agent.close()
    assert agent.looopy.state.status == "shutdown"
    assert agent.has_queued_messages()
    await agent.close()
    other = make()
    await other.load()
    assert await other.looopy.has_queued_messages()


async def test_continue_delivers_messages_queued_by_another_process(make):
    """Steering first, then follow-ups, one by one."""
    async with make(text("a")) as first:
        await first.prompt("hi")
        await first.follow_up("later")
        await first.steer("now")
    second = make(text("b"), text("c"))
    await second.continue_()
    assert spoken(second) == ["hi", "a", "now", "b", "later", "c"]
    with pytest.raises(pi.NothingToContinue, match="assistant message"):
        await second.continue_()


@pytest.mark.parametrize("kind", ["message_start", "message_update", "message_end", "turn_end"])
async def test_a_message_queued_by_a_listener_at_the_end_joins_the_run(make, kind):
    """Steering before follow-ups; it stays one run, which tells all that was said."""
    agent = make(text("a"), text("b"), text("c"))
    events = heard(agent)
    at(agent, kind, lambda: (agent.follow_up("later"), agent.steer("now")))
    await agent.prompt([pi.UserMessage("ho"), pi.UserMessage("hi")])
    assert spoken(agent) == ["ho", "hi", "a", "now", "b", "later", "c"]
    kinds = [event.type for event in events]
    assert (kinds.count("agent_start"), kinds.count("agent_end")) == (1, 1)
    assert [m.text for m in events[-1].messages] == spoken(agent)
    assert not agent.has_queued_messages()
    assert not agent.is_streaming
    assert spoken(agent) == [m.text for m in await agent.looopy.get_messages()]


async def test_a_message_queued_during_an_answer_is_stored_before_it(make):
    """So the turn beneath goes on with it, and no second one is needed."""
    agent = make(text("a"), text("b"))
    at(agent, "message_update", lambda: agent.follow_up("later"))
    await agent.prompt("hi")
    assert spoken(agent) == ["hi", "a", "later", "b"]
    assert agent.looopy.state.turn_count == 1


async def test_a_message_queued_during_a_tool_is_stored_before_its_result(make):
    """Both are, so steering comes first though it was queued last."""
    gate = Gate()
    agent = make(tool_call("gate"), text("b"), text("c"), tools=[gate])
    run = asyncio.create_task(agent.prompt("hi"))
    await gate.entered.wait()
    agent.follow_up("later")
    agent.steer("now")
    gate.open.set()
    await run
    assert spoken(agent)[2:] == ["gate through", "now", "b", "later", "c"]


async def test_a_message_queued_after_the_run_waits_for_the_next(make):
    """As in pi: at `agent_end` nothing is asked for any more."""
    agent = make(text("a"), text("b"))
    at(agent, "agent_end", lambda: agent.steer("now"))
    await agent.prompt("hi")
    assert spoken(agent) == ["hi", "a"]
    await agent.continue_()
    assert spoken(agent) == ["hi", "a", "now", "b"]


@pytest.mark.parametrize("then", ["abort", "clear_all_queues"])
async def test_a_run_ends_once_when_aborted_or_finished(make, then):
    """Once; what an abort leaves stays queued."""
    agent = make(text("a"), text("b"))
    events = heard(agent)
    at(agent, "message_end", lambda: agent.steer("now"))
    at(agent, "turn_end", getattr(agent, then))
    await agent.prompt("hi")
    assert [event.type for event in events].count("agent_end") == 1
    assert spoken(agent) == ["hi", "a"]
    assert agent.has_queued_messages() == (then == "abort")


async def test_the_turn_end_of_our_own_agent_is_not_held(make):
    """Nobody would say it: what is queued here waits for the next run."""
    agent = make(text("a"))
    await agent.load()
    events = heard(agent)
    at(agent, "message_end", lambda: agent.steer("now"))
    await agent.looopy.execute_turn("hi")
    assert events[-1].type == "agent_end"


async def test_a_store_error_at_the_end_keeps_the_answer(make):
    """The context is another actor's: the run ends well, and the message stays queued."""
    agent = make(text("a"), text("b"))
    events = heard(agent)
    at(agent, "turn_end", lambda: agent.steer("now", AuthContext("ben")))
    await agent.prompt("hi", auth_context=AuthContext("ada"))
    assert spoken(agent) == ["hi", "a"]
    assert (events[-1].type, agent.state.error) == ("agent_end", None)
    assert agent.has_queued_messages()
    agent.clear_all_queues()
