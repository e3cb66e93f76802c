"""An answer to an approval that says more than yes or no, and one that never came."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import assert_whole, collect
from tests.agent.questions.test_approvals import Bank, hooked, other_schema, results, unchanged
from tests.agent.questions.test_approvals import asked as approval

from looopy import Agent, Approve, AuthContext, Deny, ToolContext, tool
from looopy.agent.plan import DENIED, NOT_AGAIN, UNANSWERED
from looopy.errors import CannotContinue, InputExpired, InvalidTool, StoreUnavailable, ValueRefused
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.restore import exported, imported
from looopy.testing.faults import SpyStores
from looopy.tools import Ask, NeedsInput
from looopy.types.event import ApprovalDecided, ToolExecutionStart, utc_now
from looopy.types.message import ToolResultMessage
from looopy.types.state import AgentStatus, Outcome, PendingKind

ANN = AuthContext("ann")
BOSS = AuthContext("boss", credentials={"token": "s3cret-canary-7b1f"})


async def asked(make_agent, stores, bank, cents=900, actor=BOSS, **options):
    """An agent whose call waits, and the request."""
    return await approval(
        make_agent, stores, bank, text("done"), cents=cents, actor=actor, **options
    )


def of(kind, events):
    """The events of a kind."""
    return [event for event in events if isinstance(event, kind)]


def told(messages):
    """The blocks of each result."""
    return [[b.text for b in m.content] for m in messages if isinstance(m, ToolResultMessage)]


async def test_an_edited_call_runs_and_is_recorded_as_it_ran(make_agent, stores):
    """In another agent; events, result and log show the new arguments, and who gave them."""
    bank = Bank()
    _, request = await asked(make_agent, stores, bank, actor=ANN)
    assert request.schema == bank.tool.parameters
    provider = ScriptedProvider([text("fine")])
    there = await make_agent(provider, tools=[bank.tool], stores=stores)
    answer = Approve(args={"cents": 5}, note="half a coffee")
    decided = await there.decide(request.request_id, answer, BOSS)
    stream = there.execute_turn(None, ANN)
    events = [decided, *await collect(stream)]
    result = await stream
    assert (result.text, bank.paid, bank.keys) == ("fine", [5], [f"ada/1/{request.tool_call_id}"])
    edit = "The user approved this call with other arguments, which replace yours: "
    note = "The user's note: half a coffee"
    assert told(result.messages) == [[f'{edit}{{"cents": 5}}\n{note}', "paid 5"]]
    assert told(provider.requests[0].messages) == told(result.messages)
    assert [call.arguments for call in result.iterations[0].calls] == [{"cents": 5}]
    stored = await stores.journal.events("ada")
    for seen in (events, stored):
        [decided], [start] = of(ApprovalDecided, seen), of(ToolExecutionStart, seen)
        assert (decided.request_id, decided.tool_call_id, decided.tool_name) == (
            request.request_id,
            request.tool_call_id,
            "pay",
        )
        assert (decided.decision, decided.actor_id) == ("approved", "boss")
        assert (decided.args, decided.text) == ({"cents": 5}, "half a coffee")
        assert (start.args, start.edited, decided.turn) == ({"cents": 5}, True, 2)
    assert of(ApprovalDecided, events)[0].timestamp == of(ApprovalDecided, stored)[0].timestamp
    asked_for = next(m for m in await there.get_messages() if m.role == "assistant")
    assert asked_for.tool_calls[0].arguments == {"cents": 900}  # the model's words stay its own
    await assert_whole(stores)
    archive = await exported(stores)
    await imported(back := stores.for_tenant("back"), archive)
    assert await back.journal.events("ada") == stored
    assert await exported(back) == archive
    await stores.contexts.erase_person("boss")
    [decided] = of(ApprovalDecided, await stores.journal.events("ada"))
    assert (decided.args, decided.text, decided.actor_id) == ({}, "[erased]", None)
    [start] = of(ToolExecutionStart, await stores.journal.events("ada"))
    assert start.args == {"cents": 5}  # what ran for ann is hers


@pytest.mark.parametrize(
    ("args", "place"),
    [
        ({"cents": "many"}, "/cents"),
        ({}, "/cents"),
        ({"cents": 5, "to": "me"}, ""),
    ],
)
async def test_arguments_that_do_not_fit_are_not_stored(make_agent, memory_stores, args, place):
    """The place is named; the request stays."""
    bank = Bank()
    agent, request = await asked(make_agent, memory_stores, bank)
    before = await unchanged(memory_stores)
    with pytest.raises(ValueRefused) as refused:
        await agent.execute_turn(None, BOSS, inputs={request.request_id: Approve(args=args)})
    assert refused.value.path == f"/inputs/{request.request_id}/args{place}"
    assert (await unchanged(memory_stores), agent.state.pending) == (before, (request,))


@pytest.mark.parametrize(
    "answer",
    [
        Approve(args={"cents": 1}, note=BOSS.credentials["token"]),
        Deny(reason=BOSS.credentials["token"]),
    ],
)
async def test_a_credential_in_an_answer_is_refused(make_agent, memory_stores, answer):
    """Neither the log nor the model may get it."""
    agent, request = await asked(make_agent, memory_stores, Bank())
    before = await unchanged(memory_stores)
    with pytest.raises(ValueRefused, match="credential"):
        await agent.execute_turn(None, BOSS, inputs={request.request_id: answer})
    assert await unchanged(memory_stores) == before


@pytest.mark.parametrize(
    ("answer", "as_json"),
    [
        (Deny(reason="too much"), {"approved": False, "reason": "too much"}),
        (Approve(args={"cents": 1}), {"approved": True, "args": {"cents": 1}}),
        (Approve(note="ok"), {"approved": True, "note": "ok"}),
        (Approve(), True),
        (Deny(), False),
    ],
)
async def test_a_decision_in_json_equals_its_object(make_agent, memory_stores, answer, as_json):
    """With one idempotency key the two are one request."""
    bank = Bank()
    agent, request = await asked(make_agent, memory_stores, bank)
    for value in (answer, as_json):
        result = await agent.execute_turn(
            None, BOSS, inputs={request.request_id: value}, idempotency_key="k"
        )
    assert (result.turn, agent.state.turn_count) == (2, 2)
    assert bank.paid == ([] if not answer else [1] if answer.args else [900])


async def test_a_denial_has_its_reason_in_the_result(make_agent, memory_stores):
    """To the model and in the log; a denial is not an expiry."""
    bank = Bank()
    agent, request = await asked(make_agent, memory_stores, bank)
    inputs = {request.request_id: Deny(reason="too much")}
    result = await agent.execute_turn(None, BOSS, inputs=inputs)
    assert results(result.messages) == {"pay": f"{DENIED} The user's reason: too much"}
    assert result.messages[0].details == {"synthetic": True, "approval": "denied"}
    [decided] = of(ApprovalDecided, await memory_stores.journal.events("ada"))
    assert (decided.decision, decided.text, decided.actor_id) == ("denied", "too much", "boss")
    assert bank.paid == []


async def test_a_process_that_dies_between_answer_and_run_loses_no_word(make_agent, stores):
    """The edit and the note are stored with the answer, before anything runs."""
    bank, spy = Bank(), SpyStores(stores)
    agent, request = await asked(make_agent, spy.stores, bank)

    def die(name, argument):
        if name == "commit" and of(ToolExecutionStart, argument.events):
            raise StoreUnavailable("gone")

    spy.hook = die
    with pytest.raises(StoreUnavailable):
        await agent.execute_turn(
            None, BOSS, inputs={request.request_id: Approve(args={"cents": 5}, note="n")}
        )
    assert bank.paid == []
    there = await make_agent([text("ok")], tools=[bank.tool], stores=stores)
    result = await there.execute_turn(None, BOSS)
    assert (result.text, bank.paid) == ("ok", [5])
    assert told(result.messages)[0][0].endswith("The user's note: n")
    assert len(of(ApprovalDecided, await stores.journal.events("ada"))) == 1
    await assert_whole(stores)


async def test_the_edit_of_a_call_that_died_is_named(make_agent, memory_stores):
    """Of unknown outcome, or asked about again: always the arguments that ran."""
    for on_resume, said in (("fail", None), ("ask", True), ("ask", False)):
        stores = memory_stores.for_tenant(f"{on_resume}-{said}")
        bank, spy = Bank(on_resume=on_resume), SpyStores(stores)
        agent, request = await asked(make_agent, spy.stores, bank)

        def die(name, argument, spy=spy):
            if name == "commit" and any(e.type == "tool_execution_end" for e in argument.events):
                spy.hook = lambda *_: (_ for _ in ()).throw(StoreUnavailable("gone"))
                raise StoreUnavailable("gone")

        spy.hook = die
        inputs = {request.request_id: Approve(args={"cents": 5})}
        with pytest.raises(StoreUnavailable):
            await agent.execute_turn(None, BOSS, inputs=inputs)
        there = await make_agent([text("ok")], tools=[bank.tool], stores=stores)
        if said is None:
            assert '{"cents": 5}' in results(await there.get_messages())["pay"]
            continue
        [anew] = there.state.pending
        assert (anew.args, anew.schema) == ({"cents": 5}, bank.tool.parameters)
        result = await there.execute_turn(None, BOSS, inputs={anew.request_id: said})
        assert bank.paid == ([5, 5] if said else [5])
        assert said or results(result.messages)["pay"] == NOT_AGAIN


async def test_an_edit_waits_for_the_other_answers(make_agent, memory_stores):
    """Each is stored with its own turn, and runs as it was approved."""
    bank = Bank()
    replies = [(tool_call("pay", cents=1), tool_call("pay", cents=2)), text("done")]
    agent = await make_agent(replies, tools=[bank.tool], stores=memory_stores)
    one, two = (await agent.execute_turn("go")).pending
    await agent.execute_turn(None, BOSS, inputs={two.request_id: Approve(args={"cents": 20})})
    there = await make_agent([text("done")], tools=[bank.tool], stores=memory_stores)
    await there.execute_turn(None, BOSS, inputs={one.request_id: Deny(reason="no")})
    assert bank.paid == [20]
    decided = of(ApprovalDecided, await memory_stores.journal.events("ada"))
    assert [(e.turn, e.decision) for e in decided] == [(2, "approved"), (3, "denied")]


async def test_an_edit_is_asked_about_again_if_a_hook_changes_it(make_agent, memory_stores):
    """Nothing runs that nobody saw."""
    bank = Bank()
    config = hooked(lambda call, _: {"cents": min(call.arguments["cents"], 500)})
    agent, request = await asked(make_agent, memory_stores, bank, loop_config=config)
    second = await agent.execute_turn(
        None, BOSS, inputs={request.request_id: Approve(args={"cents": 700})}
    )
    [anew] = second.pending
    assert (anew.args, bank.paid) == ({"cents": 500}, [])
    result = await agent.execute_turn(None, BOSS, inputs={anew.request_id: True})
    assert bank.paid == [500]
    assert '{"cents": 500}' in told(result.messages)[0][0]  # as it ran
    [start] = of(ToolExecutionStart, await memory_stores.journal.events("ada"))
    assert (start.args, start.edited) == ({"cents": 500}, True)


async def test_an_edit_for_another_schema_is_asked_about_again(make_agent, memory_stores):
    """The tool was changed between the question and the answer."""
    bank = Bank()
    _, request = await asked(make_agent, memory_stores, bank)
    there = await make_agent([text("ok")], tools=[other_schema(bank)], stores=memory_stores)
    inputs = {request.request_id: Approve(args={"cents": 7})}
    [anew] = (await there.execute_turn(None, BOSS, inputs=inputs)).pending
    assert (anew.args, bank.paid) == ({"cents": 7}, [])
    await there.execute_turn(None, BOSS, inputs={anew.request_id: Approve(args={"cents": 8})})
    assert bank.paid == [(8, "USD")]


async def asks_slowly(arguments):
    """A question that takes a while to make."""
    return f"Slowly {arguments['cents']}?"


def breaks(arguments):
    """Nobody knows how to ask."""
    raise ValueError("no words")


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("Pay Ada?", "Pay Ada?"),
        (lambda arguments: f"Pay {arguments['cents']}?", "Pay 9?"),
        (asks_slowly, "Slowly 9?"),
        (breaks, "May pay run with these arguments?"),
        (lambda _: 7, "May pay run with these arguments?"),
    ],
)
async def test_a_tool_asks_in_its_own_words(make_agent, memory_stores, prompt, shown):
    """A function that fails is reported, and looopy asks in its own."""
    bank = Bank(approval_prompt=prompt)
    agent = await make_agent([tool_call("pay", cents=9)], tools=[bank.tool], stores=memory_stores)
    events = await collect(agent.execute_turn("go"))
    [request] = agent.state.pending
    assert request.prompt == shown
    warned = [e.text for e in events if e.type == "warning"]
    failed = shown.startswith("May pay")
    assert [one.partition(":")[0] for one in warned] == ["pay.approval_prompt"] * failed


async def test_a_question_shows_no_credential(make_agent, memory_stores):
    """Whatever the tool's function has found."""
    bank = Bank(approval_prompt=lambda _: f"With {BOSS.credentials['token']}?")
    agent = await make_agent([tool_call("pay", cents=9)], tools=[bank.tool], stores=memory_stores)
    [request] = (await agent.execute_turn("go", BOSS)).pending
    assert request.prompt == "With [redacted]?"


