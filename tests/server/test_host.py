"""A host keeps one live agent per context, for its owner, as long as somebody needs it."""

import asyncio
import contextlib
import random
import threading
from collections import Counter

import pytest

from looopy import Agent, AuthContext, open_stores, tool
from looopy.agent.hosted import port_of
from looopy.errors import (
    AgentBusy,
    AgentStateError,
    ConfigurationError,
    ContextNotFound,
    FactoryFailed,
    HostClosed,
    LimitExceeded,
    TurnIncomplete,
    ValueRefused,
)
from looopy.server import AgentHost
from looopy.testing import ScriptedProvider, text, tool_call

ADA, BEN = AuthContext("ada"), AuthContext("ben")


async def until(condition):
    """Wait until *condition* holds."""
    while not condition():  # noqa: ASYNC110 - the host has no events of that kind
        await asyncio.sleep(0.005)


class Maker:
    """A factory that counts; its agents answer, or stop in the tool `wait` until `go` is set."""

    def __init__(self, *script, **options):
        self.made, self.script, self.options = [], script or (text("Hello."),) * 9, options
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, context_id, stores):
        @tool(effects="idempotent")
        async def wait() -> str:
            self.entered.set()
            await self.go.wait()
            return "done"

        self.made.append(context_id)
        await asyncio.sleep(0)
        provider = ScriptedProvider(list(self.script))
        return Agent(context_id, llm_provider=provider, stores=stores, tools=[wait], **self.options)


@pytest.fixture
async def stores():
    """Stores in memory, open."""
    async with open_stores("memory:") as opened:
        yield opened


async def say(host, context_id, said="Hi.", auth=ADA):
    """One whole turn."""
    async with host.agent(context_id, auth) as agent:
        return await agent.execute_turn(said, auth)


async def begin_waiting(host, maker, context_id="c", auth=ADA):
    """A turn that has stopped in its tool; the caller has left."""
    async with host.agent(context_id, auth) as agent:
        turn = agent.execute_turn("Hi.", auth)
        await turn.accepted()
    await maker.entered.wait()
    return turn


async def test_a_factory_runs_once_for_many_requests(stores):
    """Also while the agent is being made."""
    maker = Maker()
    async with AgentHost(maker, stores) as host:

        async def one():
            async with host.agent("c", ADA) as agent:
                await asyncio.sleep(0)
                return agent

        assert len({id(agent) for agent in await asyncio.gather(*(one() for _ in range(20)))}) == 1
        assert maker.made == ["c"]
        assert (await say(host, "c")).outcome == "completed"
    assert (maker.made, host.agent_count) == (["c"], 0)


async def test_the_owner_has_many_turns_with_one_agent(stores):
    """The agent knows its owner from the first turn on, and keeps others out."""
    async with AgentHost(Maker(), stores) as host:
        assert [(await say(host, "c")).turn for _ in range(3)] == [1, 2, 3]
        async with host.agent("c", ADA) as agent:
            with pytest.raises(ContextNotFound):
                await agent.execute_turn("Hi.", BEN)


async def test_a_cancelled_request_cancels_neither_start_nor_turn(stores):
    """Neither the start that others wait for, nor the turn that it began."""
    maker = Maker(tool_call("wait"), text("Done."))
    async with AgentHost(maker, stores) as host:
        leaver = asyncio.create_task(say(host, "c"))
        other = asyncio.create_task(host.agent("c", ADA).__aenter__())
        await asyncio.sleep(0)
        leaver.cancel()
        agent = await other
        assert maker.made == ["c"]
        talker = asyncio.create_task(say(host, "c"))
        await maker.entered.wait()
        talker.cancel()
        await asyncio.wait([talker])
        maker.go.set()
        await agent.wait_for_idle()
        assert (await agent.get_messages())[-1].text == "Done."


