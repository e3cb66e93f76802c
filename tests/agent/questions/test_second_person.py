"""One person asks, another one decides: the call has the identity of the first alone."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest
from tests.agent.kit import assert_whole, collect
from tests.agent.questions.test_decisions import of

from looopy import Approve, AuthContext, Deny, ToolContext, open_stores, tool
from looopy.agent.plan import DENIED
from looopy.auth import AuthRequest, encrypt_credential
from looopy.errors import (
    AccessDenied,
    AlreadyAnswered,
    CannotContinue,
    InputExpired,
    InputNotFound,
    ValueRefused,
)
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import client_tool
from looopy.types.event import ApprovalDecided
from looopy.types.message import ToolResultMessage
from looopy.types.state import AgentStatus, Outcome, PendingKind

ADA = AuthContext("ada", credentials={"token": "ada's-token-1"})
BOSS = AuthContext("boss", credentials={"token": "boss's-token-1"})
EVE = AuthContext("eve", credentials={"token": "eve's-token-1"})


class Office:
    """A tool that needs approval, and notes who it ran as."""

    def __init__(self, **options):
        self.ran = []

        @tool(effects="external", needs_approval=True, **options)
        async def pay(cents: int, context: ToolContext) -> str:
            """Pay."""
            actor = context.auth_context and context.auth_context.actor_id
            self.ran.append((actor, dict(context.credentials), cents))
            return "paid"

        self.tools = [pay]


async def asked(make_agent, stores, office, actor=ADA, replies=None):
    """An agent whose call waits, and the id of the request."""
    script = [tool_call("pay", cents=5), *([text("done")] if replies is None else replies)]
    agent = await make_agent(script, tools=office.tools, stores=stores)
    [request] = (await agent.execute_turn("pay", actor)).pending
    return agent, request.request_id


@pytest.mark.parametrize("by", ["decide", "inputs"])
async def test_an_approved_call_runs_as_the_actor_of_its_turn(make_agent, stores, by):
    """The decision is the approver's; the call waits for its own actor's credentials."""
    office = Office()
    agent, name = await asked(make_agent, stores, office)
    if by == "decide":
        decided = await agent.decide(name, Approve(note="fine"), BOSS)
    else:
        result = await agent.execute_turn(None, BOSS, inputs={name: Approve(note="fine")})
        assert result.outcome is Outcome.AUTH_REQUIRED
        [decided] = of(ApprovalDecided, await stores.journal.events("ada"))
    assert (decided.actor_id, decided.decision, decided.text) == ("boss", "approved", "fine")
    assert decided.seq is not None
    state = agent.state
    assert (state.status, state.pending, state.needs_auth) == (AgentStatus.WAITING, (), True)
    again = await make_agent([text("fine")], tools=office.tools, stores=stores)
    assert (again.state.status, again.state.needs_auth) == (AgentStatus.WAITING, True)
    for stranger in (BOSS, EVE, None):
        result = await again.execute_turn(None, stranger)
        assert (result.outcome, office.ran) == (Outcome.AUTH_REQUIRED, [])
    result = await again.execute_turn(None, ADA)
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "fine")
    assert office.ran == [("ada", {"token": "ada's-token-1"}, 5)]
    assert [e.actor_id for e in of(ApprovalDecided, await stores.journal.events("ada"))] == ["boss"]
    await assert_whole(stores)


@pytest.mark.parametrize("by", ["decide", "inputs"])
async def test_a_denied_call_is_answered_in_its_actors_turn(make_agent, stores, by):
    """No model call is made for the one who denies."""
    office = Office()
    agent, name = await asked(make_agent, stores, office, replies=())
    if by == "decide":
        await agent.decide(name, Deny(reason="no"), BOSS)
    else:
        await agent.execute_turn(None, BOSS, inputs={name: Deny(reason="no")})
    again = await make_agent([text("pity")], tools=office.tools, stores=stores)
    result = await again.execute_turn(None, ADA)
    assert (result.text, office.ran) == ("pity", [])
    [said] = [m.text for m in result.messages if isinstance(m, ToolResultMessage)]
    assert said == f"{DENIED} The user's reason: no"


async def test_the_own_actor_may_decide_before_running(make_agent, stores):
    """`decide` never runs the call; `inputs` of the actor runs it as ever."""
    office = Office()
    agent, name = await asked(make_agent, stores, office, replies=[tool_call("pay", cents=6)])
    await agent.decide(name, Approve(), ADA)
    assert (office.ran, agent.state.needs_auth) == ([], True)
    result = await agent.execute_turn(None, ADA)
    [request] = result.pending
    await agent.execute_turn(None, ADA, inputs={request.request_id: True})
    assert [(actor, cents) for actor, _, cents in office.ran] == [("ada", 5), ("ada", 6)]


async def test_an_anonymous_turns_call_runs_without_the_approvers_credentials(make_agent, stores):
    """There are no credentials to wait for."""
    office = Office()
    agent, name = await asked(make_agent, stores, office, actor=None)
    result = await agent.execute_turn(None, BOSS, inputs={name: True})
    assert (result.text, office.ran) == ("done", [(None, {}, 5)])
    [decided] = of(ApprovalDecided, await stores.journal.events("ada"))
    assert decided.actor_id == "boss"
    assert [turn.actor_id for turn in await stores.journal.turns("ada")] == [None, None]
    assert (await stores.state.load("ada")).owner_actor is None


async def test_a_decision_for_an_anonymous_turn_lends_no_identity(make_agent, stores):
    """Also if the decider continues it."""
    office = Office()
    agent, name = await asked(make_agent, stores, office, actor=None)
    await agent.decide(name, Approve(), BOSS)
    await agent.execute_turn(None, BOSS)
    assert office.ran == [(None, {}, 5)]


async def test_a_decision_counts_once(make_agent, stores):
    """The same again is the same event; another one, or somebody else's, is refused."""
    office = Office()
    agent, name = await asked(make_agent, stores, office)
    first = await agent.decide(name, Approve(), BOSS)
    log = await stores.journal.events("ada")
    for _ in range(2):
        assert await agent.decide(name, Approve(), BOSS) == first
        for answer, who in ((False, BOSS), (Approve(note="x"), BOSS), (True, EVE), (True, None)):
            with pytest.raises(AlreadyAnswered, match="was approved before by 'boss'") as late:
                await agent.decide(name, answer, who)
            assert (late.value.request_id, late.value.actor_id) == (name, "boss")
        if not office.ran:
            assert await stores.journal.events("ada") == log
            await agent.execute_turn(None, ADA)
    assert len(office.ran) == 1


