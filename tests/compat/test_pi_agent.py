"""pi's `Agent`: its state, runs, queues, listeners and errors."""

import asyncio

import pytest
from tests.compat.kit import FAST, Gate, Silence, boom, greet, heard, names, said

from looopy import open_stores
from looopy.compat import pi
from looopy.compat.pi.queues import Queues
from looopy.errors import (
    ConfigurationError,
    LLMUnavailable,
    RateLimited,
    StoreUnavailable,
    ValueRefused,
)
from looopy.testing import ScriptedProvider, failure, text, tool_call


@pytest.fixture
async def make():
    """Make agents of a script; none is left open."""
    made = []

    def agent(replies=(), **options):
        model = replies if hasattr(replies, "stream") else ScriptedProvider(replies)
        made.append(pi.Agent(model, loop_config=FAST, **options))
        return made[-1]

    yield agent
    for agent in made:
        agent.abort()
        await agent.close()


def test_a_new_agent_has_an_empty_state():
    """Each field of the state has its default."""
    state = pi.Agent().state
    assert state.model == "anthropic/claude-sonnet-4-5"  # pipy's default
    assert (state.system_prompt, state.tools, state.messages) == ("", [], [])
    assert (state.thinking_level, state.is_streaming, state.stream_message) == ("off", False, None)
    assert (state.pending_tool_calls, state.error) == (set(), None)


def test_values_that_were_given_are_honoured():
    """Lists are copied."""
    tools, messages = [greet], [pi.UserMessage("a")]
    agent = pi.Agent(
        "openai/x",
        "Be brief.",
        tools,
        messages=messages,
        thinking_level=pi.ThinkingLevel.LOW,
        session_id="s",
    )
    tools.clear()
    messages.clear()
    state = agent.state
    assert (state.model, state.system_prompt, state.tools) == ("openai/x", "Be brief.", [greet])
    assert (said(state.messages), state.thinking_level) == ([("user", "a")], "low")
    assert (agent.session_id, agent.messages, agent.is_streaming) == ("s", state.messages, False)


async def test_subscribing_and_setters_send_no_event(make):
    """A run does; who unsubscribed hears no more, the others everything."""
    agent = make([text("a"), text("b")])
    gone = []
    leave = agent.subscribe(gone.append)
    first, second = heard(agent), heard(agent)
    agent.set_system_prompt("p")
    agent.set_tools([greet])
    agent.append_message(pi.UserMessage("x"))
    agent.clear_messages()
    assert first == second == gone == []
    await agent.prompt("hi")
    leave()
    leave()
    count = len(gone)
    await agent.prompt("again")
    assert len(gone) == count
    assert first == second
    assert first[:count] == gone


async def test_a_listener_may_raise_or_unsubscribe_in_its_call(make):
    """The others hear everything, and the run goes on."""
    agent = make([text("a")])
    agent.subscribe(lambda _: 1 / 0)
    leave = agent.subscribe(lambda _: leave())
    events = heard(agent)
    await agent.prompt("hi")
    assert events[-1].type == "agent_end"
    assert agent.state.error is None
    with pytest.raises(ConfigurationError, match="not awaited"):
        agent.subscribe(agent.prompt)


async def test_the_setters_apply_to_the_next_run(make):
    """Model, prompt, tools, thinking level; messages are copied, added, cleared."""
    agent = make()
    model = ScriptedProvider([text("a")])
    messages = [pi.UserMessage("x"), pi.AssistantMessage("y")]
    agent.replace_messages(messages)
    messages.clear()
    agent.append_message(pi.UserMessage("z"))
    assert said(agent.state.messages) == [("user", "x"), ("assistant", "y"), ("user", "z")]
    agent.set_model(model)
    agent.set_system_prompt("Be brief.")
    agent.set_tools([greet])
    agent.set_thinking_level(pi.ThinkingLevel.HIGH)
    await agent.continue_()
    (request,), (options,) = model.requests, model.options
    assert [m.text for m in request.messages] == ["x", "y", "z"]
    assert (request.system_prompt, request.tools[0].name) == ("Be brief.", "greet")
    assert options.thinking_level == "high"
    agent.clear_messages()
    assert agent.state.messages == []


