"""Requests by the dialect of their server, at servers that refuse what the real ones refuse."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.wire import fake_anthropic, fake_responses
from tests.wire.fake_openai import DONE, Answer, FakeOpenAI, chunk, refuses, says
from tests.wire.strict_servers import OPENAI, STRICT, bad_schema, other_model
from tests.wire.three import ADD, APIS, PNG, last_event, serving
from tests.wire.three import says as says_of
from tests.wire.vendors import (
    GOOGLE,
    OPENROUTER,
    client_at,
    closed_clients,  # noqa: F401 - a fixture of this module
)

from looopy import Agent, LoopConfig, ModelOptions, RetryPolicy, Tool, open_stores, tool
from looopy.errors import ConfigurationError, LLMUnavailable
from looopy.llm import (
    AnyLLMProvider,
    OpenAIProvider,
    PipyProvider,
    StreamEvent,
    anyllm,
    resolve_provider,
)
from looopy.llm.dialects import Dialect, dialect_of
from looopy.llm.openai.chat import to_body
from looopy.testing import ScriptedProvider, failure
from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions, ThinkingLevel

ONCE = LoopConfig(options=ModelOptions(temperature=0.2), retry=RetryPolicy(attempts=0))


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def thinks_and_calls():
    """An answer with a thought and a call."""
    call = {"index": 0, "id": "call_00_abc", "type": "function"}
    call["function"] = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    thought = chunk({"role": "assistant", "reasoning_content": "I need the sum."})
    return Answer(pieces=[thought, chunk({"tool_calls": [call]}), chunk(finish="tool_calls"), DONE])


@pytest.mark.parametrize("name", STRICT)
async def test_conversation_of_another_model_continues_at_strict_server(name):
    """After its calls, after a turn that failed, and after calls of the server's own."""
    strict = STRICT[name]
    down = refuses(503, "Loading model")
    answers = down, thinks_and_calls(), says("3"), says("yes"), says("sure")
    async with (
        open_stores("memory:") as stores,
        FakeOpenAI(*answers, check=strict.check) as server,
    ):
        async with Agent("c", llm_provider=other_model(), tools=[add], stores=stores) as agent:
            await agent.execute_turn("1+2?")
        made = OpenAIProvider(strict.model, name="mine", client=client_at(strict.url, server))
        async with Agent(
            "c", llm_provider=made, tools=[add], stores=stores, loop_config=ONCE
        ) as agent:
            ends = [await agent.execute_turn(said) for said in ("again", "now?", "so?", "sure?")]
    assert [end.outcome for end in ends] == ["failed", "completed", "completed", "completed"]
    assert len(server.received) == 5  # no request was refused


@pytest.mark.parametrize("name", ["deepseek", "kimi"])
async def test_reasoning_of_calls_is_in_all_later_turns(name):
    """Also in a turn after the next; where there was no call, only if the server wants it."""
    strict = STRICT[name]
    async with FakeOpenAI(
        thinks_and_calls(), says("3"), says("a"), says("b"), check=strict.check
    ) as server:
        made = OpenAIProvider(strict.model, client=client_at(strict.url, server))
        async with Agent("c", llm_provider=made, tools=[add]) as agent:
            for said in ("1+2?", "two", "three"):
                (await agent.execute_turn(said)).raise_for_outcome()
    said = [m for m in server.received[-1].body["messages"] if m["role"] == "assistant"]
    assert said[0]["reasoning_content"] == "I need the sum."
    assert [m.get("reasoning_content") for m in said[1:]] == (
        ["", ""] if name == "deepseek" else [None, None]
    )


@pytest.mark.parametrize("status", [400, 500])
async def test_template_that_wants_turns_is_not_asked_twice(status):
    """Two messages of the user, after a cancelled turn, are one."""
    gemma = STRICT["gemma"]

    def judge(received):
        problems = gemma.check(received.body)
        return refuses(status, problems[0][1]) if problems else says("ok")

    async with FakeOpenAI(*[judge] * 2, check=lambda _: []) as server:
        made = OpenAIProvider("gemma", base_url=server.url)
        history = [UserMessage("one"), UserMessage("two")]
        assert (await last_event(made, LLMRequest(messages=history))).type == "done"
        await made.aclose()
    assert [m["content"] for m in server.received[0].body["messages"]] == ["one\n\ntwo"]


