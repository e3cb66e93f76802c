"""A provider that counts tokens decides what fits; one that fails to costs no turn."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.loop_time import advance

from looopy import Agent, LoopConfig
from looopy.llm.openai import tokens
from looopy.llm.openai.provider import OpenAIProvider
from looopy.testing import ScriptedProvider, text
from looopy.types.event import TurnWarning

LIMIT = 600


class Words(ScriptedProvider):
    """Counts words, and remembers what it counted and what it was sent."""

    def __init__(self, count=None):
        super().__init__([text("It is so.")], repeat=True)
        self.counted, self.sent = [], []
        self._count = count or (lambda texts: [len(one.split()) for one in texts])

    async def count_tokens(self, texts):
        self.counted += texts
        return self._count(texts)

    async def stream(self, request, options):
        self.sent.append([message.text for message in request.messages])
        async for event in super().stream(request, options):
            yield event


async def talk(stores, model, turns, *, reopened=False, context_id="ada"):
    """Take turns, and return the warnings about the counter."""
    warnings, agent = [], None

    def hear(event):
        if isinstance(event, TurnWarning) and event.code == "tokens_not_counted":
            warnings.append(event.text)

    for n in turns:
        if agent is None or reopened:
            agent = Agent(
                context_id,
                llm_provider=model,
                stores=stores,
                loop_config=LoopConfig(history_tokens=LIMIT),
            )
            await agent.start()
            agent.subscribe(hear)
        await agent.execute_turn(f"{n} " + "interesting " * (10 + 7 * (n % 3)))
        if reopened:
            await agent.shutdown()
    await agent.shutdown()
    return warnings


def weight(messages):
    return sum(max(4 + len(said.split()), (4 + len(said) // 4) // 2) for said in messages)


async def test_the_count_decides_what_fits(memory_stores):
    """By estimate, half as much would."""
    model = Words()
    assert await talk(memory_stores, model, range(120)) == []
    assert len(model.sent[-1]) < 200
    assert min(map(weight, model.sent[60:])) >= LIMIT // 2 - 80
    assert LIMIT * 0.9 <= max(map(weight, model.sent[60:])) <= LIMIT


async def test_each_message_is_counted_once(memory_stores):
    """However often the window moves."""
    model = Words()
    await talk(memory_stores, model, range(60))
    assert len(model.counted) == 60 + 59  # the last answer was never sent


async def test_an_agent_for_each_turn_cuts_at_the_same_place(memory_stores, monkeypatch):
    """It reads as far back as the count may reach."""
    monkeypatch.setattr("looopy.agent.context._WINDOW", 8)
    live, anew = Words(), Words()
    await talk(memory_stores, live, range(90), context_id="live")
    await talk(memory_stores, anew, range(90), context_id="anew", reopened=True)
    assert live.sent[-1][0] != live.sent[0][0]
    assert anew.sent == live.sent


def _raises(texts):
    raise RuntimeError("no vocabulary")


@pytest.mark.parametrize(
    "count",
    [_raises, lambda _texts: [], lambda texts: ["4"] * len(texts), lambda texts: [-1] * len(texts)],
    ids=["raises", "too few", "text", "negative"],
)
async def test_the_estimate_is_used_if_counting_fails(memory_stores, count):
    """It is named once, and not called again; the estimate takes its place."""
    model, plain = Words(count), ScriptedProvider([text("It is so.")], repeat=True)
    (warning,) = await talk(memory_stores, model, range(30))
    assert "count_tokens failed" in warning
    assert len(model.counted) == 1
    await talk(memory_stores, plain, range(30), context_id="plain")
    assert model.sent[-1] == [message.text for message in plain.requests[-1].messages]


async def test_the_turn_continues_if_counting_hangs(memory_stores, monkeypatch):
    """It is given up after a while."""

    class Hangs(Words):
        async def count_tokens(self, texts):
            await asyncio.Event().wait()

    monkeypatch.setattr("looopy.history.tokens._PATIENCE_S", 0.01)
    (warning,) = await talk(memory_stores, Hangs(), range(3))
    assert "TimeoutError" in warning


async def test_loading_has_the_time_that_it_takes(memory_stores):
    """Only the counting is limited; a model that has to start again is loaded before it."""

    class Loads(Words):
        prepared = 0

        async def prepare(self):
            self.prepared += 1
            if self.prepared > 1:
                advance(600)
                for _ in range(5):
                    await asyncio.sleep(0)

    model = Loads()
    assert await talk(memory_stores, model, range(1)) == []
    assert model.counted
    assert model.prepared == 2


@pytest.fixture
def vocabulary(monkeypatch, tmp_path):
    """A tiktoken without vocabularies: how one is fetched, and how often it was tried."""
    tiktoken = pytest.importorskip("tiktoken")
    tried = []
    name = tiktoken.encoding_name_for_model("gpt-5-mini")
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tokens, "_encodings", {})

    def fetched(how):
        def read(path):
            assert name in path
            tried.append(path)
            return how()

        monkeypatch.setattr("tiktoken.load.read_file", read)
        return tried

    return fetched


class OfOpenAI(ScriptedProvider):
    """Counts as a model of OpenAI does, and answers without a network."""

    count_tokens = property(lambda self: self.counter.count_tokens)

    def __init__(self):
        super().__init__([text("It is so.")], repeat=True)
        self.counter = OpenAIProvider("gpt-5-mini", api_key="k")


async def test_a_turn_without_a_network_warns_once(memory_stores, vocabulary, caplog):
    """It is tried and logged once in a process, and every turn estimates."""

    def down():
        raise OSError("no network")

    tried = vocabulary(down)
    (warning,) = await talk(memory_stores, OfOpenAI(), range(3))
    assert "ConfigurationError" in warning
    assert await talk(memory_stores, OfOpenAI(), range(3), context_id="bob") == []
    assert len(tried) == 1
    logged = [one for one in caplog.records if "count_tokens failed" in one.message]
    assert len(logged) == 1
    assert "no network" in str(logged[0].exc_info[1])


async def test_a_network_that_hangs_holds_up_one_turn(memory_stores, vocabulary, monkeypatch):
    """The next agents do not wait for it."""
    hangs = threading.Event()
    tried = vocabulary(hangs.wait)
    try:
        monkeypatch.setattr(tokens, "_PATIENCE_S", 0.01)
        (warning,) = await talk(memory_stores, OfOpenAI(), range(2))
        assert "ConfigurationError" in warning
        assert await talk(memory_stores, OfOpenAI(), range(2), context_id="bob") == []
        assert len(tried) == 1
    finally:
        hangs.set()
