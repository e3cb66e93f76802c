"""The same request for the same history, whether an agent lives long or is opened for each turn."""

from __future__ import annotations

import bisect
import itertools
import json

import pytest
from tests.agent.kit import add

from looopy import Agent, LoopConfig
from looopy.llm.openai.chat import to_body
from looopy.testing import ScriptedProvider, text, tool_call

TURNS = 64
SCRIPT = [  # of three turns
    text("It is so, as far as anybody knows."),
    tool_call("add", a=1, b=2),
    text("Three."),
    text("No."),
]


async def bodies(stores, context_id, config, *, reopened, turns=TURNS, compact_at=()):
    """What is sent in each call of many turns, as bytes; *reopened*: by an agent for each turn."""
    model = ScriptedProvider(SCRIPT, repeat=True)
    sent = []
    original = model.stream

    def stream(request, options):
        body, _ = to_body(request, options, provider="p", model="m", official=False)
        sent.append(json.dumps(body["messages"]).encode())
        return original(request, options)

    model.stream = stream
    agent = None
    for n in range(turns):
        if agent is None or reopened:
            agent = Agent(
                context_id, llm_provider=model, tools=[add], stores=stores, loop_config=config
            )
            await agent.start()
        await agent.execute_turn(f"Is it so, for the {n}th time?")
        if n in compact_at:
            model.stream, kept = ScriptedProvider([text("It was so.")]).stream, stream
            assert await agent.compact(keep_turns=9) is not None
            model.stream = kept
        if reopened:
            await agent.shutdown()
    await agent.shutdown()
    return sent


def repeated(sent):
    """The share of what is sent that the request before began with as well."""
    same = 0
    for before, after in itertools.pairwise(sent):
        same += bisect.bisect_left(
            range(len(after)), 1, key=lambda n, a=after, b=before: not b.startswith(a[: n + 1])
        )
    return same / sum(map(len, sent[1:]))


@pytest.mark.timeout(240)  # hundreds of agents are opened
@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        pytest.param({"max_messages": 50}, TURNS, id="messages"),
        pytest.param({"history_tokens": 700}, TURNS, id="tokens"),
        pytest.param({"history_tokens": 3_600}, 240, id="many tokens", marks=pytest.mark.long),
    ],
)
async def test_an_agent_per_turn_sends_the_requests_of_a_long_lived_one(stores, limits, turns):
    """Byte for byte, dozens of turns beyond the window."""
    config = LoopConfig(**{"history_tokens": None, **limits})
    live = await bodies(stores, "live", config, reopened=False, turns=turns)
    anew = await bodies(stores, "anew", config, reopened=True, turns=turns)
    assert live[-1][:80] != live[0][:80]  # the beginning is not shown
    assert anew == live
    # Where hundreds of messages fit, the cut moves once in dozens of turns.
    cached = 0.9 if limits.get("history_tokens") == 3_600 else 0.7
    assert repeated(live) == repeated(anew) >= cached


@pytest.mark.timeout(240)
async def test_after_a_summary_an_agent_for_each_turn_sends_the_same(stores):
    """Which is far behind the window when the last turn is taken."""
    config = LoopConfig(history_tokens=700)
    kept = {"compact_at": (30, 45)}
    live = await bodies(stores, "live", config, reopened=False, **kept)
    anew = await bodies(stores, "anew", config, reopened=True, **kept)
    assert b"It was so." in live[-1]
    assert anew == live


async def test_a_history_that_was_let_go_is_cut_where_it_was(memory_stores):
    """What an agent keeps in memory does not move the cut."""
    config = LoopConfig(history_tokens=700)
    agent = Agent(
        "ada",
        llm_provider=ScriptedProvider([text("No.")], repeat=True),
        stores=memory_stores,
        loop_config=config,
    )
    await agent.start()
    for n in range(241):  # not a multiple of the steps that the cut moves in
        await agent.execute_turn(f"Is it so, for the {n}th time?")
    known = agent._core.known
    options = {"provider": "p", "model": "m", "window_tokens": None}
    before = list(known.view.of(config, **options))
    length = len(known.history)
    known._trim()
    assert len(known.history) < length
    assert list(known.view.of(config, **options)) == before
    await agent.shutdown()
