"""A provider whose model writes its thoughts into its text, as one that keeps them apart."""

from __future__ import annotations

import pytest
from tests.agent.kit import add, assert_whole, collect
from tests.agent.model_kit import HANGS, StepByStep

from looopy.errors import ConfigurationError, LLMError
from looopy.llm import ThoughtTags
from looopy.llm.accumulate import Accumulator
from looopy.llm.thoughts import without_tags
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.message import (
    AssistantMessage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions

ASK = LLMRequest(messages=[UserMessage("go")])
SAID = "Well, <think>\nlet me see\n</think> it is <analysis>2 + 3</analysis>five."


async def play(provider):
    """All events of one call."""
    return [e async for e in provider.stream(ASK, StreamOptions())]


def rebuilt(events):
    """The blocks that a reader of the events alone would know, by their place."""
    made = {}
    for event in events:
        kind, _, what = event.type.partition("_")
        if what == "start":
            assert event.content_index == len(made)
            made[event.content_index] = (kind, "")
        elif what == "delta":
            known, so_far = made[event.content_index]
            assert known == kind
            made[event.content_index] = (kind, so_far + event.delta)
        elif what == "end" and kind != "toolcall":
            assert made[event.content_index] == (kind, event.delta)
    return [made[place] for place in sorted(made)]


def as_blocks(message):
    """The same of a message."""
    return [
        ("text", b.text)
        if isinstance(b, TextContent)
        else ("thinking", b.thinking)
        if isinstance(b, ThinkingContent)
        else ("toolcall", b.name)
        for b in message.content
    ]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_thoughts_come_apart_live_and_in_the_message(size):
    """Blocks in order, each with its start, deltas and end; the events and the message agree."""
    provider = ThoughtTags(ScriptedProvider([text(SAID)], chunk_chars=size))
    events = await play(provider)
    assert rebuilt(events) == as_blocks(events[-1].message) == [
        ("text", "Well, "),
        ("thinking", "let me see"),
        ("text", "it is "),
        ("thinking", "2 + 3"),
        ("text", "five."),
    ]  # fmt: skip
    assert (events[0].type, events[-1].type) == ("start", "done")


async def test_a_turn_shows_and_stores_them_apart(make_agent, stores):
    """Readers of deltas see no thought; the next request carries none; tools run as ever."""
    model = ScriptedProvider(
        [(text("<think>Add.</think>Adding."), tool_call("add", a=2, b=3)), text("It is 5.")],
        chunk_chars=2,
    )
    agent = await make_agent(ThoughtTags(model), tools=[add], stores=stores)
    stream = agent.execute_turn("2 + 3?")
    events, result = await collect(stream), await stream
    shown = "".join(e.delta for e in events if e.type == "message_update")
    assert shown == "Adding.It is 5."
    first = result.messages[1]
    assert (first.thinking_text, first.text) == ("Add.", "Adding.")
    assert [c.name for c in first.tool_calls] == ["add"]
    assert as_blocks(model.requests[1].messages[1]) == [("text", "Adding."), ("toolcall", "add")]
    await assert_whole(stores)


async def test_the_message_so_far_has_them_apart():
    """Whoever looks while it grows, and what a cancelled turn keeps."""
    provider = ThoughtTags(ScriptedProvider([text(SAID)], chunk_chars=4))
    seen = [
        (event.partial.text, as_blocks(event.partial.snapshot()))
        async for event in provider.stream(ASK)
        if event.type == "text_delta"
    ]
    assert not [text for text, _ in seen if "let me" in text]
    assert seen[-1][0].startswith("Well, \nit is \nfiv")
    assert ("thinking", "let me see") in seen[-1][1]


async def test_a_cancelled_turn_keeps_the_text_alone(make_agent, stores):
    """Half a thought is none."""
    model = StepByStep(["<think>Hm.</think>It is", "<think>or not", HANGS])
    agent = await make_agent(ThoughtTags(model), stores=stores)
    stream = agent.execute_turn("go")
    await model.hanging.wait()
    stream.cancel()
    assert [m.text for m in (await stream).messages] == ["go", "It is"]
    await assert_whole(stores)


async def test_a_failed_call_keeps_the_received_text():
    """Thoughts apart there, too."""
    provider = ThoughtTags(ScriptedProvider([(text("<think>a</think>b"), failure(LLMError("no")))]))
    last = (await play(provider))[-1]
    assert (last.type, str(last.error)) == ("error", "no")
    assert (last.message.thinking_text, last.message.text) == ("a", "b")


class Blocks:
    """Plays an answer of every kind of block."""

    name = model = "blocks"
    window_tokens = 1234

    async def stream(self, request, options=None):
        """Thinking, text with tags, two calls whose pieces alternate."""
        answer = Accumulator(api="x", provider="x", model="x")
        events = [*answer.start(), *answer.thinking_delta("first", signature="s")]
        events += answer.text_delta("a<think>b</think>")
        events += answer.tool_call(0, call_id="c0", name="add", arguments_delta="{")
        events += answer.tool_call(1, call_id="c1", name="sub", arguments_delta="{")
        events += answer.tool_call(0, arguments_delta="}")
        events += answer.tool_call(1, arguments_delta="}")
        events += answer.done(StopReason.STOP)
        for event in events:
            yield event


async def test_other_blocks_pass_at_their_new_places():
    """Calls and the provider's own thinking, with what signs them."""
    events = await play(ThoughtTags(Blocks()))
    message = events[-1].message
    assert message.content == (
        ThinkingContent("first", thinking_signature="s"),
        TextContent("a"),
        ThinkingContent("b"),
        ToolCall("c0", "add"),
        ToolCall("c1", "sub"),
    )
    assert [kind for kind, _ in rebuilt(events)] == [k for k, _ in as_blocks(message)]
    ends = [(e.content_index, e.tool_call.name) for e in events if e.type == "toolcall_end"]
    assert ends == [(3, "add"), (4, "sub")]


async def test_attributes_of_the_wrapped_provider_are_passed_through():
    """Its name and window, and what it has not stays missing."""
    provider = ThoughtTags(Blocks())
    assert (provider.name, provider.window_tokens) == ("blocks", 1234)
    assert not hasattr(provider, "prepare")


async def test_an_answer_may_begin_within_a_thought():
    """For prompts that end in the opening tag."""
    provider = ThoughtTags(ScriptedProvider([text("Hm.</think>Yes.")]), inside="think")
    message = (await play(provider))[-1].message
    assert (message.thinking_text, message.text) == ("Hm.", "Yes.")


def test_a_message_without_tags_is_the_same_object():
    """And one that is split loses the signature of its text."""
    plain = AssistantMessage([TextContent("a", text_signature="s"), ToolCall("c", "add")])
    assert without_tags(plain) is plain
    split = without_tags(AssistantMessage([TextContent("<think>a</think>b", text_signature="s")]))
    assert split.content == (ThinkingContent("a"), TextContent("b"))


@pytest.mark.parametrize(
    "options",
    [{"tags": ["<think>"]}, {"tags": []}, {"tags": "think"}, {"tags": [""]}, {"inside": "b"}],
)
def test_an_invalid_tag_is_refused(options):
    """At once."""
    with pytest.raises(ConfigurationError):
        ThoughtTags(ScriptedProvider([]), **options)
