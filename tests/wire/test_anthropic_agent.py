"""Whole turns with Anthropic's API: over restarts, failures and cancellation, on SQLite."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from tests.loop_time import advance
from tests.wire.fake_anthropic import (
    MODEL,
    FakeAnthropic,
    answers,
    calls,
    event,
    redacted,
    refuses,
    says,
    sign,
    started,
    text,
    thinks,
)
from tests.wire.fake_openai import CUT, HOLD, Answer

from looopy import Agent, AuthContext, Hooks, LoopConfig, RetryPolicy, ThinkingLevel
from looopy.errors import HistoryRejected, LLMUnavailable, MissingKey
from looopy.llm.anthropic.provider import AnthropicProvider
from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    StopReason,
    ThinkingContent,
    ToolResultMessage,
)
from looopy.types.state import AgentStatus

AT_ONCE = RetryPolicy(attempts=2, base_s=0)
THINKING = LoopConfig(thinking_level=ThinkingLevel.LOW, retry=AT_ONCE)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@asynccontextmanager
async def opened(server, url, *, config=THINKING, tools=(add,), model=MODEL, **options):
    """An agent of its own process, as far as it knows: nothing is shared but the database."""
    provider = AnthropicProvider(model, base_url=server.url, **options)
    agent = Agent(
        "ada",
        llm_provider=provider,
        tools=tools,
        stores=url,
        loop_config=config,
        system_prompt="Be brief.",
    )
    try:
        async with agent:
            yield agent
    finally:
        await provider.aclose()


@pytest.fixture
def url(tmp_path):
    """A database of the test's own."""
    return f"sqlite:///{tmp_path}/chat.db"


def bodies(server):
    """What was asked, without the marks for the cache."""

    def unmarked(part):
        return {name: value for name, value in part.items() if name != "cache_control"}

    return [json.loads(json.dumps(r.body), object_hook=unmarked) for r in server.received]


def adds(index=0, call_id="toolu_1"):
    """A call of the tool."""
    return calls(index, call_id, "add", '{"a": 2,', ' "b": 3}')


async def test_thoughts_survive_a_restart_byte_for_byte(url):
    """Thinking, withheld and shown, is stored with its signature; another process sends it back."""
    first = answers(
        thinks(0, "two and three 🙂"), redacted(1), text(2, "I add."), adds(3), reason="tool_use"
    )
    async with FakeAnthropic(first, says("5"), says("as I said")) as server:
        async with opened(server, url) as agent:
            result = await agent.execute_turn("2 + 3?")
            assert (result.text, result.outcome) == ("5", "completed")
        async with opened(server, url) as agent:
            stored = (await agent.get_messages())[1]
            result = await agent.execute_turn("sure?")
            assert result.raise_for_outcome().text == "as I said"
    thought = ThinkingContent(
        "two and three 🙂", thinking_signature=sign("two and three 🙂", MODEL)
    )
    hidden = ThinkingContent(thinking_signature=sign("", MODEL), redacted=True)
    assert list(stored.content[:2]) == [thought, hidden]
    within, after = (body["messages"][1]["content"] for body in bodies(server)[1:])
    assert within == after
    assert within[:2] == [
        {
            "type": "thinking",
            "thinking": thought.thinking,
            "signature": thought.thinking_signature,
        },
        {"type": "redacted_thinking", "data": hidden.thinking_signature},
    ]


async def test_an_interrupted_turn_continues_in_another_process(url):
    """The tool was called and ran; the process went before the model answered."""
    script = [answers(thinks(0, "hm"), adds(1), reason="tool_use"), Answer(gate=asyncio.Event())]
    async with FakeAnthropic(*script) as server:
        async with opened(server, url) as agent:
            turn = agent.execute_turn("2 + 3?")
            while len(server.received) < 2:
                server.asked.clear()
                await server.asked.wait()
            await agent.shutdown(cancel=True)
            assert (await turn).outcome == "cancelled"
        await server.left.wait()
        server.answers = [says("It is 5.")]
        async with opened(server, url) as agent:
            result = await agent.execute_turn(None)
    assert result.raise_for_outcome().text == "It is 5."
    last = server.received[-1].body["messages"]
    assert [m["role"] for m in last] == ["user", "assistant", "user"]
    assert last[1]["content"][0]["signature"] == sign("hm", MODEL)
    assert last[2]["content"][0]["content"][0]["text"] == "5"