def test_turns_begin_and_end_with_the_user():
    """Neighbours of one role are one message, with all its calls and parts."""
    calls = [ToolCall(f"call_{i}", "add", {}) for i in range(2)]
    messages = [
        AssistantMessage([ThinkingContent("hm"), calls[0]], provider="x"),
        AssistantMessage([calls[1]], provider="x"),
        *(ToolResultMessage(tool_call_id=c.id, tool_name="add", content="3") for c in calls),
        UserMessage("so?"),
        AssistantMessage("done", provider="x"),
    ]
    strict = Dialect(alternates=True, answers_tools=True)
    body, sources = to_body(
        LLMRequest(messages=messages, system_prompt="Be brief."),
        StreamOptions(),
        provider="x",
        model="m",
        official=False,
        dialect=strict,
    )
    roles = [m["role"] for m in body["messages"]]
    assert roles == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant", "user")
    ]
    assert [len(m["tool_calls"]) for m in body["messages"] if "tool_calls" in m] == [2]
    assert sources == [-1, -1, 0, 2, 3, -1, 4, 5, -1]


async def test_mistral_ids_are_one_to_one_through_any_llm(monkeypatch):
    """Calls and results find each other; an id of nine letters and digits stays."""
    calls = [ToolCall(call_id, "add", {}) for call_id in ("call_1", "call_2", "abcDEF123")]
    messages = [
        UserMessage("x"),
        AssistantMessage(calls, provider="openai"),
        *(ToolResultMessage(tool_call_id=c.id, tool_name="add", content="3") for c in calls),
        UserMessage("y"),
    ]
    monkeypatch.setattr(anyllm, "find_spec", lambda _: True)
    made = AnyLLMProvider("mistral:mistral-small", base_url="http://127.0.0.1:1")
    body, _ = made._body(LLMRequest(messages=messages), StreamOptions(), "mistral-small")
    assert STRICT["mistral"].check(body | {"stream": True}) == []
    ids = [c["id"] for c in body["messages"][1]["tool_calls"]]
    assert ids[2] == "abcDEF123"
    assert len(set(ids)) == 3
    assert ids == [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]


@pytest.mark.parametrize(
    ("url", "told", "output", "reasoning"),
    [
        ("https://api.x.ai/v1", {"completion_tokens_details": {"reasoning_tokens": 400}}, 410, 400),
        (GOOGLE, {}, 410, 400),
        # A gateway before one of them: only equal numbers show it.
        (OPENROUTER, {"completion_tokens_details": {"reasoning_tokens": 400}}, 410, 400),
        (OPENROUTER, {"completion_tokens_details": {"reasoning_tokens": 4}}, 10, 4),
        (OPENROUTER, {}, 10, 0),
    ],
)
async def test_thoughts_outside_completion_tokens_are_output(url, told, output, reasoning):
    """And have the price of output."""
    usage = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 430, **told}
    async with FakeOpenAI(says("x", usage=usage)) as server:
        made = OpenAIProvider("grok-4", client=client_at(url, server), price_as="x-ai")
        message = (await last_event(made)).message
    counted = replace(message.usage, cost=None)
    assert counted == Usage(input=20, output=output, total_tokens=430, reasoning=reasoning)
    priced = made.cost_of(Usage(input=20, output=output, total_tokens=430), "grok-4").cost
    assert message.usage.cost == priced
    assert priced.output == pytest.approx(output * 15e-6)


async def test_claude_behind_openrouter_is_cached():
    """The system prompt and the last two messages of the user's side are marked."""
    async with FakeOpenAI(thinks_and_calls(), says("3"), says("a"), check=lambda _: []) as server:
        made = OpenAIProvider("anthropic/claude-sonnet-4.5", client=client_at(OPENROUTER, server))
        async with Agent("c", llm_provider=made, tools=[add], system_prompt="Be brief.") as agent:
            await agent.execute_turn("1+2?")
            await agent.execute_turn("so?")
    marked = [
        [m["role"] for m in received.body["messages"] if "cache_control" in json.dumps(m)]
        for received in server.received
    ]
    assert marked == [["system", "user"], ["system", "user", "tool"], ["system", "tool", "user"]]


