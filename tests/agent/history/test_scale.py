"""The window is measured in the tokens that the provider reports, and stays still meanwhile."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from tests.agent.history.test_prompt_cache import repeated
from tests.shares import split

from looopy import Agent, LoopConfig
from looopy.testing import ScriptedProvider, text
from looopy.types.event import TurnWarning
from looopy.types.message import Usage

LIMIT = 6_000


class Reporting(ScriptedProvider):
    """Needs *ratio* tokens for four characters, give or take an eighth from call to call."""

    def __init__(self, ratio, *, noise=0.12, model="scripted"):
        super().__init__([text("It is so. " * 12)], repeat=True)
        self.ratio, self.noise, self.model = ratio, noise, model
        self.chance = random.Random(5)
        self.sent, self.reported, self.first = [], [], []

    async def stream(self, request, options):
        said = [str(message.content) for message in request.messages]
        self.sent.append("".join(said).encode())
        self.first.append(int(request.messages[0].text.split()[0]))
        chars = sum(len(message.text) for message in request.messages)
        exact = chars * self.ratio / 4
        self.reported.append(exact)
        noisy = round(exact * (1 + self.chance.uniform(-self.noise, self.noise)))
        async for event in super().stream(request, options):
            if event.type == "done":
                usage = Usage(input=noisy // 3, cache_read=noisy - noisy // 3, output=5)
                event = replace(event, message=replace(event.message, usage=usage))  # noqa: PLW2901
            yield event


async def talk(stores, model, turns, *, reopened=False, limit=LIMIT, context_id="ada"):
    """Take turns, and return the causes of warnings about the cache."""
    causes = []

    def hear(event):
        if isinstance(event, TurnWarning) and event.code == "cache_broken":
            causes.append(event.text.rpartition(": ")[2])

    agent = None
    for n in turns:
        if agent is None or reopened:
            agent = Agent(
                context_id,
                llm_provider=model,
                stores=stores,
                loop_config=LoopConfig(history_tokens=limit),
            )
            await agent.start()
            agent.subscribe(hear)
        await agent.execute_turn(f"{n} is it so, " + "as far as you know, " * 8)
        if reopened:
            await agent.shutdown()
    await agent.shutdown()
    return causes


@pytest.mark.parametrize("ratio", split([1.7], [0.7, 1.0, 2.4]))
async def test_the_limit_holds_in_the_tokens_of_the_provider(memory_stores, ratio):
    """Neither half of it is wasted nor is it exceeded, beyond the first move and the noise."""
    model = Reporting(ratio, noise=0.0)
    await talk(memory_stores, model, range(120))
    settled = model.reported[60:]
    assert max(settled) <= LIMIT * 1.12
    assert max(settled) >= LIMIT * 0.8
    assert max(model.reported) <= LIMIT * 1.12


@pytest.mark.parametrize("ratio", split([1.7], [0.7]))
async def test_noise_moves_no_window(memory_stores, ratio):
    """It goes forward only, no more often than without noise, and 97 % of the bytes repeat."""
    moves = []
    for noise in (0.0, 0.12):
        model = Reporting(ratio, noise=noise)
        name = f"noise-{noise}"
        causes = await talk(memory_stores, model, range(240), limit=16_000, context_id=name)
        assert set(causes) <= {"the window"}
        assert model.first == sorted(model.first)
        assert repeated(model.sent) >= 0.97
        assert len(causes) == sum(a != b for a, b in itertools.pairwise(model.first))
        moves.append(len(causes))
    assert moves[1] <= moves[0] + 1


@pytest.mark.parametrize("ratio", split([1.7], [0.7]))
async def test_another_process_cuts_at_the_same_place(memory_stores, ratio):
    """It takes over the scale with the context."""
    live, anew = Reporting(ratio), Reporting(ratio)
    await talk(memory_stores, live, range(160), limit=4_000, context_id="live")
    await talk(memory_stores, anew, range(160), limit=4_000, context_id="anew", reopened=True)
    assert live.first[-1] > 0
    assert anew.first == live.first


async def test_another_model_is_measured_again(memory_stores):
    """The scale of one says nothing about the tokens of another."""
    await talk(memory_stores, Reporting(2.4, noise=0.0), range(120))
    record = await memory_stores.state.load("ada")
    used, wanted = map(int, record.state.sent.split()[5:])
    assert used == wanted > 200
    other = Reporting(1.0, noise=0.0, model="other")
    causes = await talk(memory_stores, other, range(120, 130))
    assert causes == ["the model, the window"]
    record = await memory_stores.state.load("ada")
    assert int(record.state.sent.split()[5]) == 100
