"""The scripted model plays what a test wrote, and says when it cannot."""

from __future__ import annotations

import asyncio

import pytest

from looopy.errors import LLMError, LLMUnavailable, RateLimited
from looopy.llm.provider import LLMProvider
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.message import StopReason, ToolCall, UserMessage
from looopy.types.request import LLMRequest, StreamOptions


def ask(words="hello"):
    return LLMRequest(messages=[UserMessage(words)])


async def play(provider, request=None):
    """All events of one call."""
    return [e async for e in provider.stream(request or ask(), StreamOptions())]


async def test_replies_are_played_in_order():
    """Text, a call, several of both in one response."""
    provider = ScriptedProvider(
        [
            text("hi"),
            tool_call("add", a=1, b=2),
            (text("both:"), tool_call("add", a=3), tool_call("now")),
        ]
    )
    assert isinstance(provider, LLMProvider)
    first, second, third = [(await play(provider))[-1].message for _ in range(3)]
    assert (first.text, first.stop_reason) == ("hi", StopReason.STOP)
    assert second.tool_calls == [ToolCall("call_1", "add", {"a": 1, "b": 2})]
    assert second.stop_reason == StopReason.TOOL_USE
    assert third.text == "both:"
    assert [(c.id, c.name) for c in third.tool_calls] == [("call_2", "add"), ("call_3", "now")]
    provider.assert_exhausted()


async def test_a_tool_may_have_an_argument_called_name():
    """The tool's own name is positional."""
    message = (await play(ScriptedProvider([tool_call("greet", name="Ada")])))[-1].message
    assert message.tool_calls[0].arguments == {"name": "Ada"}


async def test_requests_are_kept_as_they_were_sent():
    """A list that grows later does not change what was recorded."""
    provider = ScriptedProvider([text("a")])
    request = ask()
    await play(provider, request)
    request.messages.append(UserMessage("later"))
    assert [m.text for m in provider.requests[0].messages] == ["hello"]
    assert len(provider.options) == 1


async def test_a_function_answers_the_request():
    """Alone for every call, within a list for one; it may be a coroutine function."""

    async def later(request):
        return text("later " + request.messages[-1].text)

    echo = ScriptedProvider(lambda r: (text(r.messages[-1].text),))
    assert [(await play(echo, ask(w)))[-1].message.text for w in "ab"] == ["a", "b"]
    echo.assert_exhausted()
    once = ScriptedProvider([later])
    assert (await play(once))[-1].message.text == "later hello"


async def test_a_failing_function_is_a_failed_call():
    """Also one that returns no reply: the provider itself never raises."""
    provider = ScriptedProvider([lambda _: 1 / 0, lambda _: "bare"])
    for part in ("ZeroDivisionError", "is not a reply"):
        last = (await play(provider))[-1]
        assert (last.type, part in str(last.error)) == ("error", True)
        assert not last.error.retryable


@pytest.mark.parametrize("error", [RateLimited, RateLimited("slow"), LLMUnavailable])
async def test_a_failure_ends_the_call_as_itself(error):
    """A class or an instance of the tree."""
    last = (await play(ScriptedProvider([failure(error)])))[-1]
    assert isinstance(last.error, error if isinstance(error, type) else type(error))
    assert last.error.retryable
    assert last.message.stop_reason == StopReason.ERROR


async def test_any_other_failure_is_not_retried():
    """It is wrapped, with its cause."""
    cause = ValueError("odd")
    last = (await play(ScriptedProvider([failure(cause)])))[-1]
    assert type(last.error) is LLMError
    assert not last.error.retryable
    assert last.error.__cause__ is cause
    assert "ValueError: odd" in str(last.error)


async def test_a_failure_within_a_response_keeps_the_received_content():
    """The text before it is there, the call before it is not."""
    provider = ScriptedProvider([(text("half"), tool_call("rm"), failure(LLMUnavailable))])
    message = (await play(provider))[-1].message
    assert (message.text, message.tool_calls) == ("half", [])


async def test_a_call_after_the_end_of_the_script_raises():
    """The call fails with a sentence that counts."""
    provider = ScriptedProvider([text("only")])
    await play(provider)
    last = (await play(provider))[-1]
    assert last.type == "error"
    assert "model call 2" in str(last.error)


async def test_a_script_may_repeat():
    """It starts over, and call ids go on."""
    provider = ScriptedProvider([tool_call("t"), text("x")], repeat=True)
    messages = [(await play(provider))[-1].message for _ in range(4)]
    assert [m.text for m in messages] == ["", "x", "", "x"]
    assert [c.id for m in messages for c in m.tool_calls] == ["call_1", "call_2"]


async def test_chunks_have_the_size_that_was_asked():
    """Text and arguments alike; by default all comes in one."""
    lines = (text("abcde"), tool_call("t", a=1))
    whole = await play(ScriptedProvider([lines]))
    cut = await play(ScriptedProvider([lines], chunk_chars=2))
    assert [e.delta for e in whole if e.type.endswith("_delta")] == ["abcde", '{"a": 1}']
    assert [e.delta for e in cut if e.type == "text_delta"] == ["ab", "cd", "e"]
    assert [e.delta for e in cut if e.type == "toolcall_delta"] == ['{"', 'a"', ": ", "1}"]


async def test_the_delay_can_be_cancelled():
    """A slow answer stops where its reader is cancelled."""
    provider = ScriptedProvider([text("never")], delay_s=3600)
    started = asyncio.Event()

    async def read():
        async for _ in provider.stream(ask()):
            started.set()

    reading = asyncio.create_task(read())
    await started.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_usage_is_plausible():
    """Four characters are a token, in and out."""
    usage = (await play(ScriptedProvider([text("x" * 40)]), ask("y" * 20)))[-1].message.usage
    assert (usage.input, usage.output, usage.total_tokens) == (5, 10, 15)


async def test_left_over_lines_fail_the_test():
    """On leaving the context manager, either kind; an error on its way is not hidden."""
    with pytest.raises(AssertionError, match="1 of 1"), ScriptedProvider([text("x")]):
        pass
    with pytest.raises(AssertionError, match="1 of 2"):
        async with ScriptedProvider([text("x"), text("y")]) as provider:
            await play(provider)
    with pytest.raises(KeyError), ScriptedProvider([text("x")]):
        raise KeyError


@pytest.mark.parametrize("replies", [["text"], [("a",)], [None], [3]])
def test_an_invalid_reply_is_refused_at_once(replies):
    """Where the script is written."""
    with pytest.raises(TypeError, match="is not a reply"):
        ScriptedProvider(replies)
