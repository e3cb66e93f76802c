"""Tools of the provider's own server: recorded, shown with their sources, and sent back whole."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from tests.wire import fake_anthropic, fake_openai, fake_responses
from tests.wire.fake_openai import DONE, Answer, chunk
from tests.wire.fake_responses import sse
from tests.wire.three import ASK, play, says, serving

from looopy import Agent, LoopConfig, ModelOptions, ServerToolEnd, ServerToolStart
from looopy.llm import render
from looopy.stores import open_stores
from looopy.types.message import (
    AssistantMessage,
    Citation,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    UserMessage,
)
from looopy.types.request import LLMRequest

SEARCH = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "weather"},
}
NEW_KIND = {"id": "x_1", "type": "time_travel_call", "year": 1848, "result": {"ok": True}}
CITED = {
    "type": "url_citation",
    "url": "https://weather.test",
    "title": "Weather",
    "start_index": 0,
    "end_index": 5,
}
USE = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srv_1",
    "content": [{"type": "web_search_result", "url": "https://weather.test", "title": "Weather",
                 "encrypted_content": "EqgfCioIARgB", "page_age": None}],
}  # fmt: skip
LOCATION = {
    "type": "web_search_result_location",
    "url": "https://weather.test",
    "title": "Weather",
    "cited_text": "sunny, 25 degrees",
    "encrypted_index": "Eo8BCioIAhgB",
}
USES = {
    "responses": {"type": "web_search"},
    "anthropic": {"type": "web_search_20250305", "name": "web_search"},
}


def item(place, whole):
    """An item of the server's own: announced, then whole."""
    yield sse("response.output_item.added", output_index=place, item={**whole, "status": "begun"})
    yield sse("response.web_search_call.searching", output_index=place, item_id=whole["id"])
    yield sse("response.output_item.done", output_index=place, item=whole)


def searched(api):
    """An answer for which the server searched."""
    if api == "responses":
        part = {"type": "output_text", "text": "Sunny.", "annotations": [CITED]}
        said = {"type": "message", "id": "m1", "role": "assistant", "content": [part]}
        return fake_responses.answers(
            fake_responses.reasons(0, "hm"),
            item(1, SEARCH),
            item(2, NEW_KIND),
            [sse("response.output_item.done", output_index=3, item=said)],
        )
    pieces = [{"type": "input_json_delta", "partial_json": p} for p in ('{"query": ', '"weather"}')]
    cited = {"type": "citations_delta", "citation": LOCATION}
    return fake_anthropic.answers(
        fake_anthropic.block(0, USE, *pieces),
        fake_anthropic.block(1, FOUND),
        fake_anthropic.block(
            2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Sunny."}, cited
        ),
    )


RESPONSES = (
    ServerToolCall("ws_1", "web_search", {"type": "search", "query": "weather"}, item=SEARCH),
    ServerToolCall("x_1", "time_travel", {}, item=NEW_KIND),
    TextContent("Sunny.", citations=(Citation(url=CITED["url"], title="Weather", raw=CITED),)),
)
ANTHROPIC = (
    ServerToolCall(
        "srv_1", "web_search", {"query": "weather"}, item={**USE, "input": {"query": "weather"}}
    ),
    ServerToolResult("srv_1", "web_search", item=FOUND),
    TextContent(
        "Sunny.",
        citations=(
            Citation(url=CITED["url"], title="Weather", text=LOCATION["cited_text"], raw=LOCATION),
        ),
    ),
)


