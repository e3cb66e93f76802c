"""Start, pause, resume, shut down: in every status, at once, and beside the table."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.agent.kit import Gate, assert_whole

from looopy import Agent, AuthContext, LoopConfig, RetryPolicy, open_stores
from looopy.agent.lifecycle import TRANSITIONS
from looopy.errors import AgentNotStarted, AgentStateError, LLMError, StoreUnavailable
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.state import AgentStatus, Outcome

S = AgentStatus


async def test_starting_twice_is_starting_once(make_agent, stores):
    """The second start reads nothing."""
    spy = SpyStores(stores)
    agent = await make_agent([], stores=spy.stores)
    reads = len(spy.calls)
    await agent.start()
    assert len(spy.calls) == reads
    assert agent.state.status is S.READY


async def test_starting_does_not_write(make_agent, stores):
    """A second agent for a context cannot wipe what the first one knows."""
    first = await make_agent([text("hi")], stores=stores)
    await first.execute_turn("hello")
    before = await stores.state.load("ada")
    await make_agent([], stores=stores)
    assert await stores.state.load("ada") == before


async def test_shutting_down_is_not_the_end(make_agent, store_url):
    """The same object starts again, on what is in the store."""
    agent = await make_agent([text("1"), text("2")], stores=store_url)
    await agent.execute_turn("a")
    await agent.shutdown()
    await agent.shutdown()
    assert agent.state.status is S.SHUTDOWN
    await agent.start()
    assert agent.state.turn_count == 1
    assert (await agent.execute_turn("b")).text == "2"
    assert len(await agent.get_messages()) == 4


async def test_pause_keeps_everything_and_resume_reads_no_history(make_agent, stores):
    """Nothing is loaded again; a look at the context's record is enough."""
    spy = SpyStores(stores)
    agent = await make_agent([text("1"), text("2")], stores=spy.stores)
    await agent.execute_turn("a")
    await agent.pause()
    await agent.pause()
    assert agent.state.status is S.PAUSED
    assert agent.state.turn_count == 1
    spy.calls.clear()
    await agent.resume()
    await agent.resume()
    assert agent.state.status is S.READY
    read = [m for name, m in spy.calls if name == "recent"]
    assert read == []
    assert (await agent.execute_turn("b")).text == "2"


async def test_start_on_a_paused_agent_resumes_it(make_agent, memory_stores):
    """The way back from everywhere."""
    agent = await make_agent([text("1")], stores=memory_stores)
    await agent.pause()
    await agent.start()
    assert agent.state.status is S.READY
    await agent.execute_turn("a")


async def test_resume_reads_the_turns_of_another_agent(make_agent, stores):
    """A paused agent that was overtaken knows it when it is back."""
    one = await make_agent([text("1"), text("3")], stores=stores)
    two = await make_agent([text("2")], stores=stores)
    await one.execute_turn("a")
    await one.pause()
    await two.execute_turn("b")
    await one.resume()
    assert one.state.turn_count == 2
    assert one._core.resources.provider.remaining == 1
    await one.execute_turn("c")
    requests = one._core.resources.provider.requests
    assert [m.text for m in requests[1].messages] == ["a", "1", "b", "2", "c"]


@pytest.mark.parametrize("action", ["pause", "shutdown"])
async def test_pause_and_shutdown_wait_for_the_turn(make_agent, stores, action):
    """They return only when the turn is closed, and its end does not undo them."""
    gate = Gate()
    agent = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores)
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    leaving = asyncio.create_task(getattr(agent, action)())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not leaving.done()
    assert agent.state.status is S.BUSY
    gate.open.set()
    await leaving
    assert (await stream).outcome is Outcome.COMPLETED
    assert agent.state.status in (S.PAUSED, S.SHUTDOWN)
    await assert_whole(stores)


async def test_ten_calls_of_start_and_shutdown_at_once(make_agent, store_url):
    """Whatever the order, each returns when it is true, and the last word holds."""
    for n in range(10):
        agent = await make_agent([text("hi")], stores=store_url, context_id=f"c{n}", start=False)
        await asyncio.gather(*(agent.start() for _ in range(10)))
        assert agent.state.status is S.READY
        await asyncio.gather(
            *(agent.shutdown() if i % 2 else agent.start() for i in range(10)),
        )
        await asyncio.gather(*(agent.shutdown() for _ in range(10)))
        assert agent.state.status is S.SHUTDOWN
        await agent.start()
        assert (await agent.execute_turn("hello")).text == "hi"