async def test_a_list_of_messages_that_was_changed_reaches_the_context(make):
    """Appended to, it is appended; otherwise what was said is hidden, and the list stands."""
    agent = make([text("a"), text("b"), text("c")])
    await agent.prompt("one")
    agent.state.messages.append(pi.CustomMessage("note", "n"))
    await agent.prompt("two")
    stored = await agent.looopy.get_messages()
    assert [m.role for m in stored] == ["user", "assistant", "note", "user", "assistant"]
    del agent.state.messages[:3]
    await agent.prompt("three")
    assert said(await agent.looopy.get_messages()) == said(agent.state.messages)
    assert [m.text for m in agent.state.messages] == ["two", "b", "three", "c"]


async def test_the_next_run_gets_the_earlier_messages(make):
    """Two messages after one prompt, four after two."""
    model = ScriptedProvider([text("a"), text("b")])
    agent = make(model)
    await agent.prompt("one")
    assert len(agent.state.messages) == 2
    await agent.prompt("two")
    assert len(agent.state.messages) == 4
    assert [m.text for m in model.requests[1].messages] == ["one", "a", "two"]


async def test_a_prompt_is_text_with_images_a_message_or_several(make):
    """Each is announced, the last too."""
    model = ScriptedProvider([text("a")], repeat=True)
    agent = make(model)
    events = heard(agent)
    await agent.prompt("look", [pi.ImageContent("aGk=")])
    assert agent.state.messages[0].content == (pi.TextContent("look"), pi.ImageContent("aGk="))
    await agent.prompt(pi.UserMessage("one"))
    events.clear()
    await agent.prompt([pi.UserMessage("two"), pi.CustomMessage("note", "n"), pi.UserMessage("3")])
    assert names(events)[:9] == [
        "agent_start",
        "turn_start",
        "message_start user",
        "message_end user",
        "message_start note",
        "message_end note",
        "message_start user",
        "message_end user",
        "message_start assistant",
    ]
    assert [m.role for m in events[-1].messages] == ["user", "note", "user", "assistant"]
    assert [m.text for m in model.requests[-1].messages[-2:]] == ["two", "3"]
    with pytest.raises(ValueError, match="no message to send"):
        await agent.prompt([])


async def test_order_1_6_keeps_prompt_and_tools_in_the_history(make):
    """First without an event, then by a message that is announced as the tools change."""
    model = ScriptedProvider([text("a")], repeat=True)
    agent = make(model, order="1.6", system_prompt="Be kind.", tools=[greet])
    spec = {"name": "greet", "description": "Greet somebody", "parameters": greet.parameters}
    (first,) = agent.state.messages
    assert (first.role, first.text, first.metadata) == (
        "system",
        "Be kind.",
        {"tools_added": [spec]},
    )
    events = heard(agent)
    await agent.prompt("hi")
    assert names(events)[2:5] == [
        "message_start user",
        "message_end user",
        "message_start assistant",
    ]
    agent.set_tools([boom])
    agent.set_system_prompt("Be brief.")
    await agent.prompt("again")
    second = agent.state.messages[3]
    assert (second.role, second.text) == ("system", "Be brief.")
    assert second.metadata["tools_removed"] == [{"name": "greet"}]
    assert [tool["name"] for tool in second.metadata["tools_added"]] == ["boom"]
    assert names(events).count("message_end system") == 1
    assert model.requests[1].system_prompt == "Be brief."
    assert said(model.requests[1].messages) == [
        ("user", "hi"),
        ("assistant", "a"),
        ("user", "again"),
    ]
    assert said(await agent.looopy.get_messages()) == said(agent.state.messages)
    agent.reset()
    assert said(agent.state.messages) == [("system", "Be brief.")]
    with pytest.raises(pi.NothingToContinue, match="No messages"):
        await agent.continue_()


async def test_order_1_6_announces_once_what_a_context_holds(tmp_path):
    """A second agent of the context adds nothing; with other tools it announces them."""
    options = {"order": "1.6", "stores": f"sqlite:///{tmp_path / 'pi.db'}", "context_id": "ada"}
    model = ScriptedProvider([text("a")], repeat=True)
    for tools, systems in (([greet], 1), ([greet], 1), ([boom], 2)):
        async with pi.Agent(model, "Be kind.", tools, **options) as agent:
            await agent.prompt("hi")
            assert [m.role for m in agent.state.messages].count("system") == systems
    assert [m.role for m in agent.state.messages][:2] == ["system", "user"]
    async with pi.Agent(model, "Be kind.", [greet], **options) as agent:
        agent.append_message(pi.UserMessage("go on"))
        await agent.continue_()
        assert [m.role for m in agent.state.messages[-3:]] == ["user", "system", "assistant"]


