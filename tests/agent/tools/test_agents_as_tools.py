"""An agent as another's tool: its own context, found again whoever runs the call again."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel
from tests.agent.kit import Gate, add, assert_whole, collect
from tests.loop_time import advance

from looopy import (
    Agent,
    AuthContext,
    Budget,
    CancelToken,
    LoopConfig,
    RetryPolicy,
    ToolContext,
    agent_loop,
    open_stores,
    tool,
)
from looopy.agent.request import input_hash
from looopy.auth import AuthRequest, encrypt_credential
from looopy.errors import InvalidTool
from looopy.stores.owner import Owner
from looopy.sync import Agent as SyncAgent
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.contracts.turns import answer, begin, commit, said
from looopy.tools import AgentTool, client_tool
from looopy.types.message import StopReason, Usage, UserMessage
from looopy.types.state import AgentStatus, Outcome, PendingKind

ASKS = tool_call("researcher", prompt="How many?")


def inner(replies, **options) -> Agent:
    """The agent that works for another."""
    provider = replies if hasattr(replies, "stream") else ScriptedProvider(replies)
    options.setdefault("loop_config", LoopConfig(retry=RetryPolicy(base_s=0)))
    return Agent("template", llm_provider=provider, agent_name="researcher", **options)


async def contexts(stores) -> list[str]:
    """The ids of the contexts that there are, without the outer one."""
    return [r.context_id for r in await stores.state.list() if r.context_id != "ada"]


def result_of(result, number=0):
    """The result of the call in an iteration."""
    return result.iterations[number].tool_results[0]


async def test_the_answer_of_an_agent_is_the_result_of_the_call(make_agent, stores):
    """Both contexts are whole, each has what is its own, and the template's is none."""
    helper = inner(
        [tool_call("add", a=1, b=2), text("Three.")], tools=[add], system_prompt="Count."
    )
    agent = await make_agent([ASKS, text("It is 3.")], tools=[helper.as_tool()], stores=stores)
    result = await agent.execute_turn("How many are there?")
    assert result.text == "It is 3."
    assert result_of(result).text == "Three."
    (context_id,) = await contexts(stores)
    assert context_id.startswith("ada:researcher:")
    said = [m.text for m in await stores.messages.list(context_id)]
    assert said == ["How many?", "", "3", "Three."]
    assert [m.text for m in await agent.get_messages()] == [
        "How many are there?",
        "",
        "Three.",
        "It is 3.",
    ]
    details = result_of(result).details
    assert (details["agent"], details["context_id"]) == ("researcher", context_id)
    assert (details["outcome"], details["stop_reason"], details["turns"]) == (
        "completed",
        "stop",
        1,
    )
    assert helper._core.resources.model.requests[0].system_prompt == "Count."
    assert helper.state.status is AgentStatus.CREATED
    await assert_whole(stores)
    await assert_whole(stores, context_id)


async def test_agents_that_work_at_once_have_paths_of_their_own(make_agent, memory_stores):
    """The first keeps the plain one; the id of its call tells a later one apart."""
    gate = Gate()

    def reply(request):
        return text("done") if len(request.messages) > 1 else tool_call("gate")

    provider = ScriptedProvider(reply, repeat=True)
    helper = inner(provider, tools=[gate.tool]).as_tool(parallel=True)
    agent = await make_agent([(ASKS, ASKS), ASKS, text("ok")], tools=[helper], stores=memory_stores)
    stream = agent.execute_turn("go")
    shown = []
    async for event in stream:
        shown.append(event)
        if sum(e.type == "tool_execution_start" and bool(e.path) for e in shown) == 2:
            gate.open.set()  # both are in the middle of their work
    calls = [e.tool_call_id for e in shown if e.type == "tool_execution_start" and not e.path]
    by_path = {}
    for event in shown:
        by_path.setdefault(event.path, []).append(event.context_id)
    first, second = ("agent:researcher",), (f"agent:researcher#{calls[1]}",)
    assert by_path.keys() == {(), first, second}
    assert len(set(by_path[second])) == 1
    assert by_path[second][0] not in by_path[first][: len(by_path[second])]
    assert len(set(by_path[first])) == 2  # the third call ran alone


