"""What the bare loop is told while it runs: asked of two functions, said in order, never lost."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tests.shares import split

from looopy import LoopConfig, ToolContext, TurnContext, agent_loop, agent_loop_continue, tool
from looopy.errors import ValueRefused
from looopy.llm.render import CANCELLED
from looopy.loop.incoming import as_user_message
from looopy.stores.rows.writing import message_text
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types import storable
from looopy.types.message import CustomMessage, TextContent, ToolResultMessage, UserMessage
from looopy.types.storable import MAX_BODY_BYTES, SURELY_SHORT

SKIPPED = "Skipped due to queued user message."


def looking(ran):
    """A tool that notes what it was asked."""

    @tool
    def look(n: int) -> str:
        """Look at something."""
        ran.append(n)
        return f"saw {n}"

    return look


def queue(*batches):
    """A function that hands these over, one at each call, and counts its calls."""
    left = list(batches)

    def get():
        get.asked += 1
        return left.pop(0) if left else None

    get.asked = 0
    return get


async def run(provider, said="go", *, loop=agent_loop, **options):
    """The events of a turn, and what it added, as role and text."""
    given = {"messages": [UserMessage(said)]} if loop is agent_loop_continue else {}
    start = (said,) if loop is agent_loop else ()
    events = [e async for e in loop(*start, llm_provider=provider, **given, **options)]
    return events, [f"{m.role}: {getattr(m, 'text', '')}" for m in events[-1].messages]


def test_steering_skips_the_remaining_calls_and_comes_next():
    """Asked before each tool; one that has not started gives way."""
    ran = []
    provider = ScriptedProvider(
        [tuple(tool_call("look", n=n) for n in range(3)), text("fine"), text("bye")]
    )
    asked = []

    def get():
        asked.append(len(ran))
        return "stop" if ran and "told" not in asked and not asked.append("told") else None

    async def main():
        return await run(provider, tools=[looking(ran)], get_steering_messages=get)

    events, said = asyncio.run(main())
    assert ran == [0]
    assert said == [
        "user: go",
        "assistant: ",
        "toolResult: saw 0",
        f"toolResult: {SKIPPED}",
        f"toolResult: {SKIPPED}",
        "user: stop",
        "assistant: fine",
    ]
    ends = [e for e in events if e.type == "tool_execution_end"]
    assert [e.is_error for e in ends] == [False, True, True]
    assert sum(e.type == "tool_execution_start" for e in events) == 3
    assert [m.text for m in provider.requests[1].messages][-1] == "stop"


@pytest.mark.parametrize("loop", [agent_loop, agent_loop_continue])
async def test_messages_queued_at_the_start_precede_the_first_model_call(loop):
    """Steering at once, follow-ups where the turn would end; each batch is a round."""
    provider = ScriptedProvider([text("1"), text("2"), text("3")])

    async def steering():
        return get()

    get = queue(["a", UserMessage("b")])
    events, said = await run(
        provider,
        loop=loop,
        get_steering_messages=steering,
        get_follow_up_messages=queue("c", None, "never asked for"),
    )
    spoken = ["user: a", "user: b", "assistant: 1", "user: c", "assistant: 2"]
    assert said == ["user: go", *spoken][loop is agent_loop_continue :]
    order = [e.type for e in events if e.type != "message_update"]
    first = order.index("iteration_start")
    expected = ["message_start", "message_end"] * (3 if loop is agent_loop else 2)
    assert order[first + 1 : first + 1 + len(expected)] == expected


async def test_follow_ups_wait_for_tools_and_steering():
    """Asked only where nothing else is left to do."""
    ran = []
    provider = ScriptedProvider([tool_call("look", n=1), text("1"), text("2"), text("3")])
    _, said = await run(
        provider,
        tools=[looking(ran)],
        get_steering_messages=lambda: "s" if ran and not ran.clear() else None,
        get_follow_up_messages=queue("f"),
    )
    assert said[2:] == [
        "toolResult: saw 1",
        "user: s",
        "assistant: 1",
        "user: f",
        "assistant: 2",
    ]


async def test_after_batch_asks_when_the_calls_are_done():
    """Nothing is skipped."""
    ran = []
    provider = ScriptedProvider([(tool_call("look", n=1), tool_call("look", n=2)), text("ok")])
    _, said = await run(
        provider,
        tools=[looking(ran)],
        config=LoopConfig(steering="after_batch"),
        get_steering_messages=lambda: "and?" if len(ran) == 2 and not ran.append(3) else None,
    )
    assert said[2:] == ["toolResult: saw 1", "toolResult: saw 2", "user: and?", "assistant: ok"]


async def test_a_handed_over_message_is_stored_though_the_turn_ends():
    """A limit, and a cancelled turn: it is the last of the turn's messages, unanswered."""
    ran = []
    _, said = await run(
        ScriptedProvider([tool_call("look", n=1)]),
        tools=[looking(ran)],
        config=LoopConfig(max_iterations=1),
        get_steering_messages=lambda: "more" if ran and not ran.clear() else None,
    )
    assert said == ["user: go", "assistant: ", "toolResult: saw 1", "user: more"]
    context = TurnContext(context_id="loop")

    def last_words():
        context.cancel.cancel()
        return "last words"

    events, said = await run(
        ScriptedProvider([]), context=context, get_steering_messages=last_words
    )
    assert said == ["user: go", "user: last words"]
    assert events[-1].stop_reason == "cancelled"