async def test_each_request_is_the_beginning_of_the_next(url):
    """Over calls, turns and a restart: what the API keeps is found again."""
    script = [
        answers(thinks(0, "a"), adds(1, "t1"), reason="tool_use"),
        answers(text(0, "and"), adds(1, "t2"), adds(2, "t3"), reason="tool_use"),
        says("5"),
        says("you are welcome"),
        says("bye"),
    ]
    async with FakeAnthropic(*script) as server:
        async with opened(server, url) as agent:
            await agent.execute_turn("2 + 3?")
            await agent.execute_turn("thanks")
        async with opened(server, url) as agent:
            await agent.execute_turn("bye")
    sent = bodies(server)
    assert len(sent) == 5
    for body, longer in pairwise(sent):
        assert longer["messages"][: len(body["messages"])] == body["messages"]
        for part in ("model", "system", "tools", "thinking", "metadata"):
            assert body[part] == longer[part]


async def test_usage_of_a_turn_has_the_tokens_of_the_cache(url):
    """Of all its calls together; `input` is without them."""
    script = [answers(adds(), reason="tool_use"), says("5")]
    async with FakeAnthropic(*script) as server, opened(server, url) as agent:
        usage = (await agent.execute_turn("2 + 3?")).usage
    assert (usage.input, usage.output, usage.cache_read, usage.cache_write) == (24, 18, 800, 60)


@pytest.mark.parametrize(
    "failure",
    [
        refuses(429, "slow down", "rate_limit_error", headers={"retry-after-ms": "1"}),
        refuses(529, "Overloaded", "overloaded_error"),
        Answer(pieces=[started(), *text(0, "half an"), CUT]),
        Answer(pieces=[started(), *adds(), HOLD]),
        Answer(
            pieces=[
                started(),
                event({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}),
            ]
        ),
    ],
    ids=["429", "529", "cut", "stalled", "error within"],
)
async def test_a_passing_failure_is_tried_again(url, failure):
    """Once more, visibly; nothing of the failed attempt is in the history or was run."""
    async with (
        FakeAnthropic(failure, says("there")) as server,
        opened(server, url, idle_timeout_s=60) as agent,
    ):
        events = []
        async for event_ in agent.execute_turn("hello"):
            events.append(event_)
            if event_.type == "message_update" and len(server.received) == 1:
                advance(61)  # the one that stalls says no more
        messages = await agent.get_messages()
    assert [m.text for m in messages] == ["hello", "there"]
    assert events[-1].outcome == "completed"
    waits = [e for e in events if e.type == "status_change" and e.attempt]
    assert len(waits) == 1
    assert len(server.received) == 2


async def test_a_failure_that_stays_fails_the_turn(url):
    """After the retries; the text that had come is kept, the agent goes on."""
    cut = Answer(pieces=[started(), *text(0, "half an"), CUT])
    async with FakeAnthropic(cut, cut, cut, says("whole")) as server, opened(server, url) as agent:
        result = await agent.execute_turn("hello")
        assert result.outcome == "failed"
        assert isinstance(result.error, LLMUnavailable)
        assert (await agent.execute_turn("again")).text == "whole"
    last = server.received[-1].body["messages"]
    assert [(m["role"], m["content"][0]["text"]) for m in last] == [
        ("user", "hello"),
        ("assistant", "half an"),
        ("user", "again"),
    ]


async def test_a_refused_history_is_tried_once_without_thoughts(url):
    """The last resort before the turn fails: nothing opaque, and no thinking amid the calls."""
    refusal = refuses(400, "messages.1: Invalid `signature` in `thinking` block", "invalid_request")
    script = [answers(thinks(0, "hm"), adds(1), reason="tool_use"), refusal, says("5")]
    async with FakeAnthropic(*script) as server, opened(server, url) as agent:
        result = await agent.execute_turn("2 + 3?")
    assert result.raise_for_outcome().text == "5"
    again = server.received[2].body
    assert [b["type"] for b in again["messages"][1]["content"]] == ["tool_use"]
    assert "thinking" not in again


async def test_a_history_that_stays_refused_does_not_go_round(url):
    """Two requests, a typed error, and a context that can be used."""
    refusal = refuses(400, "messages.0: odd", "invalid_request_error")
    async with FakeAnthropic(refusal, refusal, says("ok")) as server, opened(server, url) as agent:
        result = await agent.execute_turn("hello")
        assert isinstance(result.error, HistoryRejected)
        assert (await agent.execute_turn("again")).text == "ok"
    assert len(server.received) == 3


async def test_cancelling_a_turn_is_seen_by_the_server(url):
    """The connection closes, though the server was silent; the next message works."""
    silent = Answer(pieces=[started(), *text(0, "I was"), HOLD])
    async with FakeAnthropic(silent, says("hello again")) as server, opened(server, url) as agent:
        turn = agent.execute_turn("hello")
        async for e in turn:
            if e.type == "message_update" and e.delta:
                await agent.cancel()
        await server.left.wait()
        assert (await turn).outcome == "cancelled"
        aborted = (await agent.get_messages())[-1]
        assert (aborted.text, aborted.stop_reason) == ("I was", StopReason.ABORTED)
        assert (await agent.execute_turn("and now?")).text == "hello again"


