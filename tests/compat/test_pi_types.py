"""pi's tools, messages and abort signals."""

import asyncio
import json

import pytest
from tests.compat.kit import NAME, collect, config, greet

from looopy.compat import pi
from looopy.errors import (
    ConfigurationError,
    InvalidTool,
    LLMUnavailable,
    UnknownModel,
    ValueRefused,
)
from looopy.llm import StreamEvent
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.message_json import message_from_json


async def _result_of(tool, **args):
    """What the model is told of one call."""
    model = ScriptedProvider([tool_call(tool.name, **args), text("ok")])
    events = await collect(
        pi.agent_loop([pi.UserMessage("go")], tools=[tool], config=config(model))
    )
    (end,) = [e for e in events if e.type == "tool_execution_end"]
    return end, events


async def test_a_bare_tool_has_its_fields_and_cannot_run():
    """The label is empty by default, and `execute` is for subclasses."""
    tool = pi.AgentTool(name="t", description="d", parameters=NAME)
    assert (tool.name, tool.description, tool.parameters, tool.label) == ("t", "d", NAME, "")
    with pytest.raises(NotImplementedError, match="'t'"):
        await tool.execute("call_1", {})


async def test_a_subclass_may_set_its_fields_as_class_attributes():
    """As in pipy-agent, whose tools are declared so."""

    class Shout(pi.AgentTool):
        name = "shout"
        description = "Shout"
        parameters = NAME
        label = "Shout!"

        async def execute(self, tool_call_id, params, signal=None, on_update=None):
            return pi.AgentToolResult([pi.TextContent(params["name"].upper())])

    end, _ = await _result_of(Shout(), name="ada")
    assert Shout().label == "Shout!"
    assert end.result.content == [pi.TextContent("ADA")]


def test_the_model_gets_neither_label_nor_code():
    """`to_tool` is the schema alone."""
    told = greet.to_tool()
    assert isinstance(told, pi.Tool)
    assert (told.name, told.description, told.parameters) == ("greet", "Greet somebody", NAME)
    assert not hasattr(told, "label")
    assert not hasattr(told, "execute")


async def test_the_decorator_labels_a_tool_by_its_name():
    """Unless it is given one; the function runs as the tool."""
    other = pi.tool("other", "Do", NAME, label="Otherwise")(greet.function)
    assert (greet.label, other.label) == ("greet", "Otherwise")
    result = await other.execute("call_1", {"name": "Ada"})
    assert (result.content, result.details) == ([pi.TextContent("Hello Ada!")], {"to": "Ada"})


def test_the_decorator_takes_coroutine_functions_only():
    """Said where it is decorated, not in the middle of a run."""
    with pytest.raises(InvalidTool, match="async def"):
        pi.tool("plain", "Do", NAME)(lambda *_: None)


async def test_signal_and_updates_may_be_left_out():
    """Called by hand, a tool needs an id and its arguments."""
    assert (await greet.execute("call_1", {"name": "Ada"})).details == {"to": "Ada"}


async def test_a_result_has_blocks_for_the_model_and_details_for_programs():
    """Empty by default; images are blocks too."""
    empty = pi.AgentToolResult()
    assert (list(empty.content), empty.details) == ([], None)

    @pi.tool("look", "Look", {"type": "object", "properties": {}})
    async def look(tool_call_id, params, signal, on_update):
        return pi.AgentToolResult([pi.ImageContent("aGk=")], {"secret": "no model sees it"})

    model = ScriptedProvider([tool_call("look"), text("ok")])
    events = await collect(
        pi.agent_loop([pi.UserMessage("go")], tools=[look], config=config(model))
    )
    (end,) = [e for e in events if e.type == "tool_execution_end"]
    assert end.result == pi.AgentToolResult(
        [pi.ImageContent("aGk=")], {"secret": "no model sees it"}
    )
    assert model.requests[1].messages[-1].content == (pi.ImageContent("aGk="),)


