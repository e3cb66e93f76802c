"""pi's loop functions: their events, steering, tools, hooks and aborts."""

import asyncio

import pytest
from tests.compat.kit import Gate, Silence, boom, collect, config, greet, names, said

from looopy.compat import pi
from looopy.errors import LLMUnavailable, RateLimited
from looopy.llm import StreamEvent
from looopy.testing import ScriptedProvider, failure, text, tool_call

PLAIN = [
    "agent_start",
    "turn_start",
    "message_start user",
    "message_end user",
    "message_start assistant",
    "message_end assistant",
    "turn_end",
    "agent_end",
]


def _loop(prompt, model, *, options=None, **rest):
    return pi.agent_loop([pi.UserMessage(prompt)], config=config(model, **(options or {})), **rest)


def _once(*batches):
    """A poller that has each of *batches* once, then nothing."""
    left = [list(batch) for batch in batches]
    return lambda: left.pop(0) if left else []


async def test_a_text_answer_is_two_messages_and_its_events_in_order():
    """The prompt is announced first, the end has all that was added."""
    events = await collect(_loop("hi", ScriptedProvider([text("hello")])))
    assert names(events) == PLAIN
    assert said(events[-1].messages) == [("user", "hi"), ("assistant", "hello")]


async def test_the_list_that_was_given_stays_as_it_was():
    """The loop keeps nothing: what it adds is in `agent_end`."""
    before = [pi.UserMessage("a"), pi.AssistantMessage("b")]
    model = ScriptedProvider([text("d")])
    events = await collect(_loop("c", model, messages=before, system_prompt="Be brief."))
    assert said(before) == [("user", "a"), ("assistant", "b")]
    assert said(events[-1].messages) == [("user", "c"), ("assistant", "d")]
    assert said(model.requests[0].messages) == [("user", "a"), ("assistant", "b"), ("user", "c")]
    assert model.requests[0].system_prompt == "Be brief."


@pytest.mark.parametrize(
    ("messages", "why"),
    [([], "no messages"), ([pi.UserMessage("a"), pi.AssistantMessage("b")], "assistant message")],
)
def test_continue_refuses_at_the_call(messages, why):
    """A ValueError, as in pi, before anything is iterated."""
    with pytest.raises(ValueError, match=f"Cannot continue.*{why}"):
        pi.agent_loop_continue(messages=messages, config=config(ScriptedProvider([])))


async def test_continue_emits_no_event_for_earlier_messages():
    """From a user's message: one new answer, and one `message_end`."""
    events = await collect(
        pi.agent_loop_continue(
            messages=[pi.UserMessage("a")], config=config(ScriptedProvider([text("b")]))
        )
    )
    assert [n for n in names(events) if n.startswith("message_end")] == ["message_end assistant"]
    assert said(events[-1].messages) == [("assistant", "b")]


async def test_continue_answers_a_tool_result():
    """As after a crash between tool and model."""
    history = [
        pi.UserMessage("a"),
        pi.AssistantMessage([pi.ToolCall("c", "greet", {"name": "x"})], stop_reason="toolUse"),
        pi.ToolResultMessage(tool_call_id="c", tool_name="greet", content="Hello x!"),
    ]
    model = ScriptedProvider([text("done")])
    events = await collect(pi.agent_loop_continue(messages=history, config=config(model)))
    assert said(events[-1].messages) == [("assistant", "done")]
    assert model.requests[0].messages[-1].text == "Hello x!"


async def test_a_custom_tail_is_the_callers_to_convert():
    """With a converter that makes something of it."""
    model = ScriptedProvider([text("seen")])
    events = await collect(
        pi.agent_loop_continue(
            messages=[pi.CustomMessage("note", "look")],
            config=config(model),
            convert_to_llm=lambda messages: [pi.UserMessage(m.content) for m in messages],
        )
    )
    assert said(model.requests[0].messages) == [("user", "look")]
    assert said(events[-1].messages) == [("assistant", "seen")]


async def test_options_reach_the_model():
    """Temperature, limit, reasoning, session, key, headers and budgets."""
    model = ScriptedProvider([text("a")])
    options = {
        "temperature": 0.5,
        "max_tokens": 9,
        "reasoning": pi.ThinkingLevel.HIGH,
        "session_id": "s",
        "api_key": "k",
        "headers": {"x": "y"},
        "thinking_budgets": {"high": 7},
    }
    await collect(_loop("go", model, options=options))
    sent = model.options[0]
    assert (sent.temperature, sent.max_tokens, sent.thinking_level) == (0.5, 9, "high")
    assert (sent.session_id, sent.api_key, sent.headers) == ("s", "k", {"x": "y"})
    assert sent.thinking_budgets == {"high": 7}