@pytest.mark.parametrize("answer", [False, Deny(), Deny(reason="no")])
async def test_a_denial_that_comes_again_is_the_same_event(make_agent, memory_stores, answer):
    """With a reason or without."""
    agent, name = await asked(make_agent, memory_stores, Office())
    first = await agent.decide(name, answer, BOSS)
    assert await agent.decide(name, answer, BOSS) == first
    with pytest.raises(AlreadyAnswered, match="was denied before by 'boss'"):
        await agent.decide(name, Deny(reason="another"), BOSS)


async def test_two_people_at_the_same_moment_are_one_decision(make_agent, stores):
    """The other one gets an error that names the first."""
    office = Office()
    agent, name = await asked(make_agent, stores, office)
    there = await make_agent([text("done")], tools=office.tools, stores=stores)
    ends = await asyncio.gather(
        agent.decide(name, Approve(), BOSS),
        there.decide(name, Deny(), EVE),
        there.decide(name, Deny(), EVE),
        return_exceptions=True,
    )
    [decided] = of(ApprovalDecided, await stores.journal.events("ada"))
    assert {type(end) for end in ends} == {ApprovalDecided, AlreadyAnswered}
    assert all(end == decided for end in ends if isinstance(end, ApprovalDecided))
    await there.execute_turn(None, ADA)
    assert len(office.ran) == (decided.decision == "approved")


