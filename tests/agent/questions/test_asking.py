"""A tool asks a person: its call stays open, and any process goes on with the answer."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import add, assert_answered, assert_whole, collect, types

from looopy import ToolContext, tool
from looopy.agent.plan import plan_turn
from looopy.errors import AgentBusy, CannotContinue, InputNotFound
from looopy.llm.render import CANCELLED
from looopy.stores.owner import Owner
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.turns import a_claim
from looopy.testing.faults import SpyStores
from looopy.tools import Ask, NeedsInput
from looopy.types.config import LoopConfig
from looopy.types.message import ToolResultMessage
from looopy.types.state import AgentStatus, Outcome, PendingKind

RUNS: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran():
    """What ran is counted anew."""
    RUNS.clear()


@tool
async def book(context: ToolContext, city: str) -> str:
    """Book a journey."""
    RUNS.append("asked")
    day = await context.ask(f"On which day to {city}?")
    seat = await context.ask("Which seat?", key="seat", options=["aisle", "window"])
    RUNS.append("booked")
    return f"{city} {day} {seat}"


@tool
async def both(context: ToolContext) -> str:
    """Ask two things at once."""
    if len(context.answers) < 2:
        raise NeedsInput(
            [Ask("a", prompt="A?"), Ask("b", PendingKind.AUTH, "B?")], {"cursor": [1, None]}
        )
    return f"{context.answers['a']} {context.answers['b']} {context.state}"


@tool(effects="none", parallel=True)
async def one(context: ToolContext) -> str:
    """Ask beside others."""
    return await context.ask("One?")


@tool(effects="none", parallel=True)
async def two(context: ToolContext) -> str:
    """Ask beside others too."""
    return await context.ask("Two?")


@tool
def blocking(context: ToolContext) -> str:
    """Ask from a thread."""
    if "name" not in context.answers:
        raise NeedsInput([Ask("name", prompt="Who?")])
    return context.answers["name"]


def results(messages):
    """What each call was answered, by tool."""
    return {m.tool_name: m.text for m in messages if isinstance(m, ToolResultMessage)}


async def test_another_agent_continues_with_the_answer_to_a_tool(make_agent, stores):
    """The call has no result, the turn ends; the answer runs the tool again, which asks on."""
    tools = [book]
    agent = await make_agent([tool_call("book", city="Rome")], tools=tools, stores=stores)
    stream = agent.execute_turn("go")
    events = await collect(stream)
    result = await stream
    assert types(events)[-3:] == ["iteration_end", "input_required", "turn_end"]
    assert (result.outcome, agent.state.status) == (Outcome.INPUT_REQUIRED, AgentStatus.WAITING)
    [request] = result.pending
    assert agent.state.pending == events[-2].pending == (request,)
    assert (request.kind, request.tool_name, request.prompt, request.turn) == (
        PendingKind.INPUT,
        "book",
        "On which day to Rome?",
        1,
    )
    assert results(result.messages) == {}
    with pytest.raises(CannotContinue, match="waiting for input"):
        await agent.execute_turn(None)

    there = await make_agent([text("done")], tools=tools, stores=stores)
    assert there.state.pending == (request,)
    second = await there.execute_turn(None, inputs={request.request_id: "Monday"})
    assert second.outcome is Outcome.INPUT_REQUIRED
    [chained] = second.pending
    assert chained.request_id != request.request_id
    assert (chained.prompt, chained.options, chained.turn) == (
        "Which seat?",
        ("aisle", "window"),
        2,
    )
    with pytest.raises(InputNotFound):
        await there.execute_turn(None, inputs={request.request_id: "Monday"})

    third = await there.execute_turn(None, inputs={chained.request_id: "aisle"})
    assert third.text == "done"
    assert results(third.messages) == {"book": "Rome Monday aisle"}
    assert RUNS == ["asked", "asked", "asked", "booked"]
    assert there.state.pending == ()
    record = await stores.state.load("ada")
    assert (record.state.held, record.state.answered) == ((), ())
    await assert_whole(stores)


async def test_the_other_calls_of_the_iteration_complete(make_agent, stores):
    """Only what asks stays open; the results stand in the order of the calls for the model."""
    provider = ScriptedProvider(
        [(tool_call("one"), tool_call("add", a=2, b=3), tool_call("two")), text("done")]
    )
    agent = await make_agent(provider, tools=[one, two, add], stores=stores)
    first = await agent.execute_turn("go")
    assert results(first.messages) == {"add": "5"}
    a, b = first.pending
    assert (a.prompt, b.prompt) == ("One?", "Two?")
    part = await agent.execute_turn(None, inputs={b.request_id: 2})
    assert (part.outcome, part.pending, part.messages) == (Outcome.INPUT_REQUIRED, (a,), ())
    there = await make_agent(provider, tools=[one, two, add], stores=stores)
    last = await there.execute_turn(None, inputs={a.request_id: 1})
    assert (last.text, results(last.messages)) == ("done", {"one": "1", "two": "2"})
    shown = [m for m in provider.requests[-1].messages if isinstance(m, ToolResultMessage)]
    assert [m.tool_name for m in shown] == ["one", "add", "two"]
    await assert_whole(stores)


async def test_several_questions_of_one_call_are_answered_in_any_order(make_agent, stores):
    """Fresh credentials among them make it `auth_required`; the tool's state comes back unseen."""
    agent = await make_agent([tool_call("both"), text("done")], tools=[both], stores=stores)
    stream = agent.execute_turn("go")
    events = await collect(stream)
    first = await stream
    assert first.outcome is Outcome.AUTH_REQUIRED
    assert events[-2].type == "auth_required"
    assert "cursor" not in repr([*events, first, agent.state])
    a, b = first.pending
    part = await agent.execute_turn(None, inputs={a.request_id: "x"})
    assert (part.outcome, part.pending) == (Outcome.AUTH_REQUIRED, (b,))
    last = await agent.execute_turn(None, inputs={b.request_id: "y"})
    assert results(last.messages) == {"both": "x y {'cursor': [1, None]}"}
    await assert_whole(stores)