@pytest.mark.parametrize("prompt", ["", "  ", 7, True])
def test_an_empty_prompt_is_refused(prompt):
    """When the tool is made."""
    with pytest.raises(InvalidTool, match="approval_prompt"):
        tool(lambda: 1, name="f", approval_prompt=prompt)


async def test_the_result_of_an_expired_approval_says_expired(make_agent, stores):
    """To who answers too late, to the model, and in the log."""
    bank = Bank(approval_expires_s=1e-6)
    agent, request = await asked(make_agent, stores, bank)
    before = await unchanged(stores)
    with pytest.raises(InputExpired, match="expired at") as late:
        await agent.execute_turn(None, BOSS, inputs={request.request_id: True})
    assert late.value.request_id == request.request_id
    assert late.value.expired_at == request.expires_at
    assert await unchanged(stores) == before
    result = await agent.execute_turn(None, BOSS)
    assert (result.outcome, result.text, bank.paid) == (Outcome.COMPLETED, "done", [])
    [said] = results(result.messages).values()
    assert "expired at 20" in said
    assert "neither answered nor denied" in said
    assert result.messages[0].details == {"synthetic": True, "approval": "expired"}
    [decided] = of(ApprovalDecided, await stores.journal.events("ada"))
    assert (decided.decision, decided.actor_id, decided.text) == ("expired", None, None)
    await assert_whole(stores)