async def test_some_of_several_requests_are_decided(make_agent, stores):
    """The rest keeps waiting, and everything runs as the actor in the end."""
    office = Office()
    calls = (tool_call("pay", cents=1), tool_call("pay", cents=2))
    agent = await make_agent([calls], tools=office.tools, stores=stores)
    first, second = (await agent.execute_turn("pay", ADA)).pending
    await agent.decide(first.request_id, Approve(), BOSS)
    assert [one.request_id for one in agent.state.pending] == [second.request_id]
    there = await make_agent([text("done")], tools=office.tools, stores=stores)
    await there.execute_turn(None, ADA, inputs={second.request_id: True})
    assert [(actor, cents) for actor, _, cents in office.ran] == [("ada", 1), ("ada", 2)]


async def test_answers_with_a_text_of_another_actor_are_refused(make_agent, stores):
    """The text would be said in a turn that acts for the wrong person."""
    office = Office()
    agent, name = await asked(make_agent, stores, office)
    before = await stores.journal.events("ada")
    with pytest.raises(CannotContinue, match="of their actor"):
        await agent.execute_turn("be quick", BOSS, inputs={name: True})
    assert (await stores.journal.events("ada"), office.ran) == (before, [])


async def test_a_credential_of_another_actor_is_refused(make_agent, stores):
    """It would let the actor's call work in another person's account."""

    @tool
    async def push(context: ToolContext) -> str:
        """Push."""
        return await context.ask("token", auth=AuthRequest(type="pat"))

    agent = await make_agent([tool_call("push"), text("ok")], tools=[push], stores=stores)
    [request] = (await agent.execute_turn("push", ADA)).pending
    answer = encrypt_credential("boss's-own-token", request.auth)
    with pytest.raises(AccessDenied, match="only that actor can give them"):
        await agent.execute_turn(None, BOSS, inputs={request.request_id: answer})
    with pytest.raises(ValueRefused, match="asks for no decision"):
        await agent.decide(request.request_id, Approve(), BOSS)
    assert agent.state.pending == (request,)
    result = await agent.execute_turn(
        None, ADA, inputs={request.request_id: encrypt_credential("ada's-own", request.auth)}
    )
    assert result.text == "ok"


async def test_another_actors_answer_to_a_question_waits_too(make_agent, memory_stores):
    """A client's tool, and whatever else is asked: the answer is kept for the actor."""
    snap = client_tool("snap", "Take a picture.", {"type": "object", "properties": {}})
    agent = await make_agent([tool_call("snap"), text("ok")], tools=[snap], stores=memory_stores)
    [request] = (await agent.execute_turn("go", ADA)).pending
    assert request.kind is PendingKind.CLIENT_TOOL
    with pytest.raises(ValueRefused, match="asks for no decision"):
        await agent.decide(request.request_id, Approve(), BOSS)
    result = await agent.execute_turn(None, BOSS, inputs={request.request_id: {"x": 1}})
    assert result.outcome is Outcome.AUTH_REQUIRED
    result = await agent.execute_turn(None, ADA)
    assert [m.text for m in result.messages if m.role == "toolResult"] == ['{"x": 1}']


async def test_a_decision_on_an_expired_or_deleted_request_is_refused(make_agent, memory_stores):
    """An expired request, a cleared one, one of a fork, one that was never there."""
    office = Office(approval_expires_s=0.000_001)
    agent, name = await asked(make_agent, memory_stores, office)
    with pytest.raises(InputExpired):
        await agent.decide(name, Approve(), BOSS)
    result = await agent.execute_turn(None, BOSS)  # it does not act for ada
    assert (result.outcome, office.ran) == (Outcome.AUTH_REQUIRED, [])
    with pytest.raises(InputNotFound, match="was expired before"):
        await agent.decide(name, Approve(), BOSS)
    agent, name = await asked(make_agent, memory_stores, Office())
    await agent.fork("fork")
    fork = await make_agent([], context_id="fork", tools=office.tools, stores=memory_stores)
    with pytest.raises(InputNotFound):
        await fork.decide(name, Approve(), BOSS)
    await agent.rewind(agent.state.turn_count)
    with pytest.raises(InputNotFound):
        await agent.decide(name, Approve(), BOSS)
    await agent.clear()
    with pytest.raises(InputNotFound):
        await agent.decide(name, Approve(), BOSS)