async def test_order_1_6_skips_no_call(make):
    """A message that comes while tools run waits for the next turn."""
    first, second = Gate("first"), Gate("second")
    agent = make(
        [(tool_call("first"), tool_call("second")), text("b")],
        tools=[first, second],
        order="1.6",
        tool_execution="sequential",
    )
    run = asyncio.create_task(agent.prompt("go"))
    await first.entered.wait()
    agent.steer("stop")
    first.open.set()
    second.open.set()
    await run
    assert [m.text for m in agent.state.messages[-4:]] == [
        "first through",
        "second through",
        "stop",
        "b",
    ]


@pytest.mark.parametrize("option", [{"order": "1.5"}, {"tool_execution": "both"}])
def test_an_unknown_order_is_refused(option):
    """By the agent and by the loop's options."""
    for make in (pi.Agent, pi.AgentLoopConfig):
        with pytest.raises(ConfigurationError, match=next(iter(option))):
            make("openai/x", **option) if make is pi.Agent else make(model="openai/x", **option)


async def test_a_prompt_may_end_in_any_message(make):
    """A tool's result, for one: the model is asked about it."""
    call = pi.AssistantMessage([pi.ToolCall("c", "greet", {"name": "x"})], stop_reason="toolUse")
    result = pi.ToolResultMessage(tool_call_id="c", tool_name="greet", content="Hello x!")
    agent = make([text("seen")], messages=[pi.UserMessage("go"), call])
    events = heard(agent)
    await agent.prompt(result)
    assert names(events)[2:4] == ["message_start toolResult", "message_end toolResult"]
    assert agent.state.messages[-1].text == "seen"


async def test_the_modes_of_the_queues_are_set(make):
    """For the next run; an unknown mode is refused where it is set."""
    model = ScriptedProvider([text("a")], repeat=True)
    agent = make(model)
    for mode, calls in (("all", 1), ("one-at-a-time", 2)):
        agent.set_steering_mode(mode)
        agent.set_follow_up_mode(mode)
        for message in ("x", "y"):
            agent.steer(message)
            agent.follow_up(message)
        del model.requests[:]
        await agent.prompt("go")
        assert len(model.requests) == 2 * calls
    for setter in (agent.set_steering_mode, agent.set_follow_up_mode):
        with pytest.raises(ConfigurationError, match="one-at-a-time"):
            setter("some")