async def test_events_of_the_inner_agent_have_a_path(make_agent, stores):
    """In the outer stream, with the inner context's ids, and in no log but the inner one."""
    deep = Agent("template", llm_provider=ScriptedProvider([text("Seven.")]), agent_name="counter")
    middle = inner([tool_call("counter", prompt="Count!"), text("Seven!")], tools=[deep.as_tool()])
    agent = await make_agent([ASKS, text("ok")], tools=[middle.as_tool()], stores=stores)
    events = await collect(agent.execute_turn("go"))
    paths = {event.path for event in events}
    assert paths == {(), ("agent:researcher",), ("agent:researcher", "agent:counter")}
    shown = [e for e in events if e.path == ("agent:researcher", "agent:counter")]
    assert [shown[0].type, shown[-1].type] == ["turn_start", "turn_end"]
    assert "message_update" in [e.type for e in shown]
    assert all(event.seq is None for event in events if event.path)
    ids = {event.context_id for event in shown}
    assert ids == {c for c in await contexts(stores) if ":counter:" in c}
    names = [e.type for e in events]
    assert names.count("turn_end") == 3
    for context_id in ("ada", *await contexts(stores)):
        stored = await stores.journal.events(context_id)
        assert {e.context_id for e in stored} == {context_id}
        assert not [e for e in stored if e.path]
        await assert_whole(stores, context_id)


async def test_events_are_shown_only_if_wanted(make_agent):
    """`show_events=False` keeps them in the inner context."""
    helper = inner([text("Three.")]).as_tool(show_events=False)
    agent = await make_agent([ASKS, text("ok")], tools=[helper])
    events = await collect(agent.execute_turn("go"))
    assert {event.path for event in events} == {()}


async def test_two_calls_are_two_conversations(make_agent, memory_stores):
    """Also for the same question, and side by side where that is allowed."""
    helper = inner(ScriptedProvider(lambda r: text(f"{len(r.messages)}"), repeat=True))
    agent = await make_agent(
        [(ASKS, ASKS), text("a"), ASKS, text("b")],
        tools=[helper.as_tool(parallel=True)],
        stores=memory_stores,
    )
    first = await agent.execute_turn("go")
    await agent.execute_turn("again")
    assert [r.text for r in first.iterations[0].tool_results] == ["1", "1"]
    assert len(set(await contexts(memory_stores))) == 3


@pytest.mark.parametrize("beside", [True, False])
async def test_a_recreated_context_has_no_inner_contexts_of_the_old_one(
    make_agent, memory_stores, beside
):
    """The same turn, the same call id, the same question; another life."""
    async with open_stores("memory:") as own:
        where = {} if beside else {"stores": own}
        helper = inner([text("old"), text("new")], **where)
        agent = await make_agent([ASKS, text("a")], tools=[helper.as_tool()], stores=memory_stores)
        assert result_of(await agent.execute_turn("go")).text == "old"
        await memory_stores.state.delete("ada")
        again = await make_agent([ASKS, text("b")], tools=[helper.as_tool()], stores=memory_stores)
        assert result_of(await again.execute_turn("go")).text == "new"
        assert len(await own.state.list()) == (0 if beside else 2)


class Spy(AgentTool):
    """Keeps the context of the call, to run it again."""

    context: ToolContext

    async def execute(self, arguments, context):
        """Run it."""
        self.context = context
        return await super().execute(arguments, context)


def spied(call: AgentTool) -> Spy:
    """*call*, with an eye on it."""
    call.__class__ = Spy
    assert isinstance(call, Spy)
    return call


