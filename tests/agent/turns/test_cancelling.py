"""
Cancelling keeps what happened: the turn ends in order, whenever and however it is stopped.

`tests/campaign/test_cancel.py` stops a turn at each of its suspensions; here are those that matter
most, with what the user sees of them.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from contextlib import closing

import pytest
from tests.agent.kit import Gate, Sluggish, add, assert_valid, assert_whole, collect, types
from tests.loop_time import advance

from looopy import Agent, ToolContext, open_stores, tool
from looopy.errors import TurnIncomplete
from looopy.llm.render import OUTCOME_UNKNOWN
from looopy.stores.shield import settle_write
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.config import LoopConfig
from looopy.types.event import MessageUpdate
from looopy.types.message import AssistantMessage, StopReason, ToolResultMessage
from looopy.types.state import AgentStatus, Outcome


class Silent:
    """A model that says a few words and then nothing more; knows whether it was closed."""

    name = model = "silent"

    def __init__(self, words="half a"):
        self.words = words
        self.spoke = asyncio.Event()
        self.closed = False

    async def stream(self, request, options=None):
        """Say the words, then hang."""
        events = ScriptedProvider([text(self.words + "X")], chunk_chars=len(self.words) or 1)
        last = "text_delta" if self.words else "start"
        try:
            async for event in events.stream(request):
                yield event
                if event.type == last:
                    break
            self.spoke.set()
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def assert_goes_on(agent, stores):
    """The agent is ready, and its next turn works on a valid history."""
    assert agent.state.status is AgentStatus.READY
    assert agent.state.error is None
    seen = []

    def reply(request):
        seen.extend(request.messages)
        return text("still here")

    agent._core.resources.provider = ScriptedProvider(reply)
    assert (await agent.execute_turn("and now?")).text == "still here"
    assert_valid(seen)
    await assert_whole(stores)


async def test_cancelling_before_the_claim_stores_nothing(make_agent, stores):
    """The turn never was: every view says so, and there is no context yet."""
    agent = await make_agent([text("hi")], stores=stores)
    stream = agent.execute_turn("hello")
    stream.cancel()
    for wait in (stream, stream.accepted()):
        with pytest.raises(TurnIncomplete) as caught:
            await wait
        assert caught.value.outcome == "cancelled"
    assert await stores.state.load("ada") is None
    assert agent.state.turn_count == 0
    assert (await agent.execute_turn("hello")).text == "hi"


async def test_cancelling_during_the_model_keeps_its_words(make_agent, stores):
    """The partial text is stored as aborted; the request is closed; the outcome is cancelled."""
    model = Silent()
    agent = await make_agent(model, stores=stores)
    stream = agent.execute_turn("go")
    await model.spoke.wait()
    await agent.cancel()
    events = await collect(stream)
    result = await stream
    assert (result.outcome, result.stop_reason) == (Outcome.CANCELLED, StopReason.CANCELLED)
    assert result.error is None
    with pytest.raises(TurnIncomplete) as caught:
        result.raise_for_outcome()
    assert caught.value.outcome == "cancelled"
    assert model.closed
    last = (await agent.get_messages())[-1]
    assert isinstance(last, AssistantMessage)
    assert (last.text, last.stop_reason) == ("half a", StopReason.ABORTED)
    assert last.error_message
    assert types(events)[-4:] == ["message_end", "usage", "iteration_end", "turn_end"]
    await assert_goes_on(agent, stores)


async def test_the_next_request_has_the_partial_answer(make_agent, stores):
    """The words of an aborted answer are in the next request, its marks are not a problem."""
    model = Silent()
    agent = await make_agent(model, stores=stores)
    stream = agent.execute_turn("go")
    await model.spoke.wait()
    stream.cancel()
    await stream
    provider = agent._core.resources.provider = ScriptedProvider([text("ok")])
    await agent.execute_turn("again")
    assert [m.text for m in provider.requests[0].messages] == ["go", "half a", "again"]


async def test_a_model_that_said_nothing_leaves_no_empty_message(make_agent, stores):
    """No text, no message: nothing but what the user said is in the log."""
    model = Silent(words="")
    agent = await make_agent(model, stores=stores)
    stream = agent.execute_turn("go")
    await model.spoke.wait()
    stream.cancel()
    await stream
    assert [m.text for m in await agent.get_messages()] == ["go"]
    await assert_goes_on(agent, stores)


async def test_cancelling_during_a_tool_answers_every_call(make_agent, stores):
    """The running one has an unknown outcome, those behind it were not run."""
    gate = Gate()
    agent = await make_agent(
        [(tool_call("gate"), tool_call("add", a=1, b=2), tool_call("add", a=3, b=4))],
        tools=[gate.tool, add],
        stores=stores,
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    stream.cancel()
    result = await stream
    assert result.outcome is Outcome.CANCELLED
    results = [m for m in result.messages if isinstance(m, ToolResultMessage)]
    assert len(results) == 3
    assert all(r.is_error for r in results)
    assert results[0].text == OUTCOME_UNKNOWN
    assert {r.tool_call_id for r in results} == {"call_1", "call_2", "call_3"}
    assert "7" not in [r.text for r in results]
    await assert_goes_on(agent, stores)


async def test_the_result_of_a_cancelled_tool_counts(make_agent, stores):
    """A tool that cleans up and answers when it is stopped has answered."""
    entered = asyncio.Event()

    @tool
    async def careful() -> str:
        """Answer even when stopped."""
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "stopped half way"
        return "never"

    agent = await make_agent([tool_call("careful")], tools=[careful], stores=stores)
    stream = agent.execute_turn("go")
    await entered.wait()
    stream.cancel()
    result = await stream
    assert [m.text for m in result.messages if isinstance(m, ToolResultMessage)] == [
        "stopped half way"
    ]
    await assert_whole(stores)


async def test_cancelling_during_a_commit_lets_it_finish(make_agent, stores):
    """What was being stored is stored; the turn ends after it, and nothing runs twice."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("never")], tools=[add], stores=spy.stores
    )
    stream = agent.execute_turn("go")

    def on_first_commit(name, _argument):
        if name == "commit" and len(spy.of("commit")) == 1:
            stream.cancel()

    spy.hook = on_first_commit
    result = await stream
    assert result.outcome is Outcome.CANCELLED
    assert len(spy.of("commit")) == 2
    assert [m.is_error for m in result.messages if isinstance(m, ToolResultMessage)] == [True]
    await assert_goes_on(agent, stores)


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_task_cancelled_during_a_commit_waits_for_its_outcome(make_agent, stores, step):
    """A commit is never abandoned: the turn goes on from it, and ends as cancelled."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("3")], tools=[add], stores=spy.stores
    )
    stream = agent.execute_turn("go")
    [task] = agent._core.turns._tasks

    async def slowly():
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)

    def cancel_in_the_middle(name, _argument):
        is_step = name == "commit" and len(spy.of("commit")) == step
        return slowly() if is_step or (name == "claim" and step == 0) else None

    spy.hook = cancel_in_the_middle
    result = await stream
    assert result.outcome is (Outcome.COMPLETED if step == 3 else Outcome.CANCELLED)
    assert len(spy.of("commit")) == (3 if step == 3 else step + 1)
    await assert_goes_on(agent, stores)


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_task_cancelled_while_the_driver_has_the_commit_waits_too(
    make_agent, stores, monkeypatch, step
):
    """The same without anything between the turn and its store: the driver's answer is awaited."""
    agent = await make_agent([tool_call("add", a=1, b=2), text("3")], tools=[add], stores=stores)
    commits = itertools.count(1)

    async def struck(work, cancelled, *, outlasts):
        assert outlasts
        if next(commits) == step:
            asyncio.get_running_loop().call_soon(task.cancel)
        return await settle_write(work, cancelled, outlasts=outlasts)

    monkeypatch.setattr("looopy.agent.commit.settle_write", struck)
    stream = agent.execute_turn("go")
    [task] = agent._core.turns._tasks
    result = await stream
    assert result.outcome is (Outcome.COMPLETED if step == 3 else Outcome.CANCELLED)
    monkeypatch.undo()
    await assert_goes_on(agent, stores)


