"""What AnthropicProvider sends: each option, each kind of message, and what lives in the cache."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from types import MappingProxyType

import pytest
from tests.wire.anthropic_rules import check_body
from tests.wire.fake_anthropic import FakeAnthropic, answers, calls, says, sign, text, thinks
from tests.wire.three import ADD, ASK, PNG

from looopy.errors import ConfigurationError, HistoryRejected
from looopy.llm.anthropic.provider import AnthropicProvider
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions, ThinkingLevel, ToolSpec

BUDGET, EITHER, ADAPTIVE = "claude-sonnet-4-5", "claude-opus-4-6", "claude-sonnet-5-5"
MARK = {"type": "ephemeral"}
DROPS = {
    "type": "adaptive",
    "display": "summarized",
    "block_binding": {"prefix_mismatch_behavior": "drop_block"},
}
LEVELS = [level for level in ThinkingLevel if level != ThinkingLevel.OFF]


async def sent(request=ASK, *, model=BUDGET, provider=MappingProxyType({}), **options):
    """The body and headers of a call that the server took."""
    async with FakeAnthropic(says("ok")) as server:
        asked = AnthropicProvider(model, base_url=server.url, **provider)
        last = [e async for e in asked.stream(request, StreamOptions(**options))][-1]
        await asked.aclose()
    assert last.type == "done", last.error
    received = server.received[0]
    return received.body, received.headers


def plain(body):
    """*body* without its marks for the cache."""

    def unmarked(part):
        return {name: value for name, value in part.items() if name != "cache_control"}

    return json.loads(json.dumps(body), object_hook=unmarked)


def said(*blocks, model=BUDGET, **fields):
    """An answer of Claude's."""
    return AssistantMessage(blocks, provider="anthropic", model=model, **fields)


def signed(thought, model=BUDGET):
    """A thought with the signature that the server gave it."""
    return ThinkingContent(thought, thinking_signature=sign(thought, model))


# --- options -----------------------------------------------------------------------------------


async def test_every_option_reaches_the_wire():
    """What is set is sent, under the API's name, over one that thinks by a budget."""
    request = LLMRequest(messages=ASK.messages, tools=[ADD], model="claude-haiku-4-5")
    schema = {"type": "object", "properties": {"x": {"type": "object", "properties": {}}}}
    body, headers = await sent(
        request,
        provider={"extra_body": {"top_k": 5}},
        temperature=0.5,
        max_tokens=99,
        stop=["END", " "],
        tool_choice="add",
        output_schema=schema,
        headers={"x-trace": "t1", "anthropic-beta": "some-beta"},
        session_id="anna@example.org",
        api_key="of the call",
        timeout_s=30,
    )
    assert body["model"] == "claude-haiku-4-5"
    assert body["temperature"] == 0.5
    assert body["max_tokens"] == 99
    assert body["stop_sequences"] == ["END"]
    assert body["tool_choice"] == {"type": "tool", "name": "add"}
    assert body["top_k"] == 5
    asked = body["output_config"]["format"]["schema"]
    assert asked["additionalProperties"] is False
    assert asked["properties"]["x"]["additionalProperties"] is False
    assert "additionalProperties" not in schema
    assert headers["x-trace"] == "t1"
    assert headers["anthropic-beta"] == "some-beta"
    assert headers["authorization"] == "Bearer of the call"
    assert headers["x-stainless-retry-count"] == "0"


async def test_the_context_is_sent_as_an_opaque_id():
    """The same for each call, another for another context, and nobody's name."""
    ids = [
        (await sent(session_id=name))[0]["metadata"]["user_id"]
        for name in ("anna@example.org", "anna@example.org", "bob")
    ]
    assert ids[0] == ids[1] != ids[2]
    assert "anna" not in ids[0]
    assert "metadata" not in (await sent())[0]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ("any", {"type": "any"}),
        ("add", {"type": "tool", "name": "add"}),
    ],
)
async def test_the_choice_of_a_tool(choice, expected):
    """By our words or a tool's name; without tools there is no choice."""
    body, _ = await sent(LLMRequest(messages=ASK.messages, tools=[ADD]), tool_choice=choice)
    assert body["tool_choice"] == expected
    assert "tool_choice" not in (await sent(tool_choice=choice))[0]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-3-haiku-20240307", 4096),
        ("claude-3-5-haiku-latest", 8192),
        ("claude-opus-4-1", 32_000),
        (BUDGET, 32_000),
        ("claude-opus-5", 64_000),  # it thinks unasked
        ("claude-haiku-5-5", 64_000),
        ("somebody-elses", 8192),
    ],
)
async def test_an_answer_may_be_as_long_as_the_model_makes_it(model, expected):
    """The API insists on a number: ours within the model's, or the user's."""
    assert (await sent(model=model))[0]["max_tokens"] == expected
    assert (await sent(model=model, max_tokens=7))[0]["max_tokens"] == 7


