"""Stored turns, replayed: as they were, and with an agent that has changed since."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from looopy import Agent, AuthContext, Budget, Plugin, ToolContext, tool
from looopy.agent.hosted import port_of
from looopy.errors import ConfigurationError, ContextNotFound, LLMError, OutputInvalid, ValueRefused
from looopy.llm.render import CANCELLED, NOT_STARTED, OUTCOME_UNKNOWN
from looopy.replay import Recording, read_recording, replay, run_beside, scrub
from looopy.replay.differences import Played, first_difference
from looopy.stores.bundle import Stores
from looopy.stores.opening import open_stores
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.testing.replays import replay_turn
from looopy.tools import ArtifactTools, Ask, NeedsInput, Skill, Skills
from looopy.types.approval import Approve, Deny
from looopy.types.config import LoopConfig, RetryPolicy
from looopy.types.context import SystemPrompt
from looopy.types.message import AssistantMessage, StopReason, ToolResultMessage
from looopy.types.state import Outcome, PendingKind

__all__ = ["replay_turn"]  # a fixture

SECRET = "canary-7f3a"
ran: list[str] = []


@tool(effects="none")
def look(word: str) -> str:
    """Look a word up."""
    ran.append(word)
    return f"{word} means {SECRET}"


@tool(parallel=True, effects="none")
async def fetch(page: int) -> str:
    """Fetch a page; the later ones are there first."""
    await asyncio.sleep(0.002 * (3 - page))
    return f"page {page}"


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    ran.append(f"paid {amount}")
    return f"paid {amount}"


@tool
async def book(context: ToolContext) -> str:
    """Book a table."""
    return f"a table {await context.ask('For how many?', schema={'type': 'integer'})}"


@tool
async def travel(context: ToolContext) -> str:
    """Book a trip."""
    day = await context.ask("When?")
    return f"{day}, {await context.ask('Which seat?')}"


@tool
async def hang() -> str:
    """Never end."""
    await asyncio.Event().wait()
    raise AssertionError("it ended")


@tool(parallel=True)
async def wait() -> str:
    """Never end."""
    await asyncio.Event().wait()
    raise AssertionError("it ended")


@tool(effects="none")
async def doze() -> str:
    """Never end, and change nothing."""
    await asyncio.Event().wait()
    raise AssertionError("it ended")


@tool
async def merge() -> str:
    """Merge, if two people allow it."""
    both = (Ask(key, PendingKind.APPROVAL, f"May {key} merge?") for key in ("ann", "bob"))
    raise NeedsInput(tuple(both))


@tool(parallel=True)
async def soon() -> str:
    """End at once."""
    return "done"


@tool
async def stop(context: ToolContext) -> str:
    """Cancel the turn."""
    context.cancel.cancel()
    return "stopped"


@tool(on_resume="ask")
async def move() -> str:
    """Never end, and be asked about after a death."""
    await asyncio.Event().wait()
    raise AssertionError("it ended")


TOOLS = (look, fetch, pay, book, travel, hang, wait, doze, merge, soon, stop, move)
QUICK = LoopConfig(retry=RetryPolicy(attempts=0), max_iterations=5, on_max_iterations="answer")


def agent_of(
    stores: Stores,
    *replies: Any,
    context_id: str = "c",
    prompt: SystemPrompt = "You help.",
    tools: Sequence[Any] = TOOLS,
    config: LoopConfig = QUICK,
    model: str = "scripted",
) -> Agent:
    """An agent that plays *replies*."""
    provider = ScriptedProvider(replies, chunk_chars=8)
    provider.model = model
    return Agent(
        context_id,
        llm_provider=provider,
        tools=tools,
        system_prompt=prompt,
        stores=stores,
        loop_config=config,
    )


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    """Open stores, empty."""
    ran.clear()
    async with open_stores("memory:") as opened:
        yield opened


async def recordings(stores: Stores, context_id: str = "c") -> list[Recording]:
    """All turns of a context, each through its JSON document."""
    record = await stores.state.load(context_id)
    assert record is not None
    found = [await read_recording(stores, context_id, n + 1) for n in range(record.turn_count)]
    for one in found:
        again = Recording.from_json(one.to_json())
        assert [m.message for m in again.messages] == [m.message for m in one.messages]
    return found


async def _tools(agent: Agent) -> None:
    await agent.execute_turn("look up a")


async def _approvals(agent: Agent) -> None:
    for answer in (Approve(), Deny(reason="too much"), Approve(args={"amount": 2}, note="less")):
        asked = await agent.execute_turn("pay")
        await agent.execute_turn(None, inputs={asked.pending[0].request_id: answer})


async def _question(agent: Agent) -> None:
    asked = await agent.execute_turn("book")
    await agent.execute_turn(None, inputs={asked.pending[0].request_id: 4})


async def _question_beside_a_text(agent: Agent) -> None:
    asked = await agent.execute_turn("book")
    await agent.execute_turn("be quick", inputs={asked.pending[0].request_id: 4})


async def _dropped(agent: Agent) -> None:
    await agent.execute_turn("book")
    await agent.execute_turn("never mind")


async def _cancelled(agent: Agent) -> None:
    turn = agent.execute_turn("hang")
    async for event in turn:
        if event.type == "tool_execution_start":
            await agent.cancel()


async def _cancelled_together(agent: Agent) -> None:
    begun = 0
    async for event in agent.execute_turn("wait for both"):
        begun += event.type == "tool_execution_start"
        if begun == 2:
            begun = 0
            await agent.cancel()


async def _cancelled_after_one(agent: Agent) -> None:
    async for event in agent.execute_turn("wait for one"):
        if event.type == "tool_execution_end" and event.tool_name == "soon":
            await agent.cancel()


async def _cancelled_amid_words(agent: Agent) -> None:
    async for event in agent.execute_turn("say much"):
        if event.type == "message_update":
            await agent.cancel()


async def _asked_twice(agent: Agent) -> None:
    asked = await agent.execute_turn("merge")
    assert len({one.tool_call_id for one in asked.pending}) == 1 < len(asked.pending)


async def _killed_at_its_limit(agent: Agent) -> None:
    async for event in agent.execute_turn("look up all"):
        if event.type == "message_update" and event.iteration == 6:
            assert await port_of(agent).break_off()
            break
    await agent.shutdown(cancel=True)
    await agent.start()
    result = await agent.execute_turn(None)
    assert result.stop_reason is StopReason.MAX_ITERATIONS


async def _steered(agent: Agent) -> None:
    turn = agent.execute_turn("look up both")
    async for event in turn:
        if event.type == "tool_execution_start" and event.tool_call_id == "call_1":
            await agent.steer("only one, please")


async def _followed_up(agent: Agent) -> None:
    turn = agent.execute_turn("one")
    async for event in turn:
        if event.type == "tool_execution_start":
            await agent.follow_up("two")
            await agent.follow_up("three")


async def _asked_again_beside_a_text(agent: Agent) -> None:
    asked = await agent.execute_turn("travel")
    again = await agent.execute_turn("quick", inputs={asked.pending[0].request_id: "Monday"})
    await agent.execute_turn(None, inputs={again.pending[0].request_id: "aisle"})


async def _rewound(agent: Agent) -> None:
    await agent.execute_turn("one")
    await agent.execute_turn("two")
    await agent.rewind(2)
    await agent.execute_turn("other two")


async def _compacted(agent: Agent) -> None:
    for word in ("one", "two", "three"):
        await agent.execute_turn(word)
    await agent.compact(keep_turns=1)
    await agent.execute_turn("four")


async def _failed(agent: Agent) -> None:
    await agent.execute_turn("fail")
    await agent.execute_turn(None)


STORIES: dict[str, tuple[Callable[[Agent], Any], tuple[Any, ...]]] = {
    "tools": (_tools, ((text("hm"), tool_call("look", word="a")), text("it is a"))),
    "parallel": (_tools, (tuple(tool_call("fetch", page=n) for n in (1, 2, 3)), text("all"))),
    "unfit": (_tools, (tool_call("look", wort="a"), tool_call("lok", word="a"), text("sorry"))),
    "approvals": (_approvals, (tool_call("pay", amount=5), text("done")) * 3),
    "question": (_question, (tool_call("book"), text("booked"))),
    "beside a text": (_question_beside_a_text, (tool_call("book"), text("booked"))),
    "dropped": (_dropped, (tool_call("book"), text("fine"))),
    "cancelled": (_cancelled, (tool_call("hang"),)),
    "cancelled together": (_cancelled_together, ((tool_call("wait"), tool_call("wait")),)),
    "cancelled without effects": (_cancelled, (tool_call("doze"),)),
    "cancelled before the second": (_cancelled, ((tool_call("hang"), tool_call("hang")),)),
    "cancelled before the third": (
        _cancelled_together,
        ((tool_call("wait"), tool_call("wait"), tool_call("hang")),),
    ),
    "cancelled after the second": (
        _cancelled_after_one,
        ((tool_call("wait"), tool_call("soon")),),
    ),
    "cancelled while one is held": (
        _tools,
        ((tool_call("pay", amount=1), tool_call("stop")),),
    ),
    "cancelled amid words": (_cancelled_amid_words, (text("some words " * 400),)),
    "asked twice": (_asked_twice, (tool_call("merge"),)),
    "at its limit": (
        _tools,
        (*(tool_call("look", word=word) for word in "abcde"), text("I know five")),
    ),
    "killed at its limit": (
        _killed_at_its_limit,
        (*(tool_call("look", word=word) for word in "abcde"), text("I know " * 400), text("five")),
    ),
    "steered": (
        _steered,
        ((tool_call("look", word="a"), tool_call("look", word="b")), text("only a")),
    ),
    "followed up": (_followed_up, (tool_call("fetch", page=1), text("1"), text("2"), text("3"))),
    "asked again": (_asked_again_beside_a_text, (tool_call("travel"), text("booked"))),
    "rewound": (_rewound, (text("1"), text("2"), text("other 2"))),
    "compacted": (_compacted, (text("1"), text("2"), text("3"), text("in short"), text("4"))),
    "failed": (_failed, ((text("half"), failure(LLMError)), text("whole"))),
}


@pytest.mark.parametrize("story", STORIES)
async def test_a_turn_is_the_same_when_it_is_replayed(stores, story):
    """With its agent and without one, as stored and scrubbed."""
    act, replies = STORIES[story]
    async with agent_of(stores, *replies) as agent:
        await act(agent)
    before = list(ran)

    for one in await recordings(stores):
        for other in (agent_of(stores), None):
            found = await replay(one, other)
            assert found.difference is None, (one.turn, other)
            died = one.outcome is Outcome.INTERRUPTED  # which ends it elsewhere
            assert found.now.outcome == (None if died else one.outcome)
            found = await replay(Recording.from_json(scrub(one).to_json()), other)
            assert found.difference is None, (one.turn, "scrubbed", other)
    assert ran == before, "a replay runs no tool"
    if story == "followed up":
        (one,) = await recordings(stores)
        said = [m.message.text for m in one.messages if m.message.role != "toolResult"]
        assert said[1:] == ["1", "two", "2", "three", "3"]
    if story == "rewound":
        assert [m.text for m in (await recordings(stores))[2].before] == ["one", "1"]
    assert (await stores.state.load("c")).turn_count == len(await recordings(stores))


async def test_a_replay_logs_no_failure_of_then(stores, caplog):
    """Neither that of the turn nor that of its tool, which does not run again."""

    @tool(effects="none")
    def broken() -> str:
        """Fail."""
        raise KeyError("a bug")

    tools = [broken]
    async with agent_of(stores, tool_call("broken"), failure(LLMError), tools=tools) as agent:
        await agent.execute_turn("fail")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    caplog.clear()
    (one,) = await recordings(stores)
    for other in (agent_of(stores, tools=tools), None):
        found = await replay(one, other)
        assert found.difference is None
        assert found.now.outcome == "failed"
    assert caplog.records == []


async def test_a_turn_whose_process_died_is_replayed_up_to_there(stores):
    """The end that another process wrote is no difference."""
    agent = agent_of(stores, tool_call("hang"))
    await agent.start()
    async for event in agent.execute_turn("hang"):
        if event.type == "tool_execution_start":
            assert await port_of(agent).break_off()
            break
    await agent.shutdown(cancel=True)

    (one,) = await recordings(stores)
    assert one.outcome is Outcome.INTERRUPTED
    assert (await replay(one, agent_of(stores))).difference is None
    found = await replay(one, agent_of(stores, prompt="You are new."))
    assert found.difference is not None
    assert found.difference.kind == "request"


async def test_a_call_that_died_is_replayed_although_its_tool_is_gone(stores):
    """Whoever ended its turn asked about it; the next agent lacked the tool, and said so."""
    agent = agent_of(stores, tool_call("move"))
    await agent.start()
    async for event in agent.execute_turn("move"):
        if event.type == "tool_execution_start":
            assert await port_of(agent).break_off()
            break
    await agent.shutdown(cancel=True)
    async with agent_of(stores) as agent:
        [asked] = agent.state.pending
    async with agent_of(stores, text("gone"), tools=[look]) as agent:
        result = await agent.execute_turn(None, inputs={asked.request_id: True})
    assert result.messages[0].text == OUTCOME_UNKNOWN

    died, went_on = await recordings(stores)
    assert (died.outcome, len(died.asked)) == (Outcome.INTERRUPTED, 1)
    for other in (agent_of(stores), None):
        assert (await replay(died, other)).difference is None
    for other in (agent_of(stores, tools=[look]), None):
        assert (await replay(went_on, other)).difference is None


async def test_an_unknown_tool_with_a_cancelled_call_is_not_reported_as_removed(stores):
    """It was cancelled just before its model was told so; the digests of its tools are equal."""
    async with agent_of(stores, tool_call("lok"), text("sorry")) as agent:
        await agent.execute_turn("look")
    [one] = await recordings(stores)
    data = json.loads(one.to_json())
    data |= {"outcome": "cancelled", "stop_reason": "cancelled", "messages": data["messages"][:2]}
    data["messages"][1]["message"]["content"][0]["text"] = CANCELLED
    data["messages"][1]["message"]["details"] = {"synthetic": True}
    cut = Recording.from_json(json.dumps(data))
    data["messages"][0]["request"] = None
    old = Recording.from_json(json.dumps(data))

    for other in (agent_of(stores), None):
        found = await replay(cut, other)
        assert (found.difference, list(found.gone)) == (None, [])
    replayed = await replay(old, agent_of(stores))
    found = replayed.difference
    assert found is not None
    assert (found.kind, "'lok' is gone" in found.text) == ("tool", True)
    assert list(replayed.gone) == [], "the turn had not run it"
    data["messages"][1]["message"]["content"][0]["text"] = OUTCOME_UNKNOWN
    for digests, gone in ((None, ["lok"]), (one.messages[0].request, [])):
        data["messages"][0]["request"] = digests
        found = await replay(Recording.from_json(json.dumps(data)), agent_of(stores))
        assert list(found.gone) == gone, "equal digests: it had no such tool either"
        assert (found.difference is None) == (gone == [])


async def test_a_call_after_too_many_failures_is_not_compared(stores):
    """A replay does not count failures; it would refuse arguments that nobody read then."""
    wrong = (*(tool_call(f"lok{n}") for n in range(5)), tool_call("look", wort="a"))
    async with agent_of(stores, wrong) as agent:
        result = await agent.execute_turn("look")
    assert [one.text for one in result.messages[-3:]] == [NOT_STARTED] * 3

    [one] = await recordings(stores)
    for other in (agent_of(stores), None):
        assert (await replay(one, other)).difference is None


@pytest.mark.parametrize("by", ["failures", "cancel"])
async def test_a_turn_that_ended_just_before_a_limit_is_the_same(stores, by):
    """By what a replay does not count; it reaches the limit next, with the same messages."""
    config = LoopConfig(max_iterations=1, max_tool_failures=1)
    reply = tool_call("lok") if by == "failures" else tool_call("stop")
    async with agent_of(stores, reply, config=config) as agent:
        result = await agent.execute_turn("go")
    assert result.stop_reason in (StopReason.MAX_TOOL_FAILURES, StopReason.CANCELLED)

    [one] = await recordings(stores)
    assert (await replay(one, agent_of(stores, config=config))).difference is None
    whole = dataclasses.replace(one, outcome=Outcome.COMPLETED, stop_reason=StopReason.STOP)
    found = (await replay(whole, agent_of(stores, config=config))).difference
    assert found is not None
    assert found.text == "the turn ends otherwise"


@pytest.fixture
async def looked(stores) -> Recording:
    """A turn that looks a word up."""
    replies = (text("hm"), tool_call("look", word="a")), text("it is a")
    async with agent_of(stores, *replies) as agent:
        await agent.execute_turn(f"What is a? {SECRET}")
    return (await recordings(stores))[0]


@tool(name="look", effects="none")
def look_by_number(word: int) -> str:
    """Look a word up."""
    return str(word)


@pytest.mark.parametrize(
    ("change", "ignore", "kind", "words"),
    [
        ({"prompt": "You are terse."}, (), "request", "the system prompt"),
        ({"model": "another"}, (), "request", "the model"),
        ({"tools": (look,)}, (), "request", "the tools"),
        ({"tools": (fetch,)}, ("tools",), "tool", "'look' is gone"),
        ({"tools": (look_by_number,)}, ("tools",), "arguments", "'look' no longer takes"),
        ({"config": LoopConfig(max_iterations=1)}, (), "end", "max_iterations"),
    ],
)
async def test_the_first_difference_is_named(stores, looked, change, ignore, kind, words):
    """By its kind, its place and a sentence."""
    found = (await replay(looked, agent_of(stores, **change), ignore=ignore)).difference

    assert found is not None
    assert (found.kind, words in str(found)) == (kind, True), found
    assert found.iteration == (2 if kind == "end" else 1)
    with pytest.raises(AssertionError, match=words):
        (await replay(looked, agent_of(stores, **change), ignore=ignore)).check()


async def test_an_ignored_part_may_differ(stores, looked):
    """A name that is no part is refused."""
    changed = agent_of(stores, prompt="You are terse.", model="another")

    assert (await replay(looked, changed, ignore=("prompt", "model"))).difference is None
    with pytest.raises(ValueRefused, match="not 'prompts'"):
        await replay(looked, changed, ignore=("prompts",))


async def test_more_or_fewer_messages_are_seen(stores, looked):
    """The comparison itself: a recording whose last message is another one."""
    data = json.loads(looked.to_json())
    data["messages"].append({**data["messages"][-1], "iteration": 3})
    longer = Recording.from_json(json.dumps(data))
    data["messages"] = data["messages"][:-2]
    shorter = Recording.from_json(json.dumps(data))

    found = (await replay(shorter)).difference
    assert found is not None
    assert "the model is called 2 times, and was called 1" in found.text
    found = (await replay(longer)).difference
    assert found is not None
    assert "the turn ends earlier" in found.text


async def test_a_lost_result_is_seen(looked):
    """A call that runs now, and of which the recorded turn says nothing."""
    data = json.loads(looked.to_json())
    del data["messages"][1]

    found = (await replay(Recording.from_json(json.dumps(data)))).difference

    assert found is not None
    assert (found.kind, found.text) == ("result", "a call of 'look' runs, and had no result")


async def test_a_failed_call_may_have_details_of_any_kind(looked):
    """Its tool has surely run."""
    data = json.loads(looked.to_json())
    data["messages"][1]["message"] |= {"details": "a text", "is_error": True}

    found = await replay(Recording.from_json(json.dumps(data)))

    assert (found.difference, list(found.gone)) == (None, [])


async def test_messages_before_a_cut_are_compared(stores):
    """A turn that died has only texts about missing results behind the place of its death."""
    async with agent_of(stores, tool_call("look", word="a"), text("it is a")) as agent:
        await agent.execute_turn("look")
    data = json.loads((await recordings(stores))[0].to_json())
    data |= {"outcome": "interrupted", "stop_reason": "interrupted"}
    data["messages"][1]["message"]["content"][0]["text"] = OUTCOME_UNKNOWN

    longer = Recording.from_json(json.dumps(data))
    data["messages"].pop()
    assert (await replay(Recording.from_json(json.dumps(data)))).difference is None
    found = (await replay(longer)).difference
    assert found is not None
    assert "the turn ends earlier" in found.text


async def test_a_scrubbed_recording_holds_no_content(stores):
    """Names stay, and calls that differed still differ."""
    replies = tool_call("look", word=SECRET), tool_call("look", word="b"), text(f"so: {SECRET}")
    async with agent_of(stores, *replies, prompt=f"Keep {SECRET}.") as agent:
        await agent.execute_turn(f"about {SECRET}", auth_context=AuthContext(actor_id=SECRET))
    (one,) = await recordings(stores)
    kept = scrub(one)

    assert SECRET in one.to_json()
    assert SECRET not in kept.to_json()
    calls = [
        call.arguments
        for m in kept.messages
        if isinstance(m.message, AssistantMessage)
        for call in m.message.tool_calls
    ]
    assert calls[0] != calls[1], "calls that differed still differ"
    results = [m.message for m in kept.messages if isinstance(m.message, ToolResultMessage)]
    assert [r.tool_name for r in results] == ["look", "look"]


async def test_a_result_that_differs_is_no_refused_call(looked):
    """Its tool was called, so the arguments were taken."""
    data = json.loads(looked.to_json())
    data["messages"][1]["message"]["content"][0]["text"] = "another"
    now = Recording.from_json(json.dumps(data))
    call_id = data["messages"][1]["message"]["tool_call_id"]

    found = first_difference(looked, now, Played(ran={call_id}, known={"look"}), ())

    assert found is not None
    assert (found.kind, found.tool_call_id, found.now) == ("result", call_id, "toolResult: another")


async def test_a_turn_is_run_again_in_a_fork(stores, looked):
    """The fork begins where the turn began, and the context stays as it is."""

    def build(context_id: str, where: Stores) -> Agent:
        return agent_of(where, text("better"), context_id=context_id, prompt="You are terse.")

    async with agent_of(stores, text("no more")) as agent:
        await agent.execute_turn("and b?")
    later = await run_beside(stores, (await recordings(stores))[1], build, context_id="later")
    assert [m.text for m in later.now.before][-1] == "it is a"
    beside = await run_beside(stores, looked, build, context_id="again")

    assert [m.message.text for m in beside.now.messages] == ["better"]
    assert [m.text for m in beside.now.prompts] == [f"What is a? {SECRET}"]
    assert (await stores.state.load("c")).turn_count == 2, "the context itself stays as it is"
    assert (await stores.state.load("again")).turn_count == 1


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ("no JSON", ""),
        ("[]", "/looopy_recording"),
        ('{"looopy_recording": 2}', "/looopy_recording"),
        ('{"looopy_recording": 1}', "/context_id"),
        ("messages", "/messages/0/message/role"),
    ],
)
async def test_a_bad_recording_is_refused_by_its_place(looked, document, path):
    """The path leads to the value in the document."""
    if document == "messages":
        data = json.loads(looked.to_json())
        data["messages"][0]["message"]["role"] = 7
        document = json.dumps(data)

    with pytest.raises(ValueRefused) as caught:
        Recording.from_json(document)

    assert caught.value.path == path


async def test_turns_that_cannot_be_replayed_are_refused(stores, looked):
    """Unknown, still open, or deleted."""
    with pytest.raises(ContextNotFound):
        await read_recording(stores, "nobody", 1)
    with pytest.raises(ValueRefused, match="no turn 9: its turns are 1 to 1"):
        await read_recording(stores, "c", 9)
    async with agent_of(stores, text("x"), context_id="open") as agent:
        async for event in agent.execute_turn("hi"):
            if event.type == "turn_start":
                with pytest.raises(ValueRefused, match="still open"):
                    await replay(await read_recording(stores, "open", 1))
    async with agent_of(stores) as agent:
        await agent.clear()
    with pytest.raises(ValueRefused, match="deleted"):
        await read_recording(stores, "c", 1)


async def test_a_typed_answer_needs_its_type(stores):
    """The log does not keep it."""
    replies = text("three"), tool_call("final_answer", answer=3), text("You are welcome.")
    async with agent_of(stores, *replies) as agent:
        await agent.execute_turn("How many?", output_type=int)
        await agent.execute_turn("Thanks.")
    one, plain = await recordings(stores)

    for other in (agent_of(stores), None):
        assert (await replay(one, other, output_type=int)).difference is None
        with pytest.raises(ValueRefused, match="output_type="):
            await replay(one, other)
        assert (await replay(plain, other)).difference is None


@pytest.mark.parametrize("as_json", [True, False])
async def test_a_refused_answer_is_refused_again(stores, as_json):
    """As often as then, in the same words; also from a recording without contents."""
    answer = text('{"answer": 3}') if as_json else tool_call("final_answer", answer=3)
    config = LoopConfig(max_output_retries=1)

    def made(*replies: Any) -> Agent:
        agent = agent_of(stores, *replies, config=config)
        port_of(agent).making.model.structured_output = as_json
        return agent

    async with made(text("three"), answer, text("4"), text("four")) as agent:
        assert (await agent.execute_turn("How many?", output_type=int)).output == 3
        failed = await agent.execute_turn("And now?", output_type=int)
        assert isinstance(failed.error, OutputInvalid)
    for one in await recordings(stores):
        for kept in (one, Recording.from_json(scrub(one).to_json())):
            for other in (made(), None):
                assert (await replay(kept, other, output_type=int)).difference is None


async def test_a_typed_answer_may_have_come_as_json(stores):
    """From a provider with output schemas, which the recording does not name."""
    agent = agent_of(stores, text("three"), text('{"answer": 3}'))
    port_of(agent).making.model.structured_output = True
    async with agent:
        assert (await agent.execute_turn("How many?", output_type=int)).output == 3
    (one,) = await recordings(stores)
    assert (await replay(one, output_type=int)).difference is None


async def test_a_cancel_that_met_the_last_commit_is_replayed(stores):
    """The answer was whole, and the turn was cancelled all the same."""
    spy = SpyStores(stores)
    aside, asked = agent_of(stores), []

    async def cancel(name: str, commit: Any) -> None:
        if name == "commit" and commit.events[-1].type == "turn_end" and not asked:
            asked.append(1)
            await aside.cancel()

    async with agent_of(spy.stores, text("an answer")) as agent, aside:
        spy.hook = cancel
        await agent.execute_turn("go")
    (one,) = await recordings(stores)
    assert one.outcome == "cancelled"
    for other in (agent_of(stores), None):
        found = await replay(one, other)
        assert found.difference is None
        assert found.now.outcome == "cancelled"


async def test_tools_and_prompts_of_local_sources_are_compared(stores):
    """Artifacts, skills and plugins need no server; another source may, and is left out."""

    class Served:
        """A source that says nothing about where its tools come from."""

        def list_tools(self) -> Sequence[Any]:
            """One tool."""
            return [look]

    def sources(skill: str = "Be brief.", **plugin: Any) -> list[Any]:
        skills = Skills([Skill("brevity", skill, "One sentence.")])
        mine = Plugin("mine", tools=[look, skills], prompts=["Look first."], **plugin)
        return [ArtifactTools(), mine]

    replies = tool_call("look", word="a"), text("hi")
    async with agent_of(stores, *replies, tools=sources()) as agent:
        await agent.execute_turn("go")
    (one,) = await recordings(stores)
    ran.clear()
    same = await replay(one, agent_of(stores, tools=sources()))
    assert (same.difference, same.left_out, same.gone, ran) == (None, [], [], [])
    now = await replay(one, agent_of(stores, tools=sources("Be long.")))
    assert now.difference is not None
    assert "system prompt" in now.difference.text
    now = await replay(one, agent_of(stores, tools=sources()[:1]))
    assert now.difference is not None
    assert (now.difference.kind, now.gone) == ("request", ["look"])
    now = await replay(one, agent_of(stores, tools=sources(is_enabled=lambda: True)))
    assert now.difference is None
    assert [said.partition(":")[0] for said in now.left_out] == [
        "tools of Plugin",
        "the system prompt",
    ]
    now = await replay(one, agent_of(stores, tools=[*sources()[:1], Served()]))
    assert now.difference is not None
    assert "system prompt" in now.difference.text  # this source has no part in it
    assert [said.partition(":")[0] for said in now.left_out] == ["tools of Served"]


async def test_a_tool_of_a_plugin_that_is_off_today_is_not_gone(stores):
    """As one without a plugin: it may be there for some callers, or at some times."""
    on = True

    @tool(effects="none", is_enabled=lambda: on)
    def peek() -> str:
        """Peek."""
        return "seen"

    plugin = Plugin("mine", tools=[peek])
    async with agent_of(stores, tool_call("peek"), text("hi"), tools=[plugin]) as agent:
        await agent.execute_turn("go")
    (one,) = await recordings(stores)
    on = False
    found = await replay(one, agent_of(stores, tools=[plugin]))
    assert (found.difference, found.gone) == (None, [])
    assert found.left_out == [
        "tools of requests: is_enabled of peek may depend on the caller",
    ]


@pytest.mark.parametrize("place", ["agent", "plugin"])
async def test_a_prompt_that_needs_the_caller_is_not_compared(stores, place):
    """A replay has none; the rest of the turn is compared, and the reason is told."""

    def names_the_caller(turn: Any) -> str:
        return f"You help {turn.auth_context.actor_id}."

    mine = Plugin("mine", tools=[look], prompts=[names_the_caller])
    prompt, tools = ("", [mine]) if place == "plugin" else (names_the_caller, [look])
    replies = tool_call("look", word="a"), text("hi")
    async with agent_of(stores, *replies, prompt=prompt, tools=tools) as agent:
        await agent.execute_turn("go", auth_context=AuthContext("ada"))
    (one,) = await recordings(stores)
    found = await replay(one, agent_of(stores, prompt=prompt, tools=tools))
    assert found.difference is None
    assert found.now.outcome == "completed"
    [said] = found.left_out
    assert said.startswith("the system prompt: a replay has no caller, and the system prompt's")
    assert said.endswith("failed with AttributeError")
    ignored = await replay(one, agent_of(stores, prompt=prompt, tools=tools), ignore=("prompt",))
    assert (ignored.difference, ignored.left_out) == (None, [])
    other = await replay(one, agent_of(stores, prompt=prompt, tools=[pay]), ignore=("prompt",))
    assert other.difference is not None
    assert other.difference.kind == "request"


async def test_a_local_source_that_fails_stops_the_replay_with_its_name(stores):
    """It is a mistake of today's application, and no difference of the turn."""

    class Failing:
        """A source that has lost its file."""

        is_local = True

        def list_tools(self) -> Sequence[Any]:
            """Fail."""
            raise OSError("the disk is gone")

    async with agent_of(stores, text("hi")) as agent:
        await agent.execute_turn("go")
    (one,) = await recordings(stores)
    with pytest.raises(ConfigurationError, match="the tools of Failing cannot be listed: OSError"):
        await replay(one, agent_of(stores, tools=[Failing()]))


