"""A call that needs approval: bound to the tool, the call and the exact arguments, used once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.agent.kit import add, assert_valid, assert_whole, collect, types

from looopy import AuthContext, Hooks, ToolContext, ToolResult, tool
from looopy.agent.plan import DENIED, UNANSWERED
from looopy.errors import InputNotFound, InvalidTool, ValueRefused
from looopy.llm.render import OUTCOME_UNKNOWN
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.config import LoopConfig
from looopy.types.message import ToolResultMessage
from looopy.types.state import AgentStatus, Outcome, PendingKind


class Bank:
    """Pays, and remembers what it paid, and what it was asked."""

    def __init__(self, needs_approval=True, **options):
        self.paid = []
        self.keys = []

        @tool(needs_approval=needs_approval, **options)
        async def pay(cents: int, context: ToolContext) -> str:
            """Pay somebody."""
            self.paid.append(cents)
            self.keys.append(context.idempotency_key)
            return f"paid {cents}"

        self.tool = pay


def results(messages):
    """What each call was answered, by tool."""
    return {m.tool_name: m.text for m in messages if isinstance(m, ToolResultMessage)}


async def unchanged(stores):
    """What must be the same after something was refused."""
    record = await stores.state.load("ada")
    return replace(record, last_activity=None), await stores.journal.events("ada")


async def asked(make_agent, stores, bank, *replies, cents=9, actor=None, **options):
    """An agent whose call waits, and the request."""
    script = [tool_call("pay", cents=cents), *replies]
    agent = await make_agent(script, tools=[bank.tool], stores=stores, **options)
    [request] = (await agent.execute_turn("go", actor)).pending
    return agent, request


async def test_a_call_that_needs_approval_waits_and_then_runs_once(make_agent, stores):
    """The other call of the iteration completes; the approved one runs in another agent."""
    bank = Bank()
    agent = await make_agent(
        [(tool_call("pay", cents=9), tool_call("add", a=2, b=3))],
        tools=[bank.tool, add],
        stores=stores,
    )
    stream = agent.execute_turn("go")
    events = await collect(stream)
    result = await stream
    assert result.outcome is Outcome.INPUT_REQUIRED
    assert results(result.messages) == {"add": "5"}
    assert [e.tool_name for e in events if e.type == "tool_execution_start"] == ["add"]
    [request] = result.pending
    assert (request.kind, request.tool_name, request.args, request.turn, request.expires_at) == (
        PendingKind.APPROVAL,
        "pay",
        {"cents": 9},
        1,
        None,
    )
    assert "pay" in request.prompt
    assert bank.paid == []

    there = await make_agent([text("done")], tools=[bank.tool, add], stores=stores)
    assert there.state.status is AgentStatus.WAITING
    last = await there.execute_turn(None, inputs={request.request_id: True})
    assert (last.text, results(last.messages)) == ("done", {"pay": "paid 9"})
    assert bank.paid == [9]
    assert bank.keys == [f"ada/1/{request.tool_call_id}"]
    with pytest.raises(InputNotFound):
        await there.execute_turn(None, inputs={request.request_id: True})
    with pytest.raises(InputNotFound):
        await agent.execute_turn(None, inputs={request.request_id: True})
    assert bank.paid == [9]
    await assert_whole(stores)


async def test_a_denied_call_is_not_run(make_agent, stores):
    """The model is told."""
    bank = Bank()
    agent, request = await asked(make_agent, stores, bank, text("pity"))
    result = await agent.execute_turn(None, inputs={request.request_id: False})
    assert (result.text, results(result.messages), bank.paid) == ("pity", {"pay": DENIED}, [])
    await assert_whole(stores)


async def test_a_text_cancels_pending_approvals(make_agent, stores):
    """The request is gone, and the call was not run."""
    bank = Bank()
    agent, request = await asked(make_agent, stores, bank, text("ok"))
    result = await agent.execute_turn("leave it")
    assert (results(result.messages), bank.paid) == ({"pay": UNANSWERED}, [])
    with pytest.raises(InputNotFound):
        await agent.execute_turn(None, inputs={request.request_id: True})
    await assert_whole(stores)


@pytest.mark.parametrize(
    "value",
    [
        "yes",
        1,
        None,
        {"approved": True, "reason": "fine"},
        {"approved": False, "expired": True},
        {"approved": 1},
        {"approved": True, "args": []},
        {"cents": 1},
        [True],
    ],
)
async def test_an_approval_accepts_only_a_decision(make_agent, stores, value):
    """Not what merely looks like one; nothing is stored."""
    bank = Bank()
    agent, request = await asked(make_agent, stores, bank)
    before = await unchanged(stores)
    with pytest.raises(ValueRefused, match="an approval takes True, False, Approve") as refused:
        await agent.execute_turn(None, inputs={request.request_id: value})
    assert refused.value.path == f"/inputs/{request.request_id}"
    assert await unchanged(stores) == before
    assert agent.state.pending == (request,)


async def test_an_expired_approval_is_not_there(make_agent, stores):
    """Nothing is stored; the conversation goes on all the same."""
    bank = Bank(approval_expires_s=1e-6)
    agent, request = await asked(make_agent, stores, bank, text("ok"))
    assert request.expires_at is not None
    before = await unchanged(stores)
    with pytest.raises(InputNotFound):
        await agent.execute_turn(None, inputs={request.request_id: True})
    assert await unchanged(stores) == before
    result = await agent.execute_turn("leave it")
    assert (result.text, bank.paid) == ("ok", [])
    await assert_whole(stores)


async def large_async(arguments, context):
    """Whether somebody has to look, found out by waiting."""
    return arguments["cents"] > 100 and context.context_id == "ada"


def fails(arguments, context):
    """Nobody can tell."""
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("needs", "asked"),
    [
        (lambda arguments, _: arguments["cents"] > 100, [900]),
        (large_async, [900]),
        (lambda _arguments, _context: 0, []),
        (fails, [9, 900]),
        (False, []),
        (True, [9, 900]),
    ],
)
async def test_a_predicate_chooses_the_calls_that_need_approval(make_agent, stores, needs, asked):
    """Sync or async; what cannot be judged is asked about, and reported."""
    bank = Bank(needs)
    replies = [(tool_call("pay", cents=9), tool_call("pay", cents=900)), text("done")]
    agent = await make_agent(replies, tools=[bank.tool], stores=stores)
    stream = agent.execute_turn("go")
    events = await collect(stream)
    result = await stream
    assert [p.args["cents"] for p in result.pending] == asked
    assert bank.paid == [c for c in (9, 900) if c not in asked]
    warned = [e for e in events if e.type == "warning"]
    assert len(warned) == (2 if needs is fails else 0)
    if asked:
        last = await agent.execute_turn(None, inputs={p.request_id: True for p in result.pending})
        assert last.text == "done"
    assert sorted(bank.paid) == [9, 900]
    await assert_whole(stores)


async def test_calls_that_cannot_run_are_not_asked_about(make_agent, stores):
    """Wrong arguments are the model's to correct."""
    bank = Bank()
    agent = await make_agent(
        [tool_call("pay", cents="many"), text("done")], tools=[bank.tool], stores=stores
    )
    result = await agent.execute_turn("go")
    assert (result.text, result.pending) == ("done", ())
    assert "do not fit" in results(result.messages)["pay"]