@pytest.mark.parametrize(
    ("messages", "why"),
    [([], "No messages"), ([pi.AssistantMessage("hi")], "Cannot continue from assistant")],
)
async def test_continue_looks_at_the_messages_before_the_model(messages, why, monkeypatch):
    """So that it says what is wrong, even if no model can be called."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    async with pi.Agent(messages=messages) as agent:
        with pytest.raises(ValueError, match=why):
            await agent.continue_()


async def test_queues_leave_the_messages_alone(make):
    """They are filled, asked and emptied at once, idle or not."""
    agent = make()
    for _ in range(2):
        assert not agent.has_queued_messages()
        agent.steer(pi.UserMessage("a"))
        agent.follow_up("b")
        assert agent.has_queued_messages()
        assert agent.state.messages == []
        agent.clear_steering_queue()
        assert agent.has_queued_messages()
        agent.clear_follow_up_queue()
    agent.steer("c")
    agent.clear_queues()
    assert not agent.has_queued_messages()


async def test_reset_clears_messages_queues_and_error(make):
    """Model, prompt, tools and listeners stay."""
    model = ScriptedProvider([failure(LLMUnavailable("down")), text("a")])
    agent = make(model, system_prompt="p", tools=[greet])
    events = heard(agent)
    await agent.prompt("hi")
    assert agent.state.error == "down"
    agent.follow_up("b")
    agent.reset()
    state = agent.state
    assert (state.messages, state.error, state.stream_message) == ([], None, None)
    assert (state.pending_tool_calls, state.is_streaming) == (set(), False)
    assert not agent.has_queued_messages()
    assert (state.model, state.system_prompt, state.tools) == (model, "p", [greet])
    events.clear()
    await agent.prompt("anew")
    assert [m.text for m in model.requests[-1].messages] == ["anew"]
    assert events[-1].type == "agent_end"


async def test_aborting_an_idle_agent_has_no_effect(make):
    """Before a run, and after one."""
    agent = make([text("a")])
    agent.abort()
    await agent.prompt("hi")
    agent.abort()
    assert said(agent.state.messages) == [("user", "hi"), ("assistant", "a")]


async def test_an_aborted_run_leaves_an_aborted_answer(make):
    """Its error is the one of the state; what was said is kept."""
    for words in ("so far", ""):
        model = Silence(words)
        agent = make(model)
        run = asyncio.create_task(agent.prompt("hi"))
        await model.entered.wait()
        assert agent.state.is_streaming
        agent.abort()
        await run
        last = agent.state.messages[-1]
        assert (last.role, last.text, last.stop_reason) == ("assistant", words, "aborted")
        assert last.error_message == agent.state.error
        assert last.error_message
        assert not agent.state.is_streaming
        assert agent.state.stream_message is None


async def test_a_message_after_an_abort_is_answered(make):
    """The model is not shown the answer that was cut."""
    model, gate = ScriptedProvider([(text("cut"), tool_call("gate")), text("a")]), Gate()
    agent = make(model, tools=[gate])
    run = asyncio.create_task(agent.prompt("hi"))
    await gate.entered.wait()
    agent.abort()
    await run
    assert gate.signal.aborted
    await agent.prompt("again")
    assert agent.state.messages[-1].text == "a"
    assert agent.state.error is None
    roles = [m.role for m in model.requests[-1].messages]
    assert roles == ["user", "assistant", "toolResult", "user"]


async def test_a_running_agent_takes_no_other_prompt(make):
    """A RuntimeError that says what to do instead; the run is not harmed."""
    gate = Gate()
    agent = make([tool_call("gate"), text("a")], tools=[gate])
    run = asyncio.create_task(agent.prompt("hi"))
    await gate.entered.wait()
    with pytest.raises(RuntimeError, match=r"steer\(\)"):
        await agent.prompt("me too")
    with pytest.raises(RuntimeError, match="Already streaming"):
        await agent.continue_()
    gate.open.set()
    await run
    assert agent.state.messages[-1].text == "a"


async def test_continue_delivers_messages_queued_after_an_answer(make):
    """Nothing was said, or an answer stands and nothing is queued: a ValueError."""
    agent = make([text("a"), text("b")])
    with pytest.raises(ValueError, match="No messages"):
        await agent.continue_()
    await agent.prompt("hi")
    with pytest.raises(ValueError, match="assistant message"):
        await agent.continue_()
    agent.follow_up("and?")
    await agent.continue_()
    assert [m.text for m in agent.state.messages] == ["hi", "a", "and?", "b"]
    assert not agent.has_queued_messages()


async def test_two_steers_are_two_rounds(make):
    """One at a time, by default."""
    model = ScriptedProvider([text("a"), text("b"), text("c")])
    agent = make(model)
    await agent.prompt("hi")
    agent.steer("one")
    agent.steer("two")
    await agent.continue_()
    assert [m.text for m in agent.state.messages] == ["hi", "a", "one", "b", "two", "c"]
    assert [m.role for m in agent.state.messages[-4:]] == ["user", "assistant"] * 2
    assert len(model.requests) == 3


async def test_each_queue_has_a_mode_of_its_own(make):
    """Steering all at once, follow-ups one by one; or the other way round."""
    for modes, calls in (({"steering_mode": "all"}, 3), ({"follow_up_mode": "all"}, 3)):
        model = ScriptedProvider([text("a")], repeat=True)
        agent = make(model, **modes)
        for word in ("one", "two"):
            agent.steer(word)
            agent.follow_up(f"then {word}")
        await agent.prompt("hi")
        spoken = [m.text if m.role == "user" else "-" for m in agent.state.messages]
        assert len(model.requests) == calls
        expected = {
            "steering_mode": ["hi", "one", "two", "-", "then one", "-", "then two", "-"],
            "follow_up_mode": ["hi", "one", "-", "two", "-", "then one", "then two", "-"],
        }
        assert spoken == expected[next(iter(modes))]


async def test_queued_messages_are_stored_in_order():
    """Though the first takes longer: nobody overtakes."""
    stored, slow = [], asyncio.Event()

    async def post(kind, message, auth_context):
        if message.text == "one":
            await slow.wait()
        stored.append(message.text)

    queues = Queues(post, drop=None)
    first = queues.add("steering", pi.UserMessage("one"), None)
    second = queues.add("follow_up", pi.UserMessage("two"), None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert stored == []
    slow.set()
    await asyncio.gather(first, second)
    assert stored == ["one", "two"]


async def test_all_queued_messages_may_be_delivered_at_once(make):
    """With the mode `all`."""
    model = ScriptedProvider([text("a"), text("b")])
    agent = make(model, steering_mode="all", follow_up_mode="all")
    await agent.prompt("hi")
    agent.steer("one")
    agent.steer("two")
    await agent.prompt("three")
    assert [m.text for m in agent.state.messages] == ["hi", "a", "three", "one", "two", "b"]
    with pytest.raises(ConfigurationError, match="follow_up_mode"):
        pi.Agent(follow_up_mode="some")


async def test_a_follow_up_waits_for_the_answer_and_steering_does_not(make):
    """Both are queued while a tool runs."""
    gate = Gate()
    model = ScriptedProvider([tool_call("gate"), text("a"), text("b")])
    agent = make(model, tools=[gate])
    run = asyncio.create_task(agent.prompt("hi"))
    await gate.entered.wait()
    agent.follow_up("later")
    await agent.steer("now")
    gate.open.set()
    await run
    assert [m.text for m in agent.state.messages[2:]] == ["gate through", "now", "a", "later", "b"]
    assert not agent.has_queued_messages()


async def test_queues_outlive_an_abort(make):
    """They are said by the next run, once it has answered what was left."""
    gate = Gate()
    agent = make([tool_call("gate"), text("a"), text("b")], tools=[gate])
    run = asyncio.create_task(agent.prompt("hi"))
    await gate.entered.wait()
    await agent.follow_up("later")
    agent.abort()
    await run
    assert agent.has_queued_messages()
    await agent.continue_()
    assert [m.text for m in agent.state.messages[-3:]] == ["a", "later", "b"]


async def test_waiting_for_an_idle_agent_returns_at_once_or_when_the_run_ends(make):
    """It looks at the state, not for an event."""
    gate = Gate()
    agent = make([tool_call("gate"), text("a")], tools=[gate])
    await agent.wait_for_idle()
    run = asyncio.create_task(agent.prompt("hi"))
    await gate.entered.wait()
    waiting = asyncio.create_task(agent.wait_for_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.open.set()
    await waiting
    assert not agent.state.is_streaming
    await run


async def test_an_answer_is_in_the_state_before_its_tools_run(make):
    """As with pi's own agent."""
    seen = []

    @pi.tool("look", "Look", {"type": "object", "properties": {}})
    async def look(tool_call_id, params, signal, on_update):
        seen.append((said(agent.state.messages), set(agent.state.pending_tool_calls)))
        return pi.AgentToolResult()

    agent = make([(text("I look."), tool_call("look")), text("a")], tools=[look])
    await agent.prompt("hi")
    assert seen == [([("user", "hi"), ("assistant", "I look.")], {"call_1"})]
    assert agent.state.pending_tool_calls == set()


