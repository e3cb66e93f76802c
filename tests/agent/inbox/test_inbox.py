"""Steering, follow-ups and cancelling, from anywhere: heard in time, said once, never lost."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import Gate, add, assert_whole, collect, types

from looopy import Agent, AuthContext, LoopConfig, UserMessage
from looopy.errors import (
    AccessDenied,
    AgentNotStarted,
    AgentStateError,
    CannotContinue,
    IdempotencyConflict,
    StoreUnavailable,
    TurnMismatch,
    ValueRefused,
)
from looopy.stores.records import Commit
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.tools import tool
from looopy.types.event import MessageEnd, ToolExecutionEnd, ToolExecutionStart, TurnEnd
from looopy.types.state import Outcome

SKIPPED = "Skipped due to queued user message."
ADA, BOB = AuthContext("ada"), AuthContext("bob")


async def said(agent) -> list[str]:
    """What is in the history, as role and text."""
    return [f"{m.role}: {m.text}" for m in await agent.get_messages()]


@pytest.fixture(params=["the same agent", "another agent"])
async def pair(request, make_agent, stores):
    """A function that makes an agent which runs turns, and who speaks to it from aside."""

    async def make(replies, **options):
        agent = await make_agent(replies, stores=stores, **options)
        if request.param == "the same agent":
            return agent, agent
        return agent, await make_agent(stores=stores)

    return make


async def test_steering_skips_the_calls_that_have_not_started(pair):
    """The running one ends, each other gets its result, and the model hears the message next."""
    gate = Gate()
    provider = ScriptedProvider(
        [(tool_call("gate"), tool_call("add", a=1, b=2), tool_call("add", a=3, b=4)), text("ok")]
    )
    agent, aside = await pair(provider, tools=[gate.tool, add])
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await aside.steer("stop that")
    gate.open.set()
    events = await collect(stream)
    assert await said(agent) == [
        "user: go",
        "assistant: ",
        "toolResult: through",
        f"toolResult: {SKIPPED}",
        f"toolResult: {SKIPPED}",
        "user: stop that",
        "assistant: ok",
    ]
    ends = [e for e in events if isinstance(e, ToolExecutionEnd)]
    assert [e.is_error for e in ends] == [False, True, True]
    assert sum(isinstance(e, ToolExecutionStart) for e in events) == 3
    assert [m.text for m in provider.requests[1].messages][-1] == "stop that"
    assert types(events).count("turn_end") == 1
    assert (await stream).turn == 1


async def test_after_batch_lets_the_calls_run_first(pair):
    """`steering="after_batch"`: nothing is skipped; the message comes after the results."""
    gate = Gate()
    agent, aside = await pair(
        [(tool_call("gate"), tool_call("add", a=1, b=2)), text("ok")],
        tools=[gate.tool, add],
        loop_config=LoopConfig(steering="after_batch"),
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await aside.steer("and then?")
    gate.open.set()
    await stream
    assert (await said(agent))[2:] == [
        "toolResult: through",
        "toolResult: 3",
        "user: and then?",
        "assistant: ok",
    ]


async def test_a_call_whose_commit_reports_steering_is_not_run(make_agent, stores):
    """What came in while the call's start was being stored is seen before the call runs."""
    spy = SpyStores(stores)
    runs = []

    @tool
    def effect() -> str:
        """Have an effect."""
        runs.append(1)
        return "done"

    agent = await make_agent([tool_call("effect"), text("ok")], stores=spy.stores, tools=[effect])

    async def steer(name, commit) -> None:
        if name == "commit" and any(isinstance(e, ToolExecutionStart) for e in commit.events):
            await agent.steer("no, wait")

    spy.hook = steer
    await agent.execute_turn("go")
    assert runs == []
    assert (await said(agent))[2:] == [f"toolResult: {SKIPPED}", "user: no, wait", "assistant: ok"]
    await assert_whole(stores)