async def test_cancelling_while_a_retry_is_awaited_ends_the_turn(make_agent, memory_stores):
    """The wait before the next try is as cancellable as the call."""
    from looopy.errors import RateLimited
    from looopy.testing import failure

    agent = await make_agent(
        [failure(RateLimited("slow down", retry_after_s=50.0))], stores=memory_stores
    )
    stream = agent.execute_turn("go")
    async for event in stream:
        if event.type == "status_change":
            stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED
    await assert_goes_on(agent, memory_stores)


async def test_cancelling_when_idle_or_twice_has_no_effect(make_agent, stores):
    """An end is an end."""
    agent = await make_agent([text("1"), text("2")], stores=stores)
    await agent.cancel()
    stream = agent.execute_turn("a")
    result = await stream
    stream.cancel()
    stream.cancel()
    await agent.cancel()
    assert (await stream) is result
    assert (await agent.execute_turn("b")).text == "2"
    await assert_whole(stores)


async def test_cancel_stops_the_turn_that_runs_not_the_one_that_waits(make_agent, stores):
    """With `on_busy="wait"` the first in line is the running one."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("second")], tools=[gate.tool], stores=stores, on_busy="wait"
    )
    first = agent.execute_turn("a")
    await gate.entered.wait()
    second = agent.execute_turn("b")
    await agent.cancel()
    assert (await first).outcome is Outcome.CANCELLED
    assert (await second).text == "second"
    await assert_whole(stores)


async def test_a_turn_that_waits_can_be_cancelled_at_once(make_agent, stores):
    """It never was accepted, and the running one goes on."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("first")], tools=[gate.tool], stores=stores, on_busy="wait"
    )
    first = agent.execute_turn("a")
    await gate.entered.wait()
    second = agent.execute_turn("b")
    second.cancel()
    with pytest.raises(TurnIncomplete):
        await second
    gate.open.set()
    assert (await first).text == "first"
    assert agent.state.status is AgentStatus.READY
    assert agent.state.turn_count == 1