@pytest.mark.parametrize("api", ["responses", "anthropic"])
async def test_a_search_of_the_server_is_kept_and_goes_back_as_it_came(api):
    """In the order of the answer, from a store, in another agent; an unknown item only stays."""
    config = LoopConfig(options=ModelOptions(extra_body={"tools": [USES[api]]}))
    async with (
        serving(api, searched(api), says(api, "Yes.")) as (server, made),
        open_stores("memory:") as stores,
    ):
        async with Agent("s", llm_provider=made, stores=stores, loop_config=config) as agent:
            result = await agent.execute_turn("How is the weather?")
            assert result.outcome == "completed", result.error
        async with Agent("s", llm_provider=made, stores=stores, loop_config=config) as agent:
            _, stored = await agent.get_messages()
            again = await agent.execute_turn("Really?")
            assert again.outcome == "completed", again.error
    assert stored == result.messages[-1]
    assert stored.content[-3:] == (RESPONSES if api == "responses" else ANTHROPIC)
    assert [one.url for one in stored.citations] == ["https://weather.test"]
    assert stored.response_id == ("resp_1" if api == "responses" else "msg_1")
    assert len(server.received) == 2, "nothing was refused"
    body = server.received[1].body
    if api == "responses":
        kinds = [one.get("type") for one in body["input"]]
        assert kinds == [None, "reasoning", "web_search_call", "message", None]
        assert body["input"][2] == SEARCH
        assert body["input"][3]["content"][0]["annotations"] == [CITED]
        assert stored.usage.reasoning == result.usage.reasoning == 2
    else:
        assert body["messages"][1]["content"] == [
            {**USE, "input": {"query": "weather"}},
            FOUND,
            {"type": "text", "text": "Sunny.", "citations": [LOCATION]},
        ]


@pytest.mark.parametrize("blocks", [RESPONSES, ANTHROPIC])
def test_another_model_sees_the_text_alone(blocks):
    """So does a second try, and one after an answer that broke off, where a result may miss."""
    said = AssistantMessage(blocks, provider="anthropic", model="claude-sonnet-4-5")
    cut = AssistantMessage(
        blocks, provider="anthropic", model="claude-sonnet-4-5", stop_reason=StopReason.ABORTED
    )
    question = UserMessage("?")
    own = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    assert render([question, said], **own)[1] is said
    for found in (
        render([question, said], provider="openai", model="gpt-5"),
        render([question, said], strict=True, **own),
    ):
        assert found[1].content == (TextContent("Sunny."),)
    kinds = [block.type for block in render([question, cut], **own)[1].content]
    assert kinds == ["text"]


def waiting(api, gate):
    """An answer for which the server searches until *gate* opens."""
    answer = searched(api)
    done = b"web_search_tool_result" if api == "anthropic" else b"output_item.done"
    name = b"srv_1" if api == "anthropic" else b"ws_1"
    first = next(i for i, p in enumerate(answer.pieces) if done in p and name in p)
    return replace(answer, pieces=[*answer.pieces[:first], gate, *answer.pieces[first:]])


@pytest.mark.parametrize("api", ["responses", "anthropic"])
async def test_a_tool_of_the_server_is_shown_while_it_runs(api):
    """Stored before it is shown, replayed from the store, and no call of the agent's tools."""
    gate, kinds = asyncio.Event(), (ServerToolStart, ServerToolEnd)
    async with (
        serving(api, waiting(api, gate)) as (_, made),
        open_stores("memory:") as stores,
    ):
        shown = []
        async with Agent("s", llm_provider=made, stores=stores) as agent:
            turn = agent.execute_turn("How is the weather?")
            async for event in turn:
                shown.append(event)
                if isinstance(event, ServerToolStart):
                    assert [e.seq for e in await stores.journal.events("s")][-1] == event.seq
                    gate.set()
            result = await turn
        replayed = [e for e in await stores.journal.events("s") if isinstance(e, kinds)]
    live = [event for event in shown if isinstance(event, kinds)]
    assert replayed == live
    begun, ended = live
    call_id = "ws_1" if api == "responses" else "srv_1"
    assert (begun.tool_call_id, begun.tool_name) == (call_id, "web_search")
    assert (ended.tool_call_id, ended.tool_name) == (call_id, "web_search")
    assert begun.args["query"] == ended.args["query"] == "weather"
    assert ended.is_error is False
    places = [shown.index(one) for one in (begun, ended)]
    assert places[1] < next(i for i, e in enumerate(shown) if getattr(e, "delta", "") == "Sunny.")
    assert result.outcome == "completed", result.error
    assert [call for one in result.iterations for call in one.calls] == []
    assert not any(e.type.startswith("tool_execution") for e in shown)