async def test_a_call_that_runs_again_resumes_its_inner_context(make_agent, stores):
    """The inner turn is over, and the result of the call was not stored: nothing runs twice."""
    helper = inner([text("Three.")])
    call = spied(helper.as_tool())
    agent = await make_agent([ASKS, text("ok")], tools=[call], stores=stores)
    first = result_of(await agent.execute_turn("go"))
    again = await call.execute({"prompt": "How many?"}, call.context)
    assert (again.content, again.details) == ("Three.", first.details)
    assert len(helper._core.resources.model.requests) == 1
    assert len(await contexts(stores)) == 1


async def test_an_inner_agent_cancelled_with_its_turn_continues_with_it(make_agent, stores):
    """The outer process died before its own end was stored; the turn, continued, runs the call."""
    gate = Gate()
    call = spied(inner([tool_call("gate"), text("Three.")], tools=[gate.tool]).as_tool())
    agent = await make_agent([ASKS], tools=[call], stores=stores)
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    stream.cancel()
    await stream
    fresh = replace(call.context, cancel=CancelToken())
    again = await call.execute({"prompt": "How many?"}, fresh)
    assert (again.content, again.is_error) == ("Three.", False)
    (context_id,) = await contexts(stores)
    turns = await stores.journal.turns(context_id)
    assert [turn.outcome for turn in turns] == [Outcome.CANCELLED, Outcome.COMPLETED]
    await assert_whole(stores, context_id)


async def test_an_answer_that_was_given_before_the_crash_stands(make_agent, stores):
    """Only the end of the inner turn was not stored: there is nothing to go on with."""
    call = spied(inner([]).as_tool())
    outer = await make_agent([ASKS, text("ok")], tools=[call], stores=stores)
    await outer.execute_turn("go")
    await stores.state.delete((await contexts(stores))[0])
    context_id = await call._context_id(call.context)
    owner = Owner.new()
    works_for = {"works_for": call.context.idempotency_key}
    key = input_hash(UserMessage("How many?"), {}, works_for)
    claimed = await begin(
        stores,
        context_id=context_id,
        text="How many?",
        holder=owner.token(),
        key="1",
        input_hash=key,
        metadata=works_for,
    )
    said_it = said(answer("Three."), context_id=context_id)
    await commit(stores, claimed, [said_it], context_id=context_id)
    owner.retire()
    again = await call.execute({"prompt": "How many?"}, call.context)
    assert (again.content, again.is_error) == ("Three.", False)
    await assert_whole(stores, context_id)


async def test_a_second_process_with_the_call_watches_and_takes_over(make_agent, stores):
    """The first process has lost the outer context and stops; the second goes on where that was."""
    gate, seen = Gate(), asyncio.Event()
    replies = ScriptedProvider([tool_call("gate"), text("Three.")])
    call = inner(replies, tools=[gate.tool]).as_tool()

    def a_context(show) -> ToolContext:
        return ToolContext(
            context_id="ada",
            turn=1,
            tool_call_id="c1",
            idempotency_key="ada/1/c1",
            cancel=CancelToken(),
            show=show,
            stores=stores,
        )

    arguments = {"prompt": "How many?"}
    first = asyncio.create_task(call.execute(arguments, a_context(lambda _: None)))
    await gate.entered.wait()
    second = asyncio.create_task(call.execute(arguments, a_context(lambda _: seen.set())))
    await seen.wait()
    assert len(replies.requests) == 1
    first.cancel()
    assert (await second).content == "Three."
    assert (gate.runs, first.cancelled(), len(replies.requests)) == (1, True, 2)
    (context_id,) = await contexts(stores)
    await assert_whole(stores, context_id)


async def test_a_failed_agent_is_a_failed_call(make_agent, memory_stores):
    """The model is told why, and the outer turn goes on."""
    helper = inner([failure(RuntimeError("no oil"))])
    agent = await make_agent([ASKS, text("ok")], tools=[helper.as_tool()], stores=memory_stores)
    result = await agent.execute_turn("go")
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "ok")
    assert result_of(result).is_error
    assert result_of(result).text == "The agent 'researcher' failed: RuntimeError: no oil"
    assert result_of(result).details["outcome"] == "failed"