async def test_each_round_is_a_turn_with_its_results():
    """The second begins anew; results stand in the history before their turn ends."""
    model = ScriptedProvider([tool_call("greet", name="Ada"), text("done")])
    events = await collect(_loop("go", model, tools=[greet]))
    assert names(events) == [
        "agent_start",
        "turn_start",
        "message_start user",
        "message_end user",
        "message_start assistant",
        "message_end assistant",
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
    first, second = [e for e in events if e.type == "turn_end"]
    assert said(first.tool_results) == [("toolResult", "Hello Ada!")]
    assert (first.message.tool_calls[0].name, second.message.text) == ("greet", "done")
    assert list(second.tool_results) == []


async def test_there_are_ten_kinds_of_events():
    """Whatever our own say besides: usage, warnings, status."""
    model = ScriptedProvider([failure(RateLimited), tool_call("greet", name="a"), text("b")])
    options = {"loop": pi_config_with_retry()}
    events = await collect(_loop("go", model, tools=[greet], options=options))
    assert {e.type for e in events} == {
        "agent_start",
        "agent_end",
        "turn_start",
        "turn_end",
        "message_start",
        "message_update",
        "message_end",
        "tool_execution_start",
        "tool_execution_end",
    }
    starts = [n for n in names(events) if n == "message_start assistant"]
    assert len(starts) == 2  # a call that is made again has started already


def pi_config_with_retry():
    """Three tries without waiting."""
    from looopy import LoopConfig, RetryPolicy

    return LoopConfig(retry=RetryPolicy(base_s=0))


async def test_steering_comes_after_the_prompt():
    """What is queued at the start is said in the first turn, before the model is asked."""
    model = ScriptedProvider([text("b")])
    steer = _once([pi.UserMessage("also")])
    events = await collect(_loop("go", model, get_steering_messages=steer))
    assert said(events[-1].messages) == [("user", "go"), ("user", "also"), ("assistant", "b")]
    assert [m.text for m in model.requests[0].messages] == ["go", "also"]
    assert names(events)[:7] == [*PLAIN[:4], *PLAIN[2:4], "message_start assistant"]


@pytest.mark.parametrize(
    ("script", "mode", "polls"),
    [
        ([text("a")], "sequential", 2),
        ([tool_call("greet", name="x"), text("a")], "sequential", 4),
        (
            [(tool_call("greet", name="x"), tool_call("greet", name="y")), text("a")],
            "sequential",
            5,
        ),
        ([(tool_call("greet", name="x"), tool_call("greet", name="y")), text("a")], "parallel", 6),
    ],
)
async def test_steering_is_asked_for_as_often_as_in_pi(script, mode, polls):
    """At the start, after each turn and tool; before parallel tools: as counted in pi 0.58.3."""
    asked, model = [], ScriptedProvider(script)
    options = {"tool_execution": mode}
    run = _loop(
        "go", model, tools=[greet], options=options, get_steering_messages=lambda: asked.append(1)
    )
    await collect(run)
    assert len(asked) == polls


async def test_steering_while_the_model_answers_leaves_the_first_tool():
    """The function is asked after that tool, as in pi; the other calls are skipped then."""
    model = ScriptedProvider(
        [(tool_call("greet", name="x"), tool_call("greet", name="y")), text("stopped")]
    )
    queued, events = [], []

    def steering():
        return [queued.pop()] if queued else []

    async for event in _loop("go", model, tools=[greet], get_steering_messages=steering):
        events.append(event)
        if names([event]) == ["message_start assistant"] and len(model.requests) == 1:
            queued.append(pi.UserMessage("stop"))
    ends = [event for event in events if event.type == "tool_execution_end"]
    assert [end.is_error for end in ends] == [False, True]
    assert model.requests[1].messages[-1].text == "stop"


async def test_updates_have_the_partial_message_and_the_provider_event():
    """All nine kinds of pieces, text growing."""
    model = ScriptedProvider(
        [(text("abcd"), tool_call("greet", name="x")), text("")], chunk_chars=2
    )
    seen = [
        (event.assistant_event.type, event.message.text)
        async for event in _loop("go", model, tools=[greet])
        if event.type == "message_update"
    ]
    assert ("text_delta", "ab") in seen
    assert ("text_delta", "abcd") in seen
    kinds = {kind for kind, _ in seen}
    assert {"text_start", "text_delta", "text_end"} <= kinds
    assert {"toolcall_start", "toolcall_delta", "toolcall_end"} <= kinds


class _Bare:
    """A provider that says nothing but its last event, or not even that."""

    name = model = "bare"

    def __init__(self, *events):
        self.events = events

    async def stream(self, request, options):
        for event in self.events:
            yield event


async def test_an_answer_without_a_start_is_announced_all_the_same():
    """Start and end, of the final message."""
    model = _Bare(StreamEvent("done", message=pi.AssistantMessage("at once")))
    events = await collect(_loop("go", model))
    assert names(events) == PLAIN
    assert events[-2].message.text == "at once"


async def test_a_failed_call_ends_the_run_without_tools_or_follow_ups():
    """Its message says why; nothing is raised."""
    asked = []
    model = ScriptedProvider([failure(LLMUnavailable("down"))])
    events = await collect(
        _loop("go", model, tools=[greet], get_follow_up_messages=lambda: asked.append(1))
    )
    assert names(events) == PLAIN
    end = events[-2]
    assert (end.message.stop_reason, end.message.error_message) == ("error", "down")
    assert list(end.tool_results) == []
    assert asked == []
    assert events[-1].messages[-1] == end.message


async def test_a_stream_that_only_stops_is_a_failed_call():
    """Neither `done` nor `error` came."""
    events = await collect(_loop("go", _Bare(StreamEvent("start"))))
    assert names(events) == PLAIN
    assert events[-2].message.stop_reason == "error"
    assert "without an answer" in events[-2].message.error_message


async def test_the_model_is_shown_no_custom_roles():
    """By default; a converter of one's own decides otherwise, async too."""
    history = [pi.CustomMessage("note", "n")]
    model = ScriptedProvider([text("a")], repeat=True)
    await collect(_loop("go", model, messages=history))
    assert said(model.requests[0].messages) == [("user", "go")]
    assert pi.default_convert_to_llm([*history, pi.UserMessage("x")])[0].role == "user"

    async def convert(messages):
        return [m for m in messages if m.role == "user"][-1:]

    await collect(
        pi.agent_loop(
            [pi.UserMessage("a"), pi.UserMessage("b")], config=config(model), convert_to_llm=convert
        )
    )
    assert said(model.requests[1].messages) == [("user", "b")]


async def test_the_context_is_transformed_before_it_is_converted():
    """For this call alone: the messages that were said stay."""
    order, model = [], ScriptedProvider([text("e")])
    controller = pi.AbortController()

    async def last_two(messages, signal):
        order.append(("transform", len(messages), signal))
        return messages[-2:]

    def convert(messages):
        order.append(("convert", len(messages)))
        return messages

    history = [pi.UserMessage("a"), pi.AssistantMessage("b"), pi.UserMessage("c")]
    events = await collect(
        pi.agent_loop(
            [pi.UserMessage("d")],
            messages=history,
            config=config(model),
            signal=controller.signal,
            transform_context=last_two,
            convert_to_llm=convert,
        )
    )
    assert order == [("transform", 4, controller.signal), ("convert", 2)]
    assert said(model.requests[0].messages) == [("user", "c"), ("user", "d")]
    assert said(events[-1].messages) == [("user", "d"), ("assistant", "e")]


async def test_a_call_runs_once_with_its_arguments():
    """Start, end and result name the same call; the model answers then."""
    model = ScriptedProvider([tool_call("greet", name="Ada"), text("done")])
    events = await collect(_loop("go", model, tools=[greet]))
    (start,) = [e for e in events if e.type == "tool_execution_start"]
    (end,) = [e for e in events if e.type == "tool_execution_end"]
    assert (start.tool_name, start.args) == ("greet", {"name": "Ada"})
    assert (start.tool_call_id, end.is_error) == (end.tool_call_id, False)
    assert len(model.requests) == 2


async def test_parallel_tools_overlap_and_are_shown_in_order():
    """The second ends first; turn and model have them as they were called."""
    first, second = Gate("first"), Gate("second")
    model = ScriptedProvider([(tool_call("first"), tool_call("second")), text("done")])
    run = asyncio.create_task(
        collect(_loop("go", model, tools=[first, second], options={"tool_execution": "parallel"}))
    )
    await first.entered.wait()
    await second.entered.wait()
    second.open.set()
    await asyncio.sleep(0)
    first.open.set()
    events = await run
    ends = [e for e in events if e.type == "turn_end"]
    assert [r.text for r in ends[0].tool_results] == ["first through", "second through"]
    assert [m.text for m in model.requests[1].messages[-2:]] == ["first through", "second through"]


async def test_tools_run_one_after_the_other_by_default():
    """The second is entered when the first is through."""
    first, second = Gate("first"), Gate("second")
    model = ScriptedProvider([(tool_call("first"), tool_call("second")), text("done")])
    run = asyncio.create_task(collect(_loop("go", model, tools=[first, second])))
    await first.entered.wait()
    assert not second.entered.is_set()
    first.open.set()
    await second.entered.wait()
    second.open.set()
    await run


async def test_steering_skips_calls_that_have_not_started():
    """Each skipped call has its start, its end and its result; then the model hears the user."""
    ran = []

    @pi.tool("work", "Work", {"type": "object", "properties": {"n": {"type": "integer"}}})
    async def work(tool_call_id, params, signal, on_update):
        ran.append(params["n"])
        return pi.AgentToolResult([pi.TextContent("worked")])

    waiting = [pi.UserMessage("stop that")]
    model = ScriptedProvider([(tool_call("work", n=1), tool_call("work", n=2)), text("ok")])
    events = await collect(
        _loop(
            "go",
            model,
            tools=[work],
            get_steering_messages=lambda: [waiting.pop()] if ran and waiting else [],
        )
    )
    assert ran == [1]
    one, two = [e for e in events if e.type == "tool_execution_end"]
    assert (one.is_error, two.is_error) == (False, True)
    assert two.result.content[0].text == "Skipped due to queued user message."
    assert len([e for e in events if e.type == "tool_execution_start"]) == 2
    assert "stop that" in [m.text for m in model.requests[1].messages]
    roles = [m.role for m in events[-1].messages]
    assert roles == ["user", "assistant", "toolResult", "toolResult", "user", "assistant"]


async def test_parallel_calls_are_skipped_before_they_are_launched_and_not_after():
    """Steering that comes while they run waits until they are through."""
    first, second = Gate("first"), Gate("second")
    waiting = []
    model = ScriptedProvider([(tool_call("first"), tool_call("second")), text("ok")])
    run = asyncio.create_task(
        collect(
            _loop(
                "go",
                model,
                tools=[first, second],
                options={"tool_execution": "parallel"},
                get_steering_messages=lambda: [waiting.pop()] if waiting else [],
            )
        )
    )
    await second.entered.wait()
    waiting.append(pi.UserMessage("now"))
    first.open.set()
    second.open.set()
    events = await run
    assert [e.is_error for e in events if e.type == "tool_execution_end"] == [False, False]
    assert [m.text for m in events[-1].messages[-2:]] == ["now", "ok"]


async def test_the_calls_may_run_before_steering_is_delivered():
    """As pi does since 0.58, with `steering="after_batch"`."""
    from looopy import LoopConfig

    waiting = [pi.UserMessage("now")]
    model = ScriptedProvider(
        [(tool_call("greet", name="a"), tool_call("greet", name="b")), text("ok")]
    )
    events = await collect(
        _loop(
            "go",
            model,
            tools=[greet],
            options={"loop": LoopConfig(steering="after_batch")},
            get_steering_messages=lambda: [waiting.pop()] if waiting and model.requests else [],
        )
    )
    assert [e.is_error for e in events if e.type == "tool_execution_end"] == [False, False]
    assert [m.text for m in events[-1].messages[-2:]] == ["now", "ok"]


async def test_follow_ups_are_asked_for_where_the_run_would_end():
    """Not while there are calls; each brings another turn."""
    asked = []

    async def follow_up():
        asked.append(len(model.requests))
        return [pi.UserMessage("and?")] if len(asked) == 1 else []

    model = ScriptedProvider([tool_call("greet", name="a"), text("b"), text("c")])
    events = await collect(_loop("go", model, tools=[greet], get_follow_up_messages=follow_up))
    assert asked == [2, 3]
    assert [m.text for m in events[-1].messages[-3:]] == ["b", "and?", "c"]
    assert names(events)[-7:] == PLAIN[1:]


async def test_a_key_is_resolved_for_each_call():
    """Sync or async, by the provider's name; else the one of the configuration."""
    model, asked = ScriptedProvider([tool_call("greet", name="a"), text("b"), text("c")]), []

    async def key(provider):
        asked.append(provider)
        return f"key-{len(asked)}"

    await collect(_loop("go", model, tools=[greet], get_api_key=key, options={"api_key": "own"}))
    await collect(_loop("go", model, get_api_key=lambda _: None, options={"api_key": "own"}))
    assert asked == ["scripted", "scripted"]
    assert [o.api_key for o in model.options] == ["key-1", "key-2", "own"]


async def test_hooks_around_a_call_may_block_it_or_change_its_result():
    """With a reason, or pi's words; field by field."""
    model = ScriptedProvider(
        [
            tool_call("greet", name="bad"),
            tool_call("greet", name="worse"),
            text("a"),
            tool_call("greet", name="good"),
            text("b"),
        ]
    )
    controller, told = pi.AbortController(), []

    def before(context, signal):
        told.append((context.args["name"], signal is controller.signal))
        assert context.assistant_message.tool_calls[0].id == context.tool_call.id
        return {
            "bad": {"block": True, "reason": "not him"},
            "worse": {"block": True},
        }.get(context.args["name"])

    async def after(context, signal):
        assert context.result.details == {"to": "good"}
        return {"details": {"seen": signal is controller.signal}}

    options = {"before_tool_call": before, "after_tool_call": after}
    events = [
        e
        for _ in range(2)
        for e in await collect(
            _loop("go", model, tools=[greet], options=options, signal=controller.signal)
        )
    ]
    ends = [e for e in events if e.type == "tool_execution_end"]
    assert [(e.is_error, e.result.content[0].text) for e in ends] == [
        (True, "not him"),
        (True, "Tool execution was blocked"),
        (False, "Hello good!"),
    ]
    assert ends[2].result.details == {"seen": True}
    assert told == [("bad", True), ("worse", True), ("good", True)]


async def test_bad_arguments_go_back_to_the_model():
    """The tool is not run; the text names what is wrong."""
    model = ScriptedProvider([tool_call("greet", name=7), text("sorry")])
    events = await collect(_loop("go", model, tools=[greet]))
    (end,) = [e for e in events if e.type == "tool_execution_end"]
    assert end.is_error
    assert "name" in end.result.content[0].text
    assert events[-1].messages[-1].text == "sorry"


async def test_an_unknown_tool_is_an_error_result_and_the_run_continues():
    """Failing tools too."""
    model = ScriptedProvider([(tool_call("nobody"), tool_call("boom")), text("ok")])
    events = await collect(_loop("go", model, tools=[boom]))
    unknown, failed = [e for e in events if e.type == "tool_execution_end"]
    assert unknown.is_error
    assert "nobody" in unknown.result.content[0].text
    assert failed.is_error
    assert events[-1].messages[-1].text == "ok"


async def test_an_abort_keeps_the_partial_answer_and_ends_the_run():
    """In the middle of a stream, or before anything came."""
    for words in ("so far", ""):
        model, controller = Silence(words), pi.AbortController()
        run = asyncio.create_task(collect(_loop("go", model, signal=controller.signal)))
        await model.entered.wait()
        controller.abort()
        events = await run
        assert names(events) == PLAIN
        last = events[-1].messages[-1]
        assert (last.text, last.stop_reason) == (words, "aborted")
        assert last.error_message


async def test_a_signal_that_was_given_before_aborts_at_once():
    """The prompt is said, and an empty answer."""
    controller = pi.AbortController()
    controller.abort()
    model = ScriptedProvider([text("never")])
    events = await collect(_loop("go", model, signal=controller.signal))
    assert names(events) == PLAIN
    assert (events[-1].messages[-1].stop_reason, model.requests) == ("aborted", [])


async def test_a_failing_poller_delivers_no_message():
    """A callback of pi's must not raise; here it does no harm."""

    def poll():
        raise RuntimeError("no")

    events = await collect(
        _loop(
            "go",
            ScriptedProvider([text("b")]),
            get_steering_messages=poll,
            get_follow_up_messages=poll,
        )
    )
    assert names(events) == PLAIN
