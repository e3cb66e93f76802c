"""`TurnResult.iterations`: what each model call said, what it had done, and how it ended."""

from __future__ import annotations

from dataclasses import replace

from tests.agent.kit import Gate, add, boom

from looopy import ExecutedCall
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import StopReason, ThinkingContent, Usage


class Thinker(ScriptedProvider):
    """Thinks before each answer."""

    async def stream(self, request, options=None):
        """As scripted; the thought comes with the final message."""
        async for event in super().stream(request, options):
            if event.message is None:
                yield event
                continue
            content = (ThinkingContent("hm"), *event.message.content)
            yield replace(event, message=replace(event.message, content=content))


async def test_each_iteration_has_text_calls_results_and_usage(make_agent, stores):
    """Text, thinking, calls with arguments, results and duration, why it ended, and usage."""
    provider = Thinker(
        [(text("let me see"), tool_call("add", a=1, b=2), tool_call("BOOM")), text("3")]
    )
    agent = await make_agent(provider, tools=[add, boom], stores=stores)
    result = await agent.execute_turn("1 + 2?", idempotency_key="k")
    first, last = result.iterations
    assert (first.text, first.thinking, last.text) == ("let me see", "hm", "3")
    assert (first.finish_reason, last.finish_reason) == (StopReason.TOOL_USE, StopReason.STOP)
    good, bad = first.calls
    assert (good.name, good.arguments, good.result.text) == ("add", {"a": 1, "b": 2}, "3")
    assert (bad.name, bad.arguments, bad.result.tool_name) == ("BOOM", {}, "boom")
    assert (good.is_error, bad.is_error) == (False, True)
    assert all(call.duration_s > 0 and call.started is not None for call in first.calls)
    assert [call.call_id for call in first.calls] == [c.id for c in first.message.tool_calls]
    assert [call.result for call in first.calls] == list(first.tool_results)
    assert last.calls == ()
    assert sum((i.usage for i in result.iterations), Usage()) == result.usage
    assert result.usage.total_tokens > 0
    assert result.text == last.text
    again = await make_agent(stores=stores)  # read back from what is stored
    seen = await again.execute_turn("1 + 2?", idempotency_key="k")
    assert [i.message for i in seen.iterations] == [i.message for i in result.iterations]
    assert [[c.result for c in i.calls] for i in seen.iterations] == [[good.result, bad.result], []]
    assert [c.arguments for c in seen.iterations[0].calls] == [{"a": 1, "b": 2}, {}]
    assert seen.iterations[0].calls[0].duration_s > 0


async def test_a_call_that_never_ran_took_no_time(make_agent, stores):
    """Of a turn that was cancelled; what the model had said by then is there."""
    gate = Gate()
    agent = await make_agent(
        [(tool_call("gate"), tool_call("gate"))], tools=[gate.tool], stores=stores
    )
    stream = agent.execute_turn("go")
    await gate.entered.wait()
    stream.cancel()
    [only] = (await stream).iterations
    ran, not_run = only.calls
    assert isinstance(ran, ExecutedCall)
    assert ran.started is not None
    assert (not_run.started, not_run.duration_s, not_run.is_error) == (None, 0.0, True)


async def test_a_conversation_continues_with_all_earlier_messages(make_agent, stores):
    """The next turn's model sees the user's words, the calls and their results; usage adds up."""
    provider = ScriptedProvider([tool_call("add", a=1, b=2), text("3"), text("as I said")])
    agent = await make_agent(provider, tools=[add], stores=stores)
    first = await agent.execute_turn("1 + 2?")
    second = await agent.execute_turn("sure?")
    seen = provider.requests[-1].messages
    assert [m.role for m in seen] == ["user", "assistant", "toolResult", "assistant", "user"]
    assert seen[2] == first.iterations[0].calls[0].result
    assert agent.state.usage == first.usage + second.usage