async def test_pausing_and_shutting_down_with_cancel_end_the_turn(make_agent, stores):
    """Both return when the turn is closed; every turn in line is stopped."""
    for stop in ("pause", "shutdown"):
        gate = Gate()
        agent = await make_agent(
            [tool_call("gate")],
            tools=[gate.tool],
            stores=stores,
            context_id=stop,
            on_busy="wait",
        )
        first = agent.execute_turn("a")
        await gate.entered.wait()
        second = agent.execute_turn("b")
        await getattr(agent, stop)(cancel=True)
        assert (await first).outcome is Outcome.CANCELLED
        with pytest.raises(TurnIncomplete):
            await second
        await assert_whole(stores, stop)


async def test_leaving_the_block_by_an_exception_cancels_the_turn(stores):
    """`async with` shuts down: with an error in flight it does not wait for the answer."""
    gate = Gate()
    agent = Agent(
        "ada", llm_provider=ScriptedProvider([tool_call("gate")]), tools=[gate.tool], stores=stores
    )
    streams = []

    async def leave():
        async with agent:
            streams.append(agent.execute_turn("go"))
            await gate.entered.wait()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await leave()
    [stream] = streams
    assert (await stream).outcome is Outcome.CANCELLED
    assert agent.state.status is AgentStatus.SHUTDOWN
    await assert_whole(stores)


def test_an_event_loop_that_is_torn_down_leaves_a_closed_turn(sqlite_url):
    """`asyncio.run` cancels every task at its end; the turn still closes in order."""

    async def begin():
        gate = Gate()
        agent = Agent(
            "ada",
            llm_provider=ScriptedProvider([(text("wait"), tool_call("gate"))]),
            tools=[gate.tool],
            stores=sqlite_url,
        )
        await agent.start()
        agent.execute_turn("go")
        await gate.entered.wait()

    async def look():
        agent = Agent("ada", llm_provider=ScriptedProvider([text("ok")]), stores=sqlite_url)
        async with agent:
            assert agent.state.status is AgentStatus.READY
            assert agent.state.interrupted_turn is None
            await assert_whole(agent._core.resources.stores)
            [turn] = await agent._core.resources.stores.journal.turns("ada")
            assert turn.outcome is Outcome.CANCELLED
            await agent.execute_turn("again")
            await assert_whole(agent._core.resources.stores)

    asyncio.run(begin())
    asyncio.run(look())