async def test_the_least_recently_used_idle_agent_gives_its_place(stores):
    """A busy one stays, and so does one in use; its successor is a new agent of the same past."""
    maker = Maker(tool_call("wait"), *(text("Hello."),) * 9)
    async with AgentHost(maker, stores, max_agents=3) as host:
        turn = await begin_waiting(host, maker, "busy")
        maker.script = (text("Hello."),) * 9
        async with host.agent("used", ADA):
            for name in ("one", "two", "one", "three"):
                await say(host, name)
                assert host.agent_count <= 3
            assert maker.made == ["busy", "used", "one", "two", "one", "three"]
        async with host.agent("used", ADA):
            pass
        assert len(maker.made) == 6
        maker.go.set()
        assert (await turn).outcome == "completed"
        assert (await say(host, "one", "Again.")).turn == 3


async def test_a_host_without_room_for_an_agent_refuses_with_its_limit(stores):
    """Nothing is stored for the request."""
    maker = Maker()
    async with AgentHost(maker, stores, max_agents=1) as host:
        async with host.agent("c", ADA):
            with pytest.raises(LimitExceeded, match="all 1 agents") as refused:
                await say(host, "d")
            assert refused.value.limit == "max_agents"
        assert (await say(host, "d")).outcome == "completed"
        assert host.agent_count == 1


async def test_an_idle_agent_is_shut_down(stores):
    """After its idle time; a later request has a new one."""
    maker = Maker()
    async with AgentHost(maker, stores, idle_s=0.01) as host:
        async with host.agent("c", ADA) as agent:
            await agent.execute_turn("Hi.", ADA)
        await until(lambda: host.agent_count == 0)
        assert agent.state.status == "shutdown"
        assert (await say(host, "c")).turn == 2


async def test_an_idle_time_does_not_begin_while_a_turn_runs(stores):
    """A turn of hours keeps its agent."""
    maker = Maker(tool_call("wait"), text("Done."))
    async with AgentHost(maker, stores, idle_s=0.01) as host:
        turn = await begin_waiting(host, maker)
        await until(lambda: host._sweeper is not None)
        host._kept["default", "c"].used_at = 0.0
        host._sweep()
        assert [kept.closing for kept in host._kept.values()] == [None]
        maker.go.set()
        assert (await turn).outcome == "completed"
        await until(lambda: host.agent_count == 0)


async def test_an_idle_time_begins_when_a_long_turn_ends(stores):
    """The sweep after a turn that took longer than the idle time closes no agent."""
    maker = Maker(tool_call("wait"), text("Done."))
    async with AgentHost(maker, stores, idle_s=60) as host:
        turn = await begin_waiting(host, maker)
        kept = host._kept["default", "c"]
        kept.used_at -= 120
        host._sweep()
        maker.go.set()
        assert (await turn).outcome == "completed"
        await until(lambda: not port_of(kept.agent).at_work)
        host._sweep()
        assert kept.closing is None


async def test_the_context_of_another_actor_is_reported_as_missing(stores):
    """Of another actor, of another tenant, of nobody; whatever one wants of it."""
    maker = Maker()
    async with AgentHost(maker, stores) as host:
        await say(host, "c")
        other = AuthContext("ada", tenant_id="other")
        texts = set()
        for auth, create in ((BEN, True), (BEN, False), (None, True), (other, False)):
            with pytest.raises(ContextNotFound) as refused:
                await host.authorise("c", auth, create=create)
            texts.add(str(refused.value))
            with pytest.raises(ContextNotFound):
                async with host.agent("c", auth, create=create):
                    pass
        with pytest.raises(ContextNotFound) as refused:
            await host.authorise("d", ADA)
        assert texts == {str(refused.value).replace("'d'", "'c'")}
        assert maker.made == ["c"]
        record = await host.authorise("c", ADA)
        assert record is not None
        assert record.owner_actor == "ada"
        assert await host.authorise("c", other, create=True) is None
        with pytest.raises(ValueRefused):
            await host.authorise("../c", ADA)