async def test_an_agent_that_cannot_start_is_a_failed_call(make_agent):
    """A model that nobody knows, say."""
    helper = Agent("template", llm_provider="nobody/nothing", agent_name="researcher")
    agent = await make_agent([ASKS, text("ok")], tools=[helper.as_tool()])
    result = await agent.execute_turn("go")
    assert result_of(result).is_error
    assert "nobody" in result_of(result).text


async def test_the_result_of_an_inner_agent_stopped_early_is_marked(make_agent):
    """What it has said by then is shown, with the reason."""
    config = LoopConfig(max_iterations=1)
    helper = inner(
        [(text("Let me see."), tool_call("add", a=1, b=2))], tools=[add], loop_config=config
    )
    agent = await make_agent([ASKS, text("ok")], tools=[helper.as_tool()])
    result = result_of(await agent.execute_turn("go"))
    assert result.text == "[The agent was stopped early: max_iterations]\nLet me see."
    assert not result.is_error


@pytest.mark.parametrize("typed", [False, True])
async def test_agent_that_answers_at_its_limit_has_an_answer(make_agent, typed):
    """The model sees it with the reason, or as the output."""
    config = LoopConfig(max_iterations=1, on_max_iterations="answer")
    answer = tool_call("final_answer", sum=3) if typed else text("3, I think.")
    helper = inner([tool_call("add", a=1, b=2), answer], tools=[add], loop_config=config)
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    options = {"output_type": schema} if typed else {}
    agent = await make_agent([ASKS, text("ok")], tools=[helper.as_tool(**options)])
    result = result_of(await agent.execute_turn("go"))
    note = "[The agent answered at its limit: max_iterations]"
    assert result.text == ('{"sum": 3}' if typed else f"{note}\n3, I think.")
    assert (result.is_error, result.details["stop_reason"]) == (False, "max_iterations")


async def test_cancelling_the_turn_cancels_the_agent(make_agent, stores):
    """Both are cancelled, and whole; no task is left."""
    gate = Gate()
    helper = inner([tool_call("gate")], tools=[gate.tool])
    agent = await make_agent([ASKS], tools=[helper.as_tool()], stores=stores)
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED
    (context_id,) = await contexts(stores)
    (turn,) = await stores.journal.turns(context_id)
    assert turn.outcome is Outcome.CANCELLED
    await assert_whole(stores)
    await assert_whole(stores, context_id)