async def half_expired(make_agent, stores):
    """An agent of which one call waits and the other has expired; and their banks."""
    bank, late = Bank(), Bank(approval_expires_s=1e-6)
    late.tool.name = "late"
    script = [(tool_call("pay", cents=1), tool_call("late", cents=2)), text("ok")]
    agent = await make_agent(script, tools=[bank.tool, late.tool], stores=stores)
    await agent.execute_turn("go")
    return agent, bank, late


async def test_text_says_which_calls_had_expired(make_agent, memory_stores):
    """The others are cancelled by the text, as ever."""
    agent, bank, late = await half_expired(make_agent, memory_stores)
    result = await agent.execute_turn("leave it")
    said = results(result.messages)
    assert said["pay"] == UNANSWERED
    assert "expired at" in said["late"]
    assert bank.paid == late.paid == []


async def test_unexpired_requests_keep_waiting(make_agent, memory_stores):
    """`execute_turn(None)` settles the one, once; the other has to be answered."""
    agent, bank, late = await half_expired(make_agent, memory_stores)
    [left] = (await agent.execute_turn(None)).pending
    assert (left.tool_name, agent.state.status) == ("pay", AgentStatus.WAITING)
    with pytest.raises(CannotContinue):
        await agent.execute_turn(None)
    result = await agent.execute_turn(None, BOSS, inputs={left.request_id: True})
    assert results(result.messages)["pay"] == "paid 1"
    assert "expired" in results(result.messages)["late"]
    assert (bank.paid, late.paid) == ([1], [])