async def test_tenants_have_agents_and_pasts_of_their_own(stores):
    """The tenant comes from the auth context, and one id is two contexts."""
    maker, other = Maker(), AuthContext("ada", tenant_id="other")
    async with AgentHost(maker, stores) as host:
        assert (await say(host, "c")).turn == 1
        assert (await say(host, "c", auth=other)).turn == 1
        assert (host.agent_count, maker.made) == (2, ["c", "c"])
        assert (await stores.for_tenant("other").state.load("c")).turn_count == 1


async def test_the_first_turn_of_another_process_makes_the_owner(stores):
    """Two people make the same context at once: one gets it, the other one finds none."""
    maker = Maker()
    async with (
        AgentHost(maker, stores) as here,
        AgentHost(maker, stores) as there,
        here.agent("c", ADA) as mine,
        there.agent("c", BEN) as theirs,
    ):
        assert (await mine.execute_turn("Mine.", ADA)).turn == 1
        with pytest.raises(ContextNotFound):
            await theirs.execute_turn("Mine?", BEN)
        assert [m.text for m in await mine.get_messages()] == ["Mine.", "Hello."]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda *_: 1 / 0, "raised ZeroDivisionError"),
        (lambda *_: None, "is NoneType: return an Agent"),
        (lambda _, s: Agent("x", llm_provider="local", stores=s), "has another context"),
        (lambda c, s: Agent(c, llm_provider="local", stores=s, auto_save=False), "auto_save"),
        (lambda c, _: Agent(c, llm_provider=ScriptedProvider([])), "pass stores=stores"),
    ],
)
async def test_a_factory_that_returns_no_usable_agent_is_an_error(stores, make, says):
    """The host keeps nothing of it, and asks again for the next request."""
    async with AgentHost(make, stores) as host:
        for _ in range(2):
            with pytest.raises(FactoryFailed, match=says) as failed:
                await say(host, "c")
            assert failed.value.context_id == "c"
        assert host.agent_count == 0


async def test_a_factory_must_not_return_a_used_agent(stores):
    """It would be shut down under its first user."""
    async with Agent("c", llm_provider=ScriptedProvider([]), stores=stores) as agent:
        async with AgentHost(lambda *_: agent, stores) as host:
            with pytest.raises(FactoryFailed, match="used before"):
                await say(host, "c")
        assert agent.state.status == "ready"


async def test_an_agent_that_cannot_start_is_made_again(stores):
    """The error is that of `start()`."""
    models = ["no-such-model", ScriptedProvider([text("Hello.")])]
    async with AgentHost(
        lambda c, s: Agent(c, llm_provider=models.pop(0), stores=s), stores
    ) as host:
        with pytest.raises(ConfigurationError):
            await say(host, "c")
        assert (await say(host, "c")).outcome == "completed"


async def test_draining_lets_a_turn_end_and_takes_no_other(stores):
    """Then every agent is shut down."""
    maker = Maker(tool_call("wait"), text("Done."))
    host = AgentHost(maker, stores)
    turn = await begin_waiting(host, maker)
    draining = asyncio.create_task(host.drain())
    await until(lambda: host.closed)
    for name in ("c", "d"):
        with pytest.raises(HostClosed):
            await say(host, name)
    maker.go.set()
    assert (await turn).outcome == "completed"
    assert await draining == 0
    assert host.agent_count == 0