def other_schema(bank):
    """The tool, after somebody has added a parameter to it."""

    @tool(name="pay", needs_approval=True)
    async def pay(cents: int, currency: str = "USD") -> str:
        """Pay somebody."""
        bank.paid.append((cents, currency))
        return f"paid {cents} {currency}"

    return pay


async def test_an_approval_of_another_schema_does_not_count(make_agent, stores):
    """The tool was changed meanwhile: the person is asked about what would run now."""
    bank = Bank()
    _, request = await asked(make_agent, stores, bank)
    there = await make_agent([text("done")], tools=[other_schema(bank)], stores=stores)
    second = await there.execute_turn(None, inputs={request.request_id: True})
    assert (second.outcome, bank.paid) == (Outcome.INPUT_REQUIRED, [])
    [anew] = second.pending
    assert anew.request_id != request.request_id
    assert "changed" in anew.prompt
    last = await there.execute_turn(None, inputs={anew.request_id: True})
    assert (last.text, bank.paid) == ("done", [(9, "USD")])
    await assert_whole(stores)


async def test_an_approval_of_a_removed_tool_runs_no_call(make_agent, stores):
    """Another tool is no substitute."""
    bank = Bank()
    _, request = await asked(make_agent, stores, bank)
    there = await make_agent([text("done")], tools=[add], stores=stores)
    last = await there.execute_turn(None, inputs={request.request_id: True})
    assert "no tool named 'pay'" in results(last.messages)["pay"]
    assert bank.paid == []


def hooked(change):
    """Settings in which every call is changed first."""
    return LoopConfig(hooks=Hooks(before_tool_call=change))