async def test_the_state_knows_before_a_listener_does(make):
    """Messages, the answer that grows, calls that run, the error."""
    agent, seen = make([(text("abcd"), tool_call("greet", name="x")), text("b")], tools=[greet]), []

    def look(event):
        state = agent.state
        if event.type == "message_update" and event.message.text:
            seen.append(state.stream_message.text == event.message.text)
        elif event.type == "message_end":
            seen.append(state.messages[-1] is event.message and state.stream_message is None)
        elif event.type == "tool_execution_start":
            seen.append(state.pending_tool_calls == {event.tool_call_id})
        elif event.type == "tool_execution_end":
            seen.append(state.pending_tool_calls == set())
        elif event.type in ("agent_start", "agent_end"):
            seen.append(state.is_streaming is (event.type == "agent_start"))

    agent.subscribe(look)
    await agent.prompt("hi")
    assert len(seen) > 10
    assert all(seen)
    assert [m.role for m in agent.state.messages] == [
        "user",
        "assistant",
        "toolResult",
        "assistant",
    ]


async def test_a_failed_answer_is_the_error_of_the_state(make):
    """ContextView when its turn ends; the next run forgets it."""
    agent, seen = make([failure(LLMUnavailable("down")), text("a")]), []
    agent.subscribe(lambda e: e.type == "turn_end" and seen.append(agent.state.error))
    await agent.prompt("hi")
    assert (seen, agent.state.error) == (["down"], "down")
    assert agent.state.messages[-1].stop_reason == "error"
    await agent.continue_()
    assert (agent.state.error, agent.state.messages[-1].text) == (None, "a")