async def test_a_running_turn_is_read_steered_and_cancelled_while_the_host_drains(stores):
    """Only new turns are refused, on its agent too; once it has ended, everything is."""
    maker = Maker(tool_call("wait"), text("Done."))
    host = AgentHost(maker, stores)
    turn = await begin_waiting(host, maker)
    draining = asyncio.create_task(host.drain())
    await until(lambda: host.closed)
    assert (await host.current("c", ADA)).open_turn.turn == 1
    events = host.events("c", ADA, after=0)
    assert (await anext(events)).type == "turn_start"
    async with host.agent("c", ADA, create=False) as agent:
        await agent.steer("Faster.", ADA, expected_turn=1)
        for on_busy in ("reject", "wait"):
            agent.on_busy = on_busy
            with pytest.raises(HostClosed):
                await agent.execute_turn("Another.", ADA)
        await agent.cancel()
    assert (await turn).outcome == "cancelled"
    assert await draining == 0
    assert [event.type async for event in events][-1] in ("turn_end", "status_change")
    with pytest.raises(HostClosed):
        async with host.agent("c", ADA, create=False):
            pass


async def test_a_turn_that_does_not_let_go_does_not_hold_up_the_end(stores):
    """A tool in a thread cannot be cut: the host gives up after `cut_s`, and does so once."""
    go, entered = threading.Event(), threading.Event()

    @tool
    def stuck() -> str:
        """Block a thread."""
        entered.set()
        go.wait()
        return "late"

    def build(context_id, bound):
        model = ScriptedProvider([tool_call("stuck"), text("Done.")])
        return Agent(context_id, llm_provider=model, stores=bound, tools=[stuck])

    host = AgentHost(build, stores, drain_s=3600)
    try:
        async with host.agent("c", ADA) as agent:
            await agent.execute_turn("Hi.", ADA).accepted()
        await asyncio.to_thread(entered.wait)
        assert await host.drain(0.01, cut_s=0.01) == 1
        await host.aclose()  # waits for the same end
    finally:
        go.set()


async def test_an_agent_that_does_not_start_does_not_hold_up_the_end(stores):
    """Who waits for it is refused, and not cancelled; who came too late starts nothing."""

    async def never(context_id, stores):
        await asyncio.Event().wait()

    host = AgentHost(never, stores, drain_s=0.01)
    waits = asyncio.create_task(say(host, "c"))
    await until(lambda: host.agent_count)
    assert await host.drain() == 0
    with pytest.raises(HostClosed):
        await waits
    assert host.agent_count == 0
    host = AgentHost(Maker(), stores)
    await say(host, "c")
    kept = host._kept["default", "c"]
    await host.drain()
    with pytest.raises(HostClosed):
        await host._opened(kept)  # as a request whose task runs late


async def test_a_turn_that_is_cut_is_interrupted_and_can_be_continued(stores):
    """Its end is stored, so no other process has to wait for a lease."""
    maker = Maker(tool_call("wait"), text("Done."))
    host = AgentHost(maker, stores, drain_s=0.01)
    turn = await begin_waiting(host, maker)
    assert await host.drain() == 1
    with pytest.raises(TurnIncomplete):
        await turn
    record = await stores.state.load("c")
    assert record.open_turn is None
    maker.go.set()
    maker.script = (text("Done."),)
    async with AgentHost(maker, stores) as other:
        assert (await stores.journal.turns("c"))[0].outcome == "interrupted"
        result = await say(other, "c", None)
        assert (result.turn, result.text) == (2, "Done.")


async def test_an_erased_context_leaves_no_agent(stores):
    """Nobody else can erase it; a new one of its name begins at turn 1."""
    maker = Maker()
    async with AgentHost(maker, stores) as host:
        await say(host, "c")
        with pytest.raises(ContextNotFound):
            await host.erase("c", BEN)
        assert (await host.erase("c", ADA)).contexts == 1
        await until(lambda: host.agent_count == 0)
        assert (await say(host, "c", auth=BEN)).turn == 1


async def test_an_erasure_spares_a_context_created_meanwhile(stores):
    """Between the check and the erasure the context went, and another person took its name."""
    async with AgentHost(Maker(), stores) as host:
        await say(host, "c")
        authorise = host.authorise

        async def late(context_id, auth=None):
            await authorise(context_id, auth)
            await stores.contexts.erase(context_id)
            provider = ScriptedProvider([text("hi")])
            async with Agent(context_id, llm_provider=provider, stores=stores) as agent:
                await agent.execute_turn("Hi.", BEN)

        host.authorise = late
        assert (await host.erase("c", ADA)).contexts == 0
        assert await stores.messages.count("c") == 2