# --- thinking ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "budget"), list(zip(LEVELS, [1024, 2048, 8192, 16384, 16384], strict=True))
)
async def test_a_level_of_thinking_is_a_budget(level, budget):
    """The highest is that of `high`; what is left for the answer is not less than without."""
    body, _ = await sent(thinking_level=level, temperature=0.2)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert body["max_tokens"] == 32_000 + budget
    assert "temperature" not in body  # only 1 is taken while it thinks


@pytest.mark.parametrize(
    ("budgets", "level", "expected"),
    [
        ({"high": 5000}, ThinkingLevel.HIGH, 5000),
        ({"high": 5000}, ThinkingLevel.XHIGH, 5000),
        ({"high": 5000, "xhigh": 6000}, ThinkingLevel.XHIGH, 6000),
        ({"high": 5000}, ThinkingLevel.LOW, 2048),
        ({ThinkingLevel.LOW: 3000}, ThinkingLevel.LOW, 3000),
        ({"low": 1}, ThinkingLevel.LOW, 1024),
        ({"low": 90_000}, ThinkingLevel.LOW, 62_976),  # the model's 64,000 hold both
    ],
)
async def test_budgets_may_be_set_for_each_level(budgets, level, expected):
    """And never leave less than 1,024 tokens for the answer."""
    body, _ = await sent(thinking_level=level, thinking_budgets=budgets)
    assert body["thinking"]["budget_tokens"] == expected
    assert body["max_tokens"] - expected >= 1024


@pytest.mark.parametrize(("max_tokens", "budget"), [(4000, 2976), (2048, 1024), (2047, None)])
async def test_thinking_is_a_part_of_max_tokens(max_tokens, budget):
    """What the user set is the whole; where it does not hold both, nothing is thought."""
    body, _ = await sent(thinking_level=ThinkingLevel.HIGH, max_tokens=max_tokens)
    assert body["max_tokens"] == max_tokens
    assert body.get("thinking", {}).get("budget_tokens") == budget


@pytest.mark.parametrize(
    ("model", "level", "effort"),
    [
        (ADAPTIVE, ThinkingLevel.MINIMAL, "low"),
        (ADAPTIVE, ThinkingLevel.MEDIUM, "medium"),
        (ADAPTIVE, ThinkingLevel.XHIGH, "xhigh"),
        ("claude-opus-4-7", ThinkingLevel.XHIGH, "xhigh"),
        (EITHER, ThinkingLevel.HIGH, "high"),
        (EITHER, ThinkingLevel.XHIGH, "high"),
    ],
)
async def test_a_model_that_decides_for_itself_gets_an_effort(model, level, effort):
    """And shows what it thinks; no budget, no temperature."""
    body, _ = await sent(model=model, thinking_level=level, temperature=0.3)
    assert (body["thinking"]["type"], body["thinking"]["display"]) == ("adaptive", "summarized")
    assert body["output_config"]["effort"] == effort
    assert "temperature" not in body


async def test_a_budget_is_sent_to_a_model_that_takes_either():
    """Only where the user set one."""
    level, budgets = ThinkingLevel.LOW, {"low": 4000}
    body, _ = await sent(model=EITHER, thinking_level=level, thinking_budgets=budgets)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 4000}
    body, _ = await sent(model=ADAPTIVE, thinking_level=level, thinking_budgets=budgets)
    assert body["thinking"]["type"] == "adaptive"