async def test_a_tool_that_asks_for_approval_itself_gets_the_answer(make_agent, memory_stores):
    """A denial is false whatever it says; other arguments are not its to take."""
    heard = []

    @tool
    async def drop(context: ToolContext) -> str:
        """Drop a table."""
        heard.append(await context.ask("Sure?", kind=PendingKind.APPROVAL))
        return "dropped" if heard[-1] else "kept"

    agent = await make_agent([tool_call("drop"), text("ok")], tools=[drop], stores=memory_stores)
    [request] = (await agent.execute_turn("go")).pending
    with pytest.raises(ValueRefused, match="or not at all"):
        await agent.execute_turn(None, BOSS, inputs={request.request_id: Approve(args={"x": 1})})
    result = await agent.execute_turn(None, BOSS, inputs={request.request_id: Deny(reason="never")})
    assert (results(result.messages), heard) == ({"drop": "kept"}, [Deny(reason="never")])


async def test_an_edit_reaches_the_call_of_an_inner_agent(make_agent, memory_stores):
    """Checked against that tool's schema where it is answered."""
    bank = Bank()
    helper = await make_agent(
        [tool_call("pay", cents=9), lambda r: text(r.messages[-1].text)],
        tools=[bank.tool],
        start=False,
        context_id="inner",
        agent_name="helper",
    )
    agent = await make_agent(
        [tool_call("helper", prompt="pay"), text("done")],
        tools=[helper.as_tool()],
        stores=memory_stores,
    )
    [request] = (await agent.execute_turn("go", BOSS)).pending
    wrong = {request.request_id: Approve(args={"cents": ""})}
    with pytest.raises(ValueRefused, match="args/cents"):
        await agent.execute_turn(None, BOSS, inputs=wrong)
    await agent.execute_turn(None, BOSS, inputs={request.request_id: Approve(args={"cents": 3})})
    assert bank.paid == [3]
    inner = next(r.context_id for r in await memory_stores.state.list() if r.context_id != "ada")
    for context_id in ("ada", inner):
        [decided] = of(ApprovalDecided, await memory_stores.journal.events(context_id))
        assert (decided.args, decided.actor_id) == ({"cents": 3}, "boss")