async def test_a_tool_fails_by_raising():
    """The text of the exception is what the model is told."""
    from tests.compat.kit import boom

    end, events = await _result_of(boom)
    assert end.is_error
    assert "it broke" in end.result.content[0].text
    assert events[-1].type == "agent_end"


async def test_updates_are_shown_before_the_end_on_success_and_on_failure():
    """Each as it was given, blocks and details."""
    half = pi.AgentToolResult([pi.TextContent("half"), pi.ImageContent("aGk=")], {"done": 0.5})

    @pi.tool("slow", "Slow", {"type": "object", "properties": {"fail": {"type": "boolean"}}})
    async def slow(tool_call_id, params, signal, on_update):
        on_update(half)
        await asyncio.sleep(0)
        on_update(pi.AgentToolResult([pi.TextContent("most")]))
        if params.get("fail"):
            raise RuntimeError("then not")
        return pi.AgentToolResult()

    for args in ({}, {"fail": True}):
        end, events = await _result_of(slow, **args)
        kinds = [e.type for e in events if e.type.startswith("tool_")]
        assert kinds == [
            "tool_execution_start",
            "tool_execution_update",
            "tool_execution_update",
            "tool_execution_end",
        ]
        first = next(e for e in events if e.type == "tool_execution_update")
        assert first.partial_result == half
        assert end.is_error == bool(args)


def test_an_application_has_messages_of_its_own():
    """Any role but the three; a message all the same."""
    note = pi.CustomMessage("artifact", "kept", {"id": 1})
    assert (note.role, note.content, note.metadata) == ("artifact", "kept", {"id": 1})


def test_messages_have_the_fields_of_pi():
    """Roles, blocks, and the rest by name."""
    user = pi.UserMessage([pi.TextContent("a"), pi.ImageContent("aGk=")], timestamp=1)
    result = pi.ToolResultMessage(
        tool_call_id="c", tool_name="t", content=[pi.TextContent("r")], details=[1], is_error=True
    )
    answer = pi.AssistantMessage(
        [pi.ThinkingContent("t"), pi.TextContent("a"), pi.ToolCall("c", "t", {"x": 1})],
        api="messages",
        provider="p",
        model="m",
        stop_reason=pi.StopReason.TOOL_USE,
        error_message="e",
    )
    assert [m.role for m in (user, answer, result)] == ["user", "assistant", "toolResult"]
    assert [b.type for b in answer.content] == ["thinking", "text", "toolCall"]
    assert (answer.usage, answer.stop_reason) == (pi.Usage(), "toolUse")
    assert (result.is_error, result.details, user.timestamp) == (True, [1], 1)


def test_an_answer_gives_its_text_its_thinking_and_its_calls():
    """Blocks of one kind, joined by newlines."""
    call = pi.ToolCall("c", "t", {})
    answer = pi.AssistantMessage(
        [pi.TextContent("a"), pi.ThinkingContent("x"), call, pi.TextContent("b")]
    )
    assert (answer.text, answer.thinking_text, answer.tool_calls) == ("a\nb", "x", [call])


async def test_off_asks_for_no_reasoning():
    """The other levels go to the model as they are."""
    model = ScriptedProvider([text("a")], repeat=True)
    for level in (None, *pi.ThinkingLevel):
        await collect(pi.agent_loop([pi.UserMessage("go")], config=config(model, reasoning=level)))
    assert [o.thinking_level for o in model.options] == [
        None,
        None,
        "minimal",
        "low",
        "medium",
        "high",
        "xhigh",
    ]


def test_stop_reasons_have_the_values_of_pi():
    """`sensitive` is pipy's."""
    values = {"stop", "length", "toolUse", "error", "aborted", "sensitive"}
    assert values <= {reason.value for reason in pi.StopReason}