async def test_a_call_that_takes_too_long_cancels_the_agent(make_agent, memory_stores):
    """Its own timeout, where it has one; by default there is none but the turn's."""
    gate = Gate()
    helper = inner([tool_call("gate")], tools=[gate.tool])
    slow = LoopConfig(tool_timeout_s=0.001)
    agent = await make_agent(
        [ASKS, text("ok")],
        tools=[helper.as_tool(timeout_s=60)],
        stores=memory_stores,
        loop_config=slow,
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    advance(61)
    result = await stream
    assert "timed out after 60 s" in result_of(result).text
    (context_id,) = await contexts(memory_stores)
    (turn,) = await memory_stores.journal.turns(context_id)
    assert turn.outcome is Outcome.CANCELLED
    quick = await make_agent(
        [ASKS, text("ok")],
        tools=[inner([text("Three.")]).as_tool()],
        context_id="ben",
        loop_config=slow,
    )
    assert result_of(await quick.execute_turn("go")).text == "Three."


async def test_cancelling_the_inner_agent_fails_its_call_alone(make_agent, memory_stores):
    """The call fails, and the outer turn goes on."""
    gate = Gate()
    helper = inner([tool_call("gate")], tools=[gate.tool])
    agent = await make_agent([ASKS, text("ok")], tools=[helper.as_tool()], stores=memory_stores)
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    (context_id,) = await contexts(memory_stores)
    await memory_stores.journal.ask_cancel(context_id)
    result = await stream
    assert result.text == "ok"
    assert "was stopped before it answered" in result_of(result).text


async def test_requests_of_the_inner_agent_are_passed_to_the_user(make_agent, stores):
    """In another process the answer reaches the question, and what was done is not done again."""
    ran = []

    @tool(effects="external")
    async def book(room: int, context: ToolContext) -> str:
        """Book a room."""
        name = await context.ask("Whose name?")
        ran.append(room)
        return f"booked {room} for {name}"

    def helper(*replies):
        return inner(replies, tools=[book]).as_tool()

    here = await make_agent([ASKS], tools=[helper(tool_call("book", room=7))], stores=stores)
    waits = await here.execute_turn("go")
    assert waits.outcome is Outcome.INPUT_REQUIRED
    (request,) = waits.pending
    assert (request.kind, request.tool_name) == (PendingKind.INPUT, "researcher")
    assert request.prompt == "researcher: Whose name?"
    await here.shutdown()
    there = await make_agent([text("done")], tools=[helper(text("Booked."))], stores=stores)
    assert there.state.status is AgentStatus.WAITING
    result = await there.execute_turn(None, inputs={request.request_id: "Ada"})
    assert (result.text, result_of(result).text, ran) == ("done", "Booked.", [7])
    (context_id,) = await contexts(stores)
    assert "booked 7 for Ada" in [m.text for m in await stores.messages.list(context_id)]
    await assert_whole(stores)
    await assert_whole(stores, context_id)


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_of_the_agents_call_is_asked_as_it_is(make_agent, stores, approved):
    """The person sees which tool would run with what; a denial denies that call, not the agent."""
    ran = []

    @tool(needs_approval=True)
    def pay(euros: int) -> str:
        """Pay."""
        ran.append(euros)
        return "paid"

    provider = ScriptedProvider([tool_call("pay", euros=9), lambda r: text(r.messages[-1].text)])
    helper = inner(provider, tools=[pay]).as_tool()
    agent = await make_agent([ASKS, text("done")], tools=[helper], stores=stores)
    (request,) = (await agent.execute_turn("go")).pending
    assert (request.kind, request.tool_name, request.args) == (
        PendingKind.APPROVAL,
        "pay",
        {"euros": 9},
    )
    result = await agent.execute_turn(None, inputs={request.request_id: approved})
    assert result.text == "done"
    assert ran == ([9] if approved else [])
    assert ("paid" in result_of(result).text) is approved
    assert ("denied" in result_of(result).text) is not approved
    await assert_whole(stores)


async def test_the_users_side_runs_a_tool_of_the_agent(make_agent, stores):
    """It is told which, and with what; its result is that of the inner call."""
    photo = client_tool("photo", "Take one.", {"type": "object", "properties": {}})
    provider = ScriptedProvider([tool_call("photo"), lambda r: text(r.messages[-1].text)])
    helper = inner(provider, tools=[photo]).as_tool()
    agent = await make_agent([ASKS, text("done")], tools=[helper], stores=stores)
    (request,) = (await agent.execute_turn("go")).pending
    assert (request.kind, request.tool_name) == (PendingKind.CLIENT_TOOL, "photo")
    assert request.args == {}
    result = await agent.execute_turn(None, inputs={request.request_id: "a sunset"})
    assert (result.text, result_of(result).text) == ("done", "a sunset")


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "plain"])
async def test_credentials_reach_the_agents_call_alone(make_agent, stores, sealed):
    """Encrypted to the inner request, or in plain; what is stored holds none of them."""
    token, used = "tok-4711-abcdef-0123456789", []
    pat = AuthRequest(type="pat", provider="hub") if sealed else None

    @tool
    async def push(context: ToolContext) -> str:
        """Push."""
        used.append(await context.ask("Token?", kind=PendingKind.AUTH, auth=pat))
        return "pushed"

    helper = inner([tool_call("push"), text("Pushed.")], tools=[push]).as_tool()
    agent = await make_agent([ASKS, text("done")], tools=[helper], stores=stores)
    waits = await agent.execute_turn("go")
    assert waits.outcome is Outcome.AUTH_REQUIRED
    (request,) = waits.pending
    value = encrypt_credential(token, request.auth) if sealed else token
    result = await agent.execute_turn(None, inputs={request.request_id: value})
    assert (result_of(result).text, used) == ("Pushed.", [token])
    for context_id in ("ada", *await contexts(stores)):
        assert token not in repr(await stores.journal.events(context_id))
        assert token not in repr(await stores.state.load(context_id))