def banker(bank, *replies, **options):
    """A tool behind which an agent pays."""
    provider = ScriptedProvider([*replies, lambda r: text(r.messages[-1].text)])
    inner = Agent("inner", llm_provider=provider, tools=[bank.tool], agent_name="helper", **options)
    return inner.as_tool()


async def too_late(requests):
    """Wait until they have expired."""
    while any(one.expires_at > utc_now() for one in requests):  # noqa: ASYNC110 - a clock
        await asyncio.sleep(0)


async def test_an_expired_approval_of_an_inner_agent_says_so(make_agent, stores):
    """In any process: to who answers too late, to both models, and in both logs."""
    bank = Bank(approval_expires_s=1e-6)
    asks = tool_call("helper", prompt="pay")
    agent = await make_agent([asks], tools=[banker(bank, tool_call("pay", cents=9))], stores=stores)
    [request] = (await agent.execute_turn("go")).pending
    await agent.shutdown()
    await too_late([request])
    agent = await make_agent([text("done")], tools=[banker(bank)], stores=stores)
    with pytest.raises(InputExpired, match=r"execute_turn\(None\) reports that to the model"):
        await agent.execute_turn(None, BOSS, inputs={request.request_id: True})
    result = await agent.execute_turn(None, BOSS)
    assert (result.outcome, result.text, bank.paid) == (Outcome.COMPLETED, "done", [])
    [said] = results(result.messages).values()
    assert "expired at 20" in said
    assert "neither answered nor denied" in said
    inner = next(r.context_id for r in await stores.state.list() if r.context_id != "ada")
    for context_id in ("ada", inner):
        [decided] = of(ApprovalDecided, await stores.journal.events(context_id))
        assert (decided.decision, decided.actor_id, decided.tool_name) == ("expired", None, "pay")
        await assert_whole(stores, context_id)