async def test_a_store_that_is_lost_ends_the_run_all_the_same(make, monkeypatch):
    """With an empty answer that says so; nothing stays on."""
    agent = make([(text("I look."), tool_call("greet", name="x"))], tools=[greet])
    await agent.load()
    stores = agent.looopy._core.resources.stores

    async def lost(commit):
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(stores, "commit", lost)
    events = heard(agent)
    await agent.prompt("hi")
    state = agent.state
    assert "the disk is gone" in state.error
    assert events[-1].type == "agent_end"
    assert state.messages[-1].stop_reason == "error"
    assert (state.is_streaming, state.stream_message) == (False, None)
    assert state.pending_tool_calls == set()


async def test_an_error_before_the_start_of_a_run_is_raised(make):
    """Nothing was announced, nothing is on, and the next run is as ever."""
    agent = make([text("a")])
    events, model = heard(agent), agent.state.model
    agent.set_model("nobody/knows-it")
    with pytest.raises(ConfigurationError):
        await agent.prompt("hi")
    assert (events, agent.state.is_streaming, agent.state.messages) == ([], False, [])
    agent.set_model(model)
    await agent.prompt("hi")
    assert agent.state.messages[-1].text == "a"


async def test_messages_stored_before_a_run_that_failed_to_start_are_in_the_state(make):
    """Of several prompts all but the last; the next run follows them."""
    model = ScriptedProvider([text("a")])
    agent = make(model)
    with pytest.raises(ValueRefused):
        await agent.prompt([pi.UserMessage("one"), pi.UserMessage("\x00")])
    assert said(agent.state.messages) == said(await agent.looopy.get_messages())
    await agent.prompt("two")
    assert [m.text for m in model.requests[0].messages] == ["one", "two"]
    assert said(agent.state.messages) == said(await agent.looopy.get_messages())


async def test_cancelling_a_waiter_does_not_stop_the_run(make):
    """The run goes on: `abort()` stops it, not a waiter that is cancelled."""
    gate = Gate()
    agent = make([tool_call("gate"), text("a")], tools=[gate])
    waiter = asyncio.create_task(agent.prompt("hi"))
    await gate.entered.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert agent.state.is_streaming
    gate.open.set()
    await agent.wait_for_idle()
    assert (agent.state.messages[-1].text, agent.state.is_streaming) == ("a", False)


async def test_the_session_goes_to_the_model_with_every_call(make):
    """It may change between prompts; without one, it is the context."""
    model = ScriptedProvider([text("a")], repeat=True)
    agent = make(model, session_id="one")
    await agent.prompt("hi")
    agent.session_id = "two"
    await agent.prompt("hi")
    agent.session_id = None
    await agent.prompt("hi")
    assert [o.session_id for o in model.options] == ["one", "two", agent.context_id]


async def test_budgets_and_the_longest_delay_can_be_set(make):
    """A longer delay that a server asks for fails at once; 0 takes any."""
    model = ScriptedProvider([failure(RateLimited("wait", retry_after_s=0.002)), text("a")])
    agent = make(model, thinking_budgets={"high": 9}, max_retry_delay_ms=1)
    agent._loop_config = pi_retrying()
    await agent.prompt("hi")
    assert agent.state.error.startswith("wait")
    agent.max_retry_delay_ms = 0
    model = ScriptedProvider([failure(RateLimited("wait")), text("a")])
    agent.set_model(model)
    await agent.continue_()
    assert agent.state.error is None
    assert agent.looopy.loop_config.retry.max_server_delay_s == 0
    assert [o.thinking_budgets for o in model.options] == [{"high": 9}] * 2