async def test_a_message_before_the_last_commit_continues_the_turn(make_agent, stores):
    """The commit that would end the turn gives way: what was acknowledged is heard in it."""
    spy = SpyStores(stores)
    provider = ScriptedProvider([text("one"), text("two"), text("three")])
    agent = await make_agent(provider, stores=spy.stores)
    aside = await make_agent(stores=stores)
    kinds = iter([aside.follow_up, aside.steer])

    async def speak(name, commit) -> None:
        if name == "commit" and isinstance(commit.events[-1], TurnEnd):
            speaking = next(kinds, None)
            if speaking is not None:
                await speaking(speaking.__name__)

    spy.hook = speak
    stream = agent.execute_turn("go")
    events = await collect(stream)
    assert await said(agent) == [
        "user: go",
        "assistant: one",
        "user: follow_up",
        "assistant: two",
        "user: steer",
        "assistant: three",
    ]
    assert types(events).count("turn_end") == 1
    assert len((await stream).iterations) == 3
    assert (await stream).text == "three"
    assert (await stores.state.load("ada")).inbox.waiting == 0
    await assert_whole(stores)


async def test_a_follow_up_waits_until_the_answer_stands(pair):
    """Not between the tools, and after what was steered."""
    gate = Gate()
    agent, aside = await pair(
        [tool_call("gate"), text("one"), text("two"), text("three")], tools=[gate.tool]
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await aside.follow_up("later")
    await aside.steer("now")
    gate.open.set()
    await stream
    assert (await said(agent))[2:] == [
        "toolResult: through",
        "user: now",
        "assistant: one",
        "user: later",
        "assistant: two",
    ]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("one-at-a-time", ["user: a", "assistant: 1", "user: b", "assistant: 2"]),
        ("all", ["user: a", "user: b", "assistant: 1"]),
    ],
)
async def test_messages_are_said_one_at_a_time_or_all_at_once(pair, mode, expected):
    """`queue_mode`."""
    gate = Gate()
    agent, aside = await pair(
        [tool_call("gate"), text("1"), text("2")],
        tools=[gate.tool],
        loop_config=LoopConfig(queue_mode=mode),
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await aside.steer("a")
    await aside.steer("b")
    gate.open.set()
    await stream
    assert (await said(agent))[3:] == expected


async def test_a_message_queued_while_idle_is_kept_and_continued(make_agent, stores):
    """Two steers are two rounds, before the follow-up; in an agent that begins with nothing."""
    first = await make_agent([text("hi")], stores=stores)
    await first.execute_turn("hello")
    await first.follow_up("last")
    await first.steer("one")
    await first.steer("two")
    await first.shutdown()
    second = await make_agent([text("1"), text("2"), text("3")], stores=stores)
    stream = second.execute_turn(None)
    events = await collect(stream)
    assert events[0].user_message.text == "one"
    assert (await said(second))[2:] == [
        "user: one",
        "assistant: 1",
        "user: two",
        "assistant: 2",
        "user: last",
        "assistant: 3",
    ]
    with pytest.raises(CannotContinue):
        await second.execute_turn(None)
    await assert_whole(stores)


async def test_a_new_message_comes_before_what_was_queued(make_agent, stores):
    """Steering that nobody has heard goes with the next turn, before its first model call."""
    agent = await make_agent([text("1"), text("2")], stores=stores)
    await agent.steer("by the way")
    await agent.follow_up("and afterwards")
    await agent.execute_turn("hello")
    assert await said(agent) == [
        "user: hello",
        "user: by the way",
        "assistant: 1",
        "user: and afterwards",
        "assistant: 2",
    ]
    await assert_whole(stores)


async def test_only_the_actor_of_the_turn_may_speak_to_it(make_agent, stores):
    """Refused at the store; what another actor has queued waits for a turn of theirs."""
    gate = Gate()
    agent = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores)
    aside = await make_agent([text("to bob")], stores=stores)
    stream = agent.execute_turn("go", ADA)
    await gate.entered.wait()
    for speak in (aside.steer, aside.follow_up):
        for auth in (BOB, None):
            with pytest.raises(AccessDenied):
                await speak("let me in", auth)
    await aside.steer("it is me", AuthContext("ada"))
    gate.open.set()
    await stream
    assert (await said(agent))[3:] == ["user: it is me", "assistant: ok"]
    with pytest.raises(AccessDenied):  # nobody's turn runs: the context is ada's
        await aside.steer("now?", BOB)
    await aside.steer("mine", ADA)
    assert (await aside.execute_turn("bob asks", BOB)).text == "to bob"
    assert "user: mine" not in await said(aside)
    assert (await stores.state.load("ada")).inbox.waiting == 1