async def test_text_of_one_call_is_not_marked():
    """A cache that ends with it would never be found again."""
    asked = LLMRequest(messages=[UserMessage("a"), UserMessage("now: 12:00")], ephemeral=True)
    async with FakeOpenAI(says("a"), check=lambda _: []) as server:
        made = OpenAIProvider("anthropic/claude-opus-4.6", client=client_at(OPENROUTER, server))
        await last_event(made, asked)
    sent = server.received[0].body["messages"]
    assert ["cache_control" in json.dumps(m) for m in sent] == [True, False]


@pytest.mark.parametrize("name", ["openrouter", "openai"])
async def test_other_models_get_no_marks(name):
    """OpenAI's own server would refuse the field."""
    url = {"openrouter": OPENROUTER, "openai": OPENAI}[name]
    async with FakeOpenAI(says("a")) as server:
        made = OpenAIProvider("gpt-5", client=client_at(url, server))
        await last_event(made)
    assert "cache_control" not in json.dumps(server.received[0].body)


@pytest.mark.parametrize(
    ("model", "level", "left_out"),
    [
        ("gpt-5-mini", None, ["logprobs", "temperature", "top_p"]),
        ("o3", None, ["logprobs", "temperature", "top_p"]),
        ("gpt-5.2", ThinkingLevel.LOW, ["logprobs", "temperature", "top_p"]),
        ("gpt-5.2", ThinkingLevel.OFF, []),
        ("gpt-5.2", None, []),
        ("gpt-5-chat-latest", None, []),
        ("gpt-4.1", None, []),
    ],
)
@pytest.mark.parametrize("api", ["completions", "responses"])
async def test_model_that_refuses_sampling_gets_none(api, model, level, left_out):
    """Each option that is left out is a warning."""
    told = []
    answer = fake_responses.replies("a") if api == "responses" else says("a")
    async with FakeOpenAI(answer, check=lambda _: []) as server:
        made = OpenAIProvider(model, api=api, client=client_at(OPENAI, server))
        last = await last_event(
            made,
            temperature=0.2,
            logprobs=2,
            thinking_level=level,
            extra_body={"top_p": 0.5},
            warn=lambda code, text: told.append((code, text)),
        )
    assert last.type == "done", last.error
    (received,) = server.received
    asked = {"temperature", "top_p", "top_logprobs"} & received.body.keys()
    assert len(asked) == (0 if left_out else 3)
    assert ("logprobs" in json.dumps(received.body)) == (not left_out)
    codes = {code for code, text in told if text.startswith(model)}
    assert sorted(codes) == left_out


WITH_TOOLS = (
    "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions."
    " To use function tools, use /v1/responses or set reasoning_effort to 'none'."
)


@pytest.mark.parametrize(
    ("said", "effort"),
    [
        (
            "reasoning_effort low is not supported for this model, supported values: [high, none]",
            "none",
        ),
        (WITH_TOOLS, "none"),
        (
            "Unsupported value: reasoning_effort. Supported values are: 'medium' and 'xhigh'.",
            "medium",
        ),
    ],
)
async def test_refused_effort_becomes_one_that_the_server_names(said, effort):
    """In the words of Mistral and OpenAI; with a warning."""
    told = []

    def judge(body):
        return [("reasoning_effort", said)] if body.get("reasoning_effort") == "low" else []

    async with FakeOpenAI(says("a"), check=judge) as server:
        made = OpenAIProvider("m", base_url=server.url)
        warn = lambda code, _text: told.append(code)  # noqa: E731
        last = await last_event(made, thinking_level=ThinkingLevel.LOW, warn=warn)
        await made.aclose()
    assert last.type == "done", last.error
    assert [r.body["reasoning_effort"] for r in server.received] == ["low", effort]
    assert told == ["thinking_level"]