@pytest.mark.parametrize(
    ("model", "level", "expected"),
    [
        (BUDGET, None, None),
        (BUDGET, ThinkingLevel.OFF, None),
        ("claude-opus-4-8", ThinkingLevel.OFF, None),
        (ADAPTIVE, None, DROPS),
        ("claude-opus-5", None, None),
        ("claude-opus-5", ThinkingLevel.OFF, {"type": "disabled"}),
        ("claude-haiku-5-5", ThinkingLevel.OFF, {"type": "disabled"}),
        ("claude-sonnet-5-5", ThinkingLevel.OFF, {"type": "between_tools"}),
        ("claude-opus-5-5", ThinkingLevel.OFF, DROPS),
        ("claude-fable-5", ThinkingLevel.OFF, None),
        ("claude-3-5-haiku-latest", ThinkingLevel.HIGH, None),
    ],
)
async def test_off_is_no_thinking(model, level, expected):
    """A model that thinks unasked is told not to, where it can be; one that cannot is not asked."""
    body, _ = await sent(model=model, thinking_level=level)
    assert body.get("thinking") == expected


@pytest.mark.parametrize("model", [BUDGET, EITHER, "claude-sonnet-5"])
async def test_a_call_that_must_use_a_tool_does_not_think(model):
    """The API refuses both at once, and the tool was asked for by name."""
    request = LLMRequest(messages=ASK.messages, tools=[ADD])
    body, _ = await sent(
        request, model=model, thinking_level=ThinkingLevel.LOW, tool_choice="required"
    )
    assert "thinking" not in body
    assert body["tool_choice"] == {"type": "any"}


async def test_a_model_that_cannot_be_made_to_use_a_tool_may_use_it():
    """The wish is left out, as it would be refused, and a warning says so."""
    told = []
    request = LLMRequest(messages=ASK.messages, tools=[ADD])
    body, _ = await sent(
        request, model=ADAPTIVE, tool_choice="add", warn=lambda *said: told.append(said)
    )
    assert "tool_choice" not in body
    assert body["thinking"] == DROPS
    assert told == [("tool_choice", f"{ADAPTIVE} cannot be made to use a tool; it may")]
    body, _ = await sent(request, model=ADAPTIVE, tool_choice="none")
    assert body["tool_choice"] == {"type": "none"}


async def test_thoughts_may_be_left_out_where_their_past_was_changed():
    """Later models bind them to it; windows and prompts of each call change it all the same."""
    thinking = ThinkingLevel.LOW
    request = LLMRequest(messages=ASK.messages, system_prompt="Monday", tools=[ADD])
    answer = lambda r: answers(  # noqa: E731
        thinks(0, "hm", model=ADAPTIVE, asked=r.body), text(1, "so"), calls(2, "c1", "add")
    )
    async with FakeAnthropic(answer, says("5"), says("6")) as server:
        provider = AnthropicProvider(ADAPTIVE, base_url=server.url)
        options = StreamOptions(thinking_level=thinking, headers={"Anthropic-Beta": "mine"})
        said = [e async for e in provider.stream(request, options)][-1].message
        done = ToolResultMessage(tool_call_id="c1", content="5")
        for prompt in ("Monday", "Tuesday"):
            more = LLMRequest(
                messages=[*ASK.messages, said, done], system_prompt=prompt, tools=[ADD]
            )
            last = [e async for e in provider.stream(more, options)][-1]
            assert last.type == "done", last.error
        await provider.aclose()
    beta = "mine,thinking-binding-controls-2026-08-01"
    assert [r.headers["anthropic-beta"] for r in server.received] == [beta] * 3
    assert server.received[2].body["messages"][1]["content"][0]["thinking"] == "hm"


@pytest.mark.parametrize("model", [ADAPTIVE, "claude-haiku-5-5"])
async def test_thoughts_stay_at_home_where_none_are_wanted(model):
    """A model that binds them would refuse them, and cannot be asked to leave them out."""
    answered = said(signed("hm", model), TextContent("so"), model=model)
    request = LLMRequest(messages=[UserMessage("a"), answered, UserMessage("b")])
    body, headers = await sent(request, model=model, thinking_level=ThinkingLevel.OFF)
    assert [b["type"] for b in body["messages"][1]["content"]] == ["text"]
    assert "anthropic-beta" not in headers