async def test_the_turn_that_is_meant_can_be_named(make_agent, stores):
    """`expected_turn`: another one, or none, is a mismatch, and nothing is stored."""
    gate = Gate()
    agent = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores)
    with pytest.raises(TurnMismatch) as none:
        await agent.steer("too early", expected_turn=1)
    assert (none.value.expected, none.value.actual) == (1, None)
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    with pytest.raises(TurnMismatch) as other:
        await agent.steer("not you", expected_turn=2)
    assert (other.value.expected, other.value.actual) == (2, 1)
    await agent.steer("you", expected_turn=1)
    gate.open.set()
    await stream
    assert "user: you" in await said(agent)
    assert not {"user: too early", "user: not you"} & set(await said(agent))


async def test_cancelling_reaches_a_turn_that_runs_elsewhere(make_agent, stores):
    """It ends as `cancelled` while it waits for a tool, without a commit of its own to tell it."""
    gate = Gate()
    agent = await make_agent([tool_call("gate")], tools=[gate.tool], stores=stores)
    aside = await make_agent(stores=stores)
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await aside.cancel()
    result = await stream
    assert result.outcome is Outcome.CANCELLED
    await aside.cancel()  # nothing runs
    assert (await stores.state.load("ada")).inbox.cancel_turn is None
    await assert_whole(stores)


async def test_a_cancel_that_is_acknowledged_before_the_end_counts(make_agent, stores):
    """The last commit gives way to it, and keeps what the model said."""
    spy = SpyStores(stores)
    agent = await make_agent([text("an answer")], stores=spy.stores)
    aside = await make_agent(stores=stores)
    asked = []

    async def cancel(name, commit) -> None:
        if name == "commit" and isinstance(commit.events[-1], TurnEnd) and not asked:
            asked.append(1)
            await aside.cancel()

    spy.hook = cancel
    result = await agent.execute_turn("go")
    assert result.outcome is Outcome.CANCELLED
    assert await said(agent) == ["user: go", "assistant: an answer"]
    await assert_whole(stores)


async def test_a_cancelled_turn_leaves_the_queue_alone(make_agent, stores):
    """Cancelling is not clearing: the next turn says what waits."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("1"), text("2")], tools=[gate.tool], stores=stores
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await agent.follow_up("still here")
    await agent.cancel()
    await stream
    assert (await stores.state.load("ada")).inbox.waiting == 1
    await agent.execute_turn("again")
    assert (await said(agent))[-4:] == [
        "user: again",
        "assistant: 1",
        "user: still here",
        "assistant: 2",
    ]


async def test_a_message_taken_but_not_stored_stays_in_the_inbox(make_agent, stores):
    """The store fails at the very commit that delivers: the message is not lost."""
    spy = SpyStores(stores)
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("never"), text("late")], tools=[gate.tool], stores=spy.stores
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await agent.steer("keep me")

    def fail(name, commit) -> None:
        if isinstance(commit, Commit) and commit.delivered:
            raise StoreUnavailable("gone", outcome_known=True)

    spy.hook = fail
    gate.open.set()
    with pytest.raises(StoreUnavailable):
        await stream
    spy.hook = None
    assert [e.message.text for e in (await stores.journal.inbox("ada"))[1]] == ["keep me"]
    await agent.start()
    await agent.execute_turn(None)
    assert [line for line in await said(agent) if "keep me" in line] == ["user: keep me"]
    await assert_whole(stores)


async def test_a_turn_that_fails_keeps_what_it_has_not_said(make_agent, stores):
    """Guards and errors end a turn whatever waits; what waits goes on waiting."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("never")],
        tools=[gate.tool],
        stores=stores,
        loop_config=LoopConfig(max_iterations=1),
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await agent.steer("unheard")
    gate.open.set()
    result = await stream
    assert result.stop_reason == "max_iterations"
    assert (await stores.state.load("ada")).inbox.waiting == 1


async def test_clearing_empties_the_inbox(make_agent, stores):
    """With the history goes what was to be said in it."""
    agent = await make_agent([text("hi"), text("fresh")], stores=stores)
    await agent.execute_turn("hello")
    await agent.steer("forget me")
    await agent.clear()
    with pytest.raises(CannotContinue):
        await agent.execute_turn(None)
    await agent.execute_turn("new")
    assert await said(agent) == ["user: new", "assistant: fresh"]


