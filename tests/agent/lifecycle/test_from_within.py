"""An agent told to stop, or to begin, in the middle of what it does: refused, or in order."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import Gate, add, assert_whole

from looopy import tool
from looopy.agent.turns import _around
from looopy.errors import AgentStateError, LooopyError, StoreUnavailable
from looopy.testing import ScriptedProvider, SpyStores, text, tool_call
from looopy.types.message import ToolResultMessage
from looopy.types.state import AgentStatus, Outcome

WAITING = {
    "pause": {},
    "shutdown": {},
    "resume": {},
    "wait_for_idle": {},
    "clear": {"force": True},
}


def direct(work):
    """Await it in the tool itself."""
    return work


def beside(work):
    """Await it in a task of its own, as `asyncio.wait_for` does."""
    return asyncio.create_task(work)


@pytest.mark.parametrize("how", [direct, beside])
@pytest.mark.parametrize("action", WAITING)
async def test_a_tool_cannot_wait_for_the_end_of_its_own_turn(
    make_agent, memory_stores, action, how
):
    """It is refused with the way out; the turn goes on, and afterwards it works."""

    @tool
    async def stop() -> str:
        """Have the agent stop."""
        with pytest.raises(AgentStateError, match="once that turn has ended") as refused:
            await how(getattr(agent, action)(**WAITING[action]))
        assert refused.value.action == action
        return "refused"

    agent = await make_agent(
        [tool_call("stop"), text("done"), text("again")], tools=[stop], stores=memory_stores
    )
    result = await agent.execute_turn("go")
    assert result.text == "done"
    assert [m.text for m in result.messages if isinstance(m, ToolResultMessage)] == ["refused"]
    assert agent.state.status is AgentStatus.READY
    await getattr(agent, action)(**WAITING[action])
    await agent.start()
    assert (await agent.execute_turn("go on")).text == "again"


async def test_an_agent_within_a_tool_cannot_stop_the_one_it_works_for(make_agent, memory_stores):
    """Two turns deep it would wait for itself as well; its own agent it may stop."""

    @tool
    async def stop_outer() -> str:
        """Have the outer agent stop."""
        with pytest.raises(AgentStateError, match="once that turn has ended"):
            await outer.shutdown()
        return "refused"

    @tool
    async def work() -> str:
        """Have another agent work."""
        inner = await make_agent(
            [tool_call("stop_outer"), text("inner")],
            tools=[stop_outer],
            stores=memory_stores,
            context_id="inner",
        )
        said = (await inner.execute_turn("go")).text
        await inner.shutdown()
        return said

    outer = await make_agent([tool_call("work"), text("outer")], tools=[work], stores=memory_stores)
    result = await outer.execute_turn("go")
    assert [m.text for m in result.messages if isinstance(m, ToolResultMessage)] == ["inner"]


@pytest.mark.parametrize(
    ("leave", "status"), [("shutdown", AgentStatus.SHUTDOWN), ("pause", AgentStatus.PAUSED)]
)
async def test_a_subscriber_may_stop_the_agent_at_the_end_of_a_turn(
    make_agent, memory_stores, leave, status
):
    """The turn waits for nobody any more."""
    agent = await make_agent([text("hi")], stores=memory_stores)
    leaving = []

    def hear(event):
        if event.type == "turn_end":
            leaving.append(asyncio.create_task(getattr(agent, leave)()))

    agent.subscribe(hear)
    await agent.execute_turn("go")
    await leaving[0]
    assert agent.state.status is status


async def test_a_chain_of_turns_keeps_no_reference_to_earlier_turns(make_agent, memory_stores):
    """An agent that keeps itself busy may do so for years."""
    depths, turns = [], []

    @tool
    async def look() -> str:
        """Look around."""
        depths.append(len(_around.get()))
        return "seen"

    def reply(request):
        return tool_call("look") if request.messages[-1].role == "user" else text("ok")

    agent = await make_agent(
        ScriptedProvider(reply), tools=[look], stores=memory_stores, on_busy="wait"
    )

    def hear(event):
        if event.type == "turn_end" and len(turns) < 20:
            turns.append(agent.execute_turn("again"))

    agent.subscribe(hear)
    await agent.execute_turn("go")
    await agent.wait_for_idle()
    assert len(depths) == 21
    assert max(depths) <= 2


# --- while it starts or shuts down ---


async def waiting_agent(make_agent, stores):
    """An agent that waits for an approval, and the spy of its stores."""

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    spy = SpyStores(stores)
    agent = await make_agent([tool_call("pay"), text("never mind")], tools=[pay], stores=spy.stores)
    await agent.execute_turn("go")
    assert agent.state.status is AgentStatus.WAITING
    return agent, spy


@pytest.mark.parametrize("fails", [False, True])
async def test_a_turn_waits_for_an_agent_that_is_started_again(make_agent, stores, fails):
    """It has been started before, so the turn is not refused, even if that start fails."""
    agent, spy = await waiting_agent(make_agent, stores)
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hook(name, _):
        if name == "load":
            spy.hook = None
            entered.set()
            await go_on.wait()
            if fails:
                raise StoreUnavailable("not now")

    spy.hook = hook
    starting = asyncio.create_task(agent.start())
    await entered.wait()
    try:
        assert agent.state.status is AgentStatus.STARTING
        stream = agent.execute_turn("something else")
        await asyncio.sleep(0)
        assert spy.of("claim")[1:] == []
    finally:
        go_on.set()
    [failed] = await asyncio.gather(starting, return_exceptions=True)
    assert isinstance(failed, StoreUnavailable) == fails
    assert agent.state.status is AgentStatus.BUSY
    assert (await stream).text == "never mind"
    assert agent.state.status is AgentStatus.READY
    await assert_whole(stores)


async def test_no_turn_slips_in_while_a_shutdown_ends_views(make_agent, stores):
    """Whoever viewed a turn of another process and asks again at once is refused."""
    gate = Gate()
    there = await make_agent([tool_call("gate"), text("done")], tools=[gate.tool], stores=stores)
    running = there.execute_turn("a", idempotency_key="k")
    await gate.entered.wait()
    here = await make_agent([text("never")], stores=stores)
    view = here.execute_turn("a", idempotency_key="k")
    await view.accepted()

    async def ask_again():
        with pytest.raises(AgentStateError, match="shut down"):
            await view
        with pytest.raises(AgentStateError):
            here.execute_turn("b")

    asking = asyncio.create_task(ask_again())
    await asyncio.sleep(0)
    await here.shutdown()
    await asking
    gate.open.set()
    assert (await running).outcome is Outcome.COMPLETED
    assert (await stores.state.load("ada")).turn_count == 1


# --- a loop that begins a task at once ---


def begin_at_once(loop, coro, **options):
    """
    A task whose first step is made here and now, as by `asyncio.eager_task_factory`.

    The task itself runs what the coroutine gives up, step by step.
    """
    first = []

    def steps():
        if "error" in done:
            raise done["error"]
        if "result" in done:
            return done["result"]
        sent = first[0]
        while True:
            try:
                got = yield sent
            except BaseException as error:  # noqa: BLE001 - handed on
                step = lambda error=error: coro.throw(error)  # noqa: E731
            else:
                step = lambda got=got: coro.send(got)  # noqa: E731
            try:
                sent = step()
            except StopIteration as stop:
                return stop.value

    class Steps:
        def __await__(self):
            return steps()

    async def whole():
        return await Steps()

    done = {}
    task = asyncio.Task(whole(), loop=loop, **options)
    around = asyncio.current_task(loop)
    if around is not None:
        asyncio.tasks._leave_task(loop, around)
    asyncio.tasks._enter_task(loop, task)
    try:
        first.append(coro.send(None))
    except StopIteration as stop:
        done["result"] = stop.value
    except BaseException as error:  # noqa: BLE001 - it is the task's
        done["error"] = error
    finally:
        asyncio.tasks._leave_task(loop, task)
        if around is not None:
            asyncio.tasks._enter_task(loop, around)
    return task


async def test_an_agent_is_ready_after_a_turn_whose_task_begins_at_once(make_agent, memory_stores):
    """Also when the turn is refused before anything else could run, or is a view of another."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", begin_at_once))
    try:
        agent = await make_agent(
            [tool_call("add", a=1, b=2), text("3")], tools=[add], stores=memory_stores
        )
        stream = agent.execute_turn("go", idempotency_key="k")
        assert (await stream).text == "3"
        assert agent.state.status is AgentStatus.READY
        again = await agent.execute_turn("go", idempotency_key="k")
        assert again.text == "3"
        await agent.wait_for_idle()
        assert agent.state.status is AgentStatus.READY
        with pytest.raises(LooopyError):
            await agent.execute_turn(None)
        assert agent.state.status is AgentStatus.READY
        await agent.shutdown()
    finally:
        loop.set_task_factory(None)
    await assert_whole(memory_stores)