async def test_credentials_that_expire_inside_end_the_outer_turn_too(make_agent, stores):
    """Fresh ones go on with the call that is left, inside and outside; nothing runs twice."""
    ran = []

    @tool
    async def work(n: int, context: ToolContext) -> str:
        """Work; the first time, until the credentials have expired."""
        ran.append(n)
        if n == 1:
            context.auth_context.expires_at = datetime.now(UTC) - timedelta(seconds=1)
        return str(n)

    calls = (tool_call("work", n=1), tool_call("work", n=2))
    helper = inner([calls, text("Worked.")], tools=[work]).as_tool()
    agent = await make_agent([ASKS, text("done")], tools=[helper], stores=stores)
    lives = datetime.now(UTC) + timedelta(hours=1)
    waits = await agent.execute_turn("go", AuthContext("u1", expires_at=lives))
    assert (waits.outcome, waits.pending) == (Outcome.AUTH_REQUIRED, ())
    assert ran == [1]
    result = await agent.execute_turn(None, AuthContext("u1", expires_at=lives))
    assert (result.text, result_of(result).text, ran) == ("done", "Worked.", [1, 2])
    for context_id in ("ada", *await contexts(stores)):
        await assert_whole(stores, context_id)


async def test_an_answer_that_is_stored_nowhere_is_not_asked_for_again(make_agent, stores):
    """The outer process died behind the inner turn; credentials in plain were lost with it."""

    @tool
    async def push(context: ToolContext) -> str:
        """Push."""
        await context.ask("Token?", kind=PendingKind.AUTH)
        return "pushed"

    call = spied(inner([tool_call("push"), text("Pushed.")], tools=[push]).as_tool())
    agent = await make_agent([ASKS, text("done")], tools=[call], stores=stores)
    (request,) = (await agent.execute_turn("go")).pending
    await agent.execute_turn(None, inputs={request.request_id: "tok-4711"})
    lost = replace(call.context, answers={})
    again = await call.execute({"prompt": "How many?"}, lost)
    assert (again.content, again.is_error) == ("Pushed.", False)


async def test_several_questions_are_answered_one_by_one(make_agent, stores):
    """In several turns of the agent, and two at once in one of them."""

    @tool(parallel=True, effects="none")
    async def ask(what: str, context: ToolContext) -> str:
        """Ask."""
        return await context.ask(what)

    two = (tool_call("ask", what="b"), tool_call("ask", what="c"))
    helper = inner([tool_call("ask", what="a"), two, text("Thanks.")], tools=[ask]).as_tool()
    agent = await make_agent([ASKS, text("done")], tools=[helper], stores=stores)
    result = await agent.execute_turn("go")
    asked = []
    while result.pending:
        request = result.pending[0]
        asked.append(request.prompt)
        result = await agent.execute_turn(None, inputs={request.request_id: request.prompt[-1]})
    assert sorted(asked) == ["researcher: a", "researcher: b", "researcher: c"]
    assert (result.text, result_of(result).text) == ("done", "Thanks.")
    (context_id,) = await contexts(stores)
    assert [m.text for m in await stores.messages.list(context_id)][2::2][:1] == ["a"]
    await assert_whole(stores)
    await assert_whole(stores, context_id)


async def test_saying_something_else_leaves_the_question(make_agent, memory_stores):
    """The call is cancelled like any that waits."""

    @tool(effects="none")
    async def ask(context: ToolContext) -> str:
        """Ask."""
        return await context.ask("Which?")

    helper = inner([tool_call("ask")], tools=[ask]).as_tool()
    agent = await make_agent([ASKS, text("fine")], tools=[helper], stores=memory_stores)
    await agent.execute_turn("go")
    assert (await agent.execute_turn("Never mind.")).text == "fine"
    await assert_whole(memory_stores)