async def test_ten_pauses_and_resumes_at_once(make_agent, memory_stores):
    """No call fails, and a turn can run afterwards."""
    agent = await make_agent([text("hi")], stores=memory_stores)
    await asyncio.gather(*(agent.pause() if i % 2 else agent.resume() for i in range(10)))
    await agent.resume()
    assert (await agent.execute_turn("hello")).text == "hi"


async def test_no_turn_slips_in_while_an_agent_pauses(make_agent, stores):
    """From the moment that pause has nothing more to wait for, turns are refused."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [text("1"), text("2")], stores=spy.stores, auto_save=False, on_busy="wait"
    )
    await agent.execute_turn("a")
    refused = []

    def try_a_turn(name, _argument):
        if name == "claim":
            with pytest.raises(AgentStateError):
                agent.execute_turn("b")
            refused.append(name)

    spy.hook = try_a_turn
    await agent.pause()
    assert refused == ["claim"]
    await assert_whole(stores)


async def test_a_failed_turn_fails_the_agent_until_it_continues(make_agent, stores):
    """The error is kept; the next turn clears it."""
    agent = await make_agent([failure(LLMError("no")), text("yes")], stores=stores)
    result = await agent.execute_turn("a")
    assert result.outcome is Outcome.FAILED
    assert agent.state.status is S.FAILED
    assert type(agent.state.error) is LLMError
    assert "no" in str(agent.state.error)
    assert agent.state.error.args
    assert (await agent.execute_turn("b")).outcome is Outcome.COMPLETED
    assert agent.state.status is S.READY
    assert agent.state.error is None


async def test_start_clears_a_failure_too(make_agent, stores):
    """On the same agent and on a new one; what the turn left can still be continued."""
    agent = await make_agent([failure(LLMError("no"))], stores=stores)
    await agent.execute_turn("a")
    await agent.start()
    assert agent.state.status is S.READY
    assert agent.state.error is None
    new = await make_agent([text("yes")], stores=stores)
    assert new.state.status is S.READY
    assert new.state.interrupted_turn == 1
    result = await new.execute_turn(None)
    assert result.text == "yes"
    [_, second] = await stores.journal.turns("ada")
    assert second.continues == 1
    assert [m.text for m in await new.get_messages()] == ["a", "yes"]


async def test_a_start_that_fails_leaves_the_agent_as_it_was(make_agent, memory_stores):
    """A paused agent stays paused, a failed one failed, and neither loses what it knows."""
    spy = SpyStores(memory_stores)
    agent = await make_agent([failure(LLMError("no")), text("ok")], stores=spy.stores)
    await agent.execute_turn("a")

    def down(name, _argument):
        raise StoreUnavailable("down")

    spy.hook = down
    with pytest.raises(StoreUnavailable):
        await agent.start()
    assert agent.state.status is S.FAILED
    await agent.pause()
    for again in (agent.start, agent.resume):
        with pytest.raises(StoreUnavailable):
            await again()
        assert agent.state.status is S.PAUSED
        assert agent.state.turn_count == 1
    spy.hook = None
    await agent.resume()
    assert (await agent.execute_turn("b")).text == "ok"


async def test_wait_for_idle_reads_the_current_state(make_agent, memory_stores):
    """It returns at once when nothing runs, and after the last turn in line."""
    agent = await make_agent([text("1"), text("2")], stores=memory_stores, on_busy="wait")
    await agent.wait_for_idle()
    streams = [agent.execute_turn("a"), agent.execute_turn("b")]
    await agent.wait_for_idle()
    assert agent.state.status is S.READY
    assert [(await s).text for s in streams] == ["1", "2"]


async def test_agents_share_the_connections_of_a_url(make_agent, sqlite_url):
    """One engine for each URL and loop, closed with its last user, open again for the next."""
    one = await make_agent([text("1")], stores=sqlite_url, context_id="one")
    two = await make_agent([text("2")], stores=sqlite_url, context_id="two")
    assert one._core.resources.stores is two._core.resources.stores
    await one.shutdown()
    assert (await two.execute_turn("still open?")).text == "2"
    await two.shutdown()
    await one.start()
    assert (await one.execute_turn("open again?")).text == "1"


async def test_stores_that_were_given_are_not_closed(make_agent, stores):
    """Who opened them closes them."""
    agent = await make_agent([text("1")], stores=stores)
    await agent.shutdown()
    assert await stores.state.load("ada") is None


class AgentBesideTheTable(RuleBasedStateMachine):
    """
    An agent driven at random; after each call its status is what the table says.

    The agent lives on an event loop of its own, so that each rule may block on it.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stores = open_stores("memory:")
        self.do(self.stores.__aenter__())
        self.agent = Agent(
            "ada",
            llm_provider=ScriptedProvider(self._reply),
            stores=self.stores,
            loop_config=LoopConfig(retry=RetryPolicy(attempts=0)),
        )
        self.status = S.CREATED
        self.turns = 0
        self.fails = False

    def _reply(self, _request):
        return failure(LLMError("as asked")) if self.fails else text("fine")

    def do(self, work):
        """Run a coroutine on the agent's loop."""
        return self.loop.run_until_complete(work)

    def teardown(self):
        """Close the loop."""
        self.do(self.agent.shutdown())
        self.do(self.stores.__aexit__(None, None, None))
        self.loop.close()

    async def _ask(self, action):
        await getattr(self.agent, action)()

    @rule(action=st.sampled_from(["start", "pause", "resume", "shutdown", "clear"]))
    def act(self, action):
        """Do what the table allows, and be refused otherwise."""
        target = TRANSITIONS.get((self.status, action))
        if target is None:
            error = AgentNotStarted if self.status in (S.CREATED, S.SHUTDOWN) else AgentStateError
            with pytest.raises(error) as caught:
                self.do(self._ask(action))
            assert caught.value.status == self.status.value
            assert caught.value.action == action
            return
        self.do(self._ask(action))
        self.status = S.READY if target is S.STARTING else target

    @rule(fails=st.booleans())
    def turn(self, fails):
        """A turn, if the table allows one."""
        self.fails = fails

        async def run():
            return await self.agent.execute_turn("go")

        if (self.status, "execute_turn") not in TRANSITIONS:
            with pytest.raises(AgentStateError) as caught:
                self.do(run())
            assert caught.value.status == self.status.value
            return
        result = self.do(run())
        self.turns += 1
        assert result.turn == self.turns
        assert TRANSITIONS[self.status, "execute_turn"] is S.BUSY
        self.status = TRANSITIONS[S.BUSY, "to failed" if fails else "to ready"]

    @precondition(lambda self: self.status in (S.READY, S.FAILED))
    @rule()
    def turn_with_pause_inside(self):
        """Pause while a turn runs: it ends first."""
        self.fails = False

        async def run():
            stream = self.agent.execute_turn("go")
            await self.agent.pause()
            return await stream

        assert self.do(run()).outcome is Outcome.COMPLETED
        self.turns += 1
        self.status = TRANSITIONS[S.BUSY, "pause"]

    @invariant()
    def the_status_is_that_of_the_table(self):
        """Status and count agree with the model."""
        assert self.agent.state.status is self.status
        assert self.agent.state.turn_count == self.turns
        if self.status not in (S.PAUSED, S.SHUTDOWN):  # these keep the error that was, or none
            assert (self.agent.state.error is not None) == (self.status is S.FAILED)