async def test_a_function_that_fails_is_a_warning():
    """As any hook: the turn goes on without."""
    said = iter([["  "], [7]])

    def blank():
        return next(said, None)

    async def broken():
        raise RuntimeError("secret")

    events, told = await run(
        ScriptedProvider([text("ok")]), get_steering_messages=blank, get_follow_up_messages=broken
    )
    warnings = [(e.code, e.text) for e in events if e.type == "warning"]
    assert warnings == [
        ("hook_failed", "get_steering_messages: ValueRefused"),
        ("hook_failed", "get_steering_messages: ValueRefused"),
        ("hook_failed", "get_follow_up_messages: RuntimeError"),
    ]
    assert told == ["user: go", "assistant: ok"]


async def test_messages_of_the_application_may_be_handed_over():
    """They are part of the turn, and the model does not see them."""
    note = CustomMessage(role="note", content="seen")
    provider = ScriptedProvider([text("ok")])
    events, _ = await run(provider, get_steering_messages=queue([note, "hi"]))
    assert [m.role for m in events[-1].messages] == ["user", "note", "user", "assistant"]
    assert [m.text for m in provider.requests[0].messages] == ["go", "hi"]
    assert not [m for m in events[-1].messages if isinstance(m, ToolResultMessage)]


async def test_a_handed_over_message_cancels_a_question():
    """Nobody answers in a bare loop what the user has answered by a message."""

    @tool
    async def ask(context: ToolContext) -> str:
        """Ask the user."""
        asked.append(1)
        return await context.ask("sure?")

    asked = []
    calls = (tool_call("ask"), tool_call("ask"))
    _, said = await run(
        ScriptedProvider([calls, text("ok")]),
        tools=[ask],
        get_steering_messages=lambda: "no" if asked and not asked.clear() else None,
    )
    assert said == [
        "user: go",
        "assistant: ",
        f"toolResult: {SKIPPED}",
        f"toolResult: {CANCELLED}",
        "user: no",
        "assistant: ok",
    ]


_LONG = "x" * SURELY_SHORT


_HUGE = "\x01" * MAX_BODY_BYTES


_WRONG = ["\0", "\ud800", "\u20ac\0", "", _LONG * 8]


@pytest.mark.parametrize(
    ("before", "wrong", "in_blocks"),
    [
        *itertools.product(["a", _LONG], _WRONG, [False, True]),
        *split([("a", _HUGE, True)], [("a", _HUGE, False), (_LONG, _HUGE, True)]),
    ],
)
def test_a_message_is_refused_as_it_would_be_when_it_is_stored(before, wrong, in_blocks):
    """A turn that begins has a message that every store takes."""
    said = before + wrong
    message = UserMessage([TextContent(said)] if in_blocks else said)
    stored = refused = None
    try:
        message_text(message)
    except ValueRefused as error:
        stored = error.path, error.message
    try:
        as_user_message(message if in_blocks else said)
    except ValueRefused as error:
        refused = error.path, error.message
    assert refused == stored
    assert (refused is None) is (wrong == "")


def test_a_message_is_serialised_by_the_store_alone(monkeypatch):
    """Once, however long it is."""
    monkeypatch.delattr(storable, "_encode")
    assert as_user_message("x" * (SURELY_SHORT - 1)).text
    assert as_user_message(UserMessage([TextContent("x" * SURELY_SHORT)])).text