async def test_text_instead_of_an_answer_cancels_the_question(make_agent, stores):
    """The call is answered as cancelled, and the model goes on with what was said."""
    provider = ScriptedProvider([tool_call("book", city="Rome"), text("fine")])
    agent = await make_agent(provider, tools=[book], stores=stores)
    [request] = (await agent.execute_turn("go")).pending
    result = await agent.execute_turn("never mind")
    assert (result.text, result.pending) == ("fine", ())
    assert "Cancelled" in results(result.messages)["book"]
    with pytest.raises(InputNotFound):
        await agent.execute_turn(None, inputs={request.request_id: "x"})
    await assert_whole(stores)


async def test_a_sync_tool_asks_from_its_thread(make_agent, memory_stores):
    """By raising; what runs in a thread cannot await."""
    agent = await make_agent(
        [tool_call("blocking"), text("done")], tools=[blocking], stores=memory_stores
    )
    [request] = (await agent.execute_turn("go")).pending
    result = await agent.execute_turn(None, inputs={request.request_id: "Eva"})
    assert results(result.messages) == {"blocking": "Eva"}


async def test_an_answer_beside_a_text_is_carried_out_and_asks_on(make_agent, stores):
    """The text stands in between from then on, however often the tool asks again."""
    agent = await make_agent(
        [tool_call("book", city="Rome"), text("done")], tools=[book], stores=stores
    )
    [request] = (await agent.execute_turn("go")).pending
    second = await agent.execute_turn("be quick", inputs={request.request_id: "Monday"})
    [chained] = second.pending
    there = await make_agent([text("done")], tools=[book], stores=stores)
    last = await there.execute_turn(None, inputs={chained.request_id: "aisle"})
    assert (last.text, results(last.messages)) == ("done", {"book": "Rome Monday aisle"})
    assert_answered([m for m in await there.get_messages() if m.role != "user"])


async def test_a_buffered_turn_is_answered_without_a_store(make_agent, memory_stores):
    """`auto_save=False`: what waits is known from memory."""
    agent = await make_agent(
        [tool_call("book", city="Rome"), text("done")],
        tools=[book],
        stores=memory_stores,
        auto_save=False,
    )
    [request] = (await agent.execute_turn("go")).pending
    [chained] = (await agent.execute_turn(None, inputs={request.request_id: "Monday"})).pending
    await agent.save_state()
    assert (await memory_stores.state.load("ada")).state.pending == (chained,)
    result = await agent.execute_turn(None, inputs={chained.request_id: "aisle"})
    assert results(result.messages) == {"book": "Rome Monday aisle"}
    await agent.save_state()
    await assert_whole(memory_stores)


