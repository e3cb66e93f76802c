"""
A user's own pipy-ai as a provider, against a small module of its shapes.

The stand-in is ours: pydantic models with pipy-ai's fields, and a stream that plays a script.
"""

import enum
import types
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from looopy import Agent, LoopConfig, RetryPolicy, tool
from looopy.compat import pi
from looopy.errors import (
    ConfigurationError,
    ContextOverflow,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    MissingExtra,
    RateLimited,
)
from looopy.llm import LLMRequest, PipyProvider, StreamOptions, ToolSpec
from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import ThinkingLevel


class _Level(enum.StrEnum):
    OFF = "off"
    HIGH = "high"


class _Text(BaseModel):
    type: Literal["text"] = "text"
    text: str = ""
    text_signature: str | None = None


class _Thinking(BaseModel):
    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    thinking_signature: str | None = None


class _Image(BaseModel):
    type: Literal["image"] = "image"
    data: str = ""
    mime_type: str = "image/png"


class _Call(BaseModel):
    model_config = {"extra": "forbid"}

    type: Literal["toolCall"] = "toolCall"
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    thought_signature: str | None = None


class _User(BaseModel):
    role: Literal["user"] = "user"
    content: str | list[_Text | _Image] = ""
    timestamp: int = 0


class _Assistant(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: list[_Text | _Thinking | _Call] = Field(default_factory=list)
    api: str = ""
    provider: str = ""
    model: str = ""
    usage: dict[str, Any] | None = None  # pipy-ai's streams leave it out
    stop_reason: Literal["stop", "length", "toolUse", "error", "aborted", "sensitive"] = "stop"
    error_message: str | None = None
    timestamp: int = 0


class _Result(BaseModel):
    role: Literal["toolResult"] = "toolResult"
    tool_call_id: str = ""
    tool_name: str = ""
    content: list[_Text | _Image] = Field(default_factory=list)
    details: Any = None
    is_error: bool = False
    timestamp: int = 0


class _Tool(BaseModel):
    name: str
    description: str
    parameters: dict[str, Any]


class _Context(BaseModel):
    system_prompt: str | None = None
    messages: list[_User | _Assistant | _Result] = Field(default_factory=list)
    tools: list[_Tool] | None = None


class _Budgets(BaseModel):
    high: int = 16384


class _Options(BaseModel):
    model_config = {"extra": "forbid"}

    temperature: float | None = None
    max_tokens: int | None = None
    session_id: str | None = None
    headers: dict[str, str] | None = None
    api_key: str | None = None
    reasoning: _Level | None = None
    thinking_budgets: _Budgets | None = None


class _Event(BaseModel):
    model_config = {"extra": "allow"}

    type: str


def _module(*script):
    """A module of pipy-ai's shapes whose stream plays *script*; `calls` keeps what it was given."""
    module = types.SimpleNamespace(
        UserMessage=_User,
        AssistantMessage=_Assistant,
        ToolResultMessage=_Result,
        Tool=_Tool,
        Context=_Context,
        SimpleStreamOptions=_Options,
        ThinkingBudgets=_Budgets,
        ThinkingLevel=_Level,
        calls=[],
        closed=0,
    )
    left = list(script)

    async def astream(model, context, options=None):
        module.calls.append((model, context, options))
        played = left.pop(0) if left and isinstance(left[0], list) else left
        try:
            for event in played:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            module.closed += 1

    module.astream = astream
    return module


def _done(*blocks, **fields):
    return _Event(type="done", reason="stop", message=_Assistant(content=list(blocks), **fields))


async def _events(provider, request=None, options=None):
    request = request or LLMRequest(messages=[UserMessage("hi")])
    return [e async for e in provider.stream(request, options or StreamOptions())]


async def test_a_missing_module_raises_with_the_way_out(monkeypatch):
    """At the construction, before any call; it is never a dependency."""
    monkeypatch.setitem(__import__("sys").modules, "pipy_ai", None)
    with pytest.raises(MissingExtra, match="on no package index") as caught:
        PipyProvider("openai/x")
    assert isinstance(caught.value, ConfigurationError)
    with pytest.raises(ConfigurationError, match="does not stream"):
        PipyProvider("openai/x", object())
    with pytest.raises(ConfigurationError, match="needs a model"):
        PipyProvider("", _module())


async def test_the_module_that_is_installed_is_found(monkeypatch):
    """By its name, when none is given."""
    monkeypatch.setitem(__import__("sys").modules, "pipy_ai", _module(_done(_Text(text="a"))))
    provider = PipyProvider("openai/x")
    assert (provider.name, provider.model) == ("openai", "openai/x")
    assert (await _events(provider))[-1].message.text == "a"


async def test_a_request_becomes_the_modules_own_types():
    """Every message, block and tool; options by pipy's names, the unset ones left out."""
    module = _module(_done(_Text(text="ok")))
    call = ToolCall("c", "t", {"x": 1}, thought_signature="s", invalid_arguments="{")
    request = LLMRequest(
        messages=[
            UserMessage([TextContent("look"), ImageContent("aGk=")], timestamp=5),
            AssistantMessage([ThinkingContent("hm", thinking_signature="sig"), call]),
            ToolResultMessage(tool_call_id="c", tool_name="t", content="r", is_error=True),
        ],
        tools=[ToolSpec(name="t", description="d", parameters={"type": "object"})],
        system_prompt="Be brief.",
    )
    options = StreamOptions(
        temperature=0.5,
        max_tokens=9,
        thinking_level=ThinkingLevel.HIGH,
        thinking_budgets={"high": 7},
        session_id="s",
        headers={"x": "y"},
        api_key="k",
    )
    await _events(PipyProvider("anthropic/m", module), request, options)
    ((model, context, sent),) = module.calls
    assert model == "anthropic/m"
    user, assistant, result = context.messages
    assert (user.content[0].text, user.content[1].data, user.timestamp) == ("look", "aGk=", 5)
    assert assistant.content[0].thinking_signature == "sig"
    assert assistant.content[1] == _Call(
        id="c", name="t", arguments={"x": 1}, thought_signature="s"
    )
    assert (result.tool_call_id, result.is_error, result.content[0].text) == ("c", True, "r")
    assert (context.system_prompt, context.tools[0].name) == ("Be brief.", "t")
    assert sent.model_dump() == {
        "temperature": 0.5,
        "max_tokens": 9,
        "session_id": "s",
        "headers": {"x": "y"},
        "api_key": "k",
        "reasoning": "high",
        "thinking_budgets": {"high": 7},
    }


async def test_a_paused_answer_has_a_stop_reason_that_the_module_knows():
    """`paused` is ours: the module's type would refuse the whole history."""
    module = _module([_done()])
    paused = AssistantMessage("Let me see.", stop_reason=StopReason.PAUSED)
    await _events(PipyProvider("m", module), LLMRequest(messages=[UserMessage("go"), paused]))
    ((_, context, _),) = module.calls
    assert context.messages[1].stop_reason == "stop"


async def test_off_asks_the_module_for_no_reasoning():
    """Likewise when nothing is asked for: no option is set."""
    module = _module([_done()], [_done()])
    provider = PipyProvider("m", module)
    await _events(provider, options=StreamOptions(thinking_level=ThinkingLevel.OFF))
    await _events(provider)
    assert [sent.reasoning for _, _, sent in module.calls] == [None, None]


async def test_its_events_are_ours_in_order_with_the_message_so_far():
    """All twelve kinds; one that nobody knows is left out."""
    partial = _Assistant(content=[_Text(text="a"), _Call(id="c")])
    call = _Call(id="c", name="t", arguments={"x": 1})
    module = _module(
        _Event(type="start", partial=_Assistant()),
        _Event(type="thinking_start", content_index=0, partial=partial),
        _Event(type="thinking_delta", content_index=0, delta="hm", partial=partial),
        _Event(type="thinking_end", content_index=0, content="hm", partial=partial),
        _Event(type="text_start", content_index=1, partial=partial),
        _Event(type="text_delta", content_index=1, delta="a", partial=partial),
        _Event(type="text_end", content_index=1, content="a", partial=partial),
        _Event(type="surprise"),
        _Event(type="toolcall_start", content_index=2, partial=partial),
        _Event(type="toolcall_delta", content_index=2, delta="{", partial=partial),
        _Event(type="toolcall_end", content_index=2, tool_call=call, partial=partial),
        _done(_Thinking(thinking="hm"), _Text(text="a"), call, stop_reason="toolUse"),
    )
    events = await _events(PipyProvider("m", module))
    assert [e.type for e in events] == [
        "start",
        "thinking_start",
        "thinking_delta",
        "thinking_end",
        "text_start",
        "text_delta",
        "text_end",
        "toolcall_start",
        "toolcall_delta",
        "toolcall_end",
        "done",
    ]
    assert [e.delta for e in events[1:7]] == ["", "hm", "hm", "", "a", "a"]
    assert (events[5].partial.text, events[5].partial.snapshot().tool_calls) == ("a", [])
    assert events[9].tool_call == ToolCall("c", "t", {"x": 1})
    final = events[-1].message
    assert (final.thinking_text, final.text, final.stop_reason) == ("hm", "a", "toolUse")
    assert final.tool_calls == [ToolCall("c", "t", {"x": 1})]


async def test_a_missing_usage_is_zero_and_a_missing_time_is_now():
    """Its streams leave both out."""
    done = _done(_Text(text="a"))
    message = (await _events(PipyProvider("m", _module(done))))[-1].message
    assert message.usage == Usage()
    assert message.timestamp > 1_500_000_000_000
    counted = _done(usage={"input": 3, "output": 2, "total_tokens": 5, "cost": {"total": 0.1}})
    message = (await _events(PipyProvider("m", _module(counted))))[-1].message
    assert (message.usage.input, message.usage.cost.total) == (3, 0.1)


@pytest.mark.parametrize(
    ("text", "kind", "retryable"),
    [
        ("litellm.RateLimitError: too many requests", RateLimited, True),
        ("litellm.ServiceUnavailableError: overloaded", LLMUnavailable, True),
        ("Error code: 529 - overloaded_error", LLMUnavailable, True),
        ("litellm.ContextWindowExceededError: prompt is too long", ContextOverflow, False),
        ("this model's maximum context length is 8,000 tokens", ContextOverflow, False),
        ("litellm.AuthenticationError: bad key sk-secret-key", LLMError, False),
        ("something else", LLMError, False),
    ],
)
async def test_a_failure_given_as_text_is_classified(text, kind, retryable):
    """As an error event with a message, as one with a bare string, or raised."""
    told = _Assistant(stop_reason="error", error_message=text)
    for event in (
        _Event(type="error", error=told),
        _Event(type="error", error=text),
        RuntimeError(text),
    ):
        events = await _events(
            PipyProvider("m", _module(event)), options=StreamOptions(api_key="sk-secret-key")
        )
        (last,) = events
        assert (last.type, type(last.error), last.error.retryable) == ("error", kind, retryable)
        assert last.message.stop_reason is StopReason.ERROR
        assert last.message.error_message == str(last.error)
        assert "sk-secret-key" not in str(last.error)


async def test_an_error_without_a_message_still_ends_the_stream():
    """What had come is kept, without calls that were not finished."""
    partial = _Assistant(content=[_Text(text="so far"), _Call(id="c")])
    start = _Event(type="text_delta", delta="so far", partial=partial)
    for last in (
        _Event(type="error"),
        _Event(type="error", error=None),
        _Event(type="done", message=None),
        RuntimeError(),
    ):
        events = await _events(PipyProvider("m", _module(start, last)))
        assert events[-1].type == "error"
        assert events[-1].message.text == "so far"
        assert events[-1].message.tool_calls == []
        assert isinstance(events[-1].error, LLMError)


async def test_a_stream_that_just_stops_is_an_error_worth_trying_again():
    """Neither done nor error came."""
    module = _module(
        _Event(type="text_delta", delta="a", partial=_Assistant(content=[_Text(text="a")]))
    )
    last = (await _events(PipyProvider("m", module)))[-1]
    assert isinstance(last.error, InvalidLLMResponse)
    assert (last.type, last.error.retryable, last.message.text) == ("error", True, "a")


async def test_an_answer_that_is_done_and_failed_has_failed():
    """By its stop reason, whatever the event says."""
    last = (await _events(PipyProvider("m", _module(_done(stop_reason="aborted")))))[-1]
    assert (last.type, last.message.stop_reason) == ("error", "aborted")


async def test_a_stream_function_is_given_our_types_in_pis_words():
    """It may be a generator, or a coroutine that returns one; a blocking one is refused."""
    seen = []

    async def stream(model, context, options):
        seen.append((model, context, options))
        yield pi_done("a")

    async def opened(model, context, options):
        return stream(model, context, options)

    for function in (stream, opened):
        last = (await _events(PipyProvider("m", function), options=StreamOptions(max_tokens=3)))[-1]
        assert (last.message.text, last.message.timestamp) == ("a", 1)
    model, context, options = seen[0]
    assert (model, context.messages[0].text, context.tools) == ("m", "hi", None)
    assert (options.max_tokens, options.reasoning) == (3, None)
    blocking = PipyProvider("m", lambda *_: iter(()))
    assert "no async iterator" in str((await _events(blocking))[-1].error)


def pi_done(text):
    """A finished answer, as our own event."""
    from looopy.llm import StreamEvent

    return StreamEvent("done", message=AssistantMessage(text, timestamp=1))


async def test_signed_thinking_goes_back_to_the_model_that_made_it():
    """Whatever the module calls the model: the message is the one that was asked."""
    signed = _Thinking(thinking="hm", thinking_signature="sig")
    call = _Call(id="c", name="nobody")
    done = _done(signed, call, stop_reason="toolUse", provider="x", model="claude-4")
    module = _module([done], [_done(_Text(text="ok"))])
    provider = PipyProvider("anthropic/claude-4", module)
    async with Agent("ada", llm_provider=provider) as agent:
        result = await agent.execute_turn("hi")
    assert (result.messages[1].provider, result.messages[1].model) == (
        "anthropic",
        "anthropic/claude-4",
    )
    assert module.calls[1][1].messages[1].content[0] == signed


async def test_leaving_a_stream_closes_the_modules():
    """Whoever cancels an answer pays for no more of it."""
    module = _module(_Event(type="start", partial=_Assistant()), _done())
    stream = PipyProvider("m", module).stream(
        LLMRequest(messages=[UserMessage("hi")]), StreamOptions()
    )
    await anext(stream)
    await stream.aclose()
    assert module.closed == 1


async def test_an_agent_runs_on_it_with_tools_and_tries_again():
    """Both agents: ours, and the one with pi's names."""

    @tool(effects="none")
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    call = _Call(id="c", name="add", arguments={"a": 2, "b": 3})
    script = (
        [_done(call, stop_reason="toolUse")],
        [_Event(type="error", error="litellm.RateLimitError: slow down")],
        [_done(_Text(text="five"))],
    )
    module = _module(*script)
    config = LoopConfig(retry=RetryPolicy(base_s=0))
    provider = PipyProvider("m", module)
    async with Agent("ada", llm_provider=provider, tools=[add], loop_config=config) as agent:
        assert (await agent.execute_turn("2 + 3?")).text == "five"
    assert module.calls[-1][1].messages[-1].content[0].text == "5"
    module = _module(*script)
    async with pi.Agent("m", tools=[add], stream_fn=module, loop_config=config) as agent:
        await agent.prompt("2 + 3?")
        assert agent.state.messages[-1].text == "five"
