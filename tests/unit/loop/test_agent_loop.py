"""The stateless loop: cold Observables and async iterators, for who keeps the messages."""

from __future__ import annotations

import asyncio

import pytest
from reactivex import operators as ops

from looopy import (
    AgentLoop,
    AssistantMessage,
    AuthContext,
    CustomMessage,
    LoopConfig,
    TurnContext,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    tool,
)
from looopy.errors import CannotContinue, LLMError
from looopy.history.open_calls import can_continue, unanswered
from looopy.loop.agent_loop import cold
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.contracts.turns import answer, result
from looopy.types.config import Hooks
from looopy.types.message import StopReason, ToolCall, ToolResultMessage
from looopy.types.state import Outcome

CONTEXT = TurnContext(context_id="bare")
CALL = ToolCall(id="c1", name="add", arguments={"a": 1, "b": 2})


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def collect(events):
    """All of them."""
    return [e async for e in events]


async def test_a_prompt_gives_prompt_and_answer():
    """Exactly the user message and the answer are new; the events are those of an agent."""
    history = [UserMessage("before"), answer("yes")]
    provider = ScriptedProvider([text("hi")])
    events = await collect(agent_loop("hello", llm_provider=provider, messages=history))
    assert [e.type for e in events if e.type != "message_update"] == [
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
    assert [m.text for m in events[-1].messages] == ["hello", "hi"]
    assert [m.text for m in provider.requests[0].messages] == ["before", "yes", "hello"]
    assert len(history) == 2, "the caller's list is the caller's"
    assert {e.seq for e in events} == {None}
    assert {e.position for e in events if e.type == "message_end"} == {None}


async def test_several_prompts_each_have_their_events():
    """Strings, messages, lists of messages; custom roles are kept and not sent."""
    provider = ScriptedProvider([text("hi")])
    prompts = [CustomMessage(role="note", content={"x": 1}), UserMessage("a"), UserMessage("b")]
    events = await collect(agent_loop(prompts, llm_provider=provider))
    said = [e.message for e in events if e.type == "message_end"]
    assert said[:3] == prompts
    assert events[0].user_message is prompts[2]
    sent = provider.requests[0].messages
    assert not any(isinstance(m, CustomMessage) for m in sent)


async def test_tools_run_and_their_results_are_seen():
    """As in an agent, with the prompt and credentials that were given."""
    seen = []

    from looopy import ToolContext

    @tool
    async def who(context: ToolContext) -> str:
        """Say who."""
        seen.append(context.auth_context.actor_id)
        return "you"

    provider = ScriptedProvider([tool_call("who"), text("you are you")])
    events = await collect(
        agent_loop(
            "who am I?",
            llm_provider=provider,
            tools=[who],
            system_prompt=lambda context: f"in {context.context_id}",
            auth_context=AuthContext("u1"),
        )
    )
    assert seen == ["u1"]
    assert provider.requests[0].system_prompt == "in loop"
    assert events[-1].messages[-1].text == "you are you"


async def test_continuing_answers_the_last_message():
    """A user message, a tool result, an open call; one new answer each."""
    for history, calls in (
        ([UserMessage("hello")], 0),
        ([UserMessage("x"), answer("", CALL), result(CALL, "3")], 0),
        ([UserMessage("x"), answer("", CALL)], 1),
        ([UserMessage("x"), CustomMessage(role="note", content={})], 0),
    ):
        provider = ScriptedProvider([text("ok")])
        events = await collect(
            agent_loop_continue(llm_provider=provider, messages=history, tools=[add])
        )
        assert events[0].user_message is None
        assert len([e for e in events if e.type == "tool_execution_end"]) == calls
        added = events[-1].messages
        assert added[-1].text == "ok"
        assert len(added) == 1 + calls


@pytest.mark.parametrize(
    "history", [[], [UserMessage("x"), answer("done")]], ids=["empty", "answered"]
)
async def test_there_must_be_something_to_continue(history):
    """`CannotContinue` at the call, from the iterator and from the loop."""
    provider = ScriptedProvider([])
    with pytest.raises(CannotContinue):
        agent_loop_continue(llm_provider=provider, messages=history)
    with pytest.raises(CannotContinue):
        AgentLoop(provider).execute_turn(history, CONTEXT)


def test_failed_and_aborted_answers_are_looked_through():
    """What they answered is still to be answered; their calls are not open."""
    for stop in (StopReason.ERROR, StopReason.ABORTED):
        broken = AssistantMessage([CALL], stop_reason=stop)
        assert unanswered([UserMessage("x"), broken]) == []
        assert can_continue([UserMessage("x"), broken])
        assert not can_continue([broken])
    assert unanswered([UserMessage("x"), answer("", CALL)]) == [CALL]
    assert unanswered([UserMessage("x"), answer("", CALL), result(CALL, "3")]) == []
    assert unanswered([]) == []


async def test_the_observable_is_cold():
    """Nothing runs until it is subscribed to; two subscribers are two turns."""
    provider = ScriptedProvider([text("one"), text("two")])
    source = AgentLoop(provider).execute_turn([UserMessage("hello")], CONTEXT)
    await asyncio.sleep(0)
    assert provider.requests == []
    done = [asyncio.Event(), asyncio.Event()]
    ends = [[], []]
    for n in (0, 1):
        source.subscribe(ends[n].append, on_completed=done[n].set)
        await done[n].wait()
    assert [end[-1].messages[-1].text for end in ends] == ["one", "two"]
    assert len(provider.requests) == 2


async def test_the_observable_knows_the_operators():
    """As any other."""
    source = AgentLoop(ScriptedProvider([text("hello")], chunk_chars=1)).execute_turn(
        [UserMessage("hi")], CONTEXT
    )
    words, done = [], asyncio.Event()
    source.pipe(
        ops.filter(lambda e: e.type == "message_update"),
        ops.map(lambda e: e.delta),
        ops.reduce(lambda a, b: a + b, ""),
    ).subscribe(words.append, on_completed=done.set)
    await done.wait()
    assert words == ["hello"]


async def test_disposing_cancels_the_turn():
    """The tool is stopped, and no task is left."""
    entered, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def gate() -> str:
        """Wait."""
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    provider = ScriptedProvider([tool_call("gate")])
    before = asyncio.all_tasks()
    heard = []
    source = AgentLoop(provider, [gate]).execute_turn([UserMessage("go")], CONTEXT)
    subscription = source.subscribe(heard.append)
    await entered.wait()
    subscription.dispose()
    await stopped.wait()
    while asyncio.all_tasks() - before:
        await asyncio.wait(asyncio.all_tasks() - before)
    assert heard[-1].type == "tool_execution_start"


async def test_cancelling_by_the_token_ends_the_turn_in_order():
    """The context's token, as an agent's `cancel()`."""
    entered = asyncio.Event()

    @tool
    async def gate() -> str:
        """Wait."""
        entered.set()
        await asyncio.Event().wait()
        return ""

    context = TurnContext(context_id="bare")
    heard, done = [], asyncio.Event()
    AgentLoop(ScriptedProvider([tool_call("gate")]), [gate]).execute_turn(
        [UserMessage("go")], context
    ).subscribe(heard.append, on_completed=done.set)
    await entered.wait()
    context.cancel.cancel()
    await done.wait()
    assert heard[-1].outcome is Outcome.CANCELLED
    assert isinstance(heard[-1].messages[-1], ToolResultMessage)


async def test_a_deadline_stops_one_subscription_alone():
    """The others have the same context, whose token stays the caller's."""
    entered = []

    @tool
    async def gate() -> str:
        """Wait for ever the first time."""
        entered.append(None)
        if len(entered) == 1:
            await asyncio.Event().wait()
        return "open"

    provider = ScriptedProvider([tool_call("gate"), tool_call("gate"), text("through")])
    loop = AgentLoop(provider, [gate], LoopConfig(turn_timeout_s=0.5))
    context = TurnContext(context_id="bare")
    source = loop.execute_turn([UserMessage("go")], context)
    ends = []
    for _ in range(2):
        heard, done = [], asyncio.Event()
        source.subscribe(heard.append, on_completed=done.set)
        await done.wait()
        ends.append(heard[-1])
    assert [end.stop_reason for end in ends] == ["deadline", "stop"]
    assert context.cancel.reason is None


async def test_leaving_the_iterator_stops_the_tool():
    """`aclose()` in the middle of a tool's report leaves nothing running."""
    from looopy import ToolContext

    stopped = asyncio.Event()

    @tool
    async def gate(context: ToolContext) -> str:
        """Report, then wait."""
        context.report(0.5)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    events = agent_loop("go", llm_provider=ScriptedProvider([tool_call("gate")]), tools=[gate])
    async for event in events:
        if event.type == "tool_execution_update":
            break
    await events.aclose()
    await stopped.wait()


async def test_a_failure_is_an_event():
    """The Observable completes; `on_error` is for defects."""
    source = AgentLoop(ScriptedProvider([failure(LLMError("no"))])).execute_turn(
        [UserMessage("go")], CONTEXT
    )
    heard, errors, done = [], [], asyncio.Event()
    source.subscribe(heard.append, errors.append, done.set)
    await done.wait()
    assert errors == []
    assert [e.type for e in heard][-2:] == ["error", "turn_end"]
    assert heard[-1].stop_reason is StopReason.ERROR


async def test_hooks_prune_and_convert_in_this_order():
    """Pruning first, then conversion of what is left; the log is untouched."""
    seen = []

    def prune(messages):
        return messages[-2:]

    async def convert(messages):
        seen.append([m.text for m in messages])
        return [m for m in messages if not isinstance(m, AssistantMessage)]

    provider = ScriptedProvider([text("ok")])
    history = [UserMessage("a"), answer("b"), UserMessage("c"), answer("d")]
    events = await collect(
        agent_loop(
            "e",
            llm_provider=provider,
            messages=history,
            config=LoopConfig(hooks=Hooks(transform_context=prune, convert_to_llm=convert)),
        )
    )
    assert seen == [["d", "e"]]
    assert [m.text for m in provider.requests[0].messages] == ["e"]
    assert [m.text for m in events[-1].messages] == ["e", "ok"]


async def test_options_reach_the_provider():
    """Temperature, limits, the session id, and a key made for this actor."""
    provider = ScriptedProvider([text("ok")])
    config = LoopConfig(
        temperature=0.5,
        max_tokens=7,
        llm_timeout_s=9.0,
        hooks=Hooks(get_api_key=lambda name, auth: f"{name} for {auth.actor_id}"),
    )
    await collect(
        agent_loop("hi", llm_provider=provider, config=config, auth_context=AuthContext("u1"))
    )
    [options] = provider.options
    assert (options.temperature, options.max_tokens, options.timeout_s) == (0.5, 7, 9.0)
    assert options.api_key == "scripted for u1"
    assert options.session_id == "loop"


async def test_a_cold_observable_closes_its_generator():
    """At the end, on an error, and when it is disposed."""
    closed = []

    async def numbers(fails):
        try:
            yield 1
            if fails:
                raise ValueError("broken")
            if fails is None:
                await asyncio.Event().wait()
        finally:
            closed.append(fails)

    for fails in (False, True):
        heard, done = [], asyncio.Event()
        source = cold(lambda fails=fails: numbers(fails))
        source.subscribe(
            heard.append,
            lambda e, heard=heard, done=done: (heard.append(str(e)), done.set()),
            lambda heard=heard, done=done: (heard.append("done"), done.set()),
        )
        await done.wait()
        assert heard == [1, "broken" if fails else "done"]
    before = asyncio.all_tasks()
    heard = []
    subscription = cold(lambda: numbers(None)).subscribe(heard.append, heard.append)
    await asyncio.sleep(0)
    subscription.dispose()
    await asyncio.wait(asyncio.all_tasks() - before)
    assert heard == [1]
    assert closed == [False, True, None]


async def test_a_cold_observable_stops_when_its_observer_raises():
    """The generator is closed; the observer hears why, and no more values."""
    closed = asyncio.Event()

    async def numbers():
        try:
            for n in range(3):
                yield n
        finally:
            closed.set()

    heard = []

    def bad(value):
        heard.append(value)
        raise RuntimeError("bad observer")

    cold(numbers).subscribe(bad, lambda _: heard.append("error"))
    await closed.wait()
    assert heard == [0, "error"]


async def test_a_turn_of_a_bare_loop_needs_no_context():
    """`None` is one without credentials and system prompt."""
    provider = ScriptedProvider([text("hi")])
    ended = asyncio.get_running_loop().create_future()
    AgentLoop(provider).execute_turn([UserMessage("hello")], None).subscribe(
        on_next=lambda event: ended.set_result(event) if event.type == "turn_end" else None,
        on_error=ended.set_exception,
    )
    assert (await ended).messages[-1].text == "hi"
    assert provider.requests[0].system_prompt == ""