async def test_a_temperature_is_sent_by_the_api_that_knows_it():
    """The latest version of the API has none; the one before does, for models that take it."""
    _, headers = await sent(temperature=0.5)
    assert headers["anthropic-version"] == "2023-06-01"
    _, headers = await sent(provider={"extra_body": {"top_k": 3}})
    assert headers["anthropic-version"] == "2023-06-01"
    _, headers = await sent()
    assert headers["anthropic-version"] > "2026"
    body, headers = await sent(model=ADAPTIVE, temperature=0.5)
    assert "temperature" not in body
    assert headers["anthropic-version"] > "2026"


async def test_thinking_does_not_begin_amid_calls_that_began_without():
    """Another model, or another level, began this exchange; the next one thinks again."""
    messages = [
        UserMessage("2 + 3?"),
        said(ToolCall("c1", "add")),
        ToolResultMessage(tool_call_id="c1", content="5"),
    ]
    level = ThinkingLevel.LOW
    body, _ = await sent(LLMRequest(messages=messages, tools=[ADD]), thinking_level=level)
    assert "thinking" not in body
    more = [*messages, said(TextContent("5")), UserMessage("and 3 + 4?")]
    body, _ = await sent(LLMRequest(messages=more, tools=[ADD]), thinking_level=level)
    assert body["thinking"]["type"] == "enabled"


# --- messages ----------------------------------------------------------------------------------


async def test_every_kind_of_message_goes_out_as_the_api_has_it():
    """System prompt, images, calls and results in one message; custom roles stay at home."""
    image = ImageContent(PNG, mime_type="image/png")
    messages = [
        UserMessage([TextContent("what is this?"), image]),
        CustomMessage("note", "not for the model"),
        said(
            signed("hm"),
            ThinkingContent(thinking_signature=sign("", BUDGET), redacted=True),
            TextContent("I look"),
            ToolCall("c1", "look", {"at": "ß"}),
            ToolCall("c2", "look"),
        ),
        ToolResultMessage(tool_call_id="c1", content=[TextContent("a cat"), image]),
        ToolResultMessage(tool_call_id="c2", is_error=True, details={"secret": 1}),
        UserMessage("so?"),
        UserMessage("quick!"),
    ]
    look = ToolSpec(name="look", description="", parameters={"properties": {}})
    body, _ = await sent(LLMRequest(messages=messages, system_prompt="Be brief.", tools=[look]))
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    shown = {"type": "image", "source": source}

    def text_of(said):
        return {"type": "text", "text": said}

    assert plain(body)["messages"] == [
        {"role": "user", "content": [text_of("what is this?"), shown]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": sign("hm", BUDGET)},
                {"type": "redacted_thinking", "data": sign("", BUDGET)},
                text_of("I look"),
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "ß"}},
                {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [text_of("a cat"), shown]},
                {"type": "tool_result", "tool_use_id": "c2", "is_error": True},
                text_of("so?"),
                text_of("quick!"),
            ],
        },
    ]
    assert plain(body)["system"] == [text_of("Be brief.")]
    assert plain(body)["tools"] == [
        {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    ]


async def test_an_image_of_a_kind_that_the_api_refuses_is_named():
    """It would be refused, and every later request with it."""
    picture = ImageContent("SUkqAA==", mime_type="image/tiff")  # its first bytes
    body, _ = await sent(LLMRequest(messages=[UserMessage([TextContent("see"), picture])]))
    assert "image/tiff" in body["messages"][0]["content"][1]["text"]


async def test_empty_content_is_not_sent():
    """Empty and blank messages, blocks and prompts, wherever they stand in the history."""
    messages = [
        UserMessage(""),
        UserMessage([]),
        UserMessage([TextContent(" "), TextContent("hello")]),
        said(),
        said(TextContent("")),
        said(TextContent("\n"), ToolCall("c1", "add")),
        ToolResultMessage(tool_call_id="c1", content=[TextContent("")]),
        UserMessage("   "),
    ]
    body, _ = await sent(LLMRequest(messages=messages, tools=[ADD], system_prompt=" \n"))
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]
    assert "system" not in body