async def test_the_call_as_changed_by_the_hook_is_approved(make_agent, stores):
    """The person sees the arguments that would run; the hook is asked once a turn."""
    bank, asked = Bank(), []

    def capped(call, _context):
        asked.append(call.arguments["cents"])
        return {"cents": min(call.arguments["cents"], 500)}

    agent = await make_agent(
        [tool_call("pay", cents=900), text("done")],
        tools=[bank.tool],
        stores=stores,
        loop_config=hooked(capped),
    )
    [request] = (await agent.execute_turn("go")).pending
    assert request.args == {"cents": 500}
    last = await agent.execute_turn(None, inputs={request.request_id: True})
    assert (last.text, bank.paid, asked) == ("done", [500], [900, 900])
    await assert_whole(stores)


async def test_other_arguments_than_the_approved_ones_never_run(make_agent, stores):
    """The hook decides otherwise by the time of the answer: asked again."""
    bank = Bank()
    tools = [bank.tool]
    agent = await make_agent([tool_call("pay", cents=900)], tools=tools, stores=stores)
    [request] = (await agent.execute_turn("go")).pending
    there = await make_agent(
        [text("done")],
        tools=tools,
        stores=stores,
        loop_config=hooked(lambda _call, _context: {"cents": 901}),
    )
    second = await there.execute_turn(None, inputs={request.request_id: True})
    [anew] = second.pending
    assert (anew.args, bank.paid) == ({"cents": 901}, [])
    await there.execute_turn(None, inputs={anew.request_id: True})
    assert bank.paid == [901]


@pytest.mark.parametrize(
    ("said", "answer"), [("too late", "too late"), (ToolResult("a gift"), "a gift")]
)
async def test_a_call_answered_by_a_hook_needs_no_approval(make_agent, stores, said, answer):
    """Blocked, or answered in its place."""
    bank = Bank()
    agent = await make_agent(
        [tool_call("pay", cents=900), text("done")],
        tools=[bank.tool],
        stores=stores,
        loop_config=hooked(lambda _call, _context: said),
    )
    result = await agent.execute_turn("go")
    assert (result.pending, results(result.messages), bank.paid) == ((), {"pay": answer}, [])


async def test_arguments_of_a_hook_that_cannot_be_stored_are_not_asked_about(make_agent, stores):
    """What nobody can be shown is not run."""
    bank = Bank()
    agent = await make_agent(
        [tool_call("pay", cents=900), text("done")],
        tools=[bank.tool],
        stores=stores,
        loop_config=hooked(lambda _call, _context: {"cents": 2**70}),
    )
    result = await agent.execute_turn("go")
    assert (result.text, result.pending, bank.paid) == ("done", (), [])
    assert "could not ask" in results(result.messages)["pay"]
    await assert_whole(stores)


async def test_a_tool_that_was_approved_may_ask_on(make_agent, stores):
    """One approval for the call, however often it has to begin anew."""
    ran = []

    @tool(needs_approval=True)
    async def send(context: ToolContext) -> str:
        """Send something."""
        ran.append("began")
        return f"sent to {await context.ask('To whom?')}"

    agent = await make_agent([tool_call("send")], tools=[send], stores=stores)
    [approval] = (await agent.execute_turn("go")).pending
    [question] = (await agent.execute_turn(None, inputs={approval.request_id: True})).pending
    assert (question.kind, question.prompt) == (PendingKind.INPUT, "To whom?")
    there = await make_agent([text("done")], tools=[send], stores=stores)
    last = await there.execute_turn(None, inputs={question.request_id: False})
    assert (results(last.messages), ran) == ({"send": "sent to False"}, ["began"] * 2)
    await assert_whole(stores)


async def test_each_of_several_is_approved_for_itself(make_agent, stores):
    """One yes, one no, in two turns and by two agents."""
    bank = Bank()
    replies = [(tool_call("pay", cents=1), tool_call("pay", cents=2))]
    agent = await make_agent(replies, tools=[bank.tool], stores=stores)
    one, two = (await agent.execute_turn("go")).pending
    part = await agent.execute_turn(None, inputs={two.request_id: True})
    assert (part.pending, bank.paid) == ((one,), [])
    there = await make_agent([text("done")], tools=[bank.tool], stores=stores)
    last = await there.execute_turn(None, inputs={one.request_id: False})
    assert (last.text, bank.paid) == ("done", [2])
    assert [m.text for m in last.messages if isinstance(m, ToolResultMessage)] == [DENIED, "paid 2"]
    await assert_whole(stores)


