"""Credentials that expire in a turn end it; fresh ones go on with the calls that are left."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from tests.agent.kit import assert_whole, collect, types

from looopy import (
    Agent,
    AuthContext,
    LoopConfig,
    ToolContext,
    agent_loop,
    agent_loop_continue,
    tool,
)
from looopy.errors import CannotContinue
from looopy.llm.render import NOT_STARTED
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import StopReason, ToolResultMessage
from looopy.types.state import AgentStatus, Outcome


def valid():
    """Credentials that hold for an hour."""
    return AuthContext("u1", expires_at=datetime.now(UTC) + timedelta(hours=1))


def expire(auth):
    """Let them have expired."""
    auth.expires_at = datetime.now(UTC) - timedelta(seconds=1)


class Desk:
    """Tools that note what ran with which credentials; `last` lets its own expire."""

    def __init__(self):
        self.ran = []

        @tool
        async def last(context: ToolContext) -> str:
            """Be the last to run."""
            self.ran.append(("last", context.idempotency_key))
            expire(context.auth_context)
            return "done"

        @tool
        async def pay(context: ToolContext) -> str:
            """Pay."""
            assert not context.auth_context.expired()
            self.ran.append(("pay", context.idempotency_key))
            return "paid"

        @tool(needs_approval=True)
        async def sign(context: ToolContext) -> str:
            """Sign."""
            assert not context.auth_context.expired()
            self.ran.append(("sign", context.idempotency_key))
            return "signed"

        @tool(needs_approval=True)
        async def sign_last(context: ToolContext) -> str:
            """Sign, and be the last to."""
            self.ran.append(("sign_last", context.idempotency_key))
            expire(context.auth_context)
            return "signed"

        @tool
        async def ask(context: ToolContext) -> str:
            """Ask for a place."""
            return await context.ask("Where to?")

        self.tools = [last, pay, sign, sign_last, ask]

    @property
    def names(self):
        """What ran, in order."""
        return [name for name, _ in self.ran]


@pytest.fixture
def desk():
    """Its tools, and nothing run yet."""
    return Desk()


def results(messages):
    """The results among messages: tool and text."""
    return [(m.tool_name, m.text) for m in messages if isinstance(m, ToolResultMessage)]


BOTH = (tool_call("last"), tool_call("pay"), tool_call("pay"))


async def test_the_turn_ends_with_its_calls_left_open(make_agent, stores, desk):
    """What finished stays, nothing else starts, and the model is not asked again."""
    agent = await make_agent([BOTH], tools=desk.tools, stores=stores)
    stream = agent.execute_turn("go", valid())
    result = await stream
    assert (result.outcome, result.stop_reason) == (
        Outcome.AUTH_REQUIRED,
        StopReason.AUTH_REQUIRED,
    )
    assert (result.pending, result.error) == ((), None)
    assert results(result.messages) == [("last", "done")]
    assert types(await collect(stream))[-2:] == ["auth_required", "turn_end"]
    assert desk.names == ["last"]
    assert (agent.state.status, agent.state.interrupted_turn) == (AgentStatus.WAITING, 1)
    assert agent.state.needs_auth


async def test_fresh_credentials_go_on_with_exactly_those_calls(make_agent, stores, desk):
    """In another process too; without them, or with old ones, it ends in the same way."""
    first = await make_agent([BOTH], tools=desk.tools, stores=stores)
    await first.execute_turn("go", valid())
    await first.shutdown()
    agent = await make_agent([text("ok")], tools=desk.tools, stores=stores)
    old = valid()
    expire(old)
    for auth in (None, old):
        assert (await agent.execute_turn(None, auth)).outcome is Outcome.AUTH_REQUIRED
    assert desk.names == ["last"]
    result = await agent.execute_turn(None, valid())
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "ok")
    assert results(result.messages) == [("pay", "paid"), ("pay", "paid")]
    assert [key.split("/")[1] for _, key in desk.ran] == ["1", "1", "1"]
    starts = [e.continues for e in await stores.journal.events("ada") if e.type == "turn_start"]
    assert starts == [None, 1, 1, 1]
    await assert_whole(stores)


async def test_they_may_expire_again(make_agent, stores, desk):
    """Each turn gets as far as its credentials last."""
    calls = (tool_call("last"), tool_call("last"), tool_call("pay"))
    agent = await make_agent([calls, text("ok")], tools=desk.tools, stores=stores)
    outcomes = [(await agent.execute_turn("go", valid())).outcome]
    outcomes += [(await agent.execute_turn(None, valid())).outcome for _ in range(2)]
    assert outcomes == [Outcome.AUTH_REQUIRED, Outcome.AUTH_REQUIRED, Outcome.COMPLETED]
    assert desk.names == ["last", "last", "pay"]
    await assert_whole(stores)


async def test_saying_something_else_lets_the_calls_be(make_agent, stores, desk):
    """They are answered as not started, which is true."""
    agent = await make_agent([BOTH, text("as you like")], tools=desk.tools, stores=stores)
    await agent.execute_turn("go", valid())
    result = await agent.execute_turn("never mind", valid())
    assert result.text == "as you like"
    assert results(result.messages) == [("pay", NOT_STARTED), ("pay", NOT_STARTED)]
    assert desk.names == ["last"]
    await assert_whole(stores)


async def test_an_approval_outlives_the_credentials_it_came_with(make_agent, stores, desk):
    """Nobody is asked a second time; the approved call runs once."""
    calls = (tool_call("sign_last"), tool_call("sign"))
    agent = await make_agent([calls, text("ok")], tools=desk.tools, stores=stores)
    pending = (await agent.execute_turn("go", valid())).pending
    inputs = {request.request_id: True for request in pending}
    result = await agent.execute_turn(None, valid(), inputs=inputs)
    assert (result.outcome, result.pending) == (Outcome.AUTH_REQUIRED, ())
    assert desk.names == ["sign_last"]
    again = await make_agent([text("ok")], tools=desk.tools, stores=stores)
    result = await again.execute_turn(None, valid())
    assert (result.outcome, desk.names) == (Outcome.COMPLETED, ["sign_last", "sign"])
    await assert_whole(stores)


async def test_an_answer_and_fresh_credentials_go_on_with_all_calls(make_agent, stores, desk):
    """Where one call asks and another lacks credentials, both come with the same turn."""
    calls = (tool_call("ask"), tool_call("last"), tool_call("pay"))
    agent = await make_agent([calls, text("ok")], tools=desk.tools, stores=stores)
    result = await agent.execute_turn("go", valid())
    assert result.outcome is Outcome.AUTH_REQUIRED
    assert agent.state.status is AgentStatus.WAITING
    [request] = result.pending
    with pytest.raises(CannotContinue):
        await agent.execute_turn(None, valid())
    inputs = {request.request_id: "Rome"}
    assert (await agent.execute_turn(None, inputs=inputs)).outcome is Outcome.AUTH_REQUIRED
    result = await agent.execute_turn(None, valid())
    assert (result.outcome, desk.names) == (Outcome.COMPLETED, ["last", "pay"])
    assert results(result.messages) == [("ask", "Rome"), ("pay", "paid")]
    await assert_whole(stores)


@pytest.mark.parametrize("missing", ["none", "old"])
async def test_an_answer_beside_a_text_needs_fresh_credentials_too(
    make_agent, stores, desk, missing
):
    """Nothing runs and nothing is stored; the request still waits for its answer."""
    agent = await make_agent([tool_call("sign"), text("ok")], tools=desk.tools, stores=stores)
    [request] = (await agent.execute_turn("go", valid())).pending
    inputs = {request.request_id: True}
    old = valid()
    expire(old)
    before = await stores.journal.events("ada")
    with pytest.raises(CannotContinue, match="fresh auth_context"):
        await agent.execute_turn("yes", old if missing == "old" else None, inputs=inputs)
    assert await stores.journal.events("ada") == before
    assert desk.names == []
    result = await agent.execute_turn("yes", valid(), inputs=inputs)
    assert (result.outcome, desk.names) == (Outcome.COMPLETED, ["sign"])
    assert results(result.messages) == [("sign", "signed")]


async def test_a_call_that_was_announced_and_not_run_is_not_of_unknown_outcome(
    make_agent, stores, desk
):
    """They expire while its start is being stored: it runs once they are fresh."""
    auth = valid()
    agent = await make_agent([tool_call("pay"), text("ok")], tools=desk.tools, stores=stores)
    forget = agent.subscribe(lambda e: expire(auth) if e.type == "tool_execution_start" else None)
    assert (await agent.execute_turn("go", auth)).outcome is Outcome.AUTH_REQUIRED
    forget()
    assert desk.ran == []
    again = await make_agent([text("ok")], tools=desk.tools, stores=stores)
    result = await again.execute_turn(None, valid())
    assert results(result.messages) == [("pay", "paid")]
    assert desk.names == ["pay"]
    await assert_whole(stores)


async def test_a_parallel_call_that_runs_is_waited_for(make_agent, stores):
    """Its result counts; those that have not started are left."""
    ran, both_run, one_stored = [], asyncio.Event(), asyncio.Event()

    @tool(parallel=True)
    async def work(n: int, context: ToolContext) -> str:
        """Work: the first lets the credentials expire while the second runs."""
        ran.append(n)
        if n == 0:
            await both_run.wait()
            expire(context.auth_context)
        elif n == 1:
            both_run.set()
            await one_stored.wait()
        return str(n)

    calls = tuple(tool_call("work", n=n) for n in range(4))
    config = LoopConfig(max_parallel_tools=2)
    agent = await make_agent([calls, text("ok")], tools=[work], stores=stores, loop_config=config)
    agent.subscribe(lambda e: one_stored.set() if e.type == "tool_execution_end" else None)
    result = await agent.execute_turn("go", valid())
    assert result.outcome is Outcome.AUTH_REQUIRED
    assert results(result.messages) == [("work", "0"), ("work", "1")]
    assert ran == [0, 1]
    result = await agent.execute_turn(None, valid())
    assert (result.outcome, ran) == (Outcome.COMPLETED, [0, 1, 2, 3])
    await assert_whole(stores)


@dataclass
class Count:
    """An answer."""

    number: int


async def test_an_answer_in_a_type_needs_no_credentials(make_agent, stores):
    """The model gives it by a call of ours, which no credentials are for."""
    auth = valid()
    expire(auth)
    answer = tool_call("final_answer", number=7)
    agent = await make_agent([answer], stores=stores)
    result = await agent.execute_turn("how many?", auth, output_type=Count)
    assert (result.outcome, result.output) == (Outcome.COMPLETED, Count(7))


async def test_a_turn_that_is_saved_later_waits_as_well(make_agent, stores, desk):
    """With `auto_save=False` the calls are left in memory, and saved as they are."""
    agent = await make_agent([BOTH, text("ok")], tools=desk.tools, stores=stores, auto_save=False)
    assert (await agent.execute_turn("go", valid())).outcome is Outcome.AUTH_REQUIRED
    assert (await agent.execute_turn(None)).outcome is Outcome.AUTH_REQUIRED
    result = await agent.execute_turn(None, valid())
    assert (result.outcome, desk.names) == (Outcome.COMPLETED, ["last", "pay", "pay"])
    await agent.save_state()
    await assert_whole(stores)


async def test_a_bare_loop_leaves_the_calls_to_the_next_one(desk):
    """`agent_loop_continue` with fresh credentials runs them."""
    provider = ScriptedProvider([BOTH, text("ok")])
    events = [
        event
        async for event in agent_loop(
            "go", llm_provider=provider, tools=desk.tools, auth_context=valid()
        )
    ]
    assert events[-1].outcome is Outcome.AUTH_REQUIRED
    assert results(events[-1].messages) == [("last", "done")]
    more = [
        event
        async for event in agent_loop_continue(
            llm_provider=provider,
            messages=events[-1].messages,
            tools=desk.tools,
            auth_context=valid(),
        )
    ]
    assert more[-1].outcome is Outcome.COMPLETED
    assert desk.names == ["last", "pay", "pay"]


async def test_a_process_that_dies_after_the_pause_leaves_the_calls_unchanged(stores, desk):
    """The calls are left as they are; a start finds nothing to mend."""
    script = ScriptedProvider([BOTH, text("ok")])
    agent = Agent("ada", llm_provider=script, tools=desk.tools, stores=stores)
    await agent.start()
    await agent.execute_turn("go", valid())
    before = await stores.journal.events("ada")  # and it is never shut down
    async with Agent("ada", llm_provider=script, tools=desk.tools, stores=stores) as other:
        assert other.state.interrupted_turn == 1
        assert await stores.journal.events("ada") == before
        assert (await other.execute_turn(None, valid())).outcome is Outcome.COMPLETED
    await agent.shutdown()
    await assert_whole(stores)