async def test_an_inner_approval_may_expire_beside_others(make_agent, memory_stores):
    """The other is answered as ever; a new message says which one had expired."""
    late, bank = Bank(approval_expires_s=1e-6), Bank()
    late.tool.name = "late"
    calls = (tool_call("late", cents=1), tool_call("pay", cents=2))
    for name in ("answered", "dropped"):
        provider = ScriptedProvider([calls, lambda r: text(repr(told(r.messages)))])
        tools = [late.tool, bank.tool]
        helper = Agent("inner", llm_provider=provider, tools=tools, agent_name="helper").as_tool()
        replies = [tool_call("helper", prompt="pay"), text("done")]
        agent = await make_agent(replies, tools=[helper], stores=memory_stores, context_id=name)
        old, left = (await agent.execute_turn("go")).pending
        await too_late([old])
        if name == "answered":
            assert (await agent.execute_turn(None)).pending == (left,)
            result = await agent.execute_turn(None, inputs={left.request_id: True})
            assert "expired at 20" in results(result.messages)["helper"]
            assert "['paid 2']" in results(result.messages)["helper"]
        else:
            said = results((await agent.execute_turn("leave it")).messages)["helper"]
            assert "The request to approve late, which this call made, expired at 20" in said
    assert (bank.paid, late.paid) == ([2], [])


async def test_a_question_of_an_inner_tool_that_expired_ends_the_call(make_agent, memory_stores):
    """The inner agent cannot continue without an answer, so the outer model reads why."""

    @tool
    async def drop(context: ToolContext) -> str:
        """Drop a table."""
        raise NeedsInput([Ask("Sure?", kind=PendingKind.APPROVAL, expires_s=1e-6)])

    helper = Agent(
        "inner", llm_provider=ScriptedProvider([tool_call("drop")]), tools=[drop], agent_name="h"
    )
    agent = await make_agent(
        [tool_call("h", prompt="go"), text("ok")], tools=[helper.as_tool()], stores=memory_stores
    )
    pending = (await agent.execute_turn("go")).pending
    await too_late(pending)
    result = await agent.execute_turn(None)
    assert result.text == "ok"
    assert "asked for an approval of drop, which expired" in results(result.messages)["h"]


async def test_an_answer_of_the_last_moment_ends_as_expired(make_agent, memory_stores, monkeypatch):
    """In time for the outer turn, and too late when the inner agent reads it."""
    monkeypatch.setattr("looopy.tools.sources.agents._LEAST_S", 3600)
    bank = Bank(approval_expires_s=1e-6)
    agent = await make_agent(
        [tool_call("helper", prompt="pay"), text("done")],
        tools=[banker(bank, tool_call("pay", cents=9))],
        stores=memory_stores,
    )
    [request] = (await agent.execute_turn("go")).pending
    result = await agent.execute_turn(None, inputs={request.request_id: True})
    assert "neither answered nor denied" in results(result.messages)["helper"]  # inner model too
    assert bank.paid == []


async def test_a_decision_in_a_buffered_turn_is_saved_with_it(make_agent, memory_stores):
    """`auto_save=False`: the event is part of the claim that the save makes."""
    bank = Bank()
    agent, request = await asked(make_agent, memory_stores, bank, auto_save=False)
    await agent.execute_turn(
        "and be quick", BOSS, inputs={request.request_id: Approve(args={"cents": 3})}
    )
    assert bank.paid == [3]
    await agent.save_state()
    events = await memory_stores.journal.events("ada")
    [decided], [start] = of(ApprovalDecided, events), of(ToolExecutionStart, events)
    assert (decided.actor_id, start.args) == ("boss", {"cents": 3})
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