async def test_ids_and_thoughts_of_other_models_do_not_harm():
    """Ids of another provider's calls, the same one twice, signatures of another model."""
    foreign = AssistantMessage(
        [
            ThinkingContent("theirs", thinking_signature="reasoning"),
            ToolCall("call|1.x" + "y" * 90, "add", thought_signature="opaque"),
        ],
        provider="openai",
        model="gpt",
    )
    older = AssistantMessage(
        [signed("old", "claude-opus-4-1"), TextContent("so"), ToolCall("c1", "add")],
        provider="anthropic",
        model="claude-opus-4-1",
    )
    messages = [
        UserMessage("one"),
        foreign,
        ToolResultMessage(tool_call_id=foreign.tool_calls[0].id, content="1"),
        UserMessage("two"),
        older,
        ToolResultMessage(tool_call_id="c1", content="2"),
        UserMessage("three"),
        said(signed("mine"), ToolCall("c1", "add")),
        ToolResultMessage(tool_call_id="c1", content="3"),
    ]
    body, _ = await sent(
        LLMRequest(messages=messages, tools=[ADD]), thinking_level=ThinkingLevel.LOW
    )
    blocks = [block for m in body["messages"] for block in m["content"]]
    thoughts = [b["thinking"] for b in blocks if b["type"] == "thinking"]
    ids = [b["id"] for b in blocks if b["type"] == "tool_use"]
    assert thoughts == ["mine"]
    assert len(set(ids)) == 3
    assert ids == [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]


async def test_a_snapshot_of_the_same_model_gets_its_thoughts_back():
    """`claude-sonnet-4-5` and `claude-sonnet-4-5-20250929` are one model."""
    thought = signed("mine", "claude-sonnet-4-5-20250929")
    messages = [
        UserMessage("one"),
        said(thought, ToolCall("c1", "add")),
        ToolResultMessage(tool_call_id="c1", content="3"),
    ]
    body, _ = await sent(
        LLMRequest(messages=messages, tools=[ADD]), model="claude-sonnet-4-5-20250929"
    )
    assert body["messages"][1]["content"][0]["thinking"] == "mine"


async def test_a_changed_thought_is_refused():
    """The server looks at signatures, so the tests above show that none was changed."""
    bent = ThinkingContent("mine.", thinking_signature=sign("mine", BUDGET))
    request = LLMRequest(messages=[UserMessage("a"), said(bent, TextContent("b")), *ASK.messages])
    async with FakeAnthropic() as server:
        provider = AnthropicProvider(BUDGET, base_url=server.url)
        last = [e async for e in provider.stream(request)][-1]
        await provider.aclose()
    assert isinstance(last.error, HistoryRejected)
    assert last.error.position == 1


async def test_a_call_without_a_result_does_not_make_the_request_fail():
    """It gets one, though nobody rendered the history before."""
    messages = [UserMessage("go"), said(ToolCall("c1", "add")), UserMessage("never mind")]
    body, _ = await sent(LLMRequest(messages=messages, tools=[ADD]))
    kinds = [block["type"] for block in body["messages"][2]["content"]]
    assert kinds == ["tool_result", "text"]


async def test_a_history_with_tools_goes_out_without_tools():
    """The API wants tools defined where some were used: they are, and may not be called."""
    messages = [
        UserMessage("go"),
        said(ToolCall("c1", "add"), ToolCall("c2", "add")),
        ToolResultMessage(tool_call_id="c1", content="1"),
        ToolResultMessage(tool_call_id="c2", content="2"),
    ]
    body, _ = await sent(LLMRequest(messages=messages))
    assert [tool["name"] for tool in body["tools"]] == ["add"]
    assert body["tool_choice"] == {"type": "none"}


async def test_an_aborted_answer_is_sent_only_with_its_next_message():
    """What the user spoke to stays; what was, or is to be, said again does not stand beside it."""
    half = said(TextContent("half an"), stop_reason=StopReason.ABORTED)
    seen = [UserMessage("go"), half, UserMessage("go on")]
    body, _ = await sent(LLMRequest(messages=seen))
    assert len(body["messages"]) == 3
    for rest in ([], [said(TextContent("an answer")), UserMessage("thanks")]):
        body, _ = await sent(LLMRequest(messages=[UserMessage("go"), half, *rest]))
        assert "half" not in json.dumps(body)
    call = ToolCall("c1", "add")
    ran = AssistantMessage((call,), provider="anthropic", stop_reason=StopReason.INTERRUPTED)
    done = ToolResultMessage(tool_call_id="c1", content="5")
    body, _ = await sent(LLMRequest(messages=[UserMessage("go"), ran, done], tools=[ADD]))
    assert len(body["messages"]) == 3