def test_usage_adds_up_with_its_cost():
    """`input` leaves out what the cache served."""
    one = pi.Usage(input=1, cache_read=5, total_tokens=6, cost=pi.Cost(input=0.5, total=0.5))
    assert (one + one).cost.total == 1.0
    assert ((one + one).input, (one + one).cache_read) == (2, 10)


def test_a_signal_calls_its_callbacks_once_and_in_order():
    """Again is no news; who unsubscribed hears nothing; one that fails harms no other."""
    controller, told = pi.AbortController(), []
    signal = controller.signal
    signal.on_abort(lambda: told.append("first"))
    signal.on_abort(lambda: 1 / 0)
    signal.on_abort(lambda: told.append("never"))()
    signal.on_abort(lambda: told.append("last"))
    assert not signal.aborted
    controller.abort()
    controller.abort()
    assert (signal.aborted, told) == (True, ["first", "last"])


def test_an_aborted_signal_calls_a_new_callback_at_once():
    """And raises where it is asked to."""
    controller, told = pi.AbortController(), []
    controller.signal.throw_if_aborted()
    controller.abort()
    controller.signal.on_abort(lambda: told.append("now"))()
    controller.signal.on_abort(lambda: 1 / 0)
    assert told == ["now"]
    with pytest.raises(pi.AbortError, match="aborted"):
        controller.signal.throw_if_aborted()


def test_budgets_and_context_have_the_names_of_pi():
    """Budgets are the mapping that the options take; a context is what a stream function gets."""
    budgets = pi.ThinkingBudgets(low=2048, high=20_000)
    assert budgets == {"low": 2048, "high": 20_000}
    assert (budgets.minimal, budgets.high) == (1024, 20_000)
    assert budgets.model_dump() == {"minimal": 1024, "low": 2048, "medium": 8192, "high": 20_000}
    assert not hasattr(budgets, "xhigh")
    assert pi.Agent(model="openai/x", thinking_budgets=budgets).thinking_budgets == budgets
    context = pi.Context(messages=[pi.UserMessage("go")])
    assert (context.system_prompt, len(context.messages), context.tools) == (None, 1, None)


async def test_model_dump_writes_every_type_as_json():
    """Events, messages, blocks and the state; a message that was dumped is read back equal."""
    replies = [tool_call("greet", name="Ada"), failure(LLMUnavailable("down"))]
    prompt = pi.UserMessage([pi.TextContent("go"), pi.ImageContent("aGk=")], timestamp=1)
    run = pi.agent_loop([prompt], tools=[greet], config=config(ScriptedProvider(replies)))
    events = [event.model_dump(mode="json") async for event in run]
    assert json.loads(json.dumps(events)) == events
    assert events[2] == {
        "type": "message_start",
        "message": {
            "role": "user",
            "content": [
                {"type": "text", "text": "go", "text_signature": None, "citations": []},
                {"type": "image", "data": "aGk=", "mime_type": "image/png", "url": None},
            ],
            "timestamp": 1,
        },
    }
    update = next(event for event in events if event["type"] == "message_update")
    assert (update["message"]["role"], update["assistant_event"]["type"]) == (
        "assistant",
        "toolcall_start",
    )
    (end,) = [event for event in events if event["type"] == "tool_execution_end"]
    assert end["result"] == {
        "content": [
            {"type": "text", "text": "Hello Ada!", "text_signature": None, "citations": []}
        ],
        "details": {"to": "Ada"},
    }
    said = [prompt, *(event["message"] for event in events if event["type"] == "message_end")]
    assert message_from_json(prompt.model_dump()) == prompt
    assert [message_from_json(one).model_dump() for one in said[1:]] == said[1:]
    assert prompt.model_dump(exclude_none=True)["content"][1] == {
        "type": "image",
        "data": "aGk=",
        "mime_type": "image/png",
    }
    state = pi.Agent(tools=[greet], messages=[prompt]).state.model_dump()
    assert [tool["name"] for tool in state["tools"]] == ["greet"]
    assert (state["stream_message"], state["pending_tool_calls"]) == (None, [])
    with pytest.raises(ValueRefused, match="mode"):
        prompt.model_dump(mode="xml")