async def test_a_question_that_cannot_be_asked_is_an_error_of_the_tool(make_agent, stores):
    """The model is told; nothing waits."""

    @tool
    async def bad(context: ToolContext, how: int) -> str:
        """Ask wrongly."""
        if how == 0:
            await context.ask("Which?", schema={"type": "nonsense"})
        if how == 1:
            raise NeedsInput([])
        if how == 2:
            raise NeedsInput([Ask("a"), Ask("a")])
        if how == 3:
            raise NeedsInput([Ask("a")], state={1, 2})
        if how == 4:
            await context.ask("Which?", options=[float("nan")])
        raise NeedsInput([Ask("a")], "x" * 100_000)

    replies = [tool_call("bad", how=n) for n in range(6)]
    agent = await make_agent(
        [*replies, text("done")],
        tools=[bad],
        stores=stores,
        loop_config=LoopConfig(max_tool_failures=9),
    )
    result = await agent.execute_turn("go")
    assert (result.text, result.pending) == ("done", ())
    told = [m for m in result.messages if isinstance(m, ToolResultMessage)]
    assert [m.is_error for m in told] == [True] * 6
    parts = ["JSON Schema", "at least one", "key of its own", "not JSON", "", "65536"]
    for message, words in zip(told, parts, strict=True):
        assert words in message.text
    await assert_whole(stores)


async def test_a_turn_that_fails_beside_a_question_leaves_none(make_agent, stores):
    """The guard ends the turn; each call has its result all the same."""

    @tool
    async def boom() -> str:
        """Fail."""
        raise ValueError("it broke")

    agent = await make_agent(
        [(tool_call("one"), tool_call("boom"))],
        tools=[one, boom],
        stores=stores,
        loop_config=LoopConfig(max_tool_failures=1),
    )
    result = await agent.execute_turn("go")
    assert (result.outcome, result.pending) == (Outcome.FAILED, ())
    assert results(result.messages) == {"boom": "it broke", "one": CANCELLED}
    await assert_whole(stores)


async def test_a_call_waits_beside_a_compaction(make_agent, stores):
    """What was said before is summarised; the open call stays, whatever was said behind it."""
    provider = ScriptedProvider(
        [
            text("hello"),
            tool_call("book", city="Rome"),
            text("the user said hello"),
            text("done"),
        ]
    )
    agent = await make_agent(provider, tools=[book], stores=stores)
    await agent.execute_turn("hello")
    [request] = (await agent.execute_turn("go")).pending
    assert await agent.compact() is not None
    assert agent.state.pending == (request,)
    second = await agent.execute_turn("be quick", inputs={request.request_id: "Monday"})
    assert await agent.compact() is None
    there = await make_agent(provider, tools=[book], stores=stores)
    [chained] = there.state.pending
    assert second.pending == (chained,)
    last = await there.execute_turn(None, inputs={chained.request_id: "aisle"})
    assert (last.text, results(last.messages)) == ("done", {"book": "Rome Monday aisle"})
    shown = [m.text for m in provider.requests[-1].messages]
    assert "Rome Monday aisle" in shown
    assert "the user said hello" in shown[0]


async def test_a_request_beside_a_slow_call_is_stored_at_once(make_agent, memory_stores):
    """A crash of the slow one does not cost the question, nor make it of unknown outcome."""
    stored = asyncio.Event()
    spy = SpyStores(memory_stores)

    def look(name, argument):
        if name == "commit" and argument.state is not None and argument.state.pending:
            stored.set()

    @tool(parallel=True)
    async def ask(context: ToolContext) -> str:
        """Ask beside others."""
        return await context.ask("Which?")

    @tool(parallel=True)
    async def slow() -> str:
        """Wait for the question to be safe."""
        await stored.wait()
        return "safe"

    spy.hook = look
    agent = await make_agent(
        [(tool_call("ask"), tool_call("slow"))], tools=[ask, slow], stores=spy.stores
    )
    result = await agent.execute_turn("go")
    assert results(result.messages) == {"slow": "safe"}
    assert [p.prompt for p in result.pending] == ["Which?"]