@pytest.mark.parametrize(
    "messages",
    [
        [said(TextContent("I began")), UserMessage("b")],
        [UserMessage("a"), said(TextContent("b ")), said(TextContent("c "))],
        [UserMessage("a"), said(signed("x"), TextContent("b")), said(TextContent("c"))],
        [said(TextContent("half"), stop_reason=StopReason.ABORTED)],
        [],
    ],
)
async def test_user_and_assistant_take_turns(messages):
    """The user begins and ends; what neighbours of one role said is one message, in order."""
    body, _ = await sent(LLMRequest(messages=messages))
    roles = [message["role"] for message in body["messages"]]
    assert roles in (["user"], ["user", "assistant", "user"])


# --- what the API keeps ------------------------------------------------------------------------


async def test_tools_prompt_and_the_last_two_messages_are_marked_for_the_cache():
    """Four marks, the most that the API takes; so each request finds what the last one left."""
    messages = [
        UserMessage("one"),
        said(TextContent("1")),
        UserMessage("two"),
        said(TextContent("ok"), ToolCall("c1", "add"), ToolCall("c2", "add")),
        ToolResultMessage(tool_call_id="c1", content="5"),
        ToolResultMessage(tool_call_id="c2", content="7"),
    ]
    sub = ToolSpec(name="sub", description="Subtract.", parameters={})
    body, _ = await sent(LLMRequest(messages=messages, system_prompt="Be brief.", tools=[ADD, sub]))
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, MARK]
    assert body["system"][0]["cache_control"] == MARK
    marked = [
        (i, j)
        for i, message in enumerate(body["messages"])
        for j, block in enumerate(message["content"])
        if "cache_control" in block
    ]
    assert marked == [(2, 0), (4, 1)]


@pytest.mark.parametrize(
    ("ttl", "mark"), [("5m", MARK), ("1h", {"type": "ephemeral", "ttl": "1h"}), (None, None)]
)
async def test_how_long_it_is_kept(ttl, mark):
    """Five minutes, an hour, or not at all."""
    body, _ = await sent(provider={"cache_ttl": ttl})
    assert body["messages"][0]["content"][0].get("cache_control") == mark


def test_no_other_time_can_be_asked_for():
    """At once, naming what there is."""
    with pytest.raises(ConfigurationError, match="5m"):
        AnthropicProvider(BUDGET, api_key="k", cache_ttl="2h")