def test_model_dump_leaves_keys_out():
    """A dump goes to logs and files."""
    dump = config("openai/x", api_key="sk-secret", temperature=0.5).model_dump()
    assert (dump["temperature"], "sk-secret" in str(dump)) == (0.5, False)


@pytest.mark.parametrize("reply", [text("hello"), failure(LLMUnavailable("down"))])
async def test_stream_and_astream_call_a_model_once(reply):
    """The events of one answer, with pi's options; a failed call is an event."""
    context = pi.Context("Be brief.", [pi.UserMessage("hi")], [greet.to_tool()])
    options = pi.SimpleStreamOptions(temperature=0.5, reasoning="off", api_key="k")
    model = ScriptedProvider([reply, reply], chunk_chars=3)
    events = [event async for event in pi.astream(model, context, options)]
    blocking = await asyncio.to_thread(lambda: list(pi.stream(model, context, options)))
    assert [event.type for event in blocking] == [event.type for event in events]
    assert events[-1].message.text == ("hello" if events[-1].type == "done" else "")
    assert len(model.requests) == 2
    for request, sent in zip(model.requests, model.options, strict=True):
        assert (request.system_prompt, request.tools[0].name) == ("Be brief.", "greet")
        assert (sent.temperature, sent.thinking_level, sent.api_key) == (0.5, None, "k")
    with pytest.raises(ConfigurationError, match="astream"):
        pi.stream(model, context)


async def test_a_blocking_stream_that_is_left_closes_its_call():
    """The connection of a provider ends with it."""
    closed = []

    class Endless:
        name = model = "endless"

        async def stream(self, request, options):
            try:
                while True:
                    yield StreamEvent("text_delta", delta="a")
            finally:
                closed.append(True)

    def first():
        events = pi.stream(Endless(), pi.Context(messages=[pi.UserMessage("hi")]))
        found = next(events).delta
        events.close()
        return found

    assert (await asyncio.to_thread(first), closed) == ("a", [True])


@pytest.mark.parametrize("model", ["", None])
async def test_an_agent_without_a_model_raises_when_it_runs(model):
    """It can be made, and given one later, as in pi."""
    async with pi.Agent(model=model) as agent:
        with pytest.raises(UnknownModel, match="this agent has no model"):
            await agent.prompt("hello")
        agent.set_model(ScriptedProvider([text("hi")]))
        await agent.prompt("hello")
        assert agent.state.messages[-1].text == "hi"


class Sync(pi.AgentTool):
    """Its `execute` is no coroutine function."""

    name = "sync"

    def execute(self, *_):
        """Return at once."""
        return pi.AgentToolResult()


class Bare(pi.AgentTool):
    """Its `execute` returns the text alone."""

    name = "bare"

    async def execute(self, *_):
        """Return a text."""
        return "hello"


class Wrong(pi.AgentTool):
    """Its `execute` cannot be called."""

    name = "wrong"
    execute = "no function"


@pytest.mark.parametrize(
    ("tool", "said"),
    [(Sync(), "execute() is an `async def`"), (Bare(), "returns AgentToolResult([TextContent(")],
)
async def test_a_bad_execute_is_named(tool, said, caplog):
    """To the developer, in the log, and in the result; the run goes on."""
    end, _ = await _result_of(tool)
    assert end.is_error
    assert f"tool {tool.name!r}: " in end.result.content[0].text
    assert said in end.result.content[0].text
    assert said in caplog.text


async def test_an_execute_that_cannot_be_called_is_refused_before_the_run():
    """`InvalidTool`, where the loop begins."""
    with pytest.raises(InvalidTool, match="'wrong': execute is an `async def`"):
        await _result_of(Wrong())