async def test_the_agent_acts_for_the_same_user(make_agent, stores):
    """With the credentials of the turn, which are stored nowhere."""
    seen = []

    @tool
    def whoami(context: ToolContext) -> str:
        """Say who."""
        seen.append(context.auth_context)
        return "you"

    helper = inner([tool_call("whoami"), text("You.")], tools=[whoami]).as_tool()
    agent = await make_agent([ASKS, text("ok")], tools=[helper], stores=stores)
    user = AuthContext("u1", credentials={"token": "tok-4711-abcdef"})
    events = await collect(agent.execute_turn("go", user))
    assert seen == [user]
    (context_id,) = await contexts(stores)
    (turn,) = await stores.journal.turns(context_id)
    assert (turn.actor_id, turn.had_auth) == ("u1", True)
    assert (await stores.state.load(context_id)).owner_actor == "u1"
    assert "tok-4711-abcdef" not in repr(events)


async def test_the_agent_of_an_agent_has_an_end(make_agent, memory_stores):
    """An agent that calls itself is told that it is deep enough."""
    provider = ScriptedProvider(
        lambda r: (
            text(r.messages[-1].text)
            if not isinstance(r.messages[-1], UserMessage)
            else tool_call("researcher", prompt="You do it!")
        ),
        repeat=True,
    )
    itself = inner(provider)
    tools = itself._core.resources.tools = (itself.as_tool(max_depth=3),)
    agent = await make_agent([ASKS, text("ok")], tools=list(tools), stores=memory_stores)
    result = await agent.execute_turn("go")
    assert "3 deep (researcher -> researcher -> researcher -> researcher)" in result_of(result).text
    assert len(await contexts(memory_stores)) == 3


async def test_the_agent_uses_up_the_budget_of_the_turn(make_agent, memory_stores):
    """What it used is in the details and counts for the turn's limit, not for its usage."""
    helper = inner([text("x" * 4000)])
    agent = await make_agent(
        [ASKS, text("never")],
        tools=[helper.as_tool()],
        stores=memory_stores,
        loop_config=LoopConfig(budget=Budget(tokens=900)),
    )
    result = await agent.execute_turn("go")
    assert result.stop_reason is StopReason.BUDGET
    assert result.usage.total_tokens < 100
    usage = result_of(result).details["usage"]
    assert usage["total_tokens"] > 900
    (context_id,) = await contexts(memory_stores)
    record = await memory_stores.state.load(context_id)
    assert record.state.usage.total_tokens == usage["total_tokens"]
    assert isinstance(record.state.usage, Usage)


async def test_the_answer_may_be_asked_for_in_a_type(make_agent, memory_stores):
    """Checked as any output, and given as JSON."""

    class Count(BaseModel):
        n: int

    replies = [tool_call("final_answer", n="x"), tool_call("final_answer", n=3)]
    helper = inner(replies).as_tool(output_type=Count)
    agent = await make_agent([ASKS, text("ok")], tools=[helper], stores=memory_stores)
    assert result_of(await agent.execute_turn("go")).text == '{"n":3}'
    wrong = inner(ScriptedProvider([text("no")], repeat=True)).as_tool(output_type=Count)
    other = await make_agent(
        [ASKS, text("ok")], tools=[wrong], stores=memory_stores, context_id="ben"
    )
    result = result_of(await other.execute_turn("go"))
    assert result.is_error
    assert "output_type" in result.text


async def test_an_agent_may_keep_its_contexts_elsewhere(make_agent, stores, tmp_path):
    """Stores of its own, named by a URL or open."""
    url = f"sqlite:///{tmp_path}/inner.db"
    helper = inner([text("Three.")], stores=url).as_tool()
    agent = await make_agent([ASKS, text("ok")], tools=[helper], stores=stores)
    assert result_of(await agent.execute_turn("go")).text == "Three."
    assert await contexts(stores) == []
    async with open_stores(url) as there:
        assert len(await contexts(there)) == 1