TestAgentBesideTheTable = AgentBesideTheTable.TestCase
TestAgentBesideTheTable.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, database=None
)


@pytest.mark.parametrize("action", ["pause", "shutdown"])
async def test_an_agent_that_lets_its_last_turn_end_takes_no_other(make_agent, stores, action):
    """However many turns keep coming, pausing and shutting down come to an end."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("done")], tools=[gate.tool], stores=stores, on_busy="wait"
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    leaving = asyncio.create_task(getattr(agent, action)())
    await asyncio.sleep(0)
    with pytest.raises(AgentStateError, match=f"{action}.. waits"):
        agent.execute_turn("me too")
    gate.open.set()
    assert (await stream).text == "done"
    await leaving
    assert len(await stores.messages.list("ada")) == 4


async def test_a_cancelled_shutdown_lets_go_of_the_connections(make_agent, sqlite_url, tmp_path):
    """Whoever stops waiting for it, what the agent had opened is closed."""
    before = threading.active_count()
    agent = await make_agent(stores=sqlite_url)
    assert threading.active_count() == before + 2
    other = await make_agent(stores=f"sqlite:///{tmp_path}/other.db", start=False)
    starting = asyncio.create_task(other.start())  # it has to be waited for
    leaving = asyncio.create_task(agent.shutdown())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(starting, leaving, return_exceptions=True)
    await agent.shutdown()
    await other.shutdown()
    assert threading.active_count() == before


def test_an_event_loop_is_not_kept_alive(sqlite_url):
    """Agents that waited for each other to open a database leave nothing of their loop behind."""

    async def open_at_once():
        agents = [
            Agent(name, llm_provider=ScriptedProvider([]), stores=sqlite_url)
            for name in ("ada", "bob", "cleo")
        ]
        await asyncio.gather(*(agent.start() for agent in agents))
        await asyncio.gather(*(agent.shutdown() for agent in agents))
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(open_at_once())
    gc.collect()
    assert loop() is None


async def test_paused_context_says_so_wherever_it_is_started(make_agent, stores):
    """In its record, in a listing, and to the subscribers of another agent, until it continues."""
    agent = await make_agent([text("one"), text("two")], stores=stores)
    await agent.execute_turn("go")
    await agent.pause()
    page = await stores.contexts.list()
    assert [one.state.left_as for one in page.items] == [AgentStatus.PAUSED]
    assert agent.state.left_as is AgentStatus.PAUSED

    other = await make_agent([text("three")], stores=stores, start=False)
    seen = []
    other.subscribe(seen.append)
    await other.start()
    [said] = [event for event in seen if event.type == "status_change" and event.reason]
    assert (said.status, "has paused" in said.reason) == (AgentStatus.READY, True)
    assert (other.state.status, other.state.left_as) == (AgentStatus.READY, AgentStatus.PAUSED)
    await other.resume()
    assert (await stores.state.load("ada")).state.left_as is None
    await agent.resume()
    await agent.pause()
    await agent.start()
    assert (await stores.state.load("ada")).state.left_as is None, "it takes its own note back"
    await agent.pause()
    assert (await other.execute_turn("on")).text == "three"
    assert (await stores.state.load("ada")).state.left_as is None
    await agent.resume()
    assert agent.state.left_as is None


async def test_shutdown_is_noted_unless_it_is_not_asked_for(make_agent, stores):
    """A block `async with` writes nothing at its end, and neither does a cancelled agent."""
    async with await make_agent([text("one")], stores=stores) as agent:
        await agent.execute_turn("go")
    assert (await stores.state.load("ada")).state.left_as is None
    agent = await make_agent([text("two")], stores=stores)
    await agent.execute_turn("go")
    await agent.shutdown(cancel=True)
    assert (await stores.state.load("ada")).state.left_as is None
    await agent.start()
    await agent.shutdown()
    record = await stores.state.load("ada")
    assert (record.state.left_as, record.state.usage) == (AgentStatus.SHUTDOWN, agent.state.usage)
    again = await make_agent([text("three")], stores=stores)
    assert again.state.status is AgentStatus.READY
    await again.execute_turn("go")
    assert again.state.left_as is None


async def test_note_of_a_paused_agent_needs_no_store_that_answers(make_agent, stores, caplog):
    """The agent is paused all the same; a turn that has begun elsewhere keeps its state."""
    spy = SpyStores(stores)
    agent = await make_agent([text("one")], stores=spy.stores)
    await agent.execute_turn("go")

    def fail(*_):
        raise StoreUnavailable("away")

    spy.hook = fail
    await agent.pause()
    spy.hook = None
    assert agent.state.status is AgentStatus.PAUSED
    assert "did not note that its agent is paused" in caplog.text
    await agent.resume()
    await (await make_agent([text("two")], stores=stores)).execute_turn("go")
    await agent.pause()
    assert (await stores.state.load("ada")).state.left_as is None


async def test_turns_write_no_note(make_agent, stores):
    """A turn is one claim and its commits, as ever."""
    spy = SpyStores(stores)
    async with await make_agent([text("one"), text("two")], stores=spy.stores) as agent:
        await agent.execute_turn("go")
        await agent.execute_turn("go")
    assert [name for name in spy.done if name in ("claim", "commit", "leave", "save")] == [
        *("claim", "commit"),
        *("claim", "commit"),
    ]


async def test_turn_that_only_waits_takes_the_note_of_a_pause_away(make_agent, stores):
    """It keeps the rest of the state that it found."""
    agent = await make_agent([failure(LLMError("no", retryable=False))], stores=stores)
    assert (await agent.execute_turn("go", AuthContext("ada"))).outcome is Outcome.FAILED
    await agent.pause()
    other = await make_agent([], stores=stores)
    assert (await other.execute_turn(None)).outcome is Outcome.AUTH_REQUIRED
    assert (await stores.state.load("ada")).state.left_as is None