async def test_sampling_of_the_body_is_left_out_for_claude():
    """A later Claude takes none, wherever it was asked for; an earlier one gets it."""
    told = []
    options = {"extra_body": {"top_p": 0.5, "top_k": 3}, "warn": lambda code, _: told.append(code)}
    async with serving("anthropic", *[says_of("anthropic", "a")] * 2) as (server, made):
        for model in ("claude-opus-4-8", "claude-sonnet-4-5"):
            asked = LLMRequest(messages=[UserMessage("x")], model=model)
            assert (await last_event(made, asked, **options)).type == "done"
    assert [{"top_p", "top_k"} & r.body.keys() for r in server.received] == [
        set(),
        {"top_p", "top_k"},
    ]
    assert told == ["top_p", "top_k"]


async def test_template_that_refuses_with_status_500_is_no_outage():
    """With a dialect that lets neighbours be, the history is sent once more, merged."""
    gemma = STRICT["gemma"]

    def judge(received):
        problems = gemma.check(received.body)
        return refuses(500, problems[0][1]) if problems else says("ok")

    async with (
        FakeOpenAI(*[judge] * 3, check=lambda _: []) as server,
        open_stores("memory:") as own,
    ):
        down = ScriptedProvider([failure(LLMUnavailable("down"))])
        async with Agent("c", llm_provider=down, stores=own, loop_config=ONCE) as agent:
            await agent.execute_turn("one")
        made = OpenAIProvider("gemma", base_url=server.url, dialect=Dialect())
        async with Agent("c", llm_provider=made, stores=own, loop_config=ONCE) as agent:
            (await agent.execute_turn("two")).raise_for_outcome()
        await made.aclose()
    assert [len(r.body["messages"]) for r in server.received] == [2, 1]


async def test_refused_sampling_is_left_out_from_then_on():
    """A deployment whose name does not show its model: asked again once, warned each time."""
    told = []
    async with FakeOpenAI(says("a"), says("b"), check=STRICT["gpt-5"].check) as server:
        made = OpenAIProvider("my-deployment", base_url=server.url)
        for _ in range(2):
            warn = lambda code, _text: told.append(code)  # noqa: E731
            last = await last_event(made, temperature=0.2, warn=warn)
            assert last.type == "done", last.error
        await made.aclose()
    assert ["temperature" in r.body for r in server.received] == [True, False, False]
    assert told == ["temperature", "temperature"]


@pytest.mark.parametrize(
    ("url", "name", "model", "dialect"),
    [
        ("https://api.openai.com/v1", "openai", "gpt-4o", "openai"),
        ("", "openai", "gpt-4o", "openai"),
        ("http://127.0.0.1:8000/v1", "openai", "gpt-4o", "other"),
        ("https://eu.api.deepseek.com", "openai", "x", "deepseek"),
        ("https://api.deepseek.com.evil.example", "openai", "x", "other"),
        ("http://127.0.0.1:1", "Mistral", "x", "mistral"),
        ("https://us-central1-aiplatform.googleapis.com/v1", "x", "x", "google"),
    ],
)
def test_dialect_is_known_by_host_or_name(url, name, model, dialect):
    """An address that only looks alike is another server."""
    assert dialect_of(url, name, model).name == dialect


def test_rule_of_a_model_holds_where_it_runs():
    """Together with the rules of the server, and with both sources."""
    at_home = dialect_of("http://127.0.0.1:8000/v1", "openai", "mistralai/Mistral-Small")
    assert (at_home.alternates, at_home.call_id_chars) == (True, 9)
    assert len(at_home.sources) == 2
    assert dialect_of(OPENROUTER, "openai", "openai/gpt-5").sampling == "fixed"
    assert dialect_of("https://api.moonshot.ai/v1", "", "moonshot-v1-8k").reasoning == "none"


def test_every_server_of_the_table_has_source_and_day():
    """A rule that no reader could check is not one."""
    from looopy.llm import dialects

    for server in dialects._SERVERS:
        assert all(one.startswith("https://") for one in server.dialect.sources)
        assert server.dialect.sources
        assert server.dialect.checked