async def test_a_pending_request_is_stored_at_once(make_agent, memory_stores):
    """Not only at the end of the turn: a crash beside a slow call loses nothing."""
    seen = []
    spy = SpyStores(memory_stores)

    @tool(parallel=True, effects="none")
    async def slow() -> str:
        """Look at what is stored meanwhile."""
        seen.append((await memory_stores.state.load("ada")).state)
        return "slow"

    bank = Bank(parallel=True)
    agent = await make_agent(
        [(tool_call("pay", cents=9), tool_call("slow"))],
        tools=[bank.tool, slow],
        stores=spy.stores,
    )
    result = await agent.execute_turn("go")
    [state] = seen
    assert tuple(state.pending) == result.pending
    assert [h.tool_call_id for h in state.held] == [result.pending[0].tool_call_id]


async def test_cancelling_the_turn_answers_its_open_calls(make_agent, stores):
    """Nothing waits after a turn that was cancelled, and every call has its result."""
    bank = Bank(parallel=True)

    @tool(parallel=True)
    async def stop(context: ToolContext) -> str:
        """Cancel the turn."""
        context.cancel.cancel()
        return "stopped"

    agent = await make_agent(
        [(tool_call("pay", cents=9), tool_call("stop"))], tools=[bank.tool, stop], stores=stores
    )
    stream = agent.execute_turn("go")
    events = await collect(stream)
    result = await stream
    assert (result.outcome, result.pending, bank.paid) == (Outcome.CANCELLED, (), [])
    assert types(events).count("tool_execution_start") == 2
    assert (await stores.state.load("ada")).state.pending == ()
    await assert_whole(stores)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"needs_approval": "yes"}, "needs_approval"),
        ({"needs_approval": None}, "needs_approval"),
        ({"approval_expires_s": 0}, "approval_expires_s"),
        ({"approval_expires_s": True}, "approval_expires_s"),
    ],
)
def test_invalid_options_are_refused(options, words):
    """When the tool is made."""
    with pytest.raises(InvalidTool, match=words):
        tool(lambda: 1, name="f", **options)


async def test_a_provider_is_shown_valid_histories_only(make_agent, stores):
    """The model is not asked while a call waits, and then sees results in the order of calls."""
    bank = Bank()
    provider = ScriptedProvider(
        [(tool_call("pay", cents=1), tool_call("add", a=1, b=1)), text("done")]
    )
    agent = await make_agent(provider, tools=[bank.tool, add], stores=stores)
    [request] = (await agent.execute_turn("go")).pending
    assert len(provider.requests) == 1
    await agent.execute_turn(None, inputs={request.request_id: True})
    shown = [m.text for m in provider.requests[1].messages if isinstance(m, ToolResultMessage)]
    assert shown == ["paid 1", "2"]


@pytest.mark.parametrize("said", [None, "and be quick"])
async def test_an_approved_call_whose_result_cannot_be_stored_runs_once(make_agent, stores, said):
    """Also where a text stands between the call and its result."""
    bank, spy = Bank(), SpyStores(stores)
    agent, request = await asked(make_agent, spy.stores, bank, text("ok"))

    def refuse(name, argument):
        if name == "commit" and "tool_execution_end" in types(argument.events):
            spy.hook = None
            raise ValueRefused("not this", path="/0")

    spy.hook = refuse
    result = await agent.execute_turn(said, inputs={request.request_id: True})
    assert (result.outcome, results(result.messages)) == (Outcome.FAILED, {"pay": OUTCOME_UNKNOWN})
    assert (await agent.execute_turn(None)).text == "ok"
    assert bank.paid == [9]
    assert_valid(await agent.get_messages())


async def test_a_clock_that_is_set_back_approves_no_expired_request(make_agent, monkeypatch):
    """The credentials had expired when it was looked at: it is left open, and then asked about."""
    expired = iter([True])
    monkeypatch.setattr(AuthContext, "expired", lambda _self, _now=None: next(expired, False))
    bank = Bank()
    agent = await make_agent([tool_call("pay", cents=9), text("ok")], tools=[bank.tool])
    result = await agent.execute_turn("go", AuthContext("u1"))
    assert list(expired) == []
    assert (bank.paid, result.outcome) == ([], Outcome.AUTH_REQUIRED)
    result = await agent.execute_turn(None, AuthContext("u1"))
    assert (bank.paid, result.outcome) == ([], Outcome.INPUT_REQUIRED)


async def test_a_call_that_once_did_not_fit_approves_nothing(make_agent, monkeypatch):
    """Whatever refuses it when it is decided refuses it when it would run."""
    monkeypatch.setattr("looopy.tools.call.run.validate", lambda *_: None)
    bank = Bank()
    agent = await make_agent([tool_call("pay", cents=9, to="me"), text("ok")], tools=[bank.tool])
    result = await agent.execute_turn("go")
    assert bank.paid == []
    assert "unknown field" in results(result.messages)["pay"]