async def test_readers_see_the_turns_of_a_context(stores):
    """What is stored and what passes; the reader leaves, and the agent becomes idle."""
    maker = Maker(tool_call("wait"), text("Done."))
    async with AgentHost(maker, stores) as host:
        turn = await begin_waiting(host, maker)
        types = []
        async with contextlib.aclosing(host.events("c", ADA, after=0)) as events:
            async for event in events:
                types.append(event.type)
                if event.type in {"tool_execution_start", "message_end"}:
                    maker.go.set()
                if event.type == "turn_end":
                    break
        assert (types[0], types[-1]) == ("turn_start", "turn_end")
        assert {"message_end", "message_update"} <= set(types)
        await turn
        with pytest.raises(ContextNotFound):
            await anext(host.events("c", BEN, after=0))
        with pytest.raises(ContextNotFound):
            await anext(host.events("c", ADA, after=99))


async def test_many_requests_at_once_meet_one_live_agent_a_context(stores):
    """Few places, requests that leave at any moment, factories that fail; and an end in it all."""
    chance, live = random.Random(7), {}

    class Watched(Agent):
        async def start(self):
            assert live.setdefault(self.context_id, self) is self
            await super().start()

        async def shutdown(self, cancel=False):
            await super().shutdown(cancel)
            live.pop(self.context_id)

    def make(context_id, stores):
        if chance.random() < 0.05:
            raise OSError
        model = ScriptedProvider(lambda _: text("Hi."))
        return Watched(context_id, llm_provider=model, stores=stores, on_busy="wait")

    host, found = AgentHost(make, stores, max_agents=3, drain_s=0.01), Counter()

    async def one(name):
        try:
            async with host.agent(name, ADA) as agent:
                assert live[name] is agent
                assert host.agent_count <= 3
                await agent.execute_turn("Hi.", ADA)
            found["done"] += 1
        except (LimitExceeded, FactoryFailed, HostClosed, AgentStateError, TurnIncomplete) as error:
            found[type(error).__name__] += 1

    tasks = []
    for number in range(300):
        tasks.append(asyncio.create_task(one(f"c{chance.randrange(8)}")))
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        if number == 280:
            draining = asyncio.create_task(host.drain())
    await asyncio.wait(tasks)
    assert [task.exception() for task in tasks if not task.cancelled() and task.exception()] == []
    await draining
    assert (host.agent_count, live) == (0, {})
    assert found["done"] > 20
    assert found["FactoryFailed"]
    assert found["HostClosed"]
    for record in await stores.state.list():
        assert record.open_turn is None


@pytest.mark.parametrize("on_busy", ["reject", "wait"])
async def test_a_turn_waits_for_the_one_before(stores, on_busy):
    """What the agent says of a second turn is the factory's choice, also in a new context."""
    maker = Maker(tool_call("wait"), text("Done."), text("Yes."), on_busy=on_busy)
    async with AgentHost(maker, stores) as host:
        turn = await begin_waiting(host, maker)
        second = asyncio.create_task(say(host, "c"))
        if on_busy == "reject":
            with pytest.raises(AgentBusy):
                await second
        maker.go.set()
        await turn
        if on_busy == "wait":
            assert (await second).text == "Yes."


@pytest.mark.parametrize("wrong", [{"max_agents": 0}, {"idle_s": 0}, {"drain_s": "20"}])
async def test_limits_are_numbers_above_zero(stores, wrong):
    """A host without a limit would grow."""
    with pytest.raises((ConfigurationError, ValueRefused)):
        AgentHost(Maker(), stores, **wrong)
    with pytest.raises(ConfigurationError, match="open_stores"):
        AgentHost(Maker(), "memory:")