async def test_delivery_is_one_commit_with_the_message(make_agent, stores):
    """The entry leaves the inbox in the commit that holds its `message_end`, and in no other."""
    spy = SpyStores(stores)
    gate = Gate()
    agent = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=spy.stores)
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    await agent.steer("hear me")
    gate.open.set()
    await stream
    [commit] = [c for c in spy.of("commit") if c.delivered]
    texts = [e.message.text for e in commit.events if isinstance(e, MessageEnd)]
    assert texts[-1] == "hear me"
    assert len(commit.delivered) == 1


async def test_a_turn_without_messages_never_reads_the_inbox(make_agent, stores, backend):
    """A claim and three commits, and not one read of the inbox."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("3")], tools=[add], stores=spy.stores
    )
    await agent.execute_turn("go")
    assert spy.writes == 4
    if backend in ("memory", "sqlite"):  # Postgres: one, when it has begun to listen
        assert spy.of("inbox") == []


async def test_misuse_is_named(make_agent, stores):
    """Not started, empty, or kept in memory alone."""
    agent = await make_agent(stores=stores, start=False)
    for speak in (agent.steer, agent.follow_up):
        with pytest.raises(AgentNotStarted):
            await speak("hello")
    await agent.start()
    for nothing in ("", "  ", UserMessage("")):
        with pytest.raises(ValueRefused):
            await agent.steer(nothing)
    with pytest.raises(ValueRefused) as place:
        await agent.follow_up("a\x00b")
    assert place.value.path == "/content"
    with pytest.raises(AccessDenied):
        await agent.steer("hello", AuthContext("ada", tenant_id="elsewhere"))
    buffered = await make_agent(context_id="eve", stores=stores, auto_save=False)
    with pytest.raises(AgentStateError):
        await buffered.steer("hello")


async def test_messages_of_many_agents_at_once_are_each_stored_once(make_agent, stores):
    """Twenty messages from four agents while a turn runs: all in the history, in order of entry."""
    provider = ScriptedProvider(lambda r: text(f"re {r.messages[-1].text}"), repeat=True)
    agent = await make_agent(
        provider, stores=stores, loop_config=LoopConfig(max_iterations=60, queue_mode="all")
    )
    asides = [await make_agent(stores=stores) for _ in range(4)]
    stream = agent.execute_turn("go")
    await stream.accepted()
    await asyncio.gather(*(a.follow_up(f"{n}-{i}") for n, a in enumerate(asides) for i in range(5)))
    await stream
    while (await stores.state.load("ada")).inbox.waiting:
        await agent.execute_turn(None)
    heard = [m.text for m in await agent.get_messages() if m.role == "user"][1:]
    assert sorted(heard) == sorted(f"{n}-{i}" for n in range(4) for i in range(5))
    for n in range(4):
        assert [h for h in heard if h.startswith(f"{n}-")] == [f"{n}-{i}" for i in range(5)]
    await assert_whole(stores)


@pytest.mark.parametrize("speak", [Agent.steer, Agent.follow_up])
async def test_a_message_with_a_key_is_stored_once(speak, make_agent, memory_stores):
    """Sent again by whoever, in the turn and after it; another message with its key is refused."""
    gate = Gate()
    replies = [tool_call("gate"), text("Two.")]
    agent = await make_agent(replies, tools=[gate.tool], stores=memory_stores)
    other = await make_agent(stores=memory_stores)
    turn = agent.execute_turn("Go.")
    await gate.entered.wait()
    for one in (agent, other, agent):
        await speak(one, "And this.", expected_turn=1, idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="in turn 1, for another message"):
        await speak(other, "And that.", expected_turn=1, idempotency_key="k")
    with pytest.raises(ValueRefused, match="the turn that the message is for"):
        await speak(agent, "And this.", idempotency_key="new")
    gate.open.set()
    await turn
    await speak(other, "And this.", expected_turn=1, idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="in turn 1, for another message"):
        await speak(other, "And that.", expected_turn=1, idempotency_key="k")
    for key, number in (("k", 2), ("new", 1)):
        with pytest.raises(TurnMismatch):
            await speak(other, "And this.", expected_turn=number, idempotency_key=key)
    assert (await said(agent)).count("user: And this.") == 1