async def test_a_refusal_of_the_model_fails_the_turn(url):
    """`refusal`: the content filter, not an answer; the agent goes on."""
    refused = answers(text(0, "I can"), reason="refusal")
    async with FakeAnthropic(refused, says("ok")) as server, opened(server, url) as agent:
        result = await agent.execute_turn("something bad")
        assert (result.outcome, result.stop_reason) == ("failed", "content_filter")
        assert (await agent.execute_turn("something good")).text == "ok"


async def test_the_key_of_a_user_goes_with_each_call_and_nowhere_else(url, tmp_path):
    """`get_api_key` is asked per call; the key is on the wire and not in the store."""
    keys = iter(["sk-ant-key-of-call-one", "sk-ant-key-of-call-two"])
    hooks = Hooks(get_api_key=lambda provider, auth: f"{next(keys)}-{provider}-{auth.actor_id}")
    config = LoopConfig(hooks=hooks)
    script = [answers(adds(), reason="tool_use"), says("5")]
    async with FakeAnthropic(*script) as server, opened(server, url, config=config) as agent:
        await agent.execute_turn("2 + 3?", AuthContext(actor_id="u1"))
    assert [r.headers["authorization"] for r in server.received] == [
        "Bearer sk-ant-key-of-call-one-anthropic-u1",
        "Bearer sk-ant-key-of-call-two-anthropic-u1",
    ]
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"2 + 3?" in stored
    assert b"sk-ant-key" not in stored


async def test_the_session_and_the_options_of_a_turn_reach_the_wire(url):
    """What `LoopConfig` says of a call; the context is the session, and can change."""
    config = LoopConfig(
        temperature=0.25,
        max_tokens=5000,
        thinking_level=ThinkingLevel.HIGH,
        thinking_budgets={"high": 3000},
    )
    async with FakeAnthropic(says("a"), says("b"), says("c")) as server:
        async with opened(server, url, config=config) as agent:
            await agent.execute_turn("one")
            await agent.execute_turn("two")
        provider = AnthropicProvider(MODEL, base_url=server.url)
        async with Agent("ada-2", llm_provider=provider, stores=url) as agent:
            await agent.execute_turn("three")
        await provider.aclose()
    one, two, three = bodies(server)
    assert one["thinking"] == {"type": "enabled", "budget_tokens": 3000}
    assert one["max_tokens"] == 5000
    assert one["metadata"] == two["metadata"] != three["metadata"]


async def test_a_context_continues_with_another_model(url):
    """Thoughts stay with the model that had them; calls and results stay pairs."""
    first = answers(thinks(0, "hm"), text(1, "I add."), adds(2), reason="tool_use")
    other = "claude-opus-4-1"
    async with FakeAnthropic(first, says("5"), says("yes"), says("yes")) as server:
        async with opened(server, url) as agent:
            await agent.execute_turn("2 + 3?")
        async with opened(server, url, model=other) as agent:
            assert (await agent.execute_turn("sure?")).text == "yes"
        async with opened(server, url) as agent:
            assert (await agent.execute_turn("really?")).text == "yes"
    kinds = [[b["type"] for b in body["messages"][1]["content"]] for body in bodies(server)[2:]]
    assert kinds == [["text", "tool_use"], ["thinking", "text", "tool_use"]]


async def test_a_model_by_name_needs_its_key_at_the_start(url, monkeypatch):
    """Before anything is asked; or a hook that brings one with each call."""
    with pytest.raises(MissingKey, match="ANTHROPIC_API_KEY"):
        await Agent("ada", llm_provider=f"anthropic/{MODEL}", stores=url).start()
    async with FakeAnthropic(says("hi")) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        config = LoopConfig(hooks=Hooks(get_api_key=lambda *_: "theirs"))
        named = f"anthropic/{MODEL}"
        async with Agent("ada", llm_provider=named, stores=url, loop_config=config) as agent:
            assert (await agent.execute_turn("hello")).text == "hi"
            assert agent.state.status == AgentStatus.READY
    assert server.received[0].headers["authorization"] == "Bearer theirs"


async def test_a_tool_may_show_a_picture(url):
    """An image in a result is one on the wire, in its place."""

    def look() -> ImageContent:
        """Look."""
        return ImageContent("aW1n", mime_type="image/png")

    script = [answers(calls(0, "t1", "look"), reason="tool_use"), says("a cat")]
    async with FakeAnthropic(*script) as server, opened(server, url, tools=[look]) as agent:
        await agent.execute_turn("what is it?")
        kinds = [type(m) for m in await agent.get_messages()]
    assert kinds[1:3] == [AssistantMessage, ToolResultMessage]
    shown = bodies(server)[1]["messages"][2]["content"][0]["content"]
    assert [part["type"] for part in shown] == ["image"]