def test_an_event_loop_that_stops_keeps_a_result_after_an_artifact(sqlite_file):
    """The commit waits for the one before it, and for that only: it is not cut short."""
    url, locked = f"sqlite:///{sqlite_file}", threading.Event()

    @tool(parallel=True)
    async def report(context: ToolContext) -> str:
        """Save an artifact, while another program has the file."""
        other.execute("BEGIN IMMEDIATE")
        locked.set()
        await context.artifacts.save("report", b"x")
        return "saved"

    @tool(parallel=True)
    async def pay() -> str:
        """Pay."""
        while not locked.is_set():  # noqa: ASYNC110 - as below
            await asyncio.sleep(0)
        return "paid"

    async def let_go():
        """Give the file back when the loop stops every task."""
        try:
            await asyncio.Event().wait()
        finally:
            other.execute("ROLLBACK")

    async def begin():
        calls = (tool_call("report"), tool_call("pay"))
        agent = Agent(
            "ada", llm_provider=ScriptedProvider([calls]), tools=[report, pay], stores=url
        )
        await agent.start()
        kept.append(asyncio.create_task(let_go()))
        agent.execute_turn("go")
        kept.append(agent)
        turn = agent._core.turns.running
        while turn._log is None or not turn._log._writing._waiting:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)

    async def look():
        async with open_stores(url) as stores:
            messages = await stores.messages.list("ada")
            (turn,) = await stores.journal.turns("ada")
            return [m.text for m in messages if isinstance(m, ToolResultMessage)], turn.outcome

    kept = []
    with closing(sqlite3.connect(sqlite_file, isolation_level=None)) as other:
        asyncio.run(begin())
    results, outcome = asyncio.run(look())
    assert "paid" in results
    assert outcome is Outcome.CANCELLED


async def test_after_the_grace_period_a_tool_that_does_not_stop_is_abandoned(
    make_agent, memory_stores, monkeypatch
):
    """After the grace period the turn ends, and the call's outcome is unknown."""
    monkeypatch.setattr("looopy.loop.tool_tasks._GRACE_S", 0.01)
    entered, release = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Refuse to stop."""
        entered.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    agent = await make_agent([tool_call("stubborn")], tools=[stubborn], stores=memory_stores)
    stream = agent.execute_turn("go")
    await entered.wait()
    stream.cancel()
    result = await stream
    assert result.messages[-1].text == OUTCOME_UNKNOWN
    release.set()
    await assert_goes_on(agent, memory_stores)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("looopy tool"):
            await task


async def test_the_turn_ends_at_its_deadline(make_agent, memory_stores):
    """A turn that takes too long fails as `deadline`, keeping what happened."""
    model = Silent()
    agent = await make_agent(model, stores=memory_stores, loop_config=LoopConfig(turn_timeout_s=60))
    events = []
    async for event in agent.execute_turn("go"):
        events.append(event)
        if isinstance(event, MessageUpdate):
            advance(61)
    end = events[-1]
    assert (end.outcome, end.stop_reason) == (Outcome.FAILED, StopReason.DEADLINE)
    assert types(events)[-2] == "error"
    assert events[-2].code == "deadline"
    assert "60" in events[-2].text
    assert "".join(e.delta for e in events if isinstance(e, MessageUpdate)) == "half a"
    assert agent.state.status is AgentStatus.FAILED
    assert (await agent.get_messages())[-1].stop_reason is StopReason.ABORTED
    await assert_whole(memory_stores)


async def test_a_source_of_tools_that_hangs_can_be_cancelled(make_agent, stores):
    """Asking for the tools is a wait like any other."""
    source = Sluggish()
    agent = await make_agent([text("hi")], stores=stores, tools=[source])
    source.hangs = True
    stream = agent.execute_turn("go")
    await source.asked.wait()
    stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED
    source.hangs = False
    await assert_goes_on(agent, stores)


@pytest.mark.parametrize("hangs", [True, False])
async def test_if_a_stream_cannot_be_closed_its_answer_stays(
    make_agent, memory_stores, monkeypatch, hangs
):
    """A provider that hangs or raises while it is closed keeps no turn from its end."""
    monkeypatch.setattr("looopy.loop.model_call._GRACE_S", 0.01)

    class Stuck:
        name = model = "stuck"

        async def stream(self, request, options):
            try:
                async for event in ScriptedProvider([text("hello")]).stream(request, options):
                    yield event
            finally:
                if hangs:
                    await asyncio.Event().wait()
                raise RuntimeError("no")

    agent = await make_agent(Stuck(), stores=memory_stores)
    assert (await agent.execute_turn("go")).text == "hello"