async def test_a_request_does_not_change_its_arguments():
    """Marks are put on what is written, not on schemas or messages of the user's."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = ToolSpec(name="add", description="", parameters=schema)
    arguments = {"a": [1]}
    request = LLMRequest(
        messages=[
            UserMessage("go"),
            said(ToolCall("c1", "add", arguments)),
            ToolResultMessage(tool_call_id="c1", content="1"),
        ],
        tools=[tool],
    )
    before = copy.deepcopy((schema, arguments))
    await sent(request)
    assert (schema, arguments) == before


async def test_a_grown_history_begins_with_the_same_bytes():
    """Marks aside, each request is the beginning of the next: only then is the cache of use."""
    messages = [UserMessage("go")]
    bodies = []
    for i in range(4):
        body, _ = await sent(
            LLMRequest(messages=messages, system_prompt="s", tools=[ADD]),
            thinking_level=ThinkingLevel.LOW,
        )
        bodies.append(plain(body))
        messages = [
            *messages,
            said(signed(f"t{i}"), TextContent("let me"), ToolCall(f"c{i}", "add", {"i": i})),
            ToolResultMessage(tool_call_id=f"c{i}", content=f"{i}"),
        ]
    for body, longer in pairwise(bodies):
        kept = longer["messages"][: len(body["messages"])]
        assert json.dumps(kept) == json.dumps(body["messages"])
        for part in ("system", "tools", "thinking", "model"):
            assert body[part] == longer[part]


# --- the judge ---------------------------------------------------------------------------------


def test_the_judge_refuses_what_the_api_refuses():
    """A judge that says yes to all would prove nothing: each rule of its own is broken once."""
    user = {"role": "user", "content": [{"type": "text", "text": "a"}]}

    def text_of(said):
        return {"role": "assistant", "content": [{"type": "text", "text": said}]}

    def answer(thought):
        return {"role": "assistant", "content": [thought, *text_of("a")["content"]]}

    use = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}
    tool = {"name": "add", "input_schema": {"type": "object"}}
    thought = {"type": "thinking", "thinking": "t", "signature": "s"}
    think = {"type": "enabled", "budget_tokens": 1024}
    good = {"model": BUDGET, "max_tokens": 2048, "stream": True, "messages": [user]}
    loop = [user, {"role": "assistant", "content": [use]}, result]
    assert check_body(good) == []
    assert check_body({**good, "messages": loop, "tools": [tool]}) == []
    bad = [
        {"messages": []},
        {"surprise": 1},
        {"messages": [text_of("a"), user]},
        {"messages": [user, text_of("a")]},
        {"messages": [user, user]},
        {"messages": [user, text_of("a"), text_of("b"), user]},
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [user, {"role": "assistant", "content": [thought]}, user]},
        {"messages": [user, answer({**thought, "cache_control": 1}), user]},
        {"messages": [user, answer({"type": "redacted_thinking"}), user]},
        {"messages": loop},
        {"messages": loop[:2], "tools": [tool]},
        {"model": ""},
        {"max_tokens": 0},
        {"stream": False},
        {"stop_sequences": [" "]},
        {"metadata": {"user_id": "x" * 257}},
        {"tools": [tool, tool]},
        {"tools": [{**tool, "name": "a.b"}]},
        {"tools": [{**tool, "input_schema": {}}]},
        {"tool_choice": {"type": "auto"}},
        {"tools": [tool], "tool_choice": {"type": "tool", "name": "sub"}},
        {"tools": [tool], "tool_choice": {"type": "required"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1023}},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"thinking": {"type": "adaptive"}},
        {"thinking": think, "temperature": 0.5},
        {"thinking": think, "tools": [tool], "tool_choice": {"type": "any"}},
        {"thinking": think, "tools": [tool], "messages": loop},
        {"model": ADAPTIVE, "thinking": think},
        {"model": ADAPTIVE, "temperature": 0.5},
        {"model": ADAPTIVE, "thinking": {"type": "disabled"}},
        {"model": "claude-haiku-5-5", "thinking": {"type": "between_tools"}},
        {"model": ADAPTIVE, "tools": [tool], "tool_choice": {"type": "any"}},
        {"system": [{"type": "text", "text": ""}]},
        {"system": [{"type": "text", "text": "a", "cache_control": MARK}] * 5},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    ]  # fmt: skip
    assert [change for change in bad if not check_body({**good, **change})] == []
    for change in ({"temperature": 1}, {"model": ADAPTIVE, "thinking": DROPS}):
        assert check_body({**good, **change}, headers={"anthropic-version": "2026-10-21"})
    own = {"messages": [user, answer(thought), user]}
    assert check_body({**good, **own}, verify=lambda _thought, signed: signed == "s") == []
    assert check_body({**good, **own}, verify=lambda _thought, _signed: False)


async def test_thinking_goes_back_byte_for_byte():
    """From one call's stream into the next one's body: no piece was lost, joined or encoded."""
    strange = "ß \u2028 \x00\x7f \\u0041 🙂 </thinking>"
    answer = answers(thinks(0, strange), thinks(1, "two"), text(2, "so"), calls(3, "c1", "add"))
    async with FakeAnthropic(answer, says("5")) as server:
        provider = AnthropicProvider(BUDGET, base_url=server.url)
        options = StreamOptions(thinking_level=ThinkingLevel.LOW)
        request = LLMRequest(messages=[UserMessage("go")], tools=[ADD])
        answered = [e async for e in provider.stream(request, options)][-1].message
        done = ToolResultMessage(tool_call_id="c1", content="5")
        again = LLMRequest(messages=[UserMessage("go"), answered, done], tools=[ADD])
        assert [e async for e in provider.stream(again, options)][-1].type == "done"
        await provider.aclose()
    blocks = server.received[1].body["messages"][1]["content"]
    assert [b.get("thinking") for b in blocks[:2]] == [strange, "two"]
    assert [b["type"] for b in blocks] == ["thinking", "thinking", "text", "tool_use"]
