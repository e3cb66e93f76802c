"""A turn as its subscribers see it, and what is in the store when they do."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import add, assert_whole, collect, look, types

from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.event import MessageEnd, MessageUpdate, TurnEnd
from looopy.types.message import AssistantMessage, StopReason, ToolResultMessage, UserMessage
from looopy.types.state import AgentStatus, Outcome

TEXT_TURN = [
    "turn_start",
    "iteration_start",
    "message_start",
    "message_end",
    "message_start",
    "message_end",
    "usage",
    "iteration_end",
    "turn_end",
]
TOOL_TURN = [
    "turn_start",
    "iteration_start",
    "message_start",
    "message_end",
    "message_start",
    "message_end",
    "tool_execution_start",
    "tool_execution_end",
    "message_start",
    "message_end",
    "usage",
    "iteration_end",
    "iteration_start",
    "message_start",
    "message_end",
    "usage",
    "iteration_end",
    "turn_end",
]


async def test_a_text_turn_has_these_events_in_this_order(make_agent, stores):
    """Turn, iteration, the user's message, the answer, and the ends in reverse."""
    agent = await make_agent(ScriptedProvider([text("hello")], chunk_chars=2), stores=stores)
    events = await collect(agent.execute_turn("hi"))
    assert types(events) == TEXT_TURN
    deltas = [e for e in events if isinstance(e, MessageUpdate) and e.delta]
    assert [e.delta for e in deltas] == ["he", "ll", "o"]
    places = types(events, deltas=True)
    first, last = (
        places.index("message_update"),
        len(places) - 1 - places[::-1].index("message_update"),
    )
    assert places[first - 1] == "message_start"
    assert places[last + 1] == "message_end"


async def test_a_tool_turn_has_these_events_in_this_order(make_agent, stores):
    """The result message follows its execution; the next iteration follows the whole of it."""
    agent = await make_agent([tool_call("add", a=1, b=2), text("3")], tools=[add], stores=stores)
    events = await collect(agent.execute_turn("1 + 2?"))
    assert types(events) == TOOL_TURN
    assert [e.iteration for e in events if e.type == "iteration_start"] == [1, 2]


async def test_every_event_has_its_context_and_turn(make_agent, stores):
    """Context, turn and an aware time are on every event; `seq` on the durable ones alone."""
    agent = await make_agent(
        [text("one"), tool_call("add", a=1, b=2), text("two")], tools=[add], stores=stores
    )
    await agent.execute_turn("a")
    events = await collect(agent.execute_turn("b"))
    assert {e.context_id for e in events} == {"ada"}
    assert {e.turn for e in events} == {2}
    assert all(e.timestamp.utcoffset() is not None for e in events)
    assert all(e.path == () for e in events)
    numbered = [e for e in events if e.seq is not None]
    assert [e.seq for e in numbered] == list(range(numbered[0].seq, numbered[0].seq + 8))
    assert {e.type for e in numbered} == {
        "turn_start",
        "message_end",
        "tool_execution_start",
        "tool_execution_end",
        "turn_end",
    }


async def test_numbers_of_events_have_no_gap_over_turns(make_agent, stores):
    """The first event of a turn follows the last one of the turn before."""
    agent = await make_agent([text("1"), text("2"), text("3")], stores=stores)
    seqs = []
    for said in ("a", "b", "c"):
        seqs += [e.seq for e in await collect(agent.execute_turn(said)) if e.seq is not None]
    assert seqs == list(range(1, 13))
    await assert_whole(stores)


async def test_the_stored_events_are_those_that_were_seen(make_agent, stores):
    """Replaying gives the durable events of the stream, in order and equal in what they say."""
    agent = await make_agent([tool_call("add", a=1, b=2), text("3")], tools=[add], stores=stores)
    seen = [e for e in await collect(agent.execute_turn("1 + 2?")) if e.seq is not None]
    stored = await stores.journal.events("ada")
    assert [(e.seq, e.type, e.turn, e.iteration) for e in stored] == [
        (e.seq, e.type, e.turn, e.iteration) for e in seen
    ]
    for old, new in zip(seen, stored, strict=True):
        for name in ("message", "position", "result", "args", "tool_call_id", "user_message"):
            assert getattr(old, name, None) == getattr(new, name, None)


