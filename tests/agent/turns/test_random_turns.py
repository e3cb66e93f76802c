"""Whatever turns a context has been through, a fresh agent finds it whole."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.kit import add, assert_whole, boom, look

from looopy import Agent, LoopConfig, RetryPolicy, open_stores, tool
from looopy.errors import LLMError, LLMUnavailable, LooopyError
from looopy.history.window import visible
from looopy.llm.render import render
from looopy.testing import ScriptedProvider, failure, text, tool_call


@tool(effects="idempotent")
async def slow() -> str:
    """Take a few rounds of the loop."""
    for _ in range(5):
        await asyncio.sleep(0)
    return "slowly"


TOOLS = [add, look, boom, slow]
calls = st.sampled_from(
    [
        tool_call("add", a=1, b=2),
        tool_call("add", a="one"),
        tool_call("look"),
        tool_call("boom"),
        tool_call("slow"),
        tool_call("nosuch"),
    ]
)
words = st.sampled_from([text("yes"), text(""), text("a\x00b"), text("x" * 300)])
failures = st.sampled_from([failure(LLMError("no")), failure(LLMUnavailable)])
replies = st.one_of(
    words,
    calls,
    failures,
    st.tuples(words, calls),
    st.tuples(calls, calls),
    st.tuples(words, failures),
    st.lists(calls, min_size=3, max_size=5).map(tuple),
)
turns = st.fixed_dictionaries(
    {
        "said": st.sampled_from(["go", "again", None]),
        "replies": st.lists(replies, min_size=1, max_size=5),
        "cancel_at": st.one_of(st.none(), st.integers(0, 60)),
        "by_task": st.booleans(),
        "fresh": st.booleans(),
        "auto_save": st.booleans(),
    }
)
CONFIG = LoopConfig(retry=RetryPolicy(base_s=0, attempts=1), max_iterations=4, max_tool_calls=6)
NARROW = replace(CONFIG, max_messages=5)


async def play(script, config):
    """Run the turns of *script* on one context; check it after each."""
    async with open_stores("memory:") as stores:
        agent, accepted = None, 0
        for turn in script:
            if agent is not None and (turn["fresh"] or agent.auto_save != turn["auto_save"]):
                await agent.shutdown()
                agent = None
            if agent is None:
                agent = Agent(
                    "ada",
                    llm_provider=ScriptedProvider([]),
                    tools=TOOLS,
                    stores=stores,
                    loop_config=config,
                    auto_save=turn["auto_save"],
                )
                await agent.start()
            agent._core.resources.provider = ScriptedProvider(turn["replies"])
            accepted += await one(agent, turn)
            assert_shown(agent)
            assert agent.state.turn_count == accepted
        await agent.shutdown()
        if accepted:
            await assert_whole(stores)
        last = Agent(
            "ada",
            llm_provider=ScriptedProvider([text("here")]),
            tools=TOOLS,
            stores=stores,
            loop_config=config,
        )
        async with last:
            assert last.state.turn_count == accepted
            assert (await last.execute_turn("still there?")).text == "here"
        await assert_whole(stores)


def assert_shown(agent):
    """What is kept of the last call equals what would be chosen and rendered from scratch."""
    known, provider = agent._core.known, agent._core.resources.provider
    reader = {"provider": provider.name, "model": provider.model}
    shown = known.view.of(agent.loop_config, **reader)
    assert shown == render(visible(known.history, agent.loop_config), **reader)


async def one(agent, turn):
    """Run one turn; 1 if it was accepted."""
    stream = agent.execute_turn(turn["said"])
    [task] = [task for task in agent._core.turns._tasks if not task.done()]
    rounds = 0
    while not task.done():
        if rounds == turn["cancel_at"]:
            if turn["by_task"]:
                task.cancel()
            else:
                stream.cancel()
        rounds += 1
        await asyncio.sleep(0)
    try:
        result = await stream
    except LooopyError:
        return 0
    assert [e.type async for e in stream].count("turn_end") == 1
    assert result.outcome == "completed" or result.stop_reason != "stop"
    return 1


@settings(max_examples=int(os.environ.get("LOOOPY_EXAMPLES", "60")), deadline=None, database=None)
@given(st.lists(turns, min_size=1, max_size=6), st.sampled_from([CONFIG, NARROW]))
def test_a_context_is_whole_after_any_turns(script, config):
    """Text, tools, failures and cancellations, saved at once or later, by one agent or several."""
    asyncio.run(play(script, config))