def pi_retrying():
    """One more try."""
    from looopy import LoopConfig, RetryPolicy

    return LoopConfig(retry=RetryPolicy(attempts=1, base_s=0))


async def test_a_failing_tool_fails_no_run(make):
    """The model hears of it, and the state has no error."""
    agent = make([tool_call("boom"), text("a")], tools=[boom])
    await agent.prompt("hi")
    assert agent.state.messages[2].is_error
    assert (agent.state.error, agent.state.messages[-1].text) == (None, "a")


@pytest.fixture(params=["memory", "sqlite"])
async def stores(request, tmp_path):
    """Open stores that outlive an agent."""
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'pi.db'}"
    async with open_stores(url) as opened:
        yield opened


async def test_a_conversation_continues_in_another_agent(make, stores):
    """Messages, and what was queued: pi forgets both with the process."""
    first = make([text("a")], stores=stores, context_id="ada")
    await first.prompt("hi")
    await first.follow_up("and?")
    await first.close()
    second = make([text("b")], stores=stores, context_id="ada")
    await second.load()
    assert said(second.state.messages) == [("user", "hi"), ("assistant", "a")]
    await second.looopy.execute_turn(None)
    assert [m.text for m in second.state.messages] == ["hi", "a", "and?", "b"]


async def test_messages_that_were_set_are_kept_and_replaced_ones_hidden(make, stores):
    """What another agent finds is what the list said when the last run began."""
    first = make([text("b"), text("d")], stores=stores, context_id="ada")
    first.append_message(pi.UserMessage("a"))
    await first.continue_()
    first.replace_messages([pi.UserMessage("c")])
    await first.continue_()
    second = make(stores=stores, context_id="ada")
    await second.load()
    assert [m.text for m in second.state.messages] == ["c", "d"]
    third = make([text("f")], stores=stores, context_id="ada")
    third.replace_messages([pi.UserMessage("e")])  # before it has read what there is
    await third.continue_()
    assert [m.text for m in third.state.messages] == ["e", "f"]
    assert [m.text for m in await third.looopy.get_messages()] == ["e", "f"]


async def test_an_agent_that_was_closed_can_be_used_again(make, stores):
    """Nothing is said twice."""
    agent = make([text("a"), text("b")], stores=stores, context_id="ada")
    async with agent:
        await agent.prompt("hi")
    await agent.close()
    await agent.prompt("again")
    assert [m.text for m in agent.state.messages] == ["hi", "a", "again", "b"]


async def test_a_pending_request_is_answered_by_the_agent_underneath(make):
    """Our own agent asks and is answered, and the state follows: pi has no word for it."""
    careful = pi.AgentTool("careful", "Ask first", effects="none", needs_approval=True)
    careful.execute = greet.execute
    agent = make([tool_call("careful", name="Ada"), text("done")], tools=[careful])
    events = heard(agent)
    await agent.prompt("hi")
    assert (agent.state.error, agent.state.is_streaming) == (None, False)
    assert names(events)[-2:] == ["turn_end", "agent_end"]
    (request,) = agent.looopy.state.pending
    events.clear()
    await agent.looopy.execute_turn(None, inputs={request.request_id: True})
    assert [m.role for m in agent.state.messages] == [
        "user",
        "assistant",
        "toolResult",
        "assistant",
    ]
    assert names(events) == [
        "agent_start",
        "turn_start",
        "tool_execution_start",
        "tool_execution_end",
        "message_start toolResult",
        "message_end toolResult",
        "turn_end",
        "turn_start",
        "message_start assistant",
        "message_end assistant",
        "turn_end",
        "agent_end",
    ]
    assert [e.message is None for e in events if e.type == "turn_end"] == [True, False]


async def test_a_listener_may_begin_the_next_run(make):
    """At the end of one, which ends in order."""
    agent, runs = make([text("a"), text("b")]), []

    def again(event):
        if event.type == "agent_end" and not runs:
            runs.append(asyncio.create_task(agent.prompt("more")))

    agent.subscribe(again)
    await agent.prompt("hi")
    await runs[0]
    assert [m.text for m in agent.state.messages] == ["hi", "a", "more", "b"]
    assert not agent.state.is_streaming