async def test_a_durable_event_is_seen_only_after_its_commit(make_agent, stores):
    """Whoever sees an event with a number finds it in the store at once."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("3")], tools=[add], stores=spy.stores
    )
    done: list[tuple[str, int]] = []
    agent.subscribe(lambda e: done.append((e.type, spy.writes)) if e.seq else None)
    async for event in agent.execute_turn("1 + 2?"):
        if event.seq is not None:
            stored = await stores.journal.events("ada", after=event.seq - 1, limit=1)
            assert [(e.seq, e.type) for e in stored] == [(event.seq, event.type)]
    assert done == [
        ("turn_start", 1),
        ("message_end", 1),
        ("message_end", 2),
        ("tool_execution_start", 2),
        ("tool_execution_end", 3),
        ("message_end", 3),
        ("message_end", 4),
        ("turn_end", 4),
    ]


@pytest.mark.parametrize(
    ("replies", "commits"),
    [
        ([text("hi")], 2),
        ([tool_call("add", a=1, b=2), text("3")], 4),
        ([tool_call("look"), text("seen")], 4),
        ([(tool_call("add", a=1, b=2), tool_call("add", a=3, b=4)), text("3, 7")], 5),
    ],
    ids=["text", "tool", "tool without effects", "two tools"],
)
async def test_a_turn_costs_few_commits(make_agent, stores, replies, commits):
    """Claim and end for a text; two more for a tool, effects or not; one for a further tool."""
    spy = SpyStores(stores)
    agent = await make_agent(replies, tools=[add, look], stores=spy.stores)
    before = len(spy.calls)
    await agent.execute_turn("go")
    assert spy.writes == commits
    assert len(spy.calls) - before == commits, "and nothing is read"


async def test_the_user_message_is_stored_before_the_model_is_called(make_agent, stores):
    """The claim carries it, and the model is asked afterwards."""
    seen = []

    async def reply(_request):
        seen.extend(await stores.messages.list("ada"))
        return text("hi")

    agent = await make_agent(ScriptedProvider(reply), stores=stores)
    await agent.execute_turn("hello")
    assert [m.text for m in seen] == ["hello"]


async def test_the_start_of_a_tool_is_stored_before_the_tool_runs(make_agent, stores):
    """An effect in the world is always preceded by its durable intent."""
    from looopy import tool

    seen = []

    @tool
    async def effect() -> str:
        """Have an effect."""
        seen.extend(await stores.journal.events("ada"))
        return "done"

    agent = await make_agent([tool_call("effect"), text("ok")], tools=[effect], stores=stores)
    await agent.execute_turn("go")
    assert types(seen) == ["turn_start", "message_end", "message_end", "tool_execution_start"]


async def test_awaiting_gives_the_result_of_the_turn(make_agent, stores):
    """Outcome, text, what was added, each iteration, and what it used."""
    agent = await make_agent(
        [(text("let me see"), tool_call("add", a=1, b=2)), text("3")], tools=[add], stores=stores
    )
    result = await agent.execute_turn("1 + 2?")
    assert (result.turn, result.outcome, result.stop_reason) == (
        1,
        Outcome.COMPLETED,
        StopReason.STOP,
    )
    assert result.text == "3"
    assert [type(m) for m in result.messages] == [
        UserMessage,
        AssistantMessage,
        ToolResultMessage,
        AssistantMessage,
    ]
    assert [len(i.tool_results) for i in result.iterations] == [1, 0]
    assert [i.message.text for i in result.iterations] == ["let me see", "3"]
    assert result.usage.total_tokens == sum(i.usage.total_tokens for i in result.iterations) > 0
    assert result.error is None
    assert result.raise_for_outcome() is result
    assert agent.state.usage == result.usage


async def test_the_last_event_is_turn_end_with_what_the_turn_added(make_agent, stores):
    """Prompts included, in order, with positions told by the message ends."""
    agent = await make_agent([text("one"), text("two")], stores=stores)
    await agent.execute_turn("a")
    events = await collect(agent.execute_turn("b"))
    end = events[-1]
    assert isinstance(end, TurnEnd)
    assert [m.text for m in end.messages] == ["b", "two"]
    assert [e.position for e in events if isinstance(e, MessageEnd)] == [3, 4]


async def test_an_assistant_message_has_provider_and_stop_reason(make_agent, memory_stores):
    """When the call began, how long to the first delta, how many attempts, and its usage."""
    agent = await make_agent([text("hello")], stores=memory_stores)
    events = await collect(agent.execute_turn("hi"))
    end = next(
        e for e in events if isinstance(e, MessageEnd) and isinstance(e.message, AssistantMessage)
    )
    assert end.started is not None
    assert end.first_delta_s is not None
    assert end.first_delta_s >= 0
    assert end.attempts == 1
    assert end.usage == end.message.usage


async def test_the_next_turn_gets_the_earlier_messages(make_agent, stores):
    """The second request holds the first exchange."""
    provider = ScriptedProvider([text("hello ada"), text("you are ada")])
    agent = await make_agent(provider, stores=stores)
    await agent.execute_turn("I am ada")
    await agent.execute_turn("who am I?")
    assert [m.text for m in provider.requests[1].messages] == [
        "I am ada",
        "hello ada",
        "who am I?",
    ]
    assert [m.text for m in await agent.get_messages()] == [
        "I am ada",
        "hello ada",
        "who am I?",
        "you are ada",
    ]


async def test_the_same_result_is_shown_live_and_after_reloading(make_agent, stores):
    """One canonical message: what the model saw in the turn is what it sees in the next."""
    first = ScriptedProvider([tool_call("add", a=0, b=0), text("0")])
    agent = await make_agent(first, tools=[add], stores=stores)
    await agent.execute_turn("0 + 0?")
    second = ScriptedProvider([text("again 0")])
    again = await make_agent(second, tools=[add], stores=stores)
    await again.execute_turn("sure?")
    live = first.requests[1].messages
    assert second.requests[0].messages[: len(live)] == live


async def test_a_new_agent_continues_the_conversation_of_the_old_one(make_agent, sqlite_url):
    """Counts, positions and numbers go on in another agent on the same file."""
    first = await make_agent([text("one")], stores=sqlite_url)
    await first.execute_turn("a")
    await first.shutdown()
    second = await make_agent([text("two")], stores=sqlite_url)
    assert second.state.turn_count == 1
    assert second.state.created_at is not None
    events = await collect(second.execute_turn("b"))
    assert events[0].turn == 2
    assert events[0].seq == 5
    assert [m.text for m in await second.get_messages()] == ["a", "one", "b", "two"]


async def test_a_subscriber_sees_the_status_change_with_the_turn(make_agent, memory_stores):
    """Busy at the call, ready before the last event is shown."""
    agent = await make_agent([text("hi")], stores=memory_stores)
    seen = []
    agent.subscribe(lambda e: seen.append((e.type, agent.state.status)))
    stream = agent.execute_turn("hello")
    assert agent.state.status is AgentStatus.BUSY
    await stream
    assert seen[0] == ("status_change", AgentStatus.BUSY)
    assert seen[-2:] == [
        ("status_change", AgentStatus.READY),
        ("turn_end", AgentStatus.READY),
    ]


async def test_the_next_turn_may_start_from_within_turn_end(make_agent, stores):
    """Ready means ready: a subscriber that sees the last event may go on at once."""
    agent = await make_agent([text("one"), text("two")], stores=stores)
    second = []

    def go_on(event):
        if event.type == "turn_end" and not second:
            second.append(agent.execute_turn("b"))

    agent.subscribe(go_on)
    await agent.execute_turn("a")
    assert (await second[0]).text == "two"
    await agent.wait_for_idle()
    assert agent.state.status is AgentStatus.READY
    await assert_whole(stores)


async def test_images_and_ready_made_messages_are_said_as_they_are(make_agent, stores):
    """A `UserMessage` is stored as given, an image alone is something said."""
    from looopy import ImageContent

    message = UserMessage([ImageContent(data="aGk=", mime_type="image/png")])
    agent = await make_agent([text("nice")], stores=stores)
    await agent.execute_turn(message)
    assert (await agent.get_messages())[0] == message


async def test_metadata_of_a_turn_is_kept_with_it(make_agent, stores):
    """JSON values, readable from the journal."""
    agent = await make_agent([text("hi")], stores=stores)
    await agent.execute_turn("hello", metadata={"a2a": {"message_id": "m1"}})
    [turn] = await stores.journal.turns("ada")
    assert turn.metadata == {"a2a": {"message_id": "m1"}}


async def test_turn_sets_one_timer_of_the_event_loop(make_agent, memory_stores, monkeypatch):
    """The inbox's timer is the earliest and is set first: none replaces it in the loop."""
    agent = await make_agent(ScriptedProvider([text("one")]), stores=memory_stores)
    loop, due = asyncio.get_running_loop(), []
    call_at = loop.call_at

    def counted(when, *args, **options):
        due.append(when)
        return call_at(when, *args, **options)

    monkeypatch.setattr(loop, "call_at", counted)
    await agent.execute_turn("hi")
    assert len(due) == 1