async def test_servers_of_the_agents_tools_stay_up_between_calls(make_agent):
    """From the start of the outer agent to its shutdown."""
    began, held = [], []

    class Source:
        def list_tools(self):
            return ()

        def acquire(self):
            if not held:
                began.append(1)
            held.append(1)

        async def release(self):
            held.pop()

    replies = ScriptedProvider(lambda _: text("Three."), repeat=True)
    helper = inner(replies, tools=[Source()]).as_tool()
    agent = await make_agent([ASKS, ASKS, text("ok")], tools=[helper])
    await agent.execute_turn("go")
    assert (len(began), len(held)) == (1, 1)
    await agent.shutdown()
    assert held == []


async def test_agents_are_made_by_a_function_as_well(make_agent, memory_stores):
    """Sync or async; each call gets an agent of its own."""
    made = []

    async def make(context_id, stores):
        made.append((context_id, stores))
        return Agent(context_id, llm_provider=ScriptedProvider([text("Three.")]), stores=stores)

    helper = AgentTool(make, name="researcher", description="Research.")
    agent = await make_agent([ASKS, text("ok")], tools=[helper], stores=memory_stores)
    assert result_of(await agent.execute_turn("go")).text == "Three."
    assert [made[0][0]] == await contexts(memory_stores)
    assert made[0][1] is memory_stores


async def test_a_bare_loop_has_agents_as_tools_too():
    """Without stores, their contexts are in memory."""
    helper = inner([text("Three.")]).as_tool()
    provider = ScriptedProvider([ASKS, text("ok")])
    events = await collect(agent_loop("go", llm_provider=provider, tools=[helper]))
    results = [e.result.text for e in events if e.type == "tool_execution_end" and not e.path]
    assert results == ["Three."]


@pytest.mark.parametrize(
    "options",
    [{"name": "no name"}, {"max_depth": 0}, {"timeout_s": -1}],
)
def test_a_tool_that_will_not_do_is_refused(options):
    """As any tool."""
    with pytest.raises(InvalidTool):
        inner([]).as_tool(**options)
    with pytest.raises(InvalidTool, match="as_tool"):
        AgentTool(inner([]), name="x")


def test_name_and_description_have_defaults():
    """The agent's name, as a tool may be named."""
    agent = Agent("x", llm_provider=ScriptedProvider([]), agent_name="The Researcher!")
    made = agent.as_tool()
    assert made.name == "The_Researcher_"
    assert "The_Researcher_" in made.description
    assert agent.as_tool("r", "Research.").description == "Research."


def test_an_agent_like_this_one_has_all_its_options():
    """A parameter of the constructor that is not passed on would be lost."""
    source = inspect.getsource(Agent._like_this)
    for name in list(inspect.signature(Agent.__init__).parameters)[2:]:
        assert f"{name}=" in source, name


def test_blocking_code_has_agents_as_tools(tmp_path):
    """`looopy.sync` makes and takes the same tool."""
    helper = SyncAgent(
        "t", llm_provider=ScriptedProvider([text("Three.")]), agent_name="researcher"
    )
    provider = ScriptedProvider([ASKS, text("ok")])
    url = f"sqlite:///{tmp_path}/chat.db"
    with SyncAgent("ada", llm_provider=provider, tools=[helper.as_tool()], stores=url) as agent:
        assert result_of(agent.execute_turn("go")).text == "Three."


async def test_usage_of_the_inner_agent_is_charged_once(make_agent, memory_stores):
    """A turn that looks at an earlier one of the agent, to go on with it, pays for the new one."""

    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    replies = [(text("x" * 4000), tool_call("pay")), text("Paid.")]
    agent = await make_agent(
        [ASKS, text("done")],
        tools=[inner(replies, tools=[pay]).as_tool()],
        stores=memory_stores,
        loop_config=LoopConfig(budget=Budget(tokens=1800)),
    )
    first = await agent.execute_turn("go")
    (request,) = first.pending
    result = await agent.execute_turn(None, inputs={request.request_id: True})
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "done")
    assert result_of(result).details["usage"]["total_tokens"] > 1800