async def test_a_damaged_record_of_the_call_lends_no_identity(make_agent, sqlite_file):
    """The turn that asked is known from the request as well."""
    office, url = Office(), f"sqlite:///{sqlite_file}"
    async with open_stores(url) as stores:
        _, name = await asked(make_agent, stores, office)
        with closing(sqlite3.connect(sqlite_file)) as database, database:
            changed = "replace(state, '\"held\":[', '\"held\":[1,')"
            damage = f"UPDATE looopy_contexts SET state = {changed}"
            assert database.execute(damage).rowcount == 1
        agent = await make_agent([text("done")], tools=office.tools, stores=stores)
        for _ in range(2):
            inputs = {one.request_id: True for one in agent.state.pending}
            result = await agent.execute_turn(None, BOSS, inputs=inputs)
            assert (result.outcome, office.ran) == (Outcome.AUTH_REQUIRED, [])
        assert inputs == {}
        assert name == "1-call_1"


async def test_a_decision_about_an_inner_agents_call_is_the_deciders_there_too(make_agent, stores):
    """The call runs as the actor of the outer turn; both logs name who decided."""
    office = Office()
    helper = await make_agent(
        [tool_call("pay", cents=5), text("paid")],
        tools=office.tools,
        start=False,
        context_id="inner",
        agent_name="helper",
    )
    script = [tool_call("helper", prompt="pay"), text("done")]
    agent = await make_agent(script, tools=[helper.as_tool()], stores=stores)
    [request] = (await agent.execute_turn("pay", ADA)).pending
    await agent.decide(request.request_id, Approve(note="fine"), BOSS)
    again = await make_agent([text("done")], tools=[helper.as_tool()], stores=stores)
    await again.execute_turn(None, ADA)
    assert [(actor, cents) for actor, _, cents in office.ran] == [("ada", 5)]
    for record in await stores.state.list():
        [decided] = of(ApprovalDecided, await stores.journal.events(record.context_id))
        assert (decided.actor_id, decided.text) == ("boss", "fine")
        assert [t.actor_id for t in await stores.journal.turns(record.context_id)][-1] == "ada"


async def test_a_buffered_turn_does_not_act_for_the_approver(make_agent, memory_stores):
    """Where nothing is stored yet, either."""
    office = Office()
    script = [tool_call("pay", cents=5), text("done")]
    agent = await make_agent(script, tools=office.tools, stores=memory_stores, auto_save=False)
    [request] = (await agent.execute_turn("pay", ADA)).pending
    result = await agent.execute_turn(None, BOSS, inputs={request.request_id: True})
    assert (result.outcome, office.ran) == (Outcome.AUTH_REQUIRED, [])
    result = await agent.execute_turn(None, BOSS)
    assert (result.outcome, office.ran) == (Outcome.AUTH_REQUIRED, [])
    await agent.execute_turn(None, ADA)
    assert [actor for actor, _, _ in office.ran] == ["ada"]


async def test_a_turn_is_continued_by_its_own_actor(make_agent, memory_stores):
    """A call that its turn left open runs as nobody else, approved or not."""
    office = Office()
    provider = ScriptedProvider([tool_call("pay", cents=5), text("done")])
    agent = await make_agent(provider, tools=office.tools, stores=memory_stores)
    [request] = (await agent.execute_turn("pay", ADA)).pending
    stream = agent.execute_turn(None, EVE, inputs={request.request_id: True})
    await collect(stream)
    assert len(provider.requests) == 1
    result = await agent.execute_turn("never mind", EVE)  # whoever speaks drops it
    assert (result.text, office.ran) == ("done", [])