def test_page_has_the_rules_of_every_server():
    """The table of `docs/models.md`."""
    from looopy.llm import dialects

    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for one in [*(server.dialect for server in dialects._SERVERS), dialects._ELSE]:
        ids = f"{one.call_id_chars} letters or digits" if one.call_id_chars else "any"
        flags = ["yes" if flag else "no" for flag in (one.alternates, one.thoughts_apart)]
        back = one.reasoning.replace("none", "no")
        assert f"| {' | '.join([one.name, back, ids, *flags])} |" in page


async def test_dialect_of_the_user_wins():
    """Through the name of a model, too."""
    async with FakeOpenAI(says("a")) as server:
        mine = Dialect(name="mine", reasoning="all", no_reasoning="-")
        made = resolve_provider(f"{server.url}#m", dialect=mine)
        history = [UserMessage("a"), AssistantMessage("b", provider="x"), UserMessage("c")]
        await last_event(made, LLMRequest(messages=history, tools=[ADD]))
        await made.aclose()
    assert server.received[0].body["messages"][1]["reasoning_content"] == "-"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"reasoning": "some"}, "'none' or 'calls' or 'all'"),
        ({"call_id_chars": 0}, "at least 1"),
        ({"max_tools": True}, "at least 1"),
        ({"alternates": "yes"}, "True or False"),
        ({"sources": "https://x"}, "Dialect.sources="),
    ],
)
def test_rule_with_another_value_is_refused(rules, said):
    """The message has the rule, its value and the values that it takes."""
    with pytest.raises(ConfigurationError, match=said):
        Dialect(**rules)


def test_unknown_rule_is_refused_with_a_suggestion():
    """As every unknown option."""
    with pytest.raises(TypeError, match="alternates"):
        Dialect(alternate=True)
    for kind in (OpenAIProvider, AnyLLMProvider):
        with pytest.raises(ConfigurationError, match="give a Dialect"):
            kind("a:b", api_key="k" * 9, dialect={"alternates": True})


def test_table_is_read_once_for_a_server_and_model():
    """A call finds the record that the last one found."""
    one = dialect_of("https://api.x.ai/v1", "openai", "grok-4")
    assert dialect_of("https://api.x.ai/v1", "openai", "grok-4") is one


# --- tools ----------------------------------------------------------------------------------------


class Odd(Tool):
    """A tool whose schema no server takes as it is; it keeps its arguments."""

    def __init__(self, name="odd", **schema):
        super().__init__(name=name, description="d", parameters=schema, effects="none")
        self.got = []

    async def execute(self, arguments, context):
        """Keep them."""
        del context
        self.got.append(dict(arguments))
        return "done"


def odd_tool():
    """A root with a choice, and a key with a dollar."""
    top = {"properties": {"$top": {"type": "integer"}, "ids": {"type": "array"}}}
    return Odd(type="object", oneOf=[{**top, "required": ["$top"]}])


def schemas(api, body):
    """The schemas of the tools of a request."""
    if api == "completions":
        return [one["function"]["parameters"] for one in body["tools"]]
    return [one["input_schema" if api == "anthropic" else "parameters"] for one in body["tools"]]


WRITTEN = {"input": {"_top": 3}}


def calls_odd(api):
    """The model calls it by the schema that it got."""
    written = json.dumps(WRITTEN)
    if api == "anthropic":
        said = fake_anthropic.calls(0, "toolu_1", "odd", written)
        return fake_anthropic.answers(said, reason="tool_use")
    if api == "responses":
        return fake_responses.answers(fake_responses.calls(0, "c1", "odd", written))
    call = {"index": 0, "id": "c1", "function": {"name": "odd", "arguments": written}}
    return Answer(pieces=[chunk({"tool_calls": [call]}), chunk(finish="tool_calls"), DONE])