async def test_a_failure_of_such_a_tool_and_a_flood_of_them():
    """The end says that it failed; an answer has a limit of events, and the message has all."""
    failed = {**FOUND, "content": {"type": "web_search_tool_result_error", "error_code": "x\0"}}
    pairs = []
    for number in range(100):
        name = f"srv_{number}"
        pairs.append(fake_anthropic.block(2 * number, {**USE, "id": name}))
        pairs.append(fake_anthropic.block(2 * number + 1, {**failed, "tool_use_id": name}))
    async with (
        serving("anthropic", fake_anthropic.answers(*pairs)) as (_, made),
        Agent("s", llm_provider=made) as agent,
    ):
        turn = agent.execute_turn("Search.")
        ends = [event async for event in turn if isinstance(event, ServerToolEnd)]
        assert len((await turn).messages[-1].content) == 200
    assert len(ends) == 64
    assert all(event.is_error for event in ends)


async def test_a_failed_tool_of_an_mcp_connector():
    """Its result says `is_error`, and its call alone has the tool's name."""
    call = {"type": "mcp_tool_use", "id": "mcp_1", "name": "echo", "server_name": "s"}
    call["input"] = {"text": "hi"}
    result = {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "is_error": True, "content": []}
    answer = fake_anthropic.answers(fake_anthropic.block(0, call), fake_anthropic.block(1, result))
    async with serving("anthropic", answer) as (_, made), Agent("s", llm_provider=made) as agent:
        turn = agent.execute_turn("Echo.")
        (end,) = [event async for event in turn if isinstance(event, ServerToolEnd)]
    assert (end.tool_name, end.args, end.is_error) == ("echo", {"text": "hi"}, True)


async def test_chat_completions_name_sources_the_answer_and_its_reasoning():
    """Annotations as OpenAI's and OpenRouter's search sends them, in chunks of their own."""
    cited = {"type": "url_citation", "url_citation": {"url": "https://a.test", "title": "A"}}
    usage = {**fake_openai.USAGE, "completion_tokens_details": {"reasoning_tokens": 3}}
    pieces = [
        chunk({"content": "Sunny."}),
        chunk({"annotations": [cited]}),
        chunk(finish="stop"),
        chunk(usage=usage),
        DONE,
    ]
    async with serving("completions", Answer(pieces=pieces)) as (_, made):
        message = (await play(made, ASK))[-1].message
    source = Citation(url="https://a.test", title="A", raw=cited)
    assert message.content == (TextContent("Sunny.", citations=(source,)),)
    assert (message.response_id, message.usage.reasoning) == ("chatcmpl-1", 3)


async def test_an_item_that_no_store_takes_is_noted_and_not_sent_back():
    """A NUL is replaced; too large an item becomes a note."""
    huge = {**SEARCH, "action": {"type": "search", "query": "x" * (5 * 1024 * 1024)}}
    nul = {**NEW_KIND, "result": "a\0b"}
    answer = fake_responses.answers(item(0, huge), item(1, nul), fake_responses.speaks(2, "ok"))
    async with (
        serving("responses", answer, says("responses", "Yes.")) as (server, made),
        Agent("huge", llm_provider=made) as agent,
    ):
        result = await agent.execute_turn("Search.")
        assert result.outcome == "completed", result.error
        first, second, _ = result.messages[-1].content
        assert first.item["omitted"] == "it was too large to be stored"
        assert second.item["result"] == "a\ufffdb"
        assert (await agent.execute_turn("More.")).outcome == "completed"
    assert "web_search_call" not in json.dumps(server.received[1].body["input"])


async def test_requests_with_and_without_these_blocks_stay_the_same_bytes():
    """A history that is rendered twice is the same; what was sent grows at its end."""
    said = AssistantMessage(ANTHROPIC, provider="anthropic", model=fake_anthropic.MODEL)
    history = [UserMessage("?"), said, UserMessage("so?")]
    more = [*history, AssistantMessage("ok"), UserMessage("and?")]
    async with serving("anthropic", says("anthropic", "1"), says("anthropic", "2")) as (served, a):
        await play(a, LLMRequest(messages=history))
        await play(a, LLMRequest(messages=more))
    first, second = (r.body["messages"] for r in served.received)  # neither was refused
    assert json.dumps(second[1]) == json.dumps(first[1])