async def test_tools_that_are_offered_to_some_are_not_compared(stores):
    """A replay has no caller; it says which tools these are."""

    @tool(is_enabled=lambda _turn: False)
    def secret() -> str:
        """For nobody."""
        return ""

    replies = tool_call("look", word="a"), text("hi")
    async with agent_of(stores, *replies, tools=[look, secret]) as agent:
        await agent.execute_turn("go")
    (one,) = await recordings(stores)
    found = await replay(one, agent_of(stores, tools=[look, secret]))
    assert found.difference is None
    assert any("is_enabled of secret" in said for said in found.left_out)
    assert (await replay(one, agent_of(stores, tools=[look, pay]))).difference is not None
    gone = (await replay(one, agent_of(stores, tools=[secret]))).difference
    assert gone is not None
    assert gone.kind == "tool"


def test_a_recording_is_a_test(replay_turn, tmp_path):
    """By the fixture, with a factory as for `looopy serve`."""

    async def record() -> str:
        async with open_stores("memory:") as where, agent_of(where, text("hi")) as agent:
            await agent.execute_turn("hello")
            return (await recordings(where))[0].to_json()

    file = tmp_path / "hello.json"
    file.write_text(asyncio.run(record()), encoding="utf-8")

    replay_turn(file, lambda name, where: agent_of(where, context_id=name)).check()
    with pytest.raises(AssertionError, match="the system prompt"):
        replay_turn(file, lambda name, where: agent_of(where, prompt="", context_id=name)).check()


async def test_a_turn_that_waits_for_a_budget_is_the_same(stores: Stores) -> None:
    """It ended before its next model call, which no limit of today ends."""
    config = LoopConfig(budget=Budget(tokens=1), on_budget="ask")
    model = ScriptedProvider([tool_call("look", word="fern"), text("never")])
    agent = Agent("c", llm_provider=model, tools=[look], stores=stores, loop_config=config)
    async with agent:
        assert (await agent.execute_turn("fern?")).outcome is Outcome.INPUT_REQUIRED
    recording = await read_recording(stores, "c", 1)
    for one in (None, agent):
        assert (await replay(recording, one)).difference is None