@APIS
async def test_odd_tool_is_called_through_every_wire(api):
    """Server, tool and log each have the arguments in their own form; a bad tool is left out."""
    tool_ = odd_tool()
    bad = Odd("bad", type="object", properties=5)
    said = calls_odd(api), says_of(api, "done"), says_of(api, "bye")
    async with (
        serving(api, *said) as (server, made),
        Agent("c", llm_provider=made, tools=[add, tool_, bad]) as agent,
    ):
        turn = agent.execute_turn("go")
        events = [event async for event in turn]
        result = (await turn).raise_for_outcome()
        (await agent.execute_turn("again")).raise_for_outcome()
    warned = [e.text for e in events if e.type == "warning" and e.code == "tools"]
    assert tool_.got == [{"$top": 3}]
    (stored,) = [c.arguments for m in result.messages for c in getattr(m, "tool_calls", ())]
    assert stored == {"$top": 3}
    assert len(warned) == 1
    assert warned[0].endswith(": bad")
    for received in server.received:
        found = [
            bad_schema(one, lookaround=api == "anthropic") for one in schemas(api, received.body)
        ]
        assert found == [None, None]
    later = json.dumps(server.received[2].body).replace("\\", "")
    assert json.dumps(WRITTEN) in later


async def test_odd_tool_is_called_through_any_llm(monkeypatch):
    """The schema is mended, and Gemini's is sent as it is, because it has definitions."""
    asked = []

    async def chunks(**sent):
        asked.append(sent)
        for data in ({"tool_calls": [CALL_ODD]}, {}):
            finish = None if data else "tool_calls"
            body = {"choices": [{"index": 0, "delta": data, "finish_reason": finish}]}
            yield SimpleNamespace(model_dump=lambda body=body, **_: body)

    async def acompletion(**sent):
        return chunks(**sent)

    monkeypatch.setattr(anyllm, "find_spec", lambda _: True)
    monkeypatch.setitem(sys.modules, "any_llm", SimpleNamespace(acompletion=acompletion))
    made = AnyLLMProvider("gemini:gemini-3-pro", api_key="k" * 9)
    request = LLMRequest(messages=[UserMessage("x")], tools=[odd_tool().spec])
    last = await last_event(made, request)
    assert last.message.tool_calls[0].arguments == {"$top": 3}
    (schema,) = schemas("completions", asked[0])
    assert bad_schema(schema, lookaround=False) is None
    assert schema["$defs"] == {}


CALL_ODD = {"index": 0, "id": "c", "function": {"name": "odd", "arguments": json.dumps(WRITTEN)}}


async def test_odd_tool_and_ids_go_through_pipy():
    """By the rules of the model's vendor."""
    seen = []

    async def stream(model, context, options):
        del model, options
        seen.append(context)
        yield StreamEvent("done", message=AssistantMessage([ToolCall("1", "odd", WRITTEN)]))

    made = PipyProvider("mistral/mistral-large", stream)
    call = ToolCall("call_1", "odd", {"$top": 1})
    history = [
        UserMessage("x"),
        AssistantMessage([call]),
        ToolResultMessage(tool_call_id="call_1", tool_name="odd", content="done"),
    ]
    request = LLMRequest(messages=history, tools=[odd_tool().spec])
    last = await last_event(made, request)
    assert last.message.tool_calls[0].arguments == {"$top": 3}
    (context,) = seen
    assert bad_schema(context.tools[0].parameters, lookaround=False) is None
    (sent,) = context.messages[1].tool_calls
    assert sent.arguments == {"input": {"_top": 1}}
    assert re.fullmatch("[A-Za-z0-9]{9}", sent.id)
    assert context.messages[2].tool_call_id == sent.id


@APIS
async def test_image_has_the_type_of_its_first_bytes(api):
    """A declared type that they contradict would be refused, in every later turn too."""
    wrong = UserMessage([TextContent("see"), ImageContent(PNG, mime_type="image/jpeg")])
    async with serving(api, says_of(api, "ok")) as (server, made):
        last = await last_event(made, LLMRequest(messages=[wrong]))
    assert last.type == "done", last.error
    sent = json.dumps(server.received[0].body)
    assert "image/png" in sent
    assert "image/jpeg" not in sent