async def test_one_of_two_simultaneous_answers_wins(make_agent, stores):
    """The other one is told, and what it said is not stored."""
    script = [tool_call("book", city="Rome"), text("done")]
    agent = await make_agent(script, tools=[book], stores=stores)
    [request] = (await agent.execute_turn("go")).pending
    here = await make_agent([text("done")], tools=[book], stores=stores)
    there = await make_agent([text("done")], tools=[book], stores=stores)
    answers = await asyncio.gather(
        here.execute_turn(None, inputs={request.request_id: "Monday"}),
        there.execute_turn(None, inputs={request.request_id: "Tuesday"}),
        return_exceptions=True,
    )
    refused = [a for a in answers if isinstance(a, BaseException)]
    [won] = [a for a in answers if not isinstance(a, BaseException)]
    assert [type(error) in (InputNotFound, AgentBusy) for error in refused] == [True]
    assert [p.prompt for p in won.pending] == ["Which seat?"]
    last = await make_agent([text("done")], tools=[book], stores=stores)
    [chained] = last.state.pending
    result = await last.execute_turn(None, inputs={chained.request_id: "aisle"})
    day = "Monday" if answers[0] is won else "Tuesday"
    assert results(result.messages) == {"book": f"Rome {day} aisle"}
    await assert_whole(stores)


async def test_input_and_credentials_of_one_iteration_are_both_kept(make_agent, stores):
    """From two tools; neither is dropped for the other."""

    @tool(parallel=True)
    async def login(context: ToolContext) -> str:
        """Ask for a password."""
        return f"as {await context.ask('Password?', kind=PendingKind.AUTH)}"

    replies = [(tool_call("one"), tool_call("login")), text("done")]
    agent = await make_agent(replies, tools=[one, login], stores=stores)
    first = await agent.execute_turn("go")
    assert first.outcome is Outcome.AUTH_REQUIRED
    assert [(p.kind, p.tool_name) for p in first.pending] == [
        (PendingKind.INPUT, "one"),
        (PendingKind.AUTH, "login"),
    ]
    values = dict(zip([p.request_id for p in first.pending], ["x", "hunter22"], strict=True))
    last = await agent.execute_turn(None, inputs=values)
    assert results(last.messages) == {"one": "x", "login": "as [redacted]"}
    await assert_whole(stores)


async def test_steering_comes_after_the_answer(make_agent, stores):
    """It cancels nothing, and is not lost."""
    agents = []

    @tool
    async def ask(context: ToolContext) -> str:
        """Ask, while the user says something."""
        if not context.answers:
            await agents[0].steer("by train")
        return await context.ask("Which day?")

    provider = ScriptedProvider([tool_call("ask"), text("done")])
    agents.append(await make_agent(provider, tools=[ask], stores=stores))
    [request] = (await agents[0].execute_turn("go")).pending
    last = await agents[0].execute_turn(None, inputs={request.request_id: "Monday"})
    assert (last.text, results(last.messages)) == ("done", {"ask": "Monday"})
    assert [m.text for m in provider.requests[-1].messages][-2:] == ["Monday", "by train"]
    await assert_whole(stores)


async def test_an_accepted_answer_survives_its_turn(make_agent, stores):
    """The process dies after the claim and before the tool runs: nobody is asked again."""
    agent = await make_agent([tool_call("book", city="Rome")], tools=[book], stores=stores)
    [request] = (await agent.execute_turn("go")).pending
    await agent.shutdown()
    await agent.start()
    plan = plan_turn(agent._core.known.situation, None, {request.request_id: "Monday"})
    record, owner = await stores.state.load("ada"), Owner.new()
    claim = a_claim(record.epoch, text=None, holder=owner.token(), state=plan.state)
    await stores.state.claim(claim)
    owner.retire()
    RUNS.clear()
    there = await make_agent([text("done")], tools=[book], stores=stores)
    assert (there.state.status, there.state.pending) == (AgentStatus.READY, ())
    assert there.state.interrupted_turn == 2
    [chained] = (await there.execute_turn(None)).pending
    assert (chained.prompt, RUNS) == ("Which seat?", ["asked"])
    last = await there.execute_turn(None, inputs={chained.request_id: "aisle"})
    assert results(last.messages) == {"book": "Rome Monday aisle"}
    await assert_whole(stores)


async def test_no_two_questions_have_one_id(make_agent, memory_stores, monkeypatch):
    """Though the id of a call ends like the number of a question."""
    provider, ids = ScriptedProvider([(tool_call("both"), tool_call("both"))]), ["a", "a-1"]
    monkeypatch.setattr(provider, "_call_id", lambda: ids.pop(0))
    agent = await make_agent(provider, tools=[both], stores=memory_stores)
    result = await agent.execute_turn("go")
    assert len({one.request_id for one in result.pending}) == len(result.pending) == 4
